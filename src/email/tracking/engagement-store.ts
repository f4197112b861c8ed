import type { Values } from '../../channels/placeholders.ts';
import { type Connection, statement, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import {
  type ChangedRecipient,
  type ChangedRow,
  keyColumns,
  type MessageKey,
  rankOf,
  type RecipientKey,
  type RecipientStatus,
  toChanged,
} from '../../messages/messages.ts';

/** The times of the first open and so on in a batch; null where the batch has none. */
export type EngagedRecipient = RecipientKey & {
  openedAt: Date | null;
  clickedAt: Date | null;
  machineEngagedAt: Date | null;
  status: RecipientStatus | null;
};

const applyAll = statement<ChangedRow>(
  'engagement_apply',
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
   where ${hasKeyOf('r', 'engaged', ['message_id', 'ordinal'])}
     and (
       (r.opened_at is null and engaged.opened_at is not null)
       or (r.clicked_at is null and engaged.clicked_at is not null)
       or (r.machine_engaged_at is null and engaged.machine_engaged_at is not null)
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/** The recipients must be locked, and each given once. Returns those that changed. */
export async function applyEngagements(
  transaction: Connection,
  engaged: readonly EngagedRecipient[],
  at: Date,
): Promise<ChangedRecipient[]> {
  const rows = await transaction.rows(applyAll, [
    ...keyColumns(engaged),
    engaged.map(({ openedAt }) => openedAt),
    engaged.map(({ clickedAt }) => clickedAt),
    engaged.map(({ machineEngagedAt }) => machineEngagedAt),
    engaged.map(({ status }) => status),
    at,
  ]);
  return rows.map(toChanged);
}

/** Longer HTML is not tracked, so there is no need to load it. */
const htmlLengthMax = 2 * 1_048_576;

/** The content from which the links of a message are read, without HTML if it is not tracked; null if it is deleted. */
export async function findLinkSource(
  connection: Connection,
  { organizationId, messageId }: MessageKey,
): Promise<{ html: string | null; defaults: Values } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ html: string | null; defaults: Values | null }>(
      `select case when length(html) <= ${htmlLengthMax} then html end as html, defaults
       from message_contents c
       cross join lateral (select c.content ->> 'html' as html, c.content -> 'defaults' as defaults) part
       where c.organization_id = $1 and c.message_id = $2`,
    ),
    [organizationId, messageId],
  );
  return row === undefined ? null : { html: row.html, defaults: row.defaults ?? {} };
}

/** The recipient's own values. */
export async function findVariables(
  connection: Connection,
  { organizationId, messageId, ordinal }: RecipientKey,
): Promise<Values> {
  const [row] = await connection.rows(
    unpreparedStatement<{ variables: Values | null }>(
      `select variables
       from recipients
       where organization_id = $1 and message_id = $2 and ordinal = $3`,
    ),
    [organizationId, messageId, ordinal],
  );
  return row?.variables ?? {};
}

export type CampaignRecipient = {
  /** Empty once it was erased. */
  address: string;
  addressKey: string;
  status: RecipientStatus;
  sender: string;
  /** `StoredEmailDetails`. */
  details: unknown;
};

/** Null if the recipient is not a campaign's. */
export async function findCampaignRecipient(
  connection: Connection,
  { organizationId, messageId, ordinal }: RecipientKey,
): Promise<CampaignRecipient | null> {
  const [row] = await connection.rows(
    unpreparedStatement<CampaignRecipient>(
      `select r.address, r.address_key as "addressKey", r.status, m.sender, m.details
       from recipients r
       join messages m on m.organization_id = r.organization_id and m.id = r.message_id
       where r.organization_id = $1 and r.message_id = $2 and r.ordinal = $3 and r.contact_id is not null`,
    ),
    [organizationId, messageId, ordinal],
  );
  return row ?? null;
}
