import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import * as store from './delivery-store.ts';
import { logEvents } from './outbox-store.ts';
import { nextAttemptInMs } from './retry-schedule.ts';
import type { ConcludedItem, RoundOutcome } from './round.ts';
import type { ReadRound } from './round-reading.ts';
import type { WebhookKey } from './store.ts';

export type WritingTools = { database: Database; clock: Clock; random: () => number };

/** An endpoint that has taken nothing for so long is told nothing any more. Svix waits as long. */
const failingMax = 5 * 86_400_000;
/** Between two attempts at an endpoint that fails, once the schedule of retries is over. */
const longestPauseMs = 86_400_000;
/** Of events that are taken at once: of so many in a round each is kept as a delivery, of more one in twenty. */
const keptMax = 5;
const sampledOf = 20;

/** The endpoint as it is now; null if nothing more is to be told: it is another's, gone, paused, or takes nothing. */
export async function writeRound(
  tools: WritingTools,
  key: WebhookKey,
  { read, outcome, lost }: { read: ReadRound; outcome: RoundOutcome; lost: AbortSignal },
): Promise<store.Endpoint | null> {
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
  return database.asOrganizationsByIndex([key.organizationId], async (transaction) => {
    // While PostgreSQL was away, another may have begun what would be told again because of this.
    if (lost.aborted) return null;
    const saved = await store.saveProgress(transaction, key, {
      rounds: endpoint.rounds,
      nextPosition: nextPositionOf(read, outcome),
      failures,
      failingSince,
      nextTryAt: isFailing ? dateOf(at.getTime() + (pauseMs ?? longestPauseMs)) : null,
      lastSuccessAt: outcome.lastSuccessAtMs === null ? null : dateOf(outcome.lastSuccessAtMs),
      failure: failure ?? null,
    });
    if (saved === null) return null;
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
    const nextTryAt =
      isLeftAsItWas && !wasFailing ? saved.next_try_at : await store.refreshNextTry(transaction, key);
    await tellOfWebhook(transaction, key, {
      at,
      isDisabled: isOver,
      hasBegunToFail: isFailing && !wasFailing,
    });
    if (isFailing || isOver || saved.status !== 'enabled') return null;
    return { ...saved, next_try_at: nextTryAt };
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
