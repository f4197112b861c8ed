import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

/**
 * How fast an organization may read while others want something too. To read, print and send half a megabyte of an answer
 * takes ten to twenty milliseconds of processors that all share, so that thirty such answers in a second, within any limit
 * of requests, would slow down everybody. Answers beyond a rate of bytes are late and not refused, in the order in which
 * they were asked for. What a process does for one organization alone has no such limit.
 */
export type AnswerPace = {
  /** To be called for every request: whoever asks wants something. */
  note: (holder: string) => void;
  /** For what reads; null if it would have to wait for longer than `waitMaxMs`, and is refused. */
  begin: (holder: string) => PacedAnswer | null;
};

/** How long it has to wait first; and to be told how large it was, or 0 if there was none. */
export type PacedAnswer = { waitMs: number; end: (bytes: number) => void };

export type PaceLimits = {
  /** Less delays those who read much; more leaves less for others. Pages of lists without large values have some 50 kB. */
  bytesPerSecond: number;
  /** What may be read at once, by somebody who has read less before. */
  burstBytes: number;
  waitMaxMs: number;
};

/** Whoever has asked for nothing for so long does not want anything now. */
const activeMs = 10_000;

/** Of more organizations, those known longest begin anew. */
const holdersMax = 10_000;

type Account = {
  /** Bytes that may be read at once; below nothing, how much was read too fast. */
  balance: number;
  atMs: number;
  /** What the next answer is taken for, until it is known. */
  expectedBytes: number;
};

const unpaced: PacedAnswer = { waitMs: 0, end: () => undefined };

export function createAnswerPace(
  clock: Clock,
  { bytesPerSecond, burstBytes, waitMaxMs }: PaceLimits,
): AnswerPace {
  const accounts = new LRUCache<string, Account>({ max: holdersMax });
  let latest = { holder: '', atMs: -Infinity };
  let latestOther = latest;

  const hasOthers = (holder: string) => {
    const other = latest.holder === holder ? latestOther : latest;
    return clock.monotonicMs() - other.atMs < activeMs;
  };
  const openAccount = (holder: string): Account => {
    const atMs = clock.monotonicMs();
    const account = accounts.get(holder) ?? { balance: burstBytes, atMs, expectedBytes: 0 };
    const earned = ((atMs - account.atMs) * bytesPerSecond) / 1_000;
    account.balance = Math.min(account.balance + earned, burstBytes);
    account.atMs = atMs;
    accounts.set(holder, account);
    return account;
  };

  return {
    note: (holder) => {
      if (latest.holder !== holder) latestOther = latest;
      latest = { holder, atMs: clock.monotonicMs() };
    },
    begin: (holder) => {
      if (!hasOthers(holder)) return unpaced;
      const account = openAccount(holder);
      const waitMs = (Math.max(-account.balance, 0) / bytesPerSecond) * 1_000;
      if (waitMs > waitMaxMs) return null;
      const { expectedBytes } = account;
      account.balance -= expectedBytes;
      return {
        waitMs,
        end: (bytes) => {
          account.balance += expectedBytes - bytes;
          account.expectedBytes = (account.expectedBytes + bytes) / 2;
        },
      };
    },
  };
}
