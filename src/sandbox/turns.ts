import { overloaded } from '../platform/http/errors.ts';

/** Runs works one at a time, in the order in which they came. */
export type Turns = <Result>(work: () => Promise<Result>) => Promise<Result>;

/** Throws a PublicError (503) when as many works are waiting already. */
export function createTurns(waitingMax: number): Turns {
  let last: Promise<unknown> = Promise.resolve();
  let waiting = 0;
  return async (work) => {
    if (waiting >= waitingMax) throw overloaded('Too many requests for the sandbox are waiting.');
    waiting += 1;
    const begun = last.then(() => {
      waiting -= 1;
      return work();
    });
    last = begun.catch(() => undefined);
    return begun;
  };
}
