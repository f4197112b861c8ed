/**
 * Messages grow old. They are hidden when the time of their plan is over, what they say goes, and whole partitions go once
 * nobody keeps them. What people have in their hands outlives them: links to unsubscribe, and the statistics of campaigns.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { campaignsUnderWay } from '../../src/campaigns/campaigns.ts';
import { emailChannel } from '../../src/email/email.ts';
import { removeOldMessages } from '../../src/messages/messages.ts';
import { applyReports } from '../../src/messages/feedback/feedback.ts';
import { readRecipientToken } from '../../src/messages/recipients/token.ts';
import { countChangedRecipients } from '../../src/messages/recipients/counts.ts';
import { now } from '../../src/platform/clock.ts';
import { messageChannels } from '../../src/roles/channels.ts';
import {
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  send,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { neighbourId } from '../support/neighbour.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, anSms } from '../support/sms-journey.ts';

const dayMs = 86_400_000;
const scheduledMs = 1_800_000;
/** More than there are in a batch, or on a page. */
const many = 220;

type Sender = { organizationId: string; key: string; domain: string };

let server: TestServer;
let clock: ShiftedClock;
/** Keeps its messages as long as the installation does. */
let own: Sender;
/** Keeps them for 30 days, and what they say for seven. */
let short: Sender;
/** Like the first; its campaign is paused. */
let paused: Sender;
let tables: string[];

type Campaign = { id: string; stats: Record<string, unknown>; status: string };
const campaigns = new Map<Sender, string>();
const mails = new Map<Sender, string[]>();
const texts = new Map<Sender, string>();
const stats = new Map<Sender, unknown>();
type Links = { reader: string; click: string; unsubscribe: string };
const links = new Map<Sender, Links[]>();

const kept = { messages: 90, content: 60 };
const never = new AbortController().signal;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({
    worker: true,
    clock,
    keptDays: kept,
    publicUrl: 'https://mail.postillion.test',
  });
  own = { organizationId: server.organizationId, key: server.key, domain: 'postillion.test' };
  short = { ...(await createSender(server.installation, 'short.test')), domain: 'short.test' };
  paused = { ...(await createSender(server.installation, 'paused.test')), domain: 'paused.test' };
  await rowsOf(server, 'update domains set click_tracking = true');
  await plan(short, { messagesKeptDays: 30, contentKeptDays: 7 });

  for (const sender of [own, short]) {
    await addApprovedSender(server, 'Acme', sender.organizationId);
    const { id } = await ask<{ id: string }>(sender, 'POST', '/v1/sms/send', anSms({ body: 'Of old' }));
    texts.set(sender, id);
    const ids = await Promise.all(
      Array.from({ length: many }, (_, index) =>
        send(server, { from: `hello@${sender.domain}`, to: [`${index}@example.com`] }, sender),
      ),
    );
    mails.set(sender, ids.sort());
  }
  for (const sender of [own, short, paused])
    campaigns.set(sender, await sendCampaign(sender, sender === paused));
  for (const sender of [own, short]) {
    await ended(sender, 'sent');
    links.set(sender, await linksOf(sender));
  }
  // So that something is counted that no later recount could find.
  expect((await visit(links.get(own)![0]!.click)).status).toBe(302);
  // Its time comes while the organization is suspended.
  await plan(paused, { suspend: ['email'] });
  clock.putForward(scheduledMs + 60_000);
  await ended(paused, 'paused');
  await eventually(
    () => rowsOf(server, 'select from delivery_queue where organization_id <> $1', [neighbourId]),
    (jobs) => jobs.length === 0,
  );
  for (const sender of [own, short]) {
    const { stats: counted } = await eventually(
      () => campaignOf(sender),
      ({ stats: { delivered, clicked, pending } }) =>
        delivered === many && pending === 0 && clicked === (sender === own ? 1 : 0),
    );
    stats.set(sender, counted);
  }
  tables = await partitionsNow();
});
afterAll(() => server.stop());

function plan(sender: Sender, change: Parameters<typeof updateOrganization>[2]): Promise<unknown> {
  return updateOrganization(server.installation, sender.organizationId, change);
}

async function request<Body>(sender: Sender, method: string, path: string, body?: unknown) {
  return server.request<Body>(method, path, body, { authorization: `Bearer ${sender.key}` });
}

async function ask<Body>(sender: Sender, method: string, path: string, body?: unknown): Promise<Body> {
  const response = await request<Body>(sender, method, path, body);
  if (response.status >= 300) throw new Error(`${method} ${path}: ${response.text}`);
  return response.body;
}

/** To the same people from each of them, who are contacts of their own. */
async function sendCampaign(sender: Sender, isScheduled: boolean): Promise<string> {
  const { id: listId } = await ask<{ id: string }>(sender, 'POST', '/v1/lists', { name: 'News' });
  for (let index = 0; index < many; index += 1)
    await ask(sender, 'POST', '/v1/contacts', { email: `reader.${index}@example.com`, list_ids: [listId] });
  const { id } = await ask<{ id: string }>(sender, 'POST', '/v1/email/campaigns', {
    name: 'News',
    from: `news@${sender.domain}`,
    from_name: 'News',
    subject: 'News',
    html: '<a href="https://shop.example/news">News</a> <a href="{{unsubscribe_url}}">No more</a>',
    track_clicks: true,
    list_ids: [listId],
  });
  await ask(sender, 'POST', `/v1/email/campaigns/${id}/send`, {
    ...(isScheduled && { scheduled_at: new Date(clock.nowMs() + scheduledMs).toISOString() }),
  });
  return id;
}

function campaignOf(sender: Sender): Promise<Campaign> {
  return ask<Campaign>(sender, 'GET', `/v1/email/campaigns/${campaigns.get(sender)!}`);
}

function ended(sender: Sender, status: string): Promise<Campaign> {
  return eventually(
    () => campaignOf(sender),
    (campaign) => campaign.status === status,
  );
}

/** Of the copies of its campaign, as they left, in the order of the readers. */
async function linksOf(sender: Sender): Promise<Links[]> {
  const rows = await rowsOf<{ recipient: string; source: Buffer }>(
    server,
    `select s.recipient, s.source
     from sandbox_messages s
     join campaigns c on c.organization_id = s.organization_id and c.message_id = s.message_id
     where c.organization_id = $1
     order by s.recipient`,
    [sender.organizationId],
  );
  expect(rows).toHaveLength(many);
  return rows.map(({ recipient: reader, source }) => {
    const text = source.toString().replaceAll('=\r\n', '').replaceAll('=3D', '=');
    const find = (pattern: RegExp) => pattern.exec(text)![1]!;
    return {
      reader,
      click: find(/test(\/c\/[\w-]{64}\/0)"/),
      unsubscribe: find(/test(\/u\/[\w-]{64}\?c=[\w-]{36})"/),
    };
  });
}

function visit(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { 'user-agent': 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0' };
  return fetch(`${server.url}${path}`, { redirect: 'manual', headers, ...init });
}

/** The partitions of this month. */
async function partitionsNow(): Promise<string[]> {
  const month = now(clock).toISOString().slice(0, 7).replace('-', '_');
  return ['messages', 'message_contents', 'recipients', 'push_engagements'].map(
    (table) => `${table}_${month}`,
  );
}

async function standing(): Promise<string[]> {
  const rows = await rowsOf<{ name: string }>(
    server,
    'select name from unnest($1::text[]) as name where to_regclass(name) is not null',
    [tables],
  );
  return rows.map(({ name }) => name);
}

/** Two nodes at once, in small batches. One may find that the other is at it, or has a table that it wants. */
async function tidy(): Promise<void> {
  const { database } = server.installation;
  const tools = {
    database,
    clock,
    channels: messageChannels,
    keeper: campaignsUnderWay,
    installed: kept,
    batchMax: 50,
    organizationsMax: 1,
  };
  await eventually(
    async () => {
      const runs = await Promise.allSettled([
        removeOldMessages(tools, never),
        removeOldMessages(tools, never),
      ]);
      return runs.map((run) => (run.status === 'rejected' ? String(run.reason) : 'done'));
    },
    (runs) => runs.every((run) => run === 'done'),
  );
}

const contentsOf = async ({ organizationId }: Sender) => {
  const [row] = await rowsOf<{ count: number }>(
    server,
    'select count(*)::integer as count from message_contents where organization_id = $1',
    [organizationId],
  );
  return row!.count;
};

const daysOf = (time: string) => time.slice(0, 10);

test('what messages of a shorter plan say is hidden when its time is over, then goes in batches, and others keep theirs', async () => {
  const bodyOf = async (sender: Sender) =>
    (await ask<{ body: string | null }>(sender, 'GET', `/v1/sms/${texts.get(sender)!}`)).body;
  expect([await bodyOf(own), await bodyOf(short)]).toEqual(['Of old', 'Of old']);
  clock.putForward(8 * dayMs);
  expect([await bodyOf(own), await bodyOf(short)]).toEqual(['Of old', null]);
  const young = await send(server, { from: `hello@${short.domain}` }, short);
  await tidy();
  // Texts, emails, the campaign.
  expect([await contentsOf(own), await contentsOf(short), await contentsOf(paused)]).toEqual([
    many + 2,
    1,
    1,
  ]);
  expect((await request(short, 'GET', `/v1/email/${mails.get(short)![0]!}`)).status).toBe(200);
  expect((await request(short, 'GET', `/v1/email/${young}`)).status).toBe(200);
  await eventually(
    () => rowsOf(server, 'select from delivery_queue where message_id = $1', [young]),
    (jobs) => jobs.length === 0,
  );
});

test('a link in mail whose content is gone says so, and others lead where they did', async () => {
  const gone = await visit(links.get(short)![1]!.click);
  expect([gone.status, await gone.text()]).toEqual([410, expect.stringContaining('too old')]);
  const there = await visit(links.get(own)![1]!.click);
  expect([there.status, there.headers.get('location')]).toEqual([302, 'https://shop.example/news']);
  await eventually(
    () => campaignOf(own),
    (campaign) => campaign.stats.clicked === 2,
  );
  stats.set(own, (await campaignOf(own)).stats);
});

test('what a shorter plan keeps no more answers with the reason, and with the same one for ids that never were', async () => {
  clock.putForward(23 * dayMs);
  const [oldest] = mails.get(short)!;
  const { created_at: createdAt } = await ask<{ created_at: string }>(
    own,
    'GET',
    `/v1/email/${mails.get(own)![0]!}`,
  );
  const expected = {
    status_code: 404,
    name: 'not_found',
    message: `This id is of ${daysOf(createdAt)}. Messages and their recipients are kept for 30 days here: older ones have been removed.`,
  };
  const read = async (sender: Sender, id: string) =>
    (await request<ErrorBody>(sender, 'GET', `/v1/email/${id}`)).body;
  expect(await read(short, oldest!)).toEqual(expected);
  expect(await read(short, oldest!.toUpperCase())).toEqual(expected);
  expect(await read(short, `${oldest!.slice(0, -1)}${oldest!.endsWith('0') ? '1' : '0'}`)).toEqual(expected);
  // Another organization's, of that time.
  expect(await read(short, mails.get(own)![0]!)).toMatchObject({ name: 'not_found', status_code: 404 });
  expect((await read(short, mails.get(own)![0]!)).message).toContain('kept for 30 days');
  const unknown = 'The requested resource does not exist.';
  // Of today, and of no time at all.
  expect((await read(short, server.installation.newId())).message).toBe(unknown);
  expect((await read(short, '00000000-0000-4000-8000-000000000000')).message).toBe(unknown);
  for (const path of ['sms', 'push', 'chatapp'])
    expect(
      (await request<ErrorBody>(short, 'GET', `/v1/${path}/${texts.get(short)!}`)).body.message,
    ).toContain('kept for 30 days');
  const ofCampaign = await request<ErrorBody>(
    short,
    'GET',
    `/v1/email/campaigns/${campaigns.get(short)!}/recipients`,
  );
  expect([ofCampaign.status, ofCampaign.body.message]).toEqual([
    404,
    expect.stringContaining('kept for 30 days'),
  ]);
  expect((await request(own, 'GET', `/v1/email/campaigns/${campaigns.get(own)!}/recipients`)).status).toBe(
    200,
  );
});

test('lists end where the plan does, in both directions and however they are filtered', async () => {
  type Page = { data: { id: string }[]; has_more: boolean };
  const list = (sender: Sender, query: string) => ask<Page>(sender, 'GET', `/v1/email?limit=100&${query}`);
  const fresh = [];
  for (let index = 0; index < 3; index += 1)
    fresh.unshift(await send(server, { from: `hello@${short.domain}`, to: ['0@example.com'] }, short));
  // One more was sent three weeks ago.
  const [oldest] = mails.get(short)!;
  for (const query of ['', 'search=Hello', `before=${oldest!}`, `search=hello&before=${oldest!}`]) {
    const { data, has_more: hasMore } = await list(short, query);
    expect([query, data.length, hasMore]).toEqual([query, 4, false]);
    expect(data.slice(0, 3).map(({ id }) => id)).toEqual(fresh);
  }
  expect((await list(short, 'search=0@example.com')).data.map(({ id }) => id)).toEqual(fresh);
  expect((await list(short, `after=${mails.get(short)!.at(-1)!}`)).data).toEqual([]);
  expect((await list(own, '')).has_more).toBe(true);
  await eventually(
    () => rowsOf(server, 'select from delivery_queue where organization_id <> $1', [neighbourId]),
    (jobs) => jobs.length === 0,
  );
});

test('a partition that nobody keeps stays as long as a campaign in it is paused', async () => {
  clock.putForward(95 * dayMs);
  await tidy();
  expect(await standing()).toEqual(tables);
  expect((await ask<{ data: unknown[] }>(own, 'GET', '/v1/email')).data).toEqual([]);
  const listed = await ask<{ data: unknown[] }>(
    paused,
    'GET',
    `/v1/email/campaigns/${campaigns.get(paused)!}/recipients`,
  );
  expect(listed.data.length).toBeGreaterThan(0);
});

test('it goes with all of its tables when the campaign has come to its end, and statistics stay as they were', async () => {
  await plan(paused, { resume: ['email'] });
  await rowsOf(server, "select pg_notify('postillion_campaigns', '')");
  await ended(paused, 'sent');
  const { stats: late } = await eventually(
    () => campaignOf(paused),
    ({ stats: { delivered, pending } }) => delivered === many && pending === 0,
  );
  stats.set(paused, late);
  await eventually(
    () => rowsOf(server, 'select from recipient_changes where organization_id <> $1', [neighbourId]),
    (changes) => changes.length === 0,
  );
  // A campaign that is sent may be in the queue of a worker for a moment still.
  await eventually(
    () => tidy().then(standing),
    (tablesLeft) => tablesLeft.length === 0,
  );
  for (const sender of [own, short, paused]) {
    expect((await campaignOf(sender)).stats).toEqual(stats.get(sender));
    const recipients = `/v1/email/campaigns/${campaigns.get(sender)!}/recipients`;
    expect((await request<ErrorBody>(sender, 'GET', recipients)).body.message).toContain('have been removed');
  }
});

test('reports and clicks of what is gone change nothing, and neither does a recount', async () => {
  const { database, secrets } = server.installation;
  const [first] = links.get(own)!;
  const job = readRecipientToken(secrets, 'tracking', first!.click.slice(3, 67))!;
  await applyReports(
    { ...server.installation, onCampaignProgress: () => undefined, onContactsChanged: () => undefined },
    emailChannel,
    [{ job, status: 'complained', failure: null }],
  );
  expect((await visit(`/o/${first!.click.slice(3, 67)}`)).status).toBe(200);
  // As a node would have left it that counted late.
  await rowsOf(
    server,
    'insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, array[0])',
    [job.organizationId, server.installation.newId(), job.messageId],
  );
  await countChangedRecipients({ database });
  await eventually(
    () => rowsOf(server, 'select from recipient_changes where organization_id <> $1', [neighbourId]),
    (changes) => changes.length === 0,
  );
  expect((await campaignOf(own)).stats).toEqual(stats.get(own));
});

test('a reader of old mail can unsubscribe all the same, from the organization that it was', async () => {
  const [, second, third] = links.get(own)!;
  const consents = async () =>
    rowsOf<{ organization_id: string; email: string }>(
      server,
      `select organization_id, email from contacts
       where 'email' = any (unsubscribed_channels) and organization_id <> $1`,
      [neighbourId],
    );
  expect(await consents()).toEqual([]);
  const page = await visit(second!.unsubscribe);
  expect([page.status, await page.text()]).toEqual([200, expect.stringContaining('Test organization')]);
  expect(await consents()).toEqual([]);
  const clicked = await visit(second!.unsubscribe, { method: 'POST', body: 'List-Unsubscribe=One-Click' });
  expect([clicked.status, await clicked.text()]).toEqual([
    200,
    expect.stringContaining('You are unsubscribed'),
  ]);
  expect(await consents()).toEqual([{ organization_id: own.organizationId, email: second!.reader }]);
  // Links that say no contact, or one that belongs to another copy.
  const [path, contact] = third!.unsubscribe.split('?');
  const [, otherContact] = second!.unsubscribe.split('?');
  expect((await visit(path!, { method: 'POST' })).status).toBe(404);
  expect((await visit(`${path!}?${otherContact!}`, { method: 'POST' })).status).toBe(404);
  expect(
    (
      await visit(`${path!}?${contact!}`, {
        method: 'POST',
        body: new URLSearchParams({ action: 'resubscribe' }),
      })
    ).status,
  ).toBe(200);
  expect(await consents()).toHaveLength(1);
  // Of one who has been deleted nothing can be said: the address may be another contact's by now.
  const { data } = await ask<{ data: { id: string }[] }>(own, 'GET', `/v1/contacts?email=${third!.reader}`);
  await ask(own, 'DELETE', `/v1/contacts/${data[0]!.id}`);
  expect(await (await visit(third!.unsubscribe, { method: 'POST' })).text()).toContain(
    'This link does not work',
  );
});

test('segments that ask for a campaign whose message is gone find nobody, and do not fail', async () => {
  const { id } = await ask<{ id: string }>(own, 'POST', '/v1/segments', {
    name: 'Readers',
    conditions: {
      type: 'group',
      match: 'all',
      conditions: [
        { type: 'message', channel: 'email', action: 'delivered', campaign_id: campaigns.get(own)! },
      ],
    },
  });
  const segment = await eventually(
    () => ask<{ status: string; contact_count: number }>(own, 'GET', `/v1/segments/${id}`),
    ({ status }) => status !== 'computing',
  );
  expect(segment).toMatchObject({ status: 'ready', contact_count: 0 });
});
