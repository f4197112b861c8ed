import { createServer as createHttpServer } from 'node:http';
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import { createServer as createTcpServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import {
  certificateForTests,
  privateKeyForTests,
} from '../../../../../test/support/certificate-for-tests.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { describeSmsProvider } from '../../../../../test/support/sms-provider-conformance.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { SmsFailure, SmsHandOff, SmsProvider } from '../../provider.ts';
import { createTwilioProvider } from './twilio.ts';
import { parseTwilioUrl } from './url.ts';

const accountSid = `AC${'0123456789abcdef'.repeat(2)}`;
const messagingServiceSid = `MG${'fedcba9876543210'.repeat(2)}`;
const sid = `SM${'0123456789abcdef'.repeat(2)}`;
const accepted = JSON.stringify({ sid, status: 'queued' });

/** A server on loopback that knows its connections, so that a test can tell that none is left. */
async function listen(server: Server) {
  const sockets = new Set<Socket>();
  const closings: Promise<void>[] = [];
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    closings.push(
      new Promise((resolve) => {
        socket.on('close', () => {
          sockets.delete(socket);
          resolve();
        });
      }),
    );
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    sockets,
    connections: () => closings.length,
    /** Resolves once every connection was closed, and fails by never doing so. */
    whenAllClosed: () => Promise.all(closings),
    stop: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

const endings: (() => void | Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

/** A provider before a server of one's own. The connections must all be gone once it is closed. */
async function arrange(server: Server, scheme: 'http' | 'https' = 'http', parameters = '') {
  const peer = await listen(server);
  const clock = createManualClock();
  const host = scheme === 'http' ? '127.0.0.1' : 'localhost';
  const provider = createTwilioProvider({
    url: parseTwilioUrl(`${scheme}://${accountSid}:s%3Acret@${host}:${peer.port}${parameters}`),
    callbackUrl: ({ organizationId, messageId, ordinal }) =>
      `https://post.test/twilio/${organizationId}/${messageId}/${ordinal}?a=b&c=d`,
    clock,
    authorities: certificateForTests,
  });
  endings.push(async () => {
    await provider.close();
    await peer.whenAllClosed();
    peer.stop();
  });
  return { peer, clock, provider, ...handingOff(provider) };
}

function handingOff(provider: SmsProvider) {
  const confirmed: string[] = [];
  const handOff = (changes: Partial<SmsHandOff> = {}): Promise<SendOutcome<SmsFailure>> =>
    provider.handOff({
      reference: { organizationId: 'o', messageId: 'm', ordinal: 7 },
      sender: { name: 'Postillion', type: 'alphanumeric' },
      to: '+15005550006',
      text: 'Your code is 123456.',
      confirm: async () => {
        confirmed.push(changes.to ?? 'confirmed');
      },
      signal: new AbortController().signal,
      ...changes,
    });
  return { confirmed, handOff };
}

async function readForm(request: IncomingMessage): Promise<URLSearchParams> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return new URLSearchParams(Buffer.concat(chunks).toString());
}

function answering(
  listener: (form: URLSearchParams, request: IncomingMessage, response: ServerResponse) => void,
) {
  const onRequest: RequestListener = (request, response) => {
    void readForm(request).then((form) => {
      listener(form, request, response);
    });
  };
  return createHttpServer(onRequest);
}

/** A server that speaks no HTTP of its own: it gets each socket as soon as a whole request has come in. */
function speaking(onRequest: (socket: Socket) => void) {
  return createTcpServer((socket) => {
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk.toString();
      const [head = '', body] = text.split('\r\n\r\n');
      const length = Number(/^content-length: (\d+)$/im.exec(head)?.[1] ?? 0);
      if (body === undefined || body.length < length) return;
      text = '';
      onRequest(socket);
    });
  });
}

function reply(response: ServerResponse, status: number, body: string, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(body);
}

describeSmsProvider('Twilio', async () => {
  const delivered: { from: string; to: string; text: string }[] = [];
  const clock = createManualClock();
  let tellOfSilence: () => void = () => undefined;
  const peer = await listen(
    answering((form, request, response) => {
      const [to = '', from = '', text = ''] = ['To', 'From', 'Body'].map((name) => form.get(name) ?? '');
      if (request.method === 'GET')
        reply(response, 200, JSON.stringify({ sid: accountSid, status: 'active' }));
      else if (to === '+15005550001') reply(response, 400, '{"code":21211,"message":"Not a\\nnumber"}');
      else if (to === '+15005550002') reply(response, 429, '{"code":20429,"message":"Too many"}');
      else {
        delivered.push({ from: from.replace('+', ''), to, text });
        const id = delivered.length.toString(16).padStart(32, '0');
        if (to === '+15005550003') request.socket.destroy();
        else if (to === '+15005550005') tellOfSilence();
        else reply(response, 201, JSON.stringify({ sid: `SM${id}`, status: 'queued' }));
      }
    }),
  );
  return {
    provider: createTwilioProvider({
      url: parseTwilioUrl(`http://${accountSid}:token@127.0.0.1:${peer.port}`),
      callbackUrl: () => 'https://post.test/twilio',
      clock,
    }),
    recipients: { accepted: '+15005550006', rejected: '+15005550001', deferred: '+15005550002' },
    recipientOfLostAnswer: '+15005550003',
    silence: {
      recipient: '+15005550005',
      whenTaken: () =>
        new Promise<void>((resolve) => {
          tellOfSilence = resolve;
        }),
      passTime: clock.advance,
    },
    delivered: async () => delivered,
    receiptOf: null,
    dispose: async () => {
      await peer.whenAllClosed();
      peer.stop();
    },
  };
});

test.each([
  ['alphanumeric', 'Postillion', 'Postillion'],
  ['long_code', '15551230000', '+15551230000'],
  ['toll_free', '18005550100', '+18005550100'],
  ['short_code', '12345', '12345'],
] as const)('a text from a %s is asked for as Twilio has it', async (type, name, from) => {
  let seen: unknown = null;
  const { handOff } = await arrange(
    answering((form, { method, url, headers }, response) => {
      seen = { method, url, headers, form: [...form].sort() };
      reply(response, 201, accepted);
    }),
    'http',
    `?messaging_service=${messagingServiceSid}`,
  );
  const outcome = await handOff({ sender: { name, type }, text: 'a&b=c +%\r\nGrüße 👋' });
  expect(outcome).toMatchObject({ kind: 'accepted', providerMessageId: sid });
  expect(seen).toEqual({
    method: 'POST',
    url: `/2010-04-01/Accounts/${accountSid}/Messages.json`,
    headers: expect.objectContaining({
      authorization: `Basic ${Buffer.from(`${accountSid}:s:cret`).toString('base64')}`,
      'content-type': 'application/x-www-form-urlencoded',
    }),
    form: [
      ['Body', 'a&b=c +%\r\nGrüße 👋'],
      ['From', from],
      ['MessagingServiceSid', messagingServiceSid],
      ['StatusCallback', 'https://post.test/twilio/o/m/7?a=b&c=d'],
      ['To', '+15005550006'],
    ],
  });
});

test('without a messaging service none is named', async () => {
  let names: string[] = [];
  const { handOff } = await arrange(
    answering((form, _, response) => {
      names = [...form.keys()];
      reply(response, 201, accepted);
    }),
  );
  await handOff();
  expect(names.sort()).toEqual(['Body', 'From', 'StatusCallback', 'To']);
});

test.each([
  [200, 'the message', accepted, {}, 'accepted', undefined],
  [201, 'the message', accepted, {}, 'accepted', undefined],
  [204, 'nothing', '', {}, 'unknown', undefined],
  [201, 'a page', '<html></html>', { 'content-type': 'text/html' }, 'unknown', undefined],
  [201, 'half of the message', accepted.slice(0, 40), {}, 'unknown', undefined],
  [201, 'more than 64 kB', accepted.padEnd(65_537), {}, 'unknown', undefined],
  [201, 'no more than 64 kB', accepted.padEnd(65_536), {}, 'accepted', undefined],
  [301, 'another place', '', { location: 'http://127.0.0.1:1/' }, 'deferred', 'provider_unavailable'],
  [307, 'another place', '', { location: 'http://127.0.0.1:1/' }, 'deferred', 'provider_unavailable'],
  [400, 'a known error', '{"code":21610,"message":"No"}', {}, 'rejected', 'blocked'],
  [400, 'a page', '<html></html>', {}, 'deferred', 'other'],
  [401, 'its error', '{"code":20003,"message":"Authenticate"}', {}, 'deferred', 'provider_unavailable'],
  [403, 'nothing', '', {}, 'deferred', 'provider_unavailable'],
  [404, 'its error', '{"code":20404,"message":"Not found"}', {}, 'deferred', 'provider_unavailable'],
  [429, 'a time', '', { 'retry-after': '7' }, 'deferred', 'rate_limited'],
  [500, 'its error', '{"code":20500,"message":"Oops"}', {}, 'unknown', undefined],
  [502, 'a page', '<html></html>', {}, 'unknown', undefined],
  [503, 'nothing', '', {}, 'unknown', undefined],
  [503, 'a time', '', { 'retry-after': '7' }, 'deferred', 'provider_unavailable'],
] as const)(
  'an answer of %i with %s makes of a hand-off what it says',
  async (status, _, body, headers, kind, reason) => {
    const { handOff, confirmed } = await arrange(
      answering((_form, _request, response) => {
        reply(response, status, body, headers);
      }),
    );
    const outcome = await handOff();
    expect([outcome.kind, 'reason' in outcome ? outcome.reason : undefined]).toEqual([kind, reason]);
    if ('retry-after' in headers) expect(outcome).toMatchObject({ retryAfterMs: 7_000 });
    expect(confirmed).toHaveLength(1);
  },
);

const head = 'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n';

test.each<[string, (socket: Socket) => void]>([
  ['closes without a word', (socket) => socket.end()],
  ['resets the connection', (socket) => socket.resetAndDestroy()],
  ['says half a line', (socket) => socket.end('HTTP/1.1 2')],
  ['speaks no HTTP', (socket) => socket.end('220 mail.example.test ESMTP\r\n')],
  ['stops in its head', (socket) => socket.end(head)],
  ['promises more than it says', (socket) => socket.end(`${head}Content-Length: 9999\r\n\r\n${accepted}`)],
  [
    'breaks off a chunk',
    (socket) => socket.end(`${head}Transfer-Encoding: chunked\r\n\r\nff\r\n${accepted}`),
  ],
  [
    'leaves out the last chunk',
    (socket) => socket.end(`${head}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n`),
  ],
  [
    'switches protocols',
    (socket) => socket.end('HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'),
  ],
  ['contradicts itself', (socket) => socket.end(`${head}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}`)],
  ['has an endless head', (socket) => endless(socket, head, `X-Padding: ${'x'.repeat(1_000)}\r\n`)],
  ['has an endless body', (socket) => endless(socket, `${head}\r\n`, ' '.repeat(1_000))],
  [
    'has an endless chunk',
    (socket) => endless(socket, `${head}Transfer-Encoding: chunked\r\n\r\n7fffffff\r\n`, ' '.repeat(1_000)),
  ],
  [
    'packs what was to be unpacked',
    (socket) => socket.end(`${head}Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08`),
  ],
])('a server that %s leaves the text uncertain, and is left alone', async (_, speak) => {
  const { handOff, confirmed, peer } = await arrange(speaking(speak));
  const outcome = await handOff();
  expect(outcome).toMatchObject({
    kind: 'unknown',
    reply: { diagnostic: expect.stringMatching(/^\P{Cc}+$/u) },
  });
  expect(confirmed).toHaveLength(1);
  await peer.whenAllClosed();
  expect(peer.connections()).toBe(1);
});

/** Writes on as long as the peer reads. */
function endless(socket: Socket, beginning: string, more: string) {
  socket.write(beginning);
  const write = () => {
    while (!socket.destroyed && socket.write(more));
  };
  socket.on('drain', write);
  write();
}

test('a refusal whose words break off is a refusal all the same', async () => {
  const { handOff } = await arrange(
    speaking((socket) => socket.end('HTTP/1.1 401 Unauthorized\r\nContent-Length: 99\r\n\r\n{"code"')),
  );
  expect(await handOff()).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
});

test('a server that does not answer for thirty seconds leaves the text uncertain', async () => {
  const asked = signal();
  const { handOff, clock, peer } = await arrange(speaking(asked.give));
  const handedOff = handOff();
  let isOver = false;
  void handedOff.finally(() => {
    isOver = true;
  });
  await asked.given;
  clock.advance(29_999);
  await new Promise((resolve) => setImmediate(resolve));
  expect(isOver).toBe(false);
  clock.advance(1);
  expect(await handedOff).toMatchObject({
    kind: 'unknown',
    reply: { diagnostic: 'no answer within 30 seconds' },
  });
  await peer.whenAllClosed();
});

test('a body that comes drop by drop is waited for no longer than ten seconds', async () => {
  let drip: (() => void) | null = null;
  const { handOff, clock, peer } = await arrange(
    speaking((socket) => {
      socket.write(`${head}Content-Length: 999\r\n\r\n`);
      drip = () => socket.write(' ');
    }),
  );
  const handedOff = handOff();
  while (drip === null) await new Promise((resolve) => setImmediate(resolve));
  let outcome: SendOutcome<SmsFailure> | null = null;
  void handedOff.then((done) => {
    outcome = done;
  });
  let waitedMs = 0;
  for (; outcome === null; waitedMs += 1_000) {
    (drip as () => void)();
    await new Promise((resolve) => setImmediate(resolve));
    clock.advance(1_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(outcome).toMatchObject({
    kind: 'unknown',
    reply: { diagnostic: 'an answer that names no message' },
  });
  expect(waitedMs).toBeLessThan(30_000);
  await peer.whenAllClosed();
});

test('where nothing listens, nothing is confirmed, and the provider is away', async () => {
  const { provider, peer, handOff, confirmed } = await arrange(createTcpServer());
  peer.stop();
  expect(await handOff()).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { diagnostic: 'ECONNREFUSED' },
  });
  expect(confirmed).toEqual([]);
  expect(await provider.probe()).toBe('ECONNREFUSED');
});

test('a server that speaks no TLS within fifteen seconds is away, and nothing is confirmed', async () => {
  const connected = signal();
  const { handOff, confirmed, clock, peer } = await arrange(createTcpServer(connected.give), 'https');
  const handedOff = handOff();
  await connected.given;
  clock.advance(15_000);
  expect(await handedOff).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(confirmed).toEqual([]);
  await peer.whenAllClosed();
});

test('a hand-off that waits for its connection ends with an abort', async () => {
  const connected = signal();
  const { handOff, confirmed, peer } = await arrange(createTcpServer(connected.give), 'https');
  const controller = new AbortController();
  const handedOff = handOff({ signal: controller.signal });
  await connected.given;
  const reason = new Error('shutting down');
  controller.abort(reason);
  await expect(handedOff).rejects.toBe(reason);
  expect(confirmed).toEqual([]);
  await peer.whenAllClosed();
});

const tls = { cert: certificateForTests, key: privateKeyForTests };

test('a text goes over TLS to a server whose certificate is trusted', async () => {
  const { handOff } = await arrange(
    createHttpsServer(tls, (request, response) => {
      request.resume().on('end', () => {
        reply(response, 201, accepted);
      });
    }),
    'https',
  );
  expect((await handOff()).kind).toBe('accepted');
  expect((await handOff()).kind).toBe('accepted');
});

test('a server whose certificate is not trusted gets neither the text nor the credentials', async () => {
  let requests = 0;
  const peer = await listen(
    createHttpsServer(tls, () => {
      requests += 1;
    }),
  );
  const provider = createTwilioProvider({
    url: parseTwilioUrl(`https://${accountSid}:token@localhost:${peer.port}`),
    callbackUrl: () => 'https://post.test/',
    clock: createManualClock(),
  });
  const { handOff, confirmed } = handingOff(provider);
  expect(await handOff()).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect([requests, confirmed]).toEqual([0, []]);
  await provider.close();
  await peer.whenAllClosed();
  peer.stop();
});

test('connections are kept, and no more than 32 are opened', async () => {
  const held: ServerResponse[] = [];
  const allHeld = signal();
  const { handOff, peer } = await arrange(
    answering((_form, _request, response) => {
      held.push(response);
      if (held.length >= 32) {
        allHeld.give();
        for (const each of held.splice(0)) reply(each, 201, accepted);
      }
    }),
  );
  const first = Array.from({ length: 64 }, () => handOff());
  await allHeld.given;
  for (const outcome of await Promise.all(first)) expect(outcome.kind).toBe('accepted');
  expect(peer.connections()).toBe(32);
});

test('a kept connection that is closed while the hand-off is confirmed is replaced, and nothing is sent twice', async () => {
  const bodies: (string | null)[] = [];
  const { handOff, confirmed, peer } = await arrange(
    answering((form, _request, response) => {
      bodies.push(form.get('Body'));
      reply(response, 201, accepted);
    }),
  );
  await handOff({ text: 'first' });
  const [kept] = peer.sockets;
  const outcome = await handOff({
    text: 'second',
    confirm: async () => {
      confirmed.push('again');
      kept?.destroy();
      await peer.whenAllClosed();
      await new Promise((resolve) => setImmediate(resolve));
    },
  });
  expect(outcome.kind).toBe('accepted');
  expect(bodies).toEqual(['first', 'second']);
  expect(confirmed).toEqual(['confirmed', 'again']);
  expect(peer.connections()).toBe(2);
});

test('an answer that came before the request is not taken for its answer', async () => {
  let requests = 0;
  let speakFirst: () => void = () => undefined;
  const answer = `${head}Content-Length: ${accepted.length}\r\n\r\n${accepted}`;
  const { handOff, peer } = await arrange(
    speaking((socket) => {
      requests += 1;
      socket.write(answer);
      speakFirst = () => socket.write(answer);
    }),
  );
  await handOff();
  const outcome = await handOff({
    confirm: async () => {
      speakFirst();
      await peer.whenAllClosed();
    },
  });
  expect(outcome.kind).toBe('accepted');
  expect([requests, peer.connections()]).toEqual([2, 2]);
});

test('a provider that goes away while the hand-off is confirmed has got nothing', async () => {
  const { handOff, peer } = await arrange(answering(() => undefined));
  const outcome = await handOff({
    confirm: async () => {
      peer.stop();
      await peer.whenAllClosed();
      await new Promise((resolve) => setImmediate(resolve));
    },
  });
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
});

test('a hand-off that waits for its answer gets it though the provider closes', async () => {
  const asked = signal();
  let answer: () => void = () => undefined;
  const { provider, handOff } = await arrange(
    answering((_form, _request, response) => {
      answer = () => {
        reply(response, 201, accepted);
      };
      asked.give();
    }),
  );
  const handedOff = handOff();
  await asked.given;
  const closed = provider.close();
  await new Promise((resolve) => setImmediate(resolve));
  answer();
  expect((await handedOff).kind).toBe('accepted');
  await closed;
});

test('more hand-offs than are any use are put off', async () => {
  const { handOff, confirmed } = await arrange(createTcpServer(), 'https');
  const controller = new AbortController();
  const waiting = Array.from({ length: 2_048 }, () => handOff({ signal: controller.signal }));
  const settled = Promise.allSettled(waiting);
  expect(await handOff()).toMatchObject({ kind: 'deferred', reason: 'rate_limited' });
  controller.abort(new Error('enough'));
  expect((await settled).every(({ status }) => status === 'rejected')).toBe(true);
  expect(confirmed).toEqual([]);
});

test.each([
  [200, '{"status":"active"}', null],
  [401, '{"code":20003,"message":"Authenticate"}', 'Authenticate'],
  [500, '', 'HTTP status 500'],
])('a probe that is answered by %i and %j says %j', async (status, body, expected) => {
  let asked: unknown = null;
  const { provider } = await arrange(
    answering((_form, { method, url }, response) => {
      asked = [method, url];
      reply(response, status, body);
    }),
  );
  expect(await provider.probe()).toBe(expected);
  expect(asked).toEqual(['GET', `/2010-04-01/Accounts/${accountSid}.json`]);
});

function signal() {
  let give: () => void = () => undefined;
  const given = new Promise<void>((resolve) => {
    give = resolve;
  });
  return { give: () => give(), given };
}
