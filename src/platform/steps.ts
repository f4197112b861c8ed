import { setImmediate } from 'node:timers/promises';

/**
 * Work that grows with what a client sent, cut into steps: it yields where others may take their turn. A step is a few
 * milliseconds of work, such as `stepBytesMax` of it.
 */
export type Steps<Result> = Generator<undefined, Result, undefined>;

/** More would hold up everybody else for longer; fewer would cost turns of the event loop. */
export const stepBytesMax = 1_048_576;

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
