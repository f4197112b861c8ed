import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { importContacts } from '../../src/audience/audience.ts';
import type { Installation } from '../../src/installation/opening.ts';
import type { Route } from '../../src/platform/http/route.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { fieldRules } from '../../src/roles/field-rules.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { defineEvent, sendEvent } from '../support/event-journey.ts';
import { createShiftedClock, eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/**
 * `ë` is one character, or an e and an accent, as keyboards, spreadsheets and file systems have it. What is compared is
 * stored composed, and found however it is typed. What is right is what `String.prototype.normalize` says.
 */

const forms = [
  ['NFD', 'NFC'],
  ['NFC', 'NFD'],
] as const;

let made = 0;
/** A text that has two spellings, unlike every other one. */
const aName = () => `Zoë Ångström Việt 한글 ${(made += 1)} J\u030cack`;

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ worker: true, clock: createShiftedClock() });
});
afterAll(() => server.stop());

async function ask<Body>(method: string, path: string, body?: object): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body);
  expect([path, response.status, response.text]).toEqual([
    path,
    expect.toSatisfy((status: number) => status < 300),
    expect.any(String),
  ]);
  return response.body;
}

const create = async (path: string, body: object) => (await ask<{ id: string }>('POST', path, body)).id;
const idsOf = async (path: string, query: Record<string, string>) =>
  (await ask<{ data: { id: string }[] }>('GET', `${path}?${new URLSearchParams(query).toString()}`)).data.map(
    ({ id }) => id,
  );
const countOf = async (conditions: object) =>
  (await ask<{ contact_count: number }>('POST', '/segments/preview', { conditions })).contact_count;

/** Where the schema of a request says that texts are composed, as paths of properties. */
function composedIn(schema: unknown, path: readonly string[] = []): string[] {
  if (typeof schema !== 'object' || schema === null) return [];
  return Object.entries(schema).flatMap(([keyword, value]: [string, unknown]) => {
    if (keyword === 'composed') return [path.join('.')];
    if (keyword === 'properties' && typeof value === 'object' && value !== null)
      return Object.entries(value).flatMap(([name, inner]) => composedIn(inner, [...path, name]));
    const isOfAnyName = keyword === 'additionalProperties' || keyword === 'patternProperties';
    return keyword === 'items' || isOfAnyName
      ? composedIn(Object.values({ value }), [...path, '*'])
      : composedIn(value, path);
  });
}

const routes = listRoutes({} as Installation);
const described = routes.flatMap((route: Route) =>
  [route.body, route.query].flatMap((schema) =>
    schema === null ? [] : [...new Set(composedIn(schema))].map((path) => `${route.operationId} ${path}`),
  ),
);

test('the fields that are compared are composed, of every route that takes them', () => {
  const named = ['List', 'Tag', 'Segment', 'Template', 'Property', 'EmailCampaign', 'SmsCampaign'];
  for (const noun of [...named, 'PushCampaign', 'ChatAppCampaign'])
    expect(described).toEqual(expect.arrayContaining([`create${noun} name`, `update${noun} name`]));
  for (const verb of ['create', 'update'])
    for (const field of ['first_name', 'last_name', 'properties.*'])
      expect(described).toContain(`${verb}Contact ${field}`);
  for (const channel of ['Email', 'Sms'])
    expect(described).toEqual(expect.arrayContaining([`send${channel} category`]));
  expect(described).toContain('sendEvent payload.*');
  // A key of the caller's own is compared octet by octet.
  expect(described.filter((path) => path.endsWith('external_id'))).toEqual([]);
});

const namedThings: [string, (name: string) => object][] = [
  ['/lists', (name) => ({ name })],
  ['/tags', (name) => ({ name })],
  [
    '/segments',
    (name) => ({ name, conditions: { type: 'field', field: 'first_name', operator: 'eq', value: 'x' } }),
  ],
  ['/templates', (name) => ({ name, subject: 'Hello', html: '<p>Hello</p>' })],
  ['/properties', (name) => ({ name, key: `key_${(made += 1)}`, type: 'string' })],
  ['/email/campaigns', (name) => ({ name })],
  ['/sms/campaigns', (name) => ({ name })],
  ['/push/campaigns', (name) => ({ name })],
  ['/chatapp/campaigns', (name) => ({ name })],
];

describe.each(forms)('what is written in %s is found in %s', (written, asked) => {
  test.each(namedThings)('%s', async (path, toBody) => {
    const name = aName();
    const id = await create(path, toBody(name.normalize(written)));
    expect(await ask('GET', `${path}/${id}`)).toMatchObject({ name: name.normalize('NFC') });
    for (const search of [name, name.toLowerCase(), name.toUpperCase()])
      expect(await idsOf(path, { search: search.normalize(asked) })).toEqual([id]);
    const renamed = aName();
    await ask('PATCH', `${path}/${id}`, { name: renamed.normalize(written) });
    expect(await idsOf(path, { search: renamed.normalize(asked) })).toEqual([id]);
  });

  test.each(['/lists', '/tags'])('a second of %s with the same name is refused', async (path) => {
    const name = aName();
    await create(path, { name: name.normalize(written) });
    const second = await server.request('POST', `/v1${path}`, { name: name.normalize(asked) });
    expect(second.status).toBe(409);
  });

  test('the names of a contact, by search and by conditions', async () => {
    const [first, last] = [aName(), aName()];
    const id = await create('/contacts', {
      external_id: `person ${(made += 1)}`,
      first_name: first.normalize(written),
      last_name: last.normalize(written),
    });
    expect(await ask('GET', `/contacts/${id}`)).toMatchObject({
      first_name: first.normalize('NFC'),
      last_name: last.normalize('NFC'),
    });
    for (const search of [first, last, `${first} ${last}`.toLowerCase()])
      expect(await idsOf('/contacts', { search: search.normalize(asked) })).toEqual([id]);
    for (const operator of ['eq', 'contains', 'starts_with', 'ends_with'])
      expect(
        await countOf({ type: 'field', field: 'last_name', operator, value: last.normalize(asked) }),
      ).toBe(1);
  });

  test('an external id only as it was written', async () => {
    const externalId = aName();
    const id = await create('/contacts', { external_id: externalId.normalize(written) });
    expect(await ask('GET', `/contacts/${id}`)).toMatchObject({ external_id: externalId.normalize(written) });
    expect(await idsOf('/contacts', { search: externalId.normalize(written) })).toEqual([id]);
    expect(await idsOf('/contacts', { external_id: externalId.normalize(asked) })).toEqual([]);
    const isHeld = (value: string) => countOf({ type: 'field', field: 'external_id', operator: 'eq', value });
    expect(await isHeld(externalId.normalize(written))).toBe(1);
    expect(await isHeld(externalId.normalize(asked))).toBe(0);
  });

  test('properties of a contact, from the API and from a file', async () => {
    const key = `town_${(made += 1)}`;
    await create('/properties', { key, name: 'Town', type: 'string' });
    const [town, list, name] = [aName(), aName(), aName()];
    const has = (value: string) => countOf({ type: 'property', key, operator: 'in', value: [value] });
    await create('/contacts', { external_id: key, properties: { [key]: town.normalize(written) } });
    expect(await has(town.normalize(asked))).toBe(1);

    const listId = await create('/lists', { name: list.normalize(asked) });
    const lines = ['external_id,first_name,Ville é,lists'.normalize(written)];
    for (let row = 0; row < 250; row += 1)
      lines.push([`${key}-${row}`, name, town, `${list};${name}`].join(',').normalize(written));
    async function* source() {
      yield Buffer.from(lines.join('\n'));
    }
    const outcome = await importContacts(server.installation, {
      organizationId: server.organizationId,
      source: source(),
      ...{ lists: [], tags: [], ignored: [], isDryRun: false },
      mapped: [{ column: 'Ville é'.normalize(asked), field: key }],
    });
    expect(outcome).toMatchObject({ counts: { created: 250, bad: 0 } });
    expect(await has(town.normalize(asked))).toBe(251);
    expect(
      await countOf({ type: 'field', field: 'first_name', operator: 'eq', value: name.normalize(asked) }),
    ).toBe(250);
    expect(await ask('GET', `/lists/${listId}`)).toMatchObject({ contact_count: 250 });
    const [made_ = ''] = await idsOf('/lists', { search: name.normalize(asked) });
    expect(await ask('GET', `/lists/${made_}`)).toMatchObject({ name: name.normalize('NFC') });
  });

  test('payloads of events, also of fields that are declared later', async () => {
    const { id, name } = await defineEvent(server, {
      schema: { fields: [{ name: 'item', type: 'string' }] },
    });
    const [item, shop] = [aName(), aName()];
    await create('/contacts', { external_id: name });
    await sendEvent(server, {
      event: name,
      external_id: name,
      payload: { item: item.normalize(written), shop: shop.normalize(written) },
    });
    await ask('PATCH', `/events/${id}`, {
      schema: { fields: ['item', 'shop'].map((field) => ({ name: field, type: 'string' })) },
    });
    for (const [field, value] of Object.entries({ item, shop }))
      expect(
        await countOf({
          type: 'event',
          event: name,
          where: [{ field, operator: 'eq', value: value.normalize(asked) }],
        }),
      ).toBe(1);
  });

  test('emails by their category and the beginning of their subject', async () => {
    const [category, subject] = [aName(), aName()];
    const id = await create('/email/send', {
      from: 'hello@postillion.test',
      from_name: 'News',
      to: ['ann@example.com'],
      subject: subject.normalize(written),
      text: 'Hello',
      category: category.normalize(written),
    });
    expect(await idsOf('/email', { category: category.normalize(asked) })).toEqual([id]);
    // What is sent stays as it was written.
    expect(await ask('GET', `/email/${id}`)).toMatchObject({ subject: subject.normalize(written) });
    await eventually(
      () => idsOf('/email', { search: subject.toLowerCase().normalize(asked) }),
      (ids) => ids[0] === id,
    );
  });
});

test('a text is composed before its length is counted, however often its schema asks for it', () => {
  const compose = createValidation(textFormats, fieldRules).compile(
    routes.find(({ operationId }) => operationId === 'createTag')!.body!,
  );
  const tag = { name: 'e\u0301'.repeat(100) };
  expect(compose(tag)).toEqual([]);
  expect(tag.name).toBe('é'.repeat(100));
  // These become two each.
  expect(compose({ name: '\u0958'.repeat(51) })).toEqual(['name must be at most 100 characters']);
});
