/** Every process of an installation is replaced while requests go on: none of them is refused, lost or carried out twice. */
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startApi } from '../../src/roles/api.ts';
import { createShiftedClock, eventually, rowsOf } from '../support/email-journey.ts';
import { neighbourId } from '../support/neighbour.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { startBalancer, startLoad } from '../support/rolling-load.ts';
import { startTestServer } from '../support/server.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
const ends: (() => Promise<unknown> | void)[] = [];

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

test('every process is replaced under load, and no request is refused, lost, delayed or carried out twice', async () => {
  const sink = await startSmtpSink();
  ends.push(sink.close);
  const server = await startTestServer({ database: address, madeByHand: ['leases'] });
  ends.push(server.stop);
  await rowsOf(server, 'update organizations set requests_per_window = 100000 where id = $1', [
    server.organizationId,
  ]);
  const settings: Settings = {
    LOG_LEVEL: 'info',
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    POSTILLION_ADDRESS_CHECKS: 'off',
    POSTILLION_PROCESSES: '1',
    POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=4`,
    // A hundred probes: one of them is in time on any machine.
    POSTILLION_DRAIN_SECONDS: '5',
  };
  const startNode = async (role: 'api' | 'worker', port = '0'): Promise<Program> => {
    const node = programs.start({ ...settings, PORT: port }, ['serve', '--role', role]);
    expect(await node.untilSaid('errors', /"msg":"ready"/)).not.toBeNull();
    return node;
  };
  const urlOf = async ({ untilSaid }: Program) => (await untilSaid('output', servedUrl))![1]!;
  const stop = async ({ child, ended }: Program) => {
    child.kill('SIGTERM');
    expect((await ended).exitCode).toBe(0);
  };

  const apis = await Promise.all([startNode('api'), startNode('api')]);
  const workers = await Promise.all([startNode('worker'), startNode('worker')]);
  const urls = await Promise.all(apis.map(urlOf));
  const balancer = await startBalancer(urls);
  ends.push(balancer.stop);
  const load = startLoad(balancer.url, [{ key: server.key, domain: 'postillion.test' }]);

  for (const [index, api] of apis.entries()) {
    await load.untilMore(20);
    await stop(api);
    await load.untilMore(20);
    apis[index] = await startNode('api', new URL(urls[index]!).port);
    // The other is not stopped before the balancer knows this one again.
    await eventually(balancer.ready, (count) => count === 2);
  }
  for (const [index, worker] of workers.entries()) {
    await load.untilMore(20);
    await stop(worker);
    await load.untilMore(20);
    workers[index] = await startNode('worker');
  }
  await load.untilMore(20);
  const answers = await load.stop();

  expect(balancer.refused()).toBe(0);
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
  expect(new Set(answers.map(({ id }) => id)).size).toBe(answers.length);
  // What a worker that has stopped kept for itself, or tried in vain, would wait for longer than this does.
  await eventually(
    () => rowsOf(server, 'select from delivery_queue where organization_id <> $1', [neighbourId]),
    (jobs) => jobs.length === 0,
  );
  const rows = await rowsOf<{ address: string; status: string; ambiguities: number }>(
    server,
    'select address, status, ambiguities from recipients where organization_id = $1',
    [server.organizationId],
  );
  expect(rows.map((row) => row.address).sort()).toEqual(answers.map(({ to }) => to).sort());
  for (const row of rows) expect(row).toMatchObject({ status: 'delivered', ambiguities: 0 });
  expect(sink.messages.flatMap(({ recipients }) => recipients).sort()).toEqual(
    answers.map(({ to }) => to).sort(),
  );
  await Promise.all([...apis, ...workers].map(stop));
});

test('an API that was asked to stop serves for as long as the setting says, and is not ready meanwhile', async () => {
  const clock = createShiftedClock();
  const server = await startTestServer({ database: address, clock, drainMs: 600_000 });
  ends.push(server.stop);
  const api = await startApi(server.installation);
  const headers = { authorization: `Bearer ${server.key}`, connection: 'close' };
  const ask = async (path: string) => (await fetch(`${api.url}${path}`, { headers })).status;
  expect(await ask('/readyz')).toBe(200);
  const stopped = api.stop();
  clock.putForward(500_000);
  expect(await ask('/readyz')).toBe(503);
  expect(await ask('/v1/email')).toBe(200);
  clock.putForward(100_000);
  await stopped;
  await expect(ask('/readyz')).rejects.toThrow('fetch failed');
});
