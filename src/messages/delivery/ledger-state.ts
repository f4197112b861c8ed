import type { Job } from '../channel.ts';
import type { Settled } from './settlement-writer.ts';

/**
 * What a ledger has to write. A job **waits** to be announced, is **announced**, and has **ended** once there is an
 * outcome, which it may have before it is announced. Nothing here writes anything.
 */
export type LedgerState = {
  /** Hand-offs that wait to be announced, in their order. */
  announcements: Waiting<Job>[];
  /** Outcomes of the usual kind (taken.ts), in their order. */
  taken: Waiting<Settled>[];
  /** The other outcomes, in their order. */
  outcomes: Waiting<Settled>[];
  /** Hand-offs that are announced, and whose outcome is not written. */
  announced: Set<Job>;
  /** Hand-offs whose connection waits for the announcement. */
  waitedFor: number;
};

/** Who is told what became of the item: true if it was written. */
export type Waiting<Item> = {
  item: Item;
  resolve: (isWritten: boolean) => void;
  reject: (cause: unknown) => void;
};

export type LedgerRules = {
  /** Hand-offs that may be announced and not settled at a time. */
  announcedMax: number;
  /**
   * Whether announcements have transactions of their own. With outcomes in theirs, a hand-off waits longer, and for one that
   * is not announced ahead its connection waits as well.
   */
  isAnnouncedApart: boolean;
};

export function openLedgerState(): LedgerState {
  return { announcements: [], taken: [], outcomes: [], announced: new Set(), waitedFor: 0 };
}

/** With more, one transaction takes longer than what follows it can wait. */
const itemsMax = 500;

/**
 * Outcomes that no announcement waits for are written as soon as there are so many, or after so long: what is written
 * together costs less each. With a longer wait or larger batches, more outcomes are lost when a worker dies.
 */
const outcomesEnough = 64;
const outcomesWaitMs = 20;

/**
 * The same where announcements are in the transactions of outcomes: a connection that has a hand-off under way can wait
 * for the announcement of its next one. Signed mail, which leaves more slowly, had twice as many transactions without.
 */
const aheadWaitMs = 5;

/** In how many milliseconds something has to be written, 0 for at once; null if there is nothing to write. */
export function nextWriteInMs(state: LedgerState, rules: LedgerRules): number | null {
  const { announcements, announced, waitedFor } = state;
  const outcomes = state.taken.length + state.outcomes.length;
  if (rules.isAnnouncedApart) {
    if (outcomes === 0) return null;
    return outcomes >= outcomesEnough ? 0 : outcomesWaitMs;
  }
  if (outcomes === 0 && !mayAnnounce(state, rules)) return null;
  const isNothingUnderWay = outcomes >= announced.size;
  const isEnough = outcomes + announcements.length >= rules.announcedMax / 2;
  return waitedFor > 0 || isNothingUnderWay || isEnough ? 0 : aheadWaitMs;
}

/** What is written in one transaction for each kind of outcome, of which the first has the announcements too. */
export type Write = {
  announcements: readonly Waiting<Job>[];
  taken: readonly Waiting<Settled>[];
  outcomes: readonly Waiting<Settled>[];
};

export function nextWrite(state: LedgerState, rules: LedgerRules): Write {
  const taken = state.taken.slice(0, itemsMax);
  const outcomes = state.outcomes.slice(0, itemsMax);
  const first = taken.length > 0 ? taken : outcomes;
  const ends = first.filter(({ item }) => state.announced.has(item.settlement.job)).length;
  const announcements = rules.isAnnouncedApart ? [] : nextAnnouncements(state, rules, ends);
  return { announcements, taken, outcomes };
}

export function mayAnnounce(
  { announcements, announced }: LedgerState,
  { announcedMax }: LedgerRules,
): boolean {
  return announcements.length > 0 && announced.size < announcedMax;
}

/** Those that there is room for, when so many of the announced ones end. */
export function nextAnnouncements(
  { announcements, announced }: LedgerState,
  { announcedMax }: LedgerRules,
  ends = 0,
): Waiting<Job>[] {
  return announcements.slice(0, Math.max(0, announcedMax - announced.size + ends));
}

/** Takes out what is being written. */
export function takeOut(state: LedgerState, { announcements, taken, outcomes }: Write): void {
  state.announcements.splice(0, announcements.length);
  state.taken.splice(0, taken.length);
  state.outcomes.splice(0, outcomes.length);
}
