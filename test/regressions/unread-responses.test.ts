/**
 * A client that asked 300 times for a page on one connection, in 12 kB, and read nothing, ended a process with 512 MB of
 * heap; 1,400 requests took 3.5 GB and kept all others waiting for 26 seconds. A connection has one response in memory,
 * a few requests that wait, and an end if nothing moves on it.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../src/platform/clock.ts';
import { createConstantContent } from '../../src/platform/http/constant-content.ts';
import type { WebPage } from '../../src/platform/http/route.ts';
import { type HttpServer, startHttpServer } from '../../src/platform/http/server.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { createIds } from '../../src/platform/ids.ts';
import { silentLog } from '../../src/platform/log.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { eventually } from '../support/email-journey.ts';
import { listPagesOf } from '../support/page-table.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const requestsCount = 300;
const pipelinedMax = 9;
const sideBySide = 50;

/** Where the responses are quick and short, none waits, and nothing need be cut off: this ends the connection then. */
const lastRequest = 'GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n';

let server: TestServer;
let targets: { name: string; request: string }[];

beforeAll(async () => {
  server = await startTestServer({ limits: { pipelinedMax } });
  targets = [...listRoutes(server.installation), ...(await listPagesOf(server.installation))].map(
    ({ method = 'GET', path, ...target }) => {
      const url = `${'operationId' in target ? '/v1' : ''}${path.replaceAll(/:\w+/g, 'x')}`;
      const body = method === 'GET' || method === 'DELETE' ? '' : '{}';
      const lines = [
        `${method} ${url} HTTP/1.1`,
        'host: x',
        `authorization: Bearer ${server.key}`,
        ...(body === '' ? [] : ['content-type: application/json', `content-length: ${body.length}`]),
      ];
      return { name: `${method} ${url}`, request: `${lines.join('\r\n')}\r\n\r\n${body}` };
    },
  );
});

afterAll(() => server.stop());

/** A client that reads nothing, which Node.js does as long as nobody listens. */
function openUnread(url: string): Socket {
  const socket = connect(Number(new URL(url).port), '127.0.0.1');
  socket.on('error', () => undefined);
  return socket;
}

test('a client that pipelines ten requests, as many as may be, gets ten responses, in their order', async () => {
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  const paths = Array.from({ length: 10 }, (_, index) => (index % 2 === 0 ? '/openapi.json' : '/healthz'));
  socket.write(paths.map((path) => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`).join(''));
  let text = '';
  socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
  const wanted = paths.map((path) => (path === '/healthz' ? '{"status":"ok"}' : '"openapi"'));
  await eventually(
    () => text.split('HTTP/1.1 200 OK').slice(1),
    (responses) => responses.length === 10 && responses.every((one, index) => one.includes(wanted[index]!)),
  );
  socket.destroy();
});

test('no route and no page works on more than one request of a connection, or keeps too many waiting', async () => {
  expect(targets.length).toBeGreaterThan(120);
  const busiest = watchHeld();
  for (let start = 0; start < targets.length; start += sideBySide) {
    const sockets = targets.slice(start, start + sideBySide).map(({ request }) => {
      const socket = openUnread(server.url);
      socket.write(request.repeat(requestsCount) + lastRequest);
      return socket;
    });
    const names = targets.slice(start, start + sideBySide).map(({ name }) => name);
    await Promise.all(sockets.map((socket) => once(socket, 'connect')));
    // A client that reads nothing is not told that it was cut off: the server says so.
    await eventually(
      () => server.held(),
      ({ connections }) => connections === 0,
    ).catch((cause: unknown) => {
      throw new Error(`one of ${names.join(', ')} is still connected`, { cause });
    });
    for (const socket of sockets) socket.destroy();
  }
  const { worked, waiting } = busiest();
  expect(worked).toBeGreaterThan(0);
  expect(worked).toBeLessThanOrEqual(sideBySide);
  expect(waiting).toBeLessThanOrEqual(sideBySide * pipelinedMax);
  await eventually(
    () => server.held(),
    ({ pipelined, unsentBytes, requests, admissions }) =>
      pipelined + unsentBytes + requests + admissions === 0,
  );
  expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
});

/** Looks at every turn of the event loop what requests hold, until the returned function is called. */
function watchHeld(): () => { worked: number; waiting: number } {
  let [worked, waiting, isOver] = [0, 0, false];
  const look = () => {
    const { requests, admissions, pipelined } = server.held();
    worked = Math.max(worked, requests + admissions);
    waiting = Math.max(waiting, pipelined);
    if (!isOver) setImmediate(look);
  };
  look();
  return () => {
    isOver = true;
    return { worked, waiting };
  };
}

const pageBytes = 16 * 1_048_576;

/** A server with large pages: what a connection of loopback holds is less than one of them. */
async function startPages(
  limits: Parameters<typeof startHttpServer>[0]['limits'],
  onHandled: () => void = () => undefined,
): Promise<HttpServer> {
  const constant = createConstantContent(Buffer.alloc(pageBytes), { isCompressible: false });
  const pages: WebPage[] = [
    ['/constant', constant] as const,
    ['/made', Buffer.alloc(pageBytes)] as const,
  ].map(([path, body]) => ({
    path,
    handle: () => {
      onHandled();
      return Promise.resolve({ statusCode: 200, headers: {}, body });
    },
  }));
  return startHttpServer({
    ...{ host: '127.0.0.1', port: 0, trustedProxies: [], routes: [], pages },
    log: silentLog,
    clock: systemClock,
    newId: createIds(systemClock),
    validation: createValidation({}),
    bodyThread: { read: () => Promise.reject(new Error('no thread')) },
    admit: () => Promise.reject(new Error('no routes')),
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    isKeyUsed: () => Promise.resolve(false),
    findUnreadiness: () => Promise.resolve(null),
    limits: { drainMs: 0, ...limits },
  });
}

test('one response of a connection is in memory, and standing still ends the connection', async () => {
  let handled = 0;
  const pages = await startPages({ stalledMs: 200 }, () => (handled += 1));
  for (const path of ['/constant', '/made']) {
    handled = 0;
    const socket = openUnread(pages.url);
    const closed = once(socket, 'close');
    socket.write(`GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`.repeat(20));
    await eventually(
      () => handled > 0 && pages.held().connections === 0,
      (isCutOff) => isCutOff,
    );
    expect(handled, path).toBe(1);
    socket.resume();
    await closed;
  }
  expect(pages.held()).toMatchObject({ pipelined: 0, unsentBytes: 0, connections: 0 });
  await pages.stop('at_once');
});

test('a client that reads slowly, for longer than a connection may stand still, gets all of it', async () => {
  const pages = await startPages({ stalledMs: 400 });
  const socket = openUnread(pages.url);
  socket.write('GET /made HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n');
  let received = 0;
  socket.on('data', (chunk: Buffer) => {
    received += chunk.length;
    socket.pause();
    setTimeout(() => socket.resume(), 4);
  });
  await once(socket, 'close');
  expect(received).toBeGreaterThan(pageBytes);
  await pages.stop('at_once');
});

test('what one site leaves unread is counted, and refused beyond its share', async () => {
  const pages = await startPages({ unsentBytesMax: 3 * pageBytes });
  const unread = openUnread(pages.url);
  unread.write('GET /made HTTP/1.1\r\nhost: x\r\n\r\n');
  await eventually(
    () => pages.held().unsentBytes,
    (bytes) => bytes === pageBytes,
  );
  const second = openUnread(pages.url);
  second.write('GET /made HTTP/1.1\r\nhost: x\r\n\r\n');
  await eventually(
    () => pages.held().unsentBytes,
    (bytes) => bytes === 2 * pageBytes,
  );
  expect((await fetch(`${pages.url}/made`)).status).toBe(503);
  // What is the same for all takes no memory of its own.
  expect((await fetch(`${pages.url}/constant`, { method: 'HEAD' })).status).toBe(200);
  unread.destroy();
  second.destroy();
  await pages.stop('at_once');
});
