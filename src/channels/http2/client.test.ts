import { constants } from 'node:http2';
import { createServer, type Server, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { certificateForTests } from '../../../test/support/certificate-for-tests.ts';
import { startHttp2Peer } from '../../../test/support/http2-peer.ts';
import { startHttp2RawPeer } from '../../../test/support/http2-raw-peer.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createHttpClient, type HttpClient, type HttpClientOptions, type HttpRequest } from './client.ts';

const endings: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

function later<Resource extends { stop: () => Promise<unknown> }>(resource: Resource): Resource {
  endings.push(resource.stop);
  return resource;
}

function aClient(origin: string, more: Partial<HttpClientOptions> = {}) {
  const clock = createManualClock();
  const client = createHttpClient({ clock, origin, authorities: certificateForTests, ...more });
  endings.push(client.close);
  return { clock, client };
}

const aRequest: HttpRequest = {
  method: 'POST',
  path: '/send?a=1',
  headers: { 'content-type': 'text/plain' },
  body: Buffer.from('hello'),
};

function freely(more: Partial<{ confirm: () => Promise<void>; signal: AbortSignal }> = {}) {
  return { confirm: () => Promise.resolve(), signal: new AbortController().signal, ...more };
}

const post = (client: HttpClient, more: Partial<HttpRequest> = {}) =>
  client.exchange({ ...aRequest, ...more }, freely());

/** Lets what has arrived be read. */
async function turns(count = 20): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

describe.each(['h2', 'http/1.1'] as const)('over %s', (speaks) => {
  test('a request arrives as it was given, and its answer comes back', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    peer.answerBy(() => ({ status: 201, headers: { location: '/m/1' }, body: { is: 'well' } }));
    const { client } = aClient(peer.origin);
    expect(await post(client)).toMatchObject({
      kind: 'answered',
      status: 201,
      headers: { location: '/m/1' },
      body: '{"is":"well"}',
    });
    expect(peer.requests).toMatchObject([
      {
        method: 'POST',
        path: '/send?a=1',
        headers: { 'content-type': 'text/plain', 'content-length': '5' },
        body: Buffer.from('hello'),
      },
    ]);
  });

  test('nothing is sent before it is confirmed', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    const { client } = aClient(peer.origin);
    await post(client);
    let requestsAtConfirm = -1;
    const confirm = async () => {
      await turns();
      requestsAtConfirm = peer.requests.length;
    };
    await client.exchange(aRequest, freely({ confirm }));
    expect([requestsAtConfirm, peer.requests.length]).toEqual([1, 2]);
  });

  test('what is not confirmed is not sent, its error comes through, and its place is given back', async () => {
    const peer = later(await startHttp2Peer({ speaks, streamsMax: 1 }));
    const { client } = aClient(peer.origin);
    const refusal = new Error('the claim is lost');
    const refused = client.exchange(aRequest, freely({ confirm: () => Promise.reject(refusal) }));
    await expect(refused).rejects.toBe(refusal);
    expect(await post(client)).toMatchObject({ kind: 'answered' });
    expect(peer.requests).toHaveLength(1);
  });

  test('a connection that is cut after the request leaves it unanswered', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    peer.answerBy(({ path }) => (path === '/cut' ? 'cut' : { status: 200 }));
    const { client } = aClient(peer.origin);
    await post(client);
    expect(await post(client, { path: '/cut' })).toMatchObject({ kind: 'unanswered' });
    expect(await post(client)).toMatchObject({ kind: 'answered' });
  });

  test('a connection that is lost while a request is confirmed is replaced, and the request is sent once', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    const { client } = aClient(peer.origin);
    await post(client);
    const confirm = async () => {
      peer.cut();
      await turns();
    };
    expect(await client.exchange(aRequest, freely({ confirm }))).toMatchObject({ kind: 'answered' });
    expect(peer.requests.map(({ connection }) => connection)).toEqual([1, 2]);
  });

  test('a far side that falls silent is given up after half a minute', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    peer.answerBy(() => 'silence');
    const { client, clock } = aClient(peer.origin);
    const request = peer.nextRequest();
    const answer = post(client);
    await request;
    clock.advance(30_000);
    expect(await answer).toMatchObject({ kind: 'unanswered', detail: 'no answer within 30 seconds' });
  });

  test('an answer that is too large has its status and no body', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    peer.answerBy(() => ({ status: 200, body: 'x'.repeat(70_000) }));
    const { client } = aClient(peer.origin);
    expect(await post(client)).toMatchObject({ kind: 'answered', status: 200, body: null });
  });

  test('a redirection is an answer, and is not followed', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    peer.answerBy(() => ({ status: 307, headers: { location: `${peer.origin}/other` } }));
    const { client } = aClient(peer.origin);
    expect(await post(client)).toMatchObject({ kind: 'answered', status: 307 });
    expect(peer.requests).toHaveLength(1);
  });

  test('what is under way ends before it closes', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    let answer: () => void = () => undefined;
    peer.answerBy(
      () =>
        new Promise((resolve) => {
          answer = () => {
            resolve({ status: 200 });
          };
        }),
    );
    const { client } = aClient(peer.origin);
    const request = peer.nextRequest();
    const exchanged = post(client);
    await request;
    let isClosed = false;
    const closed = client.close().then(() => (isClosed = true));
    await turns();
    expect(isClosed).toBe(false);
    answer();
    expect(await exchanged).toMatchObject({ kind: 'answered' });
    await closed;
  });

  test('a far side that can be reached passes the probe without a request', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    const { client } = aClient(peer.origin);
    expect(await client.probe()).toBeNull();
    expect(peer.requests).toEqual([]);
  });

  test('a certificate that nobody vouches for is refused', async () => {
    const peer = later(await startHttp2Peer({ speaks }));
    const { client } = aClient(peer.origin, { authorities: null });
    expect(await post(client)).toMatchObject({ kind: 'unreachable' });
    expect(peer.requests).toEqual([]);
  });
});

test('many requests share one connection, and no more are confirmed than SETTINGS allow', async () => {
  const peer = later(await startHttp2Peer({ streamsMax: 3 }));
  let confirmed = 0;
  let served = 0;
  let most = 0;
  peer.answerBy(async () => {
    await turns(2);
    served += 1;
    return { status: 200 };
  });
  const confirm = async () => {
    confirmed += 1;
    most = Math.max(most, confirmed - served);
  };
  const { client } = aClient(peer.origin);
  const answers = await Promise.all(
    Array.from({ length: 300 }, () => client.exchange(aRequest, freely({ confirm }))),
  );
  expect(answers.filter(({ kind }) => kind === 'answered')).toHaveLength(300);
  expect([most, peer.connections()]).toEqual([3, 1]);
});

test('SETTINGS that come later hold for what comes after them', async () => {
  const raw = later(await startHttp2RawPeer({ streamsMax: 1 }));
  const { client } = aClient(raw.origin);
  const answers = [post(client), post(client), post(client)];
  const connection = await raw.connection(0);
  await connection.whenRequested(1);
  connection.allowStreams(3);
  await connection.whenRequested(3);
  for (const id of [1, 3, 5]) connection.respond(id);
  expect(await Promise.all(answers)).toMatchObject(Array(3).fill({ kind: 'answered' }));

  connection.allowStreams(0);
  const last = post(client);
  await turns();
  connection.allowStreams(1);
  await connection.whenRequested(4);
  connection.respond(7);
  expect(await last).toMatchObject({ kind: 'answered' });
});

describe('a GOAWAY', () => {
  async function withThreeUnderWay() {
    const raw = later(await startHttp2RawPeer());
    const { client, clock } = aClient(raw.origin);
    const first = post(client);
    const connection = await raw.connection(0);
    await connection.whenRequested(1);
    connection.respond(1);
    await first;
    const answers = [post(client), post(client), post(client)]; // streams 3, 5 and 7
    await connection.whenRequested(4);
    return { raw, client, clock, connection, answers };
  }

  test('without an error lets the streams that it names end, and says that the others were not processed', async () => {
    const { connection, answers } = await withThreeUnderWay();
    connection.goaway(5, constants.NGHTTP2_NO_ERROR);
    connection.respond(3);
    connection.respond(5);
    const kinds = (await Promise.all(answers)).map(({ kind }) => kind);
    expect(kinds).toEqual(['answered', 'answered', 'unprocessed']);
  });

  test('with an error leaves uncertain what it names, and nothing else', async () => {
    const { connection, answers } = await withThreeUnderWay();
    connection.goaway(5, constants.NGHTTP2_INTERNAL_ERROR);
    const kinds = (await Promise.all(answers)).map(({ kind }) => kind);
    expect(kinds).toEqual(['unanswered', 'unanswered', 'unprocessed']);
  });

  test('is announced by one that names every stream, and then decides by the second', async () => {
    const { connection, answers } = await withThreeUnderWay();
    connection.goaway(2 ** 31 - 1, constants.NGHTTP2_NO_ERROR);
    connection.goaway(3, constants.NGHTTP2_NO_ERROR);
    connection.respond(3);
    const kinds = (await Promise.all(answers)).map(({ kind }) => kind);
    expect(kinds).toEqual(['answered', 'unprocessed', 'unprocessed']);
  });

  test('sends what comes later to another connection', async () => {
    const { raw, client, connection, answers } = await withThreeUnderWay();
    connection.goaway(7, constants.NGHTTP2_NO_ERROR);
    await turns();
    const next = post(client);
    const second = await raw.connection(1);
    await second.whenRequested(1);
    second.respond(1);
    expect(await next).toMatchObject({ kind: 'answered' });
    for (const id of [3, 5, 7]) connection.respond(id);
    expect(await Promise.all(answers)).toMatchObject(Array(3).fill({ kind: 'answered' }));
  });

  test('while a request is confirmed sends it to another connection', async () => {
    const { raw, client, connection, answers } = await withThreeUnderWay();
    const confirm = async () => {
      connection.goaway(7, constants.NGHTTP2_NO_ERROR);
      for (const id of [3, 5, 7]) connection.respond(id);
      await Promise.all(answers);
    };
    const next = client.exchange(aRequest, freely({ confirm }));
    const second = await raw.connection(1);
    await second.whenRequested(1);
    second.respond(1);
    expect(await next).toMatchObject({ kind: 'answered' });
  });
});

test.each([
  ['REFUSED_STREAM', constants.NGHTTP2_REFUSED_STREAM, 'unprocessed'],
  ['INTERNAL_ERROR', constants.NGHTTP2_INTERNAL_ERROR, 'unanswered'],
  ['CANCEL', constants.NGHTTP2_CANCEL, 'unanswered'],
  ['NO_ERROR', constants.NGHTTP2_NO_ERROR, 'unanswered'],
])('a stream that is reset by %s was left %s', async (_name, code, kind) => {
  const raw = later(await startHttp2RawPeer());
  const { client } = aClient(raw.origin);
  const answer = post(client);
  const connection = await raw.connection(0);
  await connection.whenRequested(1);
  connection.reset(1, code);
  expect((await answer).kind).toBe(kind);
});

test.each(['silence', 'a cut'])(
  'an answer that breaks off after its head, by %s, has its status and no body',
  async (end) => {
    const raw = later(await startHttp2RawPeer());
    const { client, clock } = aClient(raw.origin);
    const [broken, whole] = [post(client), post(client)];
    const connection = await raw.connection(0);
    await connection.whenRequested(2);
    connection.respondHead(1);
    connection.respond(3);
    // What came after the head was read, and so was the head.
    await whole;
    if (end === 'a cut') connection.cut();
    else clock.advance(10_000);
    expect(await broken).toMatchObject({ kind: 'answered', status: 200, body: null });
  },
);

test('a connection that was quiet for a minute is asked whether it is there, and replaced if it is not', async () => {
  const raw = later(await startHttp2RawPeer());
  const { client, clock } = aClient(raw.origin);
  const answer = async (number: number, streamId: number) => {
    const connection = await raw.connection(number);
    await connection.whenRequested((streamId + 1) / 2);
    connection.respond(streamId);
  };
  await Promise.all([post(client), answer(0, 1)]);
  clock.advance(61_000);
  await Promise.all([post(client), answer(0, 3)]);

  raw.answerPings(false);
  clock.advance(61_000);
  const last = post(client);
  await turns();
  clock.advance(5_000);
  await Promise.all([last, answer(1, 1)]);
  expect(await last).toMatchObject({ kind: 'answered' });
});

test('a connection on which an answer is overdue and that answers no PING is replaced, a second one after a pause', async () => {
  const raw = later(await startHttp2RawPeer());
  raw.answerPings(false);
  const { client, clock } = aClient(raw.origin);
  for (const number of [0, 1]) {
    const lost = post(client);
    await (await raw.connection(number)).whenRequested(1);
    clock.advance(30_000);
    expect(await lost).toMatchObject({ kind: 'unanswered' });
    clock.advance(5_000);
    await turns();
  }
  expect(await post(client)).toMatchObject({
    kind: 'unreachable',
    detail: 'the last connections ended without an answer',
  });
  clock.advance(2_000);
  const next = post(client);
  const third = await raw.connection(2);
  await third.whenRequested(1);
  third.respond(1);
  expect(await next).toMatchObject({ kind: 'answered' });
});

test('where nobody listens, requests fail at once and unconfirmed, and connections are tried after growing pauses', async () => {
  const peer = await startHttp2Peer();
  await peer.stop();
  const { client, clock } = aClient(peer.origin);
  let confirmed = 0;
  const confirm = async () => void (confirmed += 1);
  const attempt = () => client.exchange(aRequest, freely({ confirm }));
  expect(await attempt()).toMatchObject({ kind: 'unreachable', detail: 'ECONNREFUSED' });

  const again = later(await startHttp2Peer({ port: Number(new URL(peer.origin).port) }));
  clock.advance(999);
  expect(await attempt()).toMatchObject({ kind: 'unreachable' });
  expect(again.connections()).toBe(0);
  clock.advance(1);
  expect(await attempt()).toMatchObject({ kind: 'answered' });
  expect(confirmed).toBe(1);
});

test('a far side that takes connections and says nothing is given up, and connects nobody for ever', async () => {
  const silent: Server = createServer((socket) => socket.on('error', () => undefined).resume());
  await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
  endings.push(() => new Promise((resolve) => silent.close(resolve)));
  const { client, clock } = aClient(`https://127.0.0.1:${(silent.address() as { port: number }).port}`);
  const answer = post(client);
  await clock.whenWaiting(2);
  clock.advance(15_000);
  expect(['unreachable', 'busy']).toContain((await answer).kind);
});

test('a request that is aborted while it waits is neither confirmed nor sent', async () => {
  const raw = later(await startHttp2RawPeer({ streamsMax: 1 }));
  const { client } = aClient(raw.origin);
  const first = post(client);
  const connection = await raw.connection(0);
  await connection.whenRequested(1);
  const controller = new AbortController();
  let isConfirmed = false;
  const waiting = client.exchange(
    aRequest,
    freely({ signal: controller.signal, confirm: async () => void (isConfirmed = true) }),
  );
  const reason = new Error('shutting down');
  controller.abort(reason);
  await expect(waiting).rejects.toBe(reason);
  connection.respond(1);
  await first;
  await turns();
  expect(isConfirmed).toBe(false);
});

test('a request that is aborted as it is begun is neither confirmed nor sent', async () => {
  const peer = later(await startHttp2Peer());
  const { client } = aClient(peer.origin);
  await post(client);
  const controller = new AbortController();
  const reason = new Error('shutting down');
  let isConfirmed = false;
  const begun = client.exchange(
    aRequest,
    freely({ signal: controller.signal, confirm: async () => void (isConfirmed = true) }),
  );
  controller.abort(reason);
  await expect(begun).rejects.toBe(reason);
  expect([isConfirmed, peer.requests.length]).toEqual([false, 1]);
});

test('a client that is closed while it connects leaves no connection', async () => {
  const silent: Server = createServer();
  const accepted = new Promise<Socket>((resolve) => silent.once('connection', resolve));
  await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
  const { client } = aClient(`https://127.0.0.1:${(silent.address() as { port: number }).port}`);
  const controller = new AbortController();
  const aborted = client.exchange(aRequest, freely({ signal: controller.signal }));
  const socket = await accepted;
  const ended = new Promise((resolve) =>
    socket
      .on('error', () => undefined)
      .once('close', resolve)
      .resume(),
  );
  controller.abort(new Error('shutting down'));
  await expect(aborted).rejects.toThrow('shutting down');
  await client.close();
  await ended;
  await new Promise((resolve) => silent.close(resolve));
});

test('no more requests wait than are served in time, and none for ever', async () => {
  const raw = later(await startHttp2RawPeer({ streamsMax: 1 }));
  const { client, clock } = aClient(raw.origin);
  const first = post(client);
  const connection = await raw.connection(0);
  await connection.whenRequested(1);
  const waiting = Array.from({ length: 2_001 }, () => post(client));
  expect(await waiting[2_000]).toMatchObject({ kind: 'busy' });
  clock.advance(15_000);
  expect(await waiting[0]).toMatchObject({ kind: 'busy', detail: 'no place within 15 seconds' });
  expect((await Promise.all(waiting)).every(({ kind }) => kind === 'busy')).toBe(true);
  connection.respond(1);
  expect(await first).toMatchObject({ kind: 'answered' });
});

test('over HTTP/1.1, whoever gets no connection in time finds the far side busy, and not away', async () => {
  const peer = later(await startHttp2Peer({ speaks: 'http/1.1' }));
  const { client, clock } = aClient(peer.origin);
  await post(client);
  peer.answerBy(() => 'silence');
  const silent = Array.from({ length: 16 }, () => post(client));
  await expect.poll(() => peer.requests.length).toBe(17);
  const late = post(client);
  await turns();
  clock.advance(15_000);
  expect(await late).toEqual({ kind: 'busy', detail: 'no connection within 15 seconds' });
  clock.advance(15_000);
  expect(await Promise.all(silent)).toMatchObject(Array(16).fill({ kind: 'unanswered' }));
});

test('another connection is made on demand, and the old one ends what it has begun', async () => {
  const raw = later(await startHttp2RawPeer());
  const { client } = aClient(raw.origin);
  const first = post(client);
  const one = await raw.connection(0);
  await one.whenRequested(1);
  client.renew();
  const next = post(client);
  const two = await raw.connection(1);
  await two.whenRequested(1);
  two.respond(1);
  one.respond(1);
  expect(await Promise.all([first, next])).toMatchObject(Array(2).fill({ kind: 'answered' }));
});

test('a host is looked up in the way that is given', async () => {
  const peer = later(await startHttp2Peer());
  const asked: string[] = [];
  const { client } = aClient(`https://localhost:${new URL(peer.origin).port}`, {
    lookup: (host, _options, callback) => {
      asked.push(host);
      callback(null, [{ address: '127.0.0.1', family: 4 }]);
    },
  });
  expect(await post(client)).toMatchObject({ kind: 'answered' });
  const refusing = aClient('https://localhost:1', {
    lookup: (_host, _options, callback) => {
      callback(new Error('the address is private'), []);
    },
  });
  expect(await post(refusing.client)).toMatchObject({
    kind: 'unreachable',
    detail: 'the address is private',
  });
  expect(asked).toEqual(['localhost']);
});
