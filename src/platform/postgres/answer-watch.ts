import type { Clock } from '../clock.ts';

/**
 * PostgreSQL can stop answering without ending a single connection: its processes are stopped or starved, or the
 * network in between silently drops everything. A statement would then wait for hours, and its caller with it.
 *
 * - **Overdue.** A connection has owed an answer for `overdueMs`. Perhaps its statement just takes long: PostgreSQL is
 *   asked something trivial on another connection.
 * - **Silent.** That was not answered either, and nothing else was meanwhile: a server or pooler that has no more
 *   connections to give away may well answer on those that it gave away before. Every connection that waits is ended,
 *   so that each caller gets its error, and until PostgreSQL answers again no new caller has to wait for it: `isSilent`
 *   is true.
 * - **Late.** PostgreSQL answers others, and one connection has waited for longer than any statement may take. That
 *   connection alone is ended.
 *
 * It does not say what became of the statements: one that was sent may have been carried out.
 */
export type AnswerWatch<Waiting extends object> = {
  /** Something was sent; call the result once the wait is over: true if PostgreSQL answered, even with an error. */
  sent: (connection: Waiting) => (isAnswered: boolean) => void;
  /** From now on this connection may owe an answer for so long; null is the usual time. */
  allow: (connection: Waiting, answerMaxMs: number | null) => void;
  isSilent: () => boolean;
};

/**
 * - `refuses`: no server is there, which connections that wait will mostly notice by themselves.
 * - `unclear`: this process could not ask: it has no file descriptors left, or no address for the server's name.
 */
export type ProbeResult = 'answers' | 'refuses' | 'silent' | 'unclear';

export type AnswerWatchOptions<Waiting extends object> = {
  clock: Clock;
  /** Asks PostgreSQL on a connection that owes no answer, and takes no longer than a few seconds over it. */
  probe: () => Promise<ProbeResult>;
  /** Ends the connection; callers that wait on it get its error. */
  cut: (connection: Waiting) => void;
  /** How long an answer may take on a connection of which nothing else was said. */
  answerMaxMs: number;
  /** Called when PostgreSQL falls silent, and when it answers again. */
  onChange: (isSilent: boolean) => void;
};

/** Shorter would ask PostgreSQL about every slow statement; longer keeps callers waiting. */
const overdueMs = 4_000;
/** How often connections that wait are looked at, and how soon the end of a silence is noticed. */
const lookEveryMs = 1_000;
/**
 * A refusal comes at once. An answer that is not older than this still disproves it: a pooler that is being replaced
 * refuses new connections and serves those that it has. Longer would leave callers waiting for a server that is gone.
 */
const recentMs = 3_000;

export function createAnswerWatch<Waiting extends object>(
  options: AnswerWatchOptions<Waiting>,
): AnswerWatch<Waiting> {
  const { clock, probe, cut, answerMaxMs, onChange } = options;
  /** `sinceMs` is when its present wait began: with the first of what was sent, or with the last answer. */
  const waiting = new Map<Waiting, { unanswered: number; sinceMs: number }>();
  const allowances = new WeakMap<Waiting, number>();
  let isSilent = false;
  let isLooking = false;
  let isProbing = false;
  let probedAtMs = Number.NEGATIVE_INFINITY;
  let answeredAtMs = Number.NEGATIVE_INFINITY;

  const ask = async () => {
    isProbing = true;
    const askedAtMs = clock.monotonicMs();
    const result = await probe().catch((): ProbeResult => 'unclear');
    isProbing = false;
    probedAtMs = clock.monotonicMs();
    const wasSilent = isSilent;
    const isOtherAnswered = answeredAtMs >= Math.min(askedAtMs, probedAtMs - recentMs);
    isSilent = result === 'silent' && !isOtherAnswered;
    if (isSilent !== wasSilent) onChange(isSilent);
    if (result === 'answers' || result === 'unclear' || isOtherAnswered) return;
    for (const [connection, { sinceMs }] of waiting) {
      if (sinceMs <= askedAtMs) cut(connection);
    }
  };

  const look = () => {
    const nowMs = clock.monotonicMs();
    let isOverdue = false;
    for (const [connection, { sinceMs }] of waiting) {
      const waitedMs = nowMs - sinceMs;
      if (waitedMs >= (allowances.get(connection) ?? answerMaxMs)) cut(connection);
      else if (waitedMs >= overdueMs) isOverdue = true;
    }
    const isDue = isSilent || (isOverdue && nowMs - probedAtMs >= overdueMs);
    if (isDue && !isProbing) void ask();
    isLooking = false;
    lookAgain();
  };

  const lookAgain = () => {
    if (isLooking || (waiting.size === 0 && !isSilent)) return;
    isLooking = true;
    clock.after(lookEveryMs, look);
  };

  return {
    sent: (connection) => {
      const wait = waiting.get(connection) ?? { unanswered: 0, sinceMs: clock.monotonicMs() };
      wait.unanswered += 1;
      waiting.set(connection, wait);
      lookAgain();
      return (isAnswered) => {
        wait.unanswered -= 1;
        wait.sinceMs = clock.monotonicMs();
        if (isAnswered) answeredAtMs = wait.sinceMs;
        if (wait.unanswered === 0) waiting.delete(connection);
      };
    },
    allow: (connection, allowedMs) => {
      if (allowedMs === null) allowances.delete(connection);
      else allowances.set(connection, allowedMs);
    },
    isSilent: () => isSilent,
  };
}
