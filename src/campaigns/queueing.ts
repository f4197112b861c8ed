import { type Held, replaceHolds } from '../audience/audience.ts';
import { insertCampaignMessage, stopMessage } from '../messages/messages.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { findUnknownSets, includesNobody, listAudienceSets } from './audience-fields.ts';
import type { CampaignChannel, Preparation, PreparedMessage } from './channel.ts';
import * as store from './store.ts';

/**
 * Says whether a campaign has all that it needs, and if so what it would send. Everything that it uses is there, and
 * is kept from being deleted until the transaction ends.
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

/** Holds what a campaign uses, which `prepareCampaign` found to be there. */
export async function holdUsed(
  transaction: Transaction,
  channel: CampaignChannel,
  campaign: store.CampaignRow,
): Promise<void> {
  const templateId = channel.templateIdOf(campaign.content);
  const held: Held[] = listAudienceSets(campaign);
  if (templateId !== null) held.push({ kind: 'template', id: templateId });
  const { organization_id: organizationId, id } = campaign;
  const missing = await replaceHolds(transaction, { organizationId, kind: 'campaign', id }, held);
  if (missing.length > 0) throw new Error('what was found and kept a moment ago is not there');
}

/** It uses nothing any more. */
export async function releaseUsed(
  transaction: Transaction,
  { organizationId, id }: { organizationId: string; id: string },
): Promise<void> {
  await replaceHolds(transaction, { organizationId, kind: 'campaign', id }, []);
}

/** Whatever its end: nobody more is written to, and it uses nothing any more. */
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
 * Freezes what a campaign says, and leaves it to the workers to find out to whom. Its row is locked, and it was
 * prepared in the same transaction.
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
  await store.markQueued(transaction, {
    ...key,
    scheduledAt: campaign.scheduled_at,
    messageId,
    variableNames,
    at,
  });
  await holdUsed(transaction, channel, campaign);
}

export function keyOf({
  organization_id: organizationId,
  channel,
  id,
}: store.CampaignRow): store.CampaignKey {
  return { organizationId, channel, id };
}
