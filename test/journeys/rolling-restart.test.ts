/** Every process of an installation is replaced while requests go on: none of them is refused, lost or carried out twice. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startApi } from '../../src/roles/api.ts';
import { anEmail, createShiftedClock, eventually, rowsOf } from '../support/email-journey.ts';
import { neighbourId } from '../support/neighbour.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
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

/** Of a load balancer: how long it waits until it asks each node again whether it is ready. */
const probeMs = 50;

type Balancer = {
  url: string;
  /** How many nodes have last said that they are ready. */
  ready: () => number;
  /** Connections that a node refused although it had last said that it was ready. */
  refused: () => number;
};

/**
 * Gives each connection to the next node that said it was ready when it was asked last, as a balancer for TCP does, and
 * tries no other when that node refuses it.
 */
async function startBalancer(nodes: readonly string[]): Promise<Balancer> {
  const ready = new Set<string>();
  let next = 0;
  let refused = 0;
  const look = () =>
    Promise.all(
      nodes.map(async (node) => {
        const response = await fetch(`${node}/readyz`, { headers: { connection: 'close' } }).catch(
          () => null,
        );
        if (response?.status === 200) ready.add(node);
        else ready.delete(node);
        await response?.text();
      }),
    );
  const sockets = new Set<Socket>();
  const balancer = createServer((client) => {
    const [node] = [...ready].slice(next++ % Math.max(1, ready.size));
    sockets.add(client);
    client.on('close', () => sockets.delete(client));
    client.on('error', () => undefined);
    if (node === undefined) {
      refused += 1;
      client.destroy();
      return;
    }
    const upstream = connect(Number(new URL(node).port), '127.0.0.1');
    upstream.on('error', () => {
      refused += 1;
      client.destroy();
    });
    client.pipe(upstream).pipe(client);
    client.on('close', () => upstream.destroy());
  });
  await look();
  const ending = new AbortController();
  const probing = (async () => {
    while (!ending.signal.aborted) {
      await look();
      await delay(probeMs);
    }
  })();
  balancer.listen(0, '127.0.0.1');
  await once(balancer, 'listening');
  ends.push(async () => {
    ending.abort();
    await probing;
    balancer.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = balancer.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, ready: () => ready.size, refused: () => refused };
}

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
  const load = startLoad(balancer.url, server);

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
  for (const node of [...apis, ...workers]) await stop(node);
});

type Answer = { to: string; status: number | string; id: string };

type Load = {
  /** Resolves when so many more requests have been answered. */
  untilMore: (count: number) => Promise<unknown>;
  stop: () => Promise<Answer[]>;
};

/** A load that leaves the machine to those who start beside it. */
const thinkMs = 25;

/** Four clients, each of which sends its next email soon after the last one was answered. They repeat nothing. */
function startLoad(url: string, { key }: TestServer): Load {
  const answers: Answer[] = [];
  let isStopping = false;
  let number = 0;
  const send = async (): Promise<Answer> => {
    const to = `reader${++number}@example.com`;
    const response = await fetch(`${url}/v1/email/send`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
        'idempotency-key': to,
        connection: 'close',
      },
      body: JSON.stringify(anEmail({ to: [to] })),
    }).catch((cause: unknown) => cause as Error);
    if (response instanceof Error) return { to, status: String(response.cause), id: to };
    return { to, status: response.status, id: ((await response.json()) as { id: string }).id };
  };
  const clients = Array.from({ length: 4 }, async () => {
    while (!isStopping) {
      answers.push(await send());
      await delay(thinkMs);
    }
  });
  return {
    untilMore: (count) => {
      const wanted = answers.length + count;
      return eventually(
        () => answers.length,
        (length) => length >= wanted,
      );
    },
    stop: async () => {
      isStopping = true;
      await Promise.all(clients);
      return answers;
    },
  };
}

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
