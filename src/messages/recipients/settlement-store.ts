import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { Job } from '../channel.ts';
import { keyColumns, recipientKey, textOfKey, toKey } from '../keys.ts';
import type { DropReason, RecipientStatus } from '../schema.ts';
import { sliceColumns, sliceKey } from '../slices.ts';
import { columnsOfOutcome } from './outcome-columns.ts';
import { type ChangedRecipient, type ChangedRow, type Failure, toChanged } from './store.ts';

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

const settledColumns = `organization_id, message_id, ordinal, status, drop_reason, failure_type, failure_class, smtp_code,
       enhanced_code, diagnostic, remote, provider_message_id, was_handed_off, is_ambiguous, due_at,
       attempts, crashes, set_aside_at, handed_off_at`;

const settledValues = `$1::uuid[], $2::uuid[], $3::integer[], $6::text[], $7::text[], $8::text[], $9::text[], $10::smallint[],
       $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[], $16::boolean[], $17::timestamptz[],
       $18::smallint[], $19::smallint[], $20::timestamptz[], $21::timestamptz[]`;

/** SQL: writes what is known of the recipients of `s`. */
function updateRecipients(s: string): string {
  return `update recipients r
   set
     ${columnsOfOutcome('$5', (column) => `s.${column}`)},
     drop_reason = coalesce(r.drop_reason, s.drop_reason),
     handed_off_at = case when s.was_handed_off then coalesce(r.handed_off_at, $5) else r.handed_off_at end,
     ambiguities = r.ambiguities + s.is_ambiguous::integer,
     -- A report that came in the meantime proves that the hand-off took place.
     uncertain = (r.uncertain and s.due_at is not null)
       or (s.is_ambiguous and r.status in ('sent', 'delayed') and (r.handed_off_at is null or r.uncertain))
   from ${s} s
   where ${hasKeyOf('r', 's', recipientKey)}
     and (s.status is not null or s.is_ambiguous or s.drop_reason is not null)
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`;
}

const settleQueued = statement<ChangedRow>(
  'queue_settle',
  `with settlement as (
     select *
     from unnest(
       ${settledValues}
     ) as settlement (
       ${settledColumns}
     )
   ), done as (
     delete from delivery_queue q
     using settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = $4 and s.due_at is null
     returning s.*
   ), requeued as (
     update delivery_queue q
     set claimed_by = null, claim_number = null, due_at = s.due_at, attempts = s.attempts, crashes = s.crashes,
       ambiguities = q.ambiguities + s.is_ambiguous::integer, set_aside_at = s.set_aside_at,
       first_handed_off_at = coalesce(q.first_handed_off_at, s.handed_off_at)
     from settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = $4 and s.due_at is not null
     returning s.*
   )
   ${updateRecipients('(select * from done union all select * from requeued)')}`,
);

/**
 * What is to be tried again gets a row of its own in the queue. Of a slice whose count of writes is another one, these
 * outcomes were written before, by a transaction whose answer was lost: nothing is written again.
 */
const settleSliced = statement<ChangedRow>(
  'slices_settle',
  `with slice as (
     update delivery_slices slice
     set writes = slice.writes + 1
     from unnest($23::uuid[], $24::uuid[], $25::integer[], $26::integer[]) with ordinality
       as wanted (organization_id, message_id, first_ordinal, writes, number)
     where ${hasKeyOf('slice', 'wanted', sliceKey)} and slice.claimed_by = $4 and slice.writes = wanted.writes
     returning wanted.number, slice.channel, slice.lane, slice.accepted_at, slice.content_bytes
   ), settlement as (
     select given.*, slice.channel, slice.lane, slice.accepted_at, slice.content_bytes
     from unnest(
       ${settledValues}, $22::integer[]
     ) as given (
       ${settledColumns}, slice_number
     )
     join slice on slice.number = given.slice_number
   ), requeued as (
     insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
       content_bytes, attempts, ambiguities, crashes, set_aside_at, first_handed_off_at)
     select organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
       content_bytes, attempts, is_ambiguous::integer, crashes, set_aside_at, handed_off_at
     from settlement
     where due_at is not null
   )
   ${updateRecipients('settlement')}`,
);

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
  const [ofQueue, ofSlices] = await Promise.all([
    queued.length === 0 ? [] : connection.rows(settleQueued, valuesOf(queued, claim)),
    sliced.length === 0 ? [] : connection.rows(settleSliced, slicedValuesOf(sliced, claim)),
  ]);
  return [...ofQueue, ...ofSlices].map(toChanged);
}

function slicedValuesOf(settlements: readonly Settlement[], claim: { epoch: number; at: Date }): unknown[] {
  const slices = [...new Set(settlements.flatMap(({ job: { slice } }) => slice ?? []))];
  const numbers = new Map(slices.map((slice, index) => [slice, index + 1]));
  return [
    ...valuesOf(settlements, claim),
    settlements.map(({ job: { slice } }) => slice && numbers.get(slice)),
    ...sliceColumns(slices),
    slices.map(({ writes }) => writes),
  ];
}

function valuesOf(settlements: readonly Settlement[], claim: { epoch: number; at: Date }): unknown[] {
  return [
    ...keyColumns(settlements.map(({ job }) => job)),
    claim.epoch,
    claim.at,
    settlements.map(({ status }) => status),
    settlements.map(({ dropReason }) => dropReason),
    settlements.map(({ failure }) => failure?.type),
    settlements.map(({ failure }) => failure?.class),
    settlements.map(({ failure }) => failure?.smtpCode),
    settlements.map(({ failure }) => failure?.enhancedCode),
    settlements.map(({ failure }) => failure?.diagnostic),
    settlements.map(({ failure }) => failure?.remote),
    settlements.map(({ providerMessageId }) => providerMessageId),
    settlements.map(({ wasHandedOff }) => wasHandedOff),
    settlements.map(({ isAmbiguous }) => isAmbiguous),
    settlements.map(({ requeue }) => requeue?.dueAt),
    settlements.map(({ requeue }) => requeue?.attempts),
    settlements.map(({ requeue }) => requeue?.crashes),
    settlements.map(({ requeue }) => requeue?.setAsideAt),
    settlements.map(({ job, isAmbiguous }) => (isAmbiguous ? job.handOffAt : null)),
  ];
}
