import { hasMessageReader } from '../../audience/audience.ts';
import { type Bound, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { DeliverySlice } from '../channel.ts';
import { keyColumns, type RecipientKey, recipientKey } from '../keys.ts';
import { type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import { sliceColumns, sliceKey } from '../slices.ts';
import type { RecipientStatus } from '../schema.ts';
import { columnsOfOutcome } from './outcome-columns.ts';

/** Recipients of one slice whose hand-off the provider has accepted. */
export type TakenPart = {
  slice: DeliverySlice;
  /** Of what is noted for the counts. */
  changeId: string;
  /** The slices of counts that change. */
  countSlices: readonly number[];
  status: RecipientStatus;
  /** Whether segments must hear of that status. */
  isTold: boolean;
  recipients: readonly { ordinal: number; providerMessageId: string | null }[];
  /** How many of them count as hand-offs of the organization. */
  sent: number;
};

/** SQL: writes what is known of the recipients in `given`. */
function updateTaken(at: string): string {
  return `update recipients r
     set ${columnsOfOutcome(at, () => 'null')},
     handed_off_at = coalesce(r.handed_off_at, ${at}),
     uncertain = false
     from given s
     where ${hasKeyOf('r', 's', recipientKey)}`;
}

/** SQL: fails where a segment of the organization reads messages and must hear of the outcome. */
function failIfHeard(isTold: Predicate, organizationId: string): string {
  return `1 / (case when ${isTold} and ${hasMessageReader(organizationId)} then 0 else 1 end)`;
}

/** SQL: adds the hand-offs of `given` rows, or of what they were written for, to the counts of their organizations. */
function countSent(given: string, { at, shard }: { at: string; shard: string }): string {
  return `insert into reputation_counts as c (organization_id, hour, shard, sent, bounced, complained)
   select organization_id, date_trunc('hour', ${at}::timestamptz, 'UTC'), ${shard}, sum(sent), 0, 0
   from ${given}
   where sent > 0
   group by organization_id
   order by organization_id
   on conflict (organization_id, hour, shard) do update set sent = c.sent + excluded.sent`;
}

/**
 * Everything that follows from an accepted hand-off, in one statement: what `changeRecipients` does by several where it
 * depends on the outcome. It fails where a segment of the organization reads messages, whose contacts must be told of.
 */
const settleSliced = statement(
  'slices_settle_taken',
  `with slice as (
     update delivery_slices slice
     set writes = slice.writes + 1
     from unnest($2::uuid[], $3::uuid[], $4::integer[], $5::integer[], $6::uuid[], $7::text[], $8::integer[], $9::text[],
       $10::boolean[]) with ordinality
       as wanted (organization_id, message_id, first_ordinal, writes, change_id, count_slices, sent, status, is_told, number)
     where ${hasKeyOf('slice', 'wanted', sliceKey)} and slice.claimed_by = $1 and slice.writes = wanted.writes
     returning slice.organization_id, slice.message_id, wanted.number, wanted.change_id,
       wanted.count_slices::integer[] as count_slices, wanted.sent, wanted.status,
       ${failIfHeard(toPredicate('wanted.is_told'), 'slice.organization_id')} as untold
   ), given as materialized (
     select slice.organization_id, slice.message_id, given.ordinal, slice.status, given.provider_message_id
     from unnest($12::integer[], $13::integer[], $14::text[]) as given (number, ordinal, provider_message_id)
     join slice on slice.number = given.number
   ), taken as (
     ${updateTaken('$11')}
   ), noted as (
     insert into recipient_changes (organization_id, id, message_id, slices)
     select organization_id, change_id, message_id, count_slices
     from slice
   )
   ${countSent('slice', { at: '$11', shard: '$15' })}`,
);

/** SQLSTATE of a division by zero: a segment reads messages. */
export const hasReaders = '22012';

export type TakenContext = { epoch: number; at: Date; shard: number };

export function settlementOfParts(
  parts: readonly TakenPart[],
  { epoch, at, shard }: TakenContext,
): Bound<unknown> {
  const recipients = parts.flatMap((part, index) =>
    part.recipients.map((recipient) => ({ ...recipient, number: index + 1 })),
  );
  return {
    statement: settleSliced,
    values: [
      epoch,
      ...sliceColumns(parts.map(({ slice }) => slice)),
      parts.map(({ slice }) => slice.writes),
      parts.map(({ changeId }) => changeId),
      parts.map(({ countSlices }) => `{${countSlices.join(',')}}`),
      parts.map(({ sent }) => sent),
      parts.map(({ status }) => status),
      parts.map(({ isTold }) => isTold),
      at,
      recipients.map(({ number }) => number),
      recipients.map(({ ordinal }) => ordinal),
      recipients.map(({ providerMessageId }) => providerMessageId),
      shard,
    ],
  };
}

/** The only recipient of a message, whose first hand-off the provider has accepted. */
export type TakenJob = RecipientKey & {
  status: RecipientStatus;
  /** Whether segments must hear of that status. */
  isTold: boolean;
  providerMessageId: string | null;
  /** How much it counts as a hand-off of the organization. */
  sent: 0 | 1;
};

const settleQueued = statement(
  'queue_settle_taken',
  `with given as materialized (
     delete from delivery_queue q
     using unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::boolean[], $6::text[], $7::integer[])
       as done (organization_id, message_id, ordinal, status, is_told, provider_message_id, sent)
     where ${hasKeyOf('q', 'done', recipientKey)} and q.claimed_by = $8
     returning done.*, ${failIfHeard(toPredicate('done.is_told'), 'done.organization_id')} as untold
   ), taken as (
     ${updateTaken('$9')}
   )
   ${countSent('given', { at: '$9', shard: '$10' })}`,
);

/** Like `settlementOfParts`, of jobs that have rows of their own in the queue. */
export function settlementOfJobs(
  jobs: readonly TakenJob[],
  { epoch, at, shard }: TakenContext,
): Bound<unknown> {
  return {
    statement: settleQueued,
    values: [
      ...keyColumns(jobs),
      jobs.map(({ status }) => status),
      jobs.map(({ isTold }) => isTold),
      jobs.map(({ providerMessageId }) => providerMessageId),
      jobs.map(({ sent }) => sent),
      epoch,
      at,
      shard,
    ],
  };
}
