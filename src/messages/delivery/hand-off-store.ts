import {
  type Bound,
  type Connection,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { unburiedWorker } from '../../platform/queue/lease.ts';
import type { Job } from '../channel.ts';
import { keyColumns } from '../keys.ts';

/** A row if the worker was not buried in the meantime: otherwise its jobs belong to other workers, or will. */
export type Announced = { batch: number };

const announce = statement<Announced>(
  'hand_offs_announce',
  `with claimant as (
     ${unburiedWorker('$1')}
   ), over as (
     delete from hand_offs where epoch = $1 and batch = any ($3::bigint[])
   )
   insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers, handed_off_at)
   select $1, $2, $4::uuid[], $5::uuid[], $6::integer[], $7::bigint[], $8::timestamptz[]
   from claimant
   returning batch`,
);

export type Marker = { epoch: number; batch: number; batchesOver: readonly number[] };

/**
 * Stores "about to hand off" for jobs that the worker has claimed, and removes the markers of batches that are over.
 */
export function announcementOf(
  jobs: readonly Job[],
  { epoch, batch, batchesOver }: Marker,
): Bound<Announced> {
  return {
    statement: announce,
    values: [
      epoch,
      batch,
      batchesOver,
      ...keyColumns(jobs),
      jobs.map(({ claimNumber }) => claimNumber),
      jobs.map(({ handOffAt }) => handOffAt),
    ],
  };
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
