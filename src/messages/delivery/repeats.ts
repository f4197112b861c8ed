import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, recipientKey, textOfKey, toKey, uniqueMessages } from '../keys.ts';
import { deleteFinishedAttachments } from './content-store.ts';
import type { Settlement } from './settlement-store.ts';

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

/** As with `uncertain` (settlement-store.ts), but for a delay, which does not tell whether a hand-off took place. */
const selectReported = statement<{ organization_id: string; message_id: string; ordinal: number }>(
  'recipients_select_reported',
  `select r.organization_id, r.message_id, r.ordinal
   from recipients r
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as cut_off (organization_id, message_id, ordinal)
     on ${hasKeyOf('r', 'cut_off', recipientKey)}
   where case when r.status = 'sent' then r.handed_off_at is not null and not r.uncertain else r.status <> 'delayed' end`,
);

/**
 * The settlements without the repeats that are not needed: of hand-offs that were cut off, and of which a report has said
 * before that they took place, such as those whose answer never came. Their messages must be locked.
 */
export async function withoutReported(
  connection: Connection,
  settlements: readonly Settlement[],
): Promise<readonly Settlement[]> {
  const isRepeat = ({ job, isAmbiguous, requeue }: Settlement) =>
    isAmbiguous && requeue !== null && job.channel.reports.endsRepeats;
  const repeats = settlements.filter(isRepeat);
  if (repeats.length === 0) return settlements;
  const rows = await connection.rows(selectReported, keyColumns(repeats.map(({ job }) => job)));
  const reported = new Set(rows.map((row) => textOfKey(toKey(row))));
  return settlements.map((settlement) =>
    isRepeat(settlement) && reported.has(textOfKey(settlement.job))
      ? { ...settlement, requeue: null }
      : settlement,
  );
}
