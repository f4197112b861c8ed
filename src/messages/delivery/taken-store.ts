import { hasMessageReader } from '../../audience/audience.ts';
import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { DeliverySlice } from '../channel.ts';
import { recipientKey } from '../keys.ts';
import { rankOf } from '../status.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import { sliceColumns, sliceKey } from './slice-store.ts';
import type { RecipientStatus } from '../schema.ts';

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

/** Otherwise a report has set a status of a higher rank in the meantime, which stays. */
const isRaised = toPredicate(`${rankOf('given.status')} > ${rankOf('r.status')}`);

/**
 * Everything that follows from an accepted hand-off, in one statement: what `changeRecipients` does by several where it
 * depends on the outcome. It fails where a segment of the organization reads messages, whose contacts must be told of.
 */
const settle = statement(
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
       1 / (case when wanted.is_told and ${hasMessageReader('slice.organization_id')} then 0 else 1 end) as untold
   ), given as materialized (
     select slice.organization_id, slice.message_id, given.ordinal, slice.status, given.provider_message_id
     from unnest($12::integer[], $13::integer[], $14::text[]) as given (number, ordinal, provider_message_id)
     join slice on slice.number = given.number
   ), taken as (
     update recipients r
     set status = case when ${isRaised} then given.status else r.status end,
       status_at = case when ${isRaised} then $11 else r.status_at end,
       handed_off_at = coalesce(r.handed_off_at, $11),
       uncertain = false,
       provider_message_id = coalesce(given.provider_message_id, r.provider_message_id)
     from given
     where ${hasKeyOf('r', 'given', recipientKey)}
   ), noted as (
     insert into recipient_changes (organization_id, id, message_id, slices)
     select organization_id, change_id, message_id, count_slices
     from slice
   )
   insert into reputation_counts as c (organization_id, hour, shard, sent, bounced, complained)
   select organization_id, date_trunc('hour', $11::timestamptz, 'UTC'), $15, sum(sent), 0, 0
   from slice
   where sent > 0
   group by organization_id
   order by organization_id
   on conflict (organization_id, hour, shard) do update set sent = c.sent + excluded.sent`,
);

/** SQLSTATE of a division by zero: a segment reads messages. */
export const hasReaders = '22012';

export async function settleTaken(
  connection: Connection,
  parts: readonly TakenPart[],
  { epoch, at, shard }: { epoch: number; at: Date; shard: number },
): Promise<void> {
  const recipients = parts.flatMap((part, index) =>
    part.recipients.map((recipient) => ({ ...recipient, number: index + 1 })),
  );
  await connection.rows(settle, [
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
  ]);
}
