/** Messages and campaigns by way of WhatsApp, from the request to the webhook: over HTTP on both sides, with signatures. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  type AccountContent,
  releaseCampaigns,
  setAccount,
} from '../../src/chat-templates/chat-templates.ts';
import type { TemplateRecord } from '../../src/chat-templates/schema.ts';
import { chatAppWithStatus, readChatApp, sendChatApp } from '../support/chat-app-journey.ts';
import { authorize, createShiftedClock, eventually, rowsOf, type Sender } from '../support/email-journey.ts';
import { type Graph, type GraphAnswer, type GraphStatus, signBody, startGraph } from '../support/graph.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let graph: Graph;
let server: TestServer;
let other: Sender & { organizationId: string };
let others: { path: string; appSecret: string; verifyToken: string };
const clock = createShiftedClock();

/** What the stand-in says to messages, and what becomes of those that it takes. */
let answer: GraphAnswer | undefined;
let statuses: readonly GraphStatus[] | undefined;

const [account, phoneNumber, othersAccount, othersNumber] = ['1001', '1', '2002', '2'];
const app = { appSecret: 'secret of the installation', verifyToken: 'word of the installation' };

beforeAll(async () => {
  graph = await startGraph({
    answer: () => answer,
    statuses: () => statuses,
    businessAccountOf: (number) => (number === phoneNumber ? account : othersAccount),
  });
  server = await startTestServer({
    worker: true,
    clock,
    chatAppProvider: 'whatsapp',
    providerSettings: {
      POSTILLION_WHATSAPP_URL: `http://127.0.0.1:${graph.port}`,
      POSTILLION_WHATSAPP_APP_SECRET: app.appSecret,
      POSTILLION_WHATSAPP_VERIFY_TOKEN: app.verifyToken,
    },
  });
  other = await createSender(server.installation, 'other.example');
  await give(server.organizationId, {
    businessAccountId: account,
    phoneNumberIds: [phoneNumber],
    ownApp: null,
  });
  const ownApp = { appSecret: 'secret of the other', verifyToken: 'word of the other' };
  const token = await give(other.organizationId, {
    ...{ businessAccountId: othersAccount, phoneNumberIds: [othersNumber], ownApp },
  });
  others = { path: `/callbacks/whatsapp/${token}`, ...ownApp };
  graph.setWebhooks({ url: `${server.url}/callbacks/whatsapp`, appSecret: app.appSecret });
});
afterAll(async () => {
  await graph.close();
  await server.stop();
  expect(graph.faults).toEqual([]);
});
beforeEach(() => {
  answer = undefined;
  statuses = undefined;
});

async function give(organizationId: string, content: Omit<AccountContent, 'accessToken'>): Promise<string> {
  const outcome = await setAccount(server.installation, organizationId, { accessToken: 'token', ...content });
  return outcome.kind === 'set' ? (outcome.callbackToken ?? '') : '';
}

let made = 0;
const aNumber = () => `+4915188${String((made += 1)).padStart(6, '0')}`;

const ask = <Body>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

async function make(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body, sender);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

const readTemplate = async (id: string) =>
  (await ask<TemplateRecord>('GET', `/chatapp/templates/${id}`)).body;

/** Submitted by the worker, and approved by a webhook. */
async function aTemplate(
  category: 'utility' | 'marketing' = 'utility',
): Promise<{ id: string; name: string }> {
  const name = `notice_${(made += 1)}`;
  const components = [{ type: 'body', text: 'Hello {{first_name}}, it is here.' }];
  const examples = { first_name: 'Ann' };
  const id = await make('/chatapp/templates', { name, language: 'en_US', category, components, examples });
  await eventually(
    () => Promise.resolve([...graph.templates.values()]),
    (known) => known.some((template) => template.name === name),
  );
  await review({ id, name }, 'APPROVED', 'approved');
  return { id, name };
}

async function review(template: { id: string; name: string }, status: string, state: string): Promise<void> {
  graph.review(template.name, status);
  await eventually(
    () => readTemplate(template.id),
    (read) => (read.sendable_reason ?? 'approved') === state,
  );
}

const aMessage = (templateId: string, to = aNumber()) =>
  sendChatApp(server, { to, template_id: templateId, parameters: { first_name: 'Ann' } });

type Campaign = {
  status: string;
  pause_reason: string | null;
  failure_reason: string | null;
  stats: {
    audience: number;
    pending: number;
    sent: number;
    delivered: number;
    failed: number;
    dropped: number;
  };
};

const readCampaign = async (id: string) => (await ask<Campaign>('GET', `/chatapp/campaigns/${id}`)).body;
const inStatus = (id: string, status: string) =>
  eventually(
    () => readCampaign(id),
    (campaign) => campaign.status === status,
  );
/** Attempts that were put off are due after minutes. */
/**
 * Lets time pass, but not while a copy is under way: its request would end without an answer, and what was looked up for it
 * would be too old. Nor for as long as a request may take: one may just begin.
 */
async function passIdleTime(): Promise<void> {
  const underWay = await rowsOf(
    server,
    `select from delivery_queue where organization_id = $1 and claimed_by is not null
     union all
     select from delivery_slices where organization_id = $1 and claimed_by is not null`,
    [server.organizationId],
  );
  if (underWay.length === 0) clock.putForward(5_000);
}

const sentInTime = (id: string) =>
  eventually(
    async () => {
      await passIdleTime();
      return readCampaign(id);
    },
    ({ status, stats }) => status === 'sent' && stats.delivered === stats.audience,
  );

async function aCampaign(contacts = 3) {
  const template = await aTemplate('marketing');
  const list = await make('/lists', { name: `List ${(made += 1)}` });
  const numbers = Array.from({ length: contacts }, () => aNumber());
  for (const phone_number of numbers)
    await make('/contacts', { phone_number, first_name: 'Ann', list_ids: [list] });
  const draft = { name: `Campaign ${(made += 1)}`, list_ids: [list], template_id: template.id };
  const id = await make('/chatapp/campaigns', { ...draft, parameters: { first_name: '{{first_name}}' } });
  return { id, template, numbers, send: () => ask('POST', `/chatapp/campaigns/${id}/send`, {}) };
}

/** Sends it; each copy is tried once, and is due again after a minute. */
async function putOff({ send, numbers }: Awaited<ReturnType<typeof aCampaign>>): Promise<void> {
  const before = graph.counts.refused;
  answer = { code: 4 };
  await send();
  await eventually(
    () => Promise.resolve(graph.counts.refused - before),
    (refused) => refused >= numbers.length,
  );
}

const takenBy = (number: string) => graph.messages.filter(({ to }) => to === number).length;

/** A webhook as Meta sends it, of what the test chooses. */
async function post(
  business: string,
  values: readonly object[],
  { path = '/callbacks/whatsapp', secret = app.appSecret } = {},
): Promise<number> {
  const entry = [{ id: business, changes: values.map((value) => ({ field: 'messages', value })) }];
  const body = JSON.stringify({ object: 'whatsapp_business_account', entry });
  const response = await fetch(`${server.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-hub-signature-256': signBody(secret, body) },
    body,
  });
  await response.arrayBuffer();
  return response.status;
}

const metadata = { display_phone_number: '15550783881', phone_number_id: phoneNumber };
const statusValue = (wamid: string, status: string, more: object = {}) => ({
  ...{ messaging_product: 'whatsapp', metadata },
  statuses: [{ id: wamid, status, timestamp: '1795262400', ...more }],
});

const allApplied = () =>
  eventually(
    () => rowsOf(server, 'select from chat_app_events union all select from provider_events'),
    (left) => left.length === 0,
  );

test.each([
  ['the installation', () => ({ path: '/callbacks/whatsapp', word: app.verifyToken })],
  ['an organization', () => ({ path: others.path, word: others.verifyToken })],
])(
  'the app of %s proves by its word that the address is ours, and no other word does',
  async (_whose, which) => {
    const { path, word } = which();
    const greet = async (said: string) => {
      const query = new URLSearchParams({ 'hub.mode': 'subscribe', 'hub.challenge': '1158201444' });
      query.set('hub.verify_token', said);
      const response = await fetch(`${server.url}${path}?${query.toString()}`);
      return [response.status, await response.text()];
    };
    expect(await greet(word)).toEqual([200, '1158201444']);
    for (const wrong of [
      '',
      'x',
      `${word} `,
      word === app.verifyToken ? others.verifyToken : app.verifyToken,
    ])
      expect(await greet(wrong)).toEqual([403, expect.not.stringContaining('1158201444')]);
  },
);

test('a webhook that is signed by nobody, or for another address, changes nothing', async () => {
  const template = await aTemplate();
  statuses = [];
  const id = await aMessage(template.id);
  await chatAppWithStatus(server, id, 'sent');
  const { id: wamid } = graph.messages.at(-1)!;
  const read = [statusValue(wamid, 'read')];
  const attempts = [
    post(account, read, { secret: '' }),
    post(account, read, { secret: others.appSecret }),
    post(account, read, { path: others.path }),
    post(account, read, { path: `/callbacks/whatsapp/${'x'.repeat(32)}` }),
  ];
  const answered = await Promise.all(attempts);
  expect(answered.map((status) => status >= 400 && status < 500)).toEqual([true, true, true, true]);
  await allApplied();
  expect((await readChatApp(server, id)).status).toBe('sent');
});

test('statuses lead to read, though they come twice and before the answer', async () => {
  const template = await aTemplate();
  const target = { url: `${server.url}/callbacks/whatsapp`, appSecret: app.appSecret };
  graph.setWebhooks({ ...target, times: 2, isBeforeAnswer: true, isReversed: true });
  statuses = [{ status: 'sent' }, { status: 'delivered' }, { status: 'read' }];
  const ids = await Promise.all(Array.from({ length: 5 }, () => aMessage(template.id)));
  const read = await Promise.all(ids.map((id) => chatAppWithStatus(server, id, 'read')));
  expect(read.map(({ delivered_at, read_at }) => [delivered_at !== null, read_at !== null])).toEqual(
    ids.map(() => [true, true]),
  );
  graph.setWebhooks(target);
});

test('nobody says by an app of their own what became of the messages of others', async () => {
  const template = await aTemplate();
  statuses = [];
  const id = await aMessage(template.id);
  await chatAppWithStatus(server, id, 'sent');
  const { id: wamid, token } = graph.messages.at(-1)!;
  const theirs = { path: others.path, secret: others.appSecret };
  const values = [
    statusValue(wamid, 'read'),
    statusValue(wamid, 'read', { biz_opaque_callback_data: token }),
  ];
  // By their own address, of their account and of ours; and by the installation's, of their account.
  expect(await post(othersAccount, values, theirs)).toBe(200);
  expect(await post(account, values, theirs)).toBe(200);
  expect(await post(othersAccount, values)).toBe(200);
  await allApplied();
  expect((await readChatApp(server, id)).status).toBe('sent');
  expect(await post(account, [statusValue(wamid, 'read')])).toBe(200);
  await chatAppWithStatus(server, id, 'read');
});

test('a campaign whose template is paused waits, says why, and goes on once it is approved again', async () => {
  const campaign = await aCampaign();
  await putOff(campaign);
  await review(campaign.template, 'PAUSED', 'paused');
  expect(await inStatus(campaign.id, 'paused')).toMatchObject({ pause_reason: 'template_paused' });
  answer = undefined;
  clock.putForward(600_000);
  await review(campaign.template, 'APPROVED', 'approved');
  expect(await sentInTime(campaign.id)).toMatchObject({ pause_reason: null, stats: { delivered: 3 } });
  expect(campaign.numbers.map(takenBy)).toEqual([1, 1, 1]);
});

test('an answer that the template is paused pauses the campaign; one that is disabled meanwhile fails it', async () => {
  const campaign = await aCampaign();
  answer = { code: 132_015 };
  await campaign.send();
  expect(await inStatus(campaign.id, 'paused')).toMatchObject({ pause_reason: 'template_paused' });
  answer = undefined;
  await review(campaign.template, 'DISABLED', 'disabled');
  const { failure_reason } = await inStatus(campaign.id, 'failed');
  expect(failure_reason).toContain('it is disabled');
  expect(campaign.numbers.map(takenBy)).toEqual([0, 0, 0]);
});

test('a campaign waits while the account may send none, which single messages do not', async () => {
  graph.tell(account, 'account_update', { event: 'ACCOUNT_RESTRICTION' });
  await eventually(
    () => rowsOf<{ words: string }>(server, heldWords, [server.organizationId]),
    ([row]) => row?.words === 'account_update: ACCOUNT_RESTRICTION',
  );
  const campaign = await aCampaign();
  await campaign.send();
  expect(await inStatus(campaign.id, 'paused')).toMatchObject({ pause_reason: 'account_held' });
  await chatAppWithStatus(server, await aMessage((await aTemplate()).id), 'delivered');
  expect(campaign.numbers.map(takenBy)).toEqual([0, 0, 0]);
  expect(await rowsOf(server, heldWords, [other.organizationId])).toEqual([{ words: null }]);
  const ban_info = { waba_ban_state: 'REINSTATE', waba_ban_date: 'November 24, 2026' };
  graph.tell(account, 'account_update', { event: 'DISABLED_UPDATE', ban_info });
  await sentInTime(campaign.id);
  expect(campaign.numbers.map(takenBy)).toEqual([1, 1, 1]);
});

const heldWords = `select campaigns_held_words as words from chat_app_accounts where organization_id = $1`;

test('complaints hold campaigns for an hour, and a payment that is due until the operator has seen to it', async () => {
  const complained = await aCampaign();
  answer = { code: 131_048, status: 429 };
  await complained.send();
  expect(await inStatus(complained.id, 'paused')).toMatchObject({ pause_reason: 'account_held' });
  answer = undefined;
  clock.putForward(50 * 60_000);
  expect(await readCampaign(complained.id)).toMatchObject({ status: 'paused' });
  await sentInTime(complained.id);

  const unpaid = await aCampaign();
  answer = { code: 131_042, status: 402 };
  await unpaid.send();
  expect(await inStatus(unpaid.id, 'paused')).toMatchObject({ pause_reason: 'account_held' });
  answer = undefined;
  clock.putForward(3 * 3_600_000);
  await chatAppWithStatus(server, await aMessage((await aTemplate()).id), 'delivered');
  expect(await readCampaign(unpaid.id)).toMatchObject({ status: 'paused' });
  const { organizationId, installation } = server;
  const release = () =>
    installation.database.asOrganizations([organizationId], (transaction) =>
      releaseCampaigns(transaction, organizationId),
    );
  expect([await release(), await release()]).toEqual([true, false]);
  await sentInTime(unpaid.id);
});

test('an account that may send no marketing fails the campaign in words, and a later one tries for itself', async () => {
  const refused = await aCampaign();
  answer = { code: 131_063 };
  await refused.send();
  const failed = await inStatus(refused.id, 'failed');
  expect(failed).toMatchObject({
    failure_reason: expect.stringMatching(/takes no marketing from this account: .*131063/) as string,
  });
  answer = undefined;
  await chatAppWithStatus(server, await aMessage((await aTemplate()).id), 'delivered');
  clock.putForward(1_000);
  const later = await aCampaign();
  await later.send();
  await sentInTime(later.id);
});

test('copies that have waited for longer than a day with their campaign are not given up for it', async () => {
  const campaign = await aCampaign();
  answer = { code: 131_042, status: 402 };
  await campaign.send();
  await inStatus(campaign.id, 'paused');
  // None is under way any more, whose refusal would hold the account again.
  await eventually(
    () =>
      rowsOf(
        server,
        `select from delivery_queue q join campaigns c on c.message_id = q.message_id
         where c.id = $1 and q.organization_id = $2 and q.lane = 2 and q.claimed_by is null`,
        [campaign.id, server.organizationId],
      ),
    (hidden) => hidden.length === campaign.numbers.length,
  );
  clock.putForward(26 * 3_600_000);
  // The first that they hear then is a word to wait.
  answer = { code: 4 };
  const before = graph.counts.refused;
  await server.installation.database.asOrganizations([server.organizationId], (transaction) =>
    releaseCampaigns(transaction, server.organizationId),
  );
  await eventually(
    async () => {
      // What was known of the account just before may have put them off for a minute.
      await passIdleTime();
      return graph.counts.refused - before;
    },
    (count) => count >= campaign.numbers.length,
  );
  answer = undefined;
  await sentInTime(campaign.id);
  for (const number of campaign.numbers) expect(takenBy(number)).toBe(1);
});

test('STOP ends the copies of a campaign that have not left', async () => {
  const campaign = await aCampaign(2);
  const [leaving, stopped] = campaign.numbers as [string, string];
  await putOff(campaign);
  const inbound = {
    ...{ messaging_product: 'whatsapp', metadata },
    contacts: [{ profile: { name: 'Ann' }, wa_id: stopped.slice(1) }],
    messages: [
      {
        ...{ from: stopped.slice(1), id: 'wamid.inbound', type: 'text', text: { body: 'Stop' } },
        timestamp: String(Math.floor(clock.nowMs() / 1_000)),
      },
    ],
  };
  expect(await post(account, [inbound])).toBe(200);
  await allApplied();
  clock.putForward(5_000);
  answer = undefined;
  const ended = await eventually(
    async () => {
      clock.putForward(60_000);
      return readCampaign(campaign.id);
    },
    ({ status, stats }) => status === 'sent' && stats.pending === 0,
  );
  expect(ended.stats).toMatchObject({ audience: 2, sent: 1, dropped: 1 });
  expect([takenBy(leaving), takenBy(stopped)]).toEqual([1, 0]);
});
