import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import fc from 'fast-check';
import { Webhook } from 'standardwebhooks';
import {
  certificateForTests,
  expiredCertificateForTests,
  hooksCertificateForTests,
  strayCertificateForTests,
} from '../../test/support/certificate-for-tests.ts';
import { startDnsServer, type TestDnsServer } from '../../test/support/dns-server.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import {
  startWebhookReceiver,
  type WebhookReceiver,
  writeAnswer,
} from '../../test/support/webhook-receiver.ts';
import { createResolver, type Resolver } from '../platform/dns/dns.ts';
import { createAllowedHosts } from '../platform/outbound/allowed-hosts.ts';
import { createWebhookSender, type WebhookRequest, type WebhookSender } from './attempt.ts';
import { createWebhookSecret } from './signature.ts';

const secret = createWebhookSecret();
const body = Buffer.from('{"type":"email.bounced","data":{"subject":"é 😀"}}');

let dns: TestDnsServer;
let clock: ManualClock;
let resolver: Resolver;
let receiver: WebhookReceiver;
let sender: WebhookSender;

beforeAll(async () => {
  dns = await startDnsServer();
});
afterAll(() => dns.stop());
beforeEach(async () => {
  // The library of the standard takes what is of its own present time only.
  clock = createManualClock(Date.now());
  resolver = createResolver({ servers: [dns.address], clock });
  receiver = await startWebhookReceiver();
  sender = await openSender();
  return async () => {
    sender.close();
    resolver.close();
    await receiver.stop();
  };
});

async function openSender({
  allowed = ['localhost', '127.0.0.0/8'],
  authorities = null as string | null,
  clock: ownClock = clock,
} = {}): Promise<WebhookSender> {
  const opened = await createWebhookSender({
    clock: ownClock,
    resolver,
    allowed: createAllowedHosts(allowed),
    authorities,
  });
  onTestFinished(opened.close);
  return opened;
}

async function startTls(certificate: string): Promise<WebhookReceiver> {
  const started = await startWebhookReceiver({ certificate });
  onTestFinished(started.stop);
  return started;
}

function aWebhook(more: Partial<WebhookRequest> = {}): WebhookRequest {
  return {
    endpointId: 'one',
    url: `http://127.0.0.1:${receiver.port}/hooks?a=b`,
    headers: {},
    id: '018f2f6e-0000-7000-8000-000000000001',
    body,
    secrets: [secret],
    ...more,
  };
}

/** An attempt that needs the clock to move once the receiver has its request. */
async function attemptAndAdvance(byMs: number) {
  const attempt = sender.attempt(aWebhook());
  await receiver.whenReceived(1);
  clock.advance(byMs);
  return attempt;
}

test('a receiver that verifies with the library of the standard gets the event as it is', async () => {
  receiver.answerBy((socket) => {
    clock.advance(120);
    socket.write(writeAnswer(200, '{"ok":true}'));
  });
  expect(await sender.attempt(aWebhook())).toEqual({
    kind: 'delivered',
    status: 200,
    ms: 120,
    answer: '{"ok":true}',
  });
  const [request] = receiver.requests;
  expect(request).toMatchObject({
    method: 'POST',
    path: '/hooks?a=b',
    headers: {
      host: `127.0.0.1:${receiver.port}`,
      'content-type': 'application/json',
      'webhook-id': '018f2f6e-0000-7000-8000-000000000001',
    },
  });
  expect(new Webhook(secret).verify(request!.body, request!.headers)).toEqual(JSON.parse(body.toString()));
});

test('headers of the endpoint are sent, and replace none of ours', async () => {
  const headers = { 'X-Token': 'abc', 'Webhook-Id': 'mine', 'Content-Type': 'text/plain' };
  await sender.attempt(aWebhook({ headers }));
  expect(receiver.requests[0]!.headers).toMatchObject({
    'x-token': 'abc',
    'webhook-id': '018f2f6e-0000-7000-8000-000000000001',
    'content-type': 'application/json',
  });
});

test.each([200, 201, 202, 204, 299])('the status %i is a success', async (status) => {
  receiver.answerBy((socket) => socket.write(`HTTP/1.1 ${status} X\r\ncontent-length: 0\r\n\r\n`));
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'delivered', status, answer: '' });
});

test.each([
  [301, 'The answer was 301: redirects are not followed. Give the URL to which it leads.'],
  [302, 'The answer was 302: redirects are not followed. Give the URL to which it leads.'],
  [307, 'The answer was 307: redirects are not followed. Give the URL to which it leads.'],
  [308, 'The answer was 308: redirects are not followed. Give the URL to which it leads.'],
  [400, 'The answer was 400.'],
  [429, 'The answer was 429.'],
  [500, 'The answer was 500.'],
  [999, 'The answer was 999.'],
])('the status %i is a failure, and nobody else is asked', async (status, message) => {
  receiver.answerBy((socket) => {
    socket.write(writeAnswer(status, 'no', [`location: http://127.0.0.1:${receiver.port}/elsewhere`]));
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'failed', status, message, answer: 'no' });
  expect(receiver.requests).toHaveLength(1);
});

test('410 says that the endpoint wants no more', async () => {
  receiver.answerBy((socket) => socket.write(writeAnswer(410)));
  expect(await sender.attempt(aWebhook())).toMatchObject({
    kind: 'gone',
    status: 410,
    message: 'The answer was 410: the endpoint wants no more webhooks.',
  });
});

test.each([
  ['120', 120_000],
  ['0', 0],
  ['soon', null],
  [null, null],
])('the header retry-after: %s asks for %s ms', async (value, expected) => {
  receiver.answerBy((socket) =>
    socket.write(writeAnswer(503, '', value === null ? [] : [`Retry-After: ${value}`])),
  );
  expect(await sender.attempt(aWebhook())).toMatchObject({ status: 503, retryAfterMs: expected });
});

test('retry-after may be a time, and may come twice', async () => {
  clock.setWallTime(Date.UTC(2026, 10, 27, 8, 0, 0));
  receiver.answerBy((socket) =>
    socket.write(writeAnswer(429, '', ['retry-after: Fri, 27 Nov 2026 10:00:00 GMT', 'retry-after: 1'])),
  );
  expect(await sender.attempt(aWebhook())).toMatchObject({ retryAfterMs: 7_200_000 });
});

// Receivers that hang, drip, break off and flood.

test('a receiver that says nothing is given up after 15 seconds', async () => {
  receiver.answerBy(() => undefined);
  expect(await attemptAndAdvance(15_000)).toEqual({
    kind: 'failed',
    status: null,
    ms: 15_000,
    answer: '',
    message: 'There was no answer within 15 seconds.',
    retryAfterMs: null,
  });
  await receiver.whenOpen(0);
});

test('a head that never ends is given up after 15 seconds, however often something comes of it', async () => {
  receiver.answerBy((socket) => socket.write('HTTP/1.1 200 OK\r\nx: '));
  const attempt = sender.attempt(aWebhook());
  await receiver.whenReceived(1);
  clock.advance(14_999);
  clock.advance(1);
  expect(await attempt).toMatchObject({ message: 'There was no answer within 15 seconds.' });
  await receiver.whenOpen(0);
});

test('a body that drips is waited for a second, and what the head said counts', async () => {
  let onHead: () => void = () => undefined;
  const headRead = new Promise<void>((resolve) => {
    onHead = resolve;
  });
  const dripping = await openSender({
    clock: {
      ...clock,
      after: (delayMs, callback) => {
        if (delayMs === 1_000) onHead();
        return clock.after(delayMs, callback);
      },
    },
  });
  receiver.answerBy((socket) => socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n'));
  const attempt = dripping.attempt(aWebhook());
  await headRead;
  clock.advance(1_000);
  expect(await attempt).toMatchObject({ kind: 'delivered', status: 200, ms: 0, answer: '' });
  await receiver.whenOpen(0);
});

test('an answer without end is cut off after a kilobyte', async () => {
  let written = 0;
  receiver.answerBy((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n');
    const flood = () => {
      while (!socket.destroyed && socket.write(Buffer.alloc(65_536, 'x'))) written += 65_536;
    };
    socket.on('drain', flood);
    flood();
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({
    kind: 'delivered',
    answer: 'x'.repeat(1_024),
  });
  await receiver.whenOpen(0);
  // What fits into the buffers of the two sockets, and no more.
  expect(written).toBeLessThan(64 * 1_024 * 1_024);
});

test('headers without end are given up at 16 kB', async () => {
  receiver.answerBy((socket) => {
    socket.write('HTTP/1.1 200 OK\r\n');
    const flood = () => {
      while (!socket.destroyed && socket.write(`x: ${'y'.repeat(1_000)}\r\n`));
    };
    socket.on('drain', flood);
    flood();
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({
    kind: 'failed',
    status: null,
    message: 'The headers of the answer are larger than 16 kB.',
  });
  await receiver.whenOpen(0);
});

test('what is compressed is not unpacked', async () => {
  const bomb = Buffer.alloc(600, 0x1f);
  receiver.answerBy((socket) => {
    socket.write(`HTTP/1.1 500 X\r\ncontent-encoding: gzip\r\ncontent-length: ${bomb.length}\r\n\r\n`);
    socket.write(bomb);
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({
    status: 500,
    answer: '(compressed, and not unpacked)',
  });
  expect(receiver.requests[0]!.headers['accept-encoding']).toBe('identity');
});

test('a connection that breaks off after the head of a success has had the event', async () => {
  receiver.answerBy((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart', () => socket.resetAndDestroy());
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'delivered', status: 200 });
});

const brokenOff = 'The connection was closed before there was an answer.';
const noHttp = 'The answer is not HTTP/1.1.';

test.each<[string, string | null, string]>([
  ['closes', '', brokenOff],
  ['resets', null, brokenOff],
  ['breaks off within the head', 'HTTP/1.1 200 OK\r\nx: y', brokenOff],
  ['speaks something else', 'SSH-2.0-OpenSSH_9.2\r\n', noHttp],
  ['speaks HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', noHttp],
  ['switches protocols', 'HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n', brokenOff],
  ['has a length that is none', 'HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n', noHttp],
  ['announces an answer, and closes', 'HTTP/1.1 103 X\r\n\r\n', brokenOff],
  ['announces for ever, and closes', 'HTTP/1.1 103 X\r\n\r\n'.repeat(1_000), brokenOff],
])('a receiver that %s has failed, in words', async (_what, octets, message) => {
  receiver.answerBy((socket) => {
    if (octets === null) socket.resetAndDestroy();
    else socket.end(octets);
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'failed', status: null, message });
  expect(receiver.requests).toHaveLength(1);
});

test('a receiver that announces an answer again and again is given up at once', async () => {
  receiver.answerBy((socket) => {
    socket.write('HTTP/1.1 103 X\r\n\r\n'.repeat(11));
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'failed', message: brokenOff });
  await receiver.whenOpen(0);
});

test('what is announced before the answer is none', async () => {
  receiver.answerBy((socket) => {
    socket.write(`HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n${writeAnswer(200, 'ok')}`);
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'delivered', status: 200, answer: 'ok' });
});

test('an answer to nothing is no answer to the next event', async () => {
  receiver.answerBy((socket) => socket.write(writeAnswer(200, 'first') + writeAnswer(500, 'smuggled')));
  expect(await sender.attempt(aWebhook())).toMatchObject({ answer: 'first' });
  receiver.answerBy((socket) => socket.write(writeAnswer(200, 'second')));
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'delivered', answer: 'second' });
});

test('whatever a receiver writes, the attempt ends, with words that can be stored', async () => {
  const parts = fc.oneof(
    fc.constantFrom('HTTP/1.1 200 OK', 'HTTP/1.0 204 X', 'HTTP/1.1 100 X', 'HTTP/1.1 410 \r\n', '\r\n\r\n'),
    fc.constantFrom(
      '\r\ncontent-length: 5',
      '\r\ntransfer-encoding: chunked',
      '\r\nconnection: close',
      '0\r\n\r\n',
    ),
    fc.constantFrom(
      '\r\n__proto__: x',
      '\r\nconstructor: y',
      '\r\nkeep-alive: timeout=-1',
      '\r\nretry-after: 9',
    ),
    fc.constantFrom(
      '\r\ntrailer: a',
      '5\r\nhello\r\n',
      'ffffffffffffffff\r\n',
      '\r\nexpect: 100-continue',
      '\0',
    ),
    fc.string({ unit: 'binary', maxLength: 40 }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(parts, { maxLength: 8 }), async (octets) => {
      receiver.answerBy((socket) => socket.end(octets.join('')));
      const attempt = await sender.attempt(aWebhook());
      if (attempt.kind === 'put_off') throw new Error('put off');
      expect(Buffer.byteLength(attempt.answer)).toBeLessThanOrEqual(1_024);
      expect(attempt.kind === 'delivered').toBe(
        attempt.status !== null && attempt.status >= 200 && attempt.status < 300,
      );
    }),
    { numRuns: 400 },
  );
});

// TLS.

const atLocalhost = (port: number) => aWebhook({ url: `https://localhost:${port}/` });

test('a certificate for the name of the URL is wanted, and taken', async () => {
  const tls = await startTls(certificateForTests);
  const trusting = await openSender({ authorities: certificateForTests });
  expect(await trusting.attempt(atLocalhost(tls.port))).toMatchObject({ kind: 'delivered' });
  // Of an address, the certificate names the address.
  const atAddress = aWebhook({ url: `https://127.0.0.1:${tls.port}/` });
  expect(await trusting.attempt(atAddress)).toMatchObject({ kind: 'delivered' });
});

test.each([
  ['for another name', hooksCertificateForTests, 'The certificate is for other names than localhost.'],
  ['that has expired', expiredCertificateForTests, 'The certificate of localhost has expired.'],
  [
    'of nobody',
    strayCertificateForTests,
    'The certificate of localhost is from an authority that is not known, or the certificates between them are missing.',
  ],
])('a receiver with a certificate %s gets nothing', async (_what, certificate, message) => {
  const tls = await startTls(certificate);
  const authorities = certificateForTests + hooksCertificateForTests + expiredCertificateForTests;
  const trusting = await openSender({ authorities });
  expect(await trusting.attempt(atLocalhost(tls.port))).toMatchObject({
    kind: 'failed',
    status: null,
    message,
  });
  expect(tls.requests).toEqual([]);
});

test('a receiver with a certificate that it signed itself gets nothing', async () => {
  const tls = await startTls(certificateForTests);
  expect(await sender.attempt(atLocalhost(tls.port))).toMatchObject({
    kind: 'failed',
    message: 'The certificate of localhost is signed by itself.',
  });
  expect(tls.requests).toEqual([]);
});

test('a receiver without TLS, and one that keeps the handshake waiting, get nothing', async () => {
  const url = `https://localhost:${receiver.port}/`;
  receiver.answerBy(() => undefined);
  const attempt = sender.attempt(aWebhook({ url }));
  await receiver.whenConnected(1);
  clock.advance(15_000);
  expect(await attempt).toMatchObject({
    kind: 'failed',
    message: `There was no connection to localhost, port ${receiver.port}, within 15 seconds.`,
  });
  receiver.onConnect((socket) => socket.write('HTTP/1.1 400 Bad Request\r\n\r\n'));
  expect(await sender.attempt(aWebhook({ url }))).toMatchObject({
    kind: 'failed',
    message: `localhost speaks no TLS 1.2 or newer at port ${receiver.port}.`,
  });
  expect(receiver.requests).toEqual([]);
});

test('a port at which nobody listens, a name that nobody has, and a URL that leads inside are told', async () => {
  const { port } = receiver;
  await receiver.stop();
  expect(await sender.attempt(aWebhook())).toMatchObject({
    kind: 'failed',
    message: `127.0.0.1 refused the connection at port ${port}.`,
  });
  expect(await sender.attempt(aWebhook({ url: 'https://nobody.example.com/' }))).toMatchObject({
    message: 'No public address was found for nobody.example.com.',
  });
  expect(await sender.attempt(aWebhook({ url: 'https://169.254.169.254/latest/meta-data' }))).toMatchObject({
    message: 'The URL must have a host on the public Internet.',
  });
});

test('name servers that are silent use up the time of the attempt', async () => {
  dns.fail('silent.example.com', 'silent');
  const attempt = sender.attempt(aWebhook({ url: 'https://silent.example.com/' }));
  await dns.whenAsked(1);
  clock.advance(15_000);
  expect(await attempt).toMatchObject({
    kind: 'failed',
    ms: 15_000,
    message: expect.stringMatching(/^The name servers of silent\.example\.com did not answer/) as unknown,
  });
});

// Names that move.

async function atHooks(allowed: string[]) {
  const tls = await startTls(hooksCertificateForTests);
  const moving = await openSender({ allowed, authorities: hooksCertificateForTests });
  const attempt = () => moving.attempt(aWebhook({ url: `https://hooks.example.com:${tls.port}/` }));
  dns.ttlSeconds = 0;
  onTestFinished(() => {
    dns.ttlSeconds = 300;
  });
  return { tls, attempt };
}

test('a name that moves inside gets nothing more, on no connection that was kept either', async () => {
  const { tls, attempt } = await atHooks(['127.0.0.1']);
  dns.set('hooks.example.com', { A: ['127.0.0.1'] });
  expect(await attempt()).toMatchObject({ kind: 'delivered' });
  dns.set('hooks.example.com', { A: ['127.0.0.2', '169.254.169.254'] });
  clock.advance(1_000);
  expect(await attempt()).toMatchObject({
    kind: 'failed',
    message: 'No public address was found for hooks.example.com.',
  });
  expect(tls.connections()).toEqual({ made: 1, open: 1 });
  expect(tls.requests).toHaveLength(1);
});

test('a name that moves to another address gets the next event there', async () => {
  const { tls, attempt } = await atHooks(['127.0.0.0/8']);
  for (const address of ['127.0.0.1', '127.0.0.1', '127.0.0.2']) {
    dns.set('hooks.example.com', { A: [address] });
    clock.advance(1_000);
    expect(await attempt()).toMatchObject({ kind: 'delivered' });
  }
  expect(tls.requests.map(({ address, connection }) => [address, connection])).toEqual([
    ['127.0.0.1', 1],
    ['127.0.0.1', 1],
    ['127.0.0.2', 2],
  ]);
});

test('of a name with good and refused addresses the good ones are called, and nothing is looked up beside', async () => {
  const { tls, attempt } = await atHooks(['127.0.0.2']);
  dns.set('hooks.example.com', { A: ['127.0.0.1', '10.0.0.1', '127.0.0.2'] });
  dns.queries.length = 0;
  expect(await attempt()).toMatchObject({ kind: 'delivered' });
  expect(tls.requests.map(({ address }) => address)).toEqual(['127.0.0.2']);
  expect(dns.queries.map(({ type }) => type).sort()).toEqual(['A', 'AAAA']);
});

test('an address at which nobody listens does not keep a name from being called at the next', async () => {
  const { tls, attempt } = await atHooks(['127.0.0.0/8', '::1']);
  // The receiver listens on IPv4 alone.
  dns.set('hooks.example.com', { A: ['127.0.0.1'], AAAA: ['::1'] });
  expect(await attempt()).toMatchObject({ kind: 'delivered' });
  expect(tls.requests).toHaveLength(1);
});

// Connections.

test('a connection is kept for four seconds, and for its endpoint alone', async () => {
  for (const endpointId of ['one', 'one', 'other']) await sender.attempt(aWebhook({ endpointId }));
  expect(receiver.requests.map(({ connection }) => connection)).toEqual([1, 1, 2]);
  clock.advance(4_000);
  await receiver.whenOpen(0);
  await sender.attempt(aWebhook());
  expect(receiver.connections()).toEqual({ made: 3, open: 1 });
});

test('what meets a kept connection as it is closed is sent once more, on a new one', async () => {
  await sender.attempt(aWebhook());
  receiver.answerBy((socket, { connection }) => {
    if (connection === 1) socket.resetAndDestroy();
    else socket.write(writeAnswer(200, 'new'));
  });
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'delivered', answer: 'new' });
  expect(receiver.requests.map(({ connection }) => connection)).toEqual([1, 1, 2]);
});

test('a receiver that closes new connections as well is not asked again and again', async () => {
  await sender.attempt(aWebhook());
  receiver.answerBy((socket) => socket.resetAndDestroy());
  expect(await sender.attempt(aWebhook())).toMatchObject({ kind: 'failed', message: brokenOff });
  expect(receiver.requests).toHaveLength(3);
});

test('no connection is kept that the receiver closes, or on which its answer goes on', async () => {
  for (const answer of [
    writeAnswer(200, 'a', ['connection: close']),
    writeAnswer(200, 'a'.repeat(2_000)),
    writeAnswer(200),
  ]) {
    receiver.answerBy((socket) => socket.write(answer));
    await sender.attempt(aWebhook());
  }
  expect(receiver.requests.map(({ connection }) => connection)).toEqual([1, 2, 3]);
  await receiver.whenOpen(1);
});

test('there are never more than four hundred connections, of which idle ones are closed for new ones', async () => {
  // Each endpoint has twenty at once, and leaves them idle.
  for (const endpointId of 'abcdefghijklmnopqrstu') {
    const waiting: (() => void)[] = [];
    receiver.answerBy((socket) => {
      waiting.push(() => socket.write(writeAnswer(200)));
      if (waiting.length === 20) for (const answer of waiting) answer();
    });
    const attempts = Array.from({ length: 20 }, () => sender.attempt(aWebhook({ endpointId })));
    await Promise.all(attempts);
  }
  // Those of the first endpoint are closed, and those of the last are there.
  receiver.answerBy((socket) => socket.write(writeAnswer(200)));
  for (const endpointId of ['a', 'u']) await sender.attempt(aWebhook({ endpointId }));
  const [first, last] = receiver.requests.slice(-2).map(({ connection }) => connection);
  expect(first).toBe(421);
  expect(last).toBeGreaterThan(400);
  expect(last).toBeLessThanOrEqual(420);
  await receiver.whenOpen(400);
});

test('what is under way when the sender is closed has neither failed nor succeeded', async () => {
  receiver.answerBy(() => undefined);
  const attempt = sender.attempt(aWebhook());
  await receiver.whenReceived(1);
  sender.close();
  expect(await attempt).toEqual({ kind: 'put_off' });
  expect(await sender.attempt(aWebhook())).toEqual({ kind: 'put_off' });
  await receiver.whenOpen(0);
  expect(clock.countWaiting()).toBe(0);
});
