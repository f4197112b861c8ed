/** What programs are told of domains, templates' reviews, conversions and suspensions: each change once. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { ReviewedTemplate } from '../../src/channels/chatapp/provider.ts';
import { applyTemplateReviews } from '../../src/chat-templates/chat-templates.ts';
import type { TemplateRecord } from '../../src/chat-templates/schema.ts';
import { checkDomain } from '../../src/domains/verification.ts';
import { findDomain } from '../../src/domains/store.ts';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { verifyByOperator } from '../../src/domains/domains.ts';
import { changePlan } from '../../src/operator/plan.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  send,
  type Sender,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { defineEvent, sendEvent } from '../support/event-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startWebhookReceiver, type WebhookReceiver } from '../support/webhook-receiver.ts';

type Told = {
  id: string;
  type: string;
  sequence: number;
  data: { object: string; id: string } & Record<string, unknown>;
};

let server: TestServer;
let other: Sender & { organizationId: string };
let clock: ShiftedClock;
let dns: TestDnsServer;
let receiver: WebhookReceiver;

beforeAll(async () => {
  dns = await startDnsServer();
  clock = createShiftedClock();
  server = await startTestServer({
    worker: true,
    clock,
    dnsServers: [dns.address],
    publicUrl: 'https://mail.postillion.test',
    providerSettings: { POSTILLION_SANDBOX_REVIEW_MS: '0' },
  });
  other = await createSender(server.installation, 'other.example');
  receiver = await startWebhookReceiver();
  const events = ['domain.*', 'chatapp.*', 'event.*', 'organization.*'];
  const url = `http://127.0.0.1:${receiver.port}/hooks`;
  await request('POST', '/v1/webhooks', { kind: 'url', url, events });
  await request('POST', '/v1/webhooks', { kind: 'poll', events: ['*'] }, other);
});
afterAll(async () => {
  await receiver.stop();
  await server.stop();
  await dns.stop();
});

async function request<Body>(method: string, path: string, body?: object, sender?: Sender): Promise<Body> {
  const response = await server.request<Body>(method, path, body, authorize(sender));
  if (response.status >= 300) throw new Error(response.text);
  return response.body;
}

/** In the order in which they became known; one that is told twice is there once. */
const toldOf = (id: string) =>
  [
    ...new Map(
      receiver.requests.map(({ body }) => {
        const told = JSON.parse(body.toString()) as Told;
        return [told.id, told] as const;
      }),
    ).values(),
  ]
    .filter(({ data }) => data.id === id)
    .sort((one, another) => one.sequence - another.sequence);

/** The types of what is told of something, once it is so much. */
async function typesOf(id: string, count: number): Promise<string[]> {
  await eventually(
    () => toldOf(id),
    (found) => found.length >= count,
  );
  return toldOf(id).map(({ type }) => type);
}

const logOf = async (sender: Sender, type: string) =>
  (await request<{ data: Told[] }>('GET', `/v1/webhook-events?types=${type}&limit=200`, undefined, sender))
    .data;

function publish({ records }: DomainRecord): void {
  const byName = new Map<string, object>();
  for (const { type, name, value, priority } of records) {
    const published =
      type === 'MX' ? { MX: [[priority!, value]] } : type === 'CNAME' ? { CNAME: value } : { TXT: [value] };
    byName.set(name, { ...byName.get(name), ...published });
  }
  for (const [name, published] of byName) dns.set(name, published);
}

test('a domain is told of when it is verified, when it lacks a record and when it has it again, whoever checks', async () => {
  const domain = await request<DomainRecord>('POST', '/v1/email/domains', { name: 'told.example' });
  const key = { organizationId: server.organizationId, id: domain.id };
  /** Several at once, as nodes may. */
  const check = async () => {
    const row = (await findDomain(server.installation.database, key))!;
    await Promise.all([1, 2, 3].map(() => checkDomain(server.installation, row)));
  };
  await check();
  publish(domain);
  await check();
  await check();
  dns.remove(domain.records.find(({ record }) => record === 'dkim')!.name);
  await check();
  await check();
  publish(domain);
  await check();
  await check();
  expect(await typesOf(domain.id, 3)).toEqual(['domain.verified', 'domain.degraded', 'domain.recovered']);
  const record = await request<DomainRecord>('GET', `/v1/email/domains/${domain.id}`);
  const {
    last_checked_at: _at,
    updated_at: _updated,
    records: _records,
    ...told
  } = toldOf(domain.id).at(-1)!.data;
  expect({ ...record, object: 'domain' }).toMatchObject(told);
});

test('a domain that the operator vouches for is told of once, to its organization alone', async () => {
  const wanted = { organizationId: other.organizationId, name: 'vouched.example' };
  // What is told of a later one is told after all of this.
  for (const name of [wanted.name, wanted.name, 'later.example'])
    await verifyByOperator(server.installation, { ...wanted, name });
  const verified = await eventually(
    () => logOf(other, 'domain.verified'),
    (found) => found.some(({ data }) => data.name === 'later.example'),
  );
  expect(verified.map(({ data }) => data.name)).toEqual(['vouched.example', 'later.example']);
  expect(toldOf(verified[0]!.data.id)).toEqual([]);
});

const template = (name: string) => ({
  name,
  language: 'en_US',
  category: 'utility',
  components: [{ type: 'body', text: 'Hello.' }],
});

async function aTemplate(name: string, status: string): Promise<TemplateRecord> {
  const { id } = await request<TemplateRecord>('POST', '/v1/chatapp/templates', template(name));
  return eventually(
    () => request<TemplateRecord>('GET', `/v1/chatapp/templates/${id}`),
    (found) => found.status === status,
  );
}

test('a template is told of when it is approved, rejected, paused, moved and approved again', async () => {
  const approved = await aTemplate('order_shipped', 'approved');
  const rejected = await aTemplate('please_reject', 'rejected');
  expect(await typesOf(rejected.id, 1)).toEqual(['chatapp.template.rejected']);
  expect(toldOf(rejected.id)[0]!.data).toEqual({ object: 'chatapp_template', ...rejected });
  const [row] = await rowsOf<{ provider_template_id: string }>(
    server,
    'select provider_template_id from chat_templates where id = $1',
    [approved.id],
  );
  const tell = (more: Partial<ReviewedTemplate>) =>
    server.installation.database.transaction((transaction) =>
      applyTemplateReviews(server.installation, transaction, server.organizationId, [
        {
          providerTemplateId: row!.provider_template_id,
          name: 'order_shipped',
          language: 'en_US',
          state: null,
          category: null,
          rejectionReason: null,
          quality: null,
          ...more,
        },
      ]),
    );
  // Callbacks come twice now and then.
  await Promise.all([tell({ state: 'paused' }), tell({ state: 'paused' })]);
  await tell({ category: 'marketing' });
  await tell({ category: 'marketing' });
  clock.putForward(2 * 60_000);
  const types = await typesOf(approved.id, 4);
  expect(types).toEqual([
    'chatapp.template.approved',
    'chatapp.template.paused',
    'chatapp.template.recategorized',
    'chatapp.template.approved',
  ]);
  const paused = toldOf(approved.id)[1]!.data;
  expect(paused).toMatchObject({ object: 'chatapp_template', sendable: false, sendable_reason: 'paused' });
});

test('more pauses than are ended at once are told of, each once and to its own organization', async () => {
  const [model] = await rowsOf<{ id: string }>(
    server,
    `select id from chat_templates where status = 'approved' and deleted_at is null limit 1`,
  );
  const pausedUntil = new Date(clock.nowMs() + 60_000);
  const copied = await rowsOf<{ id: string; organization_id: string }>(
    server,
    `insert into chat_templates
     select (jsonb_populate_record(t, jsonb_build_object(
       'organization_id', owner, 'id', gen_random_uuid(), 'name', 'copy_' || n, 'provider_template_id', 'copy ' || owner || n,
       'provider_category', null, 'marketing_from', null, 'paused_until', $3::timestamptz
     ))).*
     from chat_templates t
     cross join unnest($2::uuid[]) as owner
     cross join generate_series(1, 1100) as n
     where t.id = $1
     returning id, organization_id`,
    [model!.id, [server.organizationId, other.organizationId], pausedUntil],
  );
  const { database } = server.installation;
  clock.putForward(120_000);
  await wakeOnce(database, 'chat_templates');
  const ids = (organizationId: string) =>
    copied.filter((copy) => copy.organization_id === organizationId).map(({ id }) => id);
  const told = (organizationId: string) =>
    rowsOf<{ subject_id: string; count: number }>(
      server,
      `select subject_id, count(*)::integer as count
       from webhook_events
       cross join unnest(subject_ids) as subject_id
       where organization_id = $1 and type = 'chatapp.template.approved' and subject_id = any ($2)
       group by subject_id`,
      [organizationId, copied.map(({ id }) => id)],
    );
  for (const { organizationId } of [server, other]) {
    const events = await eventually(
      () => told(organizationId),
      (found) => found.length >= 1_100,
    );
    expect(events.map(({ subject_id }) => subject_id).sort()).toEqual(ids(organizationId).sort());
    expect(new Set(events.map(({ count }) => count))).toEqual(new Set([1]));
  }
});

test('a conversion is told of with what it was credited to', async () => {
  const definition = await defineEvent(server, {
    schema: { fields: [{ name: 'total', type: 'number' }] },
    conversion: { enabled: true, value_field: 'total' },
  });
  const address = 'buyer@example.com';
  const contact = await request<{ id: string }>('POST', '/v1/contacts', { email: address });
  const message = await send(server, { to: [address], html: '<a href="https://shop.example/">Shop</a>' });
  await settled(server, message);
  await rowsOf(server, 'update recipients set clicked_at = handed_off_at where message_id = $1', [message]);
  const ids = [];
  for (const total of [49.9, 7])
    ids.push(await sendEvent(server, { event: definition.name, email: address, payload: { total } }));
  clock.putForward(6_000);
  for (const [index, id] of ids.entries()) {
    expect(await typesOf(id, 1)).toEqual(['event.conversion']);
    expect(toldOf(id)[0]!.data).toMatchObject({
      object: 'event',
      id,
      name: definition.name,
      contact_id: contact.id,
      value: [49.9, 7][index],
      currency: null,
      message_id: message,
      campaign_id: null,
    });
  }
});

test('an organization is told on which channel it is suspended, once however often the operator says so', async () => {
  const { installation, organizationId } = server;
  await Promise.all(
    [1, 2, 3].map(() => changePlan(installation, organizationId, { suspend: ['sms', 'push'] })),
  );
  await changePlan(installation, other.organizationId, { suspend: ['email'] });
  await Promise.all([1, 2].map(() => changePlan(installation, organizationId, { resume: ['sms', 'email'] })));
  await typesOf(organizationId, 3);
  const told = toldOf(organizationId).map(({ type, data }) => [
    type.split('.')[1],
    data.channel,
    data.reason,
  ]);
  expect(told.slice(0, 2).sort()).toEqual([
    ['sending_suspended', 'push', 'operator'],
    ['sending_suspended', 'sms', 'operator'],
  ]);
  expect(told.slice(2)).toEqual([['sending_resumed', 'sms', 'operator']]);
  const theirs = await eventually(
    () => logOf(other, 'organization.*'),
    (found) => found.length > 0,
  );
  expect(theirs.map(({ data }) => [data.id, data.channel])).toEqual([[other.organizationId, 'email']]);
});
