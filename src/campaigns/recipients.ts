import {
  type CampaignRecipient,
  type CampaignRecipients,
  type CampaignRecipientStatus,
  listCampaignRecipients,
  showFate,
} from '../messages/messages.ts';
import type { Page } from '../platform/http/pagination.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import * as answers from './answer-store.ts';
import type { CampaignChannel } from './channel.ts';
import type { CampaignReference } from './lifecycle.ts';
import * as store from './store.ts';

/**
 * Lists who gets a campaign: contacts that have a row as recipients, and contacts in the frozen audience that will get
 * one. Contacts may move from the audience to the recipients during the two queries, but never back. So the audience is
 * read first, and a contact found in both is shown as a recipient.
 */
export async function listRecipients(
  database: Database,
  { organizationId, channel, id }: CampaignReference,
  { status, page }: { status: CampaignRecipientStatus | null; page: Page },
) {
  return database.asOrganizations([organizationId], async (transaction) => {
    const waiting =
      status === null || status === 'pending'
        ? await answers.listWaiting(transaction, channel, { organizationId, id }, page)
        : [];
    const campaign = await store.findCampaignWithoutBodies(transaction, {
      organizationId,
      channel: channel.messages.name,
      id,
    });
    if (campaign === null) return null;
    const rows = await listRows(transaction, campaign, { status, page });
    const found = new Map(waiting.map((row) => [row.contact_id, showWaiting(channel, row, campaign)]));
    for (const row of rows) found.set(row.contact_id, showRecipient(channel, row, campaign));
    return inOrder([...found.values()], page);
  });
}

async function listRows(
  transaction: Transaction,
  campaign: store.CampaignRow,
  wanted: { status: CampaignRecipientStatus | null; page: Page },
): Promise<CampaignRecipient[]> {
  const recipients = recipientsOf(campaign);
  return recipients === null ? [] : listCampaignRecipients(transaction, recipients, wanted);
}

/** Null if the campaign was never queued. */
export function recipientsOf(campaign: store.CampaignRow): CampaignRecipients | null {
  const { organization_id: organizationId, message_id: messageId } = campaign;
  return messageId === null
    ? null
    : {
        message: { organizationId, messageId },
        rowCount: campaign.expanded,
        isCancelled: campaign.status === 'cancelled',
      };
}

export function showRecipient(
  { addressColumns }: CampaignChannel,
  row: CampaignRecipient,
  campaign: store.CampaignRow,
) {
  const statusAt = row.shownStatus === 'cancelled' ? campaign.cancelled_at : row.status_at;
  return {
    contact_id: row.contact_id,
    [addressColumns.address]: row.address === '' ? null : row.address,
    status: row.shownStatus,
    status_at: statusAt?.toISOString() ?? null,
    dropped: row.drop_reason !== null,
    drop_reason: row.drop_reason,
    ...showFate(row),
  };
}

function showWaiting(
  { addressColumns }: CampaignChannel,
  { contact_id, address }: answers.WaitingRow,
  campaign: store.CampaignRow,
): ReturnType<typeof showRecipient> {
  return {
    contact_id,
    [addressColumns.address]: address,
    status: 'pending',
    status_at: campaign.frozen_at?.toISOString() ?? null,
    dropped: false,
    drop_reason: null,
    uncertain: false,
    bounce: null,
    opened_at: null,
    clicked_at: null,
  };
}

/** Sorts as `pageClause` does: ids in lower case sort like their bytes. */
function inOrder<Row extends { contact_id: string }>(rows: Row[], page: Page): Row[] {
  const sign = page.before === null ? -1 : 1;
  return rows
    .sort((one, other) => (one.contact_id < other.contact_id ? -sign : sign))
    .slice(0, page.limit + 1);
}
