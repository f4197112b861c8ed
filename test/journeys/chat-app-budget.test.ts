/** To how many people WhatsApp lets an organization write within 24 hours, and what campaigns make of it. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { findBudget, setAccount } from '../../src/chat-templates/chat-templates.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { addChatTemplate, chatAppWithStatus, sendChatApp } from '../support/chat-app-journey.ts';
import { authorize, createShiftedClock, eventually, rowsOf, type Sender } from '../support/email-journey.ts';
import { type Graph, type GraphAnswer, type GraphMessage, startGraph } from '../support/graph.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let graph: Graph;
let server: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();

const [account, phoneNumber, othersAccount, othersNumber] = ['1001', '1', '2002', '2'] as const;
const appSecret = 'secret of the installation';
const [minuteMs, hourMs] = [60_000, 3_600_000];

/** By number: what it says when it is asked, which it is once in an hour. */
const tiers: Record<string, string> = { [phoneNumber]: 'TIER_250', [othersNumber]: 'TIER_2K' };

let answer: ((message: GraphMessage) => GraphAnswer | undefined) | undefined;

const describeNumber = (limit: string) => ({
  ...{ display_phone_number: '+1 555 078 3881', quality_rating: 'GREEN', throughput: { level: 'HIGH' } },
  whatsapp_business_manager_messaging_limit: limit,
});

beforeAll(async () => {
  graph = await startGraph({
    answer: (message) => answer?.(message),
    businessAccountOf: (number) => (number === phoneNumber ? account : othersAccount),
    answerQuestion: ({ path }) => ({
      status: 200,
      body: JSON.stringify(describeNumber(tiers[path.split('/').at(-1)!] ?? '')),
    }),
  });
  server = await startTestServer({
    worker: true,
    clock,
    chatAppProvider: 'whatsapp',
    providerSettings: {
      POSTILLION_WHATSAPP_URL: `http://127.0.0.1:${graph.port}`,
      POSTILLION_WHATSAPP_APP_SECRET: appSecret,
      POSTILLION_WHATSAPP_VERIFY_TOKEN: 'word',
    },
  });
  other = await createSender(server.installation, 'other.example');
  const give = (organizationId: string, businessAccountId: string, number: string) =>
    setAccount(server.installation, organizationId, {
      ...{ businessAccountId, phoneNumberIds: [number], accessToken: 'token', ownApp: null },
    });
  await give(server.organizationId, account, phoneNumber);
  await give(other.organizationId, othersAccount, othersNumber);
  graph.setWebhooks({ url: `${server.url}/callbacks/whatsapp`, appSecret });
});
afterAll(async () => {
  await graph.close();
  await server.stop();
  expect(graph.faults).toEqual([]);
});
/** Each test has a day of its own. */
beforeEach(async () => {
  answer = undefined;
  clock.putForward(25 * hourMs);
  await tell('TIER_250', 250);
  await tell('TIER_2K', 2_000, other);
});

const budget = (organizationId = server.organizationId) =>
  server.installation.database.asOrganizations([organizationId], (transaction) =>
    findBudget(transaction, organizationId, new Date(clock.nowMs())),
  );
const reached = async (organizationId = server.organizationId) => (await budget(organizationId))?.reached;

/** What was delivered may be told before the outcome of its hand-off is written. */
const reachedBecomes = (people: number, organizationId?: string) =>
  eventually(
    () => reached(organizationId),
    (counted) => counted === people,
  );

async function tell(
  tier: string,
  limit: number | null,
  sender: { organizationId: string } = server,
): Promise<void> {
  const [whose, number] = sender === server ? [account, phoneNumber] : [othersAccount, othersNumber];
  tiers[number] = tier;
  graph.tell(whose, 'business_capability_update', { max_daily_conversations_per_business: tier });
  await eventually(
    () => budget(sender.organizationId),
    (told) => (told?.peopleMax ?? null) === limit,
  );
}

let made = 0;
const numbers = (count: number) =>
  Array.from({ length: count }, () => `+4915177${String((made += 1)).padStart(6, '0')}`);

const ask = <Body>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

async function make(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body, sender);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

async function aList(people: readonly string[], sender?: Sender & { organizationId: string }) {
  const list = await make('/lists', { name: `List ${(made += 1)}` }, sender);
  await rowsOf(
    server,
    `with given as (
       select * from unnest($2::text[]) as given (phone_number)
     ), made as (
       insert into contacts (organization_id, id, phone_number, first_name, created_at, updated_at)
       select $1, gen_random_uuid(), phone_number, 'Ann', now(), now() from given
       on conflict do nothing
       returning id
     ), known as (
       select id from contacts where organization_id = $1 and phone_number in (select phone_number from given)
       union
       select id from made
     )
     insert into memberships (organization_id, set_id, contact_id) select $1, $3, id from known`,
    [sender?.organizationId ?? server.organizationId, people, list],
  );
  return list;
}

type Campaign = {
  status: string;
  pause_reason: string | null;
  stats: { audience: number; pending: number; sent: number; delivered: number };
};

async function aCampaign(people: readonly string[], sender?: Sender & { organizationId: string }) {
  const { organizationId } = sender ?? server;
  const template = await addChatTemplate(server, { category: 'marketing', organizationId });
  const list = await aList(people, sender);
  const draft = { name: `Campaign ${(made += 1)}`, list_ids: [list], template_id: template.id };
  const parameters = { first_name: '{{first_name}}' };
  return make('/chatapp/campaigns', { ...draft, parameters }, sender);
}

const read = async (id: string, sender?: Sender) =>
  (await ask<Campaign>('GET', `/chatapp/campaigns/${id}`, undefined, sender)).body;
const send = (id: string, sender?: Sender) => ask('POST', `/chatapp/campaigns/${id}/send`, {}, sender);
const paused = (id: string) =>
  eventually(
    () => read(id),
    ({ status }) => status === 'paused',
  );
const sent = (id: string, sender?: Sender, byMs = 0) =>
  eventually(
    () => {
      clock.putForward(byMs);
      return read(id, sender);
    },
    ({ status, stats }) => status === 'sent' && stats.delivered === stats.audience,
  );

/** Different people among these whom the stand-in has taken a message for, from that number. */
function takenOf(people: readonly string[], from: string = phoneNumber): number {
  const wanted = new Set(people);
  return new Set(
    graph.messages.flatMap(({ to, phoneNumberId }) => (phoneNumberId === from && wanted.has(to) ? [to] : [])),
  ).size;
}

const takenBecomes = (people: readonly string[], count: number) =>
  eventually(
    () => Promise.resolve(takenOf(people)),
    (taken) => taken === count,
  );

async function aMessage(to = numbers(1)[0]!): Promise<string> {
  const template = await addChatTemplate(server);
  return sendChatApp(server, { to, template_id: template.id, parameters: { first_name: 'Ann' } });
}

const queueOf = (campaign: string) =>
  rowsOf(
    server,
    `select
     from (
       select organization_id, message_id from delivery_queue
       union all
       select organization_id, message_id from delivery_slices
     ) q
     join messages m on m.organization_id = q.organization_id and m.id = q.message_id
     where m.organization_id = $1 and m.campaign_id = $2`,
    [server.organizationId, campaign],
  );

test('a campaign reaches all but a tenth of the limit, waits, says why, and goes on when the day has moved', async () => {
  const people = numbers(300);
  const [id, othersId] = [await aCampaign(people), await aCampaign(people, other)];
  await Promise.all([send(id), send(othersId, other)]);
  expect(await paused(id)).toMatchObject({ pause_reason: 'messaging_limit' });
  await takenBecomes(people, 225);
  // The other organization, whose contacts have the same numbers, has a limit of its own.
  await sent(othersId, other);
  expect(takenOf(people, othersNumber)).toBe(300);
  await reachedBecomes(225);
  await reachedBecomes(300, other.organizationId);
  const single = await aMessage();
  await chatAppWithStatus(server, single, 'delivered');
  await reachedBecomes(226);
  for (let hour = 0; hour < 23; hour += 1) clock.putForward(hourMs);
  expect(await read(id)).toMatchObject({ status: 'paused', pause_reason: 'messaging_limit' });
  expect(takenOf(people)).toBe(225);
  clock.putForward(hourMs);
  expect(await sent(id, undefined, minuteMs)).toMatchObject({ pause_reason: null });
  expect(takenOf(people)).toBe(300);
  expect(graph.messages.filter(({ to }) => people.includes(to))).toHaveLength(600);
});

test('a campaign to people who were written to within the day takes nothing of the limit', async () => {
  const people = numbers(225);
  const [first, again, mixed] = [
    await aCampaign(people),
    await aCampaign(people),
    await aCampaign([...people, ...numbers(1)]),
  ];
  await send(first);
  await sent(first);
  await send(again);
  await sent(again);
  await send(mixed);
  expect(await paused(mixed)).toMatchObject({ pause_reason: 'messaging_limit' });
  await reachedBecomes(225);
  await eventually(
    () => queueOf(mixed),
    (left) => left.length === 0,
  );
  expect((await ask('DELETE', `/chatapp/campaigns/${mixed}`)).status).toBe(200);
});

test('a limit that is raised lets campaigns go on at once', async () => {
  const people = numbers(230);
  const id = await aCampaign(people);
  await send(id);
  await paused(id);
  await tell('TIER_2K', 2_000);
  await sent(id);
  await reachedBecomes(230);
});

test('without a limit nobody is counted, and no campaign waits', async () => {
  await tell('TIER_UNLIMITED', null);
  const people = numbers(240);
  const id = await aCampaign(people);
  await send(id);
  await sent(id);
  await tell('TIER_250', 250);
  await reachedBecomes(0);
});

test('a limit that is lowered below what was reached keeps in the queue what is there, but for single messages', async () => {
  await tell('TIER_2K', 2_000);
  const [reachedPeople, waitingPeople] = [numbers(260), numbers(100)];
  const [first, second] = [await aCampaign(reachedPeople), await aCampaign(waitingPeople)];
  await send(first);
  await sent(first);
  // What is tried now is due again after a minute.
  const refusedBefore = graph.counts.refused;
  answer = () => ({ code: 4 });
  await send(second);
  await eventually(
    () => Promise.resolve(graph.counts.refused - refusedBefore),
    (refused) => refused > 0,
  );
  await tell('TIER_250', 250);
  expect(await paused(second)).toMatchObject({ pause_reason: 'messaging_limit' });
  // What was claimed before the limit was lowered is refused as well.
  await eventually(
    () =>
      rowsOf(server, 'select from delivery_queue where organization_id = $1 and claimed_by is not null', [
        server.organizationId,
      ]),
    (claimed) => claimed.length === 0,
  );
  answer = undefined;
  const single = await aMessage();
  await chatAppWithStatus(server, single, 'delivered');
  for (let hour = 0; hour < 3; hour += 1) clock.putForward(hourMs);
  const later = await aMessage();
  await chatAppWithStatus(server, later, 'delivered');
  expect(takenOf(waitingPeople)).toBe(0);
  clock.putForward(21 * hourMs);
  await sent(second, undefined, 10 * minuteMs);
});

test('two campaigns that two nodes send at once reach no more than one of them may', async () => {
  const node = await startWorker(server.installation);
  try {
    const [one, two] = [numbers(200), numbers(200)];
    const ids = [await aCampaign(one), await aCampaign(two)];
    await Promise.all(ids.map((id) => send(id)));
    await takenBecomes([...one, ...two], 225);
    await Promise.all(
      ids.map((id) =>
        eventually(
          () => read(id),
          ({ status }) => status === 'paused' || status === 'sent',
        ),
      ),
    );
    await chatAppWithStatus(server, await aMessage(), 'delivered');
    expect(takenOf([...one, ...two])).toBe(225);
    // Started anew, and on the next day.
    clock.putForward(24 * hourMs);
    await Promise.all(ids.map((id) => sent(id, undefined, minuteMs)));
    expect(takenOf([...one, ...two])).toBe(400);
  } finally {
    await node.stop();
  }
});

test('whoever a hand-off without an answer may have reached is counted, and whoever was refused is not', async () => {
  answer = ({ to }) => (to.endsWith('1') ? 'lost' : { code: 131_026 });
  const people = numbers(30);
  const expected = people.filter((to) => to.endsWith('1')).length;
  const id = await aCampaign(people);
  await send(id);
  await eventually(
    () => read(id),
    ({ status, stats }) => status === 'sent' && stats.pending === 0,
  );
  await reachedBecomes(expected);
});

test('a contact who is deleted is forgotten here too, and still counted', async () => {
  const [person, neighbour] = numbers(2) as [string, string];
  await aList([person, neighbour]);
  for (const to of [person, neighbour]) await chatAppWithStatus(server, await aMessage(to), 'delivered');
  await reachedBecomes(2);
  const kept = () =>
    rowsOf(server, 'select person from chat_app_reached_people where organization_id = $1 and period > $2', [
      server.organizationId,
      new Date(clock.nowMs() - 2 * hourMs),
    ]);
  expect(await kept()).toHaveLength(2);
  const [contact] = await rowsOf<{ id: string }>(
    server,
    'select id from contacts where organization_id = $1 and phone_number = $2',
    [server.organizationId, person],
  );
  expect((await ask('DELETE', `/contacts/${contact!.id}`)).status).toBe(200);
  await eventually(kept, (rows) => rows.length === 1);
  await reachedBecomes(2);
});

type Preview = { audience: number; estimated_days: number | null; warnings: string[] };
const preview = async (id: string) =>
  (await ask<Preview>('POST', `/chatapp/campaigns/${id}/preview`, {})).body;

test('a preview says how many days a campaign will take, and who gets no marketing', async () => {
  const id = await aCampaign([...numbers(497), '+15005550006', '+12125550100', '+4915112345678']);
  const many =
    'Campaigns of this organization may reach 225 people in 24 hours, and 0 were reached: 500 recipients will take about 3 days.';
  const american = '2 of the numbers begin with +1: WhatsApp delivers no marketing in the USA.';
  expect(await preview(id)).toMatchObject({ audience: 500, estimated_days: 3, warnings: [many, american] });
  await tell('TIER_2K', 2_000);
  expect(await preview(id)).toMatchObject({ estimated_days: 1, warnings: [american] });
  await tell('TIER_UNLIMITED', null);
  expect(await preview(id)).toMatchObject({ estimated_days: null, warnings: [american] });
});

test('a preview counts who was reached already, and a campaign that would fit on a day of its own', async () => {
  const people = numbers(200);
  const id = await aCampaign(people);
  expect(await preview(id)).toMatchObject({ estimated_days: 1, warnings: [] });
  await send(id);
  await sent(id);
  await reachedBecomes(200);
  const next = await preview(await aCampaign(numbers(26)));
  expect(next).toMatchObject({ estimated_days: 2 });
  expect(next.warnings.join()).toContain('and 200 were reached: 26 recipients will take about 2 days.');
});

test('the sandbox has such a limit if it is told to', async () => {
  const sandbox = await startTestServer({
    worker: true,
    clock,
    providerSettings: { POSTILLION_SANDBOX_PEOPLE_PER_DAY: '10' },
  });
  try {
    const template = await addChatTemplate(sandbox);
    const to = numbers(1)[0];
    const parameters = { first_name: 'Ann' };
    await chatAppWithStatus(
      sandbox,
      await sendChatApp(sandbox, { to, template_id: template.id, parameters }),
      'delivered',
    );
    const limits = () =>
      rowsOf(sandbox, 'select people_per_day_max from chat_app_limits where organization_id = $1', [
        sandbox.organizationId,
      ]);
    expect(await eventually(limits, (rows) => rows.length > 0)).toEqual([{ people_per_day_max: 10 }]);
    const list = (await sandbox.request<{ id: string }>('POST', '/v1/lists', { name: 'All' })).body.id;
    for (const phone_number of numbers(12))
      await sandbox.request('POST', '/v1/contacts', { phone_number, first_name: 'Ann', list_ids: [list] });
    const draft = { name: 'Many', list_ids: [list], template_id: template.id, parameters };
    const { id } = (await sandbox.request<{ id: string }>('POST', '/v1/chatapp/campaigns', draft)).body;
    const previewed = await sandbox.request('POST', `/v1/chatapp/campaigns/${id}/preview`, {});
    expect(previewed.body).toMatchObject({ estimated_days: 2 });
    await sandbox.request('POST', `/v1/chatapp/campaigns/${id}/send`, {});
    const waits = await eventually(
      async () => (await sandbox.request<Campaign>('GET', `/v1/chatapp/campaigns/${id}`)).body,
      ({ stats }) => stats.delivered >= 8,
    );
    expect(waits).toMatchObject({ status: 'paused', pause_reason: 'messaging_limit' });
    expect(waits.stats.delivered).toBeLessThanOrEqual(9);
  } finally {
    await sandbox.stop();
  }
});
