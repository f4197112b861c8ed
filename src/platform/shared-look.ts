import { type Clock, within } from './clock.ts';

export type SharedLookOptions = {
  /** How long an answer is given again. If shorter, more is read; if longer, the answer is older. */
  keptMs: number;
  /** How long an answer is waited for. */
  lookMaxMs: number;
};

/**
 * What many ask for is looked up once: those who ask meanwhile share the look, and for some time its answer is given
 * again. Null if there is no answer in time, or the look fails. A look that does not end is never followed by a second one.
 */
export function createSharedLook<Answer>(
  clock: Clock,
  { keptMs, lookMaxMs }: SharedLookOptions,
  look: () => Promise<Answer>,
): () => Promise<Answer | null> {
  let looking: Promise<Answer | null> | null = null;
  let last: { answer: Answer | null; atMs: number } | null = null;
  return () => {
    if (last !== null && clock.monotonicMs() - last.atMs < keptMs) return Promise.resolve(last.answer);
    looking ??= look()
      .catch(() => null)
      .then((answer) => {
        last = { answer, atMs: clock.monotonicMs() };
        looking = null;
        return answer;
      });
    return within(clock, lookMaxMs, looking, null);
  };
}
