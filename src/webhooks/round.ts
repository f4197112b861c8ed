import type { Clock } from '../platform/clock.ts';
import type { WebhookAttempt } from './attempt.ts';
import type { LoggedEvent } from './log.ts';
import { asksForLess } from './retry-schedule.ts';

/**
 * A round: some events are told to an endpoint, several at once, begun in the order of their positions. It ends early where
 * the endpoint takes nothing any more, or takes long: then the events that were not begun stay in the log, and are no
 * attempts.
 */

export type RoundItem = {
  event: LoggedEvent;
  body: Buffer;
  /** How many attempts there were before; null of an event that comes from the log, of which there is no delivery yet. */
  attempts: number | null;
};

export type RoundState = {
  /** Attempts that failed since the last that succeeded. */
  failures: number;
  lastSuccessAtMs: number | null;
};

export type ConcludedItem = {
  item: RoundItem;
  attempt: Exclude<WebhookAttempt, { kind: 'put_off' }>;
  atMs: number;
};

export type RoundOutcome = RoundState & {
  concluded: ConcludedItem[];
  /** Whether the endpoint takes nothing any more, and is told of one event at a time from now on. */
  isFailing: boolean;
  /** The endpoint said that it is gone. */
  isGone: boolean;
};

export type Round = {
  items: readonly RoundItem[];
  /** How many at once, one at least. */
  concurrency: number;
  /** Whether nothing is told before what failed was taken. */
  isOrdered: boolean;
  state: RoundState;
  signal: AbortSignal;
  /** Makes one attempt. */
  tell: (item: RoundItem) => Promise<WebhookAttempt>;
};

/** So many failures in a row, and nothing taken for so long: it is the endpoint, and not some events. */
export const failuresMax = 20;
const silentMs = 5 * 60_000;
/**
 * After this time nothing more of a round is begun. With more, an endpoint that was paused, deleted or given another URL or
 * secret meanwhile goes on to be called as it was, and more is told twice after a crash; with less, slow endpoints are
 * written more often.
 */
const beginningMs = 10_000;

export async function tellRound(clock: Clock, round: Round): Promise<RoundOutcome> {
  const { items, concurrency, isOrdered, signal, tell } = round;
  const outcome: RoundOutcome = { ...round.state, concluded: [], isFailing: false, isGone: false };
  let mayBegin = concurrency;
  const endMs = clock.monotonicMs() + beginningMs;
  const isOver = () => signal.aborted || outcome.isFailing || outcome.isGone || clock.monotonicMs() >= endMs;

  const conclude = (item: RoundItem, attempt: ConcludedItem['attempt']) => {
    const atMs = clock.nowMs();
    outcome.concluded.push({ item, attempt, atMs });
    if (attempt.kind === 'delivered') {
      outcome.failures = 0;
      outcome.lastSuccessAtMs = atMs;
      return;
    }
    outcome.failures += 1;
    if (asksForLess(attempt.status)) mayBegin = Math.max(1, Math.floor(mayBegin / 2));
    const isSilent = outcome.lastSuccessAtMs === null || outcome.lastSuccessAtMs < atMs - silentMs;
    if (isOrdered || (outcome.failures >= failuresMax && isSilent)) outcome.isFailing = true;
    if (attempt.kind === 'gone') outcome.isGone = true;
  };

  const queue = items.values();
  const work = async (place: number) => {
    for (const item of queue) {
      if (isOver()) return;
      const attempt = await tell(item);
      if (attempt.kind === 'put_off') return;
      conclude(item, attempt);
      // Fewer at once, for the rest of the round.
      if (place >= mayBegin) return;
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, items.length) }, (_, place) => work(place)));
  return outcome;
}
