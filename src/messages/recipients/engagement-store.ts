import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import { keyColumns, type RecipientKey, recipientKey } from '../keys.ts';
import type { RecipientStatus } from '../schema.ts';
import { rankOf } from '../status.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from './store.ts';

/** What was seen of a recipient just now: the first time of each kind; null where nothing was. */
export type NotedEngagement = RecipientKey & {
  openedAt: Date | null;
  clickedAt: Date | null;
  machineEngagedAt: Date | null;
  status: RecipientStatus | null;
};

const noteFirst = statement<ChangedRow>(
  'recipients_note_engagements',
  `update recipients r
   set
     opened_at = coalesce(r.opened_at, engaged.opened_at),
     clicked_at = coalesce(r.clicked_at, engaged.clicked_at),
     machine_engaged_at = coalesce(r.machine_engaged_at, engaged.machine_engaged_at),
     status = case when ${rankOf('engaged.status')} > ${rankOf('r.status')} then engaged.status else r.status end,
     status_at = case when ${rankOf('engaged.status')} > ${rankOf('r.status')} then $8 else r.status_at end,
     -- A recipient that engages has the message. A machine does not raise the status: the recipient would never be
     -- done.
     uncertain = r.uncertain and engaged.status is null
   from unnest(
     $1::uuid[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[]
   ) as engaged (organization_id, message_id, ordinal, opened_at, clicked_at, machine_engaged_at, status)
   where ${hasKeyOf('r', 'engaged', recipientKey)}
     and (
       (r.opened_at is null and engaged.opened_at is not null)
       or (r.clicked_at is null and engaged.clicked_at is not null)
       or (r.machine_engaged_at is null and engaged.machine_engaged_at is not null)
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/**
 * Engagements in the order in which they happen: a time that is stored stays. The recipients must be locked, and each given
 * once. Returns those that changed.
 */
export async function noteEngagements(
  transaction: Connection,
  engaged: readonly NotedEngagement[],
  at: Date,
): Promise<ChangedRecipient[]> {
  const rows = await transaction.rows(noteFirst, [
    ...keyColumns(engaged),
    engaged.map(({ openedAt }) => openedAt),
    engaged.map(({ clickedAt }) => clickedAt),
    engaged.map(({ machineEngagedAt }) => machineEngagedAt),
    engaged.map(({ status }) => status),
    at,
  ]);
  return rows.map(toChanged);
}

/** What a device tells of a recipient, late and in any order: the first time of each kind that is known by now. */
export type ToldEngagement = RecipientKey & {
  /** `sent` says only that the device has the push. */
  status: RecipientStatus;
  statusAt: Date;
  openedAt: Date | null;
  clickedAt: Date | null;
  /** When something was first heard of it: it was handed off no later. */
  firstAt: Date;
};

/**
 * SQL: the status of the recipient `r` gives way. A device that has the push knows better than a service that put it off,
 * or that refused the repetition of a hand-off.
 */
const isOvertaken = toPredicate(
  `${rankOf('engaged.status')} > ${rankOf('r.status')} or r.status in ('delayed', 'failed')`,
);

const applyTold = statement<ChangedRow>(
  'recipients_apply_told_engagements',
  `with engaged as (
     select *
     from unnest(
       $1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
       $8::timestamptz[]
     ) as engaged (organization_id, message_id, ordinal, status, status_at, opened_at, clicked_at, first_at)
   )
   update recipients r
   set
     status = case when ${isOvertaken} then engaged.status else r.status end,
     status_at = case when ${isOvertaken} then engaged.status_at else r.status_at end,
     -- Null is no time: least() leaves it out.
     opened_at = least(r.opened_at, engaged.opened_at),
     clicked_at = least(r.clicked_at, engaged.clicked_at),
     uncertain = false,
     -- A device may report before the outcome of its hand-off is written, or after it was cut off.
     handed_off_at = coalesce(r.handed_off_at, engaged.first_at)
   from engaged
   where ${hasKeyOf('r', 'engaged', recipientKey)}
     and (
       ${isOvertaken}
       or r.uncertain
       or r.handed_off_at is null
       or engaged.opened_at < coalesce(r.opened_at, 'infinity')
       or engaged.clicked_at < coalesce(r.clicked_at, 'infinity')
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/** The earliest time counts. The recipients must be locked, and each given once. Returns those that changed. */
export async function applyToldEngagements(
  transaction: Connection,
  engaged: readonly ToldEngagement[],
): Promise<ChangedRecipient[]> {
  const rows = await transaction.rows(applyTold, [
    ...keyColumns(engaged),
    engaged.map(({ status }) => status),
    engaged.map(({ statusAt }) => statusAt),
    engaged.map(({ openedAt }) => openedAt),
    engaged.map(({ clickedAt }) => clickedAt),
    engaged.map(({ firstAt }) => firstAt),
  ]);
  return rows.map(toChanged);
}
