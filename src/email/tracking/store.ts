import type { Values } from '../../channels/placeholders.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { MessageKey, RecipientKey, RecipientStatus } from '../../messages/messages.ts';

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
