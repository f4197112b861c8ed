import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { WebhookSender } from './attempt.ts';
import * as store from './delivery-store.ts';
import { openSecrets, secretsAt } from './endpoint-secrets.ts';
import { describeEvents, type EventDescribers, eventsOf, readLog } from './log.ts';
import { logEvents } from './outbox-store.ts';
import { writeEvent } from './formats.ts';
import { nextAttemptInMs } from './retry-schedule.ts';
import { type ConcludedItem, failuresMax, type RoundItem, type RoundOutcome, tellRound } from './round.ts';
import type { WebhookKey } from './store.ts';

/**
 * Tells an endpoint what it was not told, in rounds, until there is nothing more. A round is
 *
 * 1. **read**: what is to be tried again, and the log from the cursor of the endpoint on;
 * 2. **told**, without a transaction (round.ts);
 * 3. **written**: the cursor moves behind all that was attempted. What was taken leaves no other trace, but for a sample;
 *    what was not is a delivery to be retried.
 *
 * If the process dies in between, the round is told once more by whoever comes next, under the same ids. One that has lost
 * its lock, and lives on, writes nothing; nor does one that has not noticed, if another was first to write the same round.
 *
 * An endpoint that takes nothing is `failing`: it is told of the oldest event alone, at growing intervals, and the rest
 * waits in the log. When it takes that one, everything goes on; when it has taken nothing for days, it is disabled.
 */
export type TellingTools = {
  database: Database;
  clock: Clock;
  secrets: Secrets;
  random: () => number;
  describers: EventDescribers;
  sender: WebhookSender;
  /** Connections beside the one that the endpoint has anyway. */
  takeFurther: (wanted: number) => { count: number; release: () => void };
};

/** With more, more is told twice after a crash; with fewer, there are more transactions. */
const itemsMax = 100;
/** Of an endpoint that did not take what it was told of last: it may take none of them, or hang at each. */
const itemsAfterFailureMax = 20;
/** Between rounds of which nothing is taken, until it is known whether the endpoint fails, or is started anew. */
const refusedPauseMs = 5_000;
/** An endpoint that has taken nothing for so long is told nothing any more. Svix waits as long. */
const failingMax = 5 * 86_400_000;
/** Of the log that a round looks at. Where an endpoint wants little of it, the next round goes on from there. */
const positionsMax = 10_000;
/** Between two attempts at an endpoint that fails, once the schedule of retries is over. */
const longestPauseMs = 86_400_000;
/** Of events that are taken at once: of so many in a round each is kept as a delivery, of more one in twenty. */
const keptMax = 5;
const sampledOf = 20;

/**
 * Until nothing is left, the worker stops, or another may have the endpoint: then nothing more is begun, or written. Returns
 * for how many milliseconds to leave it alone.
 */
export async function tellEndpoint(
  tools: TellingTools,
  key: WebhookKey,
  { stopping, lost }: { stopping: AbortSignal; lost: AbortSignal },
): Promise<number> {
  const signal = AbortSignal.any([stopping, lost]);
  while (!signal.aborted) {
    const read = await readRound(tools, key);
    if (read === null) return 0;
    const { endpoint, items } = read;
    const { url, headers, concurrency } = endpoint;
    // One that hangs holds a single connection from its first failure on, until it takes something.
    const further = tools.takeFurther(endpoint.failures > 0 ? 0 : Math.min(concurrency, items.length) - 1);
    const outcome = await tellRound(tools.clock, {
      items,
      concurrency: 1 + further.count,
      isOrdered: concurrency === 1,
      state: { failures: endpoint.failures, lastSuccessAtMs: endpoint.last_success_at?.getTime() ?? null },
      signal,
      tell: ({ event, body }) =>
        tools.sender.attempt({
          endpointId: endpoint.id,
          url,
          headers,
          id: event.id,
          body,
          secrets: read.secrets,
        }),
    }).finally(further.release);
    // No attempt, and so nothing that puts off the next one: the worker is stopping.
    if (items.length > 0 && outcome.concluded.length === 0) continue;
    if (!(await writeRound(tools, key, { read, outcome, lost }))) return 0;
    if (outcome.failures >= failuresMax) return refusedPauseMs;
  }
  return 0;
}

type ReadRound = {
  endpoint: store.Endpoint;
  secrets: readonly string[];
  /** In the order of their positions. */
  items: readonly RoundItem[];
  /** Where the log goes on behind them. */
  next: number;
};

/** Null if there is nothing to be told now. */
async function readRound(tools: TellingTools, key: WebhookKey): Promise<ReadRound | null> {
  const { database, clock, secrets, describers } = tools;
  const { organizationId } = key;
  return database.asOrganizations([organizationId], async (transaction) => {
    const endpoint = await store.findEndpoint(transaction, key);
    if (endpoint === null) return null;
    const at = now(clock);
    const isFailing = endpoint.failing_since !== null;
    const limit = isFailing ? 1 : endpoint.failures > 0 ? itemsAfterFailureMax : itemsMax;
    const due = await findDue(transaction, key, { endpoint, at, limit });
    const attemptsOf = new Map(due.map(({ eventId, attempts }) => [eventId, attempts]));
    const again = (await store.findRowsOf(transaction, organizationId, due))
      .flatMap(eventsOf)
      .filter(({ id }) => attemptsOf.has(id));
    const fresh =
      due.length === limit
        ? { events: [], next: endpoint.next_position }
        : await readLog(transaction, {
            organizationId,
            from: endpoint.next_position,
            patterns: endpoint.events,
            campaignEvents: endpoint.campaign_events,
            limit: limit - due.length,
            spanMax: positionsMax,
          });
    // What is told again may be ahead of the cursor, after a replay.
    const unknown = fresh.events.filter(({ id }) => !attemptsOf.has(id));
    const events = [...again, ...unknown].sort((one, other) => one.position - other.position);
    if (events.length === 0 && fresh.next === endpoint.next_position) {
      // What was to be tried again is not in the log any more.
      if (isDue(endpoint, at)) await store.refreshNextTry(transaction, key);
      return null;
    }
    const told = await describeEvents(transaction, describers, organizationId, events);
    return {
      endpoint,
      secrets: secretsAt(openSecrets(secrets, endpoint.id, endpoint.secrets_sealed), at),
      items: told.map((described, place) => {
        const event = events[place];
        if (event === undefined) throw new Error('something was told that was not read');
        return {
          event,
          body: writeEvent(endpoint.format, described),
          attempts: attemptsOf.get(event.id) ?? null,
        };
      }),
      next: fresh.next,
    };
  });
}

function isDue({ next_try_at: nextTryAt }: store.Endpoint, at: Date): boolean {
  return nextTryAt !== null && nextTryAt <= at;
}

/** What is to be tried again now. What an endpoint takes in order, or one at a time, is tried by its position. */
async function findDue(
  transaction: Transaction,
  key: WebhookKey,
  { endpoint, at, limit }: { endpoint: store.Endpoint; at: Date; limit: number },
): Promise<store.Delivery[]> {
  if (endpoint.failing_since !== null) return store.listRetrying(transaction, key, limit);
  if (!isDue(endpoint, at)) return [];
  return endpoint.concurrency === 1
    ? store.listRetrying(transaction, key, limit)
    : store.listDue(transaction, key, { at, limit });
}

/** Returns whether to go on: the endpoint is still there and ours, and takes events. */
async function writeRound(
  tools: TellingTools,
  key: WebhookKey,
  { read, outcome, lost }: { read: ReadRound; outcome: RoundOutcome; lost: AbortSignal },
): Promise<boolean> {
  const { database, clock, random } = tools;
  const { endpoint } = read;
  const at = now(clock);
  const wasFailing = endpoint.failing_since !== null;
  const hasSucceeded = outcome.concluded.some(({ attempt }) => attempt.kind === 'delivered');
  const isFailing = outcome.isFailing || (wasFailing && !hasSucceeded);
  // From the first of these on they are counted by the schedule.
  const failures = isFailing && !wasFailing ? 1 : outcome.failures;
  const failure = outcome.concluded
    .flatMap(({ attempt, atMs }) => (attempt.kind === 'delivered' ? [] : [{ ...attempt, at: dateOf(atMs) }]))
    .at(-1);
  const pauseMs = nextAttemptInMs({
    failures,
    retryAfterMs: failure?.retryAfterMs ?? null,
    random: random(),
  });
  const failingSince = isFailing ? (endpoint.failing_since ?? at) : null;
  const isOver =
    outcome.isGone || (failingSince !== null && at.getTime() - failingSince.getTime() >= failingMax);
  return database.asOrganizations([key.organizationId], async (transaction) => {
    // While PostgreSQL was away, another may have begun what would be told again because of this.
    if (lost.aborted) return false;
    const isOurs = await store.saveProgress(transaction, key, {
      rounds: endpoint.rounds,
      nextPosition: nextPositionOf(read, outcome),
      failures,
      failingSince,
      nextTryAt: isFailing ? dateOf(at.getTime() + (pauseMs ?? longestPauseMs)) : null,
      lastSuccessAt: outcome.lastSuccessAtMs === null ? null : dateOf(outcome.lastSuccessAtMs),
      failure: failure ?? null,
    });
    if (!isOurs) return false;
    const kept = outcome.concluded.filter((concluded) => isKept(concluded, outcome.concluded.length));
    await store.saveAttempts(
      transaction,
      key,
      kept.map((concluded) => toAttempt(concluded, { isFailing, random })),
    );
    if (wasFailing && !isFailing) {
      await store.retryNow(transaction, key, at);
      // It was left out while it failed. Without this, nobody would go on if the process died now.
      await store.noteUntold(transaction, key.organizationId);
    }
    if (isOver) await store.disableWebhook(transaction, key, at);
    const isLeftAsItWas = outcome.concluded.every(({ item, attempt }) => {
      return item.attempts === null && attempt.kind === 'delivered';
    });
    if (!isLeftAsItWas || wasFailing) await store.refreshNextTry(transaction, key);
    await tellOfWebhook(transaction, key, {
      at,
      isDisabled: isOver,
      hasBegunToFail: isFailing && !wasFailing,
    });
    return !isFailing && !isOver;
  });
}

/** What was begun in another order, and was not concluded, is told once more with all that follows it. */
function nextPositionOf({ endpoint, items, next }: ReadRound, { concluded }: RoundOutcome): number {
  const done = new Set(concluded.map(({ item }) => item));
  const left = items.filter((item) => !done.has(item) && item.event.position >= endpoint.next_position);
  return left.reduce((lowest, { event }) => Math.min(lowest, event.position), next);
}

function isKept({ item, attempt }: ConcludedItem, concluded: number): boolean {
  return (
    attempt.kind !== 'delivered' ||
    item.attempts !== null ||
    concluded <= keptMax ||
    item.event.position % sampledOf === 0
  );
}

function toAttempt(
  { item, attempt, atMs }: ConcludedItem,
  { isFailing, random }: { isFailing: boolean; random: () => number },
): store.ConcludedAttempt {
  const { event } = item;
  const failures = (item.attempts ?? 0) + 1;
  const common = {
    eventId: event.id,
    position: event.position,
    type: event.type,
    attempt: failures,
    at: dateOf(atMs),
    status: attempt.status,
    ms: attempt.ms,
    answer: attempt.answer,
  };
  if (attempt.kind === 'delivered')
    return { ...common, deliveryStatus: 'delivered', dueAt: null, message: null };
  const pauseMs = nextAttemptInMs({ failures, retryAfterMs: attempt.retryAfterMs, random: random() });
  // Nothing is given up because the endpoint as a whole takes nothing.
  const dueMs = pauseMs ?? (isFailing ? longestPauseMs : null);
  return {
    ...common,
    deliveryStatus: dueMs === null ? 'failed' : 'retrying',
    dueAt: dueMs === null ? null : dateOf(atMs + dueMs),
    message: attempt.message,
  };
}

/** The other webhooks of the organization may want to hear of it. */
async function tellOfWebhook(
  transaction: Transaction,
  { organizationId, id }: WebhookKey,
  { at, isDisabled, hasBegunToFail }: { at: Date; isDisabled: boolean; hasBegunToFail: boolean },
): Promise<void> {
  const type = isDisabled ? 'webhook.disabled' : hasBegunToFail ? 'webhook.failing' : null;
  if (type === null) return;
  await logEvents(transaction, [
    { organizationId, type, at, ofCampaign: false, subjectId: id, ordinal: null, facts: null },
  ]);
}
