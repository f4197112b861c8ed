/** Pushes, from their acceptance to what became of them on each device, through the sandbox. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { PushProvider, PushTarget } from '../../src/channels/push/provider.ts';
import { startDelivery } from '../../src/messages/messages.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import { createPushDelivery } from '../../src/push/push.ts';
import type { PushRecord } from '../../src/push/schema.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { messageChannels } from '../support/channels.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  queueOf,
  rowsOf,
  type Sender,
} from '../support/email-journey.ts';
import {
  androidApp,
  aPushContact,
  browser,
  devicesOf,
  iosApp,
  register,
  setUpPush,
  unregister,
} from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();
beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'other.example');
  await setUpPush(server);
  await setUpPush(server, other.organizationId);
});
afterAll(() => server.stop());

type List = { object: string; has_more: boolean; data: ({ id: string } & Record<string, unknown>)[] };

const hello = { title: 'Your parcel is here', body: 'It waits at the door.' };

let names = 0;
const aName = () => `installation-${(names += 1)}`;

function postPush(body: object, { sender, key }: { sender?: Sender; key?: string } = {}) {
  return server.request<{ id: string } & ErrorBody>('POST', '/v1/push/send', body, {
    ...authorize(sender),
    ...(key !== undefined && { 'idempotency-key': key }),
  });
}

async function sendPush(contactId: string, more: object = {}): Promise<string> {
  const response = await postPush({ contact_id: contactId, ...hello, ...more });
  expect([response.status, response.text]).toEqual([202, expect.anything()]);
  return response.body.id;
}

async function readPush(id: string, sender?: Sender): Promise<PushRecord> {
  const response = await server.request<PushRecord>('GET', `/v1/push/${id}`, undefined, authorize(sender));
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response.body;
}

/** Once nothing of it is in the queue any more. */
async function settled(id: string): Promise<PushRecord> {
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  return readPush(id);
}

/** A contact with devices of these registrations, each with a name of its own. */
async function aContactWith(...devices: ((name: string) => Record<string, unknown>)[]) {
  const contactId = await aPushContact(server);
  const ids: string[] = [];
  for (const device of devices)
    ids.push((await register(server, { contact_id: contactId, ...device(aName()) })).id);
  return { contactId, ids };
}

const android = (prefix: string) => (name: string) => androidApp(name, { device_token: `${prefix}${name}` });

const time = expect.stringMatching(/Z$/) as string;

test('a push goes to every device of its contact, and can be read and listed', async () => {
  const { contactId, ids } = await aContactWith(android(''), iosApp, browser);
  const content = {
    ...hello,
    image_url: 'https://acme.test/parcel.png',
    icon_url: 'https://acme.test/icon.png',
    deep_link: 'acme://parcels/7',
    android_channel_id: 'parcels',
    ttl_seconds: 3_600,
    priority: 'high',
    action_buttons: [{ action_id: 'open', label: 'Open', deep_link: 'acme://parcels/7/open' }],
    data_payload: { parcel: '7' },
  };
  const id = await sendPush(contactId, { ...content, category: 'parcels' });
  const push = await settled(id);
  expect(push).toEqual({
    id,
    metadata: {},
    tags: [],
    scheduled_at: null,
    contact_id: contactId,
    ...content,
    category: 'parcels',
    status: 'sent',
    devices: expect.anything() as unknown,
    created_at: time,
    updated_at: time,
  });
  const sent = (deviceId: string, platform: string) => ({
    device_id: deviceId,
    platform,
    status: 'sent',
    error: null,
    uncertain: false,
    attempted_at: time,
    delivered_at: null,
    displayed_at: null,
    clicked_at: null,
    dismissed_at: null,
    action_id: null,
  });
  // Newest first.
  expect(push.devices).toEqual([sent(ids[2]!, 'web'), sent(ids[1]!, 'ios'), sent(ids[0]!, 'android')]);
  const { devices: _devices, ...listed } = push;
  const { body } = await server.request<List>('GET', '/v1/push?category=parcels');
  expect(body).toEqual({
    object: 'list',
    has_more: false,
    data: [
      {
        ...listed,
        device_counts: {
          queued: 0,
          sent: 3,
          delivered: 0,
          displayed: 0,
          clicked: 0,
          dismissed: 0,
          expired: 0,
          failed: 0,
          cancelled: 0,
        },
      },
    ],
  });
  for (const filter of ['search=your+parcel', 'status=sent', 'search=Your&category=parcels']) {
    const found = await server.request<List>('GET', `/v1/push?${filter}`);
    expect(found.body.data.map((one) => one.id)).toContain(id);
  }
  const missed = await server.request<List>('GET', '/v1/push?search=parcel');
  expect(missed.body.data).toEqual([]);
  const inbox = await server.request<{ data: { message_id: string }[] }>(
    'GET',
    '/sandbox/messages?channel=push',
  );
  expect(inbox.body.data.filter(({ message_id: of }) => of === id)).toHaveLength(3);
});

test('other organizations neither see it nor reach its contact', async () => {
  const { contactId } = await aContactWith(android(''));
  const id = await sendPush(contactId);
  const read = await server.request<ErrorBody>('GET', `/v1/push/${id}`, undefined, authorize(other));
  expect(read.status).toBe(404);
  const list = await server.request<List>('GET', '/v1/push', undefined, authorize(other));
  expect(list.body.data).toEqual([]);
  const sent = await postPush({ contact_id: contactId, ...hello }, { sender: other });
  expect([sent.status, sent.body.name]).toEqual([404, 'not_found']);
});

test('a deleted contact is erased from its pushes, and no other contact is', async () => {
  const { contactId } = await aContactWith(android(''), iosApp);
  const kept = await settled(await sendPush((await aContactWith(android(''))).contactId));
  const id = await sendPush(contactId);
  await settled(id);
  await server.request('DELETE', `/v1/contacts/${contactId}`);
  await eventually(
    () => rowsOf(server, 'select from message_contents where message_id = $1', [id]),
    (contents) => contents.length === 0,
  );
  expect(await readPush(id)).toMatchObject({
    contact_id: null,
    title: null,
    body: null,
    status: 'sent',
    devices: [
      { device_id: null, platform: null, status: 'sent' },
      { device_id: null, platform: null, status: 'sent' },
    ],
  });
  expect(await rowsOf(server, 'select from sandbox_messages where message_id = $1', [id])).toEqual([]);
  expect(await readPush(kept.id)).toEqual(kept);
});

describe('whom it is for', () => {
  test('is found by the first identifier that is known', async () => {
    const { contactId } = await aContactWith(android(''));
    await server.request('PATCH', `/v1/contacts/${contactId}`, { email: 'Ann.Push@Example.com' });
    const response = await postPush({ external_id: 'nobody', email: 'ann.push@example.COM', ...hello });
    expect(response.status).toBe(202);
    expect((await readPush(response.body.id)).contact_id).toBe(contactId);
  });

  test.each([
    ['nobody at all', {}, 400, 'bad_request'],
    [
      'an id and an identifier',
      { contact_id: '0199c0de-0000-7000-8000-000000000000', email: 'a@b.test' },
      400,
      'bad_request',
    ],
    ['an unknown id', { contact_id: '0199c0de-0000-7000-8000-000000000000' }, 404, 'not_found'],
    ['an unknown identifier', { external_id: 'nobody' }, 404, 'not_found'],
  ])('is refused: %s', async (_what, reference, status, name) => {
    const response = await postPush({ ...reference, ...hello });
    expect([response.status, response.body.name]).toEqual([status, name]);
  });

  test('is skipped without a device, and takes nothing of the quota, be it used up', async () => {
    const contactId = await aPushContact(server);
    const used = async () => {
      const [row] = await rowsOf<{ used: number }>(
        server,
        "select coalesce(sum(used), 0)::integer as used from quota_usage where organization_id = $1 and channel = 'push'",
        [server.organizationId],
      );
      return row!.used;
    };
    const before = await used();
    const push = await readPush(await sendPush(contactId));
    expect([push.status, push.devices]).toEqual(['skipped', []]);
    expect(await used()).toBe(before);
    await updateOrganization(server.installation, server.organizationId, { quotas: { push: 0 } });
    expect((await postPush({ contact_id: contactId, ...hello })).status).toBe(202);
    await updateOrganization(server.installation, server.organizationId, { quotas: { push: null } });
  });

  test('is refused if the contact has opted out, or none of its devices is of use', async () => {
    const { contactId } = await aContactWith(android(''));
    await server.request('PATCH', `/v1/contacts/${contactId}`, { consent: { push: 'unsubscribed' } });
    const optedOut = await postPush({ contact_id: contactId, ...hello });
    expect([optedOut.status, optedOut.body.name]).toEqual([403, 'forbidden']);
    expect(optedOut.body.message).toContain('opted out');

    const useless = await aPushContact(server);
    const denied = androidApp(aName(), { enablement_status: 'DENIED' });
    await register(server, { contact_id: useless, ...denied });
    const gone = aName();
    await register(server, { contact_id: useless, ...androidApp(gone) });
    await unregister(server, gone, 'logout');
    const refused = await postPush({ contact_id: useless, ...hello });
    expect([refused.status, refused.body.name]).toEqual([403, 'forbidden']);
  });

  test('gets it on forty devices, each once', async () => {
    const { contactId, ids } = await aContactWith(...Array.from({ length: 40 }, () => android('')));
    const push = await settled(await sendPush(contactId));
    expect(push.devices.map(({ device_id: id, status }) => [id, status])).toEqual(
      ids.toReversed().map((id) => [id, 'sent']),
    );
    const kept = await rowsOf(server, 'select from sandbox_messages where message_id = $1', [push.id]);
    expect(kept).toHaveLength(40);
  });
});

describe('what it says', () => {
  test.each([
    ['no title', { title: undefined }, 'title'],
    ['a title of 201 characters', { title: 'x'.repeat(201) }, 'title'],
    ['a body of 1,001 characters', { body: 'x'.repeat(1_001) }, 'body'],
    ['an image without TLS', { image_url: 'http://acme.test/a.png' }, 'image_url'],
    ['an icon that is no URL', { icon_url: 'https//acme.test' }, 'icon_url'],
    ['a link of 2,049 characters', { deep_link: 'x'.repeat(2_049) }, 'deep_link'],
    ['a time to live under a minute', { ttl_seconds: 59 }, 'ttl_seconds'],
    ['a time to live over four weeks', { ttl_seconds: 2_419_201 }, 'ttl_seconds'],
    ['a priority that is none', { priority: 'urgent' }, 'priority'],
    [
      'four buttons',
      { action_buttons: Array.from({ length: 4 }, () => ({ action_id: 'a', label: 'b' })) },
      'action_buttons',
    ],
    ['a button without label', { action_buttons: [{ action_id: 'a' }] }, 'action_buttons[0].label'],
    ['data that is no text', { data_payload: { a: 1 } }, 'data_payload.a'],
    ['a key of ours', { data_payload: { postillion_id: 'x' } }, 'data_payload.postillion_id'],
    ['a key of Google', { data_payload: { 'google.x': 'x' } }, 'data_payload.google.x'],
    ['a key of Apple', { data_payload: { aps: 'x' } }, 'data_payload.aps'],
    ['a field that is not there', { subtitle: 'x' }, 'subtitle'],
    ['an unpaired surrogate', { title: '\ud800' }, 'title'],
    ['NUL', { body: 'a\u0000b' }, 'body'],
  ])('is refused: %s', async (_what, more, field) => {
    const contactId = await aPushContact(server);
    const response = await postPush({ contact_id: contactId, ...hello, ...more });
    expect([response.status, response.body.name]).toEqual([422, 'validation_error']);
    expect(response.body.message).toContain(field);
  });

  test('may be as large as the narrowest platform takes, whatever devices there are', async () => {
    const contactId = await aPushContact(server);
    const say = (length: number) =>
      postPush({ contact_id: contactId, ...hello, data_payload: { k: 'x'.repeat(length) } });
    const empty = JSON.stringify({
      id: '00000000-0000-0000-0000-000000000000',
      ...hello,
      data: { k: '' },
    }).length;
    // RFC 8291: 4,096 octets of body are 3,993 of plaintext.
    expect((await say(3_993 - empty)).status).toBe(202);
    const refused = await say(3_994 - empty);
    expect([refused.status, refused.body.name]).toEqual([422, 'validation_error']);
    expect(refused.body.message).toContain('3993');
  });
});

describe('what becomes of it', () => {
  test.each([
    ['simulator-unregistered-', 'unregistered', 'EXPIRED'],
    ['simulator-invalid-', 'invalid_token', 'FAILED'],
  ])('on a device %s… retires the device: the next push does not go there', async (prefix, code, status) => {
    const { contactId, ids } = await aContactWith(android(prefix), android(''));
    const push = await settled(await sendPush(contactId));
    expect(push.status).toBe('sent');
    expect(push.devices).toMatchObject([
      { device_id: ids[1], status: 'sent', error: null },
      { device_id: ids[0], status: 'failed', error: { code }, attempted_at: time },
    ]);
    const devices = await devicesOf(server, contactId);
    expect(devices.find(({ id }) => id === ids[0])).toMatchObject({ status });
    expect((await readPush(await sendPush(contactId))).devices).toMatchObject([{ device_id: ids[1] }]);
  });

  test('is that it failed if no device got it', async () => {
    const { contactId } = await aContactWith(android('simulator-invalid-'));
    expect((await settled(await sendPush(contactId))).status).toBe('failed');
  });

  test('is that it waits while the service is busy, and expires with its time to live', async () => {
    const { contactId, ids } = await aContactWith(android('simulator-throttled-'));
    const id = await sendPush(contactId, { ttl_seconds: 90 });
    await eventually(
      () => queueOf(server, id),
      ([job]) => job?.attempts === 1,
    );
    expect(await readPush(id)).toMatchObject({
      status: 'queued',
      devices: [{ status: 'queued', error: { code: 'rate_limited' } }],
    });
    clock.putForward(61_000);
    await rowsOf(server, 'update delivery_queue set due_at = now() where message_id = $1', [id]);
    const push = await settled(id);
    expect(push).toMatchObject({
      status: 'failed',
      devices: [{ device_id: ids[0], status: 'expired', error: { code: 'expired' } }],
    });
  });

  test('is uncertain if the answer was lost, and it is sent once more under the same id', async () => {
    const { contactId } = await aContactWith(android('simulator-lost-'));
    const id = await sendPush(contactId);
    await eventually(
      () => queueOf(server, id),
      ([job]) => job?.attempts === 1,
    );
    expect(await readPush(id)).toMatchObject({
      status: 'sent',
      devices: [{ status: 'sent', uncertain: true }],
    });
    await rowsOf(
      server,
      "update delivery_queue set due_at = now() - interval '1 hour' where message_id = $1",
      [id],
    );
    await wakeOnce(server.installation.database, 'deliveries');
    await settled(id);
    const kept = await rowsOf(server, 'select from sandbox_messages where message_id = $1', [id]);
    expect(kept).toHaveLength(2);
  });

  test('between acceptance and hand-off, a sign-out, a denial, an opt-out, another owner and a deletion stop it', async () => {
    const idle = await startTestServer({ clock });
    await setUpPush(idle);
    const cases = [
      {
        stop: ({ name }: Owned) => unregister(idle, name, 'logout'),
        code: 'device_inactive',
      },
      {
        stop: ({ name, contactId }: Owned) =>
          register(idle, { contact_id: contactId, ...androidApp(name, { enablement_status: 'DENIED' }) }),
        code: 'device_inactive',
      },
      {
        stop: ({ contactId }: Owned) =>
          idle.request('PATCH', `/v1/contacts/${contactId}`, { consent: { push: 'unsubscribed' } }),
        code: 'opted_out',
      },
      {
        stop: async ({ name }: Owned) =>
          register(idle, { contact_id: await aPushContact(idle), ...androidApp(name) }),
        code: 'device_inactive',
      },
      {
        stop: ({ contactId }: Owned) => idle.request('DELETE', `/v1/contacts/${contactId}`),
        code: 'device_inactive',
      },
      // A newer token is nothing that stops it.
      {
        stop: ({ name, contactId }: Owned) =>
          register(idle, { contact_id: contactId, ...androidApp(name, { device_token: 'newer' }) }),
        code: null,
      },
    ];
    const sent: { id: string; code: string | null }[] = [];
    for (const { stop, code } of cases) {
      const name = aName();
      const contactId = await aPushContact(idle);
      await register(idle, { contact_id: contactId, ...androidApp(name) });
      const { body } = await idle.request<{ id: string }>('POST', '/v1/push/send', {
        contact_id: contactId,
        ...hello,
      });
      await stop({ name, contactId });
      sent.push({ id: body.id, code });
    }
    const worker = await startWorker(idle.installation);
    await eventually(
      () => rowsOf(idle, 'select from delivery_queue'),
      (jobs) => jobs.length === 0,
    );
    await worker.stop();
    const codes: (string | null)[] = [];
    for (const { id } of sent) {
      const { body } = await idle.request<PushRecord>('GET', `/v1/push/${id}`);
      codes.push(body.devices[0]!.error?.code ?? null);
    }
    expect(codes).toEqual(sent.map(({ code }) => code));
    const kept = await rowsOf(idle, "select recipient from sandbox_messages where channel = 'push'");
    expect(kept).toEqual([{ recipient: 'newer' }]);
    await idle.stop();
  });
});

type Owned = { name: string; contactId: string };

test('a phone that the other environment took is sent the next push there', async () => {
  const idle = await startTestServer({ clock });
  await setUpPush(idle);
  const contactId = await aPushContact(idle);
  await register(idle, { contact_id: contactId, ...iosApp(aName()) });
  const targets: PushTarget[] = [];
  const pushProvider: PushProvider = {
    name: 'of a development build',
    concurrency: 1,
    handOff: async ({ target, notificationId, confirm }) => {
      await confirm();
      targets.push(target);
      const isThere = target.platform === 'ios' && target.environment === 'sandbox';
      return {
        kind: 'accepted',
        providerMessageId: notificationId,
        reply: null,
        ...(!isThere && { environment: 'sandbox' }),
      };
    },
    probe: () => Promise.resolve(null),
    close: () => Promise.resolve(),
  };
  const delivery = startDelivery({
    ...idle.installation,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    channels: messageChannels,
    deliveries: [createPushDelivery({ ...idle.installation, pushProvider, webPushHosts: [] })],
  });
  for (const environment of ['production', 'sandbox']) {
    await idle.request('POST', '/v1/push/send', { contact_id: contactId, ...hello });
    await eventually(
      () => rowsOf(idle, 'select from delivery_queue'),
      (jobs) => jobs.length === 0,
    );
    expect(targets.splice(0)).toMatchObject([{ environment }]);
  }
  expect(await devicesOf(idle, contactId)).toMatchObject([{ apns_environment: 'sandbox', status: 'ACTIVE' }]);
  await delivery.stop();
  await idle.stop();
});

test('a repeated request is answered as the first, and sends nothing more', async () => {
  const { contactId } = await aContactWith(android(''));
  const body = { contact_id: contactId, ...hello };
  const first = await postPush(body, { key: 'push-once' });
  const again = await postPush(body, { key: 'push-once' });
  expect([again.status, again.text, again.headers.get('idempotent-replayed')]).toEqual([
    202,
    first.text,
    'true',
  ]);
  await settled(first.body.id);
  const kept = await rowsOf(server, 'select from sandbox_messages where message_id = $1', [first.body.id]);
  expect(kept).toHaveLength(1);
});

test('a quota that is used up refuses, as a suspension does', async () => {
  const { contactId } = await aContactWith(android(''));
  await updateOrganization(server.installation, server.organizationId, { quotas: { push: 0 } });
  const overQuota = await postPush({ contact_id: contactId, ...hello });
  expect([overQuota.status, overQuota.body.name]).toEqual([429, 'monthly_quota_exceeded']);
  await updateOrganization(server.installation, server.organizationId, {
    quotas: { push: null },
    suspend: ['push'],
  });
  const suspended = await postPush({ contact_id: contactId, ...hello });
  expect([suspended.status, suspended.body.name]).toEqual([403, 'sending_suspended']);
  await updateOrganization(server.installation, server.organizationId, { resume: ['push'] });
});
