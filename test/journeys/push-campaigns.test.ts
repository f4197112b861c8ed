/** Push campaigns as people see them, as far as they differ from those by email. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  type Sender,
} from '../support/email-journey.ts';
import { androidApp, browser, iosApp, register, setUpPush, unregister } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();

beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'other.example');
  for (const { organizationId } of [server, other]) {
    await setUpPush(server, organizationId);
    await updateOrganization(server.installation, organizationId, { requestsPerWindow: 10_000 });
  }
});
afterAll(() => server.stop());

type Stats = Record<
  | 'audience'
  | 'pending'
  | 'sent'
  | 'delivered'
  | 'failed'
  | 'opened'
  | 'clicked'
  | 'dropped'
  | 'unconfirmed'
  | 'cancelled',
  number
> & { excluded: Record<string, number> };
type Campaign = Record<string, unknown> & { id: string; status: string; stats: Stats };
type Device = Record<string, unknown> & { device_id: string; status: string };
type Recipient = { contact_id: string; devices: Device[] };
type Explanation = { outcome: string; reason: string; devices: (Device & { reason: string })[] };
type Page<Item> = { data: Item[]; has_more: boolean };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

let made = 0;
const unique = (what: string) => `${what} ${(made += 1)}`;
const aName = () => `phone-${(made += 1)}`;

async function make(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body, sender);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

const aList = (sender?: Sender) => make('/lists', { name: unique('List') }, sender);
const aContact = (list: string, more: object = {}, sender?: Sender) =>
  make('/contacts', { external_id: unique('reader'), list_ids: [list], ...more }, sender);
const hello = { title: 'Hello {{first_name}}', body: 'Half the price until Sunday.' };
const aDraft = (more: object = {}, sender?: Sender) =>
  make('/push/campaigns', { name: unique('Campaign'), ...more }, sender);
const aReady = async (more: object = {}, sender?: Sender) =>
  aDraft({ ...hello, list_ids: [await aList(sender)], ...more }, sender);

/** Of a phone that is the contact's, whose token begins so. */
async function aPhone(contactId: string, prefix = '', sender?: Sender) {
  const name = aName();
  const device = androidApp(name, { contact_id: contactId, device_token: `${prefix}${name}` });
  const { id, device_secret: secret } = await register(server, device, sender);
  return { id, name, secret };
}

/** A contact of the list with a phone. */
async function aReader(
  list: string,
  { prefix = '', ...more }: Record<string, unknown> & { prefix?: string } = {},
) {
  const contactId = await aContact(list, more);
  return { contactId, phone: await aPhone(contactId, prefix) };
}

const read = async (id: string) => (await ask<Campaign>('GET', `/push/campaigns/${id}`)).body;
const patch = (id: string, body: object) => ask('PATCH', `/push/campaigns/${id}`, body);
const send = (id: string, body: object = {}, sender?: Sender) =>
  ask('POST', `/push/campaigns/${id}/send`, body, sender);
const preview = async (id: string, body: object = {}) =>
  (await ask<Record<string, unknown>>('POST', `/push/campaigns/${id}/preview`, body)).body;
const recipientsOf = async (id: string, query = '') =>
  (await ask<Page<Recipient>>('GET', `/push/campaigns/${id}/recipients?${query}`)).body;
const explain = async (id: string, contactId: string) =>
  (await ask<Explanation>('GET', `/push/campaigns/${id}/recipients/${contactId}`)).body;

async function sendOff(id: string): Promise<void> {
  const response = await send(id);
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
}

/** Once it is over, and everything of it is counted. */
async function sent(id: string): Promise<Campaign> {
  await sendOff(id);
  return whenSent(id);
}

const whenSent = (id: string) => has(id, ({ status, stats }) => status === 'sent' && stats.pending === 0);

const has = (id: string, isSo: (campaign: Campaign) => boolean) => eventually(() => read(id), isSo);

const setQuota = (quota: number | null) =>
  updateOrganization(server.installation, server.organizationId, { quotas: { push: quota } });

async function usedOfQuota(): Promise<number> {
  const [row] = await rowsOf<{ used: number }>(
    server,
    "select coalesce(sum(used), 0)::integer as used from quota_usage where organization_id = $1 and channel = 'push'",
    [server.organizationId],
  );
  return row!.used;
}

/** A campaign that waits for its quota asks once a minute. */
async function liftQuota(): Promise<void> {
  await setQuota(null);
  clock.putForward(60_000);
}

type Copy = { text: string };

/** What lies in the inbox for the device. */
async function inboxOf(token: string): Promise<Copy[]> {
  const path = `/sandbox/messages?channel=push&to=${encodeURIComponent(token)}`;
  return (await server.request<{ data: Copy[] }>('GET', path)).body.data;
}

const report = (phone: { name: string; secret?: string | undefined }, events: readonly object[]) =>
  server.request<{ accepted: number }>(
    'POST',
    '/v1/push/engagements',
    {
      installation_id: phone.name,
      events: events.map((event) => ({
        event_id: randomUUID(),
        occurred_at: new Date(clock.nowMs()).toISOString(),
        ...event,
      })),
    },
    { authorization: `Bearer ${phone.secret}` },
  );

async function messageOf(id: string): Promise<string> {
  const [row] = await rowsOf<{ message_id: string }>(
    server,
    'select message_id from campaigns where id = $1',
    [id],
  );
  return row!.message_id;
}

const time = expect.stringMatching(/Z$/) as string;

describe('a draft', () => {
  test('needs a name alone, and shows the inputs of a push', async () => {
    const id = await aDraft({ name: 'March' });
    const campaign = await read(id);
    expect(campaign).toMatchObject({ id, name: 'March', status: 'draft', stats: { audience: 0 } });
    for (const field of [
      'title',
      'body',
      'image_url',
      'action_buttons',
      'data_payload',
      'priority',
      'variables',
    ])
      expect([field, campaign[field]]).toEqual([field, null]);
    expect(Object.keys(campaign)).not.toContain('from');
  });

  test('takes all that a push may say, gives it back, and is listed without what is large', async () => {
    const content = {
      title: 'Hello',
      body: 'Half the price',
      image_url: 'https://acme.test/{{image}}.png',
      icon_url: 'https://acme.test/icon.png',
      deep_link: 'acme://offers/{{offer}}',
      android_channel_id: 'offers',
      ttl_seconds: 3_600,
      priority: 'high',
      action_buttons: [{ action_id: 'buy', label: 'Buy', deep_link: 'acme://buy' }],
      data_payload: { offer: '{{offer}}' },
      category: 'sale',
      variables: { offer: 7 },
    };
    const id = await aDraft(content);
    expect(await read(id)).toMatchObject(content);
    expect((await patch(id, { priority: null, ttl_seconds: null, title: 'Hi' })).status).toBe(200);
    expect(await read(id)).toMatchObject({ ...content, priority: null, ttl_seconds: null, title: 'Hi' });
    const { data } = (await ask<Page<Campaign>>('GET', '/push/campaigns?limit=100')).body;
    const listed = data.find((campaign) => campaign.id === id);
    expect(listed).toMatchObject({ title: 'Hi', category: 'sale' });
    for (const field of ['action_buttons', 'data_payload', 'variables'])
      expect(Object.keys(listed ?? {})).not.toContain(field);
  });

  test('is neither an email campaign nor one of SMS, and is deleted as what it is', async () => {
    const [push, text] = [await aDraft(), await make('/sms/campaigns', { name: 'Text' })];
    expect((await ask('GET', `/sms/campaigns/${push}`)).status).toBe(404);
    expect((await ask('GET', `/push/campaigns/${text}`)).status).toBe(404);
    expect((await ask('GET', '/push/campaigns?limit=100')).text).not.toContain(text);
    expect((await ask('DELETE', `/push/campaigns/${push}`)).body).toEqual({
      object: 'push_campaign',
      id: push,
      deleted: true,
    });
  });

  test.each([
    ['title must be at most 200 characters', { title: 'x'.repeat(201) }],
    ['title must be a single line that is not blank', { title: 'A\nB' }],
    ['body must not be empty', { body: '' }],
    ['image_url must be an https URL', { image_url: 'http://acme.test/image.png' }],
    ['priority must be one of high, normal', { priority: 'urgent' }],
    ['ttl_seconds must be at least 60', { ttl_seconds: 59 }],
    [
      'action_buttons must have at most 3 items',
      { action_buttons: Array(4).fill({ action_id: 'a', label: 'A' }) },
    ],
    ['action_buttons[0].label is required', { action_buttons: [{ action_id: 'a' }] }],
    ['data_payload.a must be a string', { data_payload: { a: 1 } }],
    ['data_payload.gcm.x is a reserved key: rename it', { data_payload: { 'gcm.x': 'y' } }],
    ['category must be at most 64 characters', { category: 'x'.repeat(65) }],
    ['subject is not a known field', { subject: 'x' }],
    ['and may take 3993', { data_payload: { a: 'x'.repeat(4_000) } }],
    ['and may have 16384', { data_payload: { a: '{{a}}'.repeat(4_000) } }],
  ])('is refused where %s', async (message, input) => {
    const response = await ask('POST', '/push/campaigns', { name: 'x', ...input });
    expect([response.status, response.body.message]).toEqual([422, expect.stringContaining(message)]);
  });

  test('is refused when a change makes it too large, and not for what its placeholders take', async () => {
    const id = await aDraft({ body: 'x'.repeat(1_000), data_payload: { a: '{{a}}'.repeat(1_000) } });
    const response = await patch(id, { data_payload: { a: '{{a}}', b: 'x'.repeat(3_000) } });
    expect([response.status, response.body.message]).toEqual([
      422,
      expect.stringContaining('bytes together in the form for web'),
    ]);
  });
});

describe('sending', () => {
  test('says all at once what is missing', async () => {
    const response = await send(await aDraft());
    expect([response.status, response.body.message]).toEqual([
      400,
      'The campaign is not ready to be sent: title is required, body is required, list_ids, tag_ids or segment_ids is required.',
    ]);
  });

  test('is refused while the organization is suspended for push', async () => {
    const id = await aReady();
    const { installation, organizationId } = server;
    await updateOrganization(installation, organizationId, { suspend: ['push'] });
    expect((await send(id)).body.name).toBe('sending_suspended');
    await updateOrganization(installation, organizationId, { resume: ['push'] });
  });

  test('later keeps it fit to be sent', async () => {
    const id = await aReady();
    const scheduledAt = new Date(clock.nowMs() + 3_600_000).toISOString();
    expect((await send(id, { scheduled_at: scheduledAt })).status).toBe(200);
    expect((await patch(id, { body: null })).status).toBe(400);
    expect((await patch(id, { body: 'Hello again' })).status).toBe(200);
    expect((await ask('POST', `/push/campaigns/${id}/cancel`)).status).toBe(200);
  });

  test('to nobody who has a device fails', async () => {
    const list = await aList();
    await aContact(list);
    const id = await aReady({ list_ids: [list] });
    await sendOff(id);
    const failed = await has(id, ({ status }) => status === 'failed');
    expect(failed.failure_reason).toBe('There are no contacts to send to.');
  });
});

describe('a preview', () => {
  test('counts devices and consent to push, and shows a copy and its size', async () => {
    const list = await aList();
    const first = await aReader(list, { first_name: 'Ann' });
    await aPhone(first.contactId);
    await aReader(list);
    await aReader(list, { consent: { push: 'unsubscribed' } });
    await aContact(list);
    const id = await aReady({ list_ids: [list], deep_link: 'acme://{{link}}' });
    expect(await preview(id)).toMatchObject({
      ready: true,
      issues: [],
      audience: 3,
      excluded: { unsubscribed: 1, suppressed: 0, no_address: 1, duplicate: 0 },
      candidates: 5,
      missing_variables: [
        { name: 'first_name', contacts: 1 },
        { name: 'link', contacts: 2 },
      ],
      sample_contact_id: first.contactId,
      title: 'Hello Ann',
      body: hello.body,
      deep_link: 'acme://{{link}}',
      action_buttons: null,
      size_bytes: expect.any(Number) as number,
      warnings: [],
    });
  });

  test('warns of a copy that cannot be sent, and a test of it is refused', async () => {
    const reader = await aReader(await aList());
    const id = await aReady({ title: '{{name}}', variables: { name: 'x'.repeat(201) } });
    expect(await preview(id)).toMatchObject({
      ready: true,
      title: null,
      size_bytes: null,
      warnings: [expect.stringContaining('This copy cannot be sent: it has')],
    });
    const response = await ask('POST', `/push/campaigns/${id}/test`, { to: [reader.contactId] });
    expect([response.status, response.body.name]).toEqual([400, 'bad_request']);
  });
});

describe('a test', () => {
  test('is a push of its own for each contact, to all of its devices', async () => {
    const reader = await aReader(await aList(), { first_name: 'Ann' });
    await aPhone(reader.contactId);
    const id = await aReady({ category: 'sale', variables: { first_name: 'you' } });
    const response = await ask<{ ids: string[] }>('POST', `/push/campaigns/${id}/test`, {
      to: [reader.contactId],
    });
    expect([response.status, response.text]).toEqual([202, expect.anything()]);
    const push = await ask<{ devices: unknown[] }>('GET', `/push/${response.body.ids[0]}`);
    expect(push.body).toMatchObject({ title: 'Hello you', category: 'sale', contact_id: reader.contactId });
    expect(push.body.devices).toHaveLength(2);
    expect((await read(id)).stats.sent).toBe(0);
  });

  test('goes to contacts of the organization who want it', async () => {
    const id = await aReady();
    const test = (to: string) => ask('POST', `/push/campaigns/${id}/test`, { to: [to] });
    const unwilling = await aReader(await aList(), { consent: { push: 'unsubscribed' } });
    expect((await test(unwilling.contactId)).status).toBe(403);
    const theirs = await aContact(await aList(other), {}, other);
    expect((await test(theirs)).status).toBe(404);
    expect((await test('ann@example.com')).status).toBe(422);
  });
});

describe('a campaign that is sent', () => {
  test('goes to every device of its audience, each copy with the values of its contact', async () => {
    const list = await aList();
    const ann = await aContact(list, { first_name: 'Ann' });
    const names = [aName(), aName(), aName()];
    const devices = [androidApp(names[0]!), iosApp(names[1]!), browser(names[2]!)];
    const ids = [];
    for (const device of devices) ids.push((await register(server, { contact_id: ann, ...device })).id);
    const ben = await aReader(list, { first_name: 'Ben {{first_name}}' });
    const mute = await aContact(list, { first_name: 'Mute' });
    const reluctant = await aReader(list, { consent: { push: 'unsubscribed' } });
    const gone = await aContact(list);
    await unregister(server, (await aPhone(gone)).name, 'logout');
    // Of another organization, with the same name and the same token.
    const theirs = await aContact(await aList(other), { first_name: 'Theirs' }, other);
    await register(server, androidApp(names[0]!, { contact_id: theirs }), other);

    const id = await aReady({
      list_ids: [list],
      deep_link: 'acme://offers/{{offer}}',
      data_payload: { reader: '{{first_name}}', offer: '{{offer}}', unknown: '{{nothing}}' },
      variables: { offer: 7 },
    });
    const campaign = await sent(id);
    expect(campaign.stats).toMatchObject({
      audience: 4,
      excluded: { unsubscribed: 1, suppressed: 0, no_address: 2, duplicate: 0 },
      sent: 4,
      unconfirmed: 4,
      failed: 0,
    });
    const copies = await inboxOf(`token-of-${names[0]!}`);
    expect(copies).toHaveLength(1);
    const source = await rowsOf<{ source: string }>(
      server,
      `select convert_from(source, 'UTF8') as source from sandbox_messages where message_id = $1`,
      [await messageOf(id)],
    );
    expect(source).toHaveLength(4);
    const said = source.map((copy) => copy.source).toSorted();
    expect(said.filter((copy) => copy.includes('Hello Ann'))).toHaveLength(3);
    expect(said.filter((copy) => copy.includes('Hello Ben {{first_name}}'))).toHaveLength(1);
    for (const copy of said) {
      expect(copy).toContain('acme://offers/7');
      expect(copy).toContain('{{nothing}}');
    }

    const { data } = await recipientsOf(id);
    expect(data.map(({ contact_id: contactId }) => contactId)).toEqual([ben.contactId, ann]);
    expect(data[1]!.devices.map((device) => [device.device_id, device.platform, device.status])).toEqual(
      [
        [ids[0], 'android', 'sent'],
        [ids[1], 'ios', 'sent'],
        [ids[2], 'web', 'sent'],
      ].toSorted(([one], [another]) => (one! < another! ? -1 : 1)),
    );
    expect(await explain(id, ann)).toMatchObject({ outcome: 'sent', devices: [{}, {}, {}] });
    expect(await explain(id, mute)).toMatchObject({
      outcome: 'excluded',
      reason: expect.stringContaining('has no device that gets pushes') as string,
      devices: [],
    });
    expect((await explain(id, reluctant.contactId)).reason).toContain('unsubscribed from push');
    expect((await explain(id, gone)).reason).toContain('has no device that gets pushes');

    const asOther = (path: string) => ask('GET', `/push/campaigns/${path}`, undefined, other);
    for (const path of [id, `${id}/recipients`, `${id}/recipients/${ann}`])
      expect((await asOther(path)).status).toBe(404);
    expect((await asOther('')).status).toBe(404);
    // It is no single push.
    expect((await ask('GET', `/push/${await messageOf(id)}`)).status).toBe(404);
    expect((await ask('GET', '/push?limit=100')).text).not.toContain(await messageOf(id));
  });

  test('fills in what a contact has, and the values of the campaign for all others', async () => {
    const list = await aList();
    const [named, nameless] = [await aReader(list, { first_name: 'Ann' }), await aReader(list)];
    await sent(await aReady({ list_ids: [list], variables: { first_name: 'you' } }));
    expect(await inboxOf(named.phone.name)).toMatchObject([
      { text: expect.stringContaining('Hello Ann') as string },
    ]);
    expect(await inboxOf(nameless.phone.name)).toMatchObject([
      { text: expect.stringContaining('Hello you') as string },
    ]);
  });

  test('counts what devices report, and nobody is reported for by others', async () => {
    const list = await aList();
    const readers = [];
    for (let each = 0; each < 4; each += 1) readers.push(await aReader(list));
    const id = await aReady({ list_ids: [list] });
    await sent(id);
    const messageId = await messageOf(id);
    const [clicker, looker, dismisser, silent] = readers;
    const foreign = await aPhone(await aContact(await aList(other), {}, other), '', other);
    const accepted = async (phone: { name: string; secret?: string | undefined }, ...types: string[]) =>
      (
        await report(
          phone,
          types.map((type) => ({ message_id: messageId, type })),
        )
      ).body.accepted;
    const click = { message_id: messageId, type: 'clicked', action_id: 'buy' };
    expect((await report(clicker!.phone, [click])).body.accepted).toBe(1);
    expect(await accepted(looker!.phone, 'displayed')).toBe(1);
    expect(await accepted(dismisser!.phone, 'delivered', 'dismissed')).toBe(2);
    expect(await accepted(foreign, 'clicked')).toBe(0);
    const { stats } = await has(id, (campaign) => campaign.stats.delivered === 3);
    expect(stats).toMatchObject({ sent: 4, delivered: 3, opened: 2, clicked: 1, unconfirmed: 1 });
    const statuses = Object.fromEntries(
      (await recipientsOf(id)).data.map(({ contact_id: contactId, devices }) => [
        contactId,
        devices[0]!.status,
      ]),
    );
    expect(statuses).toEqual({
      [clicker!.contactId]: 'clicked',
      [looker!.contactId]: 'opened',
      [dismisser!.contactId]: 'delivered',
      [silent!.contactId]: 'sent',
    });
    const reasonFor = async (reader: { contactId: string }) => (await explain(id, reader.contactId)).reason;
    expect(await reasonFor(clicker!)).toContain('Was delivered, and was clicked on');
    expect(await reasonFor(looker!)).toContain('Was delivered, and was displayed on');
    expect(await reasonFor(dismisser!)).toContain('the app on the device reported it.');
    const [clicked] = (await recipientsOf(id, 'status=clicked')).data;
    expect(clicked?.devices).toMatchObject([{ action_id: 'buy', delivered_at: time, dismissed_at: null }]);
    const [dismissed] = (await recipientsOf(id, 'status=delivered')).data;
    expect(dismissed?.devices).toMatchObject([{ action_id: null, delivered_at: time, dismissed_at: time }]);
    const opened = await recipientsOf(id, 'status=opened');
    expect(opened.data.map(({ contact_id: contactId }) => contactId)).toEqual([looker!.contactId]);

    const segment = await make('/segments', {
      name: unique('Segment'),
      conditions: { type: 'message', channel: 'push', action: 'clicked', campaign_id: id },
    });
    const members = await eventually(
      () => ask<Page<{ id: string }>>('GET', `/contacts?segment_id=${segment}`),
      ({ status }) => status === 200,
    );
    expect(members.body.data.map((contact) => contact.id)).toEqual([clicker!.contactId]);
  });

  test('leaves out a copy that its values make too large or empty, and sends the others', async () => {
    const property = { key: unique('story').replace(' ', '_'), name: 'Story', type: 'string' };
    await make('/properties', property);
    const list = await aList();
    const of = (story: string) => aReader(list, { properties: { [property.key]: story } });
    const [short, long, blank] = [await of('A short one'), await of('\u00e9'.repeat(999)), await of(' ')];
    const id = await aReady({
      list_ids: [list],
      title: 'News',
      body: `{{${property.key}}}`,
      data_payload: { story: `{{${property.key}}}`, again: `{{${property.key}}}` },
    });
    const { stats } = await sent(id);
    expect(stats).toMatchObject({ audience: 3, sent: 1, failed: 2, unconfirmed: 1 });
    const failures = Object.fromEntries(
      (await recipientsOf(id)).data.map(({ contact_id: contactId, devices: [device] }) => [
        contactId,
        (device!.bounce as { class: string } | null)?.class ?? device!.status,
      ]),
    );
    expect(failures).toEqual({
      [short.contactId]: 'sent',
      [long.contactId]: 'message_too_large',
      [blank.contactId]: 'invalid_message',
    });
    expect((await explain(id, blank.contactId)).reason).toContain(
      'body is empty with its placeholders filled.',
    );
  });

  test('looks again at each device and at the consent of its contact before it is handed off', async () => {
    const list = await aList();
    const people = [];
    for (let each = 0; each < 5; each += 1) people.push(await aReader(list));
    const [fine, optedOut, signedOut, moved, deleted] = people;
    const second = await aPhone(signedOut!.contactId);
    const id = await aReady({ list_ids: [list] });
    await setQuota(0);
    await sendOff(id);
    const paused = await has(id, ({ status }) => status === 'paused');
    expect(paused).toMatchObject({ pause_reason: 'quota_exceeded', stats: { audience: 6, pending: 6 } });
    // What becomes of it when all of them have their rows.
    await eventually(
      async () => rowsOf(server, 'select from recipients where message_id = $1', [await messageOf(id)]),
      (rows) => rows.length === 6,
    );
    await ask('PATCH', `/contacts/${optedOut!.contactId}`, { consent: { push: 'unsubscribed' } });
    await unregister(server, signedOut!.phone.name, 'logout');
    const newOwner = await aContact(await aList());
    await register(server, androidApp(moved!.phone.name, { contact_id: newOwner }));
    await ask('DELETE', `/contacts/${deleted!.contactId}`);
    const late = await aPhone(fine!.contactId);
    await liftQuota();
    const { stats } = await whenSent(id);
    expect(stats).toMatchObject({ audience: 6, sent: 2, dropped: 4 });
    const drops = Object.fromEntries(
      (await recipientsOf(id)).data.flatMap(({ devices }) =>
        devices.map((device) => [device.device_id, device.drop_reason]),
      ),
    );
    expect(drops).toEqual({
      [fine!.phone.id]: null,
      [second.id]: null,
      [optedOut!.phone.id]: 'unsubscribed',
      [signedOut!.phone.id]: 'no_address',
      [moved!.phone.id]: 'no_address',
      [deleted!.phone.id]: 'contact_deleted',
    });
    expect(Object.keys(drops)).not.toContain(late.id);
    expect(await explain(id, signedOut!.contactId)).toMatchObject({ outcome: 'sent' });
  });

  test('retires a device whose service says that it is gone, and expires with its time', async () => {
    const list = await aList();
    const [dead, slow] = [
      await aReader(list, { prefix: 'simulator-unregistered-' }),
      await aReader(list, { prefix: 'simulator-throttled-' }),
    ];
    const id = await aReady({ list_ids: [list], ttl_seconds: 300 });
    await sendOff(id);
    await has(id, ({ stats }) => stats.failed === 1);
    const [device] = await rowsOf<{ status: string }>(server, 'select status from devices where id = $1', [
      dead.phone.id,
    ]);
    expect(device).toEqual({ status: 'EXPIRED' });
    await eventually(
      () => recipientsOf(id, 'status=delayed'),
      ({ data }) => data.length === 1,
    );
    expect((await explain(id, slow.contactId)).reason).toContain('will be tried again');
    clock.putForward(301_000);
    const { stats } = await whenSent(id);
    expect(stats).toMatchObject({ failed: 2, pending: 0 });
    const classes = (await recipientsOf(id)).data.map(
      ({ devices: [only] }) => (only!.bounce as { class: string }).class,
    );
    expect(classes).toEqual(['expired', 'unregistered']);
  });

  test('that is cancelled stops at those that wait', async () => {
    const list = await aList();
    await aReader(list);
    const waiting = await aReader(list, { prefix: 'simulator-throttled-' });
    const id = await aReady({ list_ids: [list] });
    await sendOff(id);
    await has(id, ({ status, stats }) => status === 'sending' && stats.sent === 1);
    await eventually(
      () => recipientsOf(id, 'status=delayed'),
      ({ data }) => data.length === 1,
    );
    expect((await ask('POST', `/push/campaigns/${id}/cancel`)).status).toBe(200);
    expect((await ask('POST', `/push/campaigns/${id}/cancel`)).status).toBe(400);
    const campaign = await read(id);
    expect(campaign).toMatchObject({ status: 'cancelled', stats: { sent: 1, cancelled: 1, pending: 0 } });
    const [left] = (await recipientsOf(id, 'status=cancelled')).data;
    expect(left?.contact_id).toBe(waiting.contactId);
    clock.putForward(120_000);
    expect(
      await rowsOf(
        server,
        `select from delivery_queue where message_id = $1
         union all
         select from delivery_slices where message_id = $1`,
        [await messageOf(id)],
      ),
    ).toEqual([]);
  });

  test('forgets a contact that is deleted, on each of its devices, and nobody else', async () => {
    const list = await aList();
    const [kept, erased] = [
      await aReader(list, { first_name: 'Kept' }),
      await aReader(list, { first_name: 'Zebulon' }),
    ];
    await aPhone(erased.contactId);
    const id = await aReady({ list_ids: [list] });
    await sent(id);
    const messageId = await messageOf(id);
    const copies = () =>
      rowsOf<{ recipient: string }>(server, 'select recipient from sandbox_messages where message_id = $1', [
        messageId,
      ]);
    expect(await copies()).toHaveLength(3);
    await ask('DELETE', `/contacts/${erased.contactId}`);
    const left = await eventually(copies, (rows) => rows.length < 3);
    expect(left).toEqual([{ recipient: expect.stringContaining(kept.phone.name) as string }]);
    const rows = await rowsOf<{ text: string }>(
      server,
      'select t::text as text from recipients t where message_id = $1',
      [messageId],
    );
    expect(rows).toHaveLength(3);
    expect(rows.filter(({ text }) => text.includes('Zebulon'))).toEqual([]);
    const listed = (await recipientsOf(id)).data.find(
      ({ contact_id: contactId }) => contactId === erased.contactId,
    );
    expect(listed?.devices.map(({ status, platform }) => [status, platform])).toEqual([
      ['sent', null],
      ['sent', null],
    ]);
  });

  test('reaches each of more than two hundred devices once, through a pause, and lists them page by page', async () => {
    const list = await aList();
    const contactIds: string[] = [];
    for (let each = 0; each < 110; each += 1) contactIds.push(await aContact(list));
    const devices = contactIds.flatMap((contactId) =>
      [aName(), aName()].map((name) => androidApp(name, { contact_id: contactId })),
    );
    expect((await ask('POST', '/push/devices/bulk', { devices })).status).toBe(200);
    const id = await aReady({ list_ids: [list] });
    const before = await usedOfQuota();
    await setQuota(before + 55);
    await sendOff(id);
    const paused = await has(id, ({ status, stats }) => status === 'paused' && stats.sent >= 110);
    // Of each contact whose place was taken, all devices.
    expect(paused.stats).toMatchObject({ sent: 110, pending: 110 });
    expect(await usedOfQuota()).toBe(before + 55);
    await liftQuota();
    const { stats } = await whenSent(id);
    expect(stats).toMatchObject({ audience: 220, sent: 220, unconfirmed: 220 });
    expect(await usedOfQuota()).toBe(before + 110);
    const copies = await rowsOf<{ recipient: string }>(
      server,
      'select recipient from sandbox_messages where message_id = $1',
      [await messageOf(id)],
    );
    expect(new Set(copies.map(({ recipient }) => recipient)).size).toBe(220);
    expect(copies).toHaveLength(220);
    const listed: Recipient[] = [];
    for (let page = await recipientsOf(id, 'limit=50'); ;) {
      listed.push(...page.data);
      if (!page.has_more) break;
      page = await recipientsOf(id, `limit=50&after=${listed.at(-1)!.contact_id}`);
    }
    expect(listed.map(({ contact_id: contactId }) => contactId)).toEqual(contactIds.toReversed());
    expect(listed.every((recipient) => recipient.devices.length === 2)).toBe(true);
  });
});
