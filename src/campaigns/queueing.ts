import { type Held, replaceHolds } from '../audience/audience.ts';
import { insertCampaignMessage, stopMessage } from '../messages/messages.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { findUnknownSets, includesNobody, listAudienceSets } from './audience-fields.ts';
import type { CampaignChannel, Preparation, PreparedMessage } from './channel.ts';
import { markQueued } from './move-store.ts';
import * as store from './store.ts';

/**
 * Returns what a campaign would send, or what it still needs. If it is ready, everything that it uses exists and cannot
 * be deleted until the transaction ends.
 */
export async function prepareCampaign(
  transaction: Transaction,
  channel: CampaignChannel,
  campaign: store.CampaignRow,
): Promise<Preparation> {
  const { organization_id: organizationId, id, content } = campaign;
  const prepared = await channel.prepare(transaction, {
    organizationId,
    id,
    content,
    listIds: campaign.list_ids,
  });
  const issues = [
    ...(prepared.kind === 'not_ready' ? prepared.issues : []),
    ...(includesNobody(campaign) ? ['list_ids, tag_ids or segment_ids is required'] : []),
    ...(await findUnknownSets(transaction, organizationId, campaign)),
  ];
  return issues.length > 0 ? { kind: 'not_ready', issues } : prepared;
}

/** Holds what a campaign uses; `prepareCampaign` has found that it exists. */
export async function holdUsed(
  transaction: Transaction,
  channel: CampaignChannel,
  campaign: store.CampaignRow,
): Promise<void> {
  const templateId = channel.templateIdOf(campaign.content);
  const held: Held[] = listAudienceSets(campaign);
  if (templateId !== null) held.push({ kind: channel.templateKind ?? 'template', id: templateId });
  const { organization_id: organizationId, id } = campaign;
  const missing = await replaceHolds(transaction, { organizationId, kind: 'campaign', id }, held);
  if (missing.length > 0) throw new Error('what was found and kept a moment ago is not there');
}

/** Releases everything that the campaign used. */
export async function releaseUsed(
  transaction: Transaction,
  { organizationId, id }: { organizationId: string; id: string },
): Promise<void> {
  await replaceHolds(transaction, { organizationId, kind: 'campaign', id }, []);
}

/** For every end of a campaign: no further recipient gets it, and it releases everything that it used. */
export async function stopCampaign(
  transaction: Transaction,
  campaign: store.CampaignKey & { messageId: string | null },
): Promise<void> {
  const { organizationId, messageId } = campaign;
  if (messageId !== null) await stopMessage(transaction, { organizationId, messageId });
  await store.deleteSlices(transaction, campaign);
  await releaseUsed(transaction, campaign);
}

/**
 * Freezes the content of a campaign; the workers freeze its audience. The row must be locked, and the campaign prepared
 * in the same transaction.
 */
export async function queueCampaign(
  tools: { newId: NewId },
  transaction: Transaction,
  queued: { channel: CampaignChannel; campaign: store.CampaignRow; message: PreparedMessage; at: Date },
): Promise<void> {
  const { channel, campaign, message, at } = queued;
  const { variableNames, ...said } = message;
  const key = keyOf(campaign);
  const messageId = tools.newId();
  await insertCampaignMessage(transaction, { ...said, ...key, id: messageId, campaignId: campaign.id }, at);
  await markQueued(transaction, key, { scheduledAt: campaign.scheduled_at, messageId, variableNames }, at);
  await holdUsed(transaction, channel, campaign);
}

export function keyOf({
  organization_id: organizationId,
  channel,
  id,
}: store.CampaignRow): store.CampaignKey {
  return { organizationId, channel, id };
}
