/** What apps and browsers report of pushes on their devices. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { EngagementCounts, PushRecord } from '../../src/push/schema.ts';
import type { SegmentRecord } from '../../src/segments/schema.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  queueOf,
  rowsOf,
  type Sender,
} from '../support/email-journey.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
/** Without a worker: what is accepted there waits for its hand-off. */
let idle: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();
beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
  idle = await startTestServer({ clock });
  other = await createSender(server.installation, 'other.example');
  await setUpPush(server);
  await setUpPush(idle);
  await setUpPush(server, other.organizationId);
});
afterAll(() => Promise.all([server.stop(), idle.stop()]));

let names = 0;

type App = { id: string; name: string; secret: string; contactId: string; at: TestServer; sender?: Sender };

async function anApp({
  at = server,
  sender,
  prefix = '',
  contactId = '',
}: Partial<App> & { prefix?: string } = {}) {
  const name = `engaged-${(names += 1)}`;
  const owner = contactId === '' ? await aPushContact(at, sender) : contactId;
  const device = androidApp(name, { contact_id: owner, device_token: `${prefix}${name}` });
  const registered = await register(at, device, sender);
  return {
    ...{ id: registered.id, name, secret: registered.device_secret!, contactId: owner, at },
    ...(sender !== undefined && { sender }),
  } satisfies App;
}

async function sendPush({ at, contactId, sender }: App): Promise<string> {
  const body = { contact_id: contactId, title: 'Your parcel is here', body: 'It waits at the door.' };
  const { status, body: sent } = await at.request<{ id: string }>(
    'POST',
    '/v1/push/send',
    body,
    authorize(sender),
  );
  expect(status).toBe(202);
  return sent.id;
}

/** A push that its service has. */
async function pushTo(app: App): Promise<string> {
  const id = await sendPush(app);
  await eventually(
    () => queueOf(app.at, id),
    (jobs) => jobs.length === 0,
  );
  return id;
}

async function readPush({ at, sender }: App, id: string): Promise<PushRecord> {
  return (await at.request<PushRecord>('GET', `/v1/push/${id}`, undefined, authorize(sender))).body;
}

async function readDevice(app: App, id: string): Promise<PushRecord['devices'][number]> {
  return (await readPush(app, id)).devices.find((device) => device.device_id === app.id)!;
}

type EventBody = Record<string, unknown>;

function anEvent(messageId: string, type: string, more: EventBody = {}): EventBody {
  return { event_id: randomUUID(), message_id: messageId, type, occurred_at: timeAt(0), ...more };
}

const timeAt = (seconds: number) => new Date(clock.nowMs() + seconds * 1_000).toISOString();

function report(app: Pick<App, 'name' | 'secret' | 'at'>, events: readonly EventBody[]) {
  const body = { installation_id: app.name, events };
  return app.at.request<EngagementCounts & ErrorBody>('POST', '/v1/push/engagements', body, {
    authorization: `Bearer ${app.secret}`,
  });
}

async function reported(app: App, ...events: EventBody[]): Promise<number[]> {
  const { status, body, text } = await report(app, events);
  expect([status, text]).toEqual([202, expect.anything()]);
  return [body.accepted, body.duplicate, body.rejected];
}

describe('a device', () => {
  test('that reports raises the status of its push by each kind, at the time that it says', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    clock.putForward(60_000);
    const times = {
      delivered: timeAt(-40),
      displayed: timeAt(-30),
      clicked: timeAt(-20),
      dismissed: timeAt(-10),
    };
    for (const [type, at] of Object.entries(times)) {
      const more = { occurred_at: at, ...(type === 'clicked' && { action_id: 'later' }) };
      expect(await reported(app, anEvent(id, type, more))).toEqual([1, 0, 0]);
      expect(await readDevice(app, id)).toMatchObject({
        status: type === 'dismissed' ? 'clicked' : type,
        [`${type}_at`]: at,
      });
    }
    expect(await readDevice(app, id)).toMatchObject({
      delivered_at: times.delivered,
      displayed_at: times.displayed,
      clicked_at: times.clicked,
      dismissed_at: times.dismissed,
      action_id: 'later',
    });
    const [recipient] = await rowsOf(
      server,
      'select status, status_at, opened_at, clicked_at from recipients where message_id = $1',
      [id],
    );
    expect(recipient).toEqual({
      status: 'clicked',
      status_at: new Date(times.clicked),
      opened_at: new Date(times.displayed),
      clicked_at: new Date(times.clicked),
    });
  });

  test('may report in the reverse order, and the first time of each kind counts', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    clock.putForward(60_000);
    const times = {
      delivered: timeAt(-40),
      displayed: timeAt(-30),
      clicked: timeAt(-20),
      again: timeAt(-10),
    };
    const click = (at: string, actionId: string) =>
      anEvent(id, 'clicked', { occurred_at: at, action_id: actionId });
    await reported(app, click(times.again, 'second'));
    expect(await readDevice(app, id)).toMatchObject({
      status: 'clicked',
      delivered_at: times.again,
      displayed_at: times.again,
    });
    await reported(app, click(times.clicked, 'first'));
    await reported(app, anEvent(id, 'displayed', { occurred_at: times.displayed }));
    await reported(app, anEvent(id, 'delivered', { occurred_at: times.delivered }));
    expect(await readDevice(app, id)).toMatchObject({
      status: 'clicked',
      delivered_at: times.delivered,
      displayed_at: times.displayed,
      clicked_at: times.clicked,
      action_id: 'first',
    });
    const [recipient] = await rowsOf(
      server,
      'select opened_at, clicked_at from recipients where message_id = $1',
      [id],
    );
    expect(recipient).toEqual({
      opened_at: new Date(times.displayed),
      clicked_at: new Date(times.clicked),
    });
  });

  test('that dismisses a push has got it, and no more', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    await reported(app, anEvent(id, 'dismissed'));
    expect(await readDevice(app, id)).toMatchObject({ status: 'dismissed', delivered_at: null });
    const rows = await rowsOf(server, 'select status, opened_at from recipients where message_id = $1', [id]);
    expect(rows).toEqual([{ status: 'sent', opened_at: null }]);
  });

  test('may report an event as often as it likes, which counts once', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    const [shown, clicked] = [anEvent(id, 'displayed'), anEvent(id, 'clicked')];
    expect(await reported(app, shown, shown)).toEqual([1, 1, 0]);
    const before = await readPush(app, id);
    clock.putForward(1_000);
    expect(await reported(app, { ...shown, occurred_at: timeAt(-3_600) })).toEqual([0, 1, 0]);
    expect(await readPush(app, id)).toEqual(before);
    expect(await reported(app, shown, clicked)).toEqual([1, 1, 0]);
  });

  test('may report a hundred events of several pushes at once, and not one more', async () => {
    const app = await anApp();
    const ids: string[] = [];
    for (let number = 0; number < 4; number += 1) ids.push(await sendPush(app));
    const types = ['delivered', 'displayed', 'clicked', 'dismissed'];
    const events = Array.from({ length: 100 }, (_, number) =>
      anEvent(ids[number % 4]!, types[Math.floor(number / 4) % 4]!),
    );
    expect((await report(app, [...events, anEvent(ids[0]!, 'clicked')])).status).toBe(422);
    expect((await report(app, [])).status).toBe(422);
    expect(await reported(app, ...events)).toEqual([100, 0, 0]);
    for (const id of ids) expect(await readDevice(app, id)).toMatchObject({ status: 'clicked' });
    // Of each push 32 events are known by their ids.
    const more = Array.from({ length: 8 }, () => anEvent(ids[0]!, 'clicked'));
    expect(await reported(app, ...more)).toEqual([7, 1, 0]);
    expect(await reported(app, anEvent(ids[0]!, 'clicked'))).toEqual([0, 1, 0]);
  });

  test('has its own pushes alone, and what cannot be is rejected beside what counts', async () => {
    const app = await anApp();
    const neighbour = await anApp({ contactId: app.contactId });
    const stranger = await anApp();
    const foreign = await anApp({ sender: other });
    const id = await pushTo(app);
    const theirs = await pushTo(stranger);
    const elsewhere = await pushTo(foreign);
    clock.putForward(60_000);
    expect(
      await reported(
        app,
        anEvent(theirs, 'clicked'),
        anEvent(elsewhere, 'clicked'),
        anEvent('01934c1e-9f3a-7cc0-8b1a-0123456789ab', 'clicked'),
        anEvent(id, 'clicked', { occurred_at: timeAt(86_460) }),
        anEvent(id.toUpperCase(), 'displayed', { occurred_at: timeAt(3_600) }),
        anEvent(id, 'delivered', { occurred_at: '1970-01-01T00:00:00Z' }),
      ),
    ).toEqual([2, 0, 4]);
    const push = await readPush(app, id);
    const device = await readDevice(app, id);
    expect(device).toMatchObject({ status: 'displayed', clicked_at: null, delivered_at: push.created_at });
    const ahead = new Date(device.displayed_at!).getTime() - clock.nowMs();
    expect(ahead).toBeLessThanOrEqual(0);
    expect(await readDevice(neighbour, id)).toMatchObject({ status: 'sent' });
    expect(await readDevice(stranger, theirs)).toMatchObject({ status: 'sent' });
    expect(await readDevice(foreign, elsewhere)).toMatchObject({ status: 'sent' });
  });

  test('speaks for its pushes when it is somebody else’s by then', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    const contactId = await aPushContact(server);
    await register(server, androidApp(app.name, { contact_id: contactId }));
    expect(await reported(app, anEvent(id, 'displayed'))).toEqual([1, 0, 0]);
    expect(await readDevice(app, id)).toMatchObject({ status: 'displayed' });
  });

  test('cannot have got what its service refused, or what was not sent after all', async () => {
    const refused = await anApp({ prefix: 'simulator-invalid-' });
    const id = await pushTo(refused);
    expect(await reported(refused, anEvent(id, 'displayed'))).toEqual([0, 0, 1]);
    expect(await readDevice(refused, id)).toMatchObject({ status: 'failed', displayed_at: null });
    const app = await anApp();
    const dropped = await pushTo(app);
    await rowsOf(
      server,
      "update recipients set drop_reason = 'no_address', handed_off_at = null where message_id = $1",
      [dropped],
    );
    expect(await reported(app, anEvent(dropped, 'displayed'))).toEqual([0, 0, 1]);
  });

  test('names a button only with a click', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    const { status, body } = await report(app, [
      anEvent(id, 'clicked', { action_id: 'x'.repeat(64) }),
      anEvent(id, 'displayed', { action_id: 'x' }),
    ]);
    expect([status, body.message]).toEqual([
      422,
      'events[1].action_id belongs to clicked, and not to displayed',
    ]);
    for (const actionId of ['', 'x'.repeat(65)])
      expect((await report(app, [anEvent(id, 'clicked', { action_id: actionId })])).status).toBe(422);
  });
});

describe('a hand-off', () => {
  test('that was cut off took place if the device reports, and is not repeated', async () => {
    for (const type of ['dismissed', 'delivered']) {
      const app = await anApp({ prefix: 'simulator-lost-' });
      const id = await sendPush(app);
      await eventually(
        () => queueOf(server, id),
        ([job]) => job?.attempts === 1,
      );
      expect(await readDevice(app, id)).toMatchObject({ status: 'sent', uncertain: true });
      expect(await reported(app, anEvent(id, type))).toEqual([1, 0, 0]);
      expect(await readPush(app, id)).toMatchObject({
        status: 'sent',
        devices: [{ status: type, uncertain: false }],
      });
      expect(await queueOf(server, id)).toEqual([]);
    }
  });

  test('whose outcome is not written yet took place if the device reports', async () => {
    const app = await anApp({ at: idle });
    const id = await sendPush(app);
    expect(await reported(app, anEvent(id, 'displayed'))).toEqual([1, 0, 0]);
    expect(await readPush(app, id)).toMatchObject({
      status: 'sent',
      devices: [
        { status: 'displayed', uncertain: false, attempted_at: expect.stringMatching(/Z$/) as string },
      ],
    });
  });
});

describe('the door for devices', () => {
  test('opens to the secret of the device alone', async () => {
    const app = await anApp();
    const stranger = await anApp();
    const id = await pushTo(app);
    const secrets = {
      'of another device': stranger.secret,
      'of nobody': `pds_${'x'.repeat(43)}`,
      'an API key': server.key,
      nothing: '',
    };
    const answers = [];
    for (const secret of Object.values(secrets)) {
      const { status, headers, text } = await report({ ...app, secret }, [anEvent(id, 'clicked')]);
      expect(headers.get('access-control-allow-origin')).toBe('*');
      answers.push([status, text]);
    }
    expect(new Set(answers.map((answer) => JSON.stringify(answer)))).toHaveLength(1);
    expect(answers[0]).toEqual([401, expect.stringContaining('"unauthorized"')]);
    // And the secret opens nothing else.
    const { status } = await server.request('GET', `/v1/push/${id}`, undefined, {
      authorization: `Bearer ${app.secret}`,
    });
    expect(status).toBe(401);
    expect(await readDevice(app, id)).toMatchObject({ status: 'sent' });
  });

  test('takes no more than 60 requests of a device in a minute, and none off its organization', async () => {
    const app = await anApp();
    const id = await pushTo(app);
    const event = anEvent(id, 'displayed');
    const before = await server.request('GET', '/v1/push');
    const answers = await Promise.all(Array.from({ length: 61 }, () => report(app, [event])));
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(60);
    const refused = answers.find(({ status }) => status === 429)!;
    expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
    expect(refused.headers.get('access-control-allow-origin')).toBe('*');
    const counted = answers.filter(({ body }) => body.accepted === 1);
    expect(counted).toHaveLength(1);
    expect((await report(await anApp(), [event])).status).toBe(202);
    const after = await server.request('GET', '/v1/push');
    const left = ({ headers }: typeof after) => Number(headers.get('ratelimit-remaining'));
    // One contact, one device and one request; a new window may have begun.
    expect(left(before) - left(after)).toBeLessThanOrEqual(3);
    clock.putForward(60_000);
    expect(await reported(app, event)).toEqual([0, 1, 0]);
  });

  test('lets pages of any origin in, who ask without a key and without cookies', async () => {
    const answer = await fetch(`${idle.url}/v1/push/engagements`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://shop.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,content-type',
      },
    });
    expect([answer.status, await answer.text()]).toEqual([204, '']);
    expect(Object.fromEntries(answer.headers)).toMatchObject({
      'access-control-allow-origin': '*',
      'access-control-allow-methods': 'POST',
      'access-control-allow-headers': 'authorization, content-type',
      'access-control-max-age': '86400',
    });
    expect(answer.headers.get('access-control-allow-credentials')).toBeNull();
    const elsewhere = await fetch(`${idle.url}/v1/push/send`, { method: 'OPTIONS' });
    expect([elsewhere.status, elsewhere.headers.get('access-control-allow-origin')]).toEqual([404, null]);
  });
});

test('segments follow what devices report', async () => {
  const app = await anApp();
  await anApp();
  const ids: Record<string, string> = {};
  for (const action of ['delivered', 'opened', 'clicked']) {
    const { body } = await server.request<SegmentRecord>('POST', '/v1/segments', {
      name: `Pushes ${action}`,
      conditions: { type: 'message', channel: 'push', action },
    });
    ids[action] = body.id;
  }
  const ready = () =>
    eventually(
      () => rowsOf(server, `select from segments where status <> 'ready'`),
      (rows) => rows.length === 0,
    );
  await ready();
  // What reads messages is computed once more after a minute.
  clock.putForward(61_000);
  await rowsOf(server, `select pg_notify('postillion_segments', '')`);
  await eventually(
    () => rowsOf(server, `select from segments where compute_at <= '${timeAt(0)}'`),
    (rows) => rows.length === 0,
  );
  const members = async (action: string) => {
    const path = `/v1/contacts?segment_id=${ids[action]!}&limit=100`;
    const { body } = await server.request<{ data: { id: string }[] }>('GET', path);
    return body.data.some(({ id }) => id === app.contactId);
  };
  const computed = () => rowsOf(server, 'select id, computed_at from segments order by id');
  const id = await pushTo(app);
  const before = await computed();
  expect(await members('delivered')).toBe(false);
  for (const [type, action] of [
    ['delivered', 'delivered'],
    ['displayed', 'opened'],
    ['clicked', 'clicked'],
  ] as const) {
    await reported(app, anEvent(id, type));
    await eventually(() => members(action), Boolean);
  }
  expect(await computed()).toEqual(before);
});
