import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { dateOf } from '../../platform/clock.ts';
import { type Lease, takeLease } from '../../platform/queue/lease.ts';
import { rowsOf, send } from '../../../test/support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../../../test/support/server.ts';
import { readCondition, readMeasures } from './condition.ts';
import { findDegradations } from './readiness.ts';

const minuteMs = 60_000;
let server: TestServer;
let other: { key: string };

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'other.test');
});
afterAll(async () => {
  await clear();
  await server.stop();
});
beforeEach(clear);

async function clear(): Promise<void> {
  await rowsOf(server, 'delete from delivery_queue');
  await rowsOf(server, 'delete from workers');
}

const kinds = async () =>
  findDegradations(await readCondition(server.installation), server.installation.clock.nowMs()).map(
    ({ kind }) => kind,
  );

/** As long as its lease is held, the worker guards the others as well, and buries those that have ended. */
async function whileWorking(
  work: (lease: Lease) => Promise<void>,
  recover: (epoch: number) => Promise<void> = () => Promise.resolve(),
): Promise<void> {
  const lease = await takeLease({ ...server.installation, recover });
  try {
    await work(lease);
  } finally {
    await lease.release();
  }
}

/** Of each organization, due so long ago. */
async function queue(agoMs: number): Promise<void> {
  const ids = [await send(server), await send(server, { from: 'a@other.test' }, other)];
  await rowsOf(server, 'update delivery_queue set due_at = $2 where message_id = any ($1)', [
    ids,
    dateOf(server.installation.clock.nowMs() - agoMs),
  ]);
}

test('an installation that is well has nothing to say, and one without a worker has', async () => {
  await queue(4 * minuteMs);
  await queue(-60 * minuteMs);
  expect(await kinds()).toEqual(['no_worker']);
  await whileWorking(async () => {
    expect(await kinds()).toEqual([]);
    await queue(5 * minuteMs);
    expect(await kinds()).toEqual(['jobs_late']);
  });
  expect(findDegradations(null, 0)).toMatchObject([{ kind: 'condition_unknown' }]);
});

test('breakers are told of workers that live, and no others', async () => {
  // Which has not been buried yet: its row would be gone before anybody asks, and its breakers with it.
  const ended = 1_000_000;
  const leaveEnded = (epoch: number) =>
    epoch === ended ? Promise.reject(new Error('it stays')) : Promise.resolve();
  await whileWorking(async ({ epoch }) => {
    await rowsOf(server, `insert into workers (epoch, host, pid, started_at) values ($1, 'gone', 1, now())`, [
      ended,
    ]);
    await rowsOf(
      server,
      `insert into open_breakers (epoch, channel, provider, accounts, opened_at)
       values ($3, 'sms', 'smpp', null, now()), ($3, 'push', 'direct', 9, now()),
         ($1, 'email', 'smtp', null, $2), ($1, 'push', 'direct', 2, $2)`,
      [epoch, dateOf(0), ended],
    );
    const { clock } = server.installation;
    expect(findDegradations(await readCondition(server.installation), clock.nowMs())).toEqual([
      {
        kind: 'provider_unavailable',
        message:
          'smtp has not been available since 1970-01-01T00:00:00.000Z: nothing is handed off on the channel email',
      },
      {
        kind: 'accounts_unavailable',
        message:
          '2 accounts of the channel push at direct cannot be used, the first since 1970-01-01T00:00:00.000Z',
      },
    ]);
    await rowsOf(server, 'delete from workers where epoch = $1', [ended]);
  }, leaveEnded);
  expect(await rowsOf(server, 'select from open_breakers')).toEqual([]);
});

test('what waits is counted apart from what is due, and what is set aside or claimed is neither', async () => {
  await queue(minuteMs);
  await queue(-minuteMs);
  const [claimed, aside] = [await send(server), await send(server)];
  await rowsOf(server, 'update delivery_queue set claimed_by = 7, claim_number = 1 where message_id = $1', [
    claimed,
  ]);
  await rowsOf(server, 'update delivery_queue set set_aside_at = now() where message_id = $1', [aside]);
  // A campaign's recipients that nobody has tried wait as well; those of one that is paused, for a person.
  await rowsOf(
    server,
    `insert into delivery_slices (organization_id, message_id, first_ordinal, last_ordinal, channel, lane, recipients,
       accepted_at, content_bytes)
     select $1, $2, 1 + 300 * number, 300 * (number + 1), 'email', 1 + number / 2, 290, now(), 1
     from generate_series(0, 2) as number`,
    [server.organizationId, claimed],
  );
  const { waiting, setAside, oldestDue, at } = await readMeasures(server.installation);
  expect(waiting.filter(({ channel }) => channel === 'email')).toEqual([
    { channel: 'email', lane: 'transactional', waiting: 4, due: 2 },
    { channel: 'email', lane: 'campaign', waiting: 580, due: 580 },
  ]);
  expect(waiting.filter(({ channel }) => channel !== 'email').every((lane) => lane.waiting === 0)).toBe(true);
  expect([...setAside]).toEqual([['email', 1]]);
  expect(oldestDue.map(({ channel, lane }) => [channel, lane])).toEqual([['email', 'transactional']]);
  expect(at.getTime() - oldestDue[0]!.dueAt.getTime()).toBeGreaterThanOrEqual(minuteMs);
  await rowsOf(server, 'delete from delivery_slices');
});
