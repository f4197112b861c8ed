import { type Connection, statement } from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, textOfKey, toKey } from '../messages/messages.ts';

/** Where a push to a device stands. */
export type PushedRecipient = RecipientKey & {
  /** The contact that the device belonged to. */
  contactId: string;
  acceptedAt: Date;
};

const selectPushed = statement<{
  organization_id: string;
  message_id: string;
  ordinal: number;
  address_key: string;
  created_at: Date;
}>(
  'push_engagements_select_recipients',
  `select m.organization_id, m.id as message_id, r.ordinal, r.address_key, m.created_at
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, message_id)
   join messages m on ${hasKeyOf('m', 'wanted', [['id', 'message_id']])}
   cross join lateral (
     -- At most some hundred rows a message.
     select r.ordinal, r.address_key
     from recipients r
     where ${hasKeyOf('r', 'wanted', ['message_id'])} and m.class <> 'campaign' and right(r.address, 37) = ' ' || $3
     union all
     -- By the index recipients_address: a campaign has a million.
     select r.ordinal, r.address_key
     from recipients r
     where ${hasKeyOf('r', 'wanted', ['message_id'])} and m.class = 'campaign' and right(r.address, 37) = ' ' || $3
       and r.address_key = $4
   ) r
   where m.channel = 'push'`,
);

/**
 * The recipients that the device is of these messages, by the id of the message; those of which it is none are missing. In
 * a campaign it is found only while it belongs to the contact that the campaign went to. The transaction must plan by
 * indexes.
 */
export async function findPushedRecipients(
  connection: Connection,
  device: { organizationId: string; id: string; contactId: string },
  messageIds: readonly string[],
): Promise<Map<string, PushedRecipient>> {
  const rows = await connection.rows(selectPushed, [
    messageIds.map(() => device.organizationId),
    messageIds,
    device.id,
    device.contactId,
  ]);
  return new Map(
    rows.map((row) => [
      row.message_id,
      { ...toKey(row), contactId: row.address_key, acceptedAt: row.created_at },
    ]),
  );
}

/** What is known of a push on its device: the first time of each kind. */
export type PushEngagement = {
  deliveredAt: Date | null;
  displayedAt: Date | null;
  clickedAt: Date | null;
  dismissedAt: Date | null;
  /** Of the first click. */
  actionId: string | null;
  eventIds: readonly string[];
};

const selectEngagements = statement<{
  organization_id: string;
  message_id: string;
  ordinal: number;
  delivered_at: Date | null;
  displayed_at: Date | null;
  clicked_at: Date | null;
  dismissed_at: Date | null;
  action_id: string | null;
  event_ids: string[];
}>(
  'push_engagements_select',
  `select e.organization_id, e.message_id, e.ordinal, e.delivered_at, e.displayed_at, e.clicked_at, e.dismissed_at,
     e.action_id, e.event_ids
   from push_engagements e
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, ordinal)
     on ${hasKeyOf('e', 'wanted', ['message_id', 'ordinal'])}`,
);

/** By `textOfKey`. To change them, the recipients must be locked: their lock is that of these rows as well. */
export async function findEngagements(
  transaction: Connection,
  recipients: readonly RecipientKey[],
): Promise<Map<string, PushEngagement>> {
  const rows = await transaction.rows(selectEngagements, keyColumns(recipients));
  return new Map(
    rows.map((row) => [
      textOfKey(toKey(row)),
      {
        deliveredAt: row.delivered_at,
        displayedAt: row.displayed_at,
        clickedAt: row.clicked_at,
        dismissedAt: row.dismissed_at,
        actionId: row.action_id,
        eventIds: row.event_ids,
      },
    ]),
  );
}

const writeAll = statement(
  'push_engagements_write',
  `insert into push_engagements (
     organization_id, message_id, ordinal, delivered_at, displayed_at, clicked_at, dismissed_at, action_id, event_ids
   )
   select organization_id, message_id, ordinal, delivered_at, displayed_at, clicked_at, dismissed_at, action_id, event_ids
   from jsonb_to_recordset($1::jsonb) as written (
     organization_id uuid, message_id uuid, ordinal integer, delivered_at timestamptz, displayed_at timestamptz,
     clicked_at timestamptz, dismissed_at timestamptz, action_id text, event_ids text[]
   )
   on conflict (organization_id, message_id, ordinal) do update
   set delivered_at = excluded.delivered_at, displayed_at = excluded.displayed_at, clicked_at = excluded.clicked_at,
     dismissed_at = excluded.dismissed_at, action_id = excluded.action_id, event_ids = excluded.event_ids`,
);

/** The recipients must be locked, and each given once. */
export async function writeEngagements(
  transaction: Connection,
  engaged: readonly (RecipientKey & PushEngagement)[],
): Promise<void> {
  const rows = engaged.map((one) => ({
    organization_id: one.organizationId,
    message_id: one.messageId,
    ordinal: one.ordinal,
    delivered_at: one.deliveredAt,
    displayed_at: one.displayedAt,
    clicked_at: one.clickedAt,
    dismissed_at: one.dismissedAt,
    action_id: one.actionId,
    event_ids: one.eventIds,
  }));
  await transaction.rows(writeAll, [JSON.stringify(rows)]);
}
