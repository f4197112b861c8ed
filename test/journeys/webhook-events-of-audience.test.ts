/**
 * What programs are told of contacts, suppressions and segments. What is right is read off the API: the difference between
 * what it shows before and after each act is what the log must have, each change once, and nothing else.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  addSuppressions,
  deleteExpiredSuppressions,
  hearOptOut,
  importContacts,
  importSuppressions,
  optIn,
  optOut,
  removeSuppressions,
  toErasedKey,
} from '../../src/audience/audience.ts';
import type { ContactRecord } from '../../src/audience/schema.ts';
import type { BulkRecord, SuppressionRecord } from '../../src/audience/suppression-schema.ts';
import { now, parseTimestamp } from '../../src/platform/clock.ts';
import { isUuid } from '../../src/platform/ids.ts';
import { describeApi } from '../../src/roles/api-description.ts';
import { emailChannel } from '../../src/email/email.ts';
import { applyReports } from '../../src/messages/messages.ts';
import { createWaker } from '../../src/platform/queue/wake.ts';
import type { Transaction } from '../../src/platform/postgres/database.ts';
import { createIntake as createSmsIntake } from '../../src/roles/providers/sms.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { androidApp, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

type Event = { type: string; timestamp: string; sequence: number; data: Data };
type Data = {
  object: string;
  id: string;
  changed?: { consent: Record<string, string> };
  name?: string | null;
  contact?: { id: string };
};
type EventPage = { data: Event[]; next: number; caught_up: boolean };
type Page<Item> = { data: Item[]; has_more: boolean };
type Organization = { organizationId: string; key: string };

const dayMs = 86_400_000;
const ownNumber = '14155550100';
const wanted = ['contact.*', 'suppression.*', 'segment.*'];

let server: TestServer;
let clock: ShiftedClock;
/** The server's own, whose programs want to hear of everything. */
let own: Organization;
/** Has the same people, and does nothing with them. Its programs want to hear of everything too. */
let other: Organization;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  own = { organizationId: server.organizationId, key: server.key };
  other = await createSender(server.installation, 'other.example');
  await rowsOf(server, 'update organizations set requests_per_window = 1000000');
  await addApprovedSender(server, ownNumber);
  for (const organization of [own, other]) {
    await setUpPush(server, organization.organizationId);
    await subscribe(organization);
    await ask(201, 'POST', '/properties', { key: 'plan', name: 'Plan', type: 'string' }, organization);
    await ask(201, 'POST', '/events', { name: 'seen', schema: { fields: [] } }, organization);
  }
});
afterAll(() => server.stop());

async function ask<Body = { id: string }>(
  status: number,
  method: string,
  path: string,
  body?: object,
  organization = own,
): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body, authorize(organization));
  expect([method, path, response.status, response.text]).toEqual([method, path, status, response.text]);
  return response.body;
}

async function listAll<Item extends { id: string }>(path: string, organization: Organization) {
  const items: Item[] = [];
  for (let after = ''; ;) {
    const query = `${path.includes('?') ? '&' : '?'}limit=100${after}`;
    const page = await ask<Page<Item>>(200, 'GET', `${path}${query}`, undefined, organization);
    items.push(...page.data);
    if (!page.has_more) return new Map(items.map((item) => [item.id, item]));
    after = `&after=${items.at(-1)!.id}`;
  }
}

const subscribe = (organization: Organization) =>
  ask(201, 'POST', '/webhooks', { kind: 'poll', events: wanted }, organization);

/** One more, whose programs want to hear of everything. */
async function anOrganization(domain: string): Promise<Organization> {
  const organization = await createSender(server.installation, domain);
  await rowsOf(server, 'update organizations set requests_per_window = 1000000');
  await subscribe(organization);
  return organization;
}

type Shown = { contacts: Map<string, ContactRecord>; suppressions: Map<string, SuppressionRecord> };

async function show(organization: Organization): Promise<Shown> {
  return {
    contacts: await listAll<ContactRecord>('/contacts', organization),
    suppressions: await listAll<SuppressionRecord>('/suppressions', organization),
  };
}

/** What has become of what was shown. */
function differences(before: Shown, after: Shown): string[] {
  const told: string[] = [];
  for (const [id, { consent, updated_at: _at, ...contact }] of after.contacts) {
    const present = before.contacts.get(id);
    if (present === undefined) {
      told.push(`contact.created ${id}`);
      continue;
    }
    const { consent: consentBefore, updated_at: _before, ...contactBefore } = present;
    if (JSON.stringify(contact) !== JSON.stringify(contactBefore)) told.push(`contact.updated ${id}`);
    const changed = Object.entries(consent).filter(
      ([channel, said]) => consentBefore[channel as keyof typeof consent] !== said,
    );
    if (changed.length > 0)
      told.push(`contact.consent_changed ${id} ${JSON.stringify(Object.fromEntries(changed))}`);
  }
  for (const id of before.contacts.keys()) if (!after.contacts.has(id)) told.push(`contact.deleted ${id}`);
  for (const id of after.suppressions.keys())
    if (!before.suppressions.has(id)) told.push(`suppression.created ${id}`);
  for (const id of before.suppressions.keys())
    if (!after.suppressions.has(id)) told.push(`suppression.deleted ${id}`);
  return told.sort();
}

const named = ({ type, data: { id, changed } }: Event) =>
  [type, id, ...(changed ? [JSON.stringify(changed.consent)] : [])].join(' ');

/** What the description of the API says of events. */
const isDescribed = new Ajv2020({
  strict: false,
  formats: { uuid: isUuid, 'date-time': (text) => parseTimestamp(text) !== null },
}).compile({
  $ref: '#/components/schemas/WebhookEvent',
  components: { schemas: describeApi().components.schemas },
});

/** All that was committed has its position. */
async function untilNumbered({ organizationId }: Organization): Promise<void> {
  await eventually(
    () => rowsOf(server, 'select from webhook_outbox where organization_id = $1', [organizationId]),
    (rows) => rows.length === 0,
  );
}

async function readLog(organization: Organization, from = 1): Promise<Event[]> {
  await untilNumbered(organization);
  const events: Event[] = [];
  for (let next = from; ;) {
    const path = `/webhook-events?from=${next}&limit=200`;
    const page = await ask<EventPage>(200, 'GET', path, undefined, organization);
    for (const event of page.data)
      expect([event, isDescribed(event), isDescribed.errors]).toEqual([event, true, null]);
    events.push(...page.data);
    next = page.next;
    if (page.caught_up) return events;
  }
}

/** The position of what happens next. */
async function nextOf(organization: Organization): Promise<number> {
  await untilNumbered(organization);
  const [row] = await rowsOf<{ last: number }>(
    server,
    'select last_position::integer as last from webhook_positions where organization_id = $1',
    [organization.organizationId],
  );
  return (row?.last ?? 0) + 1;
}

/** Does something, and returns what was told of it, which must be what has changed. */
async function toldOf(act: () => Promise<unknown>, organization = own): Promise<Event[]> {
  const before = await show(organization);
  const from = await nextOf(organization);
  await act();
  const told = await readLog(organization, from);
  const after = await show(organization);
  expect(told.map(named).sort()).toEqual(differences(before, after));
  for (const { type, data } of told) expect(data).toEqual(recordOf(type, data, after));
  return told;
}

/** What is to be told of a contact or a suppression: its record, or what is known of one that is gone. */
function recordOf(type: string, { object, id, changed }: Data, { contacts, suppressions }: Shown): object {
  if (object === 'contact')
    return { object, id, ...contacts.get(id), ...(type === 'contact.consent_changed' && { changed }) };
  const described = { channel: expect.any(String), reason: expect.any(String), scope: expect.any(String) };
  return { object, id, ...(suppressions.get(id) ?? described) };
}

type Person = { id: string; external_id: string; email: string; phone_number: string };

let made = 0;
/** In both organizations; of the own one is returned. */
async function aPerson(): Promise<Person> {
  made += 1;
  const person = {
    external_id: `person-${made}`,
    email: `person-${made}@example.com`,
    phone_number: `+4930${1_000_000 + made}`,
    first_name: 'Ann',
  };
  await ask(201, 'POST', '/contacts', person, other);
  return ask<Person>(201, 'POST', '/contacts', person);
}

type Act = (person: Person) => Promise<unknown>;

const within = <Result>(work: (transaction: Transaction) => Promise<Result>) =>
  server.installation.database.asOrganizations([own.organizationId], work);
const change =
  (body: object): Act =>
  ({ id }) =>
    ask(200, 'PATCH', `/contacts/${id}`, body);
const puts =
  (more: (person: Person) => object, status: 200 | 201): Act =>
  (person) =>
    ask(status, 'PUT', '/contacts', more(person));
const sees =
  (more: (person: Person) => object): Act =>
  (person) =>
    ask(202, 'POST', '/events/send', { event: 'seen', ...more(person) });
const texts =
  (text: string): Act =>
  async ({ phone_number: from }) => {
    const { takeInbound } = createSmsIntake(server.installation);
    await takeInbound({ providerMessageId: null, from, senderName: ownNumber, text });
    await eventually(
      () => rowsOf(server, 'select id from sms_events'),
      (left) => left.length === 0,
    );
  };
const suppress =
  (more: object = {}): Act =>
  ({ email: address }) =>
    ask(201, 'POST', '/suppressions', { channel: 'email', address, ...more });
async function suppressionsOf({ email }: Person): Promise<string[]> {
  const { data } = await ask<Page<SuppressionRecord>>(200, 'GET', `/suppressions?search=${email}`);
  return data.map(({ id }) => id);
}
const lift: Act = async (person) => {
  for (const id of await suppressionsOf(person)) await ask(200, 'DELETE', `/suppressions/${id}`);
};
const clicks =
  (what: (link: string) => Promise<Response>, listIds: readonly string[] = []): Act =>
  async ({ id, email }) => {
    const { organizationId } = own;
    const campaign = { organizationId, contacts: [{ id, email }], listIds };
    const { tokens } = await insertSentCampaign(server.installation, campaign);
    expect((await what(`${server.url}/u/${tokens[0]!.unsubscribe}`)).status).toBe(200);
  };
const sends = (form: Record<string, string>) => (link: string) =>
  fetch(link, { method: 'POST', body: new URLSearchParams(form) });
const oneClick = sends({ 'List-Unsubscribe': 'One-Click' });
const report =
  (status: 'bounced' | 'complained'): Act =>
  async ({ email }) => {
    const messageId = await send(server, { to: [email] });
    await settled(server, messageId);
    const failure =
      status === 'complained'
        ? null
        : ({
            type: 'hard',
            class: 'mailbox_not_found',
            smtpCode: 550,
            enhancedCode: '5.1.1',
            diagnostic: 'No such user',
            remote: 'mx.example.com',
          } as const);
    const listeners = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };
    const job = { organizationId: own.organizationId, messageId, ordinal: 0 };
    await applyReports({ ...server.installation, random: Math.random, ...listeners }, emailChannel, [
      { job, status, failure },
    ]);
  };
const registers: Act = ({ id, external_id: name }) =>
  ask(200, 'POST', '/push/devices', androidApp(name, { contact_id: id }));
const optsOutOnDevice: Act = ({ external_id: name }) =>
  ask(200, 'POST', '/push/devices/unregister', { installation_id: name, reason: 'opt_out' });
const emailOf = ({ email }: Person) => ({ organizationId: own.organizationId, address: email });
/** As after an erasure: nobody is found by that. */
const optsOutErased: Act = (person) =>
  within((transaction) =>
    optOut(
      transaction,
      server.installation,
      'email',
      { ...emailOf(person), address: toErasedKey(server.installation, emailOf(person)) },
      { scope: 'marketing', source: { type: 'message', id: null } },
    ),
  );
/** Somebody else's address, which is none that has theirs in it. */
const elseOf = ({ email }: Person) => email.replace('@', '@else.');
const elseOptsOut: Act = (person) =>
  within((transaction) =>
    optOut(
      transaction,
      server.installation,
      'email',
      { organizationId: own.organizationId, address: elseOf(person) },
      { scope: 'marketing', source: { type: 'message', id: null } },
    ),
  );
const optsIn: Act = (person) =>
  within((transaction) => optIn(transaction, server.installation, 'email', emailOf(person)));

const providerSays: Act = ({ phone_number: address }) =>
  within((transaction) =>
    hearOptOut(
      transaction,
      server.installation,
      'sms',
      { organizationId: own.organizationId, address },
      { scope: 'all', sentAt: null, messageId: server.installation.newId() },
    ),
  );
const leavesByLink: Act = (person) =>
  clicks(sends({ action: 'leave_list', list_id: sets.list }), [sets.list])(person);

const [created, updated, deleted, consent] = [
  'contact.created',
  'contact.updated',
  'contact.deleted',
  'contact.consent_changed',
];
const [suppressed, lifted] = ['suppression.created', 'suppression.deleted'];
const unsubscribed = [consent, suppressed];
const subscribedAgain = [consent, lifted];

/** What a person, or the organization, does step by step, and what is told of each. */
const stories: Record<string, readonly (readonly [Act, readonly string[]])[]> = {
  'a contact is changed': [
    [change({ first_name: 'Anna' }), [updated]],
    [change({ first_name: 'Anna' }), []],
    [change({ properties: { plan: 'pro' } }), [updated]],
    [change({ properties: { plan: 'pro' } }), []],
    [change({ properties: { plan: null } }), [updated]],
    [change({}), []],
    [(person) => change({ email: person.email })(person), []],
    [(person) => change({ email: `new-${person.email}` })(person), [updated]],
    [change({ phone_number: null }), [updated]],
  ],
  'a contact is unsubscribed and subscribed': [
    [change({ consent: { email: 'unsubscribed' } }), unsubscribed],
    [change({ consent: { email: 'unsubscribed' } }), []],
    [change({ first_name: 'Anna', consent: { sms: 'unsubscribed' } }), [updated, ...unsubscribed]],
    [(person) => change({ email: `new-${person.email}` })(person), [updated, suppressed]],
    [change({ consent: { email: 'subscribed', sms: 'subscribed' } }), [consent, lifted, lifted]],
    [change({ consent: { email: 'subscribed' } }), []],
    [change({ consent: { push: 'unsubscribed' } }), [consent, suppressed, suppressed, suppressed]],
    [change({ consent: { push: 'subscribed' } }), [consent, lifted, lifted, lifted]],
  ],
  'a contact joins and leaves': [
    [(person) => join('list', person), [updated]],
    [(person) => join('list', person), []],
    [(person) => leave('list', person), [updated]],
    [(person) => leave('list', person), []],
    [(person) => join('tag', person), [updated]],
    [(person) => leave('tag', person), [updated]],
  ],
  'a contact is deleted, and comes back with what it had said': [
    [change({ consent: { email: 'unsubscribed' } }), unsubscribed],
    [({ id }) => ask(200, 'DELETE', `/contacts/${id}`), [deleted]],
    [({ id }) => ask(404, 'DELETE', `/contacts/${id}`), []],
    [({ email }) => ask(201, 'POST', '/contacts', { email }), [created]],
  ],
  'a contact is put': [
    [
      puts(({ external_id }) => ({ external_id, first_name: 'Anna', consent: { sms: 'unsubscribed' } }), 200),
      [updated, ...unsubscribed],
    ],
    [
      puts(({ external_id }) => ({ external_id, first_name: 'Anna', consent: { sms: 'subscribed' } }), 200),
      [],
    ],
    [puts(({ email }) => ({ email, list_ids: [sets.list] }), 200), [updated]],
    [puts(({ email }) => ({ email: `else-${email}`, list_ids: [sets.list] }), 201), [created]],
  ],
  'events name people': [
    [sees(({ email }) => ({ email })), []],
    [sees(({ email }) => ({ email: `else-${email}` })), [created]],
    [sees(({ email }) => ({ email: `else-${email}`, external_id: `else-${email}` })), [updated]],
    [sees(({ email }) => ({ email: `else-${email}`, external_id: `else-${email}` })), []],
  ],
  'events say more of people who have opted out': [
    [sees((person) => ({ email: elseOf(person) })), [created]],
    [elseOptsOut, unsubscribed],
    [sees((person) => ({ email: elseOf(person), external_id: elseOf(person) })), [updated]],
    [change({ consent: { sms: 'unsubscribed' } }), unsubscribed],
    [({ id }) => ask(200, 'DELETE', `/contacts/${id}`), [deleted]],
    // The number has opted out, and is theirs from now on.
    [
      sees((person) => ({ external_id: elseOf(person), phone_number: person.phone_number })),
      [updated, consent],
    ],
  ],
  'a person texts': [
    [texts('STOP'), unsubscribed],
    [texts('STOP'), []],
    [texts('START'), subscribedAgain],
    [texts('Hello'), []],
  ],
  'a person clicks on unsubscribe': [
    [clicks(oneClick), unsubscribed],
    [clicks(oneClick), []],
    [optsIn, subscribedAgain],
    [optsIn, []],
  ],
  'a person leaves a list by its link, and only that': [
    [(person) => join('list', person), [updated]],
    [leavesByLink, [updated]],
    [leavesByLink, []],
  ],
  'a provider knows of an opt-out': [
    [providerSays, unsubscribed],
    [providerSays, []],
  ],
  'an address bounces, is tried again, and complains': [
    [report('bounced'), [suppressed]],
    [lift, [lifted]],
    [report('complained'), [suppressed]],
  ],
  'an organization suppresses an address': [
    [suppress(), [suppressed]],
    [({ email: address }) => ask(200, 'POST', '/suppressions', { channel: 'email', address }), []],
    [suppress({ scope: 'marketing', note: 'Asked.' }), [suppressed]],
    [lift, [lifted, lifted]],
  ],
  'a suppression ends by itself': [
    [
      (person) => suppress({ expires_at: new Date(clock.nowMs() + dayMs).toISOString() })(person),
      [suppressed],
    ],
  ],
  'the operator suppresses an address': [
    [
      (person) =>
        within((transaction) =>
          addSuppressions(transaction, server.installation, 'email', [
            { ...emailOf(person), reason: 'operator' },
          ]),
        ),
      [suppressed],
    ],
    [
      (person) =>
        within((transaction) =>
          removeSuppressions(transaction, server.installation, 'email', emailOf(person)),
        ),
      [lifted],
    ],
  ],
  'a person opts out on a device': [
    [registers, []],
    // Of the installation, and of its token.
    [optsOutOnDevice, [suppressed, suppressed]],
    [change({ consent: { push: 'subscribed' } }), [lifted, lifted]],
  ],
};

let sets: Record<'list' | 'tag', string>;
beforeAll(async () => {
  sets = {
    list: (await ask(201, 'POST', '/lists', { name: 'News' })).id,
    tag: (await ask(201, 'POST', '/tags', { name: 'VIP' })).id,
  };
});
const join = (kind: 'list' | 'tag', { id }: Person) =>
  ask(200, 'POST', `/${kind}s/${sets[kind]}/contacts`, { contact_ids: [id] });
const leave = (kind: 'list' | 'tag', { id }: Person) =>
  ask(200, 'DELETE', `/${kind}s/${sets[kind]}/contacts`, { contact_ids: [id] });

describe('each step is told once, and nothing that changes nothing', () => {
  test.each(Object.keys(stories))('%s', async (name) => {
    const person = await aPerson();
    for (const [act, types] of stories[name]!) {
      const told = await toldOf(() => act(person));
      expect(told.map(({ type }) => type).sort()).toEqual([...types].sort());
    }
  });
});

const counted = (events: readonly Event[]) => {
  const counts: Record<string, number> = {};
  for (const { type } of events) counts[type] = (counts[type] ?? 0) + 1;
  return counts;
};

async function* fileOf(text: string) {
  yield await Promise.resolve(Buffer.from(text));
}
const importFile = (
  { organizationId }: Organization,
  lines: readonly string[],
  lists: readonly string[] = [],
) =>
  importContacts(server.installation, {
    organizationId,
    source: fileOf(`${lines.join('\n')}\n`),
    lists,
    tags: [],
    mapped: [],
    ignored: [],
    isDryRun: false,
    onChanged: createWaker(server.installation, 'segments'),
  });
const thousand = Array.from({ length: 1_000 }, (_none, index) => `imported-${index}@example.com`);

describe('many at once', () => {
  test('are told one by one by imports, bulk requests and deletions', async () => {
    const many = await anOrganization('many.example');
    const tellOf = async (act: () => Promise<unknown>) => counted(await toldOf(act, many));
    const load =
      (...given: [readonly string[], (readonly string[])?]) =>
      () =>
        importFile(many, ...given);
    const first = ['email,first_name', ...thousand.map((email) => `${email},Ann`)];
    expect(await tellOf(load(first))).toEqual({ [created]: 1_000 });
    expect(await tellOf(load(first))).toEqual({});
    // A row twice, that in the end says what was there before; one that is new; and one that says more than before.
    const again = [
      'email,first_name',
      `${thousand[0]},Bob`,
      `${thousand[0]},Ann`,
      'brand-new@example.com,Eve',
      `${thousand[1]},Bob`,
    ];
    expect(await tellOf(load(again))).toEqual({ [created]: 1, [updated]: 1 });
    expect(await tellOf(load(first, ['Imported']))).toEqual({ [updated]: 1_000 });
    const optOuts = [
      'email,email_consent',
      ...thousand.slice(0, 700).map((email) => `${email},unsubscribed`),
    ];
    expect(await tellOf(load(optOuts))).toEqual({ [consent]: 700, [suppressed]: 700 });

    const contactsOf = (last_name: string) => thousand.map((email) => ({ email, last_name }));
    const put = () => ask(200, 'POST', '/contacts/bulk', { contacts: contactsOf('Put') }, many);
    expect(await tellOf(put)).toEqual({ [updated]: 1_000 });
    expect(await tellOf(put)).toEqual({});

    const { contacts } = await show(many);
    const ids = [...contacts.values()].flatMap(({ id, email }) => (email?.startsWith('imp') ? [id] : []));
    const { id: tagId } = await ask(201, 'POST', '/tags', { name: 'VIP' }, many);
    const all = { contact_ids: ids };
    const joinAll = () => ask(200, 'POST', `/tags/${tagId}/contacts`, all, many);
    expect(await tellOf(joinAll)).toEqual({ [updated]: 1_000 });
    const deleteAll = () => ask(200, 'POST', '/contacts/bulk-delete', all, many);
    expect(await tellOf(deleteAll)).toEqual({ [deleted]: 1_000 });
    expect(await tellOf(deleteAll)).toEqual({});
    // Whoever comes back is what they had said.
    expect(await tellOf(load(first))).toEqual({ [created]: 1_000 });
  });

  test('are told one by one of suppressions that are added, imported and deleted', async () => {
    const many = await anOrganization('suppressed.example');
    const tellOf = async (act: () => Promise<unknown>) => counted(await toldOf(act, many));
    const bodies = thousand.slice(0, 600).map((address) => ({ channel: 'sms', address }));
    const numbers = bodies.map((body, index) => ({ ...body, address: `+4940${2_000_000 + index}` }));
    const suppressions = [...numbers, numbers[0], { channel: 'sms', address: 'nowhere' }];
    let ids: string[] = [];
    const add = async () => {
      const { data } = await ask<BulkRecord>(200, 'POST', '/suppressions/bulk', { suppressions }, many);
      ids = data.flatMap((one) => ('error' in one ? [] : [one.id]));
    };
    expect(await tellOf(add)).toEqual({ [suppressed]: 600 });
    expect(await tellOf(add)).toEqual({});
    const removeAll = () => ask(200, 'POST', '/suppressions/bulk-delete', { ids }, many);
    expect(await tellOf(removeAll)).toEqual({ [lifted]: 600 });

    const people = Array.from({ length: 600 }, (_none, index) => `told-elsewhere-${index}@example.com`);
    await importFile(many, ['email', ...people]);
    const importList = (list: 'bounces' | 'unsubscribes') =>
      importSuppressions(server.installation, {
        organizationId: many.organizationId,
        source: fileOf(`email,created\n${people.map((email) => `${email},1700000000`).join('\n')}\n`),
        format: 'sendgrid',
        list,
        channel: 'email',
        mapped: [],
        ignored: [],
        isDryRun: false,
      });
    expect(await tellOf(() => importList('bounces'))).toEqual({ [suppressed]: 600 });
    expect(await tellOf(() => importList('unsubscribes'))).toEqual({
      [consent]: 600,
      [suppressed]: 600,
    });
    expect(await tellOf(() => importList('unsubscribes'))).toEqual({});
  });
});

test('a suppression that has ended is told so as of its end, whether it is cleared up or made anew', async () => {
  const [cleared, renewed] = [await aPerson(), await aPerson()];
  const endsAt = new Date(clock.nowMs() + dayMs).toISOString();
  for (const person of [cleared, renewed]) await suppress({ expires_at: endsAt })(person);
  await ask(
    201,
    'POST',
    '/suppressions',
    { channel: 'email', address: cleared.email, expires_at: endsAt },
    other,
  );
  const from = await nextOf(own);
  clock.putForward(2 * dayMs);
  await suppress()(renewed);
  const housekeep = () => deleteExpiredSuppressions(server.installation.database, now(clock));
  await housekeep();
  const told = await readLog(own, from);
  expect(told.filter(({ timestamp }) => timestamp === endsAt).map(({ type }) => type)).toEqual([
    lifted,
    lifted,
  ]);
  const anew = told.filter(({ type }) => type === suppressed);
  expect(anew.map(({ data }) => (data as object as SuppressionRecord).address)).toEqual([renewed.email]);
  expect((await readLog(other)).filter(({ type }) => type === lifted)).toHaveLength(1);
  await housekeep();
  expect(counted(await readLog(own, from))).toEqual(counted(told));
});

test('what is said of an erased address is told with the next change of whoever has it', async () => {
  const person = await aPerson();
  const from = await nextOf(own);
  await optsOutErased(person);
  expect((await readLog(own, from)).map(({ type }) => type)).toEqual([suppressed]);
  const shown = await ask<ContactRecord>(200, 'GET', `/contacts/${person.id}`);
  expect(shown.consent.email).toBe('unsubscribed');
  await change({ consent: { email: 'subscribed' } })(person);
  const told = (await readLog(own, from)).slice(1);
  expect(told.map(named).sort()).toEqual([
    `${consent} ${person.id} {"email":"subscribed"}`,
    expect.stringContaining(lifted) as string,
  ]);
  await optsOutErased(person);
  await optsIn(person);
  expect((await readLog(own, from)).slice(3).map(({ type }) => type)).toEqual([suppressed, lifted, consent]);
});

test('nothing is told of a person who was erased but the keys', async () => {
  const person = await aPerson();
  await change({ first_name: 'Rumpelstiltskin', properties: { plan: 'straw into gold' } })(person);
  await change({ consent: { email: 'unsubscribed' } })(person);
  await suppress({ note: 'Rumpelstiltskin is his name.' })(person);
  const isOf = ({ data }: Event) => data.id === person.id;
  expect((await readLog(own)).filter(isOf).map(({ type }) => type)).toEqual([created, updated, consent]);
  await ask(200, 'DELETE', `/contacts/${person.id}`);
  const log = await readLog(own);
  expect(log.filter(isOf).map(({ data }) => data)).toEqual([
    { object: 'contact', id: person.id },
    { object: 'contact', id: person.id },
    { object: 'contact', id: person.id, changed: { consent: { email: 'unsubscribed' } } },
    { object: 'contact', id: person.id },
  ]);
  const kept = await rowsOf(server, 'select * from webhook_events where organization_id = $1', [
    own.organizationId,
  ]);
  for (const trace of [person.email, person.external_id, person.phone_number, 'Rumpelstiltskin', 'straw'])
    for (const text of [JSON.stringify(log), JSON.stringify(kept)]) expect(text).not.toContain(`"${trace}`);
  // Of the other organization nobody was erased.
  const theirs = (await readLog(other)).map(({ data }) => data as object as ContactRecord);
  expect(theirs.filter(({ email }) => email === person.email)).toHaveLength(1);
});

test('a contact too large for a program is told by its id', async () => {
  const person = await aPerson();
  const longs = Array.from({ length: 25 }, (_none, index) => `long_${index}`);
  for (const key of longs) await ask(201, 'POST', '/properties', { key, name: key, type: 'string' });
  const properties = Object.fromEntries(longs.map((key) => [key, 'x'.repeat(1_000)]));
  const from = await nextOf(own);
  await change({ properties })(person);
  const [event] = await readLog(own, from);
  expect(event!.data).toEqual({ object: 'contact', id: person.id, data_truncated: true });
});

test('an organization whose programs want none of it has no row for it', async () => {
  const deaf = await createSender(server.installation, 'deaf.example');
  await ask(201, 'POST', '/webhooks', { kind: 'poll', events: ['email.*', 'contact.deleted'] }, deaf);
  const { id } = await ask(201, 'POST', '/contacts', { email: 'ann@example.com' }, deaf);
  await ask(200, 'PATCH', `/contacts/${id}`, { consent: { email: 'unsubscribed' } }, deaf);
  await ask(201, 'POST', '/suppressions', { channel: 'email', address: 'bob@example.com' }, deaf);
  const conditions = { type: 'field', field: 'email', operator: 'is_set' };
  const segment = await ask(201, 'POST', '/segments', { name: 'All', conditions }, deaf);
  await untilFollowed(deaf, segment.id);
  await ask(201, 'POST', '/contacts', { email: 'eve@example.com' }, deaf);
  await untilFollowed(deaf, segment.id);
  for (const table of ['webhook_outbox', 'webhook_events'])
    expect(
      await rowsOf(server, `select from ${table} where organization_id = $1`, [deaf.organizationId]),
    ).toEqual([]);
  await ask(200, 'DELETE', `/contacts/${id}`, undefined, deaf);
  expect((await readLog(deaf)).map(({ type }) => type)).toEqual([deleted]);
});

/** Once the segment is computed, and all changes of contacts are followed. */
async function untilFollowed({ organizationId }: Organization, segmentId: string): Promise<void> {
  await eventually(
    () =>
      rowsOf(
        server,
        `select from contact_changes where organization_id = $1
         union all
         select from segments where organization_id = $1 and id = $2 and status <> 'ready'`,
        [organizationId, segmentId],
      ),
    (left) => left.length === 0,
  );
}

describe('a segment', () => {
  let many: Organization;
  beforeAll(async () => {
    many = await anOrganization('segments.example');
  });
  const isNamed = (value: string) => ({ type: 'field', field: 'first_name', operator: 'eq', value });
  const members = (segmentId: string) => listAll<ContactRecord>(`/contacts?segment_id=${segmentId}`, many);

  /** Does something, and returns what was told of the segment: who came and went, as the API shows them. */
  async function movesOf(segmentId: string, act: () => Promise<unknown>): Promise<Record<string, number>> {
    const before = await members(segmentId);
    const from = await nextOf(many);
    await act();
    await untilFollowed(many, segmentId);
    const told = (await readLog(many, from)).filter(({ type }) => type.startsWith('segment.'));
    const after = await members(segmentId);
    const { contacts } = await show(many);
    const moves = [
      ...[...after.keys()].filter((id) => !before.has(id)).map((id) => `segment.entered ${id}`),
      // Whoever was deleted has not left: there is nobody who could.
      ...[...before.keys()]
        .filter((id) => !after.has(id) && contacts.has(id))
        .map((id) => `segment.left ${id}`),
    ];
    expect(told.map(({ type, data }) => `${type} ${data.contact!.id}`).sort()).toEqual(moves.sort());
    for (const { data } of told)
      expect(data).toEqual({
        object: 'segment',
        id: segmentId,
        name: 'Emmas',
        contact: { object: 'contact', ...contacts.get(data.contact!.id) },
      });
    return counted(told);
  }

  const rename = (name: string, emails: readonly string[]) =>
    importFile(many, ['email,first_name', ...emails.map((email) => `${email},${name}`)]);
  const aSegment = async (name: string, conditions: object) => {
    const segment = await ask(201, 'POST', '/segments', { name, conditions }, many);
    await untilFollowed(many, segment.id);
    return segment;
  };
  const people = (name: string, length: number) =>
    Array.from({ length }, (_none, index) => `${name}-${index}@example.com`);

  test('tells nothing of its first members, nor of those that come and go with new conditions', async () => {
    const emails = people('zoe', 5);
    await rename('Zoe', emails);
    const from = await nextOf(many);
    const segment = await aSegment('Zoes', isNamed('Zoe'));
    expect((await members(segment.id)).size).toBe(5);
    await rename('Ida', emails.slice(3));
    await untilFollowed(many, segment.id);
    await ask(200, 'PATCH', `/segments/${segment.id}`, { conditions: isNamed('Ida') }, many);
    await untilFollowed(many, segment.id);
    expect((await members(segment.id)).size).toBe(2);
    await ask(200, 'DELETE', `/segments/${segment.id}`, undefined, many);
    const told = await readLog(many, from);
    expect(counted(told)).toEqual({ [updated]: 2, 'segment.left': 2 });
    // Of a segment that is gone.
    expect(told.flatMap(({ data }) => (data.object === 'segment' ? [data.name] : []))).toEqual([null, null]);
  });

  test('tells who enters and leaves, hundreds at once', async () => {
    const emails = people('emma', 700);
    await rename('Emma', emails);
    const segment = await aSegment('Emmas', isNamed('Emma'));
    expect((await members(segment.id)).size).toBe(700);
    const moves = (act: () => Promise<unknown>) => movesOf(segment.id, act);
    expect(await moves(() => rename('Emma', emails))).toEqual({});
    expect(await moves(() => rename('Ella', emails))).toEqual({ 'segment.left': 700 });
    expect(await moves(() => rename('Emma', emails.slice(0, 3)))).toEqual({ 'segment.entered': 3 });
    const [gone] = (await members(segment.id)).keys();
    expect(await moves(() => ask(200, 'DELETE', `/contacts/${gone}`, undefined, many))).toEqual({});
    await ask(200, 'PATCH', `/segments/${segment.id}`, { conditions: isNamed('Ella') }, many);
    await untilFollowed(many, segment.id);
    expect(await moves(() => rename('Ella', emails.slice(1, 3)))).toEqual({ 'segment.entered': 2 });
  });
});

test('the other organization was told of its people, of the end of its suppression, and of nothing else', async () => {
  const {
    [created]: people = 0,
    [suppressed]: begun = 0,
    [lifted]: ended = 0,
    ...more
  } = counted(await readLog(other));
  expect([people, begun - ended, more]).toEqual([made, 0, {}]);
});
