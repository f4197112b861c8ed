import { describe, expect, test } from 'vitest';
import { anEmailJob } from '../../../test/support/jobs.ts';
import type { Job } from '../channel.ts';
import {
  type LedgerState,
  mayAnnounce,
  nextAnnouncements,
  nextWrite,
  nextWriteInMs,
  openLedgerState,
  takeOut,
  type Waiting,
} from './ledger-state.ts';
import { failJob } from './settlement.ts';
import type { Settled } from './settlement-writer.ts';

const aJob = (ordinal: number) => anEmailJob({ ordinal });

const jobsOf = (count: number, first = 0) => Array.from({ length: count }, (_, index) => aJob(first + index));
const waiting = <Item>(item: Item): Waiting<Item> => ({
  item,
  resolve: () => undefined,
  reject: () => undefined,
});
const outcomeOf = (job: Job): Waiting<Settled> =>
  waiting({ settlement: failJob(job, 'other', 'It cannot be built.'), message: null });
const stateOf = (more: Partial<LedgerState>): LedgerState => ({ ...openLedgerState(), ...more });
const ordinalsOf = (jobs: readonly Waiting<Job>[]) => jobs.map(({ item }) => item.ordinal);
const ordinalsOfOutcomes = (outcomes: readonly Waiting<Settled>[]) =>
  outcomes.map(({ item }) => item.settlement.job.ordinal);

const together = { announcedMax: 8, isAnnouncedApart: false };
const apart = { announcedMax: 8, isAnnouncedApart: true };

describe('where announcements are in the transactions of outcomes', () => {
  test('nothing is written while there is nothing to write, nor while there is no room for an announcement', () => {
    expect(nextWriteInMs(openLedgerState(), together)).toBeNull();
    const full = { announcements: [waiting(aJob(8))], announced: new Set(jobsOf(8)), waitedFor: 1 };
    expect(nextWriteInMs(stateOf(full), together)).toBeNull();
    full.announced.delete([...full.announced][0]!);
    expect(nextWriteInMs(stateOf(full), together)).toBe(0);
  });

  test('what no connection waits for is written a little later, beside what is under way', () => {
    const announced = new Set(jobsOf(4));
    const announcements = jobsOf(3, 4).map(waiting);
    const first = outcomeOf([...announced][0]!);
    expect(nextWriteInMs(stateOf({ announced, announcements }), together)).toBe(5);
    expect(nextWriteInMs(stateOf({ announced, outcomes: [first] }), together)).toBe(5);
    expect(nextWriteInMs(stateOf({ announced, taken: [first] }), together)).toBe(5);
  });

  test('it is written at once for a connection that waits, with half of the room to write, or with nothing under way', () => {
    const announced = new Set(jobsOf(4));
    const [first] = announced;
    const outcomes = [outcomeOf(first!)];
    expect(nextWriteInMs(stateOf({ announced, outcomes, waitedFor: 1 }), together)).toBe(0);
    const [two, three] = [2, 3].map((count) => jobsOf(count, 4).map(waiting));
    expect(nextWriteInMs(stateOf({ announced, outcomes, announcements: two! }), together)).toBe(5);
    expect(nextWriteInMs(stateOf({ announced, outcomes, announcements: three! }), together)).toBe(0);
    expect(nextWriteInMs(stateOf({ announced: new Set([first!]), outcomes }), together)).toBe(0);
    expect(nextWriteInMs(stateOf({ outcomes }), together)).toBe(0);
  });

  test('as many are announced as there is room for once the outcomes of the same transaction are written', () => {
    const announced = new Set(jobsOf(6));
    const [first, second, third] = announced;
    const state = stateOf({ announced, announcements: jobsOf(9, 6).map(waiting) });
    expect(ordinalsOf(nextWrite(state, together).announcements)).toEqual([6, 7]);
    // One that was never announced leaves no room.
    state.taken = [outcomeOf(first!), outcomeOf(aJob(99))];
    state.outcomes = [outcomeOf(second!), outcomeOf(third!)];
    const write = nextWrite(state, together);
    expect(ordinalsOf(write.announcements)).toEqual([6, 7, 8]);
    expect(ordinalsOfOutcomes(write.taken)).toEqual([0, 99]);
    expect(ordinalsOfOutcomes(write.outcomes)).toEqual([1, 2]);
    state.taken = [];
    expect(ordinalsOf(nextWrite(state, together).announcements)).toEqual([6, 7, 8, 9]);
  });
});

describe('where announcements have transactions of their own', () => {
  test('outcomes wait until they are 64, and for no announcement', () => {
    const outcomes = jobsOf(63).map(outcomeOf);
    expect(nextWriteInMs(stateOf({ announcements: [waiting(aJob(1))], waitedFor: 1 }), apart)).toBeNull();
    expect(nextWriteInMs(stateOf({ outcomes, waitedFor: 1 }), apart)).toBe(20);
    expect(nextWriteInMs(stateOf({ outcomes, taken: [outcomeOf(aJob(64))] }), apart)).toBe(0);
  });

  test('no announcement is in the transaction of an outcome', () => {
    const announcements = jobsOf(2).map(waiting);
    const state = stateOf({ announcements, outcomes: [outcomeOf(aJob(3))] });
    expect(nextWrite(state, apart).announcements).toEqual([]);
    expect(ordinalsOf(nextAnnouncements(state, apart))).toEqual([0, 1]);
  });

  test('no more are announced than may be uncertain', () => {
    const state = stateOf({ announced: new Set(jobsOf(7)), announcements: jobsOf(3, 7).map(waiting) });
    expect(ordinalsOf(nextAnnouncements(state, apart))).toEqual([7]);
    expect(mayAnnounce(state, apart)).toBe(true);
    state.announced.add(aJob(10));
    expect(nextAnnouncements(state, apart)).toEqual([]);
    expect(mayAnnounce(state, apart)).toBe(false);
    state.announced.add(aJob(11));
    expect(nextAnnouncements(state, apart)).toEqual([]);
  });
});

test('of what is more than a transaction takes, the oldest come first, and the rest stays', () => {
  const state = stateOf({ taken: jobsOf(501).map(outcomeOf), outcomes: jobsOf(502).map(outcomeOf) });
  const write = nextWrite(state, together);
  expect([write.taken.length, write.outcomes.length]).toEqual([500, 500]);
  expect([state.taken.length, state.outcomes.length]).toEqual([501, 502]);
  takeOut(state, write);
  expect(ordinalsOfOutcomes(state.taken)).toEqual([500]);
  expect(ordinalsOfOutcomes(state.outcomes)).toEqual([500, 501]);
});
