import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization, updateOrganization } from '../accounts/accounts.ts';
import { now } from '../platform/clock.ts';
import type { LoggedKind, LoggedRequest } from '../platform/http/logged-request.ts';
import { createIds, type NewId } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { createPartitions } from '../platform/postgres/partitions.ts';
import { createRequestRecorder, type LoggedCounts, type RequestRecorder } from './recorder.ts';

let database: Database;
useTestDatabase({ isForEachTest: true }, (opened) => {
  ({ database } = opened);
});

let clock: ManualClock;
let newId: NewId;
let recorder: RequestRecorder;
let counts: Required<LoggedCounts>;
/** Thrown instead of writing. */
let failure: Error | null;
let writes: number;
let organizations: string[];

beforeEach(async () => {
  clock = createManualClock();
  newId = createIds(clock);
  failure = null;
  writes = 0;
  await createPartitions(database, now(clock));
  organizations = [];
  for (const name of ['Acme', 'Rival', 'Third'])
    organizations.push((await createOrganization({ database, clock, newId }, name)).id);
  recorder = open();
});
afterEach(() => recorder.stop());

function open(options: { waitingBytesMax?: number } = {}): RequestRecorder {
  counts = { written: 0, left_out: 0, lost: 0 };
  return createRequestRecorder(
    {
      database: {
        ...database,
        asOrganizationsByIndex: (ids, work) => {
          writes += 1;
          if (failure !== null) return Promise.reject(failure);
          return database.asOrganizationsByIndex(ids, work);
        },
      },
      clock,
      log: silentLog,
      onLogged: (logged) => {
        for (const [name, count] of Object.entries(logged)) counts[name as keyof LoggedCounts] += count;
      },
    },
    options,
  );
}

function note(organizationId: string, kind: LoggedKind, times = 1, more: Partial<LoggedRequest> = {}): void {
  for (let noted = 0; noted < times; noted += 1)
    recorder.note({ organizationId, kind }, () => ({
      id: newId(),
      organizationId,
      startedAtMs: clock.nowMs(),
      source: 'api',
      apiKey: { id: newId(), name: 'Key' },
      method: 'POST',
      path: `/v1/${kind}`,
      route: null,
      query: null,
      status: kind === 'refused' || kind === 'turned_away' ? 422 : 200,
      errorName: null,
      message: null,
      remoteAddress: '192.0.2.1',
      userAgent: null,
      durationMs: 1,
      idempotencyKey: null,
      isReplay: false,
      resourceId: null,
      body: null,
      ...more,
    }));
}

type Row = { organization_id: string; id: string; path: string; left_out: number };

const rows = (): Promise<Row[]> =>
  database.rows(
    unpreparedStatement<Row>(
      'select organization_id, id, path, left_out from request_log order by organization_id, id',
    ),
  );

async function totals(): Promise<Record<string, [rows: number, requests: number]>> {
  const found: Record<string, [number, number]> = {};
  for (const { organization_id: id, left_out: leftOut } of await rows()) {
    const [some, all] = found[id] ?? [0, 0];
    found[id] = [some + 1, all + 1 + leftOut];
  }
  return found;
}

const [acme, rival, third] = [0, 1, 2].map((index) => () => organizations[index]!) as [
  () => string,
  () => string,
  () => string,
];

test('more than a batch is written, of several organizations together, and nothing where there was nothing', async () => {
  await recorder.flush();
  expect(writes).toBe(0);
  for (const id of organizations) note(id, 'refused', 200);
  await recorder.flush();
  expect(await totals()).toEqual(Object.fromEntries(organizations.map((id) => [id, [200, 200]])));
  expect(writes).toBe(2);
  expect(counts).toEqual({ written: 600, left_out: 0, lost: 0 });
});

test('what was written makes room for what comes', async () => {
  recorder = open({ waitingBytesMax: 100_000 });
  for (let time = 0; time < 10; time += 1) {
    note(acme(), 'refused', 50);
    await recorder.flush();
  }
  expect(await totals()).toEqual({ [acme()]: [500, 500] });
});

test('a batch is written after a moment by itself', async () => {
  note(acme(), 'change');
  await clock.whenWaiting(1);
  clock.advance(50);
  await recorder.flush();
  expect(await rows()).toHaveLength(1);
});

describe('of a flood', () => {
  test.each<[LoggedKind, number, number]>([
    ['refused', 1_000, 2],
    ['turned_away', 20, 0.2],
    ['change', 100, 1],
    ['look', 20, 0.2],
  ])(
    'of %s a burst is kept, and then so many a second; all others are told of',
    async (kind, burst, perSecond) => {
      const asked = 5_000;
      note(acme(), kind, asked);
      note(rival(), kind, 3);
      clock.advance(5_000);
      await recorder.flush();
      const found = await totals();
      expect(found[rival()]).toEqual([3, 3]);
      expect(found[acme()]).toEqual([burst + 1, asked]);
      expect(counts.left_out).toBe(asked - burst - 1);

      // It goes on evenly.
      for (let second = 0; second < 60; second += 1) {
        note(acme(), kind, 100);
        clock.advance(1_000);
      }
      clock.advance(5_000);
      await recorder.flush();
      const [written, told] = (await totals())[acme()]!;
      expect(told).toBe(asked + 6_000);
      expect(written - burst).toBeLessThanOrEqual(perSecond * 75 + 1);
      expect(written - burst).toBeGreaterThan(perSecond * 30);
    },
  );

  test('with large bodies less is kept', async () => {
    note(acme(), 'refused', 2_000, { body: JSON.stringify('a'.repeat(8_000)) });
    await recorder.flush();
    const [written] = (await totals())[acme()]!;
    expect(written).toBeGreaterThan(100);
    expect(written).toBeLessThan(130);
  });

  test('of one kind nothing is kept out that is of another', async () => {
    note(acme(), 'turned_away', 1_000);
    note(acme(), 'refused', 3);
    note(acme(), 'change', 3);
    await recorder.flush();
    const paths = (await rows()).map(({ path }) => path);
    expect(paths.filter((path) => path === '/v1/refused')).toHaveLength(3);
    expect(paths.filter((path) => path === '/v1/change')).toHaveLength(3);
  });
});

describe('while the database takes nothing', () => {
  const down = () => new DatabaseUnavailableError('down', { mayBeCarriedOut: false });

  test('what waits is written once it does', async () => {
    failure = down();
    note(acme(), 'refused', 3);
    clock.advance(50);
    await clock.whenWaiting(1);
    failure = null;
    clock.advance(1_000);
    await recorder.flush();
    expect(await totals()).toEqual({ [acme()]: [3, 3] });
  });

  test('an organization takes half of the memory, and what there is no room for is told of later', async () => {
    recorder = open({ waitingBytesMax: 100_000 });
    failure = down();
    const body = JSON.stringify({ text: 'a'.repeat(1_000) });
    for (let time = 0; time < 50; time += 1) note(acme(), 'refused', 4, { body });
    note(rival(), 'refused', 5, { body });
    clock.advance(50);
    await clock.whenWaiting(1);
    failure = null;
    clock.advance(1_000);
    await recorder.flush();
    clock.advance(2_000);
    await recorder.flush();
    const found = await totals();
    expect(found[rival()]).toEqual([5, 5]);
    expect(found[acme()]![1]).toBe(200);
    expect(found[acme()]![0]).toBeLessThan(25);
    expect(counts.left_out).toBe(200 - found[acme()]![0]);
  });

  test('for a minute, it is given up and counted with what comes next', async () => {
    failure = down();
    note(acme(), 'refused', 3);
    clock.advance(50);
    for (let tries = 1; tries < 60; tries += 1) {
      await clock.whenWaiting(1);
      clock.advance(1_000);
    }
    await recorder.flush();
    expect(counts).toEqual({ written: 0, left_out: 0, lost: 3 });
    failure = null;
    note(acme(), 'refused');
    await recorder.flush();
    expect(await totals()).toEqual({ [acme()]: [1, 4] });
  });

  test('a stop waits no longer than one try', async () => {
    failure = down();
    note(acme(), 'refused', 3);
    clock.advance(50);
    await clock.whenWaiting(1);
    await recorder.stop();
    expect(counts.lost).toBe(3);
  });
});

test('a stop writes what waits, and what was held back', async () => {
  note(acme(), 'look', 50);
  note(rival(), 'change', 2);
  await recorder.stop();
  expect(await totals()).toEqual({ [acme()]: [21, 50], [rival()]: [2, 2] });
});

test('of organizations without a log nothing is written, nor of one that is being deleted, and of the others all', async () => {
  await updateOrganization({ database, clock }, acme(), { hasRequestLog: false });
  await database.rows(unpreparedStatement(`update organizations set deletion = 'under_way' where id = $1`), [
    rival(),
  ]);
  for (const id of organizations) note(id, 'refused', 2);
  await recorder.flush();
  expect(await totals()).toEqual({ [third()]: [2, 2] });
});

test('a batch that is written once more, since the answer to its commit was lost, stays as it is', async () => {
  const id = newId();
  for (let time = 0; time < 2; time += 1) {
    note(acme(), 'refused', 1, { id });
    await recorder.flush();
  }
  expect(await totals()).toEqual({ [acme()]: [1, 1] });
});
