import { beforeAll, beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { emailChannel } from '../../email/channel.ts';
import { smsChannel } from '../../sms/channel.ts';
import { type Claim, claimDueJobs, claimPoisonJob } from './claim-store.ts';

let database: Database;
const newId = createIds(systemClock);
const nowMs = systemClock.nowMs();

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  await run("insert into workers (epoch, host, pid, started_at) values (1, 'one', 1, now())");
});
beforeEach(() => run('truncate delivery_queue, recipients'));

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

type Queued = { organizationId: string; dueInMs: number; channel?: 'email' | 'sms'; lane?: 0 | 1 };

/** Returns the ids, which come in the order of creation. */
async function queue(jobs: readonly Queued[]): Promise<string[]> {
  const ids = jobs.map(() => newId());
  await run(
    `with jobs as (
       select * from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::smallint[])
         as job (organization_id, message_id, due_at, channel, lane)
     ), queued as (
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select organization_id, message_id, 0, channel, lane, due_at, now(), 100 from jobs
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
     select organization_id, message_id, 0, 'to', 'ann@example.com', 'ann@example.com', now() from jobs`,
    [
      jobs.map(({ organizationId }) => organizationId),
      ids,
      jobs.map(({ dueInMs }) => dateOf(nowMs + dueInMs)),
      jobs.map(({ channel }) => channel ?? 'email'),
      jobs.map(({ lane }) => lane ?? 0),
    ],
  );
  return ids;
}

const firstOrganization = '00000000-0000-0000-0000-000000000000';
let claims = 0;

function claim(more: { itemsMax?: number; afterOrganizationId?: string; organizationsMax?: number } = {}) {
  claims += 1;
  return claimDueJobs(database, {
    epoch: 1,
    claimNumber: claims,
    at: dateOf(nowMs),
    channel: emailChannel,
    lane: 0,
    itemsMax: 100,
    afterOrganizationId: firstOrganization,
    ...more,
  });
}

const messagesOf = ({ jobs }: Claim) => jobs.map(({ messageId }) => messageId).sort();

test('a scan comes to every organization, however few a claim looks at, and ends behind the last', async () => {
  // Made in another order than that of their ids, of which the first five have nothing due yet.
  const organizations = Array.from({ length: 9 }, () => newId()).sort(() => -1);
  const ids = await queue(
    organizations.map((organizationId, index) => ({
      organizationId,
      dueInMs: index < 4 ? -1 : 60_000,
    })),
  );
  const claimed: string[] = [];
  const ends: boolean[] = [];
  let nextDueAtMs = Infinity;
  let afterOrganizationId = firstOrganization;
  do {
    const found = await claim({ afterOrganizationId, organizationsMax: 4 });
    claimed.push(...messagesOf(found));
    nextDueAtMs = Math.min(nextDueAtMs, found.nextDueAt?.getTime() ?? Infinity);
    ends.push(found.isScanOver);
    expect(found.lastOrganizationId > afterOrganizationId).toBe(true);
    ({ lastOrganizationId: afterOrganizationId } = found);
  } while (!ends.at(-1) && ends.length < 10);
  expect(claimed.sort()).toEqual(ids.slice(0, 4).sort());
  expect(ends).toEqual([false, false, true]);
  expect(nextDueAtMs).toBe(nowMs + 60_000);
});

test('where fewer items are wanted than organizations have something due, the next claim goes on behind', async () => {
  const organizations = Array.from({ length: 5 }, () => newId());
  const ids = await queue(organizations.map((organizationId) => ({ organizationId, dueInMs: -1 })));
  const first = await claim({ itemsMax: 2 });
  expect([messagesOf(first), first.isScanOver]).toEqual([ids.slice(0, 2), false]);
  expect(first.lastOrganizationId).toBe(organizations[1]);
  const second = await claim({ itemsMax: 2, afterOrganizationId: first.lastOrganizationId });
  expect(messagesOf(second)).toEqual(ids.slice(2, 4));
  const third = await claim({ itemsMax: 2, afterOrganizationId: second.lastOrganizationId });
  expect([messagesOf(third), third.isScanOver]).toEqual([ids.slice(4), true]);
});

test('one organization with much to send takes no more than its share of a claim', async () => {
  const [loud, quiet, other] = [newId(), newId(), newId()];
  await queue(Array.from({ length: 50 }, () => ({ organizationId: loud, dueInMs: -60_000 })));
  const theirs = await queue(
    [quiet, quiet, other].map((organizationId) => ({ organizationId, dueInMs: -1 })),
  );
  const { jobs } = await claim({ itemsMax: 9 });
  const countOf = (organizationId: string) =>
    jobs.filter((job) => job.organizationId === organizationId).length;
  expect([loud, quiet, other].map(countOf)).toEqual([3, 2, 1]);
  expect(jobs.map(({ messageId }) => messageId)).toEqual(expect.arrayContaining(theirs));
});

test('what fell due first is claimed first, whatever was made first', async () => {
  const organizationId = newId();
  const dueInMs = [-3, -500, -20, -7_000, -1, -90, 40];
  const ids = await queue(dueInMs.map((due) => ({ organizationId, dueInMs: due })));
  expect(messagesOf(await claim({ itemsMax: 3 }))).toEqual([ids[3]!, ids[1]!, ids[5]!].sort());
  expect(messagesOf(await claim({ itemsMax: 2 }))).toEqual([ids[2]!, ids[0]!].sort());
  expect(messagesOf(await claim())).toEqual([ids[4]!]);
  expect((await claim()).nextDueAt).toEqual(dateOf(nowMs + 40));
});

test('a claim says when more falls due, also of an organization whose due jobs it took, and of the others', async () => {
  const [early, late] = [newId(), newId()];
  await queue([
    { organizationId: early, dueInMs: -1 },
    { organizationId: early, dueInMs: 70 },
    { organizationId: early, dueInMs: 90 },
    { organizationId: late, dueInMs: 80 },
  ]);
  expect((await claim()).nextDueAt).toEqual(dateOf(nowMs + 70));
  await run('delete from delivery_queue where organization_id = $1 and due_at > $2', [early, dateOf(nowMs)]);
  await run('update delivery_queue set claimed_by = null, claim_number = null');
  const second = await claim();
  expect([second.jobs.length, second.nextDueAt]).toEqual([1, dateOf(nowMs + 80)]);
});

test('a claim says that it may have left something if an organization had all of its share, and only then', async () => {
  const [loud, quiet] = [newId(), newId()];
  expect((await claim()).mayHaveLeft).toBe(false);
  await queue([loud, loud, loud, loud, quiet].map((organizationId) => ({ organizationId, dueInMs: -1 })));
  const told = [];
  for (let round = 0; round < 3; round += 1) {
    const { jobs, mayHaveLeft } = await claim({ itemsMax: 4 });
    told.push([jobs.length, mayHaveLeft]);
  }
  // Two each; then all four are the share of the one that is left.
  expect(told).toEqual([
    [3, true],
    [2, false],
    [0, false],
  ]);
});

test('what another worker is claiming at this moment is left to it, and not waited for', async () => {
  const organizationId = newId();
  const [theirs, ours] = await queue([
    { organizationId, dueInMs: -2 },
    { organizationId, dueInMs: -1 },
  ]);
  await database.transaction(async (transaction) => {
    await transaction.rows(
      unpreparedStatement('select from delivery_queue where message_id = $1 for update'),
      [theirs],
    );
    expect(messagesOf(await claim())).toEqual([ours]);
  });
});

test('a job that took workers down is claimed by itself, and with no others', async () => {
  const organizationId = newId();
  const [poison, harmless] = await queue([
    { organizationId, dueInMs: -2 },
    { organizationId, dueInMs: -1 },
  ]);
  await run('update delivery_queue set crashes = 2 where message_id = $1', [poison]);
  const claimed = await claim();
  expect([messagesOf(claimed), claimed.hasPoison]).toEqual([[harmless], true]);
  const alone = await claimPoisonJob(database, {
    channels: [emailChannel],
    epoch: 1,
    claimNumber: 1_000,
    at: dateOf(nowMs),
  });
  expect(alone?.messageId).toBe(poison);
});

test('a job of another channel that took workers down is left to whoever delivers on that', async () => {
  const organizationId = newId();
  const [poison] = await queue([
    { organizationId, dueInMs: -2, channel: 'sms' },
    { organizationId, dueInMs: -1 },
  ]);
  await run('update delivery_queue set crashes = 2 where message_id = $1', [poison]);
  expect((await claim()).hasPoison).toBe(false);
  const request = { epoch: 1, claimNumber: 1_001, at: dateOf(nowMs) };
  expect(await claimPoisonJob(database, { ...request, channels: [emailChannel] })).toBe(null);
  const claimed = await claimPoisonJob(database, { ...request, channels: [emailChannel, smsChannel] });
  expect([claimed?.messageId, claimed?.channel]).toEqual([poison, smsChannel]);
});

test('a claim is for one channel and one lane, and for a worker that was not buried', async () => {
  const organizationId = newId();
  const [email] = await queue([
    { organizationId, dueInMs: -1 },
    { organizationId, dueInMs: -2, channel: 'sms' },
    { organizationId, dueInMs: -3, lane: 1 },
  ]);
  const buried = await claimDueJobs(database, {
    epoch: 2,
    claimNumber: 1,
    at: dateOf(nowMs),
    channel: emailChannel,
    lane: 0,
    itemsMax: 10,
    afterOrganizationId: firstOrganization,
  });
  expect(buried.jobs).toEqual([]);
  expect(messagesOf(await claim())).toEqual([email]);
});
