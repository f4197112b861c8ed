/** Contacts, lists, tags and properties over the API: what may be written, what is read back, what deleting leaves. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Type } from 'typebox';
import {
  addSuppressions,
  audienceFormats,
  contactReferenceFields,
  resolveContact,
} from '../../src/audience/audience.ts';
import { createContact } from '../../src/audience/contacts.ts';
import { applyReports } from '../../src/messages/messages.ts';
import type { ContactRecord, PropertyRecord } from '../../src/audience/schema.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { neighbourId } from '../support/neighbour.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { emailChannel } from '../../src/email/email.ts';

let server: TestServer;
let clock: ShiftedClock;
let other: { organizationId: string; key: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'elsewhere.example');
});
afterAll(() => server.stop());

type Page<Item> = { object: 'list'; has_more: boolean; data: Item[] };
type SetRecord = { id: string; name: string; description?: string | null; contact_count: number };
type Change = { object: string; changed: number; unchanged: number; not_found_ids: string[] };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown) =>
  server.request<Body>(method, `/v1${path}`, body);
let made = 0;
const unique = (what = 'thing') => `${what}-${(made += 1)}`;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

async function created<Body = ContactRecord>(path: string, body: unknown): Promise<Body> {
  const response = await ask<Body>('POST', path, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body;
}
const aContact = (more: object = {}) => created('/contacts', { external_id: unique('user'), ...more });
const aList = (name = unique('list')) => created<SetRecord>('/lists', { name });
const aTag = (name = unique('tag')) => created<SetRecord>('/tags', { name });
const aProperty = (type: string, key = unique('p').replace('-', '_')) =>
  created<PropertyRecord>('/properties', { key, name: key, type });
const idsOf = (page: { body: Page<{ id: string }> }) => page.body.data.map(({ id }) => id);
const listContacts = async (query: string) =>
  idsOf(await ask<Page<ContactRecord>>('GET', `/contacts?${query}`));

describe('a contact', () => {
  test('is created with everything, and read back as it was answered', async () => {
    const [list, tag] = [await aList(), await aTag()];
    const [plan, age, vip, born] = [
      await aProperty('string'),
      await aProperty('number'),
      await aProperty('boolean'),
      await aProperty('date'),
    ];
    const contact = await aContact({
      email: 'Ada.Lovelace@MÜNCHEN.example',
      phone_number: '+14155550123',
      first_name: 'Ada',
      last_name: 'Lovelace',
      locale: 'en-GB',
      timezone: 'Europe/London',
      properties: {
        [plan.key]: 'pro',
        [age.key]: 36.5,
        [vip.key]: false,
        [born.key]: '1815-12-10',
      },
      consent: { sms: 'unsubscribed' },
      list_ids: [list.id, list.id],
      tag_ids: [tag.id],
    });
    expect(contact).toEqual({
      id: expect.stringMatching(/^[0-9a-f-]{14}7/),
      external_id: expect.stringMatching(/^user-/),
      email: 'Ada.Lovelace@MÜNCHEN.example',
      phone_number: '+14155550123',
      first_name: 'Ada',
      last_name: 'Lovelace',
      locale: 'en-GB',
      timezone: 'Europe/London',
      properties: { [plan.key]: 'pro', [age.key]: 36.5, [vip.key]: false, [born.key]: '1815-12-10' },
      consent: { email: 'subscribed', sms: 'unsubscribed', push: 'subscribed', chatapp: 'subscribed' },
      list_ids: [list.id],
      tag_ids: [tag.id],
      created_at: expect.stringMatching(/Z$/),
      updated_at: contact.created_at,
    });
    expect((await ask('GET', `/contacts/${contact.id}`)).body).toEqual(contact);
    expect((await ask<SetRecord>('GET', `/lists/${list.id}`)).body.contact_count).toBe(1);
  });

  test('needs an identifier, when it is created and when it is changed', async () => {
    for (const body of [{}, { first_name: 'Ada' }, { email: null }]) {
      const { status, body: error } = await ask('POST', '/contacts', body);
      expect([status, error.name, error.message]).toEqual([
        422,
        'validation_error',
        'one of external_id, email and phone_number is required',
      ]);
    }
    const { id } = await aContact();
    expect((await ask('PATCH', `/contacts/${id}`, { external_id: null })).status).toBe(422);
    expect((await ask('GET', `/contacts/${id}`)).body).toHaveProperty('external_id');
  });

  test.each([
    [{ external_id: '' }, 'external_id must not be empty'],
    [{ external_id: 'x'.repeat(256) }, 'external_id must be at most 255 characters'],
    [{ external_id: 'a\nb' }, 'external_id must be a single line'],
    [{ email: 'nobody' }, 'email must be an email address'],
    [{ phone_number: '0041791234567' }, 'phone_number must be a phone number in E.164, such as +14155550123'],
    [
      { phone_number: '+1234567890123456' },
      'phone_number must be a phone number in E.164, such as +14155550123',
    ],
    [{ first_name: 'x'.repeat(129) }, 'first_name must be at most 128 characters'],
    [{ last_name: 7 }, 'last_name must be a string or a null'],
    [{ locale: 'no locale' }, 'locale must be a BCP 47 language tag, such as en-GB'],
    [{ timezone: 'Mars/Olympus' }, 'timezone must be an IANA time zone, such as Europe/Berlin'],
    [{ timezone: '+02:00' }, 'timezone must be an IANA time zone, such as Europe/Berlin'],
    [{ properties: { nothing: 1 } }, 'properties.nothing is not a defined property'],
    [{ properties: JSON.parse('{"__proto__": 1}') as object }, '__proto__'],
    [{ consent: { fax: 'subscribed' } }, 'consent.fax is not a known field'],
    [{ consent: { email: true } }, 'consent.email must be one of subscribed, unsubscribed'],
    [{ organization_id: unknownId }, 'organization_id is not a known field'],
    [{ list_ids: [unknownId] }, `list_ids[0] ${unknownId} is not a list of the organization`],
    [{ tag_ids: ['x'] }, 'tag_ids[0] must be a UUID'],
  ])('is refused with %j', async (body, message) => {
    const response = await ask('POST', '/contacts', { external_id: unique(), ...body });
    expect([response.status, response.body.message]).toEqual([422, expect.stringContaining(message)]);
  });

  test('a tag is no list', async () => {
    const tag = await aTag();
    const response = await ask('POST', '/contacts', { external_id: unique(), list_ids: [tag.id] });
    expect([response.status, response.body.message]).toEqual([
      422,
      `list_ids[0] ${tag.id} is not a list of the organization`,
    ]);
  });

  test('has values of the type of their property alone, and all that is wrong is said at once', async () => {
    const [text, number, flag, date] = [
      await aProperty('string'),
      await aProperty('number'),
      await aProperty('boolean'),
      await aProperty('date'),
    ];
    const wrong: [string, unknown][] = [
      [text.key, 1],
      [text.key, ''],
      [number.key, '1'],
      [flag.key, 'true'],
      [date.key, '2026-02-30'],
      [date.key, '2026-01-01T00:00:00'],
    ];
    for (const [key, value] of wrong) {
      const response = await ask('POST', '/contacts', {
        external_id: unique(),
        properties: { [key]: value },
      });
      expect([key, value, response.status]).toEqual([key, value, 422]);
      expect(response.body.message).toContain(`properties.${key} must be`);
    }
    const { body } = await ask('POST', '/contacts', {
      properties: { [number.key]: true, nobody: 1 },
      list_ids: [unknownId],
    });
    expect(body.message).toContain(`properties.${number.key}`);
    expect(body.message).toContain('properties.nobody');
    expect(body.message).toContain('one of external_id');
    expect(body.message).toContain('list_ids[0]');
  });

  test('an identifier belongs to one contact, and a refusal names the field and whose it is', async () => {
    const taken = await aContact({ email: `${unique()}@Example.com`, phone_number: '+4930123456' });
    for (const [field, value] of [
      ['external_id', taken.external_id],
      ['email', taken.email!.toUpperCase()],
      ['phone_number', taken.phone_number],
    ] as const) {
      const post = await ask('POST', '/contacts', { [field]: value });
      const free = await aContact();
      const patch = await ask('PATCH', `/contacts/${free.id}`, { [field]: value });
      for (const { status, body } of [post, patch]) {
        expect([status, body.name, body.message]).toEqual([
          409,
          'conflict',
          `${field} is in use by the contact ${taken.id}.`,
        ]);
      }
    }
    const theirs = await server.request(
      'POST',
      '/v1/contacts',
      { external_id: taken.external_id, email: taken.email },
      authorize(other),
    );
    expect(theirs.status, 'in another organization it is free').toBe(201);
  });

  test('fifty at once with one address are one contact', async () => {
    const email = `${unique()}@example.com`;
    const responses = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        ask('POST', '/contacts', { email: index % 2 === 0 ? email : email.toUpperCase() }),
      ),
    );
    expect(responses.map(({ status }) => status).sort()).toEqual([201, ...Array<number>(49).fill(409)]);
  });

  test('a change merges: what is not given stays, null removes, also within properties', async () => {
    const [kept, changed, removed] = [
      await aProperty('string'),
      await aProperty('number'),
      await aProperty('string'),
    ];
    const contact = await aContact({
      email: `${unique()}@example.com`,
      first_name: 'Ada',
      last_name: 'Byron',
      properties: { [kept.key]: 'k', [changed.key]: 1, [removed.key]: 'r' },
      consent: { sms: 'unsubscribed', push: 'unsubscribed' },
    });
    clock.putForward(1_000);
    const { status, body } = await ask<ContactRecord>('PATCH', `/contacts/${contact.id}`, {
      last_name: 'Lovelace',
      first_name: null,
      properties: { [changed.key]: 2, [removed.key]: null },
      consent: { sms: 'subscribed' },
    });
    expect([status, body]).toEqual([
      200,
      {
        ...contact,
        first_name: null,
        last_name: 'Lovelace',
        properties: { [kept.key]: 'k', [changed.key]: 2 },
        consent: { ...contact.consent, sms: 'subscribed' },
        updated_at: body.updated_at,
      },
    ]);
    expect(Date.parse(body.updated_at)).toBeGreaterThan(Date.parse(contact.updated_at));
    expect((await ask('GET', `/contacts/${contact.id}`)).body).toEqual(body);
  });

  test('changes at the same time lose nothing of each other', async () => {
    const properties = await Promise.all(Array.from({ length: 10 }, () => aProperty('number')));
    const { id } = await aContact();
    await Promise.all(
      properties.map(({ key }, index) => ask('PATCH', `/contacts/${id}`, { properties: { [key]: index } })),
    );
    const { body } = await ask<ContactRecord>('GET', `/contacts/${id}`);
    expect(body.properties).toEqual(Object.fromEntries(properties.map(({ key }, index) => [key, index])));
  });
});

describe('a list of contacts', () => {
  test('goes through all of them by pages, newest first, to and fro', async () => {
    const list = await aList();
    const ids: string[] = [];
    for (let index = 0; index < 7; index += 1) ids.unshift((await aContact({ list_ids: [list.id] })).id);
    const first = await ask<Page<ContactRecord>>('GET', `/contacts?list_id=${list.id}&limit=3`);
    expect([first.body.object, first.body.has_more, idsOf(first)]).toEqual(['list', true, ids.slice(0, 3)]);
    const last = await ask<Page<ContactRecord>>(
      'GET',
      `/contacts?list_id=${list.id}&limit=5&after=${ids[2]}`,
    );
    expect([last.body.has_more, idsOf(last)]).toEqual([false, ids.slice(3)]);
    const back = await ask<Page<ContactRecord>>(
      'GET',
      `/contacts?list_id=${list.id}&limit=2&before=${ids[3]}`,
    );
    expect([back.body.has_more, idsOf(back)]).toEqual([true, ids.slice(1, 3)]);
  });

  test('goes through contacts whose ids are in another order than they were made, each once', async () => {
    const list = await aList();
    const tools = { ...server.installation, newId: createShuffledIds(clock) };
    const made: string[] = [];
    for (let index = 0; index < 7; index += 1) {
      for (const organizationId of [server.organizationId, other.organizationId]) {
        const isOwn = organizationId === server.organizationId;
        const body = { external_id: unique('user'), list_ids: isOwn ? [list.id] : [] };
        const outcome = await createContact(tools, organizationId, body);
        if (outcome.kind !== 'created') throw new Error(outcome.kind);
        if (isOwn) made.push(outcome.contact.id);
      }
    }
    const inOrder = made.toSorted().reverse();
    expect(inOrder).not.toEqual(made.toReversed());
    const page = (cursor: string) =>
      ask<Page<ContactRecord>>('GET', `/contacts?list_id=${list.id}&limit=2${cursor}`);
    const listed = idsOf(await page(''));
    for (let pages = 1; pages <= 3; pages += 1) listed.push(...idsOf(await page(`&after=${listed.at(-1)}`)));
    expect(listed).toEqual(inOrder);
    expect(idsOf(await page(`&before=${inOrder[3]}`))).toEqual(inOrder.slice(1, 3));
  });

  test('is filtered by identifier, list and tag, and by all of them at once', async () => {
    const [list, tag] = [await aList(), await aTag()];
    const email = `${unique('Someone')}@Example.com`;
    const both = await aContact({ email, list_ids: [list.id], tag_ids: [tag.id] });
    const listed = await aContact({ list_ids: [list.id], phone_number: '+33612345678' });
    const tagged = await aContact({ tag_ids: [tag.id] });
    expect(await listContacts(`list_id=${list.id}`)).toEqual([listed.id, both.id]);
    expect(await listContacts(`tag_id=${tag.id}`)).toEqual([tagged.id, both.id]);
    expect(await listContacts(`list_id=${list.id}&tag_id=${tag.id}`)).toEqual([both.id]);
    expect(await listContacts(`email=${email.toLowerCase()}`)).toEqual([both.id]);
    expect(await listContacts(`email=${email}&tag_id=${tag.id}`)).toEqual([both.id]);
    expect(await listContacts(`external_id=${listed.external_id!}`)).toEqual([listed.id]);
    expect(await listContacts(`phone_number=${encodeURIComponent('+33612345678')}`)).toEqual([listed.id]);
    expect(await listContacts(`external_id=${listed.external_id!}&tag_id=${tag.id}`)).toEqual([]);
    const [named, listedOnly] = [both.email!.slice(0, 5).toLowerCase(), listed.external_id!];
    expect(await listContacts(`email=${email}&search=${named}`)).toEqual([both.id]);
    expect(await listContacts(`email=${email}&search=${listedOnly}`)).toEqual([]);
    expect(await listContacts(`external_id=${listedOnly}&search=${listedOnly}&list_id=${list.id}`)).toEqual([
      listed.id,
    ]);
    expect(await listContacts(`external_id=${listedOnly}&search=${listedOnly}&tag_id=${tag.id}`)).toEqual([]);
    expect(await listContacts(`list_id=${tag.id}`), 'a tag is no list').toEqual([]);
    expect(await listContacts(`list_id=${unknownId}`)).toEqual([]);
    expect(await listContacts(`segment_id=${list.id}`), 'a list is no segment').toEqual([]);
  });

  test('is searched by the beginning of address, names and external id', async () => {
    const zoe = await aContact({
      external_id: unique('Zebra'),
      email: 'Qwerty@example.com',
      first_name: 'Zoë%',
      last_name: 'Ångström_',
    });
    for (const search of ['qWER', 'zoë', 'ZOË%', 'zoë% ång', 'ÅNGSTRÖM_', 'Zebra-']) {
      expect([search, await listContacts(`search=${encodeURIComponent(search)}`)]).toEqual([
        search,
        [zoe.id],
      ]);
    }
    for (const search of ['werty', 'zebra-', 'zo%', 'ångström%', '\u{10ffff}']) {
      expect([search, await listContacts(`search=${encodeURIComponent(search)}`)]).toEqual([search, []]);
    }
    const tag = await aTag();
    expect(await listContacts(`search=zo&tag_id=${tag.id}`)).toEqual([]);
  });

  test('finds rare ones behind thousands of others, each once, page by page', async () => {
    const name = unique('Hidden');
    const rare: string[] = [];
    for (let index = 0; index < 5; index += 1) {
      rare.unshift((await aContact({ first_name: name, last_name: name })).id);
    }
    await rowsOf(
      server,
      `insert into contacts (organization_id, id, external_id, created_at, updated_at)
       select $1, ('fffffff0-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'filler-' || n, now(), now()
       from generate_series(1, 6000) n`,
      [server.organizationId],
    );
    const page = await ask<Page<ContactRecord>>('GET', `/contacts?search=${name.toLowerCase()}&limit=3`);
    expect([idsOf(page), page.body.has_more]).toEqual([rare.slice(0, 3), true]);
    expect(await listContacts(`search=${name}&limit=3&after=${rare[2]}`)).toEqual(rare.slice(3));
    expect(await listContacts(`search=${name}&limit=2&before=${rare[3]}`)).toEqual(rare.slice(1, 3));
    await deleteFillers();
  });

  /** Nothing was sent to them, and so there is nothing to be erased. */
  async function deleteFillers(): Promise<void> {
    await rowsOf(server, "delete from contacts where external_id like 'filler-%'");
    await rowsOf(server, 'delete from contact_erasures');
  }

  test('finds members of a list by a text that few, many, or almost no members have', async () => {
    const [list, tag] = [await aList(), await aTag()];
    // Ids of a year to come: the newest members are those that do not have the text.
    const fill = (year: number, count: number, named: string, members: string) =>
      rowsOf(
        server,
        `with made as (
           insert into contacts (organization_id, id, external_id, last_name_key, created_at, updated_at)
           select $1, ('ffffff${year}-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
             'filler-${year}-' || n, ${named}, now(), now()
           from generate_series(1, ${count}) n
           returning id, external_id
         )
         insert into memberships (organization_id, set_id, contact_id)
         select $1, set_id, id from made, unnest($2::uuid[]) set_id
         where split_part(external_id, '-', 3)::integer % ${members} = 0`,
        [server.organizationId, [list.id, tag.id]],
      );
    await fill(41, 15_100, "'commonest'", '7500');
    await fill(42, 400, "'rarest'", '150');
    await fill(43, 2_600, 'null', '1');
    // As autovacuum would within a minute; until then PostgreSQL takes every set for a handful.
    await rowsOf(server, 'analyze contacts, memberships');
    const search = (text: string, more = '') =>
      listContacts(`search=${text}&list_id=${list.id}&tag_id=${tag.id}${more}`);
    const id = (year: number, number: number) =>
      `ffffff${year}-0000-7000-8000-${number.toString(16).padStart(12, '0')}`;
    expect(await search('rare')).toEqual([id(42, 300), id(42, 150)]);
    expect(await search('rare', `&after=${id(42, 300)}`)).toEqual([id(42, 150)]);
    expect(await search('common')).toEqual([id(41, 15_000), id(41, 7_500)]);
    expect(await search('common', `&before=${id(41, 7_500)}`)).toEqual([id(41, 15_000)]);
    expect(await search('filler-4', '&limit=2')).toEqual([id(43, 2_600), id(43, 2_599)]);
    expect(await search('nobody')).toEqual([]);
    await deleteFillers();
    await rowsOf(server, 'delete from memberships where set_id = any ($1)', [[list.id, tag.id]]);
  });

  test.each([
    ['limit=0', 422],
    ['limit=101', 422],
    ['email=nobody', 422],
    ['list_id=x', 422],
    ['sort=asc', 422],
    [`after=${unknownId}&before=${unknownId}`, 400],
    ['search=%00', 422],
  ])('answers to %s with %i', async (query, status) => {
    expect((await ask('GET', `/contacts?${query}`)).status).toBe(status);
  });
});

describe('a deleted contact', () => {
  test('is gone, takes its memberships along, and is confirmed once', async () => {
    const [list, tag] = [await aList(), await aTag()];
    const contact = await aContact({ list_ids: [list.id], tag_ids: [tag.id] });
    expect((await ask('DELETE', `/contacts/${contact.id}`)).body).toEqual({
      object: 'contact',
      id: contact.id,
      deleted: true,
    });
    for (const method of ['GET', 'DELETE', 'PATCH']) {
      const again = await ask(method, `/contacts/${contact.id}`, method === 'PATCH' ? {} : undefined);
      expect([method, again.status, again.body.name]).toEqual([method, 404, 'not_found']);
    }
    expect((await ask<SetRecord>('GET', `/lists/${list.id}`)).body.contact_count).toBe(0);
    expect((await ask<SetRecord>('GET', `/tags/${tag.id}`)).body.contact_count).toBe(0);
    expect(await listContacts(`list_id=${list.id}`)).toEqual([]);
    await aContact({ external_id: contact.external_id });
  });

  test('many are deleted at once, and those that are not there are named', async () => {
    const contacts = [await aContact(), await aContact(), await aContact()];
    const ids = contacts.map(({ id }) => id);
    const { status, body } = await ask('POST', '/contacts/bulk-delete', {
      contact_ids: [ids[0], ids[1], ids[1]!.toUpperCase(), unknownId],
    });
    expect([status, body]).toEqual([
      200,
      { object: 'bulk_delete', deleted_count: 2, not_found_ids: [unknownId] },
    ]);
    expect((await ask('GET', `/contacts/${ids[2]}`)).status).toBe(200);
    for (const wrong of [[], Array<string>(1_001).fill(unknownId)]) {
      expect((await ask('POST', '/contacts/bulk-delete', { contact_ids: wrong })).status).toBe(422);
    }
  });

  test('nothing in the database speaks of it any more, and its suppression still holds', async () => {
    const property = await aProperty('string');
    const trace = `trace${randomUUID().replaceAll('-', '')}`;
    const email = `${trace}@example.com`;
    const contact = await aContact({
      external_id: `ext-${trace}`,
      email,
      first_name: trace,
      properties: { [property.key]: trace },
    });
    const alone = await send(server, { to: [email], subject: `Hello ${trace}`, text: `Dear ${trace}` });
    const shared = await send(server, { to: [email, 'ben@example.com'], subject: 'To both' });
    for (const id of [alone, shared]) await settled(server, id);
    await addSuppressions(server.installation.database, server.installation, 'email', [
      { organizationId: server.organizationId, address: email, reason: 'operator' },
    ]);

    expect((await ask('DELETE', `/contacts/${contact.id}`)).status).toBe(200);
    await erased();

    expect(await findText(trace)).toEqual([]);
    const [own, both] = [await read(server, alone), await read(server, shared)];
    expect([own.subject, own.to[0]!.email, own.to[0]!.status]).toEqual([null, null, 'delivered']);
    expect([both.subject, both.to.map((recipient) => recipient.email)]).toEqual([
      'To both',
      [null, 'ben@example.com'],
    ]);
    const later = await settled(server, await send(server, { to: [email] }));
    expect(later.to[0]).toMatchObject({ email, drop_reason: 'suppressed' });
  });

  test('leaves a campaign its counts and no name, and everybody else their copies', async () => {
    const { installation, organizationId } = server;
    const trace = `trace${randomUUID().replaceAll('-', '')}`;
    const contacts: ContactRecord[] = [];
    for (const email of [`${trace}@example.com`, `${unique('ben')}@example.com`])
      contacts.push(await aContact({ email }));
    const campaign = {
      organizationId,
      contacts: contacts.map(({ id, email }) => ({ id, email: email!, variables: { first_name: email! } })),
    };
    const { messageId } = await insertSentCampaign(installation, campaign);
    const waiting = await insertSentCampaign(installation, campaign);
    await rowsOf(
      server,
      `update recipients set status = 'sent', handed_off_at = null where message_id = $1`,
      [waiting.messageId],
    );
    for (const [ordinal, { email }] of contacts.entries())
      await rowsOf(
        server,
        `insert into sandbox_messages
           (organization_id, id, channel, message_id, ordinal, recipient, sender, outcome, source, created_at)
         values ($1, $2, 'email', $3, $4, $5, 'news@postillion.test', 'delivered', convert_to($5, 'UTF8'), now())`,
        [organizationId, installation.newId(), messageId, ordinal, email],
      );
    await ask('DELETE', `/contacts/${contacts[0]!.id}`);
    await erased();
    expect(await findText(trace)).toEqual([]);
    const copies = await rowsOf(server, 'select recipient from sandbox_messages where message_id = $1', [
      messageId,
    ]);
    expect(copies).toEqual([{ recipient: contacts[1]!.email }]);
    const recipients = await rowsOf(
      server,
      `select address, status, drop_reason from recipients where message_id = any ($1) order by message_id, ordinal`,
      [[messageId, waiting.messageId]],
    );
    expect(recipients).toEqual([
      { address: '', status: 'delivered', drop_reason: null },
      { address: contacts[1]!.email, status: 'delivered', drop_reason: null },
      // Or the campaign would wait for it.
      { address: '', status: 'sent', drop_reason: 'contact_deleted' },
      { address: contacts[1]!.email, status: 'sent', drop_reason: null },
    ]);
  });

  test('what still waits for delivery is delivered first, and erased then', async () => {
    const email = 'deferred@simulator.postillion.test';
    const contact = await aContact({ email });
    const id = await send(server, { to: [email] });
    await eventually(
      () => queueOf(server, id),
      (jobs) => jobs[0]?.attempts === 1,
    );
    await ask('DELETE', `/contacts/${contact.id}`);
    const waiting = () => rowsOf<{ due_at: Date }>(server, 'select due_at from erasures');
    await eventually(waiting, (rows) => rows.length === 1 && rows[0]!.due_at.getTime() > clock.nowMs());
    expect((await read(server, id)).to[0]!.email).toBe(email);
    await rowsOf(server, 'delete from delivery_queue where message_id = $1', [id]);
    clock.putForward(61 * 60_000);
    await eventually(waiting, (rows) => rows.length === 0);
    expect((await read(server, id)).to[0]!.email).toBeNull();
  });

  test('reports on its messages that come afterwards do not name it, and still suppress', async () => {
    const email = `${unique('late')}@example.com`;
    const contact = await aContact({ email });
    const id = await send(server, { to: [email] });
    await settled(server, id);
    await ask('DELETE', `/contacts/${contact.id}`);
    await erased();
    await reportBounce(id, email);
    expect(await findText(email)).toEqual([]);
    expect((await read(server, id)).to[0]).toMatchObject({
      email: null,
      status: 'bounced',
      bounce: { type: 'hard', diagnostic: null, remote_mta: null },
    });
    const later = await settled(server, await send(server, { to: [email] }));
    expect(later.to[0]).toMatchObject({ email, drop_reason: 'suppressed' });
  });

  test('mail that bounces after the deletion leaves a suppression without the address', async () => {
    const email = `${unique('late').replace(/\W/g, '')}@example.com`;
    const contact = await aContact({ email });
    const held = await holdQueue();
    const id = await send(server, { to: [email] });
    await ask('DELETE', `/contacts/${contact.id}`);
    await held.release();
    await settled(server, id);
    await reportBounce(id, email);
    clock.putForward(61 * 60_000);
    await erased();
    expect(await findText(email)).toEqual([]);
    const later = await settled(server, await send(server, { to: [email] }));
    expect(later.to[0]).toMatchObject({ email, drop_reason: 'suppressed' });
  });

  /** What a server says of the only recipient afterwards. */
  function reportBounce(messageId: string, email: string): Promise<void> {
    return applyReports(
      {
        ...server.installation,
        random: Math.random,
        onCampaignProgress: () => undefined,
        onContactsChanged: () => undefined,
      },
      emailChannel,
      [
        {
          job: { organizationId: server.organizationId, messageId, ordinal: 0 },
          status: 'bounced',
          failure: {
            type: 'hard',
            class: 'mailbox_not_found',
            smtpCode: 550,
            enhancedCode: '5.1.1',
            diagnostic: `550 <${email}> unknown`,
            remote: email,
          },
        },
      ],
    );
  }

  /** Resolves once no address waits to be erased. */
  async function erased(): Promise<void> {
    clock.putForward(61_000);
    await eventually(
      () => rowsOf(server, 'select from erasures'),
      (rows) => rows.length === 0,
    );
  }

  /** Nothing that is queued from now on is delivered before the release. */
  async function holdQueue(): Promise<{ release: () => Promise<void> }> {
    await rowsOf(
      server,
      `create or replace function hold() returns trigger language plpgsql
       as $$ begin new.due_at := new.due_at + interval '1 hour'; return new; end $$`,
    );
    await rowsOf(
      server,
      'create trigger hold before insert on delivery_queue for each row execute function hold()',
    );
    return {
      release: async () => {
        await rowsOf(server, 'drop trigger hold on delivery_queue');
        clock.putForward(61 * 60_000);
      },
    };
  }
});

/** Tables in which any column of any row holds the text, but for what the neighbour has. */
async function findText(text: string): Promise<string[]> {
  const tables = await rowsOf<{ name: string }>(
    server,
    "select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition",
  );
  const found: string[] = [];
  for (const { name } of tables) {
    // Bytes are shown in hexadecimal.
    const rows = await rowsOf(
      server,
      `select
       from ${name} t
       where (strpos(t::text, $1) > 0 or strpos(t::text, encode(convert_to($1, 'UTF8'), 'hex')) > 0)
         and to_jsonb(t) ->> 'organization_id' is distinct from $2
       limit 1`,
      [text, neighbourId],
    );
    if (rows.length > 0) found.push(name);
  }
  return found;
}

describe.each([
  ['lists', 'list', 255],
  ['tags', 'tag', 100],
] as const)('%s', (path, kind, nameLengthMax) => {
  const make = (name = unique(kind)) => created<SetRecord>(`/${path}`, { name });

  test('are created, read, changed, found by a part of their name, and deleted', async () => {
    const set = await make(`${unique()} Summer Sale`);
    expect(set).toMatchObject({ contact_count: 0, ...(kind === 'list' && { description: null }) });
    const fields = ['contact_count', 'created_at', 'id', 'name', 'updated_at'];
    expect(Object.keys(set).sort()).toEqual(kind === 'list' ? [...fields, 'description'].sort() : fields);
    expect((await ask('GET', `/${path}/${set.id}`)).body).toEqual(set);
    const patched = await ask<SetRecord>('PATCH', `/${path}/${set.id}`, { name: `${set.name}!` });
    expect([patched.status, patched.body.name]).toEqual([200, `${set.name}!`]);
    expect(idsOf(await ask('GET', `/${path}?search=summer%20SALE!`))).toEqual([set.id]);
    expect((await ask('DELETE', `/${path}/${set.id}`)).body).toEqual({
      object: kind,
      id: set.id,
      deleted: true,
    });
    for (const method of ['GET', 'DELETE', 'PATCH']) {
      const again = await ask(method, `/${path}/${set.id}`, method === 'PATCH' ? {} : undefined);
      expect([method, again.status]).toEqual([method, 404]);
    }
    expect(idsOf(await ask('GET', `/${path}?search=summer%20SALE!`))).toEqual([]);
  });

  test('have names of their own, in whatever case', async () => {
    const { name } = await make(unique('Été'));
    const second = await make();
    for (const taken of [name, name.toUpperCase()]) {
      const post = await ask('POST', `/${path}`, { name: taken });
      const patch = await ask('PATCH', `/${path}/${second.id}`, { name: taken });
      expect([post.status, post.body.name, patch.status]).toEqual([409, 'conflict', 409]);
    }
    for (const wrong of ['', '  ', 'x'.repeat(nameLengthMax + 1), 7, null]) {
      expect([wrong, (await ask('POST', `/${path}`, { name: wrong })).status]).toEqual([wrong, 422]);
    }
    await make('x'.repeat(nameLengthMax));
  });

  test('a name is free again once its owner is deleted', async () => {
    const set = await make();
    await ask('DELETE', `/${path}/${set.id}`);
    await make(set.name);
  });

  test('contacts join and leave, are counted, and repeating it changes nothing', async () => {
    const set = await make();
    const contacts = [await aContact(), await aContact(), await aContact()];
    const ids = contacts.map(({ id }) => id);
    const change = async (method: string, contactIds: string[]) =>
      (await ask<Change>(method, `/${path}/${set.id}/contacts`, { contact_ids: contactIds })).body;
    const count = async () => (await ask<SetRecord>('GET', `/${path}/${set.id}`)).body.contact_count;

    expect(await change('POST', [ids[0]!, ids[1]!, unknownId])).toEqual({
      object: 'membership_change',
      changed: 2,
      unchanged: 0,
      not_found_ids: [unknownId],
    });
    expect(await change('POST', [...ids, ids[0]!.toUpperCase()])).toMatchObject({ changed: 1, unchanged: 2 });
    expect(await count()).toBe(3);
    const field = kind === 'list' ? 'list_ids' : 'tag_ids';
    expect((await ask<ContactRecord>('GET', `/contacts/${ids[0]}`)).body[field]).toEqual([set.id]);
    expect(await change('DELETE', [ids[0]!])).toMatchObject({ changed: 1, unchanged: 0 });
    expect(await change('DELETE', [ids[0]!, ids[1]!])).toMatchObject({ changed: 1, unchanged: 1 });
    expect(await count()).toBe(1);
    expect((await ask<ContactRecord>('GET', `/contacts/${ids[0]}`)).body[field]).toEqual([]);
    for (const wrong of [{}, { contact_ids: [] }, { contact_ids: Array<string>(1_001).fill(unknownId) }]) {
      expect((await ask('POST', `/${path}/${set.id}/contacts`, wrong)).status).toBe(422);
    }
    expect((await ask('POST', `/${path}/${unknownId}/contacts`, { contact_ids: ids })).status).toBe(404);
  });

  test('a deleted one leaves its contacts, and nothing of itself', async () => {
    const set = await make();
    const contact = await aContact();
    await ask('POST', `/${path}/${set.id}/contacts`, { contact_ids: [contact.id] });
    await ask('DELETE', `/${path}/${set.id}`);
    const { body } = await ask<ContactRecord>('GET', `/contacts/${contact.id}`);
    expect([body.list_ids, body.tag_ids]).toEqual([[], []]);
    for (const table of ['memberships', 'membership_counts']) {
      await eventually(
        () => rowsOf(server, `select from ${table} where set_id = $1`, [set.id]),
        (rows) => rows.length === 0,
      );
    }
    await eventually(
      () => rowsOf(server, 'select from contact_sets where id = $1', [set.id]),
      (rows) => rows.length === 0,
    );
  });

  test('counts are right after many at once have joined, left and been deleted', async () => {
    const set = await make();
    const ids = await Promise.all(Array.from({ length: 40 }, async () => (await aContact()).id));
    const answers = await Promise.all(
      Array.from({ length: 60 }, (_, index) => {
        const contactIds = ids.filter((_id, position) => (position * 7 + index) % 5 === 0);
        return index % 10 === 9
          ? ask('DELETE', `/contacts/${ids[index % ids.length]!}`)
          : ask(index % 3 === 0 ? 'DELETE' : 'POST', `/${path}/${set.id}/contacts`, {
              contact_ids: contactIds,
            });
      }),
    );
    for (const { status, text } of answers) expect([200, 404], text).toContain(status);
    const [row] = await rowsOf<{ count: number }>(
      server,
      'select count(*) from memberships where set_id = $1',
      [set.id],
    );
    expect((await ask<SetRecord>('GET', `/${path}/${set.id}`)).body.contact_count).toBe(row!.count);
  });
});

describe('a property', () => {
  test('is defined, read, changed, found, and deleted together with its values', async () => {
    const property = await aProperty('number', unique('score').replace('-', '_'));
    expect(Object.keys(property)).toEqual([
      'id',
      'key',
      'name',
      'type',
      'description',
      'created_at',
      'updated_at',
    ]);
    expect((await ask('GET', `/properties/${property.id}`)).body).toEqual(property);
    const contact = await aContact({ properties: { [property.key]: 7 } });
    const patched = await ask<PropertyRecord>('PATCH', `/properties/${property.id}`, {
      name: 'Points',
      description: 'What they won',
      type: 'number',
    });
    expect(patched.body).toMatchObject({ name: 'Points', description: 'What they won', key: property.key });
    expect(idsOf(await ask('GET', `/properties?search=${property.key.toUpperCase()}`))).toEqual([
      property.id,
    ]);

    expect((await ask('DELETE', `/properties/${property.id}`)).body).toEqual({
      object: 'property',
      id: property.id,
      deleted: true,
    });
    expect((await ask('DELETE', `/properties/${property.id}`)).status).toBe(404);
    expect((await ask<ContactRecord>('GET', `/contacts/${contact.id}`)).body.properties).toEqual({});
    clock.putForward(61_000);
    const again = await aProperty('string', property.key);
    expect(again.id).not.toBe(property.id);
    expect((await ask<ContactRecord>('GET', `/contacts/${contact.id}`)).body.properties).toEqual({});
    await eventually(
      () =>
        rowsOf<{ properties: object }>(server, 'select properties from contacts where id = $1', [contact.id]),
      (rows) => Object.keys(rows[0]!.properties).length === 0,
    );
  });

  test.each([
    [{ key: 'Plan' }],
    [{ key: '1st' }],
    [{ key: `a${'b'.repeat(50)}` }],
    [{ key: '' }],
    [{ name: ' ' }],
    [{ type: 'integer' }],
    [{ type: undefined }],
    [{ default: 1 }],
  ])('is refused with %j', async (wrong) => {
    const response = await ask('POST', '/properties', {
      key: 'fine',
      name: 'Fine',
      type: 'string',
      ...wrong,
    });
    expect([response.status, response.body.name]).toEqual([422, 'validation_error']);
  });

  test('its key and its type never change, and its key belongs to it alone', async () => {
    const property = await aProperty('string');
    for (const [patch, field] of [
      [{ type: 'number' }, 'type'],
      [{ key: 'another' }, 'key'],
    ] as const) {
      const response = await ask('PATCH', `/properties/${property.id}`, patch);
      expect([response.status, response.body.message]).toEqual([422, `${field} must stay as it is`]);
    }
    const twice = await ask('POST', '/properties', { key: property.key, name: 'Twice', type: 'date' });
    expect([twice.status, twice.body.name]).toEqual([409, 'conflict']);
  });

  test('twenty at once get a number each', async () => {
    const properties = await Promise.all(Array.from({ length: 20 }, () => aProperty('string')));
    const values = Object.fromEntries(properties.map(({ key }) => [key, key]));
    expect((await aContact({ properties: values })).properties).toEqual(values);
  });
});

describe('a contact reference', () => {
  const resolve = (reference: object) =>
    resolveContact(server.installation.database, server.organizationId, reference);

  test('names a contact by its id alone, or by external_id, then email, then phone_number', async () => {
    const byExternalId = await aContact();
    const byEmail = await aContact({ email: `${unique('Ref')}@example.com` });
    const byPhone = await aContact({ phone_number: '+4917012345678' });
    const references: [object, string][] = [
      [{ contact_id: byEmail.id }, byEmail.id],
      [{ external_id: byExternalId.external_id }, byExternalId.id],
      [{ email: byEmail.email!.toUpperCase() }, byEmail.id],
      [{ phone_number: byPhone.phone_number }, byPhone.id],
      [
        { phone_number: byPhone.phone_number, email: byEmail.email, external_id: byExternalId.external_id },
        byExternalId.id,
      ],
      [{ phone_number: byPhone.phone_number, email: byEmail.email }, byEmail.id],
      [{ phone_number: byPhone.phone_number, external_id: 'nobody' }, byPhone.id],
    ];
    for (const [reference, id] of references)
      expect(await resolve(reference)).toMatchObject({ kind: 'found', id });
  });

  test('its fields are checked like those of a contact', () => {
    const check = createValidation(audienceFormats).compile(
      Type.Object(contactReferenceFields, { additionalProperties: false }),
    );
    expect(check({ email: 'ann@example.com', phone_number: '+14155550123', external_id: 'x' })).toEqual([]);
    expect(
      check({ contact_id: 7, email: 'ann', phone_number: '1', external_id: '', name: 'x' }),
    ).toHaveLength(5);
  });

  test('its errors are told apart', async () => {
    const contact = await aContact();
    expect(await resolve({})).toEqual({ kind: 'required' });
    expect(await resolve({ contact_id: contact.id, email: 'a@example.com' })).toEqual({ kind: 'ambiguous' });
    for (const id of [unknownId, 'nonsense', '\0']) {
      expect(await resolve({ contact_id: id })).toEqual({ kind: 'not_found', by: 'contact_id' });
    }
    expect(await resolve({ email: 'nobody@example.com' })).toEqual({ kind: 'not_found', by: 'identifiers' });
    const theirs = await resolveContact(server.installation.database, other.organizationId, {
      contact_id: contact.id,
    });
    expect(theirs).toEqual({ kind: 'not_found', by: 'contact_id' });
  });
});
