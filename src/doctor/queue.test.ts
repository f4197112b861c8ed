import { afterAll, beforeAll, expect, test } from 'vitest';
import { dateOf } from '../platform/clock.ts';
import { takeLease } from '../platform/queue/lease.ts';
import { createShiftedClock, rowsOf, send } from '../../test/support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import { examineWorkers } from './queue.ts';

const minuteMs = 60_000;
let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ clock: createShiftedClock() });
});
afterAll(() => server.stop());

const levels = async () => {
  const [finding] = await examineWorkers(server.installation);
  return [finding!.level, finding!.found.replace(/ since .*/, '')];
};

test('that no worker lives is a problem as soon as a job waits, that one is late only after minutes', async () => {
  expect(await levels()).toEqual(['warning', 'no worker runs, and nothing waits to be sent']);
  const other = await createSender(server.installation, 'other.test');
  const nowMs = server.installation.clock.nowMs();
  const [early, late] = [await send(server), await send(server, { from: 'a@other.test' }, other)];
  const putOff = (id: string, dueAtMs: number) =>
    rowsOf(server, 'update delivery_queue set due_at = $2 where message_id = $1', [id, dateOf(dueAtMs)]);
  await putOff(early, nowMs + 60 * minuteMs);
  await putOff(late, nowMs + 60 * minuteMs);
  // Due or not, and whoever may have claimed it.
  const waiting = ['problem', 'no worker runs, and recipients or slices of campaigns wait: 2'];
  expect(await levels()).toEqual(waiting);
  await putOff(late, nowMs - minuteMs);
  expect(await levels()).toEqual(waiting);
  await rowsOf(server, 'update delivery_queue set claimed_by = 1, claim_number = 1 where message_id = $1', [
    late,
  ]);
  expect(await levels()).toEqual(waiting);
  await rowsOf(server, 'update delivery_queue set claimed_by = null, claim_number = null');

  // A row of a worker that is gone is no sign of life.
  await rowsOf(
    server,
    "insert into workers (epoch, host, pid, started_at) values (1000000, 'gone', 1, now())",
  );
  expect((await levels())[1]).toMatch(/^no worker runs/);
  await rowsOf(server, 'delete from workers');

  const lease = await takeLease({ ...server.installation, recover: () => Promise.resolve() });
  try {
    expect(await levels()).toEqual(['ok', '1 worker runs, and jobs have been due']);
    await putOff(late, nowMs - 6 * minuteMs);
    expect(await levels()).toEqual(['problem', '1 worker runs, and jobs have been due']);
    // What is set aside is told elsewhere.
    await rowsOf(server, 'update delivery_queue set set_aside_at = now() where message_id = $1', [late]);
    expect(await levels()).toEqual(['ok', '1 worker runs, and no job is due']);
  } finally {
    await lease.release();
  }
});
