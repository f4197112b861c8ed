/** The HTTP edge as strangers meet it: over real sockets, with well-formed, malformed and hostile requests. */
import { EventEmitter, once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { Agent, type IncomingMessage, request as httpRequest } from 'node:http';
import { connect, type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import pg from 'pg';
import { Type } from 'typebox';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import {
  createApiKey,
  createOrganization,
  revokeApiKey,
  updateOrganization,
} from '../../src/accounts/accounts.ts';
import { generateApiKey } from '../../src/accounts/api-key.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { systemClock } from '../../src/platform/clock.ts';
import {
  PublicError,
  rateLimitExceeded,
  resourceNotFound,
  unauthorized,
} from '../../src/platform/http/errors.ts';
import { defineRoute, json, type Route } from '../../src/platform/http/route.ts';
import { type HttpServer, type HttpServerOptions, startHttpServer } from '../../src/platform/http/server.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { createIds } from '../../src/platform/ids.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { silentLog } from '../../src/platform/log.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { eventually } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import { servedUrl, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { clientConfigOf, databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 100_000 });
});

afterAll(() => server.stop());

const letter = {
  from: 'hello@postillion.test',
  from_name: 'Hello',
  to: ['ann@example.com'],
  subject: 'Hello',
  text: 'Hello Ann',
};

const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

type Answer = { status: number; headers: Record<string, string>; text: string; body: unknown };

function open(to: TestServer = server): Socket {
  const { hostname, port } = new URL(to.url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => undefined);
  return socket;
}

/** Sends bytes as they are and reads until the server closes; it is asked to by `connection: close`. */
async function sendRaw(bytes: string | Buffer, to: TestServer = server): Promise<Answer> {
  const socket = open(to);
  let text = '';
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()));
  socket.write(bytes);
  await once(socket, 'close');
  return parseAnswer(text);
}

function parseAnswer(text: string): Answer {
  const [head = '', ...rest] = text.split('\r\n\r\n');
  const [statusLine = '', ...lines] = head.split('\r\n');
  const headers = Object.fromEntries(
    lines.map((line) => {
      const [name = '', ...value] = line.split(': ');
      return [name.toLowerCase(), value.join(': ')];
    }),
  );
  const body = rest.join('\r\n\r\n');
  return { status: Number(statusLine.split(' ')[1]), headers, text: body, body: JSON.parse(body || 'null') };
}

/** The lines of a request to the API with the server's own key. */
function head(method: string, path: string, ...lines: string[]): string {
  return [`${method} ${path} HTTP/1.1`, 'host: x', 'connection: close', ...lines, '', ''].join('\r\n');
}

const authorized = () => `authorization: Bearer ${server.key}`;

function envelope(statusCode: number, name: string) {
  return { status_code: statusCode, name, message: expect.stringMatching(/^.+$/) };
}

test.each([
  ['GET', '/v1/nothing', undefined],
  ['GET', '/v1', undefined],
  ['GET', '/nothing', undefined],
  ['GET', '/v2/email', undefined],
  ['PUT', '/v1/email/send', letter],
  ['DELETE', '/v1/email', undefined],
  ['OPTIONS', '/v1/email', undefined],
  ['PUT', `/v1/email/${unknownId}`, {}],
  ['POST', '/v1/email/send/', letter],
  ['POST', '/V1/email/send', letter],
  ['GET', '/v1/email/a/b', undefined],
])('%s %s is no route: 404 in the envelope, with a request id', async (method, path, body) => {
  const { status, body: answer, headers } = await server.request(method, path, body);
  expect(status).toBe(404);
  expect(answer).toEqual(envelope(404, 'not_found'));
  expect(headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
});

test.each(['TRACE', 'PROPFIND', 'PURGE', 'LOCK'])('%s is a method of no route', async (method) => {
  const answer = await sendRaw(head(method, '/v1/email', authorized()));
  expect(answer.body).toEqual(envelope(404, 'not_found'));
  expect(answer.headers['x-request-id']).toBeTruthy();
});

test.each([
  ['PUT', '/v1/email/send', 'There is no PUT /v1/email/send; there is POST.', 'POST'],
  ['GET', '/v1/email/send', 'There is no GET /v1/email/send; there is POST.', 'POST'],
  ['DELETE', '/v1/email', 'There is no DELETE /v1/email; there is GET.', 'GET, HEAD'],
  [
    'PUT',
    `/v1/contacts/${unknownId}?a=b`,
    'There is no PUT /v1/contacts/:id; there are GET, PATCH and DELETE.',
    'GET, HEAD, PATCH, DELETE',
  ],
  [
    'PATCH',
    '/v1/cont%61cts',
    'There is no PATCH /v1/contacts; there are GET, POST and PUT.',
    'GET, HEAD, POST, PUT',
  ],
  ['PATCH', '/v1/contacts/bulk-delete', 'There is no PATCH /v1/contacts/bulk-delete; there is POST.', 'POST'],
  ['GET', '/v1/contacts/', 'The requested resource does not exist.', null],
  ['GET', '/v1/contacts//', 'There is no such route.', null],
  ['GET', `/v1/email/${unknownId}/nothing`, 'There is no such route.', null],
  ['GET', `/v1/email/${'a/'.repeat(4_000)}`, 'There is no such route.', null],
  ['GET', `/v1/email/${unknownId}`, 'The requested resource does not exist.', null],
])('%s %s: the 404 names the methods that there are', async (method, path, message, allowed) => {
  const { body, headers } = await server.request(method, path);
  expect(body).toEqual({ status_code: 404, name: 'not_found', message });
  expect(headers.get('allow')).toBe(allowed);
});

test('every method that a 404 names is there, on every path', async () => {
  const paths = [...new Set(listRoutes(server.installation).map(({ path }) => path))];
  expect(paths.length).toBeGreaterThan(40);
  for (const path of paths) {
    const url = `/v1${path.replaceAll(/:\w+/g, unknownId)}`;
    const methods = listRoutes(server.installation).flatMap((route) =>
      route.path === path ? [route.method] : [],
    );
    const missing = (['PUT', 'PATCH', 'DELETE'] as const).find((method) => !methods.includes(method))!;
    const { status, headers, body } = await server.request<{ message: string }>(missing, url);
    expect([status, body.message], path).toEqual([
      404,
      expect.stringContaining(`There is no ${missing} /v1${path};`),
    ]);
    const named = (headers.get('allow') ?? '').split(', ');
    expect(named.filter((method) => method !== 'HEAD').sort(), path).toEqual(methods.sort());
    if (!named.includes('HEAD')) continue;
    const { body: answered } = await server.request('GET', url);
    const { status: headStatus } = await server.request('HEAD', url);
    const { status_code: statusCode = 200 } = answered as { status_code?: number };
    expect(headStatus, `HEAD ${path}`).toBe(statusCode);
  }
});

test.each([
  ['malformed JSON', '{"from":', {}, 400],
  ['no body at all', undefined, { 'content-type': 'application/json' }, 400],
  ['an empty body', '', {}, 400],
  ['only blanks', '  \n', {}, 400],
  ['a text', JSON.stringify(letter), { 'content-type': 'text/plain' }, 400],
  ['a form', 'from=a', { 'content-type': 'application/x-www-form-urlencoded' }, 400],
  ['JSON of a kind of its own', JSON.stringify(letter), { 'content-type': 'application/vnd.api+json' }, 400],
  ['a type that is none', JSON.stringify(letter), { 'content-type': 'nonsense' }, 400],
  ['compressed JSON', JSON.stringify(letter), { 'content-encoding': 'gzip' }, 400],
  ['bytes that are not UTF-8', Buffer.from([0x22, 0xff, 0x22]), {}, 400],
  ['a byte order mark', Buffer.from(`\ufeff${JSON.stringify(letter)}`), {}, 400],
  ['a list', [letter], {}, 422],
  ['null', 'null', {}, 422],
  ['a number', '5', {}, 422],
])('%s instead of a letter is refused', async (_name, body, headers, statusCode) => {
  const { status, body: answer } = await server.request('POST', '/v1/email/send', body, headers);
  expect(answer).toEqual(envelope(statusCode, statusCode === 400 ? 'bad_request' : 'validation_error'));
  expect(status).toBe(statusCode);
});

test('a body without any content type is refused, and a type with parameters is not', async () => {
  const body = JSON.stringify(letter);
  const length = `content-length: ${body.length}`;
  const without = await sendRaw(head('POST', '/v1/email/send', authorized(), length) + body);
  expect(without.body).toEqual(envelope(400, 'bad_request'));
  for (const type of [
    'application/json; charset=utf-8',
    'Application/JSON',
    'application/json;charset="UTF-8"',
  ]) {
    expect(
      (await server.request('POST', '/v1/email/send', body, { 'content-type': type })).status,
      type,
    ).toBe(202);
  }
});

test('reading needs no content type, and does not mind one', async () => {
  expect((await server.request('GET', '/v1/email')).status).toBe(200);
  expect((await server.request('GET', '/v1/email', undefined, { 'content-type': 'text/plain' })).status).toBe(
    200,
  );
});

test.each([
  ['nonsense', 'nonsense\r\n\r\n'],
  ['a request line with too much in it', 'GET / a HTTP/1.1\r\n\r\n'],
  ['TLS', Buffer.from([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3])],
  ['a header with a NUL', 'GET /v1/email HTTP/1.1\r\nhost: x\r\nx-a: \0\r\n\r\n'],
  [
    'two lengths',
    'POST /v1/email/send HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n12',
  ],
  [
    'a length and chunks',
    'POST /v1/email/send HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
  ],
  ['a negative length', 'POST /v1/email/send HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n'],
])('what is not HTTP (%s) is answered with 400 in the envelope', async (_name, bytes) => {
  const { status, body, headers } = await sendRaw(bytes);
  expect(status).toBe(400);
  expect(body).toEqual(envelope(400, 'bad_request'));
  expect(headers).toMatchObject({ connection: 'close', 'x-request-id': expect.stringMatching(/./) });
});

test('no answer of the API is taken for another type than it names, or kept by a cache', async () => {
  const own = authorized();
  const requests = listRoutes(server.installation).flatMap(({ method, path }) => {
    const url = `/v1${path.replaceAll(/:\w+/g, unknownId)}`;
    const wrong = ['authorization: Bearer x'];
    const malformed = [own, 'content-type: application/json', 'content-length: 1'];
    return [head(method, url, own), head(method, url, ...wrong), `${head(method, url, ...malformed)}{`];
  });
  requests.push(head('GET', '/v1/nothing', own), 'x\r\n\r\n');
  for (const request of requests) {
    const { headers } = await sendRaw(request);
    expect(headers, request).toMatchObject({
      'x-content-type-options': 'nosniff',
      'cache-control': 'no-store',
    });
  }
});

describe('a page that is the same for everybody', () => {
  const get = (...lines: string[]) => sendPage('GET', ...lines);

  /** Pages are no JSON. */
  async function sendPage(method: string, ...lines: string[]) {
    const socket = open();
    const chunks: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => chunks.push(chunk));
    socket.write(head(method, '/docs', ...lines));
    await once(socket, 'close');
    const bytes = Buffer.concat(chunks);
    const end = bytes.indexOf('\r\n\r\n');
    const { status, headers } = parseAnswer(bytes.toString('latin1', 0, end));
    return { status, headers, body: bytes.subarray(end + 4) };
  }

  test('comes in the form that the client prefers, with a tag and a length of its own', async () => {
    const [asItIs, gzipped, brotli] = [
      await get(),
      await get('accept-encoding: gzip'),
      await get('accept-encoding: gzip, deflate, br'),
    ];
    expect(asItIs.headers['content-encoding']).toBeUndefined();
    expect(gunzipSync(gzipped.body)).toEqual(asItIs.body);
    expect(brotliDecompressSync(brotli.body)).toEqual(asItIs.body);
    for (const { status, headers, body } of [asItIs, gzipped, brotli]) {
      expect(status).toBe(200);
      expect(headers).toMatchObject({
        'content-length': `${body.length}`,
        vary: expect.stringMatching(/accept-encoding/i),
      });
    }
    expect(new Set([asItIs, gzipped, brotli].map(({ headers }) => headers.etag)).size).toBe(3);
  });

  test('is not sent again to whoever has it, in this form', async () => {
    const { headers } = await get('accept-encoding: br');
    const again = await get('accept-encoding: br', `if-none-match: ${headers.etag!}`);
    expect(again).toMatchObject({ status: 304, headers: { etag: headers.etag } });
    expect(again.body).toHaveLength(0);
    expect((await get('accept-encoding: gzip', `if-none-match: ${headers.etag!}`)).status).toBe(200);
    expect((await get(`if-none-match: "other", W/${(await get()).headers.etag!}`)).status).toBe(304);
  });

  test('is told of without its content by HEAD', async () => {
    const [whole, told] = [await get('accept-encoding: br'), await sendPage('HEAD', 'accept-encoding: br')];
    expect(told.status).toBe(200);
    expect(told.body).toHaveLength(0);
    for (const name of ['content-length', 'content-encoding', 'etag', 'vary', 'content-type'])
      expect([name, told.headers[name]]).toEqual([name, whole.headers[name]]);
  });
});

test('a request without a host is answered with 400 in the envelope', async () => {
  const { status, body } = await sendRaw('GET /v1/email HTTP/1.1\r\nconnection: close\r\n\r\n');
  expect(status).toBe(400);
  expect(body).toEqual(envelope(400, 'bad_request'));
});

test('an unknown expectation is ignored', async () => {
  const { status, headers } = await sendRaw(head('GET', '/v1/email', authorized(), 'expect: miracles'));
  expect(status).toBe(200);
  expect(headers['x-request-id']).toBeTruthy();
});

test('a client that waits for leave to send its body gets it', async () => {
  const socket = open();
  const body = JSON.stringify(letter);
  socket.write(
    head(
      'POST',
      '/v1/email/send',
      authorized(),
      'content-type: application/json',
      'expect: 100-continue',
      `content-length: ${body.length}`,
    ),
  );
  const [first] = (await once(socket, 'data')) as [Buffer];
  expect(first.toString()).toMatch(/^HTTP\/1.1 100 /);
  let text = '';
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()));
  socket.write(body);
  await once(socket, 'close');
  expect(parseAnswer(text).status).toBe(202);
});

describe('a key', () => {
  test.each([
    ['no header', []],
    ['an empty header', ['authorization: ']],
    ['Bearer alone', ['authorization: Bearer']],
    ['Bearer and blanks', ['authorization: Bearer   ']],
    ['another scheme', ['authorization: Basic cHN0Og==']],
    ['an unknown key', [`authorization: Bearer ${generateApiKey()}`]],
    ['a key with something after it', ['authorization: Bearer KEY KEY']],
    ['the key without its scheme', ['authorization: KEY']],
    ['two headers, both right', ['authorization: Bearer KEY', 'Authorization: Bearer KEY']],
    ['two headers, the second wrong', ['authorization: Bearer KEY', 'authorization: Bearer x']],
    ['a key in another header', ['x-api-key: KEY']],
  ])('that is %s is refused with 401', async (_name, lines) => {
    const { status, body, headers } = await sendRaw(
      head('GET', '/v1/email', ...lines.map((line) => line.replaceAll('KEY', server.key))),
    );
    expect(status).toBe(401);
    expect(body).toEqual(envelope(401, 'unauthorized'));
    expect(headers['x-request-id']).toBeTruthy();
  });

  test.each(['Bearer', 'bearer', 'BEARER', 'Bearer  '])(
    'opens with the scheme written as %j',
    async (scheme) => {
      const { status } = await sendRaw(head('GET', '/v1/email', `authorization: ${scheme} ${server.key}`));
      expect(status).toBe(200);
    },
  );

  test('in the query opens nothing', async () => {
    const { status } = await sendRaw(head('GET', `/v1/email?key=${server.key}&access_token=${server.key}`));
    expect(status).toBe(401);
  });

  test('of a megabyte is refused with a 401 that the client gets to read', async () => {
    const { status, body } = await sendRaw(
      head('POST', '/v1/email/send', `authorization: Bearer ${'x'.repeat(1_048_576)}`),
    );
    expect(status).toBe(401);
    expect(body).toEqual(envelope(401, 'unauthorized'));
  });

  test('that is revoked or expired opens nothing any more', async () => {
    const { installation, organizationId } = server;
    const make = (expiresAt: Date | null) =>
      createApiKey(installation, { organizationId, name: 'K', scopes: ['full_access'], expiresAt });
    const [revoked, expired] = [await make(null), await make(new Date(Date.now() - 1))];
    await revokeApiKey(installation, revoked.id);
    for (const { key } of [revoked, expired]) {
      const { status, body } = await server.request('GET', '/v1/email', undefined, {
        authorization: `Bearer ${key}`,
      });
      expect(status).toBe(401);
      expect(body).toEqual(envelope(401, 'unauthorized'));
    }
  });

  test('that was made for other networks is refused, and uses up nothing of its organization', async () => {
    const { installation, organizationId } = server;
    const wanted = { organizationId, name: 'K', scopes: ['full_access'], expiresAt: null };
    const ask = async (allowedNetworks: string[]) => {
      const { key } = await createApiKey(installation, { ...wanted, allowedNetworks });
      return server.request('GET', '/v1/email', undefined, { authorization: `Bearer ${key}` });
    };
    const left = async () => Number((await ask(['127.0.0.0/8'])).headers.get('ratelimit-remaining'));
    const before = await left();
    const refused = await ask(['203.0.113.0/24', '2001:db8::/32']);
    expect(refused).toMatchObject({ status: 403, body: envelope(403, 'forbidden') });
    expect(refused.headers.get('ratelimit-remaining')).toBeNull();
    expect(await left()).toBe(before - 1);
  });
});

/** An organization whose window holds so many requests, on a clock of its own so that no window ends in between. */
describe('the order of checks', () => {
  let clock: ManualClock;
  let limited: TestServer;
  const wrongKey = { authorization: `Bearer ${generateApiKey()}` };
  const malformed = '{"from":';

  beforeAll(async () => {
    clock = createManualClock(Date.now());
    limited = await startTestServer({ clock });
  });

  afterAll(() => limited.stop());

  async function aKey(scopes: string[], requestsPerWindow: number): Promise<Record<string, string>> {
    const organization = await createOrganization(limited.installation, 'Limited');
    await updateOrganization(limited.installation, organization.id, { requestsPerWindow });
    const wanted = { organizationId: organization.id, name: 'K', scopes, expiresAt: null };
    const { key } = await createApiKey(limited.installation, wanted);
    return { authorization: `Bearer ${key}` };
  }

  const send = (body: unknown, headers: Record<string, string>) =>
    limited.request('POST', '/v1/email/send', body, headers);

  test('is key, rate limit, scope, form of the body, idempotency key, schema', async () => {
    const reader = await aKey(['email:read'], 2);
    const sender = await aKey(['email:send'], 3);
    expect((await send(malformed, wrongKey)).status).toBe(401);
    expect((await send(malformed, reader)).status).toBe(403);
    expect((await send({}, reader)).status).toBe(403);
    expect((await send(malformed, reader)).status).toBe(429);
    expect((await send(malformed, { ...sender, 'idempotency-key': ' ' })).status).toBe(400);
    expect((await send({}, { ...sender, 'idempotency-key': 'x'.repeat(257) })).body).toEqual(
      envelope(400, 'invalid_idempotency_key'),
    );
    expect((await send({}, sender)).status).toBe(422);
    expect((await send({}, sender)).status).toBe(429);
    expect((await send({}, wrongKey)).status).toBe(401);
  });

  test('says with every answer that has an organization what is left of its window, and when it ends', async () => {
    clock.advance(60_000 - (clock.nowMs() % 60_000));
    const key = await aKey(['email:read'], 5);
    const answers = [
      await limited.request('GET', '/v1/email', undefined, key),
      await limited.request('GET', `/v1/email/${unknownId}`, undefined, key),
      await send({}, key),
      await limited.request('GET', '/v1/email?limit=0', undefined, key),
    ];
    clock.advance(15_500);
    answers.push(await limited.request('GET', '/v1/email', undefined, key));
    answers.push(await limited.request('GET', '/v1/email', undefined, key));
    const seen = answers.map(({ status, headers }) => [
      status,
      ...['ratelimit-limit', 'ratelimit-remaining', 'ratelimit-reset', 'retry-after'].map((name) =>
        headers.get(name),
      ),
    ]);
    expect(seen).toEqual([
      [200, '5', '4', '60', null],
      [404, '5', '3', '60', null],
      [403, '5', '2', '60', null],
      [422, '5', '1', '60', null],
      [200, '5', '0', '45', null],
      [429, '5', '0', '45', '45'],
    ]);
    expect(answers.at(-1)!.body).toEqual(envelope(429, 'rate_limit_exceeded'));
    clock.advance(44_500);
    expect((await limited.request('GET', '/v1/email', undefined, key)).status).toBe(200);
  });

  test('counts what reaches no route as well, and limits it', async () => {
    clock.advance(60_000 - (clock.nowMs() % 60_000));
    const key = await aKey(['email:send'], 9);
    const lines = Object.entries(key).map(([name, value]) => `${name}: ${value}`);
    const raw = (method: string, path: string) => sendRaw(head(method, path, ...lines), limited);
    const long = `content-length: ${40 * 1_048_576}`;
    const answers = [
      await raw('GET', '/v1/nothing'),
      await raw('GET', '/v1'),
      await raw('GET', `${limited.url}/%76%31/nothing`),
      await raw('PUT', '/v1/email/send'),
      await raw('PROPFIND', '/v1/email'),
      await raw('GET', '/v1/email/%zz'),
      await sendRaw(head('GET', '/v1/email', ...lines).replace('host: x\r\n', ''), limited),
      await sendRaw(
        head('POST', '/v1/email/send', ...lines, 'content-type: application/json', long),
        limited,
      ),
      await sendRaw(head('POST', '/v1/email/send', ...lines, 'content-type: text/plain', long), limited),
      await raw('GET', '/v1/nothing'),
    ];
    expect(
      answers.map(({ status, headers }) => [
        status,
        headers['ratelimit-limit'],
        headers['ratelimit-remaining'],
        headers['ratelimit-reset'],
      ]),
    ).toEqual([
      [404, '9', '8', '60'],
      [404, '9', '7', '60'],
      [404, '9', '6', '60'],
      [404, '9', '5', '60'],
      [404, '9', '4', '60'],
      [404, '9', '3', '60'],
      [400, '9', '2', '60'],
      [413, '9', '1', '60'],
      [400, '9', '0', '60'],
      [429, '9', '0', '60'],
    ]);
  });

  test('shows no limits where it knows no organization, and does not let keys be tried there', async () => {
    const from = { ...wrongKey };
    const { status, headers } = await limited.request('GET', '/v1/nothing', undefined, from);
    expect([status, headers.get('ratelimit-limit')]).toEqual([404, null]);
    for (const [path, key] of [
      ['/v1/nothing', ''],
      ['/nothing', (await aKey(['email:send'], 5)).authorization!],
      ['/healthz', (await aKey(['email:send'], 5)).authorization!],
    ] as const) {
      const answer = await limited.request('GET', path, undefined, { authorization: key });
      expect(answer.headers.get('ratelimit-limit'), path).toBeNull();
    }
  });
});

describe('a field', () => {
  test.each<[string, object, string]>([
    ['a number for a text', { subject: 5 }, 'subject must be a string'],
    ['true for a text', { subject: true }, 'subject must be a string'],
    ['null for a text', { from: null }, 'from must be a string'],
    ['a text for a list', { attachments: 'a.txt' }, 'attachments must be an array'],
    ['an object for a list', { to: { 0: 'ann@example.com' } }, 'to must be an array'],
    ['a number in a list', { to: [5] }, 'to[0] must be a string'],
    ['a list for an object', { variables: ['a'] }, 'variables must be an object'],
    [
      'an object for a value',
      { variables: { a: {} } },
      'variables.a must be a string or a number or a boolean',
    ],
    ['a field of ours', { organization_id: unknownId }, 'organization_id is not a known field'],
    ['the status', { status: 'delivered' }, 'status is not a known field'],
    ['verified', { verified: true }, 'verified is not a known field'],
    ['an id', { id: unknownId }, 'id is not a known field'],
    ['a typo', { subjet: 'Hello' }, 'subjet is not a known field (did you mean subject?)'],
    ['a field of every object', { constructor: 1 }, 'constructor is not a known field'],
  ])('that is %s is refused with 422 and nothing is coerced', async (_name, change, issue) => {
    const { status, body } = await server.request('POST', '/v1/email/send', { ...letter, ...change });
    expect(body).toEqual({ status_code: 422, name: 'validation_error', message: issue });
    expect(status).toBe(422);
  });

  test.each([
    ['__proto__', '{"__proto__":{"isAdmin":true},"from":"hello@postillion.test"}'],
    ['constructor.prototype', '{"constructor":{"prototype":{"isAdmin":true}}}'],
    ['__proto__ further down', '{"variables":{"__proto__":{"isAdmin":true}}}'],
  ])('named %s reaches no prototype', async (_name, text) => {
    const { status, body } = await server.request('POST', '/v1/email/send', text);
    expect(body).toEqual(envelope(422, 'validation_error'));
    expect(status).toBe(422);
    expect(({} as Record<string, unknown>).isAdmin).toBeUndefined();
  });

  test.each(['subject', 'html', 'from', 'category', 'from_name'])(
    '%s with NUL or half a character is refused',
    async (name) => {
      for (const text of ['a\0b', '\ud800', '\udc00b']) {
        const { status, body } = await server.request('POST', '/v1/email/send', { ...letter, [name]: text });
        expect(status).toBe(422);
        expect(body).toMatchObject({ message: `${name} must not contain NUL or unpaired surrogates` });
      }
    },
  );

  test('that is wrong is reported along with all others, each with its path', async () => {
    const { body } = await server.request<{ message: string }>('POST', '/v1/email/send', {
      ...letter,
      to: ['ann@example.com', 'nobody'],
      subject: 'x'.repeat(999),
    });
    expect(body.message).toBe('to[1] must be an email address, subject must be at most 998 characters');
  });
});

describe('an id', () => {
  test('that is malformed, unknown or has a NUL gets one and the same answer', async () => {
    const unknown = await server.request('GET', `/v1/email/${unknownId}`);
    expect(unknown.status).toBe(404);
    expect(unknown.body).toEqual(envelope(404, 'not_found'));
    const ids = [
      'x',
      '%00',
      `${unknownId}%00`,
      `${unknownId.slice(0, -3)}%00`,
      '%ed%a0%80',
      '%ff',
      '%',
      '%zz',
      unknownId.replaceAll('-', ''),
      'x'.repeat(300),
      'x'.repeat(301),
      'x'.repeat(10_000),
      '..%2f..%2fetc%2fpasswd',
      `'%20or%201=1--`,
    ];
    for (const id of ids) {
      const { status, text, headers } = await sendRaw(head('GET', `/v1/email/${id}`, authorized()));
      expect([id.slice(0, 40), status, text]).toEqual([id.slice(0, 40), 404, unknown.text]);
      expect(headers['x-request-id'], id).toMatch(/^[0-9a-f-]{36}$/);
      expect(headers['content-type'], id).toBe('application/json; charset=utf-8');
    }
  });

  test('is asked for with a key first, whatever it looks like', async () => {
    for (const id of ['x', unknownId, 'x'.repeat(301), '%00']) {
      expect((await sendRaw(head('GET', `/v1/email/${id}`))).status, id.slice(0, 40)).toBe(401);
    }
  });

  test('of a message in capitals is the same id', async () => {
    const { body } = await server.request<{ id: string }>('POST', '/v1/email/send', letter);
    const [lower, upper] = [
      await server.request('GET', `/v1/email/${body.id}`),
      await server.request('GET', `/v1/email/${body.id.toUpperCase()}`),
    ];
    expect(lower.status).toBe(200);
    expect(upper.body).toEqual(lower.body);
  });
});

test.each([
  ['limit=0', 422],
  ['limit=101', 422],
  ['limit=1.5', 422],
  ['limit=ten', 422],
  ['limit=', 422],
  ['limit=1&limit=2', 422],
  ['limit[]=1', 422],
  ['after=x', 422],
  ['after=', 422],
  ['after=%00', 422],
  [`after=${unknownId}&before=${unknownId}`, 400],
  ['search=a%00b', 422],
  ['status=lost', 422],
  ['unknown=1', 422],
  ['%00=1', 422],
  ['__proto__=1', 422],
  ['constructor=1', 422],
  ['sort=id', 422],
])('the query %s is refused with %i', async (query, statusCode) => {
  const { status, body } = await server.request('GET', `/v1/email?${query}`);
  expect(body).toEqual(envelope(statusCode, statusCode === 400 ? 'bad_request' : 'validation_error'));
  expect(status).toBe(statusCode);
});

test('bytes in a query that are no text are never an error of ours', async () => {
  for (const bytes of ['%ed%a0%80', '%ff', '%', '%c0%80', '%f0%9f%98%80', "';--", '%25', '%5c', '%5f']) {
    const { status } = await sendRaw(head('GET', `/v1/email?search=${bytes}`, authorized()));
    expect([200, 422], bytes).toContain(status);
  }
});

/** The HTTP server with routes of the test's own, and everybody admitted. */
async function startStub(
  routes: readonly Route[],
  options: Partial<HttpServerOptions> = {},
): Promise<HttpServer & { request: (path: string, agent?: Agent) => Promise<Answer> }> {
  const stub = await startHttpServer({
    host: '127.0.0.1',
    port: 0,
    trustedProxies: [],
    log: silentLog,
    clock: systemClock,
    newId: createIds(systemClock),
    routes,
    pages: [],
    validation: createValidation({}),
    bodyThread: { read: () => Promise.reject(new Error('no thread')) },
    admit: () => Promise.resolve({ rate: null, result: { organizationId: unknownId } }),
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    isKeyUsed: () => Promise.resolve(false),
    findUnreadiness: () => Promise.resolve(null),
    ...options,
    limits: { drainMs: 0, ...options.limits },
  });
  return { ...stub, request: (path, agent) => ask(`${stub.url}${path}`, agent) };
}

async function ask(url: string, agent?: Agent): Promise<Answer> {
  const request = httpRequest(url, agent === undefined ? { agent: false } : { agent }).end();
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  let text = '';
  for await (const chunk of response) text += String(chunk);
  const headers = response.headers as Record<string, string>;
  return { status: response.statusCode ?? 0, headers, text, body: JSON.parse(text || 'null') };
}

/** A route that answers when the test says so. */
function createHeldRoute() {
  const events = new EventEmitter();
  let arrived = 0;
  const route = defineRoute({
    method: 'GET',
    path: '/held',
    operationId: 'hold',
    scope: 'email:read',
    tag: 'Test',
    summary: 'Held',
    success: { statusCode: 200, schema: Type.Object({}), when: 'Released.' },
    handle: async () => {
      arrived += 1;
      events.emit('arrived');
      await once(events, 'release');
      return json({ released: true });
    },
  });
  return {
    route,
    whenArrived: async (count: number) => {
      while (arrived < count) await once(events, 'arrived');
    },
    release: () => events.emit('release'),
  };
}

test('an error of ours leaks nothing: no SQL, no path, no stack, no name', async () => {
  const logged: unknown[] = [];
  const route = defineRoute({
    method: 'GET',
    path: '/broken',
    operationId: 'break',
    scope: 'email:read',
    tag: 'Test',
    summary: 'Broken',
    success: { statusCode: 200, schema: Type.Object({}), when: 'Never.' },
    handle: () => {
      throw Object.assign(new TypeError('select secret from /srv/app/store.ts'), {
        code: '42P01',
        statusCode: 500,
      });
    },
  });
  const log = { ...silentLog, error: (...line: unknown[]) => void logged.push(line) };
  const stub = await startStub([route], { log: log as typeof silentLog });
  const { status, text, body, headers } = await stub.request('/v1/broken');
  expect(status).toBe(500);
  expect(body).toEqual(envelope(500, 'internal_server_error'));
  expect(text).not.toMatch(/select|secret|srv|store|TypeError|42P01|at /);
  // The log line has the request id that the client was given.
  expect(logged).toMatchObject([[{ request_id: headers['x-request-id'] }, 'request failed']]);
  await stub.stop();
});

test('a site may call a route for browsers, read its errors too, and call no other', async () => {
  const routeAt = (path: string, isForBrowsers: boolean) =>
    defineRoute({
      method: 'POST',
      path,
      operationId: `post${path.slice(1)}`,
      scope: 'email:read',
      tag: 'Test',
      summary: 'Posted',
      isForBrowsers,
      success: { statusCode: 202, schema: Type.Object({}), when: 'Always.' },
      handle: async () => json({}),
    });
  const refusal = new PublicError(unauthorized, 'Not by this key.');
  const stub = await startStub([routeAt('/open', true), routeAt('/closed', false)], {
    admit: ({ authorization }) =>
      Promise.resolve({ rate: null, result: authorization === '' ? refusal : { organizationId: unknownId } }),
  });
  const call = async (method: string, path: string, headers: Record<string, string> = {}) => {
    const site = { origin: 'https://shop.test', ...headers };
    const response = await fetch(`${stub.url}/v1${path}`, { method, headers: site });
    return [response.status, response.headers.get('access-control-allow-origin')];
  };
  const asking = {
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization',
  };
  expect(await call('OPTIONS', '/open', asking)).toEqual([204, '*']);
  expect(await call('POST', '/open', { authorization: 'Bearer right' })).toEqual([202, '*']);
  expect(await call('POST', '/open')).toEqual([401, '*']);
  expect(await call('OPTIONS', '/closed', asking)).toEqual([404, null]);
  expect(await call('POST', '/closed', { authorization: 'Bearer right' })).toEqual([202, null]);
  const { headers } = await fetch(`${stub.url}/v1/open`, { method: 'OPTIONS', headers: asking });
  expect(headers.get('access-control-allow-methods')).toBe('POST');
  expect(headers.get('access-control-allow-headers')).toBe('authorization, content-type');
  await stub.stop();
});

test.each([
  ['two transactions that cannot both come true', '40001'],
  ['a deadlock', '40P01'],
  ['a lock that was not to be had in time', '55P03'],
  ['a statement that took too long', '57014'],
])('%s is answered with 503 and a time to come back', async (_what, code) => {
  const route = defineRoute({
    method: 'GET',
    path: '/contended',
    operationId: 'contend',
    scope: 'email:read',
    tag: 'Test',
    summary: 'Contended',
    success: { statusCode: 200, schema: Type.Object({}), when: 'Never.' },
    handle: async () => {
      await server.installation.database.rows(
        unpreparedStatement(`do $$ begin raise exception using errcode = '${code}'; end $$`),
      );
      return json({});
    },
  });
  const stub = await startStub([route]);
  const { status, body, headers } = await stub.request('/v1/contended');
  expect([status, body]).toEqual([503, envelope(503, 'service_unavailable')]);
  expect(headers['retry-after']).toMatch(/^[1-9]\d*$/);
  await stub.stop();
});

test('more requests of an organization than its share are refused with 503, and room that was left is given to the next', async () => {
  const held = createHeldRoute();
  const stub = await startStub([held.route], { limits: { requestsMax: 4 } });
  const under = [stub.request('/v1/held'), stub.request('/v1/held')];
  await held.whenArrived(2);
  const refused = await stub.request('/v1/held');
  expect(refused.body).toEqual(envelope(503, 'service_unavailable'));
  expect(refused.headers['retry-after']).toMatch(/^\d+$/);
  expect((await stub.request('/healthz')).status).toBe(200);
  held.release();
  expect((await Promise.all(under)).map(({ status }) => status)).toEqual([200, 200]);
  const next = stub.request('/v1/held');
  await held.whenArrived(3);
  held.release();
  expect((await next).status).toBe(200);
  await stub.stop();
});

test('clients that leave before they are answered take no room for ever', async () => {
  const held = createHeldRoute();
  const left = new EventEmitter();
  let lines = 0;
  const log = { ...silentLog, info: () => void left.emit('line', (lines += 1)) } as typeof silentLog;
  const stub = await startStub([held.route], { log, limits: { requestsMax: 4 } });
  for (let client = 1; client <= 5; client += 1) {
    const request = httpRequest(`${stub.url}/v1/held`, { agent: false })
      .on('error', () => undefined)
      .end();
    await held.whenArrived(client);
    request.destroy();
    await new Promise((resolve) => request.once('close', resolve));
    held.release();
    while (lines < client) await once(left, 'line');
  }
  const last = stub.request('/v1/held');
  await held.whenArrived(6);
  held.release();
  expect((await last).status).toBe(200);
  await stub.stop();
});

test('a server that stops answers what was begun, takes nothing new, and then ends', async () => {
  const held = createHeldRoute();
  const stub = await startStub([held.route]);
  const agent = new Agent({ keepAlive: true });
  const idle = await stub.request('/healthz', agent);
  expect(idle.status).toBe(200);
  const begun = stub.request('/v1/held', agent);
  await held.whenArrived(1);
  const stopped = stub.stop();
  await expect(
    (async () => {
      // Until the port is closed, requests are answered, on connections that end after the response.
      for (;;) expect((await stub.request('/healthz')).headers.connection).toBe('close');
    })(),
  ).rejects.toMatchObject({ code: expect.stringMatching(/ECONNREFUSED|ECONNRESET/) });
  held.release();
  expect(await begun).toMatchObject({ status: 200, body: { released: true } });
  await stopped;
  agent.destroy();
});

test('requests that are refused before they are whole leave nothing on their connection', async () => {
  const warnings: string[] = [];
  const note = ({ name }: Error) => void warnings.push(name);
  process.on('warning', note);
  const socket = open();
  let received = '';
  socket.on('data', (chunk: Buffer) => (received += chunk.toString()));
  // Node.js warns of the eleventh listener for one event.
  for (let refused = 1; refused <= 12; refused += 1) {
    socket.write(
      'POST /v1/email/send HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{',
    );
    await eventually(
      () => received.split('HTTP/1.1 401').length - 1,
      (answers) => answers === refused,
    );
    socket.write('}');
  }
  socket.destroy();
  await nextTurn();
  process.off('warning', note);
  expect(warnings).toEqual([]);
});

test('a stopping server says that it is not ready, and is alive', async () => {
  const clock = createManualClock();
  const stub = await startStub([], { clock, limits: { drainMs: 1_000 } });
  expect(await stub.request('/readyz')).toMatchObject({ status: 200, body: { status: 'ready' } });
  const stopped = stub.stop();
  expect(await stub.request('/readyz')).toMatchObject({ status: 503, body: { reason: 'stopping' } });
  expect((await stub.request('/healthz')).status).toBe(200);
  clock.advance(1_000);
  await stopped;
});

test('what a client says of its own address is believed from trusted proxies alone', async () => {
  const seen: string[] = [];
  const held = createHeldRoute();
  for (const trustedProxies of [[], ['10.0.0.0/8'], ['127.0.0.0/8']]) {
    const stub = await startStub([held.route], {
      trustedProxies,
      admit: ({ address }) => {
        seen.push(address);
        return Promise.resolve({ rate: null, result: resourceNotFound() });
      },
    });
    const request = httpRequest(`${stub.url}/v1/held`, {
      agent: false,
      headers: {
        'x-forwarded-for': '203.0.113.9',
        'x-forwarded-host': 'evil.example',
        'x-forwarded-proto': 'https',
      },
    }).end();
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    response.resume();
    await stub.stop();
  }
  expect(seen).toEqual(['127.0.0.1', '127.0.0.1', '203.0.113.9']);
});

test('wrong keys count on unknown routes too, and too many are refused', async () => {
  const asked: unknown[] = [];
  let result = new PublicError(unauthorized, 'Wrong.');
  const stub = await startStub([], {
    admit: (request) => {
      asked.push(request);
      return Promise.resolve({ rate: null, result });
    },
  });
  expect((await stub.request('/v1/nothing')).body).toEqual(envelope(404, 'not_found'));
  expect((await stub.request('/v1/%zz')).body).toEqual(envelope(404, 'not_found'));
  result = new PublicError(rateLimitExceeded, 'Too many.', { 'retry-after': '60' });
  for (const path of ['/v1/nothing', '/v1/%zz']) {
    const { body, headers } = await stub.request(path);
    expect(body).toEqual(envelope(429, 'rate_limit_exceeded'));
    expect(headers['retry-after']).toBe('60');
  }
  expect(asked).toEqual(
    Array(4).fill({ authorization: '', address: '127.0.0.1', scope: null, countsAs: 'request' }),
  );
  expect((await stub.request('/nothing')).status).toBe(404);
  expect((await stub.request('/v1nothing')).status).toBe(404);
  expect(asked).toHaveLength(4);
  await stub.stop();
});

test('no line of the log holds a key, a body or an address', async () => {
  const lines: unknown[] = [];
  const keep = (...line: unknown[]) => void lines.push(line);
  const log = { ...silentLog, info: keep, warn: keep, error: keep, debug: keep } as typeof silentLog;
  const route = defineRoute({
    method: 'POST',
    path: '/letters',
    operationId: 'sendLetter',
    scope: 'email:send',
    tag: 'Test',
    summary: 'Letters',
    body: Type.Object({ to: Type.String() }, { additionalProperties: false }),
    success: { statusCode: 202, schema: Type.Object({}), when: 'Taken.' },
    handle: () => Promise.resolve(json({})),
  });
  const stub = await startStub([route], { log });
  const secret = 'pst_secret';
  for (const body of ['{"to":"ann@example.com"}', '{"too":"ann@example.com"}', '{"to":']) {
    const response = await fetch(`${stub.url}/v1/letters?token=${secret}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json' },
      body,
    });
    await response.text();
  }
  await stub.stop();
  expect(lines).toHaveLength(3);
  expect(JSON.stringify(lines)).not.toMatch(/pst_secret|ann@example|127\.0\.0\.1/);
});

test('looks at its health are told with debug alone, unless they find that it is not ready', async () => {
  const told: unknown[][] = [];
  const keepAt = (level: string) => (line: { route?: string; status?: number }) =>
    void told.push([level, line.route, line.status]);
  const log = { ...silentLog, info: keepAt('info'), debug: keepAt('debug') } as unknown as typeof silentLog;
  let unreadiness: string | null = null;
  const stub = await startStub([], { log, findUnreadiness: () => Promise.resolve(unreadiness) });
  await stub.request('/healthz');
  await stub.request('/readyz');
  unreadiness = 'the database does not answer';
  await stub.request('/readyz');
  await stub.request('/nothing');
  await stub.stop();
  expect(told).toEqual([
    ['debug', '/healthz', 200],
    ['debug', '/readyz', 200],
    ['info', '/readyz', 503],
    ['info', undefined, 404],
  ]);
});

test('two hundred clients that read at once are all answered', async () => {
  const answers = await Promise.all(
    Array.from({ length: 200 }, () => server.request('GET', '/v1/email?limit=1')),
  );
  expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
});

test('bodies with absurd structure are refused, and others are served meanwhile', async () => {
  const bodies = [
    '['.repeat(20_000) + ']'.repeat(20_000),
    '['.repeat(900_000),
    `{${Array.from({ length: 1_000_000 }, (_, index) => `"k${index}":0`).join()}}`,
    `{"to":[${Array.from({ length: 1_000_000 }, () => '"a"').join()}]}`,
  ];
  const refusals = bodies.map((body) => server.request('POST', '/v1/email/send', body));
  expect((await server.request('GET', '/v1/email?limit=1')).status).toBe(200);
  for (const { status, body } of await Promise.all(refusals)) {
    expect(body).toEqual(envelope(400, 'bad_request'));
    expect(status).toBe(400);
  }
});

test('a million wrong values are answered with a list that has an end', async () => {
  const { status, text } = await server.request('POST', '/v1/email/send', {
    ...letter,
    to: Array.from({ length: 40_000 }, () => 5),
  });
  expect(status).toBe(422);
  expect(text.length).toBeLessThan(5_000);
});

describe('reading much', () => {
  let narrow: TestServer;

  beforeAll(async () => {
    const pace = { bytesPerSecond: 1, burstBytes: 1, waitMaxMs: 0 };
    narrow = await startTestServer({ limits: { pace } });
  });

  afterAll(() => narrow.stop());

  test('is refused beyond its pace beside an organization that asks for something, and changes nothing else', async () => {
    const { id: organizationId } = await createOrganization(narrow.installation, 'Other');
    const wanted = { organizationId, name: 'K', scopes: ['full_access'], expiresAt: null };
    const { key } = await createApiKey(narrow.installation, wanted);
    const other = { authorization: `Bearer ${key}` };
    const read = async (headers?: Record<string, string>) =>
      (await narrow.request('GET', '/v1/email', undefined, headers)).status;
    expect([await read(), await read(), await read()]).toEqual([200, 200, 200]);
    expect(await read(other)).toBe(200);
    expect([await read(), await read()]).toEqual([200, 503]);
    // What reads nothing goes on.
    expect((await narrow.request('POST', '/v1/email/send', letter)).status).toBe(202);
  });
});

describe('a database that is away', () => {
  let admin: pg.Client;
  let away: TestServer;

  beforeAll(async () => {
    admin = new pg.Client(clientConfigOf(inject('databaseServer')));
    await admin.connect();
    away = await startTestServer();
  });

  afterAll(async () => {
    await away.stop();
    await admin.end();
  });

  async function setAway(name: string, isAway: boolean): Promise<void> {
    await admin.query(`alter database ${name} allow_connections ${!isAway}`);
    if (isAway) {
      await admin.query('select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = $1', [
        name,
      ]);
    }
  }

  test('is answered with 503 and a time to come back, and when it is back so is everything', async () => {
    const [row] = await away.installation.database.rows(
      unpreparedStatement<{ name: string }>('select current_database() as name'),
    );
    const asks = () =>
      Promise.all([
        away.request('GET', '/v1/email'),
        away.request('GET', `/v1/email/${unknownId}`),
        away.request('POST', '/v1/email/send', letter, { 'idempotency-key': 'once' }),
        away.request('POST', '/v1/email/send', letter),
        away.request('GET', '/v1/email', undefined, { authorization: `Bearer ${generateApiKey()}` }),
      ]);
    expect((await asks()).map(({ status }) => status)).toEqual([200, 404, 202, 202, 401]);
    expect((await away.request('GET', '/readyz')).status).toBe(200);

    await setAway(row!.name, true);
    const answers = await asks();
    for (const { body, headers } of answers) {
      expect(body).toEqual(envelope(503, 'service_unavailable'));
      expect(headers.get('retry-after')).toMatch(/^[1-9]\d*$/);
    }
    expect((await away.request('GET', '/readyz')).status).toBe(503);
    expect((await away.request('GET', '/healthz')).status).toBe(200);

    await setAway(row!.name, false);
    const back = await asks();
    expect(back.map(({ status }) => status)).toEqual([200, 404, 202, 202, 401]);
    expect(back[2].headers.get('idempotent-replayed')).toBe('true');
    expect((await away.request('GET', '/readyz')).status).toBe(200);
  });
});

describe('fifty bodies of thirty megabytes at once', () => {
  let address: DatabaseAddress;
  let database: Database;
  let key: string;

  useTestDatabase({ connectionsMax: 1 }, (opened) => {
    address = opened.address;
    database = opened.database;
  });
  const { start } = usePrograms();
  beforeAll(async () => {
    const tools = { ...server.installation, database };
    const { organizationId, key: made } = await createSender(tools, 'large.test');
    await updateOrganization(tools, organizationId, { requestsPerWindow: 100_000 });
    key = made;
  });

  test('are accepted or refused with a status of theirs, and the process lives on 512 MB of heap', async () => {
    const settings = {
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      PORT: '0',
      HOST: '127.0.0.1',
      LOG_LEVEL: 'silent',
    };
    const { child, untilSaid } = start(settings, ['serve', '--role', 'api'], {
      nodeOptions: ['--max-old-space-size=512'],
    });
    const url = (await untilSaid('output', servedUrl))![1]!;
    const content = 'A'.repeat(29 * 1_048_576);
    const body = Buffer.from(
      JSON.stringify({
        ...letter,
        from: 'hello@large.test',
        attachments: [{ filename: 'large.bin', content }],
      }),
    );
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };

    // A connection that ends after its response would be torn down under a client that is still sending.
    const agent = new Agent({ keepAlive: true });
    const send = async () => {
      const request = httpRequest(`${url}/v1/email/send`, {
        method: 'POST',
        agent,
        headers: { ...headers, 'content-length': body.length },
      });
      const answered = once(request, 'response') as Promise<[IncomingMessage]>;
      request.end(body);
      const [response] = await answered;
      let text = '';
      for await (const chunk of response) text += String(chunk);
      return { status: response.statusCode ?? 0, body: JSON.parse(text) as unknown };
    };
    const large = Promise.all(Array.from({ length: 50 }, send));
    const small = await Promise.all(
      Array.from({ length: 20 }, async () => (await fetch(`${url}/v1/email`, { headers })).status),
    );
    const answers = await large;

    // On a machine that has other things to do, some wait too long for a connection and are refused.
    expect(small.filter((status) => status !== 200 && status !== 503)).toEqual([]);
    expect(small).toContain(200);
    expect(answers.filter(({ status }) => ![202, 413, 429, 503].includes(status))).toEqual([]);
    expect(answers.some(({ status }) => status === 202)).toBe(true);
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    expect(await send()).toMatchObject({ status: 202 });
    agent.destroy();
    const peakBytes = await readPeakMemory(child.pid!);
    if (peakBytes !== null) expect(peakBytes).toBeLessThan(1_073_741_824);
  });
});

/** The most memory that a process ever had, or null where the system does not tell. */
async function readPeakMemory(pid: number): Promise<number | null> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const kilobytes = /^VmHWM:\s+(\d+) kB$/m.exec(text)?.[1];
  return kilobytes === undefined ? null : Number(kilobytes) * 1_024;
}
