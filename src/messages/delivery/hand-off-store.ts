import {
  type Connection,
  type Database,
  statement,
  type Transaction,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import { unburiedWorker } from '../../platform/queue/lease.ts';
import type { Job } from '../channel.ts';
import { keyColumns } from '../keys.ts';

const announce = statement<{ batch: number }>(
  'hand_offs_announce',
  `with claimant as (
     ${unburiedWorker('$1')}
   ), over as (
     delete from hand_offs where epoch = $1 and batch = any ($3::bigint[])
   )
   insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
   select $1, $2, $4::uuid[], $5::uuid[], $6::integer[], $7::bigint[]
   from claimant
   returning batch`,
);

/**
 * Commits "about to hand off" for jobs that the worker has claimed, and removes the markers of batches that are over.
 * False if the worker was buried in the meantime: its jobs then belong to other workers, or will.
 */
export async function announceHandOffs(
  database: Database,
  jobs: readonly Job[],
  marker: Marker,
): Promise<boolean> {
  const rows = await inOneRoundTrip(database, announce, valuesOf(jobs, marker));
  return rows.length === 1;
}

/** As above, as a part of a transaction. */
export async function announceWithin(
  transaction: Transaction,
  jobs: readonly Job[],
  marker: Marker,
): Promise<boolean> {
  const rows = await transaction.rows(announce, valuesOf(jobs, marker));
  return rows.length === 1;
}

export type Marker = { epoch: number; batch: number; batchesOver: readonly number[] };

function valuesOf(jobs: readonly Job[], { epoch, batch, batchesOver }: Marker): unknown[] {
  return [epoch, batch, batchesOver, ...keyColumns(jobs), jobs.map(({ claimNumber }) => claimNumber)];
}

/** Removes the markers of a worker whose claims have all been returned, and of all buried workers. */
export async function deleteMarkers(connection: Connection, epoch: number): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `delete from hand_offs h
       where epoch = $1 or not exists (select from workers where workers.epoch = h.epoch)`,
    ),
    [epoch],
  );
}
