import { setImmediate } from 'node:timers/promises';

/**
 * Work that grows with what a client sent, cut into steps: it yields where others may take their turn. A step is about
 * a millisecond of work, such as `stepBytesMax` of it.
 */
export type Steps<Result> = Generator<undefined, Result, undefined>;

/**
 * About a millisecond of work. A small request takes several turns of the event loop, and waits for a step in each:
 * beside steps of a megabyte half of them took more than 43 ms. Smaller steps would cost more turns.
 */
export const stepBytesMax = 262_144;

export function runAtOnce<Result>(steps: Steps<Result>): Result {
  // Ends when the work does.
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** With a turn of the event loop between the steps. */
export async function runInSteps<Result>(steps: Steps<Result>): Promise<Result> {
  // Ends when the work does.
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
    await setImmediate();
  }
}

/** One buffer with all of these bytes, in their order. */
export function* concatInSteps(parts: readonly Uint8Array[]): Steps<Buffer> {
  const whole = Buffer.allocUnsafe(parts.reduce((sum, { length }) => sum + length, 0));
  let copied = 0;
  let inStep = 0;
  for (const part of parts) {
    for (let from = 0; from < part.length; from += stepBytesMax) {
      if (inStep >= stepBytesMax) {
        yield;
        inStep = 0;
      }
      const piece = part.subarray(from, from + stepBytesMax);
      whole.set(piece, copied);
      copied += piece.length;
      inStep += piece.length;
    }
  }
  return whole;
}
