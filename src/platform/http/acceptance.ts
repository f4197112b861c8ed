import { createBatcher } from '../batcher.ts';
import { type Clock, sleep } from '../clock.ts';
import { DatabaseUnavailableError, isDeadlock } from '../postgres/database.ts';
import { overloaded, type PublicError } from './errors.ts';
import { keyConflict, type ScopedKey, type StoredResponse } from './idempotency.ts';
import type { RouteResponse } from './route.ts';

/**
 * Storing what requests bring before they are answered. Requests that arrive while a transaction is under way share the
 * next one, so that one flush of the disk serves many. Each has an outcome of its own, and a refused request stores
 * nothing. If a shared transaction fails because of one request, each is tried alone, and again where it and another
 * transaction waited for each other. A large request has a transaction
 * of its own, so that no small one waits for it. If the connection breaks during a commit, it is unknown whether the
 * commit took place: what was to be stored is looked up then, and only requests of which it is missing are answered with
 * 503.
 */
export type Acceptance<Candidate> = {
  /**
   * Has a request stored, which `prepare` makes ready while it already counts as under way. Rejects with a
   * DatabaseUnavailableError if it cannot be found out whether it was stored.
   */
  accept: (
    idempotencyKey: ScopedKey | null,
    prepare: () => Candidate | Promise<Candidate>,
  ) => Promise<AcceptOutcome>;
};

export type AcceptOutcome =
  { kind: 'response'; response: StoredResponse; isReplay: boolean } | { kind: 'refused'; error: PublicError };

/** Throws the error of a request that was refused. */
export function toRouteResponse(outcome: AcceptOutcome): RouteResponse {
  if (outcome.kind === 'refused') throw outcome.error;
  return { kind: 'stored', response: outcome.response, isReplay: outcome.isReplay };
}

/** Within a batch, a failure concerns one request only. */
type BatchOutcome = AcceptOutcome | { kind: 'failed'; cause: unknown };

export type AcceptanceTools<Candidate> = {
  clock: Clock;
  /** Stores requests in one transaction, and returns the outcome of each in their order. */
  store: (candidates: readonly Candidate[]) => Promise<AcceptOutcome[]>;
  /** Looks requests up whose transaction may have been committed: the responses of those that are stored. */
  findStored: (candidates: readonly Candidate[]) => Promise<ReadonlyMap<Candidate, StoredResponse>>;
  isLarge: (candidate: Candidate) => boolean;
  /** What a request is told that finds too many under way. */
  tooManyMessage: string;
};

export type AcceptLimits = {
  /** Requests that share a transaction. More would lengthen the wait of the first; fewer would share less. */
  batchItemsMax: number;
  /** Transactions at once for small requests, and as many again for large ones. */
  flushersMax: number;
  /** Requests under way. More would take more memory, and be answered later. */
  waitingMax: number;
};

/**
 * Two transactions: one is being committed while the other collects its rows. Measured over 64 connections: a quarter
 * more requests with a disk that takes 3 ms for a commit, and a fifth fewer with one that takes a twentieth of that.
 */
const defaultLimits: AcceptLimits = { batchItemsMax: 200, flushersMax: 2, waitingMax: 2_000 };

export function createAcceptance<Candidate>(
  tools: AcceptanceTools<Candidate>,
  limits: Partial<AcceptLimits> = {},
): Acceptance<Candidate> {
  const { batchItemsMax, flushersMax, waitingMax } = { ...defaultLimits, ...limits };
  const keysUnderWay = new Set<string>();
  /** Includes requests that are still being prepared: they take memory too. */
  let underWay = 0;
  const openBatcher = (itemsMax: number) =>
    createBatcher<Candidate, BatchOutcome>({
      itemsMax,
      concurrency: flushersMax,
      run: (candidates) => storeTogether(tools, candidates),
    });
  const shared = openBatcher(batchItemsMax);
  const alone = openBatcher(1);

  return {
    accept: async (idempotencyKey, prepare) => {
      if (underWay >= waitingMax) return { kind: 'refused', error: overloaded(tools.tooManyMessage) };
      // The lock on a key belongs to a transaction, so it does not exclude two requests within one transaction.
      const keyText = idempotencyKey === null ? null : textOf(idempotencyKey);
      if (keyText !== null) {
        if (keysUnderWay.has(keyText)) return { kind: 'refused', error: keyConflict('concurrent') };
        keysUnderWay.add(keyText);
      }
      underWay += 1;
      try {
        const candidate = await prepare();
        const outcome = await (tools.isLarge(candidate) ? alone : shared).add(candidate);
        if (outcome.kind === 'failed') throw outcome.cause;
        return outcome;
      } finally {
        underWay -= 1;
        if (keyText !== null) keysUnderWay.delete(keyText);
      }
    },
  };
}

function textOf({ organizationId, endpoint, key }: ScopedKey): string {
  return `${organizationId} ${endpoint} ${key}`;
}

/** Each lets the other transaction through, so that a request that meets one of them rarely meets a second. */
const deadlocksMax = 3;

async function storeTogether<Candidate>(
  tools: AcceptanceTools<Candidate>,
  candidates: readonly Candidate[],
  deadlocks = 0,
): Promise<BatchOutcome[]> {
  try {
    return await tools.store(candidates);
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) {
      return cause.mayBeCarriedOut
        ? settleUnknown(tools, candidates, cause)
        : candidates.map(() => ({ kind: 'failed', cause }));
    }
    if (candidates.length === 1) {
      const isWorthAnother = isDeadlock(cause) && deadlocks < deadlocksMax;
      return isWorthAnother ? storeTogether(tools, candidates, deadlocks + 1) : [{ kind: 'failed', cause }];
    }
    const outcomes: BatchOutcome[] = [];
    for (const candidate of candidates) outcomes.push(...(await storeTogether(tools, [candidate])));
    return outcomes;
  }
}

/** The connection broke and the commit may have taken place: requests that are stored are accepted, the rest fail. */
async function settleUnknown<Candidate>(
  tools: AcceptanceTools<Candidate>,
  candidates: readonly Candidate[],
  cause: DatabaseUnavailableError,
): Promise<BatchOutcome[]> {
  const stored = await findWhenBack(tools, candidates);
  return candidates.map((candidate) => {
    const response = stored.get(candidate);
    return response === undefined
      ? { kind: 'failed', cause }
      : { kind: 'response', response, isReplay: false };
  });
}

/**
 * A restarting PostgreSQL is back within a second or two, and no client should wait longer than this. If PostgreSQL
 * does not answer, each look-up takes three seconds.
 */
const lookUpMaxMs = 5_000;
const lookUpPauseMs = 500;

async function findWhenBack<Candidate>(
  { clock, findStored }: AcceptanceTools<Candidate>,
  candidates: readonly Candidate[],
): Promise<ReadonlyMap<Candidate, StoredResponse>> {
  const giveUpAtMs = clock.monotonicMs() + lookUpMaxMs;
  for (;;) {
    try {
      return await findStored(candidates);
    } catch (cause) {
      if (!(cause instanceof DatabaseUnavailableError)) throw cause;
      if (clock.monotonicMs() + lookUpPauseMs >= giveUpAtMs) return new Map();
      await sleep(clock, lookUpPauseMs);
    }
  }
}
