/** Conversions: events that are credited to what their contact clicked, and what becomes of these credits. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { GroupRecord } from '../../src/events/conversion-record.ts';
import type { DefinitionRecord } from '../../src/events/schema.ts';
import { startCrediting } from '../../src/messages/conversions/crediting.ts';
import { messageChannels } from '../../src/roles/channels.ts';
import { eraseNext } from '../../src/messages/erasure/erasure.ts';
import type { List } from '../../src/platform/http/pagination.ts';
import { neighbourId } from '../support/neighbour.ts';
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
import { androidApp, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const browser = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0';
const dayMs = 86_400_000;

let server: TestServer;
let clock: ShiftedClock;
let other: Sender & { organizationId: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, publicUrl: 'https://mail.postillion.test' });
  other = await createSender(server.installation, 'other.example');
  await rowsOf(server, 'update domains set click_tracking = true');
});
afterAll(() => server.stop());

let definition: DefinitionRecord;
let address: string;
let contactId: string;
let made = 0;

/** An event that is worth something; `more` replaces parts of its definition. */
const anOrder = (conversion: object = {}, sender?: Sender) =>
  defineEvent(
    server,
    {
      schema: {
        fields: [
          { name: 'total', type: 'number' },
          { name: 'currency', type: 'string' },
        ],
      },
      conversion: { enabled: true, value_field: 'total', currency_field: 'currency', ...conversion },
    },
    sender,
  );

async function create(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body, authorize(sender));
  expect([response.status, response.text]).toEqual([201, expect.anything()]);
  return response.body.id;
}

beforeEach(async () => {
  made += 1;
  address = `ann${made}@example.com`;
  definition = await anOrder();
  contactId = await create('/contacts', { email: address });
});

/** Some seconds later. */
async function credited(): Promise<void> {
  clock.putForward(6_000);
  await eventually(
    () => rowsOf(server, 'select from pending_conversions'),
    ({ length }) => length === 0,
  );
}

async function groupsOf(groupedBy = 'campaign_id', of = definition, sender?: Sender): Promise<GroupRecord[]> {
  const path = `/v1/events/${of.id}/conversions?limit=100&group_by=${groupedBy}`;
  const { status, body } = await server.request<List<GroupRecord>>('GET', path, undefined, authorize(sender));
  expect([status, body.has_more]).toEqual([200, false]);
  return body.data;
}

type Total = [group: string | null | undefined, count: number, values?: Record<string, number>];

/** Each group by what it is of, with its count and its values by currency. */
async function totalsOf(
  groupedBy: 'campaign_id' | 'message_id' | 'category',
  of = definition,
  sender?: Sender,
) {
  const groups = await groupsOf(groupedBy, of, sender);
  return groups.map(({ [groupedBy]: group, count, values }): Total => [
    group,
    count,
    Object.fromEntries(values.map(({ currency, value }) => [String(currency), value])),
  ]);
}

const order = (more: object = {}, payload: object = { total: 49.9, currency: 'EUR' }, sender?: Sender) =>
  sendEvent(server, { event: definition.name, email: address, payload, ...more }, sender);

/** A campaign with a link that went to the contact, and where that link leads to. */
async function aCampaign(): Promise<{ id: string; messageId: string; link: string }> {
  const listId = await create('/lists', { name: `List ${(made += 1)}` });
  await server.request('POST', `/v1/lists/${listId}/contacts`, { contact_ids: [contactId] });
  const id = await create('/email/campaigns', {
    name: 'News',
    from: 'hello@postillion.test',
    from_name: 'Postillion',
    subject: 'News',
    html: '<a href="https://shop.example/">Shop</a>',
    list_ids: [listId],
  });
  const sent = await server.request('POST', `/v1/email/campaigns/${id}/send`, {});
  expect(sent.status).toBe(200);
  const [message] = await eventually(
    () =>
      rowsOf<{ id: string }>(
        server,
        `select m.id from messages m join recipients r on r.message_id = m.id
         where m.campaign_id = $1 and m.organization_id <> $2 and r.status = 'delivered'`,
        [id, neighbourId],
      ),
    ({ length }) => length === 1,
  );
  return { id, messageId: message!.id, link: await linkIn(message!.id) };
}

async function anEmail(more: object = {}): Promise<{ messageId: string; link: string }> {
  const messageId = await send(server, {
    to: [address],
    html: '<a href="https://shop.example/">Shop</a>',
    ...more,
  });
  await settled(server, messageId);
  return { messageId, link: await linkIn(messageId) };
}

async function linkIn(messageId: string): Promise<string> {
  const [copy] = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1',
    [messageId],
  );
  const source = copy!.source.toString().replaceAll('=\r\n', '').replaceAll('=3D', '=');
  // Too soon after the hand-off it would be a machine's.
  clock.putForward(5_000);
  return /https:\/\/mail\.postillion\.test(\/c\/[^"]+)"/.exec(source)![1]!;
}

/** As a person, or as a scanner does. Resolves when the click is written. */
async function click(
  { messageId, link }: { messageId: string; link: string },
  { byMachine = false } = {},
): Promise<void> {
  const method = byMachine ? 'HEAD' : 'GET';
  const response = await fetch(`${server.url}${link}`, {
    method,
    redirect: 'manual',
    headers: { 'user-agent': browser },
  });
  expect(response.status).toBe(302);
  clock.putForward(1_000);
  await eventually(
    () =>
      rowsOf(
        server,
        `select from recipients
         where message_id = $1 and ${byMachine ? 'machine_engaged_at' : 'clicked_at'} is not null`,
        [messageId],
      ),
    ({ length }) => length === 1,
  );
}

const clickedAt = async ({ messageId }: { messageId: string }) =>
  (
    await rowsOf<{ clicked_at: Date }>(server, 'select clicked_at from recipients where message_id = $1', [
      messageId,
    ])
  )[0]!.clicked_at.getTime();

const at = (ms: number) => ({ occurred_at: new Date(ms).toISOString() });

describe('an order', () => {
  test('is credited to the campaign that its contact clicked, once, and counted in its statistics', async () => {
    const campaign = await aCampaign();
    await click(campaign);
    const theirs = await defineEvent(
      server,
      { name: definition.name, schema: definition.schema, conversion: definition.conversion },
      other,
    );
    await order({}, { total: 100, currency: 'EUR' }, other);
    await order();
    await order({}, { total: 0.1, currency: 'EUR' });
    await order({}, { total: 20, currency: 'GBP' });
    await order({}, {});
    await credited();
    expect(await groupsOf()).toEqual([
      {
        id: campaign.id,
        campaign_id: campaign.id,
        count: 4,
        values: [
          { currency: 'EUR', value: 50 },
          { currency: 'GBP', value: 20 },
        ],
      },
    ]);
    expect(await totalsOf('message_id')).toEqual([[campaign.messageId, 4, { EUR: 50, GBP: 20 }]]);
    expect(await totalsOf('campaign_id', theirs, other)).toEqual([[null, 1, { EUR: 100 }]]);

    const again = await anOrder({ currency_field: null, currencies: ['EUR'] });
    await order({ event: again.name }, { total: 1 });
    await credited();
    const { body: shown } = await server.request<{ stats: object }>(
      'GET',
      `/v1/email/campaigns/${campaign.id}`,
    );
    const { body: listed } = await server.request<List<{ stats: object }>>(
      'GET',
      '/v1/email/campaigns?limit=2',
    );
    expect(shown.stats).toMatchObject({
      clicked: 1,
      conversions: 5,
      conversion_value: [
        { currency: 'EUR', value: 51 },
        { currency: 'GBP', value: 20 },
      ],
    });
    expect(listed.data[0]!.stats).toEqual(shown.stats);
  });

  test('is credited to the last message that was clicked, not to the last that was sent', async () => {
    const [first, second] = [await aCampaign(), await anEmail({ category: 'receipt' })];
    await click(second);
    await click(first);
    await order();
    await credited();
    expect(await totalsOf('campaign_id')).toEqual([[first.id, 1, { EUR: 49.9 }]]);
    expect(await totalsOf('category')).toEqual([[null, 1, { EUR: 49.9 }]]);
    // Before the second click, the other one was the last.
    await order(at((await clickedAt(first)) - 1));
    await credited();
    expect(await totalsOf('message_id')).toEqual([
      [second.messageId, 1, { EUR: 49.9 }],
      [first.messageId, 1, { EUR: 49.9 }],
    ]);
    expect(await totalsOf('category')).toEqual([
      ['receipt', 1, { EUR: 49.9 }],
      [null, 1, { EUR: 49.9 }],
    ]);
  });

  test('is credited to nothing before the click, after a week, and after what only a machine has clicked', async () => {
    const [clicked, scanned] = [await anEmail(), await anEmail()];
    await click(clicked);
    await click(scanned, { byMachine: true });
    const atMs = await clickedAt(clicked);
    await order(at(atMs - 1));
    await credited();
    expect(await totalsOf('message_id')).toEqual([[null, 1, { EUR: 49.9 }]]);
    await order(at(atMs));
    await rowsOf(server, 'update recipients set clicked_at = $2 where message_id = $1', [
      clicked.messageId,
      new Date(atMs - 7 * dayMs),
    ]);
    await order(at(atMs));
    await credited();
    expect(await totalsOf('message_id')).toEqual([
      [clicked.messageId, 2, { EUR: 99.8 }],
      [null, 1, { EUR: 49.9 }],
    ]);
    await order(at(atMs + 1));
    await credited();
    expect(await totalsOf('message_id')).toEqual([
      [clicked.messageId, 2, { EUR: 99.8 }],
      [null, 2, { EUR: 99.8 }],
    ]);
  });

  test('waits for a click that is written after it', async () => {
    const email = await anEmail();
    const response = await fetch(`${server.url}${email.link}`, {
      redirect: 'manual',
      headers: { 'user-agent': browser },
    });
    expect(response.status).toBe(302);
    await order();
    const waiting = await rowsOf<{ due_at: Date }>(server, 'select due_at from pending_conversions');
    expect(waiting.map(({ due_at: dueAt }) => dueAt.getTime() > clock.nowMs())).toEqual([true]);
    expect(await groupsOf()).toEqual([]);
    clock.putForward(1_000);
    await eventually(
      () => clickedAt(email).catch(() => null),
      (ms) => ms !== null,
    );
    await credited();
    expect(await totalsOf('message_id')).toEqual([[email.messageId, 1, { EUR: 49.9 }]]);
  });

  test('is credited to a push that was clicked on a device', async () => {
    await setUpPush(server);
    const { installation_id: installationId, device_secret: secret } = {
      ...androidApp(`app ${made}`),
      ...(await register(server, { ...androidApp(`app-${made}`), contact_id: contactId })),
    } as { installation_id: string; device_secret: string };
    const push = await server.request<{ id: string }>('POST', '/v1/push/send', {
      contact_id: contactId,
      title: 'Your parcel',
      body: 'It is here',
      category: 'parcel',
    });
    await eventually(
      () =>
        rowsOf(server, "select from recipients where message_id = $1 and status = 'sent'", [push.body.id]),
      ({ length }) => length === 1,
    );
    clock.putForward(1_000);
    const told = await server.request(
      'POST',
      '/v1/push/engagements',
      {
        installation_id: installationId,
        events: [
          {
            event_id: server.installation.newId(),
            message_id: push.body.id,
            type: 'clicked',
            occurred_at: new Date(clock.nowMs()).toISOString(),
          },
        ],
      },
      { authorization: `Bearer ${secret}` },
    );
    expect([told.status, told.body]).toMatchObject([202, { accepted: 1 }]);
    await order({ email: undefined, contact_id: contactId });
    await credited();
    expect(await totalsOf('message_id')).toEqual([[push.body.id, 1, { EUR: 49.9 }]]);
  });

  test('of whoever has the address now is not credited to a campaign that somebody else got there', async () => {
    const campaign = await aCampaign();
    await click(campaign);
    await server.request('PATCH', `/v1/contacts/${contactId}`, { email: `moved.${address}` });
    await order();
    await credited();
    expect(await totalsOf('campaign_id')).toEqual([[null, 1, { EUR: 49.9 }]]);
  });
});

describe('a value', () => {
  test.each([
    ['in no currency', { currency_field: null }, { total: 5, currency: 'EUR' }, { null: 5 }],
    ['in the only one', { currency_field: null, currencies: ['CHF'] }, { total: 5 }, { CHF: 5 }],
    ['in the only one, left out', { currencies: ['CHF'] }, { total: 5 }, { CHF: 5 }],
    ['in one of two, left out', { currencies: ['CHF', 'EUR'] }, { total: 5 }, { null: 5 }],
    ['in small letters', {}, { total: 5, currency: 'eur' }, { EUR: 5 }],
    ['in a currency that there is not', {}, { total: 5, currency: 'Taler' }, { null: 5 }],
    ['that is huge', {}, { total: 9e29, currency: 'EUR' }, { EUR: 9e29 }],
    ['that is tiny', {}, { total: 1e-20, currency: 'EUR' }, { EUR: 1e-20 }],
    ['that is negative', {}, { total: -5.5, currency: 'EUR' }, { EUR: -5.5 }],
    ['of nothing', {}, { total: 0, currency: 'EUR' }, { EUR: 0 }],
    ['that is not there', {}, { total: null, currency: 'EUR' }, {}],
  ])('%s is summed as it is', async (_what, conversion, payload, values) => {
    const of = await anOrder(conversion);
    await order({ event: of.name }, payload);
    await credited();
    expect(await totalsOf('campaign_id', of)).toEqual([[null, 1, values]]);
  });

  test('has sums that lose no cent', async () => {
    for (const total of [1e15, 0.01, 0.02]) await order({}, { total, currency: 'EUR' });
    for (const total of [9e29, 9e29]) await order({}, { total, currency: 'USD' });
    await credited();
    for (const total of [-1e15, 1]) await order({}, { total, currency: 'EUR' });
    await credited();
    expect(await totalsOf('campaign_id')).toEqual([[null, 7, { EUR: 1.03, USD: 1.8e30 }]]);
  });
});

test('an event that is off converts nothing, and what was credited before stays', async () => {
  const campaign = await aCampaign();
  await click(campaign);
  await order();
  await credited();
  await server.request('PATCH', `/v1/events/${definition.id}`, { conversion: { enabled: false } });
  await order();
  await credited();
  expect(await totalsOf('campaign_id')).toEqual([[campaign.id, 1, { EUR: 49.9 }]]);
  await server.request('DELETE', `/v1/events/${definition.id}`);
  const { body } = await server.request('GET', `/v1/email/campaigns/${campaign.id}`);
  expect(body).toMatchObject({
    stats: { conversions: 1, conversion_value: [{ currency: 'EUR', value: 49.9 }] },
  });
  const gone = await server.request('GET', `/v1/events/${definition.id}/conversions`);
  expect(gone.status).toBe(404);
});

test('a contact that is deleted leaves its conversions, and nothing that says whose they were', async () => {
  const campaign = await aCampaign();
  await click(campaign);
  await order();
  await credited();
  await order();
  await server.request('DELETE', `/v1/contacts/${contactId}`);
  await credited();
  const { installation } = server;
  const later = new Date(clock.nowMs() + 3_600_000);
  for (let round = 0; await eraseNext({ ...installation, channels: messageChannels }, later); round += 1)
    expect(round).toBeLessThan(10);
  expect(await totalsOf('campaign_id')).toEqual([
    [campaign.id, 1, { EUR: 49.9 }],
    [null, 1, { EUR: 49.9 }],
  ]);
  const ids = await rowsOf<{ id: string }>(
    server,
    `select e.id from conversions v join events e on e.organization_id = v.organization_id and e.id = v.id
     where v.campaign_id = $1`,
    [campaign.id],
  );
  expect(ids).toEqual([]);
});

test('five hundred at once are each counted once by two nodes, although transactions fail', async () => {
  const secondNode = startCrediting({ ...server.installation, channels: messageChannels });
  const email = await anEmail();
  await click(email);
  await rowsOf(
    server,
    `create function refuse() returns trigger language plpgsql as $$ begin
       if new.value = 250 then raise exception 'refused'; end if;
       return new;
     end $$`,
  );
  await rowsOf(
    server,
    `create trigger refusing before insert on conversions for each row execute function refuse()`,
  );
  const events = Array.from({ length: 500 }, (_none, index) => ({
    event: definition.name,
    email: address,
    payload: { total: index + 1, currency: 'EUR' },
  }));
  const { status } = await server.request('POST', '/v1/events/send/batch', { events });
  expect(status).toBe(202);
  clock.putForward(6_000);
  const left = () =>
    rowsOf<{ value: number }>(server, 'select value from pending_conversions where organization_id = $1', [
      server.organizationId,
    ]);
  expect(await eventually(left, ({ length }) => length <= 1)).toEqual([{ value: 250 }]);
  const sum = (500 * 501) / 2;
  expect(await totalsOf('message_id')).toEqual([[email.messageId, 499, { EUR: sum - 250 }]]);
  await rowsOf(server, 'drop function refuse() cascade');
  // The longest pause after failures: both nodes may have tried it by then.
  clock.putForward(3_600_000);
  await credited();
  expect(await totalsOf('message_id')).toEqual([[email.messageId, 500, { EUR: sum }]]);
  await secondNode.stop();
});

test('groups are listed page by page, to the last', async () => {
  for (let category = 0; category < 5; category += 1) {
    const email = await anEmail({ category: `category ${category}` });
    await click(email);
    await order();
  }
  await credited();
  await order({ email: `nobody.${address}` });
  await credited();
  for (const groupedBy of ['category', 'message_id'] as const) {
    const all = await groupsOf(groupedBy);
    expect(all).toHaveLength(6);
    expect(all.at(-1)).toMatchObject({ [groupedBy]: null, count: 1 });
    const path = `/v1/events/${definition.id}/conversions?limit=2&group_by=${groupedBy}`;
    const walked: GroupRecord[] = [];
    let after = '';
    for (let hasMore = true; hasMore;) {
      const { body } = await server.request<List<GroupRecord>>('GET', `${path}${after}`);
      walked.push(...body.data);
      after = `&after=${body.data.at(-1)!.id}`;
      hasMore = body.has_more;
      expect(walked.length).toBeLessThanOrEqual(6);
    }
    expect(walked).toEqual(all);
    const back = await server.request<List<GroupRecord>>('GET', `${path}&before=${all[3]!.id}`);
    expect(back.body).toEqual({ object: 'list', has_more: true, data: all.slice(1, 3) });
  }
});

test('a list with nothing for group_by is by campaign, as one without it', async () => {
  const campaign = await aCampaign();
  await click(campaign);
  await order();
  await credited();
  const path = `/v1/events/${definition.id}/conversions`;
  for (const query of ['', '?group_by=']) {
    const { status, body } = await server.request<List<GroupRecord>>('GET', `${path}${query}`);
    expect([status, body.data]).toMatchObject([200, [{ campaign_id: campaign.id, count: 1 }]]);
  }
});

test.each(['group_by=contact_id', 'after=yesterday', 'limit=0', 'from=2026-11-01'])(
  'a list by %s is refused',
  async (query) => {
    const { status } = await server.request('GET', `/v1/events/${definition.id}/conversions?${query}`);
    expect(status).toBe(422);
  },
);
