import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { rowsOf } from '../../test/support/email-journey.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import type { Database } from '../platform/postgres/database.ts';
import { startSegmentUpkeep } from './jobs.ts';
import { computeNext, followChanges } from './membership.ts';
import type { SegmentRecord } from './schema.ts';

let server: TestServer;
/** In the order of their ids. */
let organizations: { organizationId: string; key: string }[] = [];
let clock: ManualClock;
let upkeep: { stop: () => Promise<void> } | null = null;

/** Of one look, or of one transaction. Each test has twice as many, and one more. */
const itemsMax = 2;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());
beforeEach(async () => {
  organizations = [];
  for (let number = 0; number < 2 * itemsMax + 1; number += 1)
    organizations.push(await createSender(server.installation, `of-${crypto.randomUUID()}.example`));
  organizations.sort((one, other) => (one.organizationId < other.organizationId ? -1 : 1));
  clock = createManualClock(server.installation.clock.nowMs() + 60_000);
});
afterEach(async () => {
  await upkeep?.stop();
  upkeep = null;
  await rowsOf(server, 'delete from contact_changes');
  await rowsOf(server, 'update segments set compute_at = null');
});

async function makeSegment(of: number): Promise<string> {
  const { body } = await server.request<SegmentRecord>(
    'POST',
    '/v1/segments',
    {
      name: 'S',
      conditions: { type: 'field', field: 'first_name', operator: 'eq', value: 'Ann' },
    },
    { authorization: `Bearer ${organizations[of]!.key}` },
  );
  return body.id;
}

async function makeContact(of: number): Promise<void> {
  const body = { external_id: crypto.randomUUID(), first_name: 'Ann' };
  const { status } = await server.request('POST', '/v1/contacts', body, {
    authorization: `Bearer ${organizations[of]!.key}`,
  });
  expect(status).toBe(201);
}

async function computeAll(): Promise<void> {
  for (const { organizationId } of organizations) {
    while (await computeNext(server.installation, organizationId, new AbortController().signal)) {
      // Until nothing is due.
    }
  }
}

type Attempt = { organizationId: string };

/** Keeps segments; `failing` is how many of the first organizations have no transactions. Returns those begun. */
async function keep({ failing }: { failing: number }): Promise<Attempt[]> {
  const attempts: Attempt[] = [];
  const bad = new Set(organizations.slice(0, failing).map(({ organizationId }) => organizationId));
  const { database } = server.installation;
  const watched: Database = {
    ...database,
    asOrganizations: (ids, work) => {
      attempts.push(...ids.map((organizationId) => ({ organizationId })));
      return ids.some((id) => bad.has(id))
        ? Promise.reject(new Error('its segments cannot be kept'))
        : database.asOrganizations(ids, work);
    },
    connectAlone: () => Promise.reject(new Error('nobody notifies')),
  };
  upkeep = startSegmentUpkeep({
    ...server.installation,
    database: watched,
    clock,
    organizationsMax: itemsMax,
  });
  await clock.whenWaiting(timersOfIdle);
  return attempts;
}

/** The five places of both chores wait for their next look, and both for another attempt at listening, which neither is let. */
const timersOfIdle = 7;

async function goOn(seconds: number): Promise<void> {
  const endMs = clock.monotonicMs() + seconds * 1_000;
  while (clock.monotonicMs() < endMs) {
    clock.advance(100);
    await clock.whenWaiting(timersOfIdle);
  }
}

async function membersOf(id: string): Promise<number> {
  return (await rowsOf(server, 'select from memberships where set_id = $1', [id])).length;
}

async function statusOf(id: string): Promise<string | undefined> {
  const [row] = await rowsOf<{ status: string }>(server, 'select status from segments where id = $1', [id]);
  return row?.status;
}

/** Once in ten seconds each, and twice as it begins. */
const triesInAMinuteMax = 8;

test('a look that shows two organizations comes to the one after four whose segments cannot be computed', async () => {
  for (const of of organizations.keys()) await makeSegment(of);
  const last = await makeSegment(organizations.length - 1);
  const attempts = await keep({ failing: organizations.length - 1 });
  expect(await statusOf(last)).toBe('ready');
  await goOn(60);
  for (const { organizationId } of organizations.slice(0, -1)) {
    const tries = attempts.filter((attempt) => attempt.organizationId === organizationId).length;
    expect(tries).toBeGreaterThan(3);
    expect(tries).toBeLessThanOrEqual(triesInAMinuteMax);
  }
});

test('an organization with more segments to be computed than a look shows organizations keeps no other waiting', async () => {
  const many: string[] = [];
  for (let number = 0; number < 2 * itemsMax + 1; number += 1) many.push(await makeSegment(0));
  const one = await makeSegment(1);
  const attempts = await keep({ failing: 0 });
  for (const id of [...many, one]) expect(await statusOf(id)).toBe('ready');
  const [first, second] = organizations.map(({ organizationId }) => organizationId);
  expect(attempts.slice(0, 2)).toEqual([{ organizationId: first }, { organizationId: second }]);
});

test('a look that shows two organizations comes to the one after four whose changes cannot be followed', async () => {
  const ids: string[] = [];
  for (const of of organizations.keys()) ids.push(await makeSegment(of));
  await computeAll();
  for (const of of organizations.keys()) await makeContact(of);
  const attempts = await keep({ failing: organizations.length - 1 });
  expect(await Promise.all(ids.map(membersOf))).toEqual([0, 0, 0, 0, 1]);
  await goOn(60);
  for (const { organizationId } of organizations.slice(0, -1)) {
    const tries = attempts.filter((attempt) => attempt.organizationId === organizationId).length;
    expect(tries).toBeGreaterThan(3);
    expect(tries).toBeLessThanOrEqual(triesInAMinuteMax);
  }
});

test('five changes are followed two at a time, each once, and those of another organization are left to it', async () => {
  const [id, beside] = [await makeSegment(0), await makeSegment(1)];
  await computeAll();
  for (let number = 0; number < 2 * itemsMax + 1; number += 1) await makeContact(0);
  await makeContact(1);
  const { organizationId } = organizations[0]!;
  const members: number[] = [];
  while (await followChanges({ ...server.installation, followedMax: itemsMax }, organizationId))
    members.push(await membersOf(id));
  expect(members).toEqual([2, 4, 5]);
  expect(await membersOf(beside)).toBe(0);
});
