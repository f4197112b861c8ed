/**
 * A worker that was buried may still live, and a statement may outlive the process that sent it: nothing of either may
 * be claimed or announced. A third session stands for whoever buries it, and holds the worker's row as they do.
 */
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { announceHandOffs } from '../../../test/support/delivery-slices.ts';
import { clientConfigOf, useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { emailChannel } from '../../email/channel.ts';
import { claimDueJobs, claimPoisonJob } from './claim-store.ts';

const epoch = 7;
const otherEpoch = 8;
const newId = createIds(systemClock);
const organizationId = newId();
const ids = { due: newId(), poison: newId() };

let address: DatabaseAddress;
let database: Database;
let burying: pg.Client;

useTestDatabase({ connectionsMax: 3, applicationName: 'claiming' }, (opened) => {
  address = opened.address;
  database = opened.database;
});
beforeAll(async () => {
  burying = new pg.Client(clientConfigOf(address));
  await burying.connect();
});
afterAll(() => burying.end());
beforeEach(async () => {
  for (const each of [epoch, otherEpoch])
    await burying.query(
      "insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now() - interval '1 hour')",
      [each],
    );
  for (const [id, crashes] of [
    [ids.due, 0],
    [ids.poison, 2],
  ] as const) {
    await burying.query(
      `insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, crashes)
       values ($1, $2, 0, 'email', 0, now() - interval '1 minute', now() - interval '1 minute', 1, $3)`,
      [organizationId, id, crashes],
    );
    await burying.query(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status, status_at)
       values ($1, $2, 0, 'to', 'ann@example.com', 'ann@example.com', 'sent', now())`,
      [organizationId, id],
    );
  }
});
afterEach(async () => {
  await burying.query('rollback');
  for (const table of ['hand_offs', 'workers', 'delivery_queue', 'recipients'])
    await burying.query(`delete from ${table}`);
});

const job: Job = {
  organizationId,
  messageId: ids.due,
  ordinal: 0,
  channel: emailChannel,
  policy: emailChannel.policyOf({ isCampaign: false }),
  isCampaign: false,
  address: 'ann@example.com',
  addressKey: 'ann@example.com',
  ...untried,
  acceptedAt: new Date(0),
  contentBytes: 1,
};

const at = () => new Date(systemClock.nowMs());

/** What a worker takes for itself; resolves to whether it got anything. */
const takings = {
  'a claim': async (by: number) => {
    const { jobs } = await claimDueJobs(database, {
      epoch: by,
      claimNumber: 1,
      at: at(),
      channel: emailChannel,
      lane: 0,
      itemsMax: 10,
      afterOrganizationId: '00000000-0000-0000-0000-000000000000',
    });
    return jobs.length > 0;
  },
  'a claim of a job that is tried alone': async (by: number) =>
    (await claimPoisonJob(database, { channels: [emailChannel], epoch: by, claimNumber: 1, at: at() })) !==
    null,
  'an announcement': (by: number) =>
    announceHandOffs(database, [job], { epoch: by, batch: 1, batchesOver: [] }),
};
const names = Object.keys(takings) as (keyof typeof takings)[];

/** What carries the worker's epoch. */
async function listTaken(): Promise<number> {
  const [row] = await database.rows(
    unpreparedStatement<{ count: number }>(
      `select (select count(*) from delivery_queue where claimed_by = $1)
         + (select count(*) from hand_offs where epoch = $1) as count`,
    ),
    [epoch],
  );
  return row!.count;
}

test.each(names)('%s of a worker that was buried finds nothing, and changes nothing', async (name) => {
  await burying.query('delete from workers where epoch = $1', [epoch]);
  expect(await takings[name](epoch)).toBe(false);
  expect(await listTaken()).toBe(0);
  expect(await takings[name](otherEpoch), 'another worker').toBe(true);
});

test.each(names)('%s waits for a burial that is under way, and then finds nothing', async (name) => {
  await burying.query('begin');
  await burying.query('select from workers where epoch = $1 for update', [epoch]);
  let isOver = false;
  const taken = takings[name](epoch).finally(() => (isOver = true));
  for (let isWaiting = false; !isWaiting && !isOver;) {
    const { rowCount } = await burying.query(
      "select from pg_stat_activity where application_name = 'claiming' and pg_backend_pid() = any (pg_blocking_pids(pid))",
    );
    isWaiting = rowCount === 1;
  }
  expect(isOver, 'it did not wait').toBe(false);
  await burying.query('delete from workers where epoch = $1', [epoch]);
  await burying.query('commit');
  expect(await taken).toBe(false);
  expect(await listTaken()).toBe(0);
});
