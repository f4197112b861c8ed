import { type Bound, type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { type Columns, defineStatement } from '../../platform/postgres/parameters.ts';
import type { DeliverySlice, Job } from '../channel.ts';
import { columnsOfKey, keyColumns, recipientKey, textOfKey, toKey } from '../keys.ts';
import type { DropReason, RecipientStatus } from '../schema.ts';
import { columnsOfSlice, sliceKey } from '../slices.ts';
import { columnsOfOutcome } from './outcome-columns.ts';
import {
  type ChangedRecipient,
  type ChangedRow,
  columnsOfFailure,
  type Failure,
  type Happened,
  toChanged,
} from './store.ts';

/** What to write of a job. */
export type Settlement = {
  job: Job;
  /** The recipient's new status; null leaves it unchanged. */
  status: RecipientStatus | null;
  dropReason: DropReason | null;
  failure: Failure | null;
  providerMessageId: string | null;
  /** The hand-off took place, or may have. */
  wasHandedOff: boolean;
  /** The hand-off was cut off before the reply. */
  isAmbiguous: boolean;
  /** What is known of the crash that the job counts; left out if it counts none. */
  crashWords?: string;
  /** Null: the job is done. */
  requeue: { dueAt: Date; attempts: number; crashes: number; setAsideAt: Date | null } | null;
};

/** `status` is the one that it has now. */
type SettledRow = ChangedRow & { status: RecipientStatus };

type Settled = { settlements: readonly Settlement[]; epoch: number; at: Date };

const settledColumns: Columns<Settlement> = {
  ...columnsOfKey(({ job }: Settlement) => job),
  status: ['text', ({ status }) => status],
  drop_reason: ['text', ({ dropReason }) => dropReason],
  ...columnsOfFailure(({ failure }: Settlement) => failure),
  provider_message_id: ['text', ({ providerMessageId }) => providerMessageId],
  was_handed_off: ['boolean', ({ wasHandedOff }) => wasHandedOff],
  is_ambiguous: ['boolean', ({ isAmbiguous }) => isAmbiguous],
  due_at: ['timestamptz', ({ requeue }) => requeue?.dueAt],
  attempts: ['smallint', ({ requeue }) => requeue?.attempts],
  crashes: ['smallint', ({ requeue }) => requeue?.crashes],
  set_aside_at: ['timestamptz', ({ requeue }) => requeue?.setAsideAt],
  handed_off_at: ['timestamptz', ({ job, isAmbiguous }) => (isAmbiguous ? job.handOffAt : null)],
};

/** SQL: writes what is known of the recipients of `s`. */
function updateRecipients(s: string, at: string): string {
  return `update recipients r
   set
     ${columnsOfOutcome(at, (column) => `s.${column}`)},
     drop_reason = coalesce(r.drop_reason, s.drop_reason),
     handed_off_at = case when s.was_handed_off then coalesce(r.handed_off_at, ${at}) else r.handed_off_at end,
     ambiguities = r.ambiguities + s.is_ambiguous::integer,
     -- A report that came in the meantime proves that the hand-off took place.
     uncertain = (r.uncertain and s.due_at is not null)
       or (s.is_ambiguous and r.status in ('sent', 'delayed') and (r.handed_off_at is null or r.uncertain))
   from ${s} s
   where ${hasKeyOf('r', 's', recipientKey)}
     and (s.status is not null or s.is_ambiguous or s.drop_reason is not null)
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key, r.status`;
}

const settleQueued = defineStatement<Settled, SettledRow>('queue_settle', ({ value, rows }) => {
  const settlements = rows((settled) => settled.settlements, settledColumns);
  const epoch = value((settled) => settled.epoch);
  const at = value((settled) => settled.at);
  return `with settlement as (
     select *
     from ${settlements('settlement')}
   ), done as (
     delete from delivery_queue q
     using settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = ${epoch} and s.due_at is null
     returning s.*
   ), requeued as (
     update delivery_queue q
     set claimed_by = null, claim_number = null, due_at = s.due_at, attempts = s.attempts, crashes = s.crashes,
       ambiguities = q.ambiguities + s.is_ambiguous::integer, set_aside_at = s.set_aside_at,
       first_handed_off_at = coalesce(q.first_handed_off_at, s.handed_off_at)
     from settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = ${epoch} and s.due_at is not null
     returning s.*
   )
   ${updateRecipients('(select * from done union all select * from requeued)', at)}`;
});

type SettledSlices = Settled & { slices: readonly DeliverySlice[] };

/**
 * What is to be tried again gets a row of its own in the queue. Of a slice whose count of writes is another one, these
 * outcomes were written before, by a transaction whose answer was lost: nothing is written again.
 */
const settleSliced = defineStatement<SettledSlices, SettledRow>('slices_settle', ({ value, rows }) => {
  const slices = rows((settled) => settled.slices, {
    ...columnsOfSlice((slice: DeliverySlice) => slice),
    writes: ['integer', ({ writes }) => writes],
  });
  const settlements = rows(
    ({ settlements: each, slices: all }) => {
      const numbers = new Map(all.map((slice, index) => [slice, index + 1]));
      return each.map((settlement) => ({
        ...settlement,
        sliceNumber: settlement.job.slice && numbers.get(settlement.job.slice),
      }));
    },
    {
      ...settledColumns,
      slice_number: [
        'integer',
        ({ sliceNumber }: Settlement & { sliceNumber: number | undefined }) => sliceNumber,
      ],
    },
  );
  const epoch = value((settled) => settled.epoch);
  const at = value((settled) => settled.at);
  return `with slice as (
     update delivery_slices slice
     set writes = slice.writes + 1
     from ${slices('wanted', { numbered: 'number' })}
     where ${hasKeyOf('slice', 'wanted', sliceKey)} and slice.claimed_by = ${epoch} and slice.writes = wanted.writes
     returning wanted.number, slice.channel, slice.lane, slice.accepted_at, slice.content_bytes
   ), settlement as (
     select given.*, slice.channel, slice.lane, slice.accepted_at, slice.content_bytes
     from ${settlements('given')}
     join slice on slice.number = given.slice_number
   ), requeued as (
     insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
       content_bytes, attempts, ambiguities, crashes, set_aside_at, first_handed_off_at)
     select organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
       content_bytes, attempts, is_ambiguous::integer, crashes, set_aside_at, handed_off_at
     from settlement
     where due_at is not null
   )
   ${updateRecipients('settlement', at)}`;
});

/** As with `uncertain`, but for a delay, which does not tell whether a hand-off took place. */
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
async function withoutReported(
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

/**
 * Writes the outcomes of jobs that are still claimed under this epoch, and returns the recipients that were changed. The
 * queue and the recipients are changed together, so that a job is never both queued and done, nor neither. Messages of
 * hand-offs that were cut off must be locked.
 */
export async function settleJobs(
  connection: Connection,
  given: readonly Settlement[],
  claim: { epoch: number; at: Date },
): Promise<ChangedRecipient[]> {
  const settlements = await withoutReported(connection, given);
  const queued = settlements.filter(({ job }) => job.slice === undefined);
  const sliced = settlements.filter(({ job }) => job.slice !== undefined);
  const slices = [...new Set(sliced.flatMap(({ job: { slice } }) => slice ?? []))];
  const [ofQueue, ofSlices] = await Promise.all([
    queued.length === 0 ? [] : run(connection, settleQueued.bind({ settlements: queued, ...claim })),
    sliced.length === 0 ? [] : run(connection, settleSliced.bind({ settlements: sliced, slices, ...claim })),
  ]);
  const settlementOf = new Map(settlements.map((settlement) => [textOfKey(settlement.job), settlement]));
  return [...ofQueue, ...ofSlices].map((row) =>
    toChanged(row, happenedBy(settlementOf.get(textOfKey(toKey(row))), row.status, claim.at)),
  );
}

/** Of an outcome that a report has overtaken, the report has told. */
function happenedBy(
  settlement: Settlement | undefined,
  status: RecipientStatus,
  at: Date,
): readonly Happened[] {
  if (settlement === undefined) return [];
  const { dropReason, failure } = settlement;
  if (dropReason !== null) return [{ what: 'dropped', at, dropReason }];
  return settlement.status === status ? [{ what: status, at, failure }] : [];
}

function run<Row>(connection: Connection, { statement, values }: Bound<Row>): Promise<Row[]> {
  return connection.rows(statement, values);
}
