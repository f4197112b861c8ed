/**
 * The examples of the API's description: requests that are made here to a running server, and what it answers. They
 * are kept in docs/api-examples.json, and compared with it; `npm run generate:examples` writes it anew. What differs
 * from run to run (ids, times, keys) is replaced by what always is the same.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { verifyByOperator } from '../../src/domains/domains.ts';
import { parseTimestamp } from '../../src/platform/clock.ts';
import type { Example, Schema } from '../../src/platform/http/openapi.ts';
import type { Route } from '../../src/platform/http/route.ts';
import { isUuid } from '../../src/platform/ids.ts';
import { describeApi, examplesFile } from '../../src/roles/api-description.ts';
import { listRoutes } from '../../src/roles/api.ts';
import type { Installation } from '../../src/installation/opening.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { createStableTexts } from '../support/stable-texts.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { authorize, eventually, queueOf, rowsOf, settled } from '../support/email-journey.ts';
import type { RegistrationRecord } from '../../src/devices/schema.ts';
import { addChatTemplate, chatAppWithStatus, written } from '../support/chat-app-journey.ts';
import { setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startWebhookReceiver } from '../support/webhook-receiver.ts';
import { addApprovedSender, readSms } from '../support/sms-journey.ts';

const routes = listRoutes({} as Installation);
const nothing = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
const dayMs = 86_400_000;

let server: TestServer;
let dns: TestDnsServer;
const examples = new Map<string, Example[]>();

beforeAll(async () => {
  dns = await startDnsServer();
  server = await startTestServer({
    worker: true,
    dnsServers: [dns.address],
    bounceHost: 'mail.example.net',
    publicUrl: 'https://postillion.example.net',
    providerSettings: { POSTILLION_SANDBOX_REVIEW_MS: '0' },
  });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 100_000 });
  await addApprovedSender(server, 'Acme');
  await setUpPush(server);
  await recordEverything();
});

afterAll(async () => {
  await server.stop();
  await dns.stop();
});

test('every route has an example that succeeds, and one of its most telling error', () => {
  const lacking = routes.flatMap(({ operationId }) => {
    const statuses = (examples.get(operationId) ?? []).map(({ status }) => status);
    return [
      ...(statuses.some((status) => status < 400) ? [] : [`${operationId} succeeds`]),
      ...(statuses.some((status) => status >= 400) ? [] : [`${operationId} is refused`]),
    ];
  });
  expect(lacking, 'Say in recordEverything() what a request looks like with which').toEqual([]);
});

test('what is sent and answered is what the description says', () => {
  const document = describeApi();
  const ajv = new Ajv2020({
    strict: false,
    formats: {
      ...Object.fromEntries(Object.entries(textFormats).map(([name, { test: isOne }]) => [name, isOne])),
      uuid: isUuid,
      'date-time': (text) => parseTimestamp(text) !== null,
      date: (text) => /^\d{4}-\d\d-\d\d$/.test(text),
    },
  });
  ajv.addSchema({ $id: 'api', components: document.components });
  const check = (schema: Schema, value: unknown) => {
    const validate = ajv.compile(JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"api#/')) as Schema);
    return validate(value) ? [] : [JSON.stringify(validate.errors)];
  };
  const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
  for (const { operationId, requestBody, responses } of operations) {
    for (const { body, status, answer, title } of examples.get(operationId) ?? []) {
      const about = `${operationId}: ${title}`;
      const given = responses[status] ?? responses.default;
      if (given === undefined) throw new Error(`${about} is answered with ${status}, which is not described`);
      const response =
        '$ref' in given ? document.components.responses[given.$ref.split('/').at(-1) ?? ''] : given;
      expect([about, ...check(response!.content['application/json'].schema, answer)]).toEqual([about]);
      if (status >= 400 || body === undefined) continue;
      expect(requestBody, about).toBeDefined();
      expect([about, ...check(requestBody!.content['application/json'].schema, body)]).toEqual([about]);
    }
  }
});

test('the examples that were committed are those of this program', async () => {
  const recorded = Object.fromEntries(
    routes.flatMap(({ operationId }) => {
      const given = examples.get(operationId);
      return given === undefined ? [] : [[operationId, given]];
    }),
  );
  await expect(`${JSON.stringify(recorded, null, 2)}\n`).toMatchFileSnapshot(examplesFile);
});

const texts = createStableTexts();

type Request = {
  body?: unknown;
  headers?: Readonly<Record<string, string>>;
  /** Makes the same of an answer in which numbers differ from run to run. */
  settle?: (answer: unknown) => unknown;
};

/** Makes one request, and keeps it with its answer, of which it returns the body. */
async function record<Body = { id: string }>(
  operationId: string,
  title: string,
  path: string,
  { body, headers, settle = (answer) => answer }: Request = {},
): Promise<Body> {
  const route = routeOf(operationId);
  texts.begin();
  const response = await server.request<Body>(route.method, `/v1${path}`, body, headers);
  const example = texts.replace({
    title,
    path: `/v1${path}`,
    ...(body !== undefined && { body }),
    status: response.status,
    answer: settle(response.body),
  });
  examples.set(operationId, [...(examples.get(operationId) ?? []), example]);
  return response.body;
}

function routeOf(operationId: string): Route {
  const route = routes.find((candidate) => candidate.operationId === operationId);
  if (route === undefined) throw new Error(`there is no operation ${operationId}`);
  return route;
}

const scheduledAt = new Date(Date.now() + 2 * dayMs).toISOString();

async function recordEverything(): Promise<void> {
  texts.keep(scheduledAt, '2026-11-23T09:00:00.000Z');
  await recordProperties();
  const audience = await recordSets();
  const contacts = await recordContacts(audience);
  await recordMembers(audience, contacts);
  const segmentId = await recordSegments(audience, contacts);
  await recordDomains();
  await recordEmail();
  await recordSms();
  const tablet = await recordDevices(contacts);
  await recordPush(contacts, tablet);
  await recordChatApp(contacts);
  await recordTemplates();
  await recordEvents(contacts);
  await recordCampaigns('Email', '/email/campaigns', { ...audience, ...contacts, segmentId, scheduledAt });
  await recordCampaigns('Sms', '/sms/campaigns', { ...audience, ...contacts, segmentId, scheduledAt });
  await recordCampaigns('Push', '/push/campaigns', { ...audience, ...contacts, segmentId, scheduledAt });
  const { id: templateId } = await addChatTemplate(server, {
    name: 'spring_offer',
    category: 'marketing',
    content: written('Hello {{first_name}}, everything is half the price until Sunday. Reply STOP to stop.'),
  });
  texts.keep(templateId, '01a1fe5d-2680-7000-8000-0000000000ff');
  await recordCampaigns('ChatApp', '/chatapp/campaigns', {
    ...audience,
    ...contacts,
    ...{ segmentId, scheduledAt, templateId },
  });
  await recordDeletions(audience, contacts);
  await recordChatTemplates();
  await recordWebhooks();
  await recordSuppressions();
  await recordRequestLog();
  await recordAlerts();
}

async function recordSuppressions(): Promise<void> {
  const channel = 'email';
  const body = { channel, address: 'finn@example.com', note: 'Asked us by phone, ticket 4711.' };
  const { id } = await record('createSuppression', 'An address', '/suppressions', { body });
  await record('createSuppression', 'One that is suppressed', '/suppressions', { body });
  await record('createSuppression', 'An address of another channel', '/suppressions', {
    body: { channel: 'sms', address: 'finn@example.com' },
  });
  const { data } = await record<{ data: { id: string }[] }>(
    'bulkCreateSuppressions',
    'Two addresses, and one that is none',
    '/suppressions/bulk',
    {
      body: {
        suppressions: [
          { channel, address: 'gwen@example.com', scope: 'marketing' },
          { channel: 'sms', address: '+12025550178', expires_at: '2090-01-01T00:00:00Z' },
          { channel, address: 'hugo' },
        ],
      },
    },
  );
  await record('bulkCreateSuppressions', 'None', '/suppressions/bulk', { body: { suppressions: [] } });
  await record('getSuppression', 'A suppression', `/suppressions/${id}`);
  await record('getSuppression', 'One that does not exist', `/suppressions/${nothing}`);
  await record('listSuppressions', 'The beginning of an address', '/suppressions?search=finn%40');
  await record('listSuppressions', 'A reason that there is not', '/suppressions?reason=boredom');
  await record('checkSuppressions', 'Two addresses', '/suppressions/check', {
    body: { channel, addresses: ['Finn@Example.com', 'iris@example.com'] },
  });
  await record('checkSuppressions', 'An address of another channel', '/suppressions/check', {
    body: { channel, addresses: ['+12025550178'] },
  });
  const { organizationId, installation } = server;
  const reported = await addSuppressions(installation.database, installation, channel, [
    { organizationId, address: 'judy@example.com', reason: 'complaint' },
  ]);
  const complaint = reported[0]!.id;
  await record('deleteSuppression', 'A suppression', `/suppressions/${id}`);
  await record('deleteSuppression', 'A complaint, without saying so', `/suppressions/${complaint}`);
  await record(
    'bulkDeleteSuppressions',
    'Some that are there, and one that is not',
    '/suppressions/bulk-delete',
    {
      body: { ids: [data[0]!.id, complaint, nothing] },
    },
  );
  await record('bulkDeleteSuppressions', 'None', '/suppressions/bulk-delete', { body: { ids: [] } });
}

async function recordRequestLog(): Promise<void> {
  const refused = await server.request(
    'POST',
    '/v1/email/send',
    {
      from: 'news@acme.example',
      from_name: 'Acme',
      to: ['ann@example.com'],
      subject: 'Your code is {{code}}',
      text: 'It is {{code}}.',
      variables: { code: '471108' },
    },
    { 'idempotency-key': 'order-1042-confirmation', 'user-agent': 'acme-shop/2.1' },
  );
  const id = refused.headers.get('x-request-id')!;
  const settle = (answer: unknown) => {
    // As the description has it, which another test compares.
    const { data, ...one } = answer as { data?: object[] };
    return data === undefined
      ? { ...one, ms: 7 }
      : { ...one, data: data.map((each) => ({ ...each, ms: 7 })) };
  };
  await record('listRequests', 'The request of an answer', `/logs?request_id=${id}`, { settle });
  await record('listRequests', 'A status that there is not', '/logs?status=teapot');
  await record('getRequest', 'One that was refused', `/logs/${id}`, { settle });
  await record('getRequest', 'One that does not exist', `/logs/${nothing}`);
}

async function recordAlerts(): Promise<void> {
  await record('updateAlerts', 'Two who are told', '/organization/alerts', {
    body: { addresses: ['ops@shop.example', 'marketing@shop.example'] },
  });
  await record('updateAlerts', 'What is no address', '/organization/alerts', {
    body: { addresses: ['ops'] },
  });
  await record('getAlerts', 'Who is told', '/organization/alerts');
  await record('getAlerts', 'A filter that there is not', '/organization/alerts?kind=campaign.paused');
  // Nothing that happens later is told in other examples.
  await record('updateAlerts', 'Nobody', '/organization/alerts', { body: { addresses: [] } });
}

async function recordProperties(): Promise<void> {
  const plan = { key: 'plan', name: 'Plan', type: 'string', description: 'What the customer pays for.' };
  const { id } = await record('createProperty', 'A text', '/properties', { body: plan });
  await record('createProperty', 'A key that is in use', '/properties', { body: plan });
  await record('getProperty', 'A property', `/properties/${id}`);
  await record('getProperty', 'One that does not exist', `/properties/${nothing}`);
  await record('updateProperty', 'Another name', `/properties/${id}`, { body: { name: 'Current plan' } });
  await record('updateProperty', 'A type that would change', `/properties/${id}`, {
    body: { type: 'number' },
  });
  await record('listProperties', 'All of them', '/properties');
  await record('listProperties', 'A page that is too large', '/properties?limit=1000');
  const { id: old } = await create('/properties', { key: 'fax', name: 'Fax', type: 'string' });
  await record('deleteProperty', 'A property', `/properties/${old}`);
  await record('deleteProperty', 'One that was deleted before', `/properties/${old}`);
}

type Audience = { listId: string; oldListId: string; tagId: string; oldTagId: string };

async function recordSets(): Promise<Audience> {
  const { id: listId } = await record('createList', 'A list', '/lists', {
    body: { name: 'Newsletter', description: 'Once a month.' },
  });
  await record('createList', 'A name that is in use', '/lists', { body: { name: 'newsletter' } });
  await record('getList', 'A list', `/lists/${listId}`);
  await record('getList', 'One that does not exist', `/lists/${nothing}`);
  const { id: oldListId } = await create('/lists', { name: 'Workshops' });
  await record('updateList', 'Another name', `/lists/${oldListId}`, { body: { name: 'Workshops 2025' } });
  await record('updateList', 'A name that is in use', `/lists/${oldListId}`, {
    body: { name: 'Newsletter' },
  });
  await record('listLists', 'Those with a word in their name', '/lists?search=news');
  await record('listLists', 'Both cursors', `/lists?after=${listId}&before=${oldListId}`);

  const { id: tagId } = await record('createTag', 'A tag', '/tags', { body: { name: 'customer' } });
  await record('createTag', 'A name that is in use', '/tags', { body: { name: 'Customer' } });
  await record('getTag', 'A tag', `/tags/${tagId}`);
  await record('getTag', 'One that does not exist', `/tags/${nothing}`);
  const { id: oldTagId } = await create('/tags', { name: 'beta' });
  await record('updateTag', 'Another name', `/tags/${oldTagId}`, { body: { name: 'beta tester' } });
  await record('updateTag', 'A name that is in use', `/tags/${oldTagId}`, { body: { name: 'customer' } });
  await record('listTags', 'All of them', '/tags');
  await record('listTags', 'A cursor that is no id', '/tags?after=yesterday');
  return { listId, oldListId, tagId, oldTagId };
}

type Contacts = { adaId: string; graceId: string; oldId: string };

async function recordContacts({ listId, tagId }: Audience): Promise<Contacts> {
  const { id: adaId } = await record('createContact', 'Somebody new', '/contacts', {
    body: {
      external_id: 'user-1042',
      email: 'ada@example.com',
      phone_number: '+447700900123',
      first_name: 'Ada',
      last_name: 'Lovelace',
      locale: 'en-GB',
      timezone: 'Europe/London',
      properties: { plan: 'pro' },
      list_ids: [listId],
      tag_ids: [tagId],
    },
  });
  await record('createContact', 'An address that another contact has', '/contacts', {
    body: { email: 'ADA@example.com' },
  });
  await record('createContact', 'Several things at once that are wrong', '/contacts', {
    body: { email: 'ada', phone_number: '0770', properties: { plan: 'pro' }, newsletter: true },
  });
  const { id: graceId } = await create('/contacts', {
    email: 'grace@example.com',
    phone_number: '+12025550147',
    first_name: 'Grace',
    consent: { sms: 'unsubscribed' },
  });
  const { id: oldId } = await create('/contacts', { external_id: 'user-0007' });
  await record('getContact', 'A contact', `/contacts/${adaId}`);
  await record('getContact', 'One that does not exist', `/contacts/${nothing}`);
  await record('updateContact', 'Another plan, and no texts any more', `/contacts/${adaId}`, {
    body: { properties: { plan: 'team' }, consent: { sms: 'unsubscribed' } },
  });
  await record('updateContact', 'A property that is not defined', `/contacts/${adaId}`, {
    body: { properties: { colour: 'green' } },
  });
  await request('PATCH', `/contacts/${adaId}`, { consent: { sms: 'subscribed' } });
  await record('upsertContact', 'Somebody new', '/contacts', {
    body: { external_id: 'user-2001', email: 'mary@example.com', first_name: 'Mary' },
  });
  await record('upsertContact', 'Somebody who is there, by an address', '/contacts', {
    body: { email: 'mary@example.com', phone_number: '+447700900456', tag_ids: [tagId] },
  });
  await record('upsertContact', 'Identifiers of two contacts', '/contacts', {
    body: { external_id: 'user-2001', email: 'ada@example.com' },
  });
  await record('bulkUpsertContacts', 'One new, one known, one wrong', '/contacts/bulk', {
    body: {
      contacts: [
        { external_id: 'user-2002', email: 'joan@example.com' },
        { external_id: 'user-2001', last_name: 'Jackson' },
        { external_id: 'user-2003', properties: { colour: 'green' } },
      ],
    },
  });
  await record('bulkUpsertContacts', 'None', '/contacts/bulk', { body: { contacts: [] } });
  await record('listContacts', 'The members of a list', `/contacts?limit=2&list_id=${listId}`);
  await record('listContacts', 'A page that is too large', '/contacts?limit=1000');
  return { adaId, graceId, oldId };
}

async function recordMembers({ listId, tagId }: Audience, { graceId }: Contacts): Promise<void> {
  const body = { contact_ids: [graceId, nothing] };
  for (const [add, remove, path] of [
    ['addContactsToList', 'removeContactsFromList', `/lists/${listId}/contacts`],
    ['addTagToContacts', 'removeTagFromContacts', `/tags/${tagId}/contacts`],
  ] as const) {
    await record(add, 'Two contacts, of which one does not exist', path, { body });
    await record(add, 'Nobody', path, { body: { contact_ids: [] } });
    await record(remove, 'A contact', path, { body: { contact_ids: [graceId] } });
    await record(remove, 'From one that does not exist', path.replace(/[\w-]{36}/, nothing), { body });
    await request('POST', path, body);
  }
}

async function recordSegments({ listId }: Audience, { adaId }: Contacts): Promise<string> {
  const conditions = {
    type: 'group',
    match: 'all',
    conditions: [
      { type: 'list', operator: 'in', ids: [listId] },
      {
        type: 'group',
        match: 'any',
        conditions: [
          { type: 'property', key: 'plan', operator: 'in', value: ['pro', 'team'] },
          { type: 'field', field: 'email', operator: 'ends_with', value: '@example.org' },
        ],
      },
    ],
  };
  const body = { name: 'Paying readers', description: 'Get the long version.', conditions };
  const { id } = await record('createSegment', 'Readers who pay, or are of one company', '/segments', {
    body,
  });
  await record('createSegment', 'A property that is not defined', '/segments', {
    body: { name: 'Green', conditions: { type: 'property', key: 'colour', operator: 'eq', value: 'green' } },
  });
  await ready(id);
  await record('getSegment', 'A segment', `/segments/${id}`);
  await record('getSegment', 'One that does not exist', `/segments/${nothing}`);
  await record('listSegments', 'All of them', '/segments');
  await record('listSegments', 'Both cursors', `/segments?after=${id}&before=${id}`);
  await record('previewSegment', 'How many these would be', '/segments/preview', { body: { conditions } });
  await record('previewSegment', 'An operator that texts do not have', '/segments/preview', {
    body: { conditions: { type: 'property', key: 'plan', operator: 'gt', value: 5 } },
  });
  await record('searchContacts', 'A page of these', '/contacts/search', { body: { conditions, limit: 2 } });
  await record('searchContacts', 'A page that is too large', '/contacts/search', {
    body: { conditions, limit: 1000 },
  });
  await record('explainSegmentMembership', 'A member', `/segments/${id}/contacts/${adaId}`);
  await record('explainSegmentMembership', 'Nobody', `/segments/${id}/contacts/${nothing}`);
  const { id: usingId } = await create('/segments', {
    name: 'Others',
    conditions: { type: 'segment', operator: 'not_in', ids: [id] },
  });
  await ready(usingId);
  await record('deleteSegment', 'One that another segment uses', `/segments/${id}`);
  await record('deleteSegment', 'A segment', `/segments/${usingId}`);
  await record('updateSegment', 'Another name', `/segments/${id}`, { body: { name: 'Readers who pay' } });
  await record('updateSegment', 'Itself', `/segments/${id}`, {
    body: { conditions: { type: 'segment', operator: 'in', ids: [id] } },
  });
  return id;
}

function ready(segmentId: string) {
  return eventually(
    () => server.request<{ status: string }>('GET', `/v1/segments/${segmentId}`),
    ({ body }) => body.status === 'ready',
  );
}

async function recordDomains(): Promise<void> {
  const other = await createSender(server.installation, 'elsewhere.example');
  await verifyByOperator(server.installation, {
    organizationId: other.organizationId,
    name: 'taken.example',
  });
  const domain = await record<DomainRecord>('registerDomain', 'A domain', '/email/domains', {
    body: { name: 'news.example.org', tracking_subdomain: 'click', open_tracking: true },
  });
  await record('registerDomain', 'One that belongs to another organization', '/email/domains', {
    body: { name: 'mail.taken.example' },
  });
  await record('getDomain', 'A domain whose records are not found yet', `/email/domains/${domain.id}`);
  await record('getDomain', 'One that does not exist', `/email/domains/${nothing}`);
  publish(domain);
  await record('verifyDomain', 'A domain whose records are there', `/email/domains/${domain.id}/verify`);
  await record('verifyDomain', 'One that does not exist', `/email/domains/${nothing}/verify`);
  await record('listDomains', 'The newest', '/email/domains?limit=1');
  await record('listDomains', 'A page that is too large', '/email/domains?limit=1000');
  await record('deleteDomain', 'A domain', `/email/domains/${domain.id}`);
  await record('deleteDomain', 'One that was deleted before', `/email/domains/${domain.id}`);
}

function publish({ records }: DomainRecord): void {
  const byName = new Map<string, Parameters<TestDnsServer['set']>[1]>();
  for (const { type, name, value, priority } of records) {
    const more =
      type === 'MX'
        ? { MX: [[priority ?? 10, value]] satisfies [number, string][] }
        : type === 'CNAME'
          ? { CNAME: value }
          : { TXT: [value] };
    byName.set(name, { ...byName.get(name), ...more });
  }
  for (const [name, published] of byName) dns.set(name, published);
}

type Batch = { data: { id: string }[] };

async function recordEmail(): Promise<void> {
  const short = {
    from: 'hello@postillion.test',
    from_name: 'Hello',
    to: ['you@example.com'],
    subject: 'It works',
    html: '<h1>It works</h1>',
  };
  const { id: shortId } = await record('sendEmail', 'A short email', '/email/send', { body: short });
  await settled(server, shortId);
  const { id } = await record('sendEmail', 'With variables, a copy and an attachment', '/email/send', {
    body: {
      from: 'billing@postillion.test',
      from_name: 'Billing',
      to: ['ada@example.com', 'bounced@simulator.postillion.test'],
      cc: ['accounts@example.com'],
      reply_to: 'support@postillion.test',
      subject: 'Invoice {{number}}',
      text: 'Dear {{name}}, your invoice is attached.',
      variables: { name: 'Ada', number: 1042 },
      attachments: [{ filename: 'invoice.txt', content: 'SW52b2ljZSAxMDQyCg==', content_type: 'text/plain' }],
      category: 'invoices',
    },
  });
  await settled(server, id);
  await record('sendEmail', 'From a domain that is not verified', '/email/send', {
    body: { ...short, from: 'hello@example.org' },
  });
  await record('sendEmail', 'With a file that could be run', '/email/send', {
    body: { ...short, attachments: [{ filename: 'setup.exe', content: 'TVo=' }] },
  });
  await record('sendEmail', 'A template that does not exist', '/email/send', {
    body: { ...short, html: undefined, template_id: nothing },
  });
  await record('sendEmail', 'An address that is none', '/email/send', { body: { ...short, to: ['you'] } });
  await record('getEmail', 'An email that reached two of three', `/email/${id}`);
  await record('getEmail', 'One that does not exist', `/email/${nothing}`);
  await record('getEmailContent', 'What it said', `/email/${shortId}/content`);
  await record('getEmailContent', 'Of one that does not exist', `/email/${nothing}/content`);
  await record('listEmails', 'Those of a category', '/email?limit=1&category=invoices');
  await record('listEmails', 'Both cursors', `/email?after=${id}&before=${shortId}`);
  const reminder = { ...short, html: undefined, subject: 'Your appointment', text: 'It is at {{time}}.' };
  const batch = await record<Batch>(
    'sendEmailBatch',
    'Two, each with a key of its own',
    '/email/send/batch',
    {
      body: {
        emails: [
          {
            ...reminder,
            to: 'Ada <ada@example.com>',
            variables: { time: '10:15' },
            idempotency_key: 'appointment-41',
          },
          { ...reminder, to: 'grace@example.com', idempotency_key: 'appointment-42' },
        ],
      },
    },
  );
  for (const { id: sent } of batch.data) await settled(server, sent);
  const again = await record<{ id: string }>('resendEmail', 'To somebody else', `/email/${shortId}/resend`, {
    body: { to: 'Grace <grace@example.com>' },
  });
  await settled(server, again.id);
  await record('resendEmail', 'One with files', `/email/${id}/resend`);
  await record('sendEmailBatch', 'One that is wrong refuses all', '/email/send/batch', {
    body: { emails: [short, { ...short, from: 'hello@example.org' }] },
  });
  await recordScheduling('Email', '/email', { body: short, sentId: shortId });
}

/** Of one that is scheduled, and of what was sent at once. */
async function recordScheduling(
  noun: 'Email' | 'Sms' | 'Push' | 'ChatApp',
  path: string,
  { body, sentId }: { body: object; sentId: string },
): Promise<void> {
  const { id } = await record<{ id: string }>(`send${noun}`, 'At a time of its own', `${path}/send`, {
    body: { ...body, scheduled_at: scheduledAt },
  });
  const at = { scheduled_at: new Date(Date.parse(scheduledAt) + dayMs / 24).toISOString() };
  texts.keep(at.scheduled_at, '2026-11-23T10:00:00.000Z');
  await record(`reschedule${noun}`, 'An hour later', `${path}/${id}`, { body: at });
  await record(`reschedule${noun}`, 'A time without an offset', `${path}/${id}`, {
    body: { scheduled_at: '2026-11-23T09:00:00' },
  });
  await record(`cancel${noun}`, 'One that has not left', `${path}/${id}/cancel`);
  await record(`cancel${noun}`, 'What was sent at once', `${path}/${sentId}/cancel`);
}

async function recordSms(): Promise<void> {
  const body = {
    from: 'Acme',
    to: '+447700900123',
    body: 'Your code is {{code}}.',
    variables: { code: 4711 },
  };
  const { id } = await record('sendSms', 'A code', '/sms/send', { body });
  // A receipt may be faster than the outcome that it speaks of, which changes the text as well.
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  await eventually(
    () => readSms(server, id),
    ({ status }) => status === 'delivered',
  );
  await record('sendSms', 'From a sender that is not approved', '/sms/send', {
    body: { ...body, from: 'Umbrella' },
  });
  await record('sendSms', 'A number without its country', '/sms/send', {
    body: { ...body, to: '07700900123' },
  });
  await record('getSms', 'A text that arrived', `/sms/${id}`);
  await record('getSms', 'One that does not exist', `/sms/${nothing}`);
  await record('listSms', 'Those that arrived', '/sms?status=delivered');
  await record('listSms', 'A status that there is not', '/sms?status=opened');
  const batch = await record<Batch>('sendSmsBatch', 'Two, of which one is wrong', '/sms/send/batch', {
    body: { messages: [body, { ...body, from: 'Umbrella' }], on_error: 'skip' },
  });
  await eventually(
    () => readSms(server, batch.data[0]!.id),
    ({ status }) => status === 'delivered',
  );
  await record('sendSmsBatch', 'None', '/sms/send/batch', { body: { messages: [] } });
  await recordScheduling('Sms', '/sms', { body, sentId: id });
  await record('listSmsSenders', 'All of them', '/sms/senders');
  await record('listSmsSenders', 'A page that is too large', '/sms/senders?limit=1000');
}

async function recordChatApp({ adaId }: Contacts): Promise<void> {
  const shipped = {
    name: 'parcel_handed_over',
    content: written('Hello {{first_name}}, your order {{order_number}} is on its way.'),
  };
  await addChatTemplate(server, shipped);
  const { id: codeId } = await addChatTemplate(server, { name: 'one_time_code', category: 'authentication' });
  const body = {
    to: '+447700900123',
    template: 'parcel_handed_over',
    language: 'en_US',
    parameters: { first_name: 'Ada', order_number: '1047' },
  };
  const { id } = await record('sendChatApp', 'A notice to a number', '/chatapp/send', { body });
  // A receipt may be faster than the outcome that it speaks of, which changes the message as well.
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  await chatAppWithStatus(server, id, 'delivered');
  const { to: _to, ...toNobody } = body;
  await record('sendChatApp', 'A one-time code', '/chatapp/send', {
    body: { to: '+447700900124', template_id: codeId, parameters: { code: '471108' } },
  });
  await recordScheduling('ChatApp', '/chatapp', { body, sentId: id });
  await record('sendChatApp', 'Without one of its parameters', '/chatapp/send', {
    body: { ...body, parameters: { first_name: 'Ada' } },
  });
  await record('sendChatApp', 'Of a template that does not exist', '/chatapp/send', {
    body: { ...body, template: 'order_lost' },
  });
  await record('sendChatApp', 'To a contact by its id, and something else', '/chatapp/send', {
    body: { ...toNobody, contact_id: adaId, external_id: 'ada' },
  });
  await record('getChatApp', 'One that arrived', `/chatapp/${id}`);
  await record('getChatApp', 'One that does not exist', `/chatapp/${nothing}`);
  await record('listChatApp', 'Those of a template', '/chatapp?search=parcel_handed_over');
  await record('listChatApp', 'A status that there is not', '/chatapp?status=clicked');
  const batch = await record<Batch>('sendChatAppBatch', 'A notice to two numbers', '/chatapp/send/batch', {
    body: { messages: [body, { ...body, to: '+447700900125' }] },
  });
  for (const { id: sent } of batch.data) await chatAppWithStatus(server, sent, 'delivered');
  await record('sendChatAppBatch', 'None', '/chatapp/send/batch', { body: { messages: [] } });
}

async function recordDevices({ adaId }: Contacts): Promise<Tablet> {
  const phone = {
    contact_id: adaId,
    installation_id: 'f3b1c0de-ada-phone',
    platform: 'android',
    device_token: 'dQw4w9WgXcQ:APA91bFVT1xhaoiI',
    enablement_status: 'AUTHORIZED',
    sdk_version: '1.4.0',
    app_version: '5.2.1',
    os_version: '16',
    device_model: 'Pixel 10',
    device_timezone: 'Europe/London',
    device_locale: 'en-GB',
  };
  await record('registerDevice', 'The first start of an app', '/push/devices', { body: phone });
  await record('registerDevice', 'A later one', '/push/devices', { body: phone });
  await record('registerDevice', 'A browser without its keys', '/push/devices', {
    body: {
      contact_id: adaId,
      installation_id: 'ada-browser',
      platform: 'web',
      endpoint: 'https://updates.push.services.mozilla.com/wpush/v2/gAAAA',
    },
  });
  await record('registerDevice', 'For nobody who is known', '/push/devices', {
    body: { ...phone, contact_id: nothing },
  });
  const tablet = {
    contact_id: adaId,
    installation_id: '7a12-ada-tablet',
    platform: 'ios',
    device_token: 'c0ffee'.repeat(10),
    device_model: 'iPad16,6',
  };
  const { data } = await record<{ data: RegistrationRecord[] }>(
    'bulkRegisterDevices',
    'Two, of which one is wrong',
    '/push/devices/bulk',
    { body: { devices: [tablet, { ...tablet, device_token: undefined }] } },
  );
  await record('bulkRegisterDevices', 'None', '/push/devices/bulk', { body: { devices: [] } });
  await record('listDevices', 'The newest of a contact', `/push/contacts/${adaId}/devices?limit=1`);
  await record('listDevices', 'Those of nobody', `/push/contacts/${nothing}/devices`);
  const gone = { installation_id: phone.installation_id, reason: 'logout' };
  await record('unregisterDevice', 'Somebody signed out', '/push/devices/unregister', { body: gone });
  await record('unregisterDevice', 'One that nobody knows', '/push/devices/unregister', {
    body: { ...gone, installation_id: 'nobody-knows-it' },
  });
  return { installationId: tablet.installation_id, secret: data[0]?.device_secret ?? '' };
}

async function recordEvents({ adaId }: Contacts): Promise<void> {
  const order = {
    name: 'order.completed',
    description: 'An order was paid for.',
    schema: {
      fields: [
        { name: 'total', type: 'number', required: true },
        { name: 'currency', type: 'string' },
      ],
    },
    conversion: {
      enabled: true,
      value_field: 'total',
      currency_field: 'currency',
      currencies: ['EUR', 'GBP'],
    },
  };
  const { id } = await record('createEvent', 'An order, which is worth something', '/events', {
    body: order,
  });
  await record('createEvent', 'A conversion of no numeric field', '/events', {
    body: { ...order, name: 'order.refunded', conversion: { enabled: true, value_field: 'currency' } },
  });
  await record('listEvents', 'Those of orders', '/events?search=order');
  await record('listEvents', 'A page that is too large', '/events?limit=1000');
  await record('getEvent', 'An event', `/events/${id}`);
  await record('getEvent', 'One that does not exist', `/events/${nothing}`);
  await record('updateEvent', 'Another description', `/events/${id}`, { body: { description: 'An order.' } });
  await record('updateEvent', 'A currency that nobody has', `/events/${id}`, {
    body: { conversion: { currencies: ['Euro'] } },
  });
  const sent = { event: order.name, contact_id: adaId, payload: { total: 49.9, currency: 'EUR', items: 2 } };
  await record('sendEvent', 'An order of a contact', '/events/send', { body: sent });
  await record('sendEvent', 'An order of somebody new', '/events/send', {
    body: { ...sent, contact_id: undefined, email: 'grace@example.com' },
  });
  await record('sendEvent', 'An order without its total', '/events/send', {
    body: { ...sent, payload: { currency: 'EUR' } },
  });
  await record('sendEventBatch', 'Two, of which one is wrong', '/events/send/batch', {
    body: { events: [sent, { ...sent, event: 'order.complete' }] },
  });
  await record('sendEventBatch', 'None', '/events/send/batch', { body: { events: [] } });
  await record('listContactEvents', 'The newest of a contact', `/contacts/${adaId}/events?limit=1`);
  await record('listContactEvents', 'Those of nobody', `/contacts/${nothing}/events`);
  await rowsOf(server, "update pending_conversions set due_at = now() - interval '1 second'");
  await rowsOf(server, "select pg_notify('postillion_conversions', '')");
  await eventually(
    () => rowsOf(server, 'select from pending_conversions'),
    ({ length }) => length === 0,
  );
  await record(
    'listConversions',
    'By the messages that were clicked',
    `/events/${id}/conversions?group_by=message_id`,
  );
  await record('listConversions', 'Those of nothing', `/events/${nothing}/conversions`);
  const { id: old } = await create('/events', { name: 'fax.received' });
  await record('deleteEvent', 'An event', `/events/${old}`);
  await record('deleteEvent', 'One that was deleted before', `/events/${old}`);
}

type Tablet = { installationId: string; secret: string };

async function recordPush({ adaId }: Contacts, { installationId, secret }: Tablet): Promise<void> {
  const parcel = { title: 'Your parcel is here', body: 'It waits at the door.' };
  const { id } = await record('sendPush', 'To all devices of a contact', '/push/send', {
    body: {
      contact_id: adaId,
      ...parcel,
      deep_link: 'acme://parcels/7',
      ttl_seconds: 3600,
      action_buttons: [{ action_id: 'later', label: 'Bring it later' }],
      data_payload: { parcel: '7' },
      category: 'parcels',
    },
  });
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  await recordScheduling('Push', '/push', {
    body: { contact_id: adaId, title: 'Tomorrow', body: 'See you.' },
    sentId: id,
  });
  await record('sendPush', 'To nobody who is known', '/push/send', {
    body: { contact_id: nothing, ...parcel },
  });
  await record('sendPush', 'With a key that is reserved', '/push/send', {
    body: { contact_id: adaId, ...parcel, data_payload: { aps: '{}' } },
  });
  await record('getPush', 'One that a service has taken', `/push/${id}`);
  const batch = await record<Batch>('sendPushBatch', 'To two, of whom one is not known', '/push/send/batch', {
    body: {
      messages: [
        { contact_id: adaId, ...parcel },
        { contact_id: nothing, ...parcel },
      ],
      on_error: 'skip',
    },
  });
  await eventually(
    () => queueOf(server, batch.data[0]!.id),
    (jobs) => jobs.length === 0,
  );
  await record('sendPushBatch', 'None', '/push/send/batch', { body: { messages: [] } });
  const occurredAt = new Date().toISOString();
  // It may be the millisecond in which the next minute begins, or the one before.
  texts.keep(occurredAt, '2026-11-21T11:41:00.000Z');
  const event = (number: number, messageId: string, more: object) => ({
    event_id: `c4f1-${number}`,
    message_id: messageId,
    occurred_at: occurredAt,
    ...more,
  });
  const events = [
    event(1, id, { type: 'displayed' }),
    event(2, id, { type: 'clicked', action_id: 'later' }),
    event(3, nothing, { type: 'displayed' }),
  ];
  const headers = { authorization: `Bearer ${secret}` };
  const report = { installation_id: installationId, events };
  await record('reportEngagements', 'Of two pushes, one of which it never got', '/push/engagements', {
    body: report,
    headers,
  });
  await record('reportEngagements', 'Under the id of another device', '/push/engagements', {
    body: { ...report, installation_id: '5b6e-ada-phone' },
    headers,
  });
  await record('getPush', 'One that does not exist', `/push/${nothing}`);
  await record('listPushes', 'Those of a category', '/push?category=parcels');
  await record('listPushes', 'A status that there is not', '/push?status=delivered');
}

type Listed = { data: { id: string }[] };

async function recordWebhooks(): Promise<void> {
  const receiver = await startWebhookReceiver();
  const url = `http://127.0.0.1:${receiver.port}/hooks`;
  const { id } = await record('createWebhook', 'All that happens to emails, posted', '/webhooks', {
    body: { kind: 'url', url, events: ['email.*'], description: 'The back office' },
  });
  await record('createWebhook', 'What happens to texts, to be read from the log', '/webhooks', {
    body: { kind: 'poll', events: ['sms.delivered', 'sms.failed'] },
  });
  await record('createWebhook', 'A type that there is not', '/webhooks', {
    body: { kind: 'poll', events: ['email.read'] },
  });
  await record('getWebhook', 'A webhook', `/webhooks/${id}`);
  await record('getWebhook', 'One that does not exist', `/webhooks/${nothing}`);
  await record('updateWebhook', 'With recipients of campaigns', `/webhooks/${id}`, {
    body: { campaign_events: 'all' },
  });
  await record('updateWebhook', 'Nothing to be told of', `/webhooks/${id}`, { body: { events: [] } });
  await record('listWebhooks', 'All of them', '/webhooks');
  await record('listWebhooks', 'A cursor that is no id', '/webhooks?after=yesterday');
  const { id: oldId } = await create('/webhooks', { kind: 'poll', events: ['sms.failed'] });
  await record('deleteWebhook', 'A webhook', `/webhooks/${oldId}`);
  await record('deleteWebhook', 'One that was deleted before', `/webhooks/${oldId}`);

  await request('POST', '/email/send', {
    from: 'hello@postillion.test',
    from_name: 'Fern & Way',
    to: ['ada@example.com'],
    subject: 'Your parcel',
    text: 'It is on its way.',
    category: 'parcels',
  });
  await receiver.whenReceived(1);
  await record('listWebhookEvents', 'The first that is kept', '/webhook-events?limit=1');
  await record('listWebhookEvents', 'A type that there is not', '/webhook-events?types=email.read');
  const told = `/webhooks/${id}/deliveries`;
  const [delivery] = await eventually(
    async () => (await server.request<Listed>('GET', `/v1${told}`)).body.data,
    ({ length }) => length > 0,
  );
  await record('listWebhookDeliveries', 'All of them', told);
  await record('listWebhookDeliveries', 'A status that there is not', `${told}?status=lost`);
  await record('getWebhookDelivery', 'One that was taken', `${told}/${delivery!.id}`);
  await record('getWebhookDelivery', 'One that does not exist', `${told}/${nothing}`);
  await record('pauseWebhook', 'A webhook', `/webhooks/${id}/pause`);
  await record('pauseWebhook', 'One that does not exist', `/webhooks/${nothing}/pause`);
  await record('retryWebhookDelivery', 'One that was taken', `${told}/${delivery!.id}/retry`);
  await record('retryWebhookDelivery', 'One that does not exist', `${told}/${nothing}/retry`);
  await record('replayWebhook', 'From a position on', `/webhooks/${id}/replay`, { body: { from: 1 } });
  await record('replayWebhook', 'Before the first position', `/webhooks/${id}/replay`, { body: { from: 0 } });
  await record('testWebhook', 'A bounce that did not happen', `/webhooks/${id}/test`, {
    body: { type: 'email.bounced' },
  });
  await record('testWebhook', 'A type that there is not', `/webhooks/${id}/test`, {
    body: { type: 'email.read' },
  });
  await record('rotateWebhookSecret', 'A new one at once', `/webhooks/${id}/rotate-secret`, {
    body: { expire_after_hours: 0 },
  });
  await record('rotateWebhookSecret', 'For too long', `/webhooks/${id}/rotate-secret`, {
    body: { expire_after_hours: 1_000 },
  });
  await record('enableWebhook', 'With what happens from now on', `/webhooks/${id}/enable`, {
    body: { from: 'now' },
  });
  await record('enableWebhook', 'One that does not exist', `/webhooks/${nothing}/enable`);
  await receiver.stop();
}

async function recordTemplates(): Promise<void> {
  const gallery = await record<Listed>(
    'listGalleryTemplates',
    'By name',
    '/templates/gallery?limit=1&search=basket',
  );
  await record('listGalleryTemplates', 'A filter that is no id', '/templates/gallery?template_types=welcome');
  await record('listGalleryCategories', 'All of them', '/templates/gallery/categories');
  await record('listGalleryCategories', 'Without a key that is valid', '/templates/gallery/categories', {
    headers: authorize({ key: 'pst_wrong' }),
  });
  const galleryId = gallery.data[0]?.id ?? '';
  await record('getGalleryTemplate', 'A template', `/templates/gallery/${galleryId}`);
  await record('getGalleryTemplate', 'One that does not exist', `/templates/gallery/${nothing}`);
  await record('copyGalleryTemplate', 'Under a name of its own', `/templates/gallery/${galleryId}/copy`, {
    body: { name: 'Basket, second reminder' },
  });
  await record('copyGalleryTemplate', 'One that does not exist', `/templates/gallery/${nothing}/copy`);

  const content = { subject: 'Welcome, {{first_name}}', html: '<h1>Hello {{first_name}}</h1>' };
  const { id } = await record('createTemplate', 'A template', '/templates', {
    body: { name: 'Welcome', ...content },
  });
  await record('createTemplate', 'One without any content', '/templates', { body: { name: 'Empty' } });
  await record('getTemplate', 'A template', `/templates/${id}`);
  await record('getTemplate', 'One that does not exist', `/templates/${nothing}`);
  await record('updateTemplate', 'Another subject', `/templates/${id}`, {
    body: { subject: 'Hello, {{first_name}}' },
  });
  await record('updateTemplate', 'A name that is too long', `/templates/${id}`, {
    body: { name: 'x'.repeat(101) },
  });
  await record('renderTemplate', 'For one reader', `/templates/${id}/render`, {
    body: { variables: { first_name: 'Ada' } },
  });
  await record('renderTemplate', 'One that does not exist', `/templates/${nothing}/render`, { body: {} });
  await record('listTemplates', 'The newest', '/templates?limit=1');
  await record('listTemplates', 'A page that is too large', '/templates?limit=1000');
  await record('deleteTemplate', 'A template', `/templates/${id}`);
  await record('deleteTemplate', 'One that was deleted before', `/templates/${id}`);
}

async function recordChatTemplates(): Promise<void> {
  const body = {
    name: 'order_shipped',
    language: 'en_US',
    category: 'utility',
    components: [
      { type: 'header', format: 'text', text: 'Order {{order_number}}' },
      { type: 'body', text: 'Hello {{first_name}}, your order is on its way.' },
      {
        type: 'buttons',
        buttons: [{ type: 'url', text: 'Track it', url: 'https://shop.example/track/{{order_number}}' }],
      },
    ],
    examples: { order_number: '1047', first_name: 'Marie' },
  };
  const { id } = await record('createChatAppTemplate', 'A template', '/chatapp/templates', { body });
  await record('createChatAppTemplate', 'For one-time codes', '/chatapp/templates', {
    body: {
      name: 'sign_in',
      language: 'en_US',
      category: 'authentication',
      authentication: {
        add_security_recommendation: true,
        code_expiration_minutes: 10,
        button: { type: 'copy_code', text: 'Copy code' },
      },
    },
  });
  await record('createChatAppTemplate', 'One that would be refused', '/chatapp/templates', {
    body: { ...body, components: [{ type: 'body', text: '{{first_name}}, your order is on its way.' }] },
  });
  await record('createChatAppTemplate', 'A name and language that are taken', '/chatapp/templates', { body });
  await eventually(
    () => rowsOf(server, `select from chat_templates where id = $1 and status = 'approved'`, [id]),
    (rows) => rows.length === 1,
  );
  await record('getChatAppTemplate', 'One that is approved', `/chatapp/templates/${id}`);
  await record('getChatAppTemplate', 'One that does not exist', `/chatapp/templates/${nothing}`);
  await record('listChatAppTemplates', 'By name', '/chatapp/templates?name=order_shipped');
  await record('listChatAppTemplates', 'A status that there is not', '/chatapp/templates?status=paused');
  await record('updateChatAppTemplate', 'Another text', `/chatapp/templates/${id}`, {
    body: {
      components: [
        { type: 'header', format: 'text', text: 'Order {{order_number}}' },
        { type: 'body', text: 'Hello {{first_name}}, your order has left us today.' },
      ],
    },
  });
  await record('updateChatAppTemplate', 'One that would be refused', `/chatapp/templates/${id}`, {
    body: { components: [{ type: 'body', text: 'Hello {{first_name}}' }] },
  });
  await record('updateChatAppTemplate', 'One that does not exist', `/chatapp/templates/${nothing}`, {
    body: {},
  });
  await record('deleteChatAppTemplate', 'A template', `/chatapp/templates/${id}`);
  await record('deleteChatAppTemplate', 'One that was deleted before', `/chatapp/templates/${id}`);
}

type CampaignMaterial = Audience & Contacts & { segmentId: string; scheduledAt: string; templateId?: string };

type CampaignState = { status: string; stats: { audience: number; delivered: number; unconfirmed: number } };

/** `noun` is the channel in the ids of operations; all have the same ones. */
async function recordCampaigns(
  noun: 'Email' | 'Sms' | 'Push' | 'ChatApp',
  path: string,
  material: CampaignMaterial,
): Promise<void> {
  const { listId, segmentId, tagId, adaId, graceId, scheduledAt, templateId } = material;
  const { content, testAddress, explained } = {
    Email: {
      content: {
        from: 'news@postillion.test',
        from_name: 'News',
        subject: 'News for {{first_name}}',
        html: '<h1>Spring, {{first_name}}</h1><p><a href="{{unsubscribe_url}}">No more of this</a></p>',
      },
      testAddress: 'you@example.com',
      explained: ['Somebody who got it', adaId] as const,
    },
    Sms: {
      content: { from: 'Acme', body: '{{first_name}}, everything is half the price until Sunday.' },
      testAddress: '+447700900999',
      explained: ['Somebody who did not want it', graceId] as const,
    },
    Push: {
      content: {
        title: 'Spring, {{first_name}}',
        body: 'Everything is half the price until Sunday.',
        deep_link: 'acme://offers/spring',
        ttl_seconds: 86_400,
      },
      testAddress: adaId,
      explained: ['Somebody who has it on a device', adaId] as const,
    },
    ChatApp: {
      content: { template_id: templateId, parameters: { first_name: '{{first_name}}' } },
      testAddress: '+447700900999',
      explained: ['Somebody who got it', adaId] as const,
    },
  }[noun];
  const [one, many] = [`${noun}Campaign`, `${noun}Campaigns`];

  const { id } = await record(`create${one}`, 'Everything that it needs', path, {
    body: { name: 'March', ...content, variables: { first_name: 'you' }, list_ids: [listId] },
  });
  await record(`create${one}`, 'A list that does not exist', path, {
    body: { name: 'April', list_ids: [nothing] },
  });
  await record(`update${one}`, 'Without those who are in a segment', `${path}/${id}`, {
    body: { name: 'March, all but customers', exclude_segment_ids: [segmentId] },
  });
  await record(`preview${one}`, 'As one contact gets it', `${path}/${id}/preview`, {
    body: { contact_id: graceId },
  });
  await record(`preview${one}`, 'One that does not exist', `${path}/${nothing}/preview`);
  await record(`test${one}`, 'To oneself', `${path}/${id}/test`, { body: { to: [testAddress] } });
  await record(`test${one}`, 'To nobody', `${path}/${id}/test`, { body: { to: [] } });
  await request('PATCH', `${path}/${id}`, { exclude_segment_ids: null });

  await record(`send${one}`, 'When its time comes', `${path}/${id}/send`, {
    body: { scheduled_at: scheduledAt },
  });
  await record(`send${one}`, 'At once', `${path}/${id}/send`, { body: {} });
  await sentToAll(path, id);
  // A campaign that was sent within a second may never have been seen under way.
  await rowsOf(server, 'update campaigns set started_at = coalesce(started_at, completed_at) where id = $1', [
    id,
  ]);
  await record(`send${one}`, 'One that was sent', `${path}/${id}/send`, { body: {} });
  await record(`update${one}`, 'One that was sent', `${path}/${id}`, { body: { name: 'April' } });
  await record(`get${one}`, 'What became of a campaign', `${path}/${id}`);
  await record(`get${one}`, 'One that does not exist', `${path}/${nothing}`);
  await record(`list${one}Recipients`, 'All of them', `${path}/${id}/recipients`);
  await record(`list${one}Recipients`, 'A status that there is not', `${path}/${id}/recipients?status=lost`);
  const [who, whoId] = explained;
  await record(`explain${one}Recipient`, who, `${path}/${id}/recipients/${whoId}`);
  await record(`explain${one}Recipient`, 'Nobody', `${path}/${id}/recipients/${nothing}`);

  const { id: nextId } = await create(path, { name: 'April', ...content, tag_ids: [tagId] });
  await record(`cancel${one}`, 'A draft', `${path}/${nextId}/cancel`);
  await request('POST', `${path}/${nextId}/send`, { scheduled_at: scheduledAt });
  await record(`list${many}`, 'Those that are scheduled', `${path}?limit=1&status=scheduled`);
  await record(`list${many}`, 'A status that there is not', `${path}?status=done`);
  await record(`cancel${one}`, 'A scheduled one', `${path}/${nextId}/cancel`);
  await record(`resume${one}`, 'One that was cancelled', `${path}/${nextId}/resume`);
  await record(`delete${one}`, 'A campaign', `${path}/${nextId}`);
  await record(`delete${one}`, 'One that was deleted before', `${path}/${nextId}`);

  const { id: missedId } = await create(path, { name: 'May', ...content, tag_ids: [tagId] });
  // Its time came while the service was down.
  await rowsOf(
    server,
    "update campaigns set status = 'paused', pause_reason = 'schedule_missed' where id = $1",
    [missedId],
  );
  await record(`resume${one}`, 'One that missed its schedule', `${path}/${missedId}/resume`);
  await sentToAll(path, missedId);
}

function sentToAll(path: string, id: string) {
  return eventually(
    () => server.request<CampaignState>('GET', `/v1${path}/${id}`),
    ({ body: { status, stats } }) =>
      status === 'sent' &&
      stats.delivered + (path === '/push/campaigns' ? stats.unconfirmed : 0) === stats.audience,
  );
}

async function recordDeletions(audience: Audience, { adaId, graceId, oldId }: Contacts): Promise<void> {
  await record('deleteList', 'One that a segment uses', `/lists/${audience.listId}`);
  await record('deleteList', 'A list', `/lists/${audience.oldListId}`);
  await record('deleteTag', 'A tag', `/tags/${audience.oldTagId}`);
  await record('deleteTag', 'One that was deleted before', `/tags/${audience.oldTagId}`);
  await record('bulkDeleteContacts', 'Two contacts, of which one does not exist', '/contacts/bulk-delete', {
    body: { contact_ids: [oldId, nothing] },
  });
  await record('bulkDeleteContacts', 'Nobody', '/contacts/bulk-delete', { body: { contact_ids: [] } });
  await record('deleteContact', 'A contact', `/contacts/${graceId}`);
  await record('deleteContact', 'One that was deleted before', `/contacts/${graceId}`);
  await request('DELETE', `/contacts/${adaId}`);
}

/** A request that is no example. */
async function request(method: string, path: string, body?: unknown): Promise<void> {
  const { status, text } = await server.request(method, `/v1${path}`, body);
  if (status >= 400) throw new Error(text);
}

async function create(path: string, body: unknown): Promise<{ id: string }> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body);
  if (response.status !== 201) throw new Error(response.text);
  return response.body;
}
