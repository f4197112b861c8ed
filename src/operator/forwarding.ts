import { Buffer } from 'node:buffer';
import { type Clock, sleep } from '../platform/clock.ts';
import { composeHeaders, type WebhookEvent } from '../webhooks/webhooks.ts';

/** One event, posted to a program on the machine of whoever develops it, until the program has taken it. */

/** Where it goes, and with what it is signed. */
export type Receiver = { url: string; secret: string };

/** `status` is null if there was no answer, and `problem` says why. A receiver has taken an event by a 2xx alone. */
export type ForwardingAttempt = { status: number | null; ms: number; problem: string | null };

/** As long as a webhook is waited for, so that a receiver which is too slow for those shows it here. */
const attemptMs = 15_000;

/** A program is away while it is built again: shorter fills the terminal, longer keeps its author waiting. */
const firstPauseMs = 500;
const pauseMsMax = 5_000;

/**
 * Resolves when the receiver has taken the event. `onAttempt` is told of every attempt. Rejects when the signal aborts: the
 * event may have arrived by then.
 */
export async function forwardEvent(
  { clock, signal }: { clock: Clock; signal: AbortSignal },
  receiver: Receiver,
  event: WebhookEvent,
  onAttempt: (attempt: ForwardingAttempt) => void,
): Promise<void> {
  let pauseMs = firstPauseMs;
  for (;;) {
    const attempt = await post(clock, receiver, event, signal);
    onAttempt(attempt);
    if (attempt.status !== null && attempt.status >= 200 && attempt.status < 300) return;
    await sleep(clock, pauseMs, signal);
    pauseMs = Math.min(2 * pauseMs, pauseMsMax);
  }
}

async function post(
  clock: Clock,
  { url, secret }: Receiver,
  event: WebhookEvent,
  signal: AbortSignal,
): Promise<ForwardingAttempt> {
  const body = Buffer.from(JSON.stringify(event));
  const startedAtMs = clock.monotonicMs();
  const elapsedMs = () => Math.round(clock.monotonicMs() - startedAtMs);
  try {
    const response = await fetch(url, {
      method: 'POST',
      body,
      headers: composeHeaders({ id: event.id, body, atMs: clock.nowMs() }, [secret]),
      redirect: 'manual',
      signal: AbortSignal.any([signal, AbortSignal.timeout(attemptMs)]),
    });
    const ms = elapsedMs();
    // The status decides; what is left unread would keep the connection.
    await response.body?.cancel();
    return { status: response.status, ms, problem: null };
  } catch (cause) {
    signal.throwIfAborted();
    return { status: null, ms: elapsedMs(), problem: describeProblem(cause) };
  }
}

/** What `fetch` has to say is in the cause of its error. */
export function describeProblem(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  if (cause.name === 'TimeoutError') return `no answer within ${attemptMs / 1_000} seconds`;
  const inner = cause.cause;
  if (!(inner instanceof Error)) return cause.message;
  // Of a name with several addresses, each of which was tried.
  const [first] = inner instanceof AggregateError ? (inner.errors as unknown[]) : [inner];
  return first instanceof Error && first.message !== '' ? first.message : inner.message || cause.message;
}
