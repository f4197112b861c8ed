import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ worker: true, newId: createShuffledIds(systemClock) });
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

function aContact(name: string, more: object = {}): Promise<string> {
  return create('/v1/contacts', {
    email: `${name}.${names}@example.com`,
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
    html: '<p>Hello {{first_name}}</p>',
    list_ids: [listId],
    ...more,
  });
}

type Campaign = { status: string; failure_reason: string | null; stats: Record<string, unknown> };

async function read(id: string): Promise<Campaign> {
  return (await server.request<Campaign>('GET', `/v1/email/campaigns/${id}`)).body;
}

async function send(id: string, body: object = {}): Promise<void> {
  const response = await server.request('POST', `/v1/email/campaigns/${id}/send`, body);
  expect(response.text).toBe(JSON.stringify({ id }));
}

function inStatus(id: string, status: string): Promise<Campaign> {
  return eventually(
    () => read(id),
    (campaign) => campaign.status === status,
  );
}

function rows<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return server.installation.database.rows(unpreparedStatement<Row>(text), values);
}

async function sourceTo(name: string): Promise<string> {
  const found = await rows<{ source: Buffer }>('select source from sandbox_messages where recipient = $1', [
    `${name}.${names}@example.com`,
  ]);
  expect(found).toHaveLength(1);
  return found[0]?.source.toString() ?? '';
}

test('a campaign reaches everybody on its list, each with their own name, and counts them', async () => {
  await aContact('Ann');
  await aContact('Bob', { consent: { email: 'unsubscribed' } });
  await aContact('Cay', { email: `bounced+${names}@simulator.postillion.test` });
  await aContact('Dee', { first_name: null });
  const id = await aCampaign({ variables: { first_name: 'friend' } });
  await send(id);

  await inStatus(id, 'sent');
  const { stats } = await eventually(
    () => read(id),
    ({ stats: { delivered, bounced } }) => delivered === 2 && bounced === 1,
  );
  expect(stats).toMatchObject({
    audience: 3,
    excluded: { unsubscribed: 1, suppressed: 0, no_address: 0, duplicate: 0 },
    pending: 0,
    sent: 3,
    delivered: 2,
    bounced: 1,
    failed: 0,
  });
  expect(await sourceTo('Ann')).toContain('Subject: News for Ann');
  expect(await sourceTo('Dee')).toContain('Subject: News for friend');
});

test('a scheduled campaign is sent when its time has come', async () => {
  await aContact('Ann');
  const id = await aCampaign();
  await send(id, { scheduled_at: new Date(Date.now() + 60_000).toISOString() });
  expect(await read(id)).toMatchObject({ status: 'scheduled' });
  await rows("update campaigns set scheduled_at = now() - interval '1 second' where id = $1", [id]);
  await rows("select pg_notify('postillion_campaigns', '')");
  await inStatus(id, 'sent');
  await sourceTo('Ann');
});

describe('a scheduled campaign whose time came', () => {
  async function comeDue(id: string, ago: string): Promise<void> {
    await send(id, { scheduled_at: new Date(Date.now() + 60_000).toISOString() });
    await rows('update campaigns set scheduled_at = now() - $2::interval where id = $1', [id, ago]);
    await rows("select pg_notify('postillion_campaigns', '')");
  }

  test('more than an hour ago is paused, and sent once somebody resumes it', async () => {
    await aContact('Ann');
    const id = await aCampaign();
    await comeDue(id, '61 minutes');
    expect(await inStatus(id, 'paused')).toMatchObject({ pause_reason: 'schedule_missed' });
    await server.request('POST', `/v1/email/campaigns/${id}/resume`);
    await inStatus(id, 'sent');
  });

  test('when it was no longer ready has failed, says why, and lets go of its list', async () => {
    await aContact('Ann');
    const id = await aCampaign();
    await send(id, { scheduled_at: new Date(Date.now() + 60_000).toISOString() });
    const holds = () => rows('select held_id from holds where holder_id = $1', [id]);
    expect(await holds()).toHaveLength(1);
    await rows("update campaigns set content = '{}' where id = $1", [id]).catch(() => undefined);
    await rows(
      `update campaigns set status = 'scheduled', scheduled_at = now() - interval '1 minute' where id = $1`,
      [id],
    );
    await rows("select pg_notify('postillion_campaigns', '')");
    const { failure_reason: reason } = await inStatus(id, 'failed');
    expect(reason).toContain('from is required');
    expect(await holds()).toEqual([]);
  });
});

test('a contact that unsubscribes or is deleted while a campaign runs gets nothing more of it', async () => {
  const [ann, bob, cay] = [await aContact('Ann'), await aContact('Bob'), await aContact('Cay')];
  const dee = await aContact('Dee');
  const id = await aCampaign();
  await rows('update organizations set email_quota = 0');
  await send(id);
  await inStatus(id, 'paused');
  await server.request('PATCH', `/v1/contacts/${ann}`, { consent: { email: 'unsubscribed' } });
  await server.request('DELETE', `/v1/contacts/${bob}`);
  await rows('update organizations set email_quota = null');
  await rows("select pg_notify('postillion_campaigns', '')");
  await inStatus(id, 'sent');
  const fates = await rows<{ contact_id: string; drop_reason: string | null }>(
    `select contact_id, drop_reason from recipients r join campaigns c using (organization_id, message_id)
     where c.id = $1`,
    [id],
  );
  expect(new Map(fates.map((fate) => [fate.contact_id, fate.drop_reason]))).toEqual(
    new Map([
      [ann, 'unsubscribed'],
      [bob, 'contact_deleted'],
      [cay, null],
      [dee, null],
    ]),
  );
});
