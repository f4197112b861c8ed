/** What can be asked of a campaign: who got it, why a contact did not, and how it would look. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ worker: true });
});
afterAll(() => server.stop());

let listId: string;
let names = 0;

beforeEach(async () => {
  names += 1;
  listId = await create('/v1/lists', { name: `List ${names}` });
});

async function create(path: string, body: object): Promise<string> {
  const response = await server.request<{ id: string }>('POST', path, body);
  if (response.status !== 201) throw new Error(response.text);
  return response.body.id;
}

function addressOf(name: string): string {
  return `${name.toLowerCase()}.${names}@example.com`;
}

function aContact(name: string, more: object = {}): Promise<string> {
  return create('/v1/contacts', {
    email: addressOf(name),
    first_name: name,
    list_ids: [listId],
    ...more,
  });
}

function aCampaign(more: object = {}): Promise<string> {
  return create('/v1/email/campaigns', {
    name: 'News',
    from: 'hello@postillion.test',
    from_name: 'Postillion',
    subject: 'News for {{first_name}}',
    html: '<p>Hello {{first_name}}, <a href="https://shop.example/a">look</a> or <a href="{{unsubscribe_url}}">leave</a></p>',
    list_ids: [listId],
    ...more,
  });
}

function rows<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return server.installation.database.rows(unpreparedStatement<Row>(text), values);
}

async function wakeWorkers(): Promise<void> {
  await rows("select pg_notify('postillion_campaigns', '')");
}

async function send(id: string): Promise<void> {
  const { text } = await server.request('POST', `/v1/email/campaigns/${id}/send`, {});
  expect(text).toBe(JSON.stringify({ id }));
}

async function inStatus(id: string, status: string): Promise<void> {
  await eventually(
    () => server.request<{ status: string }>('GET', `/v1/email/campaigns/${id}`),
    ({ body }) => body.status === status,
  );
}

type Recipient = {
  contact_id: string;
  email: string | null;
  status: string;
  status_at: string;
  drop_reason: string | null;
};

async function list(id: string, query = ''): Promise<Recipient[]> {
  const { status, body } = await server.request<{ data: Recipient[] }>(
    'GET',
    `/v1/email/campaigns/${id}/recipients?${query}`,
  );
  expect(status).toBe(200);
  return body.data;
}

type Explanation = { outcome: string; reason: string; steps: { at: string; text: string }[] };

async function explain(id: string, contactId: string): Promise<Explanation> {
  const path = `/v1/email/campaigns/${id}/recipients/${contactId}`;
  const { status, body } = await server.request<Explanation>('GET', path);
  expect(status).toBe(200);
  return body;
}

/** Sends without any quota left, which pauses the campaign. */
async function sendWithoutQuota(id: string): Promise<void> {
  await rows('update organizations set email_quota = 0');
  await send(id);
  await inStatus(id, 'paused');
}

async function lift(): Promise<void> {
  await rows('update organizations set email_quota = null');
  await wakeWorkers();
}

/** A campaign as it is half-way: rows and counts of recipients with these statuses, in the order of their contacts. */
async function makeSent(fates: readonly (keyof typeof columnsOf)[]): Promise<string> {
  const id = await aCampaign();
  await rows(
    `insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
     values ($1, $2, 'email', 'campaign', 'a@b.example', '{}', $3, now(), now())`,
    [server.organizationId, id, fates.length],
  );
  await rows(
    `update campaigns
     set status = 'sent', message_id = id, queued_at = now(), frozen_at = now(), audience = $2, expanded = $2
     where id = $1`,
    [id, fates.length],
  );
  const columns = fates.map((fate) => columnsOf[fate]);
  await rows(
    `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at,
       status, drop_reason, uncertain)
     select $1, $2, position - 1, 'to', 'c' || position || '@b.example', 'c' || position || '@b.example',
       ('0198c0de-0000-7000-8000-' || lpad(position::text, 12, '0'))::uuid, now(), status, drop_reason, uncertain
     from unnest($3::text[], $4::text[], $5::boolean[]) with ordinality
       as fate (status, drop_reason, uncertain, position)`,
    [
      server.organizationId,
      id,
      columns.map(({ status }) => status),
      columns.map(({ dropReason }) => dropReason),
      columns.map(({ uncertain }) => uncertain),
    ],
  );
  await recount(id, fates.length);
  return id;
}

/** Waits until the workers have counted all of them. */
async function recount(id: string, recipients: number): Promise<void> {
  const { newId } = server.installation;
  for (let slice = 0; slice < recipients / 1_000; slice += 1)
    await rows('insert into recipient_changes values ($1, $2, $3, array[$4::integer])', [
      server.organizationId,
      newId(),
      id,
      slice,
    ]);
  await wakeWorkers();
  await eventually(
    () => rows('select from recipient_changes where message_id = $1', [id]),
    (left) => left.length === 0,
  );
}

const plain = { status: 'sent', dropReason: null, uncertain: false };
const columnsOf = {
  pending: plain,
  dropped: { ...plain, dropReason: 'unsubscribed' },
  sent: { ...plain, uncertain: true },
  delayed: { ...plain, status: 'delayed' },
  delivered: { ...plain, status: 'delivered' },
  opened: { ...plain, status: 'opened' },
  clicked: { ...plain, status: 'clicked' },
  bounced: { ...plain, status: 'bounced' },
  failed: { ...plain, status: 'failed' },
  complained: { ...plain, status: 'complained' },
  unsubscribed: { ...plain, status: 'unsubscribed' },
} as const;

const fates = Object.keys(columnsOf) as (keyof typeof columnsOf)[];

describe('the recipients of a campaign', () => {
  test('are listed by the status that they are shown with, wherever in the campaign they stand', async () => {
    // Most are delivered; every status has one in the first thousand and one in the third, and `opened` many more.
    const made = Array.from({ length: 2_500 }, (_, ordinal) => {
      const rare = fates[ordinal % 1_000];
      if (rare !== undefined && Math.floor(ordinal / 1_000) !== 1) return rare;
      return ordinal % 10 === 0 ? 'opened' : 'delivered';
    });
    const id = await makeSent(made);
    for (const status of fates) {
      const expected = made.flatMap((fate, ordinal) => (fate === status ? [ordinal] : [])).reverse();
      const found = await page(id, status, 'after', 100, 2);
      expect([status, found]).toEqual([status, expected.slice(0, 200)]);
      const back = await page(id, status, 'before', 100, 2);
      expect([status, back]).toEqual([status, expected.slice(-200).reverse()]);
    }
    expect(await list(id, 'status=cancelled')).toEqual([]);
  });

  test('that stand side by side are on pages side by side', async () => {
    const id = await makeSent(['bounced', 'bounced', 'bounced', 'delivered']);
    expect(await page(id, 'bounced', 'after', 1, 4)).toEqual([2, 1, 0]);
    expect(await page(id, 'bounced', 'before', 1, 4)).toEqual([0, 1, 2]);
  });

  /** Ordinals of so many pages, walked from one end. */
  async function page(
    id: string,
    status: string,
    direction: 'after' | 'before',
    limit: number,
    pages: number,
  ): Promise<number[]> {
    let cursor = direction === 'after' ? '' : '&before=0198c0de-0000-7000-8000-000000000000';
    const found: string[] = [];
    for (let turn = 0; turn < pages; turn += 1) {
      const data = await list(id, `status=${status}&limit=${limit}${cursor}`);
      const ids = data.map(({ contact_id: contactId }) => contactId);
      if (ids.length === 0) break;
      expect(data.every((recipient) => recipient.status === status)).toBe(true);
      const onward = direction === 'after' ? ids : ids.reverse();
      found.push(...onward);
      cursor = `&${direction}=${onward.at(-1)}`;
    }
    return found.map((contactId) => Number(contactId.slice(-12)) - 1);
  }

  test('whom a cancelled campaign did not reach are cancelled, and neither pending nor delayed', async () => {
    const id = await makeSent(['delivered', 'pending', 'delayed', 'sent']);
    const at = '2026-01-02T03:04:05.678Z';
    await rows("update campaigns set status = 'cancelled', cancelled_at = $2 where id = $1", [id, at]);
    const statuses = (await list(id)).map(({ status }) => status);
    expect(statuses).toEqual(['sent', 'cancelled', 'cancelled', 'delivered']);
    expect((await list(id, 'status=cancelled')).map(({ status_at }) => status_at)).toEqual([at, at]);
    expect(await list(id, 'status=pending')).toEqual([]);
    expect(await list(id, 'status=delayed')).toEqual([]);
  });

  test('are there as soon as the audience is frozen, before any of them has a row', async () => {
    const ids = [await aContact('Ann'), await aContact('Bob'), await aContact('Cay')];
    const id = await makeSent([]);
    // The workers leave a campaign with this pause reason alone.
    await rows(
      "update campaigns set audience = 3, status = 'paused', pause_reason = 'schedule_missed' where id = $1",
      [id],
    );
    await rows('insert into campaign_slices values ($1, $2, 0, $3)', [
      server.organizationId,
      id,
      ids.slice(0, 2),
    ]);
    await rows('insert into campaign_slices values ($1, $2, 1, $3)', [
      server.organizationId,
      id,
      ids.slice(2),
    ]);
    const newestFirst = [...ids].reverse();
    const idsOf = (found: Recipient[]) => found.map(({ contact_id: contactId }) => contactId);
    expect(idsOf(await list(id))).toEqual(newestFirst);
    expect(idsOf(await list(id, 'status=pending&limit=2'))).toEqual(newestFirst.slice(0, 2));
    expect(idsOf(await list(id, `after=${ids[2]}`))).toEqual(newestFirst.slice(1));
    expect(idsOf(await list(id, `before=${ids[0]}&limit=1`))).toEqual([ids[1]]);
    expect(idsOf(await list(id, 'status=delivered'))).toEqual([]);
    expect((await list(id))[0]).toMatchObject({ email: addressOf('Cay'), status: 'pending' });
    expect(await explain(id, ids[2]!)).toMatchObject({ outcome: 'pending' });
  });

  test('of a draft are none', async () => {
    expect(await list(await aCampaign())).toEqual([]);
  });
});

describe('why a contact got a campaign, or did not,', () => {
  test('is explained for one who got it, and for those whom the freezing left out', async () => {
    const [ann, bob, cay] = [
      await aContact('Ann'),
      await aContact('Bob', { consent: { email: 'unsubscribed' } }),
      await aContact('Cay'),
    ];
    const dee = await aContact('Dee', { list_ids: [] });
    const eve = await aContact('Eve', { email: null, external_id: `eve ${names}` });
    const tagId = await create('/v1/tags', { name: `VIP ${names}` });
    const fay = await aContact('Fay', { tag_ids: [tagId] });
    const { database } = server.installation;
    await addSuppressions(database, server.installation, 'email', [
      { organizationId: server.organizationId, address: addressOf('Cay'), reason: 'complaint' },
    ]);
    const id = await aCampaign({ exclude_tag_ids: [tagId] });
    const foretold = await explain(id, ann);
    expect(foretold).toMatchObject({
      outcome: 'pending',
      reason: expect.stringContaining('is a draft') as string,
    });

    await send(id);
    await inStatus(id, 'sent');
    const gus = await aContact('Gus');
    const told = await Promise.all(
      [ann, bob, cay, dee, eve, fay, gus].map((contact) => explain(id, contact)),
    );
    const reason = (part: string) => expect.stringContaining(part) as string;
    expect(told).toMatchObject([
      { outcome: 'delivered', reason: reason(`Is in the list “List ${names}”. Was handed off on 2`) },
      { outcome: 'excluded', reason: reason('is unsubscribed from email') },
      { outcome: 'excluded', reason: reason('the email address has been suppressed since 2') },
      { outcome: 'not_in_audience', reason: reason('Is in none of the lists, tags and segments') },
      { outcome: 'excluded', reason: reason('has no email address') },
      { outcome: 'excluded', reason: reason(`is in the excluded tag “VIP ${names}”`) },
      { outcome: 'not_in_audience', reason: reason('after the audience was frozen') },
    ]);
    expect(told[0]?.steps.map(({ text }) => text)).toEqual([
      'The audience was frozen, with this contact in it.',
      'Was handed off.',
      'The next mail server took it.',
    ]);
  });

  test('is explained by the part of a large audience in which the contact would have been', async () => {
    const ann = await aContact('Ann');
    const suppress = (name: string) =>
      addSuppressions(server.installation.database, server.installation, 'email', [
        { organizationId: server.organizationId, address: addressOf(name), reason: 'complaint' },
      ]);
    const [bob, cay] = [await aContact('Bob', { consent: { email: 'unsubscribed' } }), await aContact('Cay')];
    await suppress('Ann');
    await suppress('Cay');
    const id = await makeSent([]);
    await rows(
      `update campaigns
       set frozen_at = (select created_at from contacts where id = $2), first_frozen_through = $2,
         rest_frozen_at = now() + interval '1 minute'
       where id = $1`,
      [id, ann],
    );
    const dan = await aContact('Dan');
    await rows(`update contacts set created_at = now() + interval '2 minutes' where id = $1`, [dan]);
    const reason = (part: string) => expect.stringContaining(part) as string;
    expect(await Promise.all([ann, bob, cay, dan].map((contact) => explain(id, contact)))).toMatchObject([
      { outcome: 'not_in_audience', reason: reason('Was not in the audience when it was frozen') },
      { outcome: 'excluded', reason: reason('is unsubscribed from email') },
      { outcome: 'excluded', reason: reason('the email address has been suppressed since 2') },
      { outcome: 'not_in_audience', reason: reason('after the audience was frozen') },
    ]);
  });

  test('is foretold where the part of the audience was not frozen in which the contact would have been', async () => {
    const [ann, bob] = [await aContact('Ann'), await aContact('Bob')];
    const id = await makeSent([]);
    await rows(
      `update campaigns
       set status = 'cancelled', cancelled_at = now(), frozen_through = $2, first_frozen_through = $2
       where id = $1`,
      [id, ann],
    );
    expect(await explain(id, bob)).toMatchObject({
      outcome: 'cancelled',
      reason: expect.stringContaining('before this contact could be chosen') as string,
    });
    expect((await explain(id, ann)).outcome).toBe('not_in_audience');
  });

  test('is explained for one who waits, one who left meanwhile, and one who was deleted', async () => {
    const [ann, bob, cay] = [await aContact('Ann'), await aContact('Bob'), await aContact('Cay')];
    const id = await aCampaign();
    await sendWithoutQuota(id);
    expect((await explain(id, cay)).reason).toContain('2 are before it. The campaign is paused');
    await server.request('PATCH', `/v1/contacts/${ann}`, { consent: { email: 'unsubscribed' } });
    await server.request('DELETE', `/v1/contacts/${bob}`);
    await lift();
    await inStatus(id, 'sent');
    const reason = (part: string) => expect.stringContaining(part) as string;
    expect(await explain(id, ann)).toMatchObject({
      outcome: 'dropped',
      reason: reason('Unsubscribed from email after'),
    });
    expect(await explain(id, bob)).toMatchObject({
      outcome: 'dropped',
      reason: reason('The contact was deleted'),
    });
    const [, deleted] = await list(id);
    expect(deleted).toMatchObject({ contact_id: bob, status: 'dropped', drop_reason: 'contact_deleted' });
  });

  test('is not explained for an unknown contact or campaign', async () => {
    const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
    const [contact, campaign] = [await aContact('Ann'), await aCampaign()];
    for (const path of [
      `${campaign}/recipients/${unknownId}`,
      `${unknownId}/recipients/${contact}`,
      `${unknownId}/recipients`,
    ]) {
      expect((await server.request('GET', `/v1/email/campaigns/${path}`)).status).toBe(404);
    }
  });
});

type Preview = Record<string, unknown> & { html: string; size_bytes: number; warnings: string[] };

async function preview(id: string, body?: object): Promise<Preview> {
  const response = await server.request<Preview>('POST', `/v1/email/campaigns/${id}/preview`, body);
  expect(response.status).toBe(200);
  return response.body;
}

describe('a preview', () => {
  test('counts who would get the campaign, and shows the copy of the first of them', async () => {
    const ann = await aContact('Ann');
    await aContact('Bob', { consent: { email: 'unsubscribed' } });
    const dee = await aContact('Dee', { first_name: null });
    const id = await aCampaign();
    const shown = await preview(id);
    expect(shown).toMatchObject({
      ready: true,
      issues: [],
      audience: 2,
      excluded: { unsubscribed: 1, suppressed: 0, no_address: 0, duplicate: 0 },
      candidates: 3,
      missing_variables: [{ name: 'first_name', contacts: 1 }],
      sample_contact_id: ann,
      subject: 'News for Ann',
      text: expect.stringContaining('Hello Ann') as string,
      links: ['https://shop.example/a'],
      warnings: [],
    });
    expect(shown.size_bytes).toBeGreaterThan(shown.html.length);
    expect(await preview(id, { contact_id: dee })).toMatchObject({ subject: 'News for {{first_name}}' });
    expect(await list(id)).toEqual([]);
  });

  test('of what is not ready says what is missing', async () => {
    await aContact('Ann');
    const id = await aCampaign({ html: null, subject: null });
    expect(await preview(id)).toMatchObject({
      ready: false,
      issues: ['subject is required', 'html, text or template_id is required'],
      audience: 1,
      missing_variables: null,
      html: null,
    });
  });

  test('counts a variable that no contact has a value for, and none that has a default', async () => {
    await aContact('Ann');
    const html = '<p>{{first_name}} {{coupon}} {{shop}}</p>';
    const id = await aCampaign({ html, subject: 'Hello', variables: { shop: 'Here', first_name: 'you' } });
    const shown = await preview(id);
    expect(shown.missing_variables).toEqual([{ name: 'coupon', contacts: 1 }]);
    expect(shown.html).toBe('<p>Ann {{coupon}} Here</p>');
    const sent = await server.request('POST', `/v1/email/campaigns/${id}/test`, { to: ['me@example.com'] });
    expect([sent.status, sent.headers.get('postillion-missing-variables')]).toEqual([202, 'coupon']);
  });

  test('names a variable that no contact can have a value for, even while the audience is empty', async () => {
    const id = await aCampaign({ html: '<p>{{first_name}} {{coupon}}</p>' });
    expect(await preview(id)).toMatchObject({
      audience: 0,
      missing_variables: [{ name: 'coupon', contacts: 0 }],
    });
  });

  test('is refused while another one of the organization counts', async () => {
    const id = await aCampaign();
    const { database, organizationId } = { ...server.installation, ...server };
    await database.transaction(async (transaction) => {
      await transaction.rows(
        unpreparedStatement(`select pg_advisory_xact_lock(hashtextextended('segment preview of ' || $1, 0))`),
        [organizationId],
      );
      const { status } = await server.request('POST', `/v1/email/campaigns/${id}/preview`);
      expect(status).toBe(503);
    });
  });
});

describe('a test', () => {
  test('goes to each address by itself, with the values of the sample, and is not counted', async () => {
    await aContact('Ann');
    const bob = await aContact('Bob');
    const id = await aCampaign();
    const to = [`one.${names}@example.com`, `two.${names}@example.com`];
    const sent = await server.request<{ ids: string[] }>('POST', `/v1/email/campaigns/${id}/test`, {
      to,
      contact_id: bob,
    });
    expect(sent.status).toBe(202);
    expect(sent.body.ids).toHaveLength(2);
    for (const [index, messageId] of sent.body.ids.entries()) {
      const { body } = await server.request('GET', `/v1/email/${messageId}`);
      expect(body).toMatchObject({ subject: 'News for Bob', to: [{ email: to[index] }], cc: [], bcc: [] });
    }
    const { body: campaign } = await server.request('GET', `/v1/email/campaigns/${id}`);
    expect(campaign).toMatchObject({ status: 'draft', stats: { audience: 0 } });
  });

  test('is refused for a campaign that is not ready, for an unknown contact and for too many addresses', async () => {
    const ask = (id: string, body: object) => server.request('POST', `/v1/email/campaigns/${id}/test`, body);
    const to = ['one@example.com'];
    expect((await ask(await aCampaign({ subject: null }), { to })).status).toBe(400);
    const id = await aCampaign();
    expect((await ask(id, { to, contact_id: listId })).status).toBe(422);
    expect((await ask(id, { to: [] })).status).toBe(422);
    expect((await ask(id, { to: Array.from({ length: 11 }, () => to[0]) })).status).toBe(422);
  });

  test('is refused while the organization is suspended, or has used up its quota', async () => {
    const id = await aCampaign();
    const ask = () =>
      server.request<{ name: string }>('POST', `/v1/email/campaigns/${id}/test`, { to: ['one@example.com'] });
    await rows('update organizations set email_quota = 0');
    expect((await ask()).body.name).toBe('monthly_quota_exceeded');
    await rows("update organizations set email_quota = null, suspended_channels = '{email}'");
    expect((await ask()).body.name).toBe('sending_suspended');
    await rows("update organizations set suspended_channels = '{}'");
  });
});
