/** A campaign that was handed off, written into the tables as the service itself would have. */
import { writeRecipientTokens } from '../../src/messages/recipients/token.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import type { Installation } from '../../src/installation/opening.ts';

export type SentCampaign = {
  messageId: string;
  /** Of each contact, in their order. */
  tokens: { tracking: string; unsubscribe: string }[];
};

export async function insertSentCampaign(
  { database, newId, secrets }: Installation,
  campaign: {
    organizationId: string;
    contacts: readonly { id: string; email: string; variables?: Record<string, string> }[];
    html?: string;
    defaults?: Record<string, string>;
    sender?: string;
    fromName?: string;
    listIds?: readonly string[];
    tracking?: { opens: boolean; clicks: boolean };
  },
): Promise<SentCampaign> {
  const { organizationId, contacts } = campaign;
  const messageId = newId();
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages (organization_id, id, channel, class, sender, subject, details, recipient_count,
           created_at, updated_at, campaign_id)
         values ($1, $2, 'email', 'campaign', $9, 'News', $3, $4, now(), now(), $10)
       ), content as (
         insert into message_contents (organization_id, message_id, content) values ($1, $2, $5)
       )
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, contact_id,
         variables, status, status_at, handed_off_at)
       select $1, $2, position - 1, 'to', email, lower(email), contact_id, variables::json, 'delivered', now(),
         now() - interval '1 hour'
       from unnest($6::uuid[], $7::text[], $8::text[]) with ordinality
         as contact (contact_id, email, variables, position)`,
    ),
    [
      organizationId,
      messageId,
      JSON.stringify({
        fromName: campaign.fromName ?? 'Fern & Way',
        replyTo: null,
        attachments: [],
        listIds: campaign.listIds ?? [],
        tracking: campaign.tracking,
      }),
      contacts.length,
      JSON.stringify({
        to: [],
        cc: [],
        html: campaign.html ?? '<p>News</p>',
        text: null,
        defaults: campaign.defaults ?? {},
      }),
      contacts.map(({ id }) => id),
      contacts.map(({ email }) => email),
      contacts.map(({ variables = {} }) => JSON.stringify(variables)),
      campaign.sender ?? 'news@postillion.test',
      newId(),
    ],
  );
  return {
    messageId,
    tokens: contacts.map((_contact, ordinal) =>
      writeRecipientTokens(secrets, { organizationId, messageId, ordinal }),
    ),
  };
}

/** Lets all of its recipients into the queue, as if nothing had been handed off yet. */
export async function queueCampaign({ database }: Installation, messageId: string): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `with fresh as (
         update recipients
         set status = 'sent', handed_off_at = null
         where message_id = $1
         returning organization_id, message_id, ordinal
       )
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select organization_id, message_id, ordinal, 'email', 1, now(), now(), 100
       from fresh`,
    ),
    [messageId],
  );
  await database.rows(unpreparedStatement("select pg_notify('postillion_deliveries', '')"));
}
