import { LRUCache } from 'lru-cache';
import {
  foreseeQuota,
  type HeldDemand,
  holdQuota,
  holdUsage,
  loadSendingPlans,
  type QuotaDemand,
  type QuotaVerdict,
  type SendingPlan,
  usagePlace,
} from '../accounts/accounts.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import { type AcceptLimits, type AcceptOutcome, createAcceptance } from '../platform/http/acceptance.ts';
import { badRequest, PublicError } from '../platform/http/errors.ts';
import {
  claimKeys,
  claimKeysAtOnce,
  keepResponses,
  keepResponsesAtOnce,
  type KeyState,
  retentionMs,
  type ScopedKey,
  type StoredResponse,
  toScopedKey,
} from '../platform/http/idempotency.ts';
import { outcomeOfKey } from '../platform/http/keyed-response.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { KeptVersion } from '../templates/templates.ts';
import {
  type BatchField,
  type BatchItem,
  findBatchRefusal,
  refuseRepeatedKeys,
  respondToBatch,
} from './batch.ts';
import type { MessageChannel, MessageChannels, OwnSenders } from './channel.ts';
import type { ReadHorizon } from './kept.ts';
import { tellMissingVariables } from './missing-variables.ts';
import { findSuspension, quotaExceeded } from './refusals.ts';
import { findOutlasting, mayOutlast, readSchedule } from './schedule.ts';
import * as store from './store.ts';
import type { Prepared, Submission } from './submission.ts';
import { tellWarnings } from './warnings.ts';

/**
 * Acceptance. A message, its recipients, its place in the queue, its share of the quota and the response to its
 * idempotency key are committed together, and only then is 202 answered. Requests share transactions, as
 * `platform/http/acceptance.ts` says.
 */

export type AcceptTools = {
  channels: MessageChannels;
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  /**
   * Called after every commit that queued something, unless the transaction itself has notified the workers. With the
   * channel, if all of it is of one.
   */
  onQueued: (channel?: SendingChannel) => void;
  /** Called after every commit, with what it has stored of one channel. It must return at once. Left out: nothing is counted. */
  onAccepted?: (accepted: { channel: SendingChannel; messages: number; recipients: number }) => void;
  /** Left out: messages are kept for ever. */
  readHorizon?: ReadHorizon;
  /** PostgreSQL's channel on which a transaction may do so now (`Waker`). */
  takeTurnToNotify?: () => string | null;
};

export type Acceptor = {
  /**
   * `prepared` is a submission, or the error of the rule that the request breaks; the idempotency key is checked before
   * that error is returned. One with a `templateVersion` needs `prepareAnew`, which is called if the template has
   * changed. `traceId` is kept with the jobs. Rejects with a DatabaseUnavailableError if it cannot be found out whether the message was stored.
   */
  accept: (
    prepared: Prepared,
    idempotencyKey: ScopedKey | null,
    prepareAnew?: (() => Promise<Prepared>) | null,
    traceId?: string | null,
  ) => Promise<AcceptOutcome>;
  /** Accepts many messages of one channel in one transaction: `batch.ts` says how. */
  acceptBatch: (batch: Batch) => Promise<AcceptOutcome>;
};

export type Batch = {
  organizationId: string;
  /** The route of a single message, whose keys are those of the messages here. */
  endpoint: string;
  field: BatchField;
  onError: 'refuse_all' | 'skip';
  items: readonly BatchItem[];
  /** Of the whole. */
  idempotencyKey: ScopedKey | null;
  traceId: string | null;
};

export function createAcceptor(tools: AcceptTools, limits: Partial<AcceptLimits> = {}): Acceptor {
  const limited = createLimitedAccounts();
  const acceptance = createAcceptance<Candidate>(
    {
      clock: tools.clock,
      store: async (candidates) =>
        (await acceptAtOnce({ ...tools, limited }, candidates)) ??
        acceptInTransaction({ ...tools, limited }, candidates),
      findStored: (candidates) => findStored(tools, candidates),
      isLarge,
      tooManyMessage: 'Too many messages are waiting.',
    },
    limits,
  );
  const batches = createAcceptance<BatchCandidate>(
    {
      clock: tools.clock,
      store: async (candidates) => {
        const outcomes: AcceptOutcome[] = [];
        for (const batch of candidates) outcomes.push(await storeBatch({ ...tools, limited }, batch));
        return outcomes;
      },
      findStored: (candidates) => findStoredBatches(tools, candidates),
      // Each has a transaction of its own.
      isLarge: () => true,
      tooManyMessage: 'Too many batches are waiting.',
    },
    { ...limits, waitingMax: limits.waitingMax ?? batchesMax },
  );
  return {
    acceptBatch: (batch) => batches.accept(batch.idempotencyKey, () => toBatchCandidate(tools, batch)),
    accept: async (prepared, idempotencyKey, prepareAnew = null, traceId = null) => {
      if (prepared instanceof PublicError && idempotencyKey === null)
        return { kind: 'refused', error: prepared };
      return acceptance.accept(idempotencyKey, () =>
        toCandidate(tools, { prepared, idempotencyKey, prepareAnew, traceId }),
      );
    },
  };
}

/**
 * A request that is about to be stored. Its message id is made once, so that it can be looked up after a broken commit.
 */
type Candidate = Request & { id: string; sealedAttachments: Buffer[] };

type Request = {
  prepared: Prepared;
  idempotencyKey: ScopedKey | null;
  /** Null once that was done, or where it never needs to be. */
  prepareAnew: (() => Promise<Prepared>) | null;
  /** The trace that it is part of; null if it named none. */
  traceId: string | null;
};

async function toCandidate(tools: AcceptTools, given: Request): Promise<Candidate> {
  const refusal = await findScheduleRefusal(tools, given.prepared);
  const request = refusal === null ? given : { ...given, prepared: refusal, prepareAnew: null };
  const { prepared } = request;
  const id = tools.newId();
  const attachments = prepared instanceof PublicError ? [] : prepared.attachments;
  const sealedAttachments: Buffer[] = [];
  for (const [ordinal, content] of attachments.entries()) {
    sealedAttachments.push(await tools.secrets.encryptInSteps(content, attachmentContext(id, ordinal)));
  }
  return { ...request, id, sealedAttachments };
}

/** Why nothing can be sent at the time that a request names; null if it can, or if it names none. */
async function findScheduleRefusal(
  { clock, database, readHorizon }: AcceptTools,
  prepared: Prepared,
): Promise<PublicError | null> {
  if (prepared instanceof PublicError || prepared.scheduledAt === undefined) return null;
  const acceptedAt = dateOf(clock.nowMs());
  const scheduledAt = readSchedule(prepared.scheduledAt, acceptedAt);
  if (scheduledAt instanceof PublicError) return scheduledAt;
  if (readHorizon === undefined || !mayOutlast(acceptedAt, scheduledAt)) return null;
  const { organizationId } = prepared;
  const { days } = await database.asOrganizations([organizationId], (transaction) =>
    readHorizon(transaction, organizationId),
  );
  return findOutlasting(days, { acceptedAt, scheduledAt });
}

/** Batches under way. Each may hold thirty megabytes, of which all together have a limit where bodies are read. */
const batchesMax = 200;

type BatchCandidate = Omit<Batch, 'items'> & {
  messages: readonly Candidate[];
  /** What the last attempt to store it would have answered, and a message that it would have stored. */
  attempt: { response: StoredResponse; messageId: string } | null;
};

async function toBatchCandidate(tools: AcceptTools, batch: Batch): Promise<BatchCandidate> {
  const { organizationId, endpoint, field, traceId } = batch;
  const messages: Candidate[] = [];
  for (const { prepared, key, prepareAnew = null } of refuseRepeatedKeys(batch.items, field)) {
    const idempotencyKey =
      key === null ? null : toScopedKey(tools.secrets, { organizationId, endpoint, params: {}, ...key });
    messages.push(await toCandidate(tools, { prepared, idempotencyKey, prepareAnew, traceId }));
  }
  return { ...batch, messages, attempt: null };
}

async function storeBatch(
  tools: AcceptTools & { limited: LimitedAccounts },
  batch: BatchCandidate,
): Promise<AcceptOutcome> {
  batch.attempt = null;
  return (await acceptBatchAtOnce(tools, batch)) ?? acceptBatchInTransaction(tools, batch);
}

/** Null where something stands in the way of one of the messages that are not refused already. */
async function acceptBatchAtOnce(
  tools: AcceptTools & { limited: LimitedAccounts },
  batch: BatchCandidate,
): Promise<AcceptOutcome | null> {
  const outcomes = batch.messages.map(foreseeOutcome);
  const accepted = batch.messages.filter((_message, place) => outcomes[place]?.kind === 'response');
  const isRefused = batch.onError === 'refuse_all' && accepted.length < batch.messages.length;
  if (isRefused || accepted.length === 0) return null;
  const response = noteAttempt(batch, outcomes);
  const { idempotencyKey: key } = batch;
  const stored = await acceptAtOnce(tools, accepted, key === null ? [] : [{ key, response }]);
  return stored && { kind: 'response', response, isReplay: false };
}

/** If nothing stands in its way but what is known by now. */
function foreseeOutcome(candidate: Candidate): AcceptOutcome {
  return candidate.prepared instanceof PublicError
    ? { kind: 'refused', error: candidate.prepared }
    : { kind: 'response', response: acceptedResponse(candidate), isReplay: false };
}

/** The response, once it is clear what becomes of each message. */
function noteAttempt(batch: BatchCandidate, outcomes: readonly AcceptOutcome[]): StoredResponse {
  const hintsOf = (place: number) => {
    const [submission] = batch.messages.slice(place, place + 1).flatMap(submissionsOf);
    return { missingVariables: submission?.missingVariables ?? [], warnings: submission?.warnings ?? [] };
  };
  const response = respondToBatch(outcomes, hintsOf);
  const stored = batch.messages.find((_message, place) => {
    const outcome = outcomes[place];
    return outcome?.kind === 'response' && !outcome.isReplay;
  });
  batch.attempt = stored === undefined ? null : { response, messageId: stored.id };
  return response;
}

/** Thrown to roll the transaction back. */
class RefusedBatch extends Error {
  readonly error: PublicError;
  constructor(error: PublicError) {
    super('a message of a batch was refused');
    this.error = error;
  }
}

async function acceptBatchInTransaction(
  tools: AcceptTools & { limited: LimitedAccounts },
  batch: BatchCandidate,
): Promise<AcceptOutcome> {
  const { idempotencyKey: key, organizationId, field, onError } = batch;
  let answer: AcceptOutcome | null = null;
  try {
    await acceptInTransaction(tools, batch.messages, {
      organizationId,
      key,
      settle: (outcomes) => {
        const refusal = onError === 'refuse_all' ? findBatchRefusal(outcomes, field) : null;
        if (refusal !== null) throw new RefusedBatch(refusal);
        const response = noteAttempt(batch, outcomes);
        answer = { kind: 'response', response, isReplay: false };
        return response;
      },
      leave: (outcome) => (answer = outcome),
    });
  } catch (cause) {
    if (cause instanceof RefusedBatch) return { kind: 'refused', error: cause.error };
    throw cause;
  }
  if (answer === null) throw new Error('a batch that was stored has no answer');
  return answer;
}

/** The messages of a batch are stored together, so that one of them stands for all. */
async function findStoredBatches(
  tools: AcceptTools,
  batches: readonly BatchCandidate[],
): Promise<ReadonlyMap<BatchCandidate, StoredResponse>> {
  const attempted = batches.flatMap(({ attempt, organizationId }) =>
    attempt === null ? [] : [{ organizationId, id: attempt.messageId }],
  );
  const present = await findPresent(tools, attempted);
  return new Map(
    batches.flatMap((batch) => {
      const { attempt } = batch;
      if (attempt === null || !present.has(attempt.messageId)) return [];
      tellAccepted(
        tools,
        batch.messages.filter(({ id }) => attempt.response.text.includes(id)),
      );
      return [[batch, attempt.response] as const];
    }),
  );
}

/**
 * Larger requests do not share a transaction: PostgreSQL takes some ten milliseconds to store a megabyte, and all
 * others in the transaction would wait.
 */
const sharedBytesMax = 262_144;

function isLarge({ prepared, sealedAttachments }: Candidate): boolean {
  const contentBytes = prepared instanceof PublicError ? 0 : prepared.content.length;
  return sealedAttachments.reduce((sum, { length }) => sum + length, contentBytes) > sharedBytesMax;
}

/** Ties the sealed bytes to their place, so that they cannot be put in another message's. */
export function attachmentContext(messageId: string, ordinal: number): string {
  return `attachment ${messageId} ${ordinal}`;
}

async function findStored(
  tools: AcceptTools,
  candidates: readonly Candidate[],
): Promise<ReadonlyMap<Candidate, StoredResponse>> {
  const wanted = candidates.flatMap(({ id, prepared }) =>
    prepared instanceof PublicError ? [] : [{ organizationId: prepared.organizationId, id }],
  );
  const present = await findPresent(tools, wanted);
  tellAccepted(
    tools,
    candidates.filter(({ id }) => present.has(id)),
  );
  return new Map(
    candidates.flatMap((candidate) =>
      present.has(candidate.id) ? [[candidate, acceptedResponse(candidate)] as const] : [],
    ),
  );
}

/** Which of these were stored, of which nobody was told that might not be. */
async function findPresent(
  tools: AcceptTools,
  wanted: readonly { organizationId: string; id: string }[],
): Promise<ReadonlySet<string>> {
  const present = await tools.database.asOrganizations(
    wanted.map(({ organizationId }) => organizationId),
    (transaction) => store.findMessageIds(transaction, wanted),
  );
  if (present.size > 0) tools.onQueued();
  return present;
}

function acceptedResponse(candidate: Candidate): StoredResponse {
  const { missingVariables, warnings } = submissionOf(candidate);
  return {
    statusCode: 202,
    text: JSON.stringify({ id: candidate.id }),
    headers: { ...tellMissingVariables(missingVariables), ...tellWarnings(warnings) },
  };
}

/**
 * Accepts requests by statements that PostgreSQL gets at once and answers once, if there is nothing to be said against
 * any of them: whatever is known of an account is checked by the statement that stores the messages, which stores none
 * if one of them fails. Null if so, or if some of them cannot be stored in this way. Then they are checked step by step,
 * which finds out why, and what becomes of the others. `more` are responses of the whole, which are kept as well.
 */
async function acceptAtOnce(
  tools: AcceptTools & { limited: LimitedAccounts },
  candidates: readonly Candidate[],
  more: readonly KeyedResponse[] = [],
): Promise<AcceptOutcome[] | null> {
  const submissions = candidates.flatMap(submissionsOf);
  const channels = new Set(submissions.map(({ channel }) => channel));
  const [channel] = channels;
  if (channel === undefined || channels.size > 1) return null;
  if (submissions.length < candidates.length || !submissions.every(store.isStoredWhole)) return null;
  const { acceptance } = tools.channels[channel];
  if (acceptance === null) return null;

  const at = dateOf(tools.clock.nowMs());
  const time = { at, expiredBefore: dateOf(at.getTime() - retentionMs) };
  const demands = sumDemands(submissions, (organizationId) => tools.limited.has(organizationId, channel));
  const keyed = [...more, ...candidates.flatMap(toKeyedResponse)];
  const notified = tools.takeTurnToNotify?.() ?? null;
  const before = [
    // The keys first: a request that is under way elsewhere is refused at once, and does not wait for the quota.
    ...claimKeysAtOnce(
      keyed.map(({ key }) => key),
      time,
    ),
    ...holdUsage({
      channel,
      at,
      organizationIds: demands.filter(({ isHeld }) => isHeld).map(({ organizationId }) => organizationId),
    }),
  ];
  const results = await tools.database.together(
    demands.map(({ organizationId }) => organizationId),
    [
      ...before,
      acceptance.bind({
        messages: candidates.map(toNewMessage),
        at,
        senders: listOnce(
          submissions.map(({ organizationId, senderName: name }) => ({ organizationId, name })),
        ),
        demands,
        place: usagePlace(at),
        templates: listOnce(submissions.flatMap(keptVersionsOf)),
        notified,
      }),
      ...store.insertTagsAtOnce(candidates.map(toNewMessage)),
      ...keepResponsesAtOnce(keyed, time),
    ],
  );
  const [verdict] = results[before.length] as store.AcceptedAtOnce[]; // What this statement returns.
  if (verdict?.is_accepted !== true) return null;
  if (notified === null) tools.onQueued(channel);
  tellAccepted(tools, candidates);
  return candidates.map((candidate) => ({
    kind: 'response',
    response: acceptedResponse(candidate),
    isReplay: false,
  }));
}

type KeyedResponse = { key: ScopedKey; response: StoredResponse };

function toKeyedResponse(candidate: Candidate): KeyedResponse[] {
  const { idempotencyKey: key } = candidate;
  return key === null ? [] : [{ key, response: acceptedResponse(candidate) }];
}

function sumDemands(
  submissions: readonly Submission[],
  isHeld: (organizationId: string) => boolean,
): HeldDemand[] {
  return [...groupBy(submissions, ({ organizationId }) => organizationId)].map(([organizationId, own]) => ({
    organizationId,
    units: own.reduce((sum, { quotaUnits }) => sum + quotaUnits, 0),
    isHeld: isHeld(organizationId),
  }));
}

function keptVersionsOf({ organizationId, templateId, templateVersion }: Submission): KeptVersion[] {
  return templateId === null || templateVersion === undefined
    ? []
    : [{ organizationId, id: templateId, version: templateVersion }];
}

function listOnce<Item extends Readonly<Record<string, string>>>(items: readonly Item[]): Item[] {
  return [...new Map(items.map((item) => [Object.values(item).join(' '), item])).values()];
}

/**
 * Which accounts had a quota when they were last looked at, so that what they used is held before it is compared. Only a
 * guess: the statement that compares says no where it was not held and should have been.
 */
type LimitedAccounts = {
  has: (organizationId: string, channel: SendingChannel) => boolean;
  note: (organizationId: string, channel: SendingChannel, isLimited: boolean) => void;
};

/** More would be memory for accounts that are hardly in use; fewer, and some are looked at twice for each request. */
const limitedAccountsMax = 50_000;

function createLimitedAccounts(): LimitedAccounts {
  const limited = new LRUCache<string, true>({ max: limitedAccountsMax });
  const keyOf = (organizationId: string, channel: SendingChannel) => `${channel} ${organizationId}`;
  return {
    has: (organizationId, channel) => limited.get(keyOf(organizationId, channel)) ?? false,
    note: (organizationId, channel, isLimited) => {
      if (isLimited) limited.set(keyOf(organizationId, channel), true);
      else limited.delete(keyOf(organizationId, channel));
    },
  };
}

/** What was made of a template in memory is made of the template as it is now. */
async function prepareAllAnew(candidates: readonly Candidate[]): Promise<void> {
  await Promise.all(
    candidates.map(async (candidate) => {
      if (candidate.prepareAnew === null) return;
      candidate.prepared = await candidate.prepareAnew();
      candidate.prepareAnew = null;
    }),
  );
}

/** Messages that have one answer. */
type Whole = {
  organizationId: string;
  key: ScopedKey | null;
  /** Called when it is clear what becomes of each of them, before anything of it is certain; may throw. Returns the answer. */
  settle: (outcomes: readonly AcceptOutcome[]) => StoredResponse;
  /** Called instead where the key stands in the way. */
  leave: (outcome: AcceptOutcome) => void;
};

async function acceptInTransaction(
  tools: AcceptTools & { limited: LimitedAccounts },
  candidates: readonly Candidate[],
  whole: Whole | null = null,
): Promise<AcceptOutcome[]> {
  await prepareAllAnew(candidates);
  const at = dateOf(tools.clock.nowMs());
  const expiredBefore = dateOf(at.getTime() - retentionMs);
  const organizationIds = [
    ...new Set([...candidates.flatMap(organizationsOf), ...(whole === null ? [] : [whole.organizationId])]),
  ];
  const { key: wholeKey = null } = whole ?? {};
  const wholeKeys = wholeKey === null ? [] : [wholeKey];

  let allStored: readonly Candidate[] = [];
  const outcomes = await tools.database.asOrganizations(organizationIds, async (transaction) => {
    const keyed = candidates.flatMap(({ idempotencyKey }) =>
      idempotencyKey === null ? [] : [idempotencyKey],
    );
    const [states, facts] = await Promise.all([
      claimKeys(transaction, [...wholeKeys, ...keyed], { expiredBefore }),
      loadFacts(tools, transaction, candidates),
    ]);
    const wholeOutcome = outcomeOfKey(wholeKeys.length === 0 ? undefined : states[0]);
    if (wholeOutcome !== null) {
      whole?.leave(wholeOutcome);
      return candidates.map(() => wholeOutcome);
    }
    const keyStates = states.slice(wholeKeys.length);
    noteLimits(tools.limited, facts);
    const verdicts = judge(tools, candidates, keyStates, facts);
    const accepted = candidates.filter((_candidate, index) => verdicts[index] === 'accept');
    const quota = await storeLargeAndHold(tools, transaction, accepted, { facts, at });
    const stored = accepted.filter((candidate) => !quota.refused.has(candidate));
    const outcomes = candidates.map((candidate, index): AcceptOutcome => {
      const verdict = verdicts[index];
      if (verdict === undefined) throw new Error('every candidate has a verdict');
      if (verdict !== 'accept') return verdict;
      const excess = quota.refused.get(candidate);
      return excess === undefined
        ? { kind: 'response', response: acceptedResponse(candidate), isReplay: false }
        : { kind: 'refused', error: excess };
    });
    const response = whole?.settle(outcomes);
    const more = response === undefined ? [] : wholeKeys.map((key) => ({ key, response }));
    allStored = stored;
    if (stored.length > 0) await write(transaction, stored, { at, expiredBefore, count: quota.count, more });
    else await keepResponses(transaction, more, { at, expiredBefore });
    return outcomes;
  });
  if (allStored.length > 0) tools.onQueued();
  tellAccepted(tools, allStored);
  return outcomes;
}

function tellAccepted({ onAccepted }: AcceptTools, stored: readonly Candidate[]): void {
  if (onAccepted === undefined) return;
  for (const [channel, ofChannel] of groupBy(stored.flatMap(submissionsOf), (each) => each.channel)) {
    const recipients = ofChannel.reduce((sum, submission) => sum + submission.recipients.length, 0);
    onAccepted({ channel, messages: ofChannel.length, recipients });
  }
}

function organizationsOf({ prepared, idempotencyKey }: Candidate): string[] {
  if (idempotencyKey !== null) return [idempotencyKey.organizationId];
  return prepared instanceof PublicError ? [] : [prepared.organizationId];
}

/** What the checks need to know of the accounts, by channel. */
type Facts = ReadonlyMap<SendingChannel, ChannelFacts>;

type ChannelFacts = { plans: ReadonlyMap<string, SendingPlan>; senders: OwnSenders };

async function loadFacts(
  { channels }: AcceptTools,
  transaction: Transaction,
  candidates: readonly Candidate[],
): Promise<Facts> {
  const byChannel = groupBy(candidates.flatMap(submissionsOf), ({ channel }) => channel);
  const entries = [...byChannel].map(async ([channel, submissions]) => {
    const organizationIds = [...new Set(submissions.map(({ organizationId }) => organizationId))];
    const senders = submissions.map(({ organizationId, senderName: name }) => ({ organizationId, name }));
    const [plans, ownSenders] = await Promise.all([
      loadSendingPlans(transaction, organizationIds, channel),
      channels[channel].senders.loadOwn(transaction, senders),
    ]);
    const facts = { plans: new Map(plans.map((plan) => [plan.organizationId, plan])), senders: ownSenders };
    return [channel, facts] as const;
  });
  return new Map(await Promise.all(entries));
}

function noteLimits(limited: LimitedAccounts, facts: Facts): void {
  for (const [channel, { plans }] of facts) {
    for (const { organizationId, quota } of plans.values())
      limited.note(organizationId, channel, quota !== null);
  }
}

function submissionsOf({ prepared }: Candidate): Submission[] {
  return prepared instanceof PublicError ? [] : [prepared];
}

function factsOf(facts: Facts, { channel }: Submission): ChannelFacts {
  const found = facts.get(channel);
  if (found === undefined) throw new Error('what is to be known of every channel was loaded');
  return found;
}

/** Requests that exceed their quota, with the error for each. */
type Refused = ReadonlyMap<Candidate, PublicError>;

type HeldQuotas = { refused: Refused; count: () => Promise<void> };

type QuotaContext = { facts: Facts; at: Date };

/**
 * Locks the quotas. The lock makes other requests of the organization wait until the transaction ends, so the large
 * parts are stored before it is taken, except for requests that already exceed the quota.
 */
async function storeLargeAndHold(
  tools: AcceptTools,
  transaction: Transaction,
  accepted: readonly Candidate[],
  context: QuotaContext,
): Promise<HeldQuotas> {
  const large = accepted.filter(isLarge);
  const foreseen = await foreseeRefusals(tools, transaction, large, context);
  const early = large.filter((candidate) => !foreseen.has(candidate));
  const parts = store.insertLargeParts(transaction, early.map(toNewMessage));
  const held = holdQuotas(
    tools,
    transaction,
    accepted.filter((candidate) => !foreseen.has(candidate)),
    context,
  );
  const [{ refused, count }] = await Promise.all([held, ...parts]);
  const inVain = early.filter((candidate) => refused.has(candidate));
  await store.deleteLargeParts(transaction, inVain.map(toNewMessage));
  return { refused: new Map([...foreseen, ...refused]), count };
}

async function foreseeRefusals(
  { channels }: AcceptTools,
  transaction: Transaction,
  candidates: readonly Candidate[],
  { facts, at }: QuotaContext,
): Promise<Refused> {
  const refused = new Map<Candidate, PublicError>();
  for (const [channel, own] of groupBy(candidates, channelOf)) {
    const demands = own.map((candidate) => demandOf(submissionOf(candidate), facts));
    const verdict = await foreseeQuota(transaction, { channel, at, demands });
    for (const [candidate, error] of refusalsOf(channels[channel], own, { demands, verdict, at }))
      refused.set(candidate, error);
  }
  return refused;
}

async function holdQuotas(
  { channels }: AcceptTools,
  transaction: Transaction,
  accepted: readonly Candidate[],
  { facts, at }: QuotaContext,
): Promise<HeldQuotas> {
  const byChannel = groupBy(accepted, channelOf);
  const refused = new Map<Candidate, PublicError>();
  const counts: (() => Promise<void>)[] = [];
  // One channel after the other, always in the same order, so that two transactions cannot deadlock.
  for (const [channel, candidates] of [...byChannel].sort(([first], [second]) => (first < second ? -1 : 1))) {
    const demands = candidates.map((candidate) => demandOf(submissionOf(candidate), facts));
    const { count, ...verdict } = await holdQuota(transaction, { channel, at, demands });
    for (const [candidate, error] of refusalsOf(channels[channel], candidates, { demands, verdict, at }))
      refused.set(candidate, error);
    counts.push(count);
  }
  return {
    refused,
    count: async () => {
      await Promise.all(counts.map((count) => count()));
    },
  };
}

function refusalsOf(
  { words }: MessageChannel,
  candidates: readonly Candidate[],
  { demands, verdict, at }: { demands: readonly QuotaDemand[]; verdict: QuotaVerdict; at: Date },
): [Candidate, PublicError][] {
  return candidates.flatMap((candidate, index) => {
    if (verdict.fits[index] === true) return [];
    const { amount: needed = 0, limit } = demands[index] ?? {};
    const used = verdict.used[index] ?? 0;
    return [[candidate, quotaExceeded(words, { used, limit: limit ?? 0, needed, at })]];
  });
}

/** Checks each request before its quota, in the order of the specification: the idempotency key first. */
function judge(
  { channels }: AcceptTools,
  candidates: readonly Candidate[],
  keyStates: readonly KeyState[],
  facts: Facts,
): (AcceptOutcome | 'accept')[] {
  let keyed = 0;
  return candidates.map((candidate) => {
    const known = outcomeOfKey(candidate.idempotencyKey === null ? undefined : keyStates[keyed++]);
    if (known !== null) return known;
    const refusal = findRefusal(channels, candidate.prepared, facts);
    return refusal === null ? 'accept' : { kind: 'refused', error: refusal };
  });
}

function findRefusal(
  channels: MessageChannels,
  prepared: Submission | PublicError,
  facts: Facts,
): PublicError | null {
  if (prepared instanceof PublicError) return prepared;
  const { organizationId, channel, senderName } = prepared;
  const { plans, senders } = factsOf(facts, prepared);
  if (!senders.has({ organizationId, name: senderName }))
    return new PublicError(badRequest, channels[channel].senders.describeOther(senderName));
  return findSuspension(channels[channel].words, plans.get(organizationId));
}

function demandOf(submission: Submission, facts: Facts): QuotaDemand {
  const { organizationId, quotaUnits } = submission;
  return {
    organizationId,
    amount: quotaUnits,
    limit: factsOf(facts, submission).plans.get(organizationId)?.quota ?? null,
  };
}

function channelOf(candidate: Candidate): SendingChannel {
  return submissionOf(candidate).channel;
}

function submissionOf({ prepared }: Candidate): Submission {
  if (prepared instanceof PublicError) throw new Error('a refused request takes and stores nothing');
  return prepared;
}

/** Sends all statements and then the commit at once: one round trip. */
async function write(
  transaction: Transaction,
  stored: readonly Candidate[],
  context: { at: Date; expiredBefore: Date; count: () => Promise<void>; more: readonly KeyedResponse[] },
): Promise<void> {
  const { at, expiredBefore } = context;
  const messages = stored.map(toNewMessage);
  await Promise.all([
    context.count(),
    keepResponses(transaction, [...context.more, ...stored.flatMap(toKeyedResponse)], { at, expiredBefore }),
    ...store.insertLargeParts(
      transaction,
      stored.filter((candidate) => !isLarge(candidate)).map(toNewMessage),
    ),
    store.insertMessages(transaction, messages, at),
    transaction.commit(),
  ]);
}

function toNewMessage(candidate: Candidate): store.NewMessage {
  const { id, sealedAttachments, traceId } = candidate;
  return { id, submission: submissionOf(candidate), sealedAttachments, traceId };
}
