/**
 * A thousand requests that send their headers and `{`, and nothing more, held every place for two minutes: two
 * organizations were enough to lock out all others. Unfinished requests may take a share, and only for a while.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const cleanUps: (() => Promise<unknown> | void)[] = [];

afterEach(async () => {
  for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp();
});

async function start(options: Parameters<typeof startTestServer>[0]): Promise<TestServer> {
  const server = await startTestServer(options);
  cleanUps.push(server.stop);
  return server;
}

type Client = { socket: Socket; answer: () => string };

function open(server: TestServer, localAddress = '127.0.0.1'): Client {
  const { port } = new URL(server.url);
  const socket = connect({ port: Number(port), host: '127.0.0.1', localAddress });
  socket.on('error', () => undefined);
  let answer = '';
  socket.on('data', (bytes: Buffer) => (answer += bytes.toString()));
  cleanUps.push(() => {
    socket.destroy();
  });
  return { socket, answer: () => answer };
}

function head(path: string, ...lines: string[]): string {
  return [`POST ${path} HTTP/1.1`, 'host: x', 'content-type: application/json', ...lines, '', ''].join(
    '\r\n',
  );
}

/** Begins requests that are never finished; resolves once all but `held` of them were refused with 503. */
async function beginUnfinished(
  server: TestServer,
  { key, count, held, bytes = 1_000 }: { key: string; count: number; held: number; bytes?: number },
): Promise<Client[]> {
  const clients = Array.from({ length: count }, () => open(server));
  let refused = 0;
  await new Promise<void>((resolve) => {
    for (const { socket } of clients) {
      socket.once('data', (answer: Buffer) => {
        if (!/^HTTP\/1.1 503 .*retry-after: 1/is.test(answer.toString())) return;
        refused += 1;
        if (refused === count - held) resolve();
      });
      socket.write(`${head('/v1/email/send', `authorization: Bearer ${key}`, `content-length: ${bytes}`)}{`);
    }
  });
  expect(clients.filter(({ answer }) => answer() === '')).toHaveLength(held);
  return clients;
}

const letter = {
  from_name: 'Hello',
  to: ['ann@example.com'],
  subject: 'Hello',
  text: 'Hello Ann',
};

function send(server: TestServer, key: string, domain: string, more: object = {}) {
  const body = { ...letter, from: `hello@${domain}`, ...more };
  return server.request('POST', '/v1/email/send', body, { authorization: `Bearer ${key}` });
}

test('two organizations that finish nothing leave room for a third, and for each other', async () => {
  const server = await start({ limits: { arrivingMax: 40, requestsMax: 40 } });
  const [second, third] = [
    await createSender(server.installation, 'second.test'),
    await createSender(server.installation, 'third.test'),
  ];
  await beginUnfinished(server, { key: server.key, count: 60, held: 20 });
  await beginUnfinished(server, { key: second.key, count: 60, held: 10 });
  expect((await send(server, third.key, 'third.test')).status).toBe(202);
  // Requests without a body need no such place.
  expect((await server.request('GET', '/v1/email')).status).toBe(200);
});

test('large bodies that were only announced take nothing of the bytes', async () => {
  const server = await start({ limits: { largeBodyBytesMax: 8_000_000 } });
  const other = await createSender(server.installation, 'other.test');
  await Promise.all(
    Array.from({ length: 45 }, async () => {
      const { socket } = open(server);
      const line = `authorization: Bearer ${server.key}`;
      socket.write(`${head('/v1/email/send', line, 'content-length: 2000000')}{`);
      await once(socket, 'connect');
    }),
  );
  await eventually(
    () => server.held().routesArriving,
    (count) => count === 45,
  );
  expect(server.held().routesBytes).toBe(0);
  const attachments = [{ filename: 'a.bin', content: 'A'.repeat(2_000_000) }];
  expect((await send(server, other.key, 'other.test', { attachments })).status).toBe(202);
});

/** A body of some 300 kB that is never sent to its end. */
function beginLarge(server: TestServer, line: string): Client {
  const client = open(server);
  client.socket.write(head('/v1/email/send', `authorization: Bearer ${server.key}`, line));
  return client;
}

const largeBytes = 300_000;
const asking = (server: TestServer, body: string, more: Record<string, string> = {}) =>
  fetch(`${server.url}/v1/email/send`, {
    method: 'POST',
    headers: { authorization: `Bearer ${server.key}`, 'content-type': 'application/json', ...more },
    body,
  });

test.each<[string, (server: TestServer, clock: ManualClock) => Promise<unknown>]>([
  [
    'are no JSON',
    async (server) => {
      expect((await asking(server, 'x'.repeat(largeBytes))).status).toBe(400);
    },
  ],
  [
    'are not what they should be',
    async (server) => {
      expect((await asking(server, JSON.stringify({ subject: 'x'.repeat(largeBytes) }))).status).toBe(422);
    },
  ],
  [
    'have another type',
    async (server) => {
      const type = { 'content-type': 'text/plain' };
      expect((await asking(server, 'x'.repeat(largeBytes), type)).status).toBe(400);
    },
  ],
  [
    'have a bad idempotency key',
    async (server) => {
      const key = { 'idempotency-key': 'x'.repeat(1_000) };
      expect((await asking(server, JSON.stringify({ html: 'x'.repeat(largeBytes) }), key)).status).toBe(400);
    },
  ],
  [
    'end in an error of ours',
    async (server) => {
      await rowsOf(server, 'alter table messages rename to messages_elsewhere');
      const attachments = [{ filename: 'a.bin', content: 'A'.repeat(largeBytes) }];
      expect((await send(server, server.key, 'postillion.test', { attachments })).status).toBe(500);
      await rowsOf(server, 'alter table messages_elsewhere rename to messages');
    },
  ],
  [
    'are left by their client in the middle',
    async (server) => {
      const { socket } = beginLarge(server, `content-length: ${largeBytes}`);
      socket.write('{');
      await eventually(
        () => server.held().routesArriving,
        (count) => count === 1,
      );
      socket.destroy();
    },
  ],
  [
    'do not go on',
    async (server, clock) => {
      const client = beginLarge(server, `content-length: ${largeBytes}`);
      client.socket.write('{');
      const ended = once(client.socket, 'close');
      await eventually(
        () => server.held().routesArriving,
        (count) => count === 1,
      );
      clock.advance(10_001);
      await ended;
      expect(client.answer()).toMatch(/^HTTP\/1.1 408 /);
    },
  ],
  [
    'come in pieces and are left by their client',
    async (server) => {
      const { socket } = beginLarge(server, 'transfer-encoding: chunked');
      const piece = 'x'.repeat(largeBytes);
      socket.write(`${piece.length.toString(16)}\r\n${piece}\r\n`);
      await eventually(
        () => server.held().routesBytes,
        (bytes) => bytes >= largeBytes,
      );
      socket.destroy();
    },
  ],
])('after five large bodies that %s one that needs nearly all of the room is taken', async (_how, end) => {
  const clock = createManualClock();
  // The large one takes two thirds of the room, which is all that one organization may have as a body grows.
  const server = await start({ clock, limits: { largeBodyBytesMax: 1_600_000 } });
  for (let number = 0; number < 5; number += 1) {
    await end(server, clock);
    // A client that has left is noticed a moment later.
    await eventually(
      () => server.held(),
      ({ routesArriving, requests }) => routesArriving + requests === 0,
    );
  }
  const attachments = [{ filename: 'a.bin', content: 'A'.repeat(1_000_000) }];
  expect((await send(server, server.key, 'postillion.test', { attachments })).status).toBe(202);
});

test('places of requests that do not go on are free again after ten seconds, and their clients get 408', async () => {
  const clock = createManualClock();
  const server = await start({ clock, limits: { arrivingMax: 4 } });
  const clients = await beginUnfinished(server, { key: server.key, count: 10, held: 2 });
  const late = clients.filter(({ answer }) => answer() === '');
  const ended = late.map(({ socket }) => once(socket, 'close'));
  clock.advance(10_001);
  await Promise.all(ended);
  for (const { answer } of late) {
    expect(answer()).toMatch(/^HTTP\/1.1 408 .*"name":"request_timeout"/is);
  }
  expect((await send(server, server.key, 'postillion.test')).status).toBe(202);
});

test.each([
  ['a wrong key', 401, '/v1/email/send', `authorization: Bearer pst_${'x'.repeat(43)}`],
  ['no such route', 404, '/v1/nothing', 'authorization: none'],
  ['a wrong content type', 400, '/v1/email/send', 'content-encoding: gzip'],
])(
  'a connection whose request was answered (%s) ends if the rest does not come',
  async (_name, status, path, line) => {
    const clock = createManualClock();
    const server = await start({ clock });
    const key = line.startsWith('authorization') ? [] : [`authorization: Bearer ${server.key}`];
    const { socket, answer } = open(server);
    socket.write(`${head(path, line, ...key, 'content-length: 1000')}{`);
    await once(socket, 'data');
    expect(answer()).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
    const ended = once(socket, 'close');
    // The server begins to count when its answer has left, which is a moment before or after it is read here.
    await clock.whenWaiting(1);
    for (let second = 0; second < 12; second += 1) {
      clock.advance(1_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
    await ended;
  },
);

test('connections of one address leave room for another', async () => {
  const server = await start({ limits: { connectionsMax: 20 } });
  const greedy = Array.from({ length: 20 }, () => open(server));
  await Promise.all(greedy.slice(10).map(({ socket }) => once(socket, 'close')));
  const other = open(server, '127.0.1.1');
  other.socket.write('GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n');
  await once(other.socket, 'close');
  expect(other.answer()).toMatch(/^HTTP\/1.1 200 /);
});

/** A form, with its client's address in the header of a trusted proxy. */
function beginForm(client: string): string {
  return ['POST /u/x HTTP/1.1', 'host: x', 'content-length: 20', `x-forwarded-for: ${client}`, '', 'a'].join(
    '\r\n',
  );
}

test.each([
  ['one address', () => '192.0.2.1', '192.0.3.1'],
  ['one /24', (index: number) => `192.0.2.${index}`, '192.0.3.1'],
  ['one /48', (index: number) => `2001:db8:1:${index}::1`, '2001:db8:2::1'],
  [
    'an address that is written in two ways',
    (index: number) => `${index % 2 ? '::ffff:' : ''}192.0.2.1`,
    '::ffff:192.0.3.1',
  ],
])(
  'unfinished forms of %s leave room for those of another, and for the API',
  async (_what, addressOf, other) => {
    const server = await start({
      smsProvider: 'sandbox',
      trustedProxies: ['127.0.0.1'],
      limits: { arrivingMax: 4 },
    });
    const greedy = Array.from({ length: 6 }, () => open(server));
    let refused = 0;
    await new Promise<void>((resolve) => {
      for (const [index, { socket }] of greedy.entries()) {
        socket.once('data', (answer: Buffer) => {
          expect(answer.toString()).toMatch(/^HTTP\/1.1 503 /);
          refused += 1;
          if (refused === 4) resolve();
        });
        socket.write(beginForm(addressOf(index)));
      }
    });
    const client = open(server);
    client.socket.write(beginForm(other) + 'b'.repeat(19));
    await once(client.socket, 'data');
    expect(client.answer()).not.toMatch(/^HTTP\/1.1 503 /);
    expect((await send(server, server.key, 'postillion.test')).status).toBe(202);
  },
);
