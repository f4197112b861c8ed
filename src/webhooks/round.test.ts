/** Rounds, in which some events are told to an endpoint that answers as a test says. */
import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import type { WebhookAttempt } from './attempt.ts';
import { type Round, type RoundItem, tellRound } from './round.ts';

const items: RoundItem[] = Array.from({ length: 60 }, (_, place) => ({
  event: {
    id: `event ${place + 1}`,
    position: place + 1,
    type: 'email.delivered',
    at: new Date(0),
    subjectId: 'message',
    ordinal: 0,
    facts: null,
  },
  body: Buffer.from('{}'),
  attempts: null,
}));

const delivered: WebhookAttempt = { kind: 'delivered', status: 200, ms: 1, answer: '' };
const failed = (status: number | null, kind: 'failed' | 'gone' = 'failed'): WebhookAttempt => ({
  kind,
  status,
  ms: 1,
  answer: '',
  message: 'no',
  retryAfterMs: null,
});

/** A round whose attempts are answered by the test, in whatever order. */
function begin(more: Partial<Round> = {}) {
  const clock = createManualClock();
  const stopping = new AbortController();
  const begun: number[] = [];
  const open = new Map<number, (attempt: WebhookAttempt) => void>();
  const outcome = tellRound(clock, {
    items,
    concurrency: 5,
    isOrdered: false,
    state: { failures: 0, lastSuccessAtMs: null },
    signal: stopping.signal,
    tell: ({ event: { position } }) =>
      new Promise((resolve) => {
        begun.push(position);
        open.set(position, resolve);
      }),
    ...more,
  });
  return {
    clock,
    stopping,
    begun,
    outcome,
    underWay: () => [...open.keys()],
    answer: async (position: number, attempt: WebhookAttempt) => {
      open.get(position)!(attempt);
      open.delete(position);
      await setImmediate();
    },
    /** Answers whatever is under way until nothing is. */
    answerAll: async (attempt: WebhookAttempt) => {
      while (open.size > 0) {
        const [[position, resolve]] = [...open] as [[number, (given: WebhookAttempt) => void]];
        open.delete(position);
        resolve(attempt);
        await setImmediate();
      }
    },
  };
}

const positions = ({ concluded }: { concluded: { item: RoundItem }[] }) =>
  concluded.map(({ item }) => item.event.position);

test('events are begun in their order, so many at once, and each is told once', async () => {
  const { begun, outcome, underWay, answer, answerAll } = begin();
  expect(begun).toEqual([1, 2, 3, 4, 5]);
  await answer(3, delivered);
  expect(underWay()).toEqual([1, 2, 4, 5, 6]);
  await answerAll(delivered);
  expect(begun).toEqual(items.map(({ event }) => event.position));
  expect(positions(await outcome).length).toBe(items.length);
});

test('after ten seconds nothing more is begun, and what is under way still counts', async () => {
  const { clock, begun, outcome, answer, answerAll } = begin();
  clock.advance(9_999);
  await answer(1, delivered);
  expect(begun.length).toBe(6);
  clock.advance(1);
  await answerAll(delivered);
  expect(begun.length).toBe(6);
  expect(positions(await outcome).sort()).toEqual([1, 2, 3, 4, 5, 6]);
});

test('an endpoint that takes nothing is failing after twenty failures, unless it took something of late', async () => {
  const silent = begin();
  await silent.answerAll(failed(500));
  expect(await silent.outcome).toMatchObject({ isFailing: true, failures: 24 });
  const lastSuccessAtMs = createManualClock().nowMs() - 5 * 60_000;
  const awake = begin({ state: { failures: 0, lastSuccessAtMs } });
  await awake.answerAll(failed(500));
  expect(await awake.outcome).toMatchObject({ isFailing: false, failures: items.length });
});

test('failures count from the last success on, over rounds', async () => {
  const { outcome, answer, answerAll } = begin({ state: { failures: 19, lastSuccessAtMs: null } });
  await answer(2, delivered);
  await answer(1, failed(500));
  await answerAll(delivered);
  expect(await outcome).toMatchObject({ isFailing: false, failures: 0 });
  const again = begin({ state: { failures: 19, lastSuccessAtMs: null } });
  await again.answerAll(failed(500));
  expect(await again.outcome).toMatchObject({ isFailing: true, failures: 24 });
});

test('one that is told in order is failing at the first failure, and is told of nothing after it', async () => {
  const { begun, outcome, answer } = begin({ concurrency: 1, isOrdered: true });
  await answer(1, delivered);
  await answer(2, failed(503));
  expect(begun).toEqual([1, 2]);
  expect(await outcome).toMatchObject({ isFailing: true, failures: 1 });
});

test('one that says it is gone is told of nothing more', async () => {
  const { begun, outcome, answer, answerAll } = begin();
  await answer(1, failed(410, 'gone'));
  await answerAll(delivered);
  expect(begun.length).toBe(5);
  expect(await outcome).toMatchObject({ isGone: true });
});

test('one that is overloaded gets half as many at once for the rest of the round, one at least', async () => {
  const { underWay, answer, answerAll, outcome } = begin({ concurrency: 8 });
  await answer(8, failed(429));
  for (const position of [5, 6, 7]) await answer(position, delivered);
  expect(underWay().length).toBe(4);
  await answer(4, failed(502));
  await answer(3, delivered);
  await answer(2, failed(504));
  await answerAll(failed(429));
  expect(underWay()).toEqual([]);
  expect((await outcome).concluded.length).toBeGreaterThan(9);
});

test('a worker that stops begins nothing more, and does not conclude what it gave up', async () => {
  const { stopping, begun, outcome, answer } = begin();
  stopping.abort();
  await answer(1, delivered);
  for (const position of [2, 3, 4, 5]) await answer(position, { kind: 'put_off' });
  expect(begun.length).toBe(5);
  expect(positions(await outcome)).toEqual([1]);
});
