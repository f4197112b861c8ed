import { setImmediate } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { loadSendingPlans, openQuota } from '../accounts/accounts.ts';
import { contactFieldNames, loadProperties } from '../audience/audience.ts';
import {
  type Admissible,
  admitRecipients,
  changeRecipients,
  completeCampaignMessage,
  type ContactVariables,
  countInQueue,
  countInQueueOf,
  findMessageContent,
  listAdmissible,
  hasHandedOff,
  hasUncounted,
  holdInQueue,
  showInQueue,
  type Reach,
  type RecipientTools,
  sliceSize,
  sumRecipientCounts,
} from '../messages/messages.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { tryLockName } from '../platform/postgres/name-locks.ts';
import type { Pauses } from '../platform/queue/pauses.ts';
import { beginSlice, withinSlice } from '../platform/queue/turns.ts';
import type { Secrets } from '../platform/secrets.ts';
import { logEvents } from '../webhooks/webhooks.ts';
import type { CampaignChannel, CampaignChannels, PeopleBudget } from './channel.ts';
import * as store from './engine-store.ts';
import * as moves from './move-store.ts';
import { releaseUsed, stopCampaign } from './queueing.ts';
import type { ChannelPauseReason, PassingPauseReason } from './states.ts';

/**
 * How a campaign gets from `queued` to `sent`, in small steps. Each step is a transaction that locks the campaign's
 * row, so that any number of nodes may try, one of them takes the step, and a crash between two steps loses nothing:
 *
 * 1. Its audience is **frozen**: one statement stores the contacts in slices, and counts those that are left out and
 *    why. Where devices are reached, a contact is stored once with each of its devices. The first slice of a large
 *    audience is frozen before the rest, so that its mail need not wait for a million others.
 * 2. Slices are **expanded**: each of their members gets a row as a recipient, with its address and its values.
 * 3. Recipients are **admitted** to the queue, a window at a time, as the workers take them out of it. The quota is
 *    used here. Windows are small so that campaigns do not wait for each other, and a pause takes effect soon. Where
 *    people are limited too, each new one takes a place here, which stays taken while they are in the queue.
 * 4. When all are admitted and none is left in the queue, it is sent.
 *
 * A campaign is paused if sending is suspended, the quota or the places for new people are used up, or its channel takes
 * no copies of it for now. It goes on by itself afterwards.
 *
 * Whoever wants summaries is told once a minute what was counted, by whichever step comes then.
 */
export type RunningTools = RecipientTools & {
  database: Database;
  clock: Clock;
  secrets: Secrets;
  channels: CampaignChannels;
  /**
   * Pauses of campaigns with enough recipients in the queue: counting them costs a part of what delivering them does.
   */
  admissionPauses: Pauses;
  /** Pauses of campaigns of which programs were told a moment ago what was counted. */
  progressPauses: Pauses;
  /** Called after every commit that put recipients into the queue. */
  onAdmitted: () => void;
};

/**
 * The result of a step: whether the next step has something to do already, and if not, whether to wait only briefly.
 */
export type StepResult = 'advanced' | 'waits' | 'waits_briefly';

/**
 * Recipients that are deferred for hours, by greylisting and servers that are down. Up to this many, they do not count
 * towards the window, so that others need not wait for them.
 */
const waitingRecipientsMax = 200_000;
/** The part of a window that is worth a transaction. */
const admissionPart = 1 / 16;
/**
 * The part of a window that one worker hands off at a time. If smaller, more slices are claimed; if larger, organizations
 * wait longer for their turn, and more has to be tried alone after a crash.
 */
const deliverySlicePart = 1 / 32;
/** Slices in one step, which take about 50 ms. */
const expandedSlicesMax = 5;
/** The first slice is searched among twice as many members of a set, since some are excluded. */
const firstMembersPerSlice = 2;
/** Longer than freezing millions of contacts takes. */
const freezeTimeoutMs = 10 * 60_000;

/**
 * Step 1, which may take many seconds; the others wait for it. Throws SliceOverError if it takes longer than `sliceMs`: then
 * nothing of it was done.
 */
export async function freezeCampaign(
  tools: RunningTools,
  campaign: store.CampaignKey,
  sliceMs: number | null = null,
): Promise<StepResult> {
  const freezing = tools.database.asOrganizations([campaign.organizationId], async (transaction) => {
    // Locks a name and not the row, so that cancelling the campaign need not wait until all contacts are counted.
    if (!(await tryLockName(transaction, `freezing of campaign ${campaign.id}`))) return 'waits';
    const running = await store.findRunning(transaction, campaign);
    if (running === null || isFrozen(running)) return 'waits';
    return freeze(tools, transaction, running, { at: now(tools.clock), sliceMs });
  });
  try {
    return await withinSlice(sliceMs, freezing);
  } catch (cause) {
    if (cause instanceof TakenMeanwhileError) return 'waits_briefly';
    throw cause;
  }
}

/** The campaign was moved while its audience was counted. Nothing of the count is written. */
class TakenMeanwhileError extends Error {
  override readonly name = 'TakenMeanwhileError';
}

/** As a whole. */
function isFrozen({ frozenAt, frozenThrough }: store.RunningCampaign): boolean {
  return frozenAt !== null && frozenThrough === null;
}

/** Steps 2 to 4, a little of each. */
export async function advanceCampaign(tools: RunningTools, campaign: store.CampaignKey): Promise<StepResult> {
  let isAdmitted = false;
  const step = await tools.database.asOrganizations([campaign.organizationId], async (transaction) => {
    const running = await store.holdRunning(transaction, campaign);
    const frozenAt = running?.frozenAt ?? null;
    if (running === null || frozenAt === null) return 'waits';
    const at = now(tools.clock);
    // Before it may be paused or fail, so that the start is noted in any case.
    await noteStart(transaction, running, at);
    await tellProgress(tools, transaction, running, at);
    const plan = await loadPlan(transaction, running);
    if (running.status === 'paused') return resumeIfAllowed(tools, transaction, running, plan, at);
    if (plan.isSuspended) return pause(transaction, running, 'sending_suspended', at);
    const obstacle = await channelOf(tools, running).findObstacle(transaction, running);
    if (obstacle !== null) return fail(transaction, running, obstacle, at);
    const reason = await findPauseReason(tools, transaction, running, at);
    if (reason !== null) return pause(transaction, running, reason, at);
    const expanded = await expand(tools, transaction, running, frozenAt, at);
    const admission = await admit(tools, transaction, { ...running, expanded }, plan.quota, at);
    const { admitted } = admission;
    if (expanded > running.expanded || admitted > running.admitted)
      await store.saveProgress(transaction, running, { expanded, admitted });
    isAdmitted = admitted > running.admitted;
    if (admission.usedUp !== null) return pauseAdmission(transaction, running, admission.usedUp, at);
    const areAllAdmitted = isFrozen(running) && admitted === running.audience;
    if (areAllAdmitted && (await isOver(transaction, running, at))) {
      // The last recipients of a small campaign may have been handed off and counted since this step began.
      await noteStart(transaction, running, at);
      await moves.markSent(transaction, running, at);
      await releaseUsed(transaction, running);
      return 'waits';
    }
    return expanded > running.expanded ? 'advanced' : 'waits';
  });
  if (isAdmitted) tools.onAdmitted();
  return step;
}

/** Sets the status to `sending` once a hand-off has been counted. */
async function noteStart(transaction: Transaction, running: store.RunningCampaign, at: Date): Promise<void> {
  if (running.status === 'queued' && (await hasHandedOff(transaction, running)))
    await moves.markStarted(transaction, running, at);
}

/** How often programs that want summaries are told what was counted of a campaign under way. */
const progressMs = 60_000;

/** Tells programs what was counted, if it has changed since they were told last. */
async function tellProgress(
  { progressPauses }: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<void> {
  const { organizationId, id, progress, frozenAt, messageId } = running;
  if (progress === null) return;
  const toldAt = progress.toldAt ?? frozenAt ?? at;
  const leftMs = toldAt.getTime() + progressMs - at.getTime();
  if (leftMs > 0) {
    progressPauses.add(id, leftMs);
    return;
  }
  progressPauses.add(id, progressMs);
  const sums = (await sumRecipientCounts(transaction, organizationId, [messageId])).get(messageId);
  if (sums === undefined || isDeepStrictEqual(sums, progress.told)) return;
  await store.saveProgressTold(transaction, running, sums, at);
  await logEvents(transaction, [
    {
      organizationId,
      type: 'campaign.progress',
      at,
      ofCampaign: true,
      subjectId: id,
      ordinal: null,
      facts: null,
    },
  ]);
}

/** No recipient is left, and all have been counted. */
async function isOver(transaction: Transaction, running: store.RunningCampaign, at: Date): Promise<boolean> {
  const { ready, waiting } = await countInQueue(transaction, running, { at, most: 1 });
  return ready + waiting === 0 && !(await hasUncounted(transaction, running));
}

type Plan = { quota: number | null; isSuspended: boolean };

async function loadPlan(transaction: Transaction, running: store.RunningCampaign): Promise<Plan> {
  const [plan] = await loadSendingPlans(transaction, [running.organizationId], running.channel);
  if (plan === undefined) throw new Error('a campaign of an organization that is not there');
  return plan;
}

/** The campaign cannot go on. Recipients that were not handed off yet get nothing. */
async function fail(
  transaction: Transaction,
  running: store.RunningCampaign,
  reason: string,
  at: Date,
): Promise<StepResult> {
  await moves.markFailed(transaction, running, reason, at);
  await stopCampaign(transaction, running);
  return 'waits';
}

async function pause(
  transaction: Transaction,
  running: store.RunningCampaign,
  reason: PassingPauseReason,
  at: Date,
): Promise<StepResult> {
  await holdInQueue(transaction, running);
  return pauseAdmission(transaction, running, reason, at);
}

/** Those in the queue, whose quota and places were taken, may still be handed off. */
async function pauseAdmission(
  transaction: Transaction,
  running: store.RunningCampaign,
  reason: PassingPauseReason,
  at: Date,
): Promise<StepResult> {
  await moves.markPaused(transaction, running, reason, at);
  return 'waits';
}

async function findPauseReason(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<ChannelPauseReason | null> {
  const reason = (await channelOf(tools, running).findPauseReason?.(transaction, running, at)) ?? null;
  return reason !== null && (await isAllHandedOff(transaction, running, at)) ? null : reason;
}

/** Then there is nothing that could wait. */
async function isAllHandedOff(
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<boolean> {
  if (!isFrozen(running) || running.admitted < running.audience) return false;
  const { ready, waiting } = await countInQueue(transaction, running, { at, most: 1 });
  return ready + waiting === 0;
}

async function openBudget(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<PeopleBudget | null> {
  const { organizationId } = running;
  const opened = channelOf(tools, running).openBudget?.(tools, transaction, {
    organizationId,
    at,
    countInHand: async (most) => {
      const messageIds = await store.listMessagesUnderWay(transaction, running);
      return countInQueueOf(transaction, organizationId, { messageIds, most });
    },
  });
  return (await opened) ?? null;
}

/** Whether a campaign that found no place for somebody new finds enough of them by now. */
async function hasPlacesAgain(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<boolean> {
  const budget = await openBudget(tools, transaction, running, at);
  if (budget === null || (await isAllHandedOff(transaction, running, at))) return true;
  const rest = running.audience - running.admitted;
  // Without a rest, what is kept out of the queue needs the places.
  return budget.left >= (rest === 0 ? budget.step : Math.min(budget.step, rest));
}

async function resumeIfAllowed(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  plan: Plan,
  at: Date,
): Promise<StepResult> {
  const reason = plan.isSuspended
    ? 'sending_suspended'
    : await findPauseReason(tools, transaction, running, at);
  if (reason !== null)
    return running.pauseReason === reason ? 'waits' : pause(transaction, running, reason, at);
  if (running.pauseReason === 'messaging_limit' && !(await hasPlacesAgain(tools, transaction, running, at)))
    return 'waits';
  if (running.pauseReason === 'quota_exceeded') {
    const { rest } = await openQuota(transaction, quotaOf(running, plan.quota, at));
    if (rest === 0 || (rest !== null && rest < (await measureNext(tools, transaction, running))))
      return 'waits';
  }
  const { endsByAcceptance } = channelOf(tools, running).messages;
  await showInQueue(transaction, running, endsByAcceptance === true ? null : at);
  await moves.markResumed(transaction, running, at);
  return 'advanced';
}

async function freeze(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  { at, sliceMs }: { at: Date; sliceMs: number | null },
): Promise<StepResult> {
  const segments = await store.findSegmentState(transaction, running);
  if (segments === 'behind') return 'waits_briefly';
  if (segments === 'failed') {
    await holdUnmoved(transaction, running);
    return fail(transaction, running, 'The members of one of its segments could not be computed.', at);
  }
  await store.allowForLargeAudience(transaction, freezeTimeoutMs);
  const slice = await beginSlice(tools.clock, transaction, sliceMs);
  const part =
    (await freezeFirst(tools, transaction, running)) ?? (await freezeRest(tools, transaction, running));
  slice.check();
  const moved = await holdUnmoved(transaction, running);
  const audience = moved.audience + part.frozen.audience;
  const contentBytes = await completeCampaignMessage(transaction, running, audience);
  await store.saveFrozen(transaction, running, { ...part, contentBytes, at });
  return audience > 0 ? 'advanced' : fail(transaction, running, 'There are no contacts to send to.', at);
}

type FrozenPart = { frozen: store.FrozenAudience; through: string | null };

/** Null if the audience is too small for it, if a contact is several recipients, or if the first slice is frozen already. */
async function freezeFirst(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<FrozenPart | null> {
  if (running.frozenAt !== null || channelOf(tools, running).reach.kind === 'devices') return null;
  const meant = { ...running, channel: channelOf(tools, running), at: now(tools.clock) };
  const upTo = await store.findEarlyMember(transaction, meant, firstMembersPerSlice * sliceSize);
  return upTo === null ? null : store.freezeFirstSlice(transaction, running, meant, { upTo, sliceSize });
}

async function freezeRest(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<FrozenPart> {
  const meant = { ...running, channel: channelOf(tools, running), at: now(tools.clock) };
  const frozen = await store.freezeAudience(transaction, running, meant, {
    contactId: running.frozenThrough,
    firstSlice: running.audience / sliceSize,
    sliceSize,
  });
  return { frozen, through: null };
}

/** No other node freezes the campaign, but steps that send to the frozen part of its audience lock it now and then. */
async function holdUnmoved(
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<store.RunningCampaign> {
  const held = await store.awaitRunning(transaction, running);
  if (held === null) throw new TakenMeanwhileError();
  return held;
}

function channelOf(
  tools: Pick<RunningTools, 'channels'>,
  { channel }: store.RunningCampaign,
): CampaignChannel {
  const found = tools.channels[channel];
  if (found === null) throw new Error(`no campaigns are known on the channel ${channel}`);
  return found;
}

/** Returns how many recipients the campaign has now. */
async function expand(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  frozenAt: Date,
  at: Date,
): Promise<number> {
  if (running.expanded >= running.audience) return running.expanded;
  const members = await store.takeSlices(transaction, running, {
    first: Math.floor(running.expanded / sliceSize),
    // The first step is small, so that the first mail leaves soon.
    count: running.expanded === 0 ? 1 : expandedSlicesMax,
  });
  const count = members.contactIds.length;
  if (count === 0) throw new Error('a part of the frozen audience is not there');
  const recipients = {
    message: running,
    channel: running.channel,
    members,
    firstOrdinal: running.expanded,
    reach: channelOf(tools, running).reach,
    variables: await loadVariables(transaction, running),
    chosenAt: frozenAt,
  };
  await changeRecipients(transaction, tools, {
    at,
    write: { kind: 'campaign_recipients', recipients },
    channelOf: () => channelOf(tools, running).messages,
    // No condition of a segment asks about drops.
    told: { recipients: [] },
  });
  return running.expanded + count;
}

/** Names that are neither a field nor a property of contacts have no value. */
export async function loadVariables(
  transaction: Transaction,
  running: { organizationId: string; variableNames: readonly string[] },
): Promise<ContactVariables> {
  const names = new Set(running.variableNames);
  const fields = contactFieldNames.filter((field) => names.has(field));
  if (names.size === fields.length) return { fields, properties: [] };
  const properties = await loadProperties(transaction, running.organizationId);
  return { fields, properties: [...properties.values()].filter(({ key }) => names.has(key)) };
}

/** `usedUp`: why no more can be admitted for now. */
type Admitted = { admitted: number; usedUp: 'quota_exceeded' | ChannelPauseReason | null };

async function admit(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  quota: number | null,
  at: Date,
): Promise<Admitted> {
  const { admissionPauses } = tools;
  const unchanged = { admitted: running.admitted, usedUp: null };
  const waiting = running.expanded - running.admitted;
  if (waiting === 0 || admissionPauses.remainingMs(running.id) > 0) return unchanged;
  // The window is what can be delivered in a second: the next step comes before the queue is empty, and a campaign that
  // begins does not wait long.
  const { deliveredPerSecondMax: window } = channelOf(tools, running);
  const most = window + waitingRecipientsMax;
  const queued = await countInQueue(transaction, running, { at, most });
  const room = Math.min(window - queued.ready, most - queued.ready - queued.waiting);
  if (room < Math.min(window * admissionPart, waiting)) {
    admissionPauses.add(running.id, (queued.ready / window) * 1_000);
    return unchanged;
  }

  const wanted = { from: running.admitted, to: running.admitted + Math.min(room, waiting) };
  const budget = await openBudget(tools, transaction, running, at);
  const range = budget === null ? wanted : await fitIntoBudget(tools, transaction, running, budget, wanted);
  const withoutPlaces = budget !== null && range.to < wanted.to ? budget.pauseReason : null;
  if (withoutPlaces !== null && range.to === range.from) return { ...unchanged, usedUp: withoutPlaces };
  const meter = await findMeter(tools, transaction, running);
  // Before the quota is locked, since other requests wait for that lock.
  const measured = meter === null ? null : await measure(transaction, running, meter, range);
  const { rest, count } = await openQuota(transaction, quotaOf(running, quota, at));
  const fitting = measured === null ? null : fitInto(measured, rest, range.to);
  const admitted = await admitRecipients(transaction, running, {
    channel: running.channel,
    from: range.from,
    to: fitting?.to ?? range.to,
    countMax: fitting === null ? rest : null,
    contentBytes: running.contentBytes,
    sliceSize: Math.ceil(window * deliverySlicePart),
    at,
  });
  await count(fitting?.units ?? admitted.count);
  admissionPauses.add(running.id, ((queued.ready + admitted.count) / window) * 1_000);
  if (fitting !== null)
    return { admitted: fitting.to, usedUp: fitting.to < range.to ? 'quota_exceeded' : withoutPlaces };
  // With the quota used up, the remaining recipients wait for more.
  const isQuotaUsedUp = rest !== null && admitted.count === rest;
  const next = admitted.lastOrdinal === null ? running.admitted : admitted.lastOrdinal + 1;
  return isQuotaUsedUp
    ? { admitted: next, usedUp: next < running.audience ? 'quota_exceeded' : null }
    : { admitted: range.to, usedUp: withoutPlaces };
}

type Ordinals = { from: number; to: number };

/** The first of them, as far as there are places for new people. */
async function fitIntoBudget(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  budget: PeopleBudget,
  wanted: Ordinals,
): Promise<Ordinals> {
  const countMax = wanted.to - wanted.from;
  if (countMax <= budget.left) return wanted;
  const { reach } = channelOf(tools, running);
  const recipients = await listAdmissible(transaction, running, { ...wanted, countMax, reach });
  const free = await budget.findFree(recipients.map(({ addressKey }) => addressKey));
  const measured = recipients.map(({ ordinal, addressKey }) => ({
    ordinal,
    units: free.has(addressKey) ? 0 : 1,
  }));
  return { from: wanted.from, to: fitInto(measured, Math.max(budget.left, 0), wanted.to).to };
}

/** How much of the quota a recipient takes. */
type Meter = { reach: Reach; unitsOf: (recipient: Admissible) => number };

/** Null where each takes one unit. */
async function findMeter(
  tools: Pick<RunningTools, 'channels'>,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<Meter | null> {
  const { openMeter, reach } = channelOf(tools, running);
  if (openMeter !== null) {
    const meter = openMeter(await findMessageContent(transaction, running));
    return { reach, unitsOf: ({ values }) => meter(values) };
  }
  // As a single message to all of the devices of a contact.
  return reach.kind === 'devices' ? { reach, unitsOf: ({ isFirst }) => (isFirst ? 1 : 0) } : null;
}

type Measured = { ordinal: number; units: number };

/** Copies measured without a break, which takes some ten milliseconds. */
const measuredAtOnce = 200;

/** How much of the quota each copy takes. */
async function measure(
  transaction: Transaction,
  running: store.RunningCampaign,
  { reach, unitsOf }: Meter,
  { from, to }: { from: number; to: number },
): Promise<Measured[]> {
  const measured: Measured[] = [];
  for (const recipient of await listAdmissible(transaction, running, {
    from,
    to,
    countMax: to - from,
    reach,
  })) {
    measured.push({ ordinal: recipient.ordinal, units: unitsOf(recipient) });
    // Lets hand-offs run in between.
    if (measured.length % measuredAtOnce === 0) await setImmediate();
  }
  return measured;
}

/** How many copies fit into the rest of the quota, and how much they take. */
function fitInto(
  measured: readonly Measured[],
  rest: number | null,
  to: number,
): { to: number; units: number } {
  let taken = 0;
  for (const { ordinal, units } of measured) {
    if (rest !== null && taken + units > rest) return { to: ordinal, units: taken };
    taken += units;
  }
  return { to, units: taken };
}

/** How much of the quota the next copy takes; 0 if there is none. */
async function measureNext(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<number> {
  const meter = await findMeter(tools, transaction, running);
  if (meter === null) return 1;
  const { reach, unitsOf } = meter;
  const range = { from: running.admitted, to: running.expanded, countMax: 1, reach };
  const [next] = await listAdmissible(transaction, running, range);
  return next === undefined ? 0 : unitsOf(next);
}

function quotaOf(running: store.RunningCampaign, limit: number | null, at: Date) {
  return {
    organizationId: running.organizationId,
    channel: running.channel,
    at,
    limit,
  };
}
