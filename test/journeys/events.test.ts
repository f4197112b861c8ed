/** Events over the API: defined, sent one by one and in batches, read in the timelines of contacts. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { ContactRecord } from '../../src/audience/schema.ts';
import type { BatchRecord, DefinitionRecord, OccurrenceRecord } from '../../src/events/schema.ts';
import type { List } from '../../src/platform/http/pagination.ts';
import { eraseNext } from '../../src/messages/erasure/erasure.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { messageChannels } from '../support/channels.ts';
import { defineEvent, sendEvent, timelineOf, trySendEvent } from '../support/event-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let clock: ShiftedClock;
let other: Sender & { organizationId: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ clock });
  other = await createSender(server.installation, 'other.example');
});
beforeEach(async () => {
  for (const id of [server.organizationId, other.organizationId]) {
    await updateOrganization(server.installation, id, {
      limits: { events: null },
      requestsPerWindow: 100_000,
      eventsPerWindow: 100_000,
    });
  }
});
afterAll(() => server.stop());

let made = 0;
const unique = (what: string) => `${what}${(made += 1)}`;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));
const field = (name: string, type: string, required = false) => ({ name, type, required });
const anOrder = () =>
  defineEvent(server, {
    schema: {
      fields: [field('total', 'number', true), field('currency', 'string'), field('placed_on', 'date')],
    },
  });
const aContact = async (more: object = {}, sender?: Sender) =>
  (await ask<ContactRecord>('POST', '/contacts', { external_id: unique('user '), ...more }, sender)).body;
const contactsBy = async (query: string, sender?: Sender) =>
  (await ask<List<ContactRecord>>('GET', `/contacts?${query}`, undefined, sender)).body.data;

describe('a definition', () => {
  test('is created with what it leaves out, read, listed, changed and deleted', async () => {
    const name = unique('Order.Completed-');
    const time = expect.stringMatching(/Z$/) as string;
    const definition = await defineEvent(server, { name });
    expect(definition).toEqual({
      id: expect.any(String) as string,
      name,
      description: null,
      schema: { fields: [] },
      conversion: { enabled: false, value_field: null, currency_field: null, currencies: null },
      created_at: time,
      updated_at: time,
    });
    expect((await ask('GET', `/events/${definition.id}`)).body).toEqual(definition);
    const found = await ask<List<DefinitionRecord>>('GET', `/events?search=${name.toUpperCase()}`);
    expect(found.body).toEqual({ object: 'list', has_more: false, data: [definition] });

    const schema = { fields: [{ name: 'total', type: 'number' }] };
    const conversion = { enabled: true, value_field: 'total' };
    const changed = await ask<DefinitionRecord>('PATCH', `/events/${definition.id}`, {
      description: 'Somebody bought something',
      schema,
      conversion,
    });
    expect(changed.body).toMatchObject({
      description: 'Somebody bought something',
      schema: { fields: [field('total', 'number')] },
      conversion: { enabled: true, value_field: 'total', currency_field: null, currencies: null },
    });
    const off = await ask<DefinitionRecord>('PATCH', `/events/${definition.id}`, {
      description: null,
      conversion: { enabled: false },
    });
    expect(off.body).toMatchObject({
      description: null,
      schema: { fields: [field('total', 'number')] },
      conversion: { enabled: false, value_field: 'total' },
    });

    const gone = { object: 'event', id: definition.id, deleted: true };
    expect((await ask('DELETE', `/events/${definition.id}`)).body).toEqual(gone);
    expect((await ask('DELETE', `/events/${definition.id}`)).status).toBe(404);
    expect((await ask('GET', `/events/${definition.id}`)).status).toBe(404);
    expect((await ask('PATCH', `/events/${definition.id}`, {})).status).toBe(404);
    expect((await defineEvent(server, { name })).id).not.toBe(definition.id);
  });

  test.each([
    ['no name', {}, /^name is required$/],
    ['a name that begins with a digit', { name: '1st' }, /^name must/],
    ['a name with a line end', { name: 'a\nb' }, /^name must/],
    ['a long name', { name: 'a'.repeat(101) }, /^name must be at most 100/],
    ['a long description', { name: 'a', description: 'a'.repeat(1_001) }, /^description must/],
    [
      'a field of another type',
      { name: 'a', schema: { fields: [field('a', 'object')] } },
      /^schema\.fields\[0\]\.type must/,
    ],
    [
      'a field with capitals',
      { name: 'a', schema: { fields: [field('A', 'string')] } },
      /^schema\.fields\[0\]\.name must/,
    ],
    [
      'a field twice',
      { name: 'a', schema: { fields: [field('a', 'string'), field('a', 'number')] } },
      /^schema\.fields\[1\]\.name a is there twice$/,
    ],
    [
      'a field too many',
      { name: 'a', schema: { fields: Array.from({ length: 51 }, (_none, n) => field(`f${n}`, 'string')) } },
      /^schema\.fields must have at most 50/,
    ],
    ['an unknown field', { name: 'a', number: 7 }, /^number is not a known field/],
  ])('with %s is refused', async (_what, body, message) => {
    const response = await ask('POST', '/events', body);
    expect(response.body).toMatchObject({ status_code: 422, name: 'validation_error' });
    expect(response.body.message).toMatch(message);
  });

  test.each([
    ['conversion_value_field_invalid', { value_field: 'nothing' }],
    ['conversion_value_field_invalid', { value_field: 'code' }],
    ['conversion_currency_field_invalid', { currency_field: 'total' }],
    ['conversion_currency_field_invalid', { currency_field: 'nothing' }],
    ['conversion_currencies_invalid', { currencies: ['EUR', 'eur'] }],
    ['conversion_currencies_invalid', { currencies: [] }],
    ['conversion_value_field_required', { enabled: true, currencies: ['EUR'] }],
    ['conversion_value_field_required', { enabled: true, currency_field: 'code' }],
  ])('is refused for its conversion with %s', async (name, conversion) => {
    const schema = { fields: [field('total', 'integer'), field('code', 'string')] };
    const created = await ask('POST', '/events', { name: unique('e'), schema, conversion });
    expect(created.body).toMatchObject({ status_code: 400, name });
    const { id } = await defineEvent(server, { schema });
    expect((await ask('PATCH', `/events/${id}`, { conversion })).body).toMatchObject({ name });
  });

  test('may not lose the field that its conversions are worth', async () => {
    const { id } = await defineEvent(server, {
      schema: { fields: [field('total', 'number')] },
      conversion: { enabled: true, value_field: 'total' },
    });
    const response = await ask('PATCH', `/events/${id}`, { schema: { fields: [] } });
    expect(response.body).toMatchObject({ status_code: 400, name: 'conversion_value_field_invalid' });
  });

  test('has a name of its own in the organization, and beside another one', async () => {
    const { name } = await defineEvent(server);
    expect((await ask('POST', '/events', { name })).body).toMatchObject({
      status_code: 409,
      name: 'conflict',
    });
    await defineEvent(server, { name }, other);
    await defineEvent(server, { name: name.toUpperCase() });
  });

  test('is of its organization alone', async () => {
    const { id, name } = await defineEvent(server, {}, other);
    for (const method of ['GET', 'DELETE'])
      expect((await ask(method, `/events/${id}`)).body).toMatchObject({
        status_code: 404,
        name: 'not_found',
      });
    expect((await ask('PATCH', `/events/${id}`, { description: 'mine' })).status).toBe(404);
    expect((await ask<List<DefinitionRecord>>('GET', `/events?search=${name}`)).body.data).toEqual([]);
    const sent = await trySendEvent(server, { event: name, external_id: 'a' });
    expect(sent.body).toMatchObject({ status_code: 404, name: 'event_not_found' });
  });

  test('too many are refused by the plan, and a deleted one makes room', async () => {
    const own = { ...other, name: unique('limited') };
    const present = await rowsOf<{ count: number }>(
      server,
      'select count(*)::integer as count from event_definitions where organization_id = $1 and deleted_at is null',
      [other.organizationId],
    );
    await updateOrganization(server.installation, other.organizationId, {
      limits: { events: present[0]!.count + 1 },
    });
    const { id } = await defineEvent(server, {}, own);
    const refused = await ask('POST', '/events', { name: unique('e') }, own);
    expect(refused.body).toMatchObject({ status_code: 422, name: 'event_limit_reached' });
    await ask('DELETE', `/events/${id}`, undefined, own);
    await defineEvent(server, {}, own);
  });
});

describe('an event', () => {
  test('stands in the timeline of its contact, with what was not declared, and its dates in UTC', async () => {
    const { name } = await anOrder();
    const contact = await aContact();
    const id = await sendEvent(server, {
      event: name,
      contact_id: contact.id.toUpperCase(),
      payload: { total: 12.5, placed_on: '2026-11-21T01:00:00+02:00', items: [{ sku: 'a' }], Ünï: null },
    });
    const [event] = await timelineOf(server, contact.id);
    expect(event).toEqual({
      id,
      event: name,
      payload: { total: 12.5, placed_on: '2026-11-20T23:00:00.000Z', items: [{ sku: 'a' }], Ünï: null },
      occurred_at: expect.stringMatching(/Z$/) as string,
      received_at: expect.stringMatching(/Z$/) as string,
    });
    expect((await ask('GET', `/contacts/${contact.id}/events`, undefined, other)).status).toBe(404);
    expect((await ask('GET', `/contacts/${unknownId}/events`)).status).toBe(404);
  });

  test('of which there are more than a page are read page by page, in both directions', async () => {
    const { name } = await defineEvent(server);
    const { id } = await aContact();
    const sent: string[] = [];
    for (let n = 0; n < 5; n += 1) sent.unshift(await sendEvent(server, { event: name, contact_id: id }));
    const page = async (query: string) =>
      (await ask<List<OccurrenceRecord>>('GET', `/contacts/${id}/events?limit=2${query}`)).body;
    const first = await page('');
    expect([first.has_more, first.data.map((event) => event.id)]).toEqual([true, sent.slice(0, 2)]);
    const second = await page(`&after=${sent[1]!}`);
    expect([second.has_more, second.data.map((event) => event.id)]).toEqual([true, sent.slice(2, 4)]);
    const back = await page(`&before=${sent[4]!}`);
    expect([back.has_more, back.data.map((event) => event.id)]).toEqual([true, sent.slice(2, 4)]);
  });

  test('stays in the timeline when what it is defined as is deleted', async () => {
    const definition = await defineEvent(server);
    const { id } = await aContact();
    await sendEvent(server, { event: definition.name, contact_id: id });
    await ask('DELETE', `/events/${definition.id}`);
    expect(await timelineOf(server, id)).toMatchObject([{ event: definition.name }]);
    const again = await trySendEvent(server, { event: definition.name, contact_id: id });
    expect(again.body).toMatchObject({ status_code: 404, name: 'event_not_found' });
  });

  test('is refused for the first of what is wrong with it', async () => {
    const { name } = await anOrder();
    const foreign = await aContact({}, other);
    const known = await aContact();
    const refusals = [
      [{ event: 'nothing' }, 400, 'contact_required'],
      [{ event: 'nothing', contact_id: known.id, email: 'a@example.com' }, 400, 'contact_ambiguous'],
      [{ event: 'nothing', contact_id: unknownId }, 404, 'event_not_found'],
      [{ event: 'a\r\nb', contact_id: known.id }, 404, 'event_not_found'],
      [{ event: name, contact_id: unknownId, payload: {} }, 404, 'contact_not_found'],
      [{ event: name, contact_id: foreign.id, payload: {} }, 404, 'contact_not_found'],
      [{ event: name, contact_id: 'no id', payload: {} }, 404, 'contact_not_found'],
      [{ event: name, contact_id: known.id, payload: {} }, 422, 'schema_mismatch'],
    ] as const;
    for (const [event, status, error] of refusals) {
      const response = await trySendEvent<ErrorBody>(server, event);
      expect([response.status, response.body.name, event]).toEqual([status, error, event]);
    }
    expect(await timelineOf(server, known.id)).toEqual([]);
  });

  test('that does not match its schema is told all that does not, and makes no contact', async () => {
    const { name } = await defineEvent(server, {
      schema: {
        fields: [
          field('text', 'string'),
          field('amount', 'number'),
          field('count', 'integer'),
          field('flag', 'boolean'),
          field('day', 'date'),
          field('needed', 'string', true),
        ],
      },
    });
    const email = `${unique('mismatch')}@example.com`;
    const payload = { text: 1, amount: '1', count: 1.5, flag: 'true', day: '2026-02-30', needed: null };
    const { body } = await trySendEvent<ErrorBody>(server, { event: name, email, payload });
    expect(body).toMatchObject({ status_code: 422, name: 'schema_mismatch' });
    expect(body.message.split(', ')).toEqual([
      'payload.text must be a string',
      'payload.amount must be a number',
      'payload.count must be an integer between -(2^53 - 1) and 2^53 - 1',
      'payload.flag must be true or false',
      'payload.day must be a date such as 2026-11-21',
      'or a time with an offset or Z',
      'payload.needed is required',
    ]);
    expect(await contactsBy(`email=${email}`)).toEqual([]);
    const nulls = { text: null, amount: null, count: null, flag: null, day: null, needed: 'x' };
    await sendEvent(server, { event: name, email, payload: nulls });
    const edges = { day: '0001-01-01', count: -(2 ** 53 - 1), amount: 1e29, needed: '' };
    await sendEvent(server, { event: name, email, payload: edges });
    await sendEvent(server, { event: name, email, payload: { day: '9999-12-31', needed: 'x' } });
  });

  test('of two organizations share a transaction, and each its own definition of the name', async () => {
    const name = unique('shared.');
    const of = (type: string) => ({ name, schema: { fields: [field('value', type, true)] } });
    await defineEvent(server, of('number'));
    await defineEvent(server, of('string'), other);
    const sent = await Promise.all(
      Array.from({ length: 40 }, (_none, n) => {
        const [value, sender] = n % 2 === 0 ? [n, undefined] : [`${n}`, other];
        return sendEvent(server, { event: name, external_id: `${name} ${n}`, payload: { value } }, sender);
      }),
    );
    expect(new Set(sent).size).toBe(40);
    const wrong = await trySendEvent<ErrorBody>(server, {
      event: name,
      external_id: 'x',
      payload: { value: '7' },
    });
    expect(wrong.body.name).toBe('schema_mismatch');
  });

  test('in a currency that its conversions do not have is refused, until they are turned off', async () => {
    const { id: definitionId, name } = await defineEvent(server, {
      schema: { fields: [field('total', 'number'), field('currency', 'string')] },
      conversion: {
        enabled: true,
        value_field: 'total',
        currency_field: 'currency',
        currencies: ['EUR', 'USD'],
      },
    });
    const { id } = await aContact();
    const send = (payload: object) =>
      trySendEvent<ErrorBody>(server, { event: name, contact_id: id, payload });
    expect((await send({ total: 1, currency: 'EUR' })).status).toBe(202);
    expect((await send({ total: 1 })).status).toBe(202);
    const { body } = await send({ total: 1, currency: 'Eur' });
    expect(body).toMatchObject({
      name: 'schema_mismatch',
      message: 'payload.currency must be one of EUR, USD',
    });
    expect((await ask('PATCH', `/events/${definitionId}`, { conversion: { enabled: false } })).status).toBe(
      200,
    );
    expect((await send({ total: 1, currency: 'Eur' })).status).toBe(202);
  });

  test('happened thirty days ago at most, and in five minutes at most', async () => {
    const { name } = await defineEvent(server);
    const { id } = await aContact();
    const at = (offsetMs: number) => new Date(clock.nowMs() + offsetMs).toISOString();
    const dayMs = 86_400_000;
    const send = (occurred_at: unknown) =>
      trySendEvent<ErrorBody>(server, { event: name, contact_id: id, occurred_at });
    const early = at(-30 * dayMs + 60_000);
    expect((await send(early)).status).toBe(202);
    expect((await send(at(4 * 60_000))).status).toBe(202);
    for (const wrong of [
      at(-30 * dayMs - 1_000),
      at(6 * 60_000),
      '2026-11-21',
      '2026-11-21T10:00:00',
      7,
      '',
    ]) {
      const { body } = await send(wrong);
      expect([wrong, body.name]).toEqual([wrong, 'validation_error']);
      expect(body.message).toMatch(/^occurred_at must/);
    }
    expect((await timelineOf(server, id)).map(({ occurred_at }) => occurred_at)).toContain(early);
  });

  test.each([
    [
      'a payload of more than 32 kB',
      { payload: { text: 'ä'.repeat(16_384) } },
      /^payload must be at most 32768 bytes/,
    ],
    ['a payload that is a list', { payload: [] }, /^payload must be an object/],
    ['a NUL', { payload: { text: 'a\0b' } }, /must not contain NUL/],
    ['a lone surrogate', { payload: { deep: [{ text: '\ud800' }] } }, /unpaired surrogate/],
    ['an address that is none', { email: 'nobody' }, /^email must be/],
    ['a phone number that is none', { phone_number: '0170' }, /^phone_number must be/],
    ['an unknown field', { playload: {} }, /^playload is not a known field/],
  ])('with %s is refused', async (_what, more, message) => {
    const { name } = await defineEvent(server);
    const { body, status } = await trySendEvent<ErrorBody>(server, {
      event: name,
      external_id: 'x',
      ...more,
    });
    expect([status, body.name]).toEqual([422, 'validation_error']);
    expect(body.message).toMatch(message);
    expect(await contactsBy('external_id=x')).toEqual([]);
  });

  test('with a number of hundreds of digits is refused, and one at the edge is stored', async () => {
    const { name } = await defineEvent(server);
    const { id } = await aContact();
    const send = (number: string) =>
      trySendEvent<ErrorBody>(
        server,
        `{"event":"${name}","contact_id":"${id}","payload":{"list":[{"a":${number}}],"none":null}}`,
      );
    const { status, body } = await send('1e400');
    expect([status, body.message]).toEqual([
      422,
      'payload.list[0].a must be 0, or in size at least 1e-20 and below 1e+30',
    ]);
    expect((await send('-9.999999999999999e29')).status).toBe(202);
    expect((await send('1e-20')).status).toBe(202);
    expect((await timelineOf(server, id)).map(({ payload }) => payload)).toEqual([
      { list: [{ a: 1e-20 }], none: null },
      { list: [{ a: -9.999999999999999e29 }], none: null },
    ]);
  });

  test('of 32 kB, with fields of a hostile name and nested deeply, is stored as it is', async () => {
    const { name } = await defineEvent(server, { schema: { fields: [field('constructor', 'string')] } });
    const { id } = await aContact();
    // What every object has is not what the event brings.
    await sendEvent(server, { event: name, contact_id: id, payload: {} });
    let deep: unknown = 1;
    for (let level = 0; level < 25; level += 1) deep = { a: deep };
    const payload = { constructor: 'x', toString: 'y', deep, text: 'a'.repeat(32_500) };
    await sendEvent(server, { event: name, contact_id: id, payload });
    expect((await timelineOf(server, id))[0]?.payload).toEqual(payload);
  });

  test('with a key is stored once, and a key with another event is refused', async () => {
    const { name } = await defineEvent(server);
    const { id } = await aContact();
    const [event, key] = [{ event: name, contact_id: id }, unique('key')];
    const answers = await Promise.all([1, 2, 3].map(() => trySendEvent(server, event, { key })));
    const ids = answers.flatMap(({ status, body }) => (status === 202 ? [body.id] : []));
    expect(new Set(ids).size).toBe(1);
    const replayed = await trySendEvent(server, event, { key });
    expect([replayed.body, replayed.headers.get('idempotent-replayed')]).toEqual([{ id: ids[0] }, 'true']);
    const different = await trySendEvent(server, { ...event, payload: {} }, { key });
    expect(different.body).toMatchObject({ status_code: 409, name: 'invalid_idempotent_request' });
    expect(await timelineOf(server, id)).toHaveLength(1);
    // What was refused leaves the key free.
    const refusedKey = unique('key');
    expect(
      (await trySendEvent(server, { ...event, contact_id: unknownId }, { key: refusedKey })).status,
    ).toBe(404);
    expect((await trySendEvent(server, event, { key: refusedKey })).status).toBe(202);
  });
});

describe('a contact', () => {
  test('that nobody knows is made with the identifiers of the event, once for all that come at once', async () => {
    const { name } = await defineEvent(server);
    const email = `${unique('New')}@Example.com`;
    const ids = await Promise.all(
      Array.from({ length: 20 }, () =>
        sendEvent(server, { event: name, email, phone_number: '+14155550199' }),
      ),
    );
    const contacts = await contactsBy(`email=${email.toLowerCase()}`);
    expect(contacts).toMatchObject([{ email, phone_number: '+14155550199', external_id: null }]);
    const timeline = await timelineOf(server, contacts[0]!.id);
    expect(new Set(timeline.map(({ id }) => id))).toEqual(new Set(ids));
  });

  test('is found by its external id, then its address, then its number, and learns nothing by that', async () => {
    const { name } = await defineEvent(server);
    const [address, number] = [`${unique('found')}@example.com`, '+14155550101'];
    const byEmail = await aContact({ email: address });
    const byPhone = await aContact({ phone_number: number });
    const externalId = unique('unknown ');
    const reference = { external_id: externalId, email: address.toUpperCase(), phone_number: number };
    const id = await sendEvent(server, { event: name, ...reference });
    expect((await timelineOf(server, byEmail.id)).map((event) => event.id)).toEqual([id]);
    expect(await timelineOf(server, byPhone.id)).toEqual([]);
    expect(await contactsBy(`external_id=${encodeURIComponent(externalId)}`)).toEqual([]);
  });

  test('is the organization’s own, though another one has the same', async () => {
    const [{ name }, email] = [await defineEvent(server), `${unique('same')}@example.com`];
    await defineEvent(server, { name }, other);
    const foreign = await aContact({ email }, other);
    await sendEvent(server, { event: name, email });
    expect(await timelineOf(server, foreign.id, other)).toEqual([]);
    const [own] = await contactsBy(`email=${email}`);
    expect(await timelineOf(server, own!.id)).toHaveLength(1);
  });
});

test('what a deleted contact did is erased, more of it than one transaction takes, and an event that was on its way', async () => {
  const { name } = await defineEvent(server);
  const [gone, stays] = [await aContact(), await aContact()];
  for (let n = 0; n < 5; n += 1)
    await sendEvent(server, { event: name, contact_id: gone.id, payload: { n } });
  await sendEvent(server, { event: name, contact_id: stays.id });
  expect((await ask('DELETE', `/contacts/${gone.id}`)).status).toBe(200);
  const count = async () =>
    (await rowsOf(server, 'select id from events where contact_id = $1', [gone.id])).length;
  const at = () => new Date(clock.nowMs() + 1_000);
  const tools = { ...server.installation, channels: messageChannels, eventsMax: 2 };
  const counts = [await count()];
  while (await eraseNext(tools, at())) counts.push(await count());
  expect([...new Set(counts)]).toEqual([5, 3, 1, 0]);
  // Its transaction had found the contact before it was deleted.
  await rowsOf(
    server,
    `insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
     values ($1, $2, $3, 1, now(), '{}')`,
    [server.organizationId, gone.id, server.installation.newId()],
  );
  clock.putForward(61_000);
  for (let isDue = true; isDue;) isDue = await eraseNext(tools, at());
  expect([await count(), (await timelineOf(server, stays.id)).length]).toEqual([0, 1]);
});

describe('a batch', () => {
  const sendBatch = (events: unknown, headers: Record<string, string> = {}) =>
    server.request<BatchRecord & ErrorBody>('POST', '/v1/events/send/batch', { events }, headers);

  test('has a result for each of its events, and those that fit are stored', async () => {
    const { name } = await anOrder();
    const { id } = await aContact();
    const email = `${unique('batched')}@example.com`;
    const fits = { event: name, payload: { total: 1 } };
    const { status, body } = await sendBatch([
      { ...fits, contact_id: id },
      { ...fits, contact_id: unknownId },
      { ...fits, email },
      { ...fits, email: email.toUpperCase(), phone_number: '+14155550177' },
      { ...fits, phone_number: '+14155550177' },
      { event: name, contact_id: id },
      { event: name, payload: { total: 1 }, to: 'me' },
      'no event',
    ]);
    expect(status).toBe(202);
    const results = body.data.map((one) => ('id' in one ? 'stored' : one.error.name));
    expect(results).toEqual([
      'stored',
      'contact_not_found',
      'stored',
      'stored',
      'stored',
      'schema_mismatch',
      'validation_error',
      'validation_error',
    ]);
    expect(body.data.map(({ index }) => index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(await timelineOf(server, id)).toHaveLength(1);
    // The fourth fills the contact that the third makes, so that the fifth is of the same person.
    const [byEmail] = await contactsBy(`email=${email}`);
    expect(byEmail).toMatchObject({ email, phone_number: '+14155550177' });
    expect(await timelineOf(server, byEmail!.id)).toHaveLength(3);
  });

  test('of five hundred of some kilobytes, each of another contact, is stored whole, and once by its key', async () => {
    const { name } = await defineEvent(server);
    const [prefix, key] = [unique('many-'), unique('key')];
    const events = Array.from({ length: 500 }, (_none, n) => ({
      event: name,
      external_id: `${prefix} ${n}`,
      payload: { text: 'x'.repeat(2_000), n },
    }));
    const headers = { 'idempotency-key': key };
    const first = await sendBatch(events, headers);
    expect([first.status, first.body.data.length]).toEqual([202, 500]);
    const again = await sendBatch(events, headers);
    expect([again.text, again.headers.get('idempotent-replayed')]).toEqual([first.text, 'true']);
    const [stored] = await rowsOf<{ events: number; contacts: number }>(
      server,
      `select count(*)::integer as events, count(distinct e.contact_id)::integer as contacts
       from events e
       join contacts c on c.organization_id = e.organization_id and c.id = e.contact_id
       where e.organization_id = $1 and c.external_id like $2`,
      [server.organizationId, `${prefix} %`],
    );
    expect(stored).toEqual({ events: 500, contacts: 500 });
  });

  test.each([
    ['of nothing', [], 422, 'events must have at least 1 item'],
    ['of too many', Array.from({ length: 501 }, () => ({})), 422, 'events must have at most 500 items'],
    ['that is none', {}, 422, 'events must be an array'],
  ])('%s is refused', async (_what, events, status, message) => {
    expect((await sendBatch(events)).body).toEqual({
      status_code: status,
      name: 'validation_error',
      message,
    });
  });
});

test('events count towards a limit of their own, a batch as all of its events', async () => {
  const { name } = await defineEvent(server, {}, other);
  await updateOrganization(server.installation, other.organizationId, {
    requestsPerWindow: 1_000,
    eventsPerWindow: 4,
  });
  // Both limits are read with the key, which nodes keep for some seconds; and a window may just be over.
  clock.putForward(61_000);
  const event = { event: name, external_id: 'counted' };
  const batch = (length: number) =>
    server.request<ErrorBody>(
      'POST',
      '/v1/events/send/batch',
      { events: Array.from({ length }, () => event) },
      authorize(other),
    );
  const single = await trySendEvent(server, event, { sender: other });
  expect([
    single.status,
    single.headers.get('ratelimit-limit'),
    single.headers.get('ratelimit-remaining'),
  ]).toEqual([202, '4', '3']);
  const two = await batch(2);
  expect([two.status, two.headers.get('ratelimit-remaining')]).toEqual([202, '1']);
  const tooMany = await batch(3);
  expect(tooMany.body).toMatchObject({ status_code: 429, name: 'rate_limit_exceeded' });
  expect(tooMany.body.message).toMatch(/^The limit of 4 events in 60 seconds/);
  expect(Number(tooMany.headers.get('retry-after'))).toBeGreaterThan(0);
  expect((await trySendEvent(server, event, { sender: other })).status).toBe(429);
  const request = await ask('GET', '/events', undefined, other);
  expect([request.status, request.headers.get('ratelimit-limit')]).toEqual([200, '1000']);
  const [stored] = await rowsOf<{ count: number }>(
    server,
    `select count(*)::integer as count
     from events e
     join event_definitions d on d.organization_id = e.organization_id and d.number = e.definition_number
     where e.organization_id = $1 and d.name = $2`,
    [other.organizationId, name],
  );
  expect(stored).toEqual({ count: 3 });
});
