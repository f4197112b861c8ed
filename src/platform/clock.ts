/** Where time comes from, so that tests can move it. */
export type Clock = {
  /** Wall-clock milliseconds since 1970: for what is stored or shown. */
  nowMs: () => number;
  /** Monotonic milliseconds: for time-outs and durations. */
  monotonicMs: () => number;
  /** Runs `callback` once after `delayMs`; the returned function cancels it. Never keeps the process alive. */
  after: (delayMs: number, callback: () => void) => () => void;
};

export const systemClock: Clock = {
  // eslint-disable-next-line no-restricted-globals -- the one place where wall-clock time enters
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  after: (delayMs, callback) => {
    const timer = setTimeout(callback, delayMs);
    timer.unref();
    return () => {
      clearTimeout(timer);
    };
  },
};

/** The clock's wall time as a Date, for parameters of SQL statements. */
export function now(clock: Clock): Date {
  return dateOf(clock.nowMs());
}

export function dateOf(epochMs: number): Date {
  // eslint-disable-next-line no-restricted-globals -- a value, not the present time
  return new Date(epochMs);
}

/**
 * Milliseconds since 1970 of an RFC 3339 time with a mandatory offset (`2026-11-21T10:00:00.000Z`), or null if the
 * text is none or names a day that does not exist.
 */
export function parseTimestamp(text: string): number | null {
  if (text.length > 35) return null;
  const day = /^(\d{4}-\d{2}-\d{2})T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:\d{2})$/.exec(
    text,
  )?.[1];
  if (day === undefined) return null;
  // eslint-disable-next-line no-restricted-globals -- parses, and does not read the present time
  const [epochMs, midnightMs] = [Date.parse(text), Date.parse(`${day}T00:00:00Z`)];
  if (Number.isNaN(epochMs) || Number.isNaN(midnightMs)) return null;
  return dateOf(midnightMs).toISOString().startsWith(day) ? epochMs : null;
}

/** What `work` resolves to, or `otherwise` if the time is over first. The work itself is not stopped. */
export async function within<Result, Otherwise>(
  clock: Clock,
  maxMs: number,
  work: Promise<Result>,
  otherwise: Otherwise,
): Promise<Result | Otherwise> {
  let cancel: () => void = () => undefined;
  const timeout = new Promise<Otherwise>((resolve) => {
    cancel = clock.after(maxMs, () => {
      resolve(otherwise);
    });
  });
  try {
    return await Promise.race([work, timeout]);
  } finally {
    cancel();
  }
}

/** Resolves after `delayMs`, or rejects with the signal's reason when it aborts first. */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortReason(signal));
      return;
    }
    const cancel = clock.after(delayMs, () => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    });
    const onAbort = () => {
      cancel();
      reject(abortReason(signal));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}

/** The longest that a timer can wait. */
const timerMsMax = 2_147_483_647;

/**
 * Keeps the process alive meanwhile. The clock's timers do not, and a process whose PostgreSQL is gone and cannot be
 * started yet, for want of disk space for instance, has nothing else.
 */
export async function stayUntil<Result>(awaited: Promise<Result>): Promise<Result> {
  const staying = setInterval(() => undefined, timerMsMax);
  try {
    return await awaited;
  } finally {
    clearInterval(staying);
  }
}

function abortReason(signal: AbortSignal | undefined): Error {
  return signal?.reason instanceof Error ? signal.reason : new Error('aborted');
}
