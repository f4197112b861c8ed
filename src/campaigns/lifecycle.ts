import { loadSendingPlans } from '../accounts/accounts.ts';
import { findSuspension, hasHandedOff, readSchedule, tellWarnings } from '../messages/messages.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { AcceptOutcome } from '../platform/http/acceptance.ts';
import { badRequest, PublicError, resourceNotFound, validationError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import { respondOnce } from '../platform/http/keyed-response.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { emptyInputs, findInputIssues, mergeInput } from './campaign-input.ts';
import type { CampaignChannel, Oversight, PreparedMessage } from './channel.ts';
import * as moves from './move-store.ts';
import { holdUsed, keyOf, prepareCampaign, queueCampaign, stopCampaign } from './queueing.ts';
import type { CampaignInput } from './schema.ts';
import { findRefusal, type Trigger } from './states.ts';
import * as store from './store.ts';

/**
 * What people do to a campaign. Each move locks the campaign's row before it reads the status, so that the second of
 * two concurrent moves is judged by the result of the first. A refused move has written nothing.
 */

export type CampaignTools = { database: Database; clock: Clock; newId: NewId };

/** The organization and channel that a campaign belongs to. */
export type CampaignPlace = { organizationId: string; channel: CampaignChannel };

export type CampaignReference = CampaignPlace & { id: string };

/** The id of the changed campaign, and likely mistakes in it. */
export type Written = { id: string; oversights: readonly Oversight[] };

/** Makes a draft, or returns the error of the rule that the input breaks. */
export async function createCampaign(
  tools: CampaignTools,
  { organizationId, channel }: CampaignPlace,
  input: CampaignInput & { name: string },
): Promise<Written | PublicError> {
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const values = mergeInput(channel, emptyInputs, input);
    const issues = await findInputIssues(transaction, { organizationId, channel, input, merged: values });
    if (issues.length > 0) return invalid(issues);
    const id = tools.newId();
    await store.insertCampaign(transaction, {
      organizationId,
      channel: channel.messages.name,
      id,
      ...values,
      bodyFields: channel.bodyFields,
      name: input.name,
      at: now(tools.clock),
    });
    return { id, oversights: await channel.findOversights(transaction, organizationId, values.content) };
  });
}

/** Inputs that are not given stay as they are; null removes one. A scheduled campaign must stay ready. */
export async function updateCampaign(
  tools: CampaignTools,
  reference: CampaignReference,
  input: CampaignInput,
): Promise<Written | PublicError> {
  const { channel, organizationId, id } = reference;
  return tools.database.asOrganizations([reference.organizationId], async (transaction) => {
    const campaign = await takeForMove(transaction, reference, 'update');
    if (campaign instanceof PublicError) return campaign;
    const values = mergeInput(channel, { content: campaign.content, audience: campaign }, input);
    const issues = await findInputIssues(transaction, { ...reference, input, merged: values });
    if (issues.length > 0) return invalid(issues);
    const changed = {
      ...campaign,
      ...values.audience,
      content: values.content,
      name: input.name ?? campaign.name,
    };
    if (changed.status === 'scheduled') {
      const message = await takePrepared(transaction, channel, changed);
      if (message instanceof PublicError) return message;
      await holdUsed(transaction, channel, changed);
    }
    await store.updateCampaign(transaction, {
      ...keyOf(campaign),
      ...values,
      bodyFields: channel.bodyFields,
      name: changed.name,
      at: now(tools.clock),
    });
    return { id, oversights: await channel.findOversights(transaction, organizationId, values.content) };
  });
}

function invalid(issues: readonly string[]): PublicError {
  return new PublicError(validationError, issues.join(', '));
}

/** Sends a campaign at once, or when its time comes. */
export async function sendCampaign(
  tools: CampaignTools,
  reference: CampaignReference,
  { scheduledAt, idempotencyKey }: { scheduledAt: string | null; idempotencyKey: ScopedKey | null },
): Promise<AcceptOutcome> {
  return moveOnce(tools, reference, idempotencyKey, async (transaction, at) => {
    const trigger = scheduledAt === null ? 'send' : 'schedule';
    const campaign = await takeForMove(transaction, reference, trigger);
    if (campaign instanceof PublicError) return campaign;
    const time = scheduledAt === null ? null : readSchedule(scheduledAt, at);
    if (time instanceof PublicError) return time;
    const message = await takeSendable(transaction, reference.channel, campaign);
    if (message instanceof PublicError) return message;
    if (time === null) {
      // A campaign that was scheduled no longer is.
      const queued = {
        channel: reference.channel,
        campaign: { ...campaign, scheduled_at: null },
        message,
        at,
      };
      await queueCampaign(tools, transaction, queued);
    } else {
      await moves.markScheduled(transaction, keyOf(campaign), time, at);
      await holdUsed(transaction, reference.channel, campaign);
    }
    const { organizationId, channel } = reference;
    return tellWarnings(await channel.findOversights(transaction, organizationId, campaign.content));
  });
}

/** Sends a campaign at once that missed its time. */
export async function resumeCampaign(
  tools: CampaignTools,
  reference: CampaignReference,
): Promise<PublicError | null> {
  const { channel } = reference;
  return tools.database.asOrganizations([reference.organizationId], async (transaction) => {
    const campaign = await takeForMove(transaction, reference, 'resume');
    if (campaign instanceof PublicError) return campaign;
    const message = await takeSendable(transaction, channel, campaign);
    if (message instanceof PublicError) return message;
    await queueCampaign(tools, transaction, { channel, campaign, message, at: now(tools.clock) });
    return null;
  });
}

/** Recipients that were not handed off yet get nothing any more. */
export async function cancelCampaign(
  tools: CampaignTools,
  reference: CampaignReference,
  idempotencyKey: ScopedKey | null,
): Promise<AcceptOutcome> {
  return moveOnce(tools, reference, idempotencyKey, async (transaction, at) => {
    const campaign = await takeForMove(transaction, reference, 'cancel');
    if (campaign instanceof PublicError) return campaign;
    const { organization_id: organizationId, message_id: messageId, status } = campaign;
    if (
      status === 'queued' &&
      messageId !== null &&
      (await hasHandedOff(transaction, { organizationId, messageId }))
    )
      await moves.markStarted(transaction, keyOf(campaign), at);
    await moves.markCancelled(transaction, keyOf(campaign), at);
    await stopCampaign(transaction, { ...keyOf(campaign), messageId: campaign.message_id });
    return {};
  });
}

/** The campaign is no longer shown from now on; messages that were sent stay. */
export async function deleteCampaign(
  tools: CampaignTools,
  reference: CampaignReference,
): Promise<PublicError | null> {
  return tools.database.asOrganizations([reference.organizationId], async (transaction) => {
    const campaign = await takeForMove(transaction, reference, 'delete');
    if (campaign instanceof PublicError) return campaign;
    await store.markDeleted(transaction, { ...keyOf(campaign), at: now(tools.clock) });
    await stopCampaign(transaction, { ...keyOf(campaign), messageId: campaign.message_id });
    return null;
  });
}

/** Returns the campaign, locked, or why it cannot be moved. */
async function takeForMove(
  transaction: Transaction,
  { organizationId, channel, id }: CampaignReference,
  trigger: Trigger,
): Promise<store.CampaignRow | PublicError> {
  const campaign = await store.lockCampaign(transaction, {
    organizationId,
    channel: channel.messages.name,
    id,
  });
  if (campaign === null) return resourceNotFound();
  return findRefusal(campaign, trigger) ?? campaign;
}

/** Returns what the campaign would send, or why it cannot be sent now. */
async function takeSendable(
  transaction: Transaction,
  channel: CampaignChannel,
  campaign: store.CampaignRow,
): Promise<PreparedMessage | PublicError> {
  const message = await takePrepared(transaction, channel, campaign);
  if (message instanceof PublicError) return message;
  const [plan] = await loadSendingPlans(transaction, [campaign.organization_id], channel.messages.name);
  return findSuspension(channel.messages.words, plan) ?? message;
}

async function takePrepared(
  transaction: Transaction,
  channel: CampaignChannel,
  campaign: store.CampaignRow,
): Promise<PreparedMessage | PublicError> {
  const preparation = await prepareCampaign(transaction, channel, campaign);
  return preparation.kind === 'ready'
    ? preparation.message
    : new PublicError(badRequest, `The campaign is not ready to be sent: ${preparation.issues.join(', ')}.`);
}

/** Moves a campaign, once for an idempotency key, and responds with its id and the move's headers. */
async function moveOnce(
  tools: CampaignTools,
  reference: CampaignReference,
  key: ScopedKey | null,
  move: (transaction: Transaction, at: Date) => Promise<PublicError | Record<string, string>>,
): Promise<AcceptOutcome> {
  const at = now(tools.clock);
  return tools.database.asOrganizations([reference.organizationId], (transaction) =>
    respondOnce(transaction, { key, at }, async () => {
      const headers = await move(transaction, at);
      if (headers instanceof PublicError) return headers;
      return { statusCode: 200, text: JSON.stringify({ id: reference.id }), headers };
    }),
  );
}
