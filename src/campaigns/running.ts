import { setImmediate } from 'node:timers/promises';
import { loadSendingPlans, openQuota } from '../accounts/accounts.ts';
import { contactFieldNames, loadProperties } from '../audience/audience.ts';
import {
  admitRecipients,
  changeRecipients,
  completeCampaignMessage,
  type ContactVariables,
  countInQueue,
  findMessageContent,
  listAdmissible,
  hasHandedOff,
  hasUncounted,
  holdInQueue,
  insertCampaignRecipients,
  type RecipientTools,
  sliceSize,
} from '../messages/messages.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { continueByIndex } from '../platform/postgres/lookup.ts';
import { tryLockName } from '../platform/postgres/name-locks.ts';
import type { Pauses } from '../platform/queue/pauses.ts';
import type { CampaignChannel, CampaignChannels, QuotaMeter } from './channel.ts';
import * as store from './engine-store.ts';
import { releaseUsed, stopCampaign } from './queueing.ts';

/**
 * The way of a campaign from `queued` to `sent`, in small steps. Each step is a transaction that holds the campaign,
 * so that any number of nodes may try, one of them takes it, and a crash between two steps loses nothing:
 *
 * 1. Its audience is **frozen**: one statement writes down whom it goes to, in slices, and counts whom not and why. Of a
 *    large audience the first slice is frozen ahead, so that its mail need not wait for a million others.
 * 2. Slices are **expanded**: each contact gets a row as a recipient, with its address and its values.
 * 3. Recipients are **admitted** to the queue, a window at a time, as the workers take them out of it. The quota is
 *    taken here. Small windows keep campaigns from waiting behind each other, and a pause from coming late.
 * 4. When all are admitted and none is left in the queue, it is sent.
 *
 * In between it is paused when sending is suspended or the quota used up, and goes on by itself.
 */
export type RunningTools = RecipientTools & {
  database: Database;
  clock: Clock;
  channels: CampaignChannels;
  /** Of those with enough in the queue: counting it takes a part of what delivering does. */
  admissionPauses: Pauses;
  /** Told after every commit that let recipients into the queue. */
  onAdmitted: () => void;
};

/** What one step came to: whether the next one has something to do already, and how long to wait where it is known. */
export type StepResult = 'advanced' | 'waits' | 'waits_briefly';

/** Put off by greylisting and servers that are down, for hours: they keep nobody else waiting, up to so many. */
const waitingRecipientsMax = 200_000;
/** Of a window: fewer recipients are not worth a transaction. */
const admissionPart = 1 / 16;
/** Of one step: about 50 ms. */
const expandedSlicesMax = 5;
/** The first slice is looked for among twice as many members of a set: some of them are excluded. */
const firstMembersPerSlice = 2;
/** Longer than millions of contacts take. */
const freezeTimeoutMs = 10 * 60_000;

/** StepResult 1, which may take many seconds; the others wait for it. */
export async function freezeCampaign(tools: RunningTools, campaign: store.CampaignKey): Promise<StepResult> {
  try {
    return await tools.database.asOrganizations([campaign.organizationId], async (transaction) => {
      // Not its row: whoever cancels it meanwhile need not wait until all are counted.
      if (!(await tryLockName(transaction, `freezing of campaign ${campaign.id}`))) return 'waits';
      const running = await store.findRunning(transaction, campaign);
      if (running === null || isFrozen(running)) return 'waits';
      return await freeze(tools, transaction, running, now(tools.clock));
    });
  } catch (cause) {
    if (cause instanceof TakenMeanwhileError) return 'waits_briefly';
    throw cause;
  }
}

/** Somebody moved the campaign while its audience was counted: nothing of that was written. */
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
    // Before it may be paused or fail: what was begun was begun.
    await noteStart(transaction, running, at);
    const plan = await loadPlan(transaction, running);
    if (running.status === 'paused') return resumeIfAllowed(tools, transaction, running, plan, at);
    if (plan.isSuspended) return pause(transaction, running, 'sending_suspended', at);
    const obstacle = await channelOf(tools, running).findObstacle(transaction, running);
    if (obstacle !== null) return fail(transaction, running, obstacle, at);
    const expanded = await expand(tools, transaction, running, frozenAt, at);
    const admission = await admit(tools, transaction, { ...running, expanded }, plan.quota, at);
    const { admitted } = admission;
    if (expanded > running.expanded || admitted > running.admitted)
      await store.saveProgress(transaction, running, { expanded, admitted });
    isAdmitted = admitted > running.admitted;
    if (admission.isQuotaUsedUp) return pause(transaction, running, 'quota_exceeded', at);
    const areAllAdmitted = isFrozen(running) && admitted === running.audience;
    if (areAllAdmitted && (await isOver(transaction, running, at))) {
      // The last of a small campaign may have been handed off, and counted, since this step began.
      await noteStart(transaction, running, at);
      await store.markSent(transaction, running, at);
      await releaseUsed(transaction, running);
      return 'waits';
    }
    return expanded > running.expanded ? 'advanced' : 'waits';
  });
  if (isAdmitted) tools.onAdmitted();
  return step;
}

/** From the first hand-off that was counted on, it is sending. */
async function noteStart(transaction: Transaction, running: store.RunningCampaign, at: Date): Promise<void> {
  if (running.status === 'queued' && (await hasHandedOff(transaction, running)))
    await store.markStarted(transaction, running, at);
}

/** Nobody is left to be written to, and everybody has been counted. */
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

/** It cannot go on: those who were not written to are not. */
async function fail(
  transaction: Transaction,
  running: store.RunningCampaign,
  reason: string,
  at: Date,
): Promise<StepResult> {
  await store.markFailed(transaction, running, reason, at);
  await stopCampaign(transaction, running);
  return 'waits';
}

async function pause(
  transaction: Transaction,
  running: store.RunningCampaign,
  reason: 'sending_suspended' | 'quota_exceeded',
  at: Date,
): Promise<StepResult> {
  // What the quota was taken for may leave.
  if (reason === 'sending_suspended') await holdInQueue(transaction, running, true);
  await store.markPaused(transaction, running, reason, at);
  return 'waits';
}

async function resumeIfAllowed(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  plan: Plan,
  at: Date,
): Promise<StepResult> {
  if (plan.isSuspended) {
    return running.pauseReason === 'sending_suspended'
      ? 'waits'
      : pause(transaction, running, 'sending_suspended', at);
  }
  if (running.pauseReason === 'quota_exceeded') {
    const { rest } = await openQuota(transaction, quotaOf(running, plan.quota, at));
    if (rest === 0 || (rest !== null && rest < (await measureNext(tools, transaction, running))))
      return 'waits';
  }
  await holdInQueue(transaction, running, false);
  await store.markResumed(transaction, running, at);
  return 'advanced';
}

async function freeze(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  at: Date,
): Promise<StepResult> {
  const segments = await store.findSegmentState(transaction, running);
  if (segments === 'behind') return 'waits_briefly';
  if (segments === 'failed') {
    await holdUnmoved(transaction, running);
    return fail(transaction, running, 'The members of one of its segments could not be computed.', at);
  }
  await store.allowForLargeAudience(transaction, freezeTimeoutMs);
  const part =
    (await freezeFirst(tools, transaction, running)) ?? (await freezeRest(tools, transaction, running));
  const moved = await holdUnmoved(transaction, running);
  const audience = moved.audience + part.frozen.audience;
  const contentBytes = await completeCampaignMessage(transaction, running, audience);
  await store.saveFrozen(transaction, running, { ...part, contentBytes, at });
  return audience > 0 ? 'advanced' : fail(transaction, running, 'There is nobody to send to.', at);
}

type FrozenPart = { frozen: store.FrozenAudience; through: string | null };

/** Null where it is not worth it, or done. */
async function freezeFirst(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<FrozenPart | null> {
  if (running.frozenAt !== null) return null;
  const meant = { ...running, channel: channelOf(tools, running) };
  const upTo = await store.findEarlyMember(transaction, meant, firstMembersPerSlice * sliceSize);
  return upTo === null ? null : store.freezeFirstSlice(transaction, running, meant, { upTo, sliceSize });
}

async function freezeRest(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<FrozenPart> {
  const meant = { ...running, channel: channelOf(tools, running) };
  const frozen = await store.freezeAudience(transaction, running, meant, {
    contactId: running.frozenThrough,
    firstSlice: running.audience / sliceSize,
    sliceSize,
  });
  return { frozen, through: null };
}

/** Nobody else freezes it, but whoever sends to those of its audience that are frozen has it now and then. */
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

/** Returns how many recipients there are now. */
async function expand(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  frozenAt: Date,
  at: Date,
): Promise<number> {
  if (running.expanded >= running.audience) return running.expanded;
  const contactIds = await store.takeSlices(transaction, running, {
    first: Math.floor(running.expanded / sliceSize),
    // The first mail does not wait for more rows than it takes.
    count: running.expanded === 0 ? 1 : expandedSlicesMax,
  });
  if (contactIds.length === 0) throw new Error('a part of the frozen audience is not there');
  const recipients = {
    message: running,
    channel: running.channel,
    contactIds,
    firstOrdinal: running.expanded,
    addressColumns: channelOf(tools, running).addressColumns,
    variables: await loadVariables(transaction, running),
    chosenAt: frozenAt,
    at,
  };
  await changeRecipients(transaction, tools, {
    at,
    write: async () => {
      const dropped = await insertCampaignRecipients(transaction, recipients);
      await continueByIndex(transaction);
      return dropped;
    },
    // No segment asks who was dropped.
    told: { recipients: [] },
  });
  return running.expanded + contactIds.length;
}

/** Names that are neither a field nor a property of contacts have no value. */
export async function loadVariables(
  transaction: Transaction,
  running: { organizationId: string; variableNames: readonly string[] },
): Promise<ContactVariables> {
  const names = new Set(running.variableNames);
  const fields = contactFieldNames.filter((field) => names.has(field));
  if (names.size === fields.length) return { fields, properties: [] };
  const fieldNames: ReadonlySet<string> = new Set(contactFieldNames);
  const properties = await loadProperties(transaction, running.organizationId);
  return {
    fields,
    properties: [...properties.values()].filter(({ key }) => names.has(key) && !fieldNames.has(key)),
  };
}

async function admit(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
  quota: number | null,
  at: Date,
): Promise<{ admitted: number; isQuotaUsedUp: boolean }> {
  const { admissionPauses } = tools;
  const unchanged = { admitted: running.admitted, isQuotaUsedUp: false };
  const waiting = running.expanded - running.admitted;
  if (waiting === 0 || admissionPauses.remainingMs(running.id) > 0) return unchanged;
  // What is delivered in a second: the queue is looked at before it can be empty, and a campaign that begins soon has its turn.
  const { deliveredPerSecondMax: window } = channelOf(tools, running);
  const most = window + waitingRecipientsMax;
  const queued = await countInQueue(transaction, running, { at, most });
  const room = Math.min(window - queued.ready, most - queued.ready - queued.waiting);
  if (room < Math.min(window * admissionPart, waiting)) {
    admissionPauses.add(running.id, (queued.ready / window) * 1_000);
    return unchanged;
  }

  const range = { from: running.admitted, to: running.admitted + Math.min(room, waiting) };
  const meter = await findMeter(tools, transaction, running);
  // Before the quota is held, for which others wait.
  const measured = meter === null ? null : await measure(transaction, running, meter, range);
  const { rest, count } = await openQuota(transaction, quotaOf(running, quota, at));
  const fitting = measured === null ? null : fitInto(measured, rest, range.to);
  const ordinals = await admitRecipients(transaction, running, {
    channel: running.channel,
    from: range.from,
    to: fitting?.to ?? range.to,
    countMax: fitting === null ? rest : null,
    contentBytes: running.contentBytes,
    at,
  });
  await count(fitting?.units ?? ordinals.length);
  admissionPauses.add(running.id, ((queued.ready + ordinals.length) / window) * 1_000);
  if (fitting !== null) return { admitted: fitting.to, isQuotaUsedUp: fitting.to < range.to };
  // With nothing left of the quota, those behind the last one wait for more of it.
  const isQuotaUsedUp = rest !== null && ordinals.length === rest;
  const last = ordinals.reduce((highest, ordinal) => Math.max(highest, ordinal), running.admitted - 1);
  return isQuotaUsedUp
    ? { admitted: last + 1, isQuotaUsedUp: last + 1 < running.audience }
    : { admitted: range.to, isQuotaUsedUp: false };
}

async function findMeter(
  tools: Pick<RunningTools, 'channels'>,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<QuotaMeter | null> {
  const { openMeter } = channelOf(tools, running);
  return openMeter?.(await findMessageContent(transaction, running)) ?? null;
}

type Measured = { ordinal: number; units: number };

/** Of copies that are measured at a stretch: some ten milliseconds. */
const measuredAtOnce = 200;

/** What each copy takes of the quota. */
async function measure(
  transaction: Transaction,
  running: store.RunningCampaign,
  meter: QuotaMeter,
  { from, to }: { from: number; to: number },
): Promise<Measured[]> {
  const measured: Measured[] = [];
  for (const { ordinal, values } of await listAdmissible(transaction, running, {
    from,
    to,
    countMax: to - from,
  })) {
    measured.push({ ordinal, units: meter(values) });
    // Hand-offs get their turn in between.
    if (measured.length % measuredAtOnce === 0) await setImmediate();
  }
  return measured;
}

/** How far what is left of the quota goes, and how much those take. */
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

/** What the next copy takes of the quota; 0 if there is none. */
async function measureNext(
  tools: RunningTools,
  transaction: Transaction,
  running: store.RunningCampaign,
): Promise<number> {
  const meter = await findMeter(tools, transaction, running);
  if (meter === null) return 1;
  const range = { from: running.admitted, to: running.expanded, countMax: 1 };
  const [next] = await listAdmissible(transaction, running, range);
  return next === undefined ? 0 : meter(next.values);
}

function quotaOf(running: store.RunningCampaign, limit: number | null, at: Date) {
  return {
    organizationId: running.organizationId,
    channel: running.channel,
    at,
    limit,
  };
}
