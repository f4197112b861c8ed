/** Rounds that somebody else was first to write, or that somebody wants no more. */
import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { insertEndpoint } from '../../test/support/webhook-endpoint.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import { type Endpoint, findEndpoint, type Progress, saveProgress } from './delivery-store.ts';
import { resetCursor } from './store.ts';

const newId = createIds(systemClock);
let database: Database;
let key: { organizationId: string; id: string };

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  key = { organizationId: newId(), id: newId() };
  await insertEndpoint(database, key);
});

const progressOf = ({ rounds }: Endpoint, more: Partial<Progress>): Progress => ({
  rounds,
  nextPosition: 1,
  failures: 0,
  failingSince: null,
  nextTryAt: null,
  lastSuccessAt: null,
  failure: null,
  ...more,
});

const read = async () => (await findEndpoint(database, key))!;

test('of two that have read the same round, the first to write it is the only one', async () => {
  const both = await read();
  expect(await saveProgress(database, key, progressOf(both, { nextPosition: 60 }))).not.toBeNull();
  expect(await saveProgress(database, key, progressOf(both, { nextPosition: 7, failures: 1 }))).toBeNull();
  expect(await read()).toMatchObject({ next_position: 60, failures: 0 });
  expect(await saveProgress(database, key, progressOf(await read(), { nextPosition: 61 }))).not.toBeNull();
});

test('a probe that fails while its endpoint is enabled does not make it a failure again', async () => {
  const failingSince = new Date();
  await saveProgress(database, key, progressOf(await read(), { failures: 5, failingSince }));
  const probe = await read();
  await resetCursor(database, key, { fromNow: false });
  expect(await saveProgress(database, key, progressOf(probe, { failures: 6, failingSince }))).toBeNull();
  expect(await read()).toMatchObject({ failures: 0, failing_since: null });
});

test('a round that is under way when an endpoint skips to now does not take it back', async () => {
  const before = await read();
  await resetCursor(database, key, { fromNow: true });
  expect(await saveProgress(database, key, progressOf(before, { nextPosition: 1 }))).toBeNull();
});

test('an endpoint that takes everything is enabled without an effect on what is under way', async () => {
  const before = await read();
  await resetCursor(database, key, { fromNow: false });
  expect(await saveProgress(database, key, progressOf(before, { nextPosition: 3 }))).not.toBeNull();
});
