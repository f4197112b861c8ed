import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, recipientKey, toKey, uniqueMessages } from '../keys.ts';
import { deleteFinishedAttachments } from './content-store.ts';

/**
 * What a worker has claimed is left to it: it may be handing it off at this moment. Waits for a claim that is being
 * written, which takes its rows without waiting for any.
 */
const deleteRepeats = statement<{ organization_id: string; message_id: string; ordinal: number }>(
  'queue_delete_repeats',
  `delete from delivery_queue q
   using unnest($1::uuid[], $2::uuid[], $3::integer[]) as reported (organization_id, message_id, ordinal)
   where ${hasKeyOf('q', 'reported', recipientKey)}
     and q.ambiguities > 0 and q.claimed_by is null
   returning q.organization_id, q.message_id, q.ordinal`,
);

/**
 * Takes out of the queue those of the jobs that wait to be tried once more because a reply was lost: a report has said
 * meanwhile that the hand-off took place. Their messages must be locked.
 */
export async function endRepeats(connection: Connection, jobs: readonly RecipientKey[]): Promise<void> {
  if (jobs.length === 0) return;
  const rows = await connection.rows(deleteRepeats, keyColumns(jobs));
  await deleteFinishedAttachments(connection, uniqueMessages(rows.map(toKey)));
}
