import {
  foreseeQuota,
  holdQuota,
  loadSendingPlans,
  type QuotaDemand,
  type QuotaVerdict,
  type SendingPlan,
} from '../accounts/accounts.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf, sleep } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import { badRequest, overloaded, PublicError } from '../platform/http/errors.ts';
import {
  claimKeys,
  keepResponses,
  keyConflict,
  type KeyState,
  retentionMs,
  type ScopedKey,
  type StoredResponse,
} from '../platform/http/idempotency.ts';
import type { NewId } from '../platform/ids.ts';
import { type Database, DatabaseUnavailableError, type Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { MessageChannel, MessageChannels, OwnSenders } from './channel.ts';
import { tellMissingVariables } from './missing-variables.ts';
import { findSuspension, quotaExceeded } from './refusals.ts';
import * as store from './store.ts';
import type { Submission } from './submission.ts';

/**
 * Acceptance. A message, its recipients, its place in the queue, its share of the quota and the response to its
 * idempotency key are committed together, and only then is 202 answered.
 *
 * Requests that arrive while a transaction is under way share the next one, so that one flush of the disk serves many.
 * Each has an outcome of its own, and a refused request stores nothing. If a shared transaction fails because of one
 * request, each is tried alone. A large request has a transaction of its own, so that no small one waits for it. If the
 * connection breaks during a commit, it is unknown whether the commit took place: the message ids are looked up then,
 * and only requests whose message is missing are answered with 503.
 */

export type AcceptTools = {
  channels: MessageChannels;
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  /** Called after every commit that queued something. */
  onQueued: () => void;
};

export type AcceptOutcome =
  { kind: 'response'; response: StoredResponse; isReplay: boolean } | { kind: 'refused'; error: PublicError };

/** Within a batch, a failure concerns one request only. */
type BatchOutcome = AcceptOutcome | { kind: 'failed'; cause: unknown };

export type Acceptor = {
  /**
   * `prepared` is a submission, or the error of the rule that the request breaks; the idempotency key is checked before
   * that error is returned. Rejects with a DatabaseUnavailableError if it cannot be found out whether the message was
   * stored.
   */
  accept: (prepared: Submission | PublicError, idempotencyKey: ScopedKey | null) => Promise<AcceptOutcome>;
};

export type AcceptLimits = {
  /** Requests that share a transaction. More would lengthen the wait of the first; fewer would share less. */
  batchItemsMax: number;
  /** Transactions at once for small requests, and as many again for large ones. */
  flushersMax: number;
  /** Requests under way. More would take more memory, and be answered later. */
  waitingMax: number;
};

/** Two transactions: one is being committed while the other collects its rows (measured: a third more requests). */
const defaultLimits: AcceptLimits = { batchItemsMax: 200, flushersMax: 2, waitingMax: 2_000 };

export function createAcceptor(tools: AcceptTools, limits: Partial<AcceptLimits> = {}): Acceptor {
  const { batchItemsMax, flushersMax, waitingMax } = { ...defaultLimits, ...limits };
  const keysUnderWay = new Set<string>();
  /** Includes requests whose attachments are still being sealed: they take memory too. */
  let underWay = 0;
  const openBatcher = (itemsMax: number) =>
    createBatcher<Candidate, BatchOutcome>({
      itemsMax,
      concurrency: flushersMax,
      run: (candidates) => acceptTogether(tools, candidates),
    });
  const shared = openBatcher(batchItemsMax);
  const alone = openBatcher(1);

  return {
    accept: async (prepared, idempotencyKey) => {
      if (prepared instanceof PublicError && idempotencyKey === null)
        return { kind: 'refused', error: prepared };
      if (underWay >= waitingMax)
        return { kind: 'refused', error: overloaded('Too many messages are waiting.') };
      // The lock on a key belongs to a transaction, so it does not exclude two requests within one transaction.
      const keyText = idempotencyKey === null ? null : textOf(idempotencyKey);
      if (keyText !== null) {
        if (keysUnderWay.has(keyText)) return { kind: 'refused', error: keyConflict('concurrent') };
        keysUnderWay.add(keyText);
      }
      underWay += 1;
      try {
        const candidate = await toCandidate(tools, prepared, idempotencyKey);
        const outcome = await (isLarge(candidate) ? alone : shared).add(candidate);
        if (outcome.kind === 'failed') throw outcome.cause;
        return outcome;
      } finally {
        underWay -= 1;
        if (keyText !== null) keysUnderWay.delete(keyText);
      }
    },
  };
}

function textOf({ organizationId, endpoint, key }: ScopedKey): string {
  return `${organizationId} ${endpoint} ${key}`;
}

/**
 * A request that is about to be stored. Its message id is made once, so that it can be looked up after a broken commit.
 */
type Candidate = {
  id: string;
  prepared: Submission | PublicError;
  idempotencyKey: ScopedKey | null;
  sealedAttachments: Buffer[];
};

async function toCandidate(
  tools: AcceptTools,
  prepared: Submission | PublicError,
  idempotencyKey: ScopedKey | null,
): Promise<Candidate> {
  const id = tools.newId();
  const attachments = prepared instanceof PublicError ? [] : prepared.attachments;
  const sealedAttachments: Buffer[] = [];
  for (const [ordinal, content] of attachments.entries()) {
    sealedAttachments.push(await tools.secrets.encryptInSteps(content, attachmentContext(id, ordinal)));
  }
  return { id, prepared, idempotencyKey, sealedAttachments };
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

async function acceptTogether(tools: AcceptTools, candidates: Candidate[]): Promise<BatchOutcome[]> {
  try {
    return await acceptInTransaction(tools, candidates);
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) {
      return cause.mayBeCarriedOut
        ? settleUnknown(tools, candidates, cause)
        : candidates.map(() => ({ kind: 'failed', cause }));
    }
    if (candidates.length === 1) return [{ kind: 'failed', cause }];
    const outcomes: BatchOutcome[] = [];
    for (const candidate of candidates) outcomes.push(...(await acceptTogether(tools, [candidate])));
    return outcomes;
  }
}

/**
 * The connection broke and the commit may have taken place: requests whose message is stored are accepted, the rest
 * fail.
 */
async function settleUnknown(
  tools: AcceptTools,
  candidates: readonly Candidate[],
  cause: DatabaseUnavailableError,
): Promise<BatchOutcome[]> {
  const present = await findWhenBack(
    tools,
    candidates.flatMap(({ id, prepared }) =>
      prepared instanceof PublicError ? [] : [{ organizationId: prepared.organizationId, id }],
    ),
  );
  if (present.size > 0) tools.onQueued();
  return candidates.map((candidate) =>
    present.has(candidate.id)
      ? { kind: 'response', response: acceptedResponse(candidate), isReplay: false }
      : { kind: 'failed', cause },
  );
}

/**
 * A restarting PostgreSQL is back within a second or two, and no client should wait longer than this. If PostgreSQL
 * does not answer, each look-up takes three seconds.
 */
const lookUpMaxMs = 5_000;
const lookUpPauseMs = 500;

async function findWhenBack(
  tools: AcceptTools,
  wanted: readonly { organizationId: string; id: string }[],
): Promise<Set<string>> {
  const giveUpAtMs = tools.clock.monotonicMs() + lookUpMaxMs;
  for (;;) {
    try {
      return await tools.database.asOrganizations(
        wanted.map(({ organizationId }) => organizationId),
        (transaction) => store.findMessageIds(transaction, wanted),
      );
    } catch (cause) {
      if (!(cause instanceof DatabaseUnavailableError)) throw cause;
      if (tools.clock.monotonicMs() + lookUpPauseMs >= giveUpAtMs) return new Set();
      await sleep(tools.clock, lookUpPauseMs);
    }
  }
}

function acceptedResponse(candidate: Candidate): StoredResponse {
  return {
    statusCode: 202,
    text: JSON.stringify({ id: candidate.id }),
    headers: tellMissingVariables(submissionOf(candidate).missingVariables),
  };
}

async function acceptInTransaction(
  tools: AcceptTools,
  candidates: readonly Candidate[],
): Promise<AcceptOutcome[]> {
  const at = dateOf(tools.clock.nowMs());
  const expiredBefore = dateOf(at.getTime() - retentionMs);
  const organizationIds = [...new Set(candidates.flatMap(organizationsOf))];

  let isAnyStored = false;
  const outcomes = await tools.database.asOrganizations(organizationIds, async (transaction) => {
    const keyed = candidates.flatMap(({ idempotencyKey }) =>
      idempotencyKey === null ? [] : [idempotencyKey],
    );
    const [keyStates, facts] = await Promise.all([
      claimKeys(transaction, keyed, { expiredBefore }),
      loadFacts(tools, transaction, candidates),
    ]);
    const verdicts = judge(tools, candidates, keyStates, facts);
    const accepted = candidates.filter((_candidate, index) => verdicts[index] === 'accept');
    const quota = await storeLargeAndHold(tools, transaction, accepted, { facts, at });
    const stored = accepted.filter((candidate) => !quota.refused.has(candidate));
    isAnyStored = stored.length > 0;
    if (isAnyStored) await write(transaction, stored, { at, expiredBefore, count: quota.count });

    return candidates.map((candidate, index): AcceptOutcome => {
      const verdict = verdicts[index];
      if (verdict === undefined) throw new Error('every candidate has a verdict');
      if (verdict !== 'accept') return verdict;
      const excess = quota.refused.get(candidate);
      return excess === undefined
        ? { kind: 'response', response: acceptedResponse(candidate), isReplay: false }
        : { kind: 'refused', error: excess };
    });
  });
  if (isAnyStored) tools.onQueued();
  return outcomes;
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
    const state = candidate.idempotencyKey === null ? undefined : keyStates[keyed++];
    if (state?.kind === 'replay') return { kind: 'response', response: state.response, isReplay: true };
    if (state !== undefined && state.kind !== 'free')
      return { kind: 'refused', error: keyConflict(state.kind) };
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
  context: { at: Date; expiredBefore: Date; count: () => Promise<void> },
): Promise<void> {
  const { at, expiredBefore } = context;
  const messages = stored.map(toNewMessage);
  await Promise.all([
    context.count(),
    keepResponses(
      transaction,
      stored.flatMap((candidate) => {
        const { idempotencyKey: key } = candidate;
        return key === null ? [] : [{ key, response: acceptedResponse(candidate) }];
      }),
      { at, expiredBefore },
    ),
    ...store.insertLargeParts(
      transaction,
      stored.filter((candidate) => !isLarge(candidate)).map(toNewMessage),
    ),
    store.insertMessages(transaction, messages, at),
    transaction.commit(),
  ]);
}

function toNewMessage(candidate: Candidate): store.NewMessage {
  const { id, sealedAttachments } = candidate;
  return { id, submission: submissionOf(candidate), sealedAttachments };
}
