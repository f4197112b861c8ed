import {
  type CampaignRecipient,
  type CampaignRecipients,
  type CampaignRecipientStatus,
  isBeyond,
  listCampaignRecipients,
  messageNotFound,
  type ReadHorizon,
  showFate,
  sliceSize,
} from '../messages/messages.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Page } from '../platform/http/pagination.ts';
import type { Connection, Database } from '../platform/postgres/database.ts';
import * as answers from './answer-store.ts';
import type { CampaignChannel } from './channel.ts';
import type { CampaignReference } from './lifecycle.ts';
import { isUnderWay } from './states.ts';
import * as store from './store.ts';

export type RecipientTools = { database: Database; readHorizon: ReadHorizon };

/**
 * Lists who gets a campaign: contacts that have a row as recipients, and contacts in the frozen audience that will get
 * one. Contacts may move from the audience to the recipients during the two queries, but never back. So the audience is
 * read first, and a contact, or a device of it, that is found in both is shown as a recipient.
 */
export async function listRecipients(
  { database, readHorizon }: RecipientTools,
  { organizationId, channel, id }: CampaignReference,
  { status, page }: { status: CampaignRecipientStatus | null; page: Page },
) {
  return database.asOrganizations([organizationId], async (transaction) => {
    const waiting =
      status === null || status === 'pending'
        ? await answers.listWaiting(transaction, channel, { organizationId, id }, { page, sliceSize })
        : [];
    const campaign = await store.findCampaignWithoutBodies(transaction, {
      organizationId,
      channel: channel.messages.name,
      id,
    });
    if (campaign === null) return null;
    const recipients = recipientsOf(channel, campaign);
    await refuseRemoved(transaction, readHorizon, campaign);
    const rows =
      recipients === null ? [] : await listCampaignRecipients(transaction, recipients, { status, page });
    const { reach } = channel;
    const sayOfDevice =
      reach.kind === 'devices' && recipients !== null
        ? await reach.load(transaction, recipients.message, rows)
        : () => ({});
    const found = new Map<string, Listed>(waiting.map((row) => [row.contact_id, { waiting: row, rows: [] }]));
    for (const [contactId, ofContact] of groupBy(rows, ({ contact_id: id }) => id))
      found.set(contactId, { waiting: found.get(contactId)?.waiting ?? null, rows: ofContact });
    const shown = [...found].map(([contactId, listed]) =>
      showContact({ channel, campaign, sayOfDevice }, contactId, listed),
    );
    return inOrder(shown, page);
  });
}

/**
 * Throws a PublicError (404) if the recipients are older than they are kept. Those of a campaign that is not over stay.
 */
export async function refuseRemoved(
  connection: Connection,
  readHorizon: ReadHorizon,
  { organization_id: organizationId, message_id: messageId, status }: store.CampaignRow,
): Promise<void> {
  if (messageId === null || isUnderWay(status)) return;
  const horizon = await readHorizon(connection, organizationId);
  if (isBeyond(horizon, messageId)) throw messageNotFound(horizon, messageId);
}

/** Null if the campaign was never queued. */
export function recipientsOf(
  { reach }: CampaignChannel,
  campaign: store.CampaignRow,
): CampaignRecipients | null {
  const { organization_id: organizationId, message_id: messageId } = campaign;
  return messageId === null
    ? null
    : {
        message: { organizationId, messageId },
        rowCount: campaign.expanded,
        isCancelled: campaign.status === 'cancelled',
        areDevices: reach.kind === 'devices',
      };
}

type Shown = {
  channel: CampaignChannel;
  campaign: store.CampaignRow;
  sayOfDevice: (row: CampaignRecipient | null) => Readonly<Record<string, unknown>>;
};

/** What was found of one contact. */
type Listed = { waiting: answers.WaitingRow | null; rows: readonly CampaignRecipient[] };

function showContact(
  { channel: { reach }, campaign, sayOfDevice }: Shown,
  contactId: string,
  { waiting, rows }: Listed,
) {
  if (reach.kind === 'address') {
    const [row = null] = rows;
    const address = row === null ? (waiting?.address ?? null) : row.address || null;
    return { contact_id: contactId, [reach.columns.address]: address, ...showOutcome(row, campaign) };
  }
  const having = new Map(rows.map((row) => [row.device_id, row]));
  const deviceIds = new Set([...having.keys(), ...(waiting?.device_ids ?? [])]);
  return {
    contact_id: contactId,
    devices: [...deviceIds].map((deviceId) => {
      const row = having.get(deviceId) ?? null;
      return { device_id: deviceId, ...showOutcome(row, campaign), ...sayOfDevice(row) };
    }),
  };
}

/** Null is a recipient that has no row yet. */
function showOutcome(row: CampaignRecipient | null, campaign: store.CampaignRow) {
  const isCancelled = row?.shownStatus === 'cancelled';
  const statusAt = isCancelled ? campaign.cancelled_at : (row?.status_at ?? campaign.frozen_at);
  return {
    status: row?.shownStatus ?? ('pending' as const),
    status_at: statusAt?.toISOString() ?? null,
    dropped: row !== null && row.drop_reason !== null,
    drop_reason: row?.drop_reason ?? null,
    ...(row === null ? unknownFate : showFate(row)),
  };
}

const unknownFate = { uncertain: false, bounce: null, opened_at: null, clicked_at: null };

/** Sorts as `pageClause` does: ids in lower case sort like their bytes. */
function inOrder<Row extends { contact_id: string }>(rows: Row[], page: Page): Row[] {
  const sign = page.before === null ? -1 : 1;
  return rows
    .sort((one, other) => (one.contact_id < other.contact_id ? -sign : sign))
    .slice(0, page.limit + 1);
}
