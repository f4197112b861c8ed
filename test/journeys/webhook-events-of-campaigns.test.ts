/** What programs are told of campaigns: each move once, and what becomes of recipients as far as they ask for it. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { type CampaignStatus, campaignStatuses } from '../../src/campaigns/states.ts';
import { createEventCheck } from '../support/described-events.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startWebhookReceiver, type WebhookReceiver } from '../support/webhook-receiver.ts';

type Told = {
  id: string;
  type: string;
  sequence: number;
  timestamp: string;
  data: {
    object: string;
    id: string;
    status: string;
    pause_reason: string | null;
    recipient?: { address: string };
  };
};
type Campaign = {
  id: string;
  name: string;
  status: CampaignStatus;
  stats: { audience: number; sent: number };
};

const hourMs = 3_600_000;

let server: TestServer;
let other: Sender & { organizationId: string };
let clock: ShiftedClock;
let receiver: WebhookReceiver;
let lists = 0;
/** A list of the organization, and one of the same name of the other. */
let listId: string;
let otherListId: string;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, publicUrl: 'https://mail.postillion.test' });
  other = await createSender(server.installation, 'other.example');
  await rowsOf(server, 'update organizations set requests_per_window = 100000');
  receiver = await startWebhookReceiver();
  await create('/v1/webhooks', { kind: 'url', url: urlOf(receiver), events: ['campaign.*'] });
  await create('/v1/webhooks', { kind: 'poll', events: ['*'] }, other);
  // The oracle: what the table itself saw of moves, whoever made them.
  await rowsOf(server, 'create schema oracle');
  await rowsOf(
    server,
    `create table oracle.moves (number serial, campaign_id uuid, status text, pause_reason text)`,
  );
  await rowsOf(
    server,
    `create function oracle.note() returns trigger language plpgsql security definer as $$
     begin
       insert into oracle.moves (campaign_id, status, pause_reason) values (new.id, new.status, new.pause_reason);
       return null;
     end $$`,
  );
  await rowsOf(
    server,
    `create trigger noted after update on campaigns for each row
     when (old.status is distinct from new.status or old.pause_reason is distinct from new.pause_reason)
     execute function oracle.note()`,
  );
});
afterAll(async () => {
  await rowsOf(server, 'drop schema oracle cascade');
  await receiver.stop();
  await server.stop();
});
beforeEach(async () => {
  lists += 1;
  listId = await create('/v1/lists', { name: `List ${lists}` });
  otherListId = await create('/v1/lists', { name: `List ${lists}` }, other);
});

const urlOf = ({ port }: WebhookReceiver) => `http://127.0.0.1:${port}/hooks`;

async function create(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await server.request<{ id: string }>('POST', path, body, authorize(sender));
  if (response.status !== 201) throw new Error(response.text);
  return response.body.id;
}

/** The other organization gets the same addresses. */
async function fillList(count: number): Promise<void> {
  for (const [id, sender] of [[listId], [otherListId, other]] as const) {
    const contacts = Array.from({ length: count }, (_, number) => ({
      email: `reader${number}.${lists}@example.com`,
      list_ids: [id],
    }));
    const { status, text } = await server.request(
      'POST',
      '/v1/contacts/bulk',
      { contacts },
      authorize(sender),
    );
    if (status !== 200) throw new Error(text);
  }
}

function aCampaign(sender?: Sender): Promise<string> {
  const from = sender === undefined ? 'hello@postillion.test' : 'hello@other.example';
  const listIds = [sender === undefined ? listId : otherListId];
  return create(
    '/v1/email/campaigns',
    { name: 'News', from, subject: 'News', text: 'News', list_ids: listIds },
    sender,
  );
}

function pull(id: string, trigger: string, body?: object, sender?: Sender) {
  return server.request('POST', `/v1/email/campaigns/${id}/${trigger}`, body, authorize(sender));
}

const send = (id: string, sender?: Sender) => pull(id, 'send', {}, sender);

async function listed(id: string, sender?: Sender): Promise<Campaign> {
  const path = '/v1/email/campaigns?limit=100';
  const { body } = await server.request<{ data: Campaign[] }>('GET', path, undefined, authorize(sender));
  return body.data.find((campaign) => campaign.id === id)!;
}

/** What an operator allows is found by the next look. */
const look = () => wakeOnce(server.installation.database, 'campaigns');

const allow = (quota: string) =>
  rowsOf(server, `update organizations set email_quota = ${quota} where id = $1`, [server.organizationId]);

const inStatus = (id: string, status: CampaignStatus, sender?: Sender) =>
  eventually(
    () => listed(id, sender),
    (campaign) => campaign.status === status,
  );

/** By their ids: one that is told twice is there once. */
const eventsAt = ({ requests }: WebhookReceiver) => [
  ...new Map(
    requests.map(({ body }) => {
      const told = JSON.parse(body.toString()) as Told;
      return [told.id, told] as const;
    }),
  ).values(),
];

const toldOf = (id: string) =>
  eventsAt(receiver)
    .filter(({ data }) => data.id === id)
    .sort((one, another) => one.sequence - another.sequence);

/** What the oracle saw, once the endpoint was told as much of the campaign; each as status and reason. */
async function agreed(id: string): Promise<(readonly [string, string | null])[]> {
  const moves = await rowsOf<{ status: string; pause_reason: string | null }>(
    server,
    'select status, pause_reason from oracle.moves where campaign_id = $1 order by number',
    [id],
  );
  const told = await eventually(
    () => toldOf(id),
    (found) => found.length >= moves.length,
  );
  const seen = moves.map(({ status, pause_reason: reason }) => [status, reason] as const);
  expect(told.map(({ data }) => [data.status, data.pause_reason])).toEqual(seen);
  expect(told.map(({ type }) => type)).toEqual(seen.map(([status]) => `campaign.${status}`));
  expect(new Set(told.map((event) => event.id)).size).toBe(told.length);
  return seen;
}

test('one that is sent is told of as it moves, with the record that lists have', async () => {
  await fillList(3);
  const [mine, theirs] = [await aCampaign(), await aCampaign(other)];
  await send(mine);
  await send(theirs, other);
  await inStatus(theirs, 'sent', other);
  const record = await inStatus(mine, 'sent');
  expect((await agreed(mine)).map(([status]) => status)).toEqual(['queued', 'sending', 'sent']);
  expect(toldOf(mine).at(-1)!.data).toEqual({ object: 'campaign', channel: 'email', ...record });
  expect(record.stats).toMatchObject({ audience: 3, sent: 3 });
  expect(toldOf(theirs)).toEqual([]);
  const { body: page } = await server.request<{ data: Told[] }>(
    'GET',
    '/v1/webhook-events?types=campaign.*&wait=25',
    undefined,
    authorize(other),
  );
  expect(new Set(page.data.map(({ data }) => data.id))).toEqual(new Set([theirs]));
  const isDescribed = createEventCheck();
  expect(page.data.filter((event) => !isDescribed(event))).toEqual([]);
  const [first] = page.data;
  expect(isDescribed({ ...first, data: { ...first!.data, status: 'arrived' } })).toBe(false);
});

test('one that is paused is told of with the reason, however it goes on by then', async () => {
  await fillList(3);
  const id = await aCampaign();
  await allow('0');
  await send(id);
  await inStatus(id, 'paused');
  await updateOrganization(server.installation, server.organizationId, { suspend: ['email'] });
  await look();
  await eventually(
    () => listed(id) as Promise<Campaign & { pause_reason: string | null }>,
    ({ pause_reason: reason }) => reason === 'sending_suspended',
  );
  await allow('null');
  await updateOrganization(server.installation, server.organizationId, { resume: ['email'] });
  await look();
  await inStatus(id, 'sent');
  expect(await agreed(id)).toEqual([
    ['queued', null],
    ['paused', 'quota_exceeded'],
    ['paused', 'sending_suspended'],
    ['queued', null],
    ['sending', null],
    ['sent', null],
  ]);
});

test('one that is scheduled, cancelled, misses its time or cannot go on is told of', async () => {
  const at = (ms: number) => ({ scheduled_at: new Date(clock.nowMs() + ms).toISOString() });
  const nobody = await aCampaign();
  await send(nobody);
  await inStatus(nobody, 'failed');
  expect((await agreed(nobody)).map(([status]) => status)).toEqual(['queued', 'failed']);
  await fillList(1);
  const cancelled = await aCampaign();
  await pull(cancelled, 'send', at(hourMs));
  await pull(cancelled, 'cancel');
  expect((await agreed(cancelled)).map(([status]) => status)).toEqual(['scheduled', 'cancelled']);
  const missed = await aCampaign();
  await pull(missed, 'send', at(hourMs));
  await rowsOf(
    server,
    `update campaigns set scheduled_at = scheduled_at - interval '2 hours 30 minutes' where id = $1`,
    [missed],
  );
  clock.putForward(2 * hourMs);
  await inStatus(missed, 'paused');
  await pull(missed, 'resume');
  await inStatus(missed, 'sent');
  expect(await agreed(missed)).toEqual([
    ['scheduled', null],
    ['paused', 'schedule_missed'],
    ['queued', null],
    ['sending', null],
    ['sent', null],
  ]);
});

test('of moves at once, each that was made is told of once', async () => {
  await fillList(2);
  const ids = await Promise.all(Array.from({ length: 8 }, () => aCampaign()));
  await Promise.all(
    ids.flatMap((id) => [send(id), pull(id, 'cancel'), send(id), pull(id, 'cancel'), send(id)]),
  );
  for (const id of ids) {
    await eventually(
      () => listed(id),
      ({ status }) => status === 'sent' || status === 'cancelled',
    );
    const statuses = (await agreed(id)).map(([status]) => status);
    expect(new Set(statuses).size).toBe(statuses.length);
  }
});

test('of the recipients of one, each is told where all are wanted, and counts every minute where a summary is', async () => {
  const [all, summary, none] = [
    await startWebhookReceiver(),
    await startWebhookReceiver(),
    await startWebhookReceiver(),
  ];
  try {
    const wanted = { all, summary, none };
    for (const [choice, { port }] of Object.entries(wanted)) {
      const url = `http://127.0.0.1:${port}/hooks`;
      const events = choice === 'none' ? ['*'] : ['email.*'];
      await create('/v1/webhooks', { kind: 'url', url, events, campaign_events: choice });
    }
    await fillList(600);
    const id = await aCampaign();
    await allow(
      "350 + (select coalesce(sum(used), 0) from quota_usage where organization_id = $1 and channel = 'email')",
    );
    await send(id);
    await eventually(
      () => listed(id),
      ({ stats }) => stats.sent === 350,
    );
    const progress = () => eventsAt(summary).filter(({ data }) => data.id === id);
    expect(progress()).toEqual([]);
    clock.putForward(61_000);
    await eventually(progress, ({ length }) => length === 1);
    expect(progress()[0]).toMatchObject({
      type: 'campaign.progress',
      data: { object: 'campaign', status: 'paused', stats: { audience: 600, sent: 350, delivered: 350 } },
    });
    // Nothing was counted since: of these minutes nothing is told.
    clock.putForward(61_000);
    await look();
    clock.putForward(61_000);
    await allow('null');
    await look();
    await inStatus(id, 'sent');
    await eventually(
      () => eventsAt(all),
      ({ length }) => length >= 600,
    );
    await agreed(id);
    const addresses = eventsAt(all).map(({ data }) => data.recipient!.address);
    expect(addresses.length).toBe(600);
    expect(new Set(addresses).size).toBe(600);
    expect(new Set(eventsAt(all).map(({ type }) => type))).toEqual(new Set(['email.delivered']));
    // Of the contacts of the list too, and of no recipient.
    expect(new Set(eventsAt(none).map(({ type }) => type.split('.')[0]))).toEqual(
      new Set(['contact', 'campaign']),
    );
    expect(eventsAt(none).map(({ type }) => type)).not.toContain('campaign.progress');
    const toldAt = progress().map(({ timestamp }) => Date.parse(timestamp));
    toldAt.slice(1).forEach((at, index) => expect(at - toldAt[index]!).toBeGreaterThanOrEqual(2 * 61_000));
    expect(new Set(eventsAt(summary).map(({ type }) => type))).toEqual(new Set(['campaign.progress']));
  } finally {
    const { body } = await server.request<{
      data: { id: string; campaign_events: string; events: string[] }[];
    }>('GET', '/v1/webhooks');
    for (const { id, events } of body.data)
      if (!events.includes('campaign.*')) await server.request('DELETE', `/v1/webhooks/${id}`);
    await Promise.all([all.stop(), summary.stop(), none.stop()]);
  }
});

test('an endpoint that wants thin events is told where the campaign is', async () => {
  const thin = await startWebhookReceiver();
  const webhook = await create('/v1/webhooks', {
    kind: 'url',
    url: urlOf(thin),
    events: ['campaign.cancelled'],
    format: 'thin',
  });
  try {
    const id = await aCampaign();
    await pull(id, 'send', { scheduled_at: new Date(clock.nowMs() + hourMs).toISOString() });
    await pull(id, 'cancel');
    await thin.whenReceived(1);
    const event = JSON.parse(thin.requests[0]!.body.toString()) as {
      related_object: { object: string; id: string; url: string };
    };
    expect(event).toEqual({
      id: expect.any(String),
      type: 'campaign.cancelled',
      timestamp: expect.any(String),
      sequence: expect.any(Number),
      related_object: { object: 'campaign', id, url: `/v1/email/campaigns/${id}` },
    });
    const { body } = await server.request<Campaign>('GET', event.related_object.url);
    expect(body).toMatchObject({ id, status: 'cancelled' });
    await server.request('POST', `/v1/webhooks/${webhook}/test`, { type: 'campaign.sent' });
    await thin.whenReceived(2);
    expect(JSON.parse(thin.requests[1]!.body.toString())).toMatchObject({
      type: 'campaign.sent',
      test: true,
    });
  } finally {
    await server.request('DELETE', `/v1/webhooks/${webhook}`);
    await thin.stop();
  }
});

test('progress is asked for by a summary alone', async () => {
  const refused = await server.request<{ message: string }>('POST', '/v1/webhooks', {
    kind: 'poll',
    events: ['campaign.progress'],
  });
  expect(refused.status).toBe(422);
});

test('each status but that of a draft was told of', () => {
  const told = eventsAt(receiver).map(({ data }) => data.status);
  expect(new Set(told)).toEqual(new Set(campaignStatuses.filter((status) => status !== 'draft')));
});

test('of one that is deleted before it is told, the id is told', async () => {
  await rowsOf(server, `update webhooks set status = 'paused' where kind = 'url'`);
  const id = await aCampaign();
  await pull(id, 'send', { scheduled_at: new Date(clock.nowMs() + hourMs).toISOString() });
  await server.request('DELETE', `/v1/email/campaigns/${id}`);
  const { body } = await server.request<{ data: { id: string }[] }>('GET', '/v1/webhooks');
  await server.request('POST', `/v1/webhooks/${body.data[0]!.id}/enable`, {});
  const [event] = await eventually(
    () => toldOf(id),
    (found) => found.length === 1,
  );
  expect([event!.type, event!.data]).toEqual(['campaign.scheduled', { object: 'campaign', id }]);
});
