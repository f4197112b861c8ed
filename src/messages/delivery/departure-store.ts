import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { Job } from '../channel.ts';
import { keyColumns, type RecipientKey, recipientKey, textOfKey, toKey } from '../keys.ts';

/**
 * From here on the jobs cannot be cancelled. Each row is locked, as a cancellation does that deletes it: whichever commits
 * first is what happens, and the other finds the row changed or gone. In the order of the keys, in which a cancellation
 * deletes the rows of a message.
 */
const depart = statement<{ organization_id: string; message_id: string; ordinal: number }>(
  'queue_depart',
  `with wanted as materialized (
     select organization_id, message_id, ordinal, claim_number
     from unnest($2::uuid[], $3::uuid[], $4::integer[], $5::bigint[])
       as given (organization_id, message_id, ordinal, claim_number)
     order by organization_id, message_id, ordinal
   ), own as (
     select job.organization_id, job.message_id, job.ordinal
     from wanted
     -- Each by its own key: the queue has an index in this order, which would be read from end to end otherwise.
     cross join lateral (
       select organization_id, message_id, ordinal
       from delivery_queue
       where ${hasKeyOf('delivery_queue', 'wanted', recipientKey)}
         and claimed_by = $1 and claim_number = wanted.claim_number and is_cancellable
       for update
     ) job
   )
   update delivery_queue q
   set is_cancellable = false
   from own
   where ${hasKeyOf('q', 'own', recipientKey)}
   returning q.organization_id, q.message_id, q.ordinal`,
);

/** Returns those of the jobs, as texts of their keys, that were not cancelled before and are still this worker's. */
export async function departJobs(
  connection: Connection,
  jobs: readonly Job[],
  epoch: number,
): Promise<ReadonlySet<string>> {
  const claimNumbers = jobs.map(({ claimNumber }) => claimNumber);
  const rows = await connection.rows(depart, [epoch, ...keyColumns(jobs), claimNumbers]);
  return new Set(rows.map((row): RecipientKey => toKey(row)).map(textOfKey));
}
