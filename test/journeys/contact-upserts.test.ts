/** Contacts that are put by their identifiers, one or many, and searched by conditions. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addSuppressions, optOut } from '../../src/audience/audience.ts';
import type { BulkContacts, ContactRecord, PropertyRecord } from '../../src/audience/schema.ts';
import { tryLockPreview } from '../../src/segments/segments.ts';
import { authorize, createShiftedClock, type ErrorBody, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
/** With the same identifiers, beside every test. */
let other: { organizationId: string; key: string };
/** Of nobody else, for what is compared as a whole. */
let third: { organizationId: string; key: string };

beforeAll(async () => {
  server = await startTestServer({ clock: createShiftedClock() });
  other = await createSender(server.installation, 'elsewhere.example');
  third = await createSender(server.installation, 'third.example');
  await rowsOf(server, 'update organizations set requests_per_window = 100000');
});
afterAll(() => server.stop());

type Page = { object: 'list'; has_more: boolean; data: ContactRecord[] };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: { key: string }) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

async function answered<Body>(
  status: number,
  method: string,
  path: string,
  body?: unknown,
  sender?: { key: string },
): Promise<Body> {
  const response = await ask<Body>(method, path, body, sender);
  expect([path, response.status, response.text]).toEqual([path, status, response.text]);
  return response.body;
}

const put = (status: 200 | 201, body: object, sender?: { key: string }) =>
  answered<ContactRecord>(status, 'PUT', '/contacts', body, sender);
const refused = (status: number, body: object) => answered<ErrorBody>(status, 'PUT', '/contacts', body);
const read = (id: string) => answered<ContactRecord>(200, 'GET', `/contacts/${id}`);
const bulk = (contacts: readonly unknown[], sender?: { key: string }) =>
  answered<BulkContacts>(200, 'POST', '/contacts/bulk', { contacts }, sender);
const search = (body: object, sender?: { key: string }) =>
  answered<Page>(200, 'POST', '/contacts/search', body, sender);

let made = 0;
const unique = (what = 'person') => `${what}-${(made += 1)}`;
const emailOf = (name: string) => `${name}@example.com`;
const phoneNumber = () => `+1415${String(5_550_000 + (made += 1))}`;

const aProperty = async (sender?: { key: string }) => {
  const key = `p_${(made += 1)}`;
  return answered<PropertyRecord>(201, 'POST', '/properties', { key, name: key, type: 'string' }, sender);
};
const aSet = async (kind: 'lists' | 'tags') =>
  (await answered<{ id: string }>(201, 'POST', `/${kind}`, { name: unique(kind) })).id;

/** How often segments have heard of a change of the contact. */
const changesOf = async (id: string) => {
  const [row] = await rowsOf<{ count: number }>(
    server,
    `select count(*)::integer as count from contact_changes where contact_ids @> array['${id}'::uuid]`,
  );
  return row!.count;
};

describe('a contact that is put', () => {
  test('is made once, changed from then on, and nobody’s of another organization', async () => {
    const name = unique();
    const foreign = await put(201, { external_id: name, email: emailOf(name), first_name: 'Else' }, other);
    const [list, tag, property] = [await aSet('lists'), await aSet('tags'), await aProperty()];
    const contact = await put(201, {
      external_id: name,
      email: emailOf(name).toUpperCase(),
      first_name: 'Ada',
      last_name: 'Lovelace',
      properties: { [property.key]: 'pro' },
      list_ids: [list],
    });
    expect(contact.id).not.toBe(foreign.id);
    expect(await read(contact.id)).toEqual(contact);
    const changed = await put(200, {
      external_id: name,
      first_name: 'Augusta',
      last_name: null,
      tag_ids: [tag.toUpperCase()],
    });
    expect(changed).toEqual({
      ...contact,
      first_name: 'Augusta',
      last_name: null,
      tag_ids: [tag],
      updated_at: changed.updated_at,
    });
    expect(await read(contact.id)).toEqual(changed);
    expect(await changesOf(contact.id)).toBe(2);
    // What changes nothing writes nothing.
    expect(await put(200, { external_id: name, first_name: 'Augusta', tag_ids: [tag] })).toEqual(changed);
    expect(await changesOf(contact.id)).toBe(2);
    const { body: untouched } = await ask<ContactRecord>('GET', `/contacts/${foreign.id}`, undefined, other);
    expect(untouched).toEqual(foreign);
  });

  test('is the one that has the first identifier that anybody has, and gets the others', async () => {
    const name = unique();
    const { id } = await put(201, { email: emailOf(name) });
    expect(await put(200, { external_id: name, email: emailOf(name) })).toMatchObject({
      id,
      external_id: name,
    });
    const phone = phoneNumber();
    expect(await put(200, { external_id: name, phone_number: phone })).toMatchObject({
      id,
      email: emailOf(name),
      phone_number: phone,
    });
    // By its own id a contact moves to a new address, and by its number alone it is found all the same.
    expect(await put(200, { external_id: name, email: emailOf(`new-${name}`) })).toMatchObject({ id });
    expect(await put(200, { phone_number: phone })).toMatchObject({ id, email: emailOf(`new-${name}`) });
    // Nobody has the former address any more.
    expect((await put(201, { email: emailOf(name) })).id).not.toBe(id);
  });

  test('is refused where its identifiers are of two contacts, or contradict the one that has one', async () => {
    const [ann, bob] = [unique(), unique()];
    const [first, second] = [
      await put(201, { external_id: ann, email: emailOf(ann) }),
      await put(201, { external_id: bob, email: emailOf(bob), phone_number: phoneNumber() }),
    ];
    const refusals = [
      await refused(409, { external_id: ann, email: emailOf(bob) }),
      await refused(409, { external_id: unique(), email: emailOf(bob) }),
      await refused(409, { email: emailOf(ann), phone_number: second.phone_number! }),
    ];
    expect(refusals.map(({ name, message }) => [name, message])).toEqual([
      [
        'conflict',
        `external_id is of the contact ${first.id}, and email is in use by the contact ${second.id}.`,
      ],
      [
        'conflict',
        `email is in use by the contact ${second.id}, which has another external_id than the one given.`,
      ],
      [
        'conflict',
        `email is of the contact ${first.id}, and phone_number is in use by the contact ${second.id}.`,
      ],
    ]);
    expect([await read(first.id), await read(second.id)]).toEqual([first, second]);
  });

  test('is refused as a body of POST is, and without an identifier', async () => {
    const unknown = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
    expect(await refused(422, { email: null, first_name: 'Ada' })).toMatchObject({
      name: 'validation_error',
      message: 'one of external_id, email and phone_number is required',
    });
    const { message } = await refused(422, {
      external_id: unique(),
      properties: { unheard_of: 1 },
      list_ids: [unknown],
    });
    expect(message).toBe(
      `properties.unheard_of is not a defined property, list_ids[0] ${unknown} is not a list of the organization`,
    );
    // With what it has, it would have too much.
    const properties = await Promise.all(Array.from({ length: 40 }, () => aProperty()));
    const name = unique();
    const half = (from: number) =>
      Object.fromEntries(properties.slice(from, from + 20).map(({ key }) => [key, 'x'.repeat(1_000)]));
    await put(201, { external_id: name, properties: half(0) });
    expect(await refused(422, { external_id: name, properties: half(20) })).toMatchObject({
      message: 'properties must have at most 32768 characters in all',
    });
  });

  test('stays opted out, whatever is said of it, and so does whoever gets an address that is', async () => {
    const name = unique();
    const { id } = await put(201, {
      external_id: name,
      email: emailOf(name),
      consent: { email: 'unsubscribed' },
    });
    const consent = { email: 'subscribed', sms: 'unsubscribed' };
    const { consent: shown } = await put(200, { external_id: name, consent });
    expect(shown).toMatchObject({ email: 'unsubscribed', sms: 'unsubscribed' });
    await answered(200, 'PATCH', `/contacts/${id}`, { consent: { sms: 'subscribed' } });
    const left = emailOf(unique());
    const { database } = server.installation;
    await database.asOrganizations([server.organizationId], (transaction) =>
      optOut(
        transaction,
        server.installation,
        'email',
        { organizationId: server.organizationId, address: left },
        {
          scope: 'marketing',
          source: { type: 'message', id: null },
        },
      ),
    );
    const { organizationId } = other;
    await addSuppressions(database, server.installation, 'email', [
      { organizationId, address: emailOf(`never-${name}`), reason: 'unsubscribe' },
    ]);
    expect(await put(200, { external_id: name, email: left })).toMatchObject({
      consent: { email: 'unsubscribed', sms: 'subscribed' },
    });
    expect(await put(201, { email: emailOf(`never-${name}`), consent })).toMatchObject({
      consent: { email: 'subscribed' },
    });
    const { data } = await bulk([{ email: left, consent }]);
    expect(data).toEqual([{ index: 0, id, created: false }]);
    expect(await read(id)).toMatchObject({ consent: { email: 'unsubscribed' } });
  });

  test('ten times at once is one contact, with all that was said of it', async () => {
    const name = unique();
    const properties = await Promise.all(Array.from({ length: 10 }, () => aProperty()));
    const answers = await Promise.all(
      properties.map(({ key }, index) =>
        ask<ContactRecord>('PUT', '/contacts', {
          ...(index % 2 === 0 && { external_id: name }),
          email: emailOf(name),
          properties: { [key]: `${index}` },
        }),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([...Array<number>(9).fill(200), 201]);
    const [id, ...others] = new Set(answers.map(({ body }) => body.id));
    expect(others).toEqual([]);
    expect(await read(id!)).toMatchObject({
      external_id: name,
      properties: Object.fromEntries(properties.map(({ key }, index) => [key, `${index}`])),
    });
  });
});

/** What may be said of few people by few identifiers: they meet often, in every way. */
function aBody(random: () => number): object {
  const pick = (count: number) => Math.floor(random() * count);
  const identifiers = {
    ...(pick(2) === 0 && { external_id: `id-${pick(12)}` }),
    ...(pick(2) === 0 && { email: emailOf(`mail-${pick(12)}`) }),
    ...(pick(3) === 0 && { phone_number: `+1415555${1_000 + pick(12)}` }),
  };
  const names = [null, 'Ada', 'Bob', 'Cay'];
  const states = ['subscribed', 'unsubscribed'];
  return {
    ...identifiers,
    ...(pick(3) === 0 && { first_name: names[pick(4)] }),
    ...(pick(8) === 0 && { consent: { email: states[pick(2)] } }),
    ...(pick(20) === 0 && { last_nam: 'typo' }),
  };
}

/** Mulberry32: the same numbers in every run. */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

describe('many contacts that are put at once', () => {
  test('come to what each of them by itself would, one after the other', async () => {
    const random = createRandom(20_261_127);
    const bodies = Array.from({ length: 400 }, () => aBody(random));
    const { data } = await bulk(bodies, other);
    const alone: unknown[] = [];
    for (const body of bodies) {
      const { status, body: answer } = await ask<ContactRecord & ErrorBody>('PUT', '/contacts', body, third);
      alone.push(status < 300 ? [status, answer.id] : answer.message.replace(/[\da-f-]{36}/g, 'ID'));
    }
    const ids = new Map<string, string>();
    const together = data.map((result) => {
      if ('error' in result) return result.error.message.replace(/[\da-f-]{36}/g, 'ID');
      return [result.created ? 201 : 200, result.id];
    });
    for (const [index, result] of together.entries()) {
      const one = alone[index];
      if (!Array.isArray(result) || !Array.isArray(one)) {
        expect([index, result]).toEqual([index, one]);
        continue;
      }
      // The same person, whatever the id here and there.
      expect([index, result[0]]).toEqual([index, one[0]]);
      const known = ids.get(result[1] as string) ?? one[1];
      expect([index, known]).toEqual([index, one[1]]);
      ids.set(result[1] as string, one[1] as string);
    }
    expect(together.filter((result) => typeof result === 'string').length).toBeGreaterThan(20);
    const contactsOf = async (sender: { key: string }) => {
      const { data: all } = await answered<Page>(200, 'GET', '/contacts?limit=100', undefined, sender);
      return all
        .filter(({ external_id: id, email, phone_number: phone }) =>
          /^id-|^mail-|^\+1415555/.test(id ?? email ?? phone ?? ''),
        )
        .map(({ external_id, email, phone_number, first_name, consent }) =>
          JSON.stringify({ external_id, email, phone_number, first_name, consent }),
        )
        .sort();
    };
    expect(await contactsOf(other)).toEqual(await contactsOf(third));
    expect((await contactsOf(third)).length).toBeGreaterThan(10);
  });

  test('are a thousand at most, in a body of any size that it may have, and each is heard of', async () => {
    const property = await aProperty();
    const name = unique('many');
    const bodies = Array.from({ length: 1_000 }, (_, index) => ({
      external_id: `${name}-${index}`,
      properties: { [property.key]: 'x'.repeat(1_000) },
    }));
    const { data } = await bulk([...bodies.slice(0, 999), { external_id: '' }]);
    expect(data.slice(0, 999).every((result) => 'created' in result && result.created)).toBe(true);
    expect(data[999]).toMatchObject({ index: 999, error: { status_code: 422, name: 'validation_error' } });
    const again = await bulk(bodies);
    expect(again.data.map((result) => 'created' in result && result.created)).toEqual([
      ...Array<boolean>(999).fill(false),
      true,
    ]);
    const ids = again.data.map((result) => ('id' in result ? result.id : ''));
    expect([await changesOf(ids[0]!), await changesOf(ids[998]!), await changesOf(ids[999]!)]).toEqual([
      1, 1, 1,
    ]);
    expect(await ask('POST', '/contacts/bulk', { contacts: [...bodies, {}] })).toMatchObject({ status: 422 });
    expect(await ask('POST', '/contacts/bulk', { contacts: [] })).toMatchObject({ status: 422 });
  });

  test('are written once for an idempotency key', async () => {
    const contacts = [{ email: emailOf(unique()) }, { email: 'nobody' }];
    const send = (body: object) =>
      server.request<BulkContacts>('POST', '/v1/contacts/bulk', body, { 'idempotency-key': `bulk ${made}` });
    const first = await send({ contacts });
    const second = await send({ contacts });
    expect([first.status, second.status, second.text]).toEqual([200, 200, first.text]);
    expect(second.headers.get('idempotent-replayed')).toBe('true');
    expect(first.body.data).toMatchObject([{ created: true }, { error: { status_code: 422 } }]);
    expect(await send({ contacts: [...contacts, {}] })).toMatchObject({
      status: 409,
      body: { name: 'invalid_idempotent_request' },
    });
  });

  test('take over identifiers that those before them have let go', async () => {
    const [ann, bob] = [unique(), unique()];
    const before = await bulk([
      { external_id: ann, email: emailOf(ann) },
      { external_id: bob, email: emailOf(bob) },
    ]);
    const [first, second] = before.data.map((result) => ('id' in result ? result.id : ''));
    const after = await bulk([
      { external_id: ann, email: null },
      { external_id: bob, email: emailOf(ann) },
      { external_id: ann, email: emailOf(bob) },
    ]);
    expect(after.data.map((result) => 'id' in result && result.id)).toEqual([first, second, first]);
    expect([await read(first!), await read(second!)]).toMatchObject([
      { email: emailOf(bob) },
      { email: emailOf(ann) },
    ]);
  });

  test('twice at once, in opposite orders and beside requests of their own, make everybody once', async () => {
    const name = unique('crowd');
    const bodies = Array.from({ length: 250 }, (_, index) => ({ email: emailOf(`${name}-${index}`) }));
    const [one, two, ...alone] = await Promise.all([
      bulk(bodies.map((body) => ({ ...body, first_name: 'Ada' }))),
      bulk(bodies.map((body) => ({ ...body, last_name: 'Lovelace' })).reverse()),
      ...[0, 100, 249].map((index) =>
        ask<ContactRecord>('PUT', '/contacts', { ...bodies[index], locale: 'de' }),
      ),
    ]);
    const idsOf = ({ data }: BulkContacts) => data.map((result) => ('id' in result ? result.id : ''));
    expect(idsOf(one)).toEqual(idsOf(two).reverse());
    expect(alone.map(({ body }) => body.id)).toEqual([0, 100, 249].map((index) => idsOf(one)[index]));
    const [count] = await rowsOf<{ contacts: number; complete: number; german: number }>(
      server,
      `select count(*)::integer as contacts,
         count(*) filter (where first_name = 'Ada' and last_name = 'Lovelace')::integer as complete,
         count(*) filter (where locale = 'de')::integer as german
       from contacts
       where organization_id = '${server.organizationId}' and email_key like '${name}-%'`,
    );
    expect(count).toEqual({ contacts: 250, complete: 250, german: 3 });
  });

  test('name a thousand lists and tags at most', async () => {
    const ids = Array.from(
      { length: 1_001 },
      (_, index) => `01934c1e-9f3a-7cc0-8b1a-${String(index).padStart(12, '0')}`,
    );
    const contacts = Array.from({ length: 11 }, (_, index) => ({
      external_id: unique(),
      list_ids: ids.slice(index * 100, index * 100 + 100),
    }));
    expect(await ask('POST', '/contacts/bulk', { contacts })).toMatchObject({
      status: 422,
      body: { message: 'contacts must name at most 1000 lists and tags in all' },
    });
  });
});

describe('a search', () => {
  const named = (value: string) => ({ type: 'field', field: 'last_name', operator: 'eq', value });

  test('finds those for whom conditions hold, newest first, page by page in both directions', async () => {
    const name = unique('Searched');
    const contacts = Array.from({ length: 250 }, (_, index) => ({
      external_id: unique(),
      last_name: index % 5 === 0 ? 'Else' : name,
    }));
    const wanted = (await bulk(contacts)).data
      .flatMap((result, index) => ('id' in result && index % 5 !== 0 ? [result.id] : []))
      .reverse();
    await bulk(contacts, other);
    const found: string[] = [];
    for (let after: string | undefined; ;) {
      const page: Page = await search({ conditions: named(name), limit: 30, ...(after && { after }) });
      found.push(...page.data.map(({ id }) => id));
      if (!page.has_more) break;
      after = found.at(-1)!;
    }
    expect(found).toEqual(wanted);
    const back = await search({ conditions: named(name), limit: 30, before: wanted[100]! });
    expect(back).toMatchObject({ object: 'list', has_more: true });
    expect(back.data.map(({ id }) => id)).toEqual(wanted.slice(70, 100));
    expect((await search({ conditions: named(name) })).data).toHaveLength(20);
    expect((await search({ conditions: named(name) })).data[0]).toEqual(await read(wanted[0]!));
    expect(await search({ conditions: named('Nobody') })).toEqual({
      object: 'list',
      has_more: false,
      data: [],
    });
  });

  test('shows what holds of consents that nobody has stored yet', async () => {
    const name = unique('Erased');
    const { id } = await put(201, { email: emailOf(name.toLowerCase()), last_name: name });
    const { organizationId } = server;
    await addSuppressions(server.installation.database, server.installation, 'email', [
      { organizationId, address: emailOf(name.toLowerCase()), reason: 'unsubscribe', scope: 'marketing' },
    ]);
    const { data } = await search({ conditions: named(name) });
    expect(data).toMatchObject([{ id, consent: { email: 'unsubscribed' } }]);
    expect(data).toEqual([await read(id)]);
  });

  test('is refused with both cursors, wrong conditions or sizes, and while another one runs', async () => {
    const conditions = named('Somebody');
    const cursor = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
    expect(
      await ask('POST', '/contacts/search', { conditions, after: cursor, before: cursor }),
    ).toMatchObject({
      status: 400,
      body: { name: 'bad_request', message: 'Give either after or before, not both.' },
    });
    for (const limit of [0, 101, '20'])
      expect(await ask('POST', '/contacts/search', { conditions, limit })).toMatchObject({ status: 422 });
    expect(
      await ask('POST', '/contacts/search', { conditions: { type: 'list', operator: 'in', ids: [cursor] } }),
    ).toMatchObject({ status: 422 });
    expect(await ask('POST', '/contacts/search', {})).toMatchObject({ status: 422 });
    const { organizationId, installation } = server;
    await installation.database.transaction(async (transaction) => {
      expect(await tryLockPreview(transaction, organizationId)).toBe(true);
      const busy = await ask('POST', '/contacts/search', { conditions });
      expect([busy.status, busy.body.message]).toEqual([
        503,
        'Another search or preview of the organization is running. Try again when it is done.',
      ]);
      expect(busy.headers.get('retry-after')).toBe('1');
      // Nobody else waits for it.
      await search({ conditions }, other);
    });
    await search({ conditions });
  });
});
