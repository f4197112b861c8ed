import { hasMessageReader } from '../../audience/audience.ts';
import { type EventType, insertIntoOutbox, isEventWanted, wakeNumbering } from '../../webhooks/webhooks.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { defineStatement } from '../../platform/postgres/parameters.ts';
import type { DeliverySlice } from '../channel.ts';
import { columnsOfKey, type RecipientKey, recipientKey } from '../keys.ts';
import { type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import { columnsOfSlice, sliceKey } from '../slices.ts';
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
  /** What programs are told; null for nothing. */
  event: EventType | null;
  recipients: readonly { ordinal: number; providerMessageId: string | null }[];
  /** How many of them count as hand-offs of the organization. */
  sent: number;
};

/** SQL: writes what is known of the recipients in `given`. */
function updateTaken(at: string): string {
  return `update recipients r
     set ${columnsOfOutcome(at, null)},
     handed_off_at = coalesce(r.handed_off_at, ${at}),
     uncertain = false
     from given s
     where ${hasKeyOf('r', 's', recipientKey)}
     returning s.organization_id, s.message_id, s.ordinal, case when r.status = s.status then s.event end as event`;
}

/** SQL: logs what programs want to hear of the recipients in `taken`. Of those that a report has overtaken, it has told. */
function logTaken(at: string, { ofCampaign, subjects }: { ofCampaign: boolean; subjects: string }): string {
  return `${insertIntoOutbox(
    `select organization_id, event, ${at}, ${ofCampaign}, ${subjects}, array_agg(ordinal), null
     from taken
     where ${isEventWanted('taken.organization_id', 'taken.event', `${ofCampaign}`)}
     group by organization_id, event${ofCampaign ? ', message_id' : ''}`,
  )}
     returning true as is_logged`;
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
export const settlementOfParts = defineStatement<TakenParts>('slices_settle_taken', ({ value, rows }) => {
  const epoch = value((taken) => taken.epoch);
  const parts = rows(({ parts: each }) => each, {
    ...columnsOfSlice(({ slice }: TakenPart) => slice),
    writes: ['integer', ({ slice }) => slice.writes],
    change_id: ['uuid', ({ changeId }) => changeId],
    count_slices: ['text', ({ countSlices }) => `{${countSlices.join(',')}}`],
    sent: ['integer', ({ sent }) => sent],
    status: ['text', ({ status }) => status],
    is_told: ['boolean', ({ isTold }) => isTold],
    event: ['text', ({ event }) => event],
  });
  const recipients = rows(
    ({ parts: each }) =>
      each.flatMap(({ recipients: ofPart }, index) =>
        ofPart.map(({ ordinal, providerMessageId }) => ({ number: index + 1, ordinal, providerMessageId })),
      ),
    {
      number: ['integer', ({ number }) => number],
      ordinal: ['integer', ({ ordinal }) => ordinal],
      provider_message_id: ['text', ({ providerMessageId }) => providerMessageId],
    },
  );
  const at = value((taken) => taken.at);
  const shard = value((taken) => taken.shard);
  return `with slice as (
     update delivery_slices slice
     set writes = slice.writes + 1
     from ${parts('wanted', { numbered: 'number' })}
     where ${hasKeyOf('slice', 'wanted', sliceKey)} and slice.claimed_by = ${epoch} and slice.writes = wanted.writes
     returning slice.organization_id, slice.message_id, wanted.number, wanted.change_id,
       wanted.count_slices::integer[] as count_slices, wanted.sent, wanted.status, wanted.event,
       ${failIfHeard(toPredicate('wanted.is_told'), 'slice.organization_id')} as untold
   ), given as materialized (
     select slice.organization_id, slice.message_id, given.ordinal, slice.status, slice.event,
       given.provider_message_id
     from ${recipients('given')}
     join slice on slice.number = given.number
   ), taken as (
     ${updateTaken(at)}
   ), noted as (
     insert into recipient_changes (organization_id, id, message_id, slices)
     select organization_id, change_id, message_id, count_slices
     from slice
   ), logged as (
     ${logTaken(at, { ofCampaign: true, subjects: 'array[message_id]' })}
   ), counted as (
     ${countSent('slice', { at, shard })}
   )
   ${wakeNumbering('logged')}`;
});

/** SQLSTATE of a division by zero: a segment reads messages. */
export const hasReaders = '22012';

export type TakenContext = { epoch: number; at: Date; shard: number };

export type TakenParts = TakenContext & { parts: readonly TakenPart[] };

/** The only recipient of a message, whose first hand-off the provider has accepted. */
export type TakenJob = RecipientKey & {
  status: RecipientStatus;
  /** Whether segments must hear of that status. */
  isTold: boolean;
  /** What programs are told; null for nothing. */
  event: EventType | null;
  providerMessageId: string | null;
  /** How much it counts as a hand-off of the organization. */
  sent: 0 | 1;
};

export type TakenJobs = TakenContext & { jobs: readonly TakenJob[] };

/** Like `settlementOfParts`, of jobs that have rows of their own in the queue. */
export const settlementOfJobs = defineStatement<TakenJobs>('queue_settle_taken', ({ value, rows }) => {
  const jobs = rows(({ jobs: each }) => each, {
    ...columnsOfKey((job: TakenJob) => job),
    status: ['text', ({ status }) => status],
    is_told: ['boolean', ({ isTold }) => isTold],
    event: ['text', ({ event }) => event],
    provider_message_id: ['text', ({ providerMessageId }) => providerMessageId],
    sent: ['integer', ({ sent }) => sent],
  });
  const epoch = value((taken) => taken.epoch);
  const at = value((taken) => taken.at);
  const shard = value((taken) => taken.shard);
  return `with given as materialized (
     delete from delivery_queue q
     using ${jobs('done')}
     where ${hasKeyOf('q', 'done', recipientKey)} and q.claimed_by = ${epoch}
     returning done.*, ${failIfHeard(toPredicate('done.is_told'), 'done.organization_id')} as untold
   ), taken as (
     ${updateTaken(at)}
   ), logged as (
     ${logTaken(at, { ofCampaign: false, subjects: 'array_agg(message_id)' })}
   ), counted as (
     ${countSent('given', { at, shard })}
   )
   ${wakeNumbering('logged')}`;
});
