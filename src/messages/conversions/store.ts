import type { Credit, PendingConversion } from '../../events/events.ts';
import { dateOf } from '../../platform/clock.ts';
import { lowestIdAt } from '../../platform/ids.ts';
import { type Connection, type Statement, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { MessageChannels } from '../channel.ts';
import { lowestMessageId } from '../recipients/contact-engagement.ts';

/** A click counts for what the contact does within this time. */
const creditedWithinMs = 7 * 86_400_000;

/**
 * Messages to one address among which a click is looked for, newest first. With fewer, a contact that gets many would
 * have its clicks missed; with more, an address that gets thousands a day would hold up the conversions of others.
 */
const messagesMax = 1_000;

type ClickedRow = { id: string; message_id: string; campaign_id: string | null; category: string | null };

/**
 * The statement that finds what was clicked last, on the channels whose messages have clicks.
 *
 * By the index recipients_address, whose collation is the database's. The range and the order are those of that index
 * alone: with an equality the primary key would serve as well, which reads all recipients of the organization. In a
 * partition that was not analyzed yet it was chosen: 170 conversions a second instead of 1,800 with 200,000 recipients.
 */
export function defineLastClicked(channels: MessageChannels): Statement<ClickedRow> {
  const addresses = Object.values(channels).flatMap(({ clickedAddress }) => clickedAddress ?? []);
  return statement(
    'conversions_select_clicked',
    `select wanted.id, m.id as message_id, m.campaign_id, m.category
   from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::uuid[], $7::uuid[])
     as wanted (organization_id, id, contact_id, occurred_at, since, first_id, end_id)
   left join contacts c on ${hasKeyOf('c', 'wanted', [['id', 'contact_id']])}
   cross join lateral (
     select newest.message_id
     from (values ${addresses.map((address) => `(${address})`).join(', ')}) as own (address_key)
     cross join lateral (
       select r.message_id, r.contact_id, r.clicked_at
       from recipients r
       where r.organization_id = wanted.organization_id
         and r.address_key ~>=~ own.address_key collate "default"
         and r.address_key ~<=~ own.address_key collate "default"
         and r.message_id >= wanted.first_id
         and r.message_id < wanted.end_id
       order by r.address_key using ~>~, r.message_id desc
       limit ${messagesMax}
     ) newest
     where newest.clicked_at >= wanted.since and newest.clicked_at <= wanted.occurred_at
       -- Another contact may have had the address when a campaign went there.
       and (newest.contact_id is null or newest.contact_id = wanted.contact_id)
     order by newest.clicked_at desc, newest.message_id desc
     limit 1
   ) clicked
   -- By itself, so that the key is looked up as a whole.
   cross join lateral (
     select id, campaign_id, category
     from messages
     where organization_id = wanted.organization_id and id = clicked.message_id
     offset 0
   ) m`,
  );
}

/**
 * By the ids of the conversions; those before which nothing was clicked are missing. `lastClicked` was made by
 * `defineLastClicked`. The transaction must plan by indexes.
 */
export async function findLastClicked(
  connection: Connection,
  lastClicked: Statement<ClickedRow>,
  conversions: readonly PendingConversion[],
): Promise<Map<string, Credit>> {
  const sinceOf = ({ occurredAt }: PendingConversion) => dateOf(occurredAt.getTime() - creditedWithinMs);
  const rows = await connection.rows(lastClicked, [
    conversions.map(({ organizationId }) => organizationId),
    conversions.map(({ id }) => id),
    conversions.map(({ contactId }) => contactId),
    conversions.map(({ occurredAt }) => occurredAt),
    conversions.map(sinceOf),
    conversions.map((conversion) => lowestMessageId(sinceOf(conversion))),
    conversions.map(({ occurredAt }) => lowestIdAt(occurredAt.getTime() + 1)),
  ]);
  return new Map(
    rows.map((row) => [
      row.id,
      { messageId: row.message_id, campaignId: row.campaign_id, category: row.category },
    ]),
  );
}
