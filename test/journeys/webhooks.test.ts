/** Webhooks: what a program of an organization is told by requests to it, whatever it answers. */
import { Webhook } from 'standardwebhooks';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  send,
  type Sender,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startWebhookReceiver, type WebhookReceiver, writeAnswer } from '../support/webhook-receiver.ts';

type WebhookRecord = {
  id: string;
  status: string;
  secret: string;
  backlog: number;
  failing_since: string | null;
  last_failure: { status: number | null; message: string } | null;
};
type Told = { id: string; type: string; sequence: number; data: { object: string; id: string; test?: true } };
type Delivery = { id: string; status: string; attempts: number; type: string };

const minuteMs = 60_000;
const dayMs = 24 * 60 * minuteMs;
/** By then it was tried again, also where a busy machine has made the first tries while a test was at it. */
const retriedMs = 3 * 60 * minuteMs;

let server: TestServer;
let other: Sender & { organizationId: string };
let clock: ShiftedClock;
let receiver: WebhookReceiver;
const made: { id: string; sender?: Sender }[] = [];

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, publicUrl: 'https://mail.postillion.test' });
  other = await createSender(server.installation, 'other.example');
  await rowsOf(server, 'update organizations set requests_per_window = 100000');
});
afterAll(() => server.stop());
beforeEach(async () => {
  receiver = await startWebhookReceiver();
});
afterEach(async () => {
  for (const { id, sender } of made.splice(0)) await ask('DELETE', `/${id}`, undefined, sender);
  await receiver.stop();
});

function ask<Body = WebhookRecord>(method: string, path: string, body?: unknown, sender?: Sender) {
  return server.request<Body & ErrorBody>(method, `/v1/webhooks${path}`, body, authorize(sender));
}

async function createEndpoint(more: object = {}, sender?: Sender): Promise<WebhookRecord> {
  const { status, body, text } = await ask(
    'POST',
    '',
    { kind: 'url', url: `http://127.0.0.1:${receiver.port}/hooks`, events: ['email.*'], ...more },
    sender,
  );
  if (status !== 201) throw new Error(text);
  made.push({ id: body.id, ...(sender && { sender }) });
  return body;
}

const readEndpoint = async (id: string) => (await ask('GET', `/${id}`)).body;

const toldOf = ({ requests }: WebhookReceiver = receiver) =>
  requests.map(({ body }) => JSON.parse(body.toString()) as Told);

const listDeliveries = async (id: string, query = '') =>
  (await ask<{ data: Delivery[] }>('GET', `/${id}/deliveries${query}`)).body.data;

const fail = (status: number, headers: readonly string[] = []) => {
  receiver.answerBy((socket) => socket.write(writeAnswer(status, 'no', headers)));
};
const accept = () => {
  receiver.answerBy((socket) => socket.write(writeAnswer(200, 'ok')));
};

test('an endpoint is told of what happens, and another implementation verifies it', async () => {
  const { id, secret } = await createEndpoint({ headers: { 'x-gateway': 'open sesame' } });
  const [mine] = [await send(server), await send(server, { from: 'a@other.example' }, other)];
  await receiver.whenReceived(1);
  const [request] = receiver.requests;
  const { headers, body, method, path } = request!;
  expect([method, path, headers['x-gateway'], headers['content-type']]).toEqual([
    'POST',
    '/hooks',
    'open sesame',
    'application/json',
  ]);
  const told = new Webhook(secret, { format: 'whsec' } as never).verify(body.toString(), headers) as Told;
  expect(told).toMatchObject({ id: headers['webhook-id'], type: 'email.delivered', data: { id: mine } });
  const [delivery] = await eventually(
    () => listDeliveries(id),
    (found) => found.length === 1,
  );
  expect(delivery).toMatchObject({ id: told.id, status: 'delivered', attempts: 1 });
  const { body: read } = await ask<{ attempt_list: object[] }>('GET', `/${id}/deliveries/${told.id}`);
  expect(read.attempt_list).toEqual([expect.objectContaining({ status: 200, message: null, answer: 'ok' })]);
  expect((await readEndpoint(id)).backlog).toBe(0);
  expect(receiver.requests.length).toBe(1);
});

test('while a secret is replaced, receivers with either verify; afterwards, with the new one alone', async () => {
  const { id, secret } = await createEndpoint();
  const { body: rotated } = await ask<{ secret: string }>('POST', `/${id}/rotate-secret`, {
    expire_after_hours: 1,
  });
  const verify = (key: string, at: number) => {
    const { body, headers } = receiver.requests[at]!;
    return () => new Webhook(key).verify(body.toString(), headers);
  };
  await send(server);
  await receiver.whenReceived(1);
  for (const key of [secret, rotated.secret]) expect(verify(key, 0)).not.toThrow();
  clock.putForward(61 * minuteMs);
  await send(server);
  await receiver.whenReceived(2);
  // The clock of that library is that of the machine, and refuses what is of another hour.
  const signatures = receiver.requests.map(({ headers }) => headers['webhook-signature']!.split(' ').length);
  expect(signatures).toEqual([2, 1]);
});

test('more than a round are told, each once, to each endpoint that wants it', async () => {
  const second = await startWebhookReceiver();
  try {
    await createEndpoint({ concurrency: 20 });
    await createEndpoint({ url: `http://127.0.0.1:${second.port}/`, events: ['email.bounced'] });
    const ids = await Promise.all(
      Array.from({ length: 230 }, (_, number) =>
        send(server, { to: [number < 3 ? 'bounced@simulator.postillion.test' : 'ann@example.com'] }),
      ),
    );
    await receiver.whenReceived(230);
    await second.whenReceived(3);
    expect(
      toldOf()
        .map(({ data }) => data.id)
        .sort(),
    ).toEqual([...ids].sort());
    expect(
      toldOf(second)
        .map(({ data }) => data.id)
        .sort(),
    ).toEqual(ids.slice(0, 3).sort());
  } finally {
    await second.stop();
  }
});

test('what is not taken is told again by the schedule, under the same id, and others meanwhile', async () => {
  const { id } = await createEndpoint();
  fail(500);
  await send(server);
  await receiver.whenReceived(1);
  await eventually(
    () => listDeliveries(id, '?status=retrying'),
    (found) => found.length === 1,
  );
  accept();
  const later = await send(server);
  await receiver.whenReceived(2);
  expect(toldOf()[1]!.data.id).toBe(later);
  clock.putForward(retriedMs);
  await receiver.whenReceived(3);
  expect(toldOf()[2]!.id).toBe(toldOf()[0]!.id);
  const [first] = await eventually(
    () => listDeliveries(id, '?type=email.delivered'),
    (found) => found.every(({ status }) => status === 'delivered'),
  ).then((found) => found.filter((each) => each.id === toldOf()[0]!.id));
  expect(first).toMatchObject({ status: 'delivered', attempts: 2 });
  const { body } = await ask<{ attempt_list: object[] }>('GET', `/${id}/deliveries/${first!.id}`);
  expect(body.attempt_list).toMatchObject([{ status: 500, answer: 'no' }, { status: 200 }]);
});

test('an endpoint with one request at a time is told in order, and waits for what was not taken', async () => {
  const { id } = await createEndpoint({ concurrency: 1 });
  fail(503);
  const first = await send(server);
  await settled(server, first);
  const ids = [first];
  for (let count = 0; count < 30; count += 1) {
    ids.push(await send(server));
    await settled(server, ids.at(-1)!);
  }
  const failing = await eventually(
    () => readEndpoint(id),
    ({ status }) => status === 'failing',
  );
  expect(failing.last_failure).toMatchObject({ status: 503 });
  expect(new Set(toldOf().map(({ data }) => data.id))).toEqual(new Set([first]));
  accept();
  const before = receiver.requests.length;
  clock.putForward(retriedMs);
  await receiver.whenReceived(before + 31);
  expect(
    toldOf()
      .slice(before)
      .map(({ data }) => data.id),
  ).toEqual(ids);
  expect((await readEndpoint(id)).status).toBe('enabled');
});

describe('an endpoint that takes nothing', () => {
  test('is told of one event at a time, and of all once it takes that one; nothing is lost in five days', async () => {
    const { id } = await createEndpoint({ concurrency: 4 });
    fail(500);
    clock.putForward(10 * minuteMs);
    const ids = await Promise.all(Array.from({ length: 40 }, () => send(server)));
    for (const each of ids) await settled(server, each);
    await eventually(
      () => readEndpoint(id),
      ({ status }) => status === 'failing',
    );
    const attempted = receiver.requests.length;
    expect(attempted).toBeLessThan(30);
    // A probe, and nothing else.
    clock.putForward(retriedMs);
    await receiver.whenReceived(attempted + 1);
    for (let day = 0; day < 4; day += 1) {
      const sent = await send(server);
      ids.push(sent);
      await settled(server, sent);
      const seen = receiver.requests.length;
      clock.putForward(1.3 * dayMs);
      await receiver.whenReceived(seen + 1);
    }
    await eventually(
      () => readEndpoint(id),
      ({ status }) => status === 'disabled',
    );
    accept();
    const seen = receiver.requests.length;
    expect((await ask('POST', `/${id}/enable`)).status).toBe(200);
    await eventually(
      () =>
        new Set(
          toldOf()
            .slice(seen)
            .map(({ data }) => data.id),
        ),
      (told) => ids.every((each) => told.has(each)),
    );
    await eventually(
      () => listDeliveries(id, '?status=retrying'),
      (found) => found.length === 0,
    );
    expect(await readEndpoint(id)).toMatchObject({ status: 'enabled', backlog: 0, failing_since: null });
  });

  test('and says that it is gone is disabled at once, and loses nothing', async () => {
    const { id } = await createEndpoint();
    fail(410);
    await send(server);
    await receiver.whenReceived(1);
    await eventually(
      () => readEndpoint(id),
      ({ status }) => status === 'disabled',
    );
    accept();
    await ask('POST', `/${id}/enable`);
    await receiver.whenReceived(2);
    expect(toldOf()[1]!.id).toBe(toldOf()[0]!.id);
  });

  test('holds up no other, of its organization or of another', async () => {
    receiver.answerBy(() => undefined);
    await createEndpoint({ concurrency: 20 });
    const quick = await startWebhookReceiver();
    const theirs = await startWebhookReceiver();
    try {
      await createEndpoint({ url: `http://127.0.0.1:${quick.port}/` });
      await createEndpoint({ url: `http://127.0.0.1:${theirs.port}/` }, other);
      for (let count = 0; count < 5; count += 1) {
        await send(server);
        await send(server, { from: 'a@other.example' }, other);
      }
      await quick.whenReceived(5);
      await theirs.whenReceived(5);
      await receiver.whenReceived(1);
    } finally {
      await quick.stop();
      await theirs.stop();
    }
  });
});

test('a webhook that is paused is told nothing, and of all once it goes on, or of what comes then', async () => {
  const { id } = await createEndpoint();
  expect((await ask('POST', `/${id}/pause`)).body.status).toBe('paused');
  const missed = await send(server);
  await settled(server, missed);
  await eventually(
    () => readEndpoint(id),
    ({ backlog }) => backlog === 1,
  );
  expect(receiver.requests.length).toBe(0);
  await ask('POST', `/${id}/enable`);
  await receiver.whenReceived(1);
  await ask('POST', `/${id}/pause`);
  await settled(server, await send(server));
  await eventually(
    () => readEndpoint(id),
    ({ backlog }) => backlog === 1,
  );
  await ask('POST', `/${id}/enable`, { from: 'now' });
  const next = await send(server);
  await receiver.whenReceived(2);
  expect(toldOf().map(({ data }) => data.id)).toEqual([missed, next]);
});

test('a part of the log is told again, and a single event', async () => {
  const { id } = await createEndpoint();
  const ids = [await send(server), await send(server), await send(server)];
  await receiver.whenReceived(3);
  const [second] = toldOf()
    .map(({ sequence }) => sequence)
    .sort((one, two) => one - two)
    .slice(1);
  const { status, body } = await ask<{ count: number }>('POST', `/${id}/replay`, { from: second });
  expect([status, body]).toEqual([202, { count: 2, next: null }]);
  await receiver.whenReceived(5);
  const eventId = toldOf()[0]!.id;
  expect((await ask('POST', `/${id}/deliveries/${eventId}/retry`)).status).toBe(202);
  await receiver.whenReceived(6);
  expect(toldOf()[5]!.id).toBe(eventId);
  expect(new Set(toldOf().map(({ data }) => data.id))).toEqual(new Set(ids));
});

test('a part of the log that is more than a round is told again once, also ahead of what was told before', async () => {
  const { id } = await createEndpoint({ concurrency: 20 });
  const sendMany = async (count: number) => {
    const ids = await Promise.all(Array.from({ length: count }, () => send(server)));
    for (const each of ids) await settled(server, each);
    return ids;
  };
  const ids = await sendMany(45);
  await receiver.whenReceived(45);
  const first = Math.min(...toldOf().map(({ sequence }) => sequence));
  await ask('POST', `/${id}/pause`);
  const missed = await sendMany(45);
  await eventually(
    () => readEndpoint(id),
    ({ backlog }) => backlog === 45,
  );
  const replayed = await ask<{ count: number }>('POST', `/${id}/replay`, { from: first });
  expect(replayed.body).toEqual({ count: 90, next: null });
  await ask('POST', `/${id}/enable`);
  await eventually(
    async () => [await listDeliveries(id, '?status=retrying'), (await readEndpoint(id)).backlog] as const,
    ([retrying, backlog]) => retrying.length === 0 && backlog === 0,
  );
  const times = new Map<string, number>();
  for (const { data } of toldOf()) times.set(data.id, (times.get(data.id) ?? 0) + 1);
  expect(ids.map((each) => times.get(each))).toEqual(ids.map(() => 2));
  // Once because of the replay, and some once more because the cursor comes to them.
  for (const each of missed) expect([1, 2]).toContain(times.get(each));
});

test('an endpoint can be tried, whatever state it is in, and says what it said', async () => {
  const { id } = await createEndpoint();
  await ask('POST', `/${id}/pause`);
  const tried = await ask<object>('POST', `/${id}/test`, { type: 'email.bounced' });
  expect([tried.status, tried.body]).toEqual([
    200,
    expect.objectContaining({ delivered: true, status: 200, answer: 'ok', message: null }),
  ]);
  expect(toldOf()[0]).toMatchObject({ type: 'email.bounced', data: { object: 'email', test: true } });
  fail(302, ['location: http://127.0.0.1/']);
  const refused = await ask<object>('POST', `/${id}/test`);
  expect(refused.body).toMatchObject({ delivered: false, status: 302 });
});

test('endpoints that hang while they are tried leave room for another organization', async () => {
  const { id } = await createEndpoint();
  receiver.answerBy(() => undefined);
  const tries = Array.from({ length: 60 }, () => ask('POST', `/${id}/test`));
  await receiver.whenReceived(50);
  const quick = await startWebhookReceiver();
  try {
    const theirs = await createEndpoint({ url: `http://127.0.0.1:${quick.port}/` }, other);
    expect((await ask('POST', `/${theirs.id}/test`, undefined, other)).status).toBe(200);
  } finally {
    await quick.stop();
  }
  await receiver.stop();
  const statuses = (await Promise.all(tries)).map(({ status }) => status);
  expect([200, 503].map((status) => statuses.filter((each) => each === status).length)).toEqual([50, 10]);
});

test('a replay counts as a request for each hundred positions', async () => {
  const { id } = await createEndpoint();
  const leftAfter = async (body: object) =>
    Number((await ask('POST', `/${id}/replay`, body)).headers.get('ratelimit-remaining'));
  const left = await leftAfter({ from: 1, to: 1 });
  expect(await leftAfter({ from: 1, to: 101 })).toBe(left - 2);
  expect(await leftAfter({ from: 1 })).toBe(left - 102);
});

test('another organization neither sees an endpoint nor does anything to it', async () => {
  const { id } = await createEndpoint();
  await send(server);
  await receiver.whenReceived(1);
  const eventId = toldOf()[0]!.id;
  for (const [method, path, body] of [
    ['GET', `/${id}`],
    ['PATCH', `/${id}`, {}],
    ['DELETE', `/${id}`],
    ['GET', `/${id}/deliveries`],
    ['GET', `/${id}/deliveries/${eventId}`],
    ['POST', `/${id}/deliveries/${eventId}/retry`],
    ...['pause', 'enable', 'rotate-secret', 'test'].map((name) => ['POST', `/${id}/${name}`] as const),
    ['POST', `/${id}/replay`, { from: 1 }],
  ] as const) {
    expect([path, (await ask(method, path, body, other)).status]).toEqual([path, 404]);
  }
  expect((await readEndpoint(id)).status).toBe('enabled');
});

test.each([
  [{ kind: 'url' }, 'url is required'],
  [{ kind: 'url', url: 'http://example.com/' }, 'url must be an https URL'],
  [{ kind: 'url', url: 'https://169.254.169.254/' }, 'url must have a host on the public Internet'],
  [{ kind: 'url', url: 'https://example.com/', headers: { Host: 'a' } }, 'headers.Host'],
  [{ kind: 'url', url: 'https://example.com/', secret: 'whsec_short' }, 'secret must be'],
  [{ kind: 'url', url: 'https://example.com/', concurrency: 21 }, 'concurrency'],
  [{ kind: 'poll', url: 'https://example.com/' }, 'url must not be given'],
])('%j is refused: %s', async (body, message) => {
  const { status, text } = await ask('POST', '', { events: ['*'], ...body });
  expect([status, text]).toEqual([422, expect.stringContaining(message)]);
});

test('an organization has twenty webhooks, however many are made at once', async () => {
  const sender = await createSender(server.installation, 'many.example');
  const answers = await Promise.all(
    Array.from({ length: 25 }, () => ask('POST', '', { kind: 'poll', events: ['*'] }, sender)),
  );
  expect(answers.filter(({ status }) => status === 201).length).toBe(20);
  expect(answers.filter(({ body }) => body.name === 'webhook_limit_reached').length).toBe(5);
});

test('a webhook that is deleted is told nothing more', async () => {
  const { id } = await createEndpoint();
  fail(500);
  await send(server);
  await receiver.whenReceived(1);
  await eventually(
    () => listDeliveries(id, '?status=retrying'),
    (found) => found.length === 1,
  );
  await ask('DELETE', `/${id}`);
  expect(
    await rowsOf(server, 'select * from webhook_deliveries where webhook_id = $1 and due_at is not null', [
      id,
    ]),
  ).toEqual([]);
});
