import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { Type } from 'typebox';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { sha256 } from '../secrets.ts';
import { createShares, type Shares } from '../shares.ts';
import { defaultArrivalLimits } from './arrival.ts';
import { collectBody, readBody } from './body-reader.ts';
import { PublicError } from './errors.ts';
import { canonicalJson } from './json-text.ts';
import { createValidation } from './validation.ts';

const validate = createValidation({}).compile(
  Type.Object(
    { name: Type.String(), content: Type.Optional(Type.String({ contentEncoding: 'base64' })) },
    { additionalProperties: false },
  ),
);

test('a body is valid, invalid or malformed, and each says why', () => {
  const read = (text: string | Buffer) => readBody(Buffer.from(text), validate, false);
  expect(read('{"name":"Ann"}')).toEqual({ kind: 'valid', value: { name: 'Ann' }, canonical: null });
  expect(read('{"name":5}')).toEqual({ kind: 'invalid', issues: ['name must be a string'] });
  expect(read('{"name":"\\u0000"}').kind).toBe('invalid');
  expect(read('{"name":')).toEqual({ kind: 'malformed', problem: 'the body is not valid JSON' });
  expect(read('')).toEqual({ kind: 'malformed', problem: 'the body is not valid JSON' });
  const notUtf8 = { kind: 'malformed', problem: 'the body is not valid UTF-8' };
  expect(read(Buffer.from('{"name":"\xff"}', 'latin1'))).toEqual(notUtf8);
  expect(read(Buffer.from('{"name":"\xed\xa0\x80"}', 'latin1'))).toEqual(notUtf8);
  expect(read(Buffer.from('{"name":"\xc0\x80"}', 'latin1'))).toEqual(notUtf8);
});

test('the fingerprint covers what was sent, before Base64 was decoded, in any order of keys', () => {
  const first = readBody(Buffer.from('{"name":"a","content":"AAAA"}'), validate, true);
  const second = readBody(Buffer.from('{ "content": "AAAA", "name": "a" }'), validate, true);
  const expected = sha256(canonicalJson({ name: 'a', content: 'AAAA' }));
  expect(first).toMatchObject({ kind: 'valid', canonical: expected });
  expect(second).toMatchObject({ kind: 'valid', canonical: expected });
});

/** What became of each request, in the order of their arrival. */
type Outcome = { kind: 'collected'; text: string } | { kind: 'refused'; error: unknown };

let server: Server;
let bytes: Shares = createShares(1_000_000);
const clock = createManualClock();
/** The last request whose body is collected. */
let collecting: IncomingMessage;
let outcomes: Promise<Outcome>[] = [];
/** Runs before the body is collected. */
let beforeCollecting: (request: IncomingMessage) => Promise<void> = () => Promise.resolve();

beforeAll(async () => {
  server = createServer((request, response) => {
    const outcome = beforeCollecting(request)
      .then(() =>
        collectBody(request, {
          bytesMax: 200_000,
          clock,
          arrival: defaultArrivalLimits,
          bytes,
          holder: String(request.headers.holder),
        }),
      )
      .then(
        ({ blocks, length, release }): Outcome => {
          release();
          const text = Buffer.concat(blocks).toString('latin1');
          expect(text).toHaveLength(length);
          return { kind: 'collected', text };
        },
        (error: unknown): Outcome => ({ kind: 'refused', error }),
      );
    outcomes.push(outcome);
    collecting = request;
    server.emit('collecting');
    void outcome.then((known) => {
      const error = known.kind === 'refused' && known.error instanceof PublicError ? known.error : null;
      response.writeHead(error?.definition.statusCode ?? 200, error?.headers).end(error?.message ?? 'ok');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

function open(): Socket {
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.on('error', () => undefined);
  return socket;
}

/** Sends a whole request and reads until the server has answered. */
async function ask(head: string, body: string | Buffer = ''): Promise<string> {
  const socket = open();
  let answer = '';
  socket.on('data', (chunk) => (answer += chunk.toString('latin1')));
  socket.write(`POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n${head}\r\n`);
  socket.write(body);
  await once(socket, 'close');
  return answer;
}

test('a body of exactly the limit is collected, and one byte more is refused', async () => {
  const text = 'x'.repeat(200_000);
  expect(await ask('content-length: 200000\r\n', text)).toMatch(/^HTTP\/1.1 200 /);
  expect(await outcomes.at(-1)).toEqual({ kind: 'collected', text });
  expect(await ask('content-length: 200001\r\n', `${text}x`)).toMatch(
    /^HTTP\/1.1 413 .*at most 200000 bytes/s,
  );
});

test('a body that says that it is too large is refused before its first byte', async () => {
  const socket = open();
  socket.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n');
  const [answer] = (await once(socket, 'data')) as [Buffer];
  expect(answer.toString()).toMatch(/^HTTP\/1.1 413 /);
  socket.destroy();
});

test('a body in chunks is refused where it passes the limit, and the client that goes on sending sees it', async () => {
  const chunk = `10000\r\n${'x'.repeat(65_536)}\r\n`;
  expect(await ask('transfer-encoding: chunked\r\n', `${chunk.repeat(40)}0\r\n\r\n`)).toMatch(
    /^HTTP\/1.1 413 /,
  );
  expect(await ask('transfer-encoding: chunked\r\n', `${chunk.repeat(3)}0\r\n\r\n`)).toMatch(
    /^HTTP\/1.1 200 /,
  );
});

test('a compressed body is refused, whatever it would unfold to', async () => {
  const bytes = gzipSync(Buffer.from('{"name":"Ann"}'));
  for (const encoding of ['gzip', 'br', 'deflate', 'identity, gzip']) {
    const answer = await ask(`content-encoding: ${encoding}\r\ncontent-length: ${bytes.length}\r\n`, bytes);
    expect(answer, encoding).toMatch(/^HTTP\/1.1 400 .*Compressed/s);
  }
  expect(await ask('content-encoding: identity\r\ncontent-length: 2\r\n', '{}')).toMatch(/^HTTP\/1.1 200 /);
});

test('large bodies share the bytes there are, and a client that finds none left is told to come back', async () => {
  bytes = createShares(450_000);
  const held = open();
  held.write(`POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 150000\r\n\r\n${'x'.repeat(100_000)}`);
  await once(server, 'collecting');
  while (bytes.held() === 0) await new Promise((resolve) => setImmediate(resolve));
  expect(await ask('content-length: 150000\r\n', 'x'.repeat(150_000))).toMatch(/^HTTP\/1.1 503 /);
  expect(await ask('content-length: 10\r\n', 'x'.repeat(10))).toMatch(/^HTTP\/1.1 200 /);
  held.write('x'.repeat(50_000));
  await outcomes.at(-3);
  expect(await ask('content-length: 150000\r\n', 'x'.repeat(150_000))).toMatch(/^HTTP\/1.1 200 /);
  held.destroy();
});

test('of one holder large bodies leave room for those of another', async () => {
  bytes = createShares(600_000);
  const held = Array.from({ length: 3 }, open);
  for (const [index, socket] of held.entries()) {
    const before = bytes.held();
    socket.write('POST / HTTP/1.1\r\nhost: x\r\nholder: greedy\r\ncontent-length: 150000\r\n\r\n');
    socket.write('x'.repeat(100_000));
    if (index < 2) while (bytes.held() === before) await new Promise((resolve) => setImmediate(resolve));
    else expect(String(await once(socket, 'data'))).toMatch(/^HTTP\/1.1 503 /);
  }
  const body = 'x'.repeat(120_000);
  expect(await ask('holder: other\r\ncontent-length: 120000\r\n', body)).toMatch(/^HTTP\/1.1 200 /);
  for (const socket of held) socket.destroy();
  await Promise.all(outcomes);
});

test('a declared length takes nothing, however many declare it', async () => {
  bytes = createShares(450_000);
  const announced = Array.from({ length: 45 }, open);
  for (const socket of announced) {
    socket.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\nx');
    await once(server, 'collecting');
  }
  expect(bytes.held()).toBe(0);
  expect(await ask('content-length: 150000\r\n', 'x'.repeat(150_000))).toMatch(/^HTTP\/1.1 200 /);
  for (const socket of announced) socket.destroy();
  await Promise.all(outcomes);
});

test('a body in chunks takes what it has become, and is refused where there is no more', async () => {
  bytes = createShares(150_000);
  const inChunks = (length: number) => `${length.toString(16)}\r\n${'x'.repeat(length)}\r\n0\r\n\r\n`;
  expect(await ask('transfer-encoding: chunked\r\n', inChunks(100_000))).toMatch(/^HTTP\/1.1 200 /);
  expect(await ask('transfer-encoding: chunked\r\n', inChunks(140_000))).toMatch(/^HTTP\/1.1 503 /);
  expect(bytes.take('other', 150_000)).not.toBeNull();
});

test.each(['one octet', 'one octet a second'])(
  'a body of which %s comes is late after ten seconds',
  async (what) => {
    const late = open();
    late.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx');
    await once(server, 'collecting');
    await clock.whenWaiting(1);
    let isAnswered = false;
    const answered = once(late, 'data').then(([answer]) => {
      isAnswered = true;
      return String(answer);
    });
    for (let second = 1; second <= 9; second += 1) {
      if (what === 'one octet a second') {
        const before = collecting.socket.bytesRead;
        late.write('x');
        while (collecting.socket.bytesRead === before) await new Promise((resolve) => setImmediate(resolve));
      }
      clock.advance(1_000);
    }
    expect(isAnswered).toBe(false);
    clock.advance(1_001);
    expect(await answered).toMatch(/^HTTP\/1.1 408 .*connection: close/is);
    await once(late, 'close');
  },
);

test('a body that keeps coming may take as long as its length needs', async () => {
  bytes = createShares(1_000_000);
  const slow = open();
  slow.write('POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 160000\r\n\r\n');
  await once(server, 'collecting');
  await clock.whenWaiting(1);
  for (let sent = 0; sent < 160_000; sent += 40_000) {
    const before = collecting.socket.bytesRead;
    slow.write('x'.repeat(40_000));
    while (collecting.socket.bytesRead < before + 40_000)
      await new Promise((resolve) => setImmediate(resolve));
    if (sent < 120_000) clock.advance(3_500);
  }
  expect(await outcomes.at(-1)).toMatchObject({ kind: 'collected' });
});

test('a request without a body takes nothing of the bytes', async () => {
  bytes = createShares(0);
  expect(await ask('')).toMatch(/^HTTP\/1.1 200 /);
  expect(await outcomes.at(-1)).toEqual({ kind: 'collected', text: '' });
});

test('a client that leaves in the middle of its body gives its bytes back', async () => {
  bytes = createShares(150_000);
  const leaving = open();
  leaving.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 150000\r\n\r\nx');
  await once(server, 'collecting');
  leaving.destroy();
  expect(await outcomes.at(-1)).toMatchObject({
    kind: 'refused',
    error: { definition: { statusCode: 400 } },
  });
  expect(bytes.take('other', 150_000)).not.toBeNull();
});

test('a body whose client left before it was read is not waited for', async () => {
  bytes = createShares(150_000);
  beforeCollecting = (request) =>
    new Promise((resolve) => {
      request.once('close', resolve);
    });
  const leaving = open();
  leaving.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 150000\r\n\r\nx');
  await once(server, 'collecting');
  leaving.destroy();
  expect(await outcomes.at(-1)).toMatchObject({
    kind: 'refused',
    error: { definition: { statusCode: 400 } },
  });
  expect(bytes.take('other', 150_000)).not.toBeNull();
  beforeCollecting = () => Promise.resolve();
  outcomes = [];
});
