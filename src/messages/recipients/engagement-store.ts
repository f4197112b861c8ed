import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import { keyColumns, type RecipientKey, recipientKey, textOfKey, toKey } from '../keys.ts';
import type { RecipientStatus } from '../schema.ts';
import { rankOf } from '../status.ts';
import { type ChangedRecipient, type ChangedRow, type Happened, toChanged } from './store.ts';

/** What was seen of a recipient just now: the first time of each kind; null where nothing was. */
export type NotedEngagement = RecipientKey & {
  openedAt: Date | null;
  clickedAt: Date | null;
  machineEngagedAt: Date | null;
  status: RecipientStatus | null;
};

/** What it is now. */
type EngagedRow = ChangedRow & {
  status: RecipientStatus;
  opened_at: Date | null;
  clicked_at: Date | null;
  machine_engaged_at: Date | null;
};

const noteFirst = statement<EngagedRow>(
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
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key, r.status, r.opened_at, r.clicked_at,
     r.machine_engaged_at`,
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
  return withEngagements(rows, engaged, (row, given) => [
    ...engagement('opened', 'human', row.opened_at, given.openedAt),
    ...engagement('clicked', 'human', row.clicked_at, given.clickedAt),
    ...engagement('opened', 'machine', row.machine_engaged_at, given.machineEngagedAt),
  ]);
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

const applyTold = statement<EngagedRow>(
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
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key, r.status, r.opened_at, r.clicked_at,
     r.machine_engaged_at`,
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
  return withEngagements(rows, engaged, (row, given) => [
    ...(given.status === 'delivered' && row.status === 'delivered'
      ? [{ what: given.status, at: given.statusAt }]
      : []),
    ...engagement('opened', 'human', row.opened_at, given.openedAt),
    ...engagement('clicked', 'human', row.clicked_at, given.clickedAt),
  ]);
}

function withEngagements<Engaged extends RecipientKey>(
  rows: readonly EngagedRow[],
  engaged: readonly Engaged[],
  happenedTo: (row: EngagedRow, given: Engaged) => readonly Happened[],
): ChangedRecipient[] {
  const givenOf = new Map(engaged.map((given) => [textOfKey(given), given]));
  return rows.map((row) => {
    const given = givenOf.get(textOfKey(toKey(row)));
    return toChanged(row, given === undefined ? [] : happenedTo(row, given));
  });
}

/** It is news where it is the time that is stored now. */
function engagement(
  what: 'opened' | 'clicked',
  actor: 'human' | 'machine',
  stored: Date | null,
  given: Date | null,
): readonly Happened[] {
  return given !== null && stored?.getTime() === given.getTime() ? [{ what, at: given, actor }] : [];
}
