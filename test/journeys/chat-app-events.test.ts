/** What providers of chat-app messages tell: of messages, of people, and of templates. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { setAccount } from '../../src/chat-templates/chat-templates.ts';
import type { ChatAppFinding, ChatAppPerson, ToldOfChatApp } from '../../src/channels/chatapp/provider.ts';
import { createChatAppIntake, startChatAppEvents } from '../../src/chatapp/chatapp.ts';
import { insertChatAppEvents, takeDueChatAppEvents } from '../../src/chatapp/event-store.ts';
import { keepProviderIds, startProviderEvents } from '../../src/messages/messages.ts';
import { now } from '../../src/platform/clock.ts';
import type { RunningChore } from '../../src/platform/queue/chore.ts';
import { messageChannels } from '../support/channels.ts';
import {
  addChatTemplate,
  postChatApp,
  readChatApp,
  sendChatApp,
  written,
} from '../support/chat-app-journey.ts';
import { authorize, createShiftedClock, eventually, rowsOf, type Sender } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
let templateId: string;
const chores: RunningChore[] = [];
const clock = createShiftedClock();
const [ownAccount, othersAccount] = ['1001', '2002'];

beforeAll(async () => {
  server = await startTestServer({ clock });
  const { installation } = server;
  other = await createSender(installation, 'other.example');
  const account = (businessAccountId: string) => ({
    businessAccountId,
    phoneNumberIds: ['1'],
    accessToken: 'token',
    ownApp: null,
  });
  await setAccount(installation, server.organizationId, account(ownAccount));
  await setAccount(installation, other.organizationId, account(othersAccount));
  templateId = (await addChatTemplate(server, { content: written('Hello') })).id;
  const feedback = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };
  chores.push(
    startProviderEvents({ ...installation, ...feedback, channels: messageChannels }),
    startChatAppEvents({ ...installation, ...feedback }),
  );
});
afterAll(async () => {
  await Promise.all(chores.map((chore) => chore.stop()));
  await rowsOf(server, 'truncate delivery_queue');
  await server.stop();
});

type Told = ToldOfChatApp & { organizationId: string | null };

function tell(...told: readonly Told[]) {
  const wake = () => {
    for (const chore of chores) chore.wake();
  };
  const take = createChatAppIntake({
    ...server.installation,
    provider: 'whatsapp',
    onReported: wake,
    onTold: wake,
  });
  return Promise.all(told.map(take));
}

async function allApplied(): Promise<void> {
  await eventually(
    () =>
      rowsOf(
        server,
        `select due_at from chat_app_events where due_at <= $1 union all select due_at from provider_events where due_at <= $1`,
        [now(clock)],
      ),
    (left) => left.length === 0,
  );
}

let made = 0;
const aNumber = () => `+4915177${String((made += 1)).padStart(6, '0')}`;
const aWamid = () => `wamid.${(made += 1)}`;
const personOf = (number: string, userId: string | null = null): ChatAppPerson => ({
  waId: number.slice(1),
  userId,
});

type Status = 'sent' | 'delivered' | 'opened' | 'failed';

function statusOf(
  messageId: string | null,
  status: Status,
  more: {
    wamid?: string;
    person?: ChatAppPerson;
    finding?: ChatAppFinding;
    account?: string;
    of?: string;
  } = {},
): Told {
  const reference =
    messageId === null ? null : { organizationId: more.of ?? server.organizationId, messageId, ordinal: 0 };
  return {
    kind: 'status',
    businessAccountId: more.account ?? ownAccount,
    organizationId: null,
    report: {
      providerMessageId: more.wamid ?? aWamid(),
      reference,
      to: null,
      senderName: null,
      status,
      failure: status === 'failed' ? 'blocked' : null,
      diagnostic: status === 'failed' ? '131050 stopped' : null,
    },
    person: more.person ?? { waId: null, userId: null },
    finding: more.finding ?? null,
  };
}

function said(text: string, person: ChatAppPerson, more: { at?: Date; account?: string } = {}): Told {
  const { at = now(clock), account: businessAccountId = ownAccount } = more;
  return {
    kind: 'inbound',
    businessAccountId,
    organizationId: null,
    providerMessageId: aWamid(),
    person,
    text,
    at,
  };
}

function prefers(value: 'stop' | 'resume', person: ChatAppPerson, at = now(clock)): Told {
  return {
    kind: 'marketing_preference',
    businessAccountId: ownAccount,
    organizationId: null,
    person,
    value,
    at,
  };
}

async function aContact(number: string, sender?: Sender): Promise<string> {
  const contact = { phone_number: number };
  const { body } = await server.request<{ id: string }>('POST', '/v1/contacts', contact, authorize(sender));
  return body.id;
}

async function consentOf(contactId: string, sender?: Sender): Promise<string> {
  const { body } = await server.request<{ consent: { chatapp: string } }>(
    'GET',
    `/v1/contacts/${contactId}`,
    undefined,
    authorize(sender),
  );
  return body.consent.chatapp;
}

const mayBeSentTo = async (to: string) => {
  const { status } = await postChatApp(server, { to, template_id: templateId });
  return status === 202;
};

/** As after a hand-off that was accepted, or whose answer was lost. */
async function aSentMessage(to = aNumber(), wamid: string | null = null): Promise<string> {
  const id = await sendChatApp(server, { to, template_id: templateId });
  await rowsOf(server, 'delete from delivery_queue where message_id = $1', [id]);
  if (wamid !== null) {
    const job = { organizationId: server.organizationId, messageId: id, ordinal: 0 };
    const ids = [{ job, channel: 'chatapp' as const, providerMessageId: wamid }];
    await keepProviderIds(server.installation.database, ids, now(clock));
  }
  return id;
}

test('statuses find their message by our own token or by the id of the provider, in any order, twice, and never by number', async () => {
  const to = aNumber();
  const wamid = aWamid();
  const [byToken, byId, unknown] = [
    await aSentMessage(to),
    await aSentMessage(to, wamid),
    await aSentMessage(to),
  ];
  const person = personOf(to);
  await tell(
    statusOf(byToken, 'opened', { person }),
    statusOf(byToken, 'delivered', { person }),
    statusOf(null, 'delivered', { wamid }),
    statusOf(null, 'delivered', { wamid }),
    statusOf(null, 'sent', { wamid }),
    statusOf(null, 'delivered', { person }),
  );
  await allApplied();
  const shown = await Promise.all([byToken, byId, unknown].map((id) => readChatApp(server, id)));
  expect(shown.map(({ status }) => status)).toEqual(['read', 'delivered', 'queued']);
});

test('a business account says nothing of what another organization has sent, nor does one that nobody has', async () => {
  const wamid = aWamid();
  const id = await aSentMessage(aNumber(), wamid);
  await tell(
    statusOf(id, 'opened', { account: othersAccount }),
    statusOf(null, 'opened', { wamid, account: othersAccount }),
    { ...statusOf(id, 'opened'), organizationId: other.organizationId },
    statusOf(id, 'opened', { account: '3003' }),
  );
  await allApplied();
  expect((await readChatApp(server, id)).status).toBe('queued');
  const left = 'select from provider_events where position($1 in report::text) > 0';
  expect(await rowsOf(server, left, [id])).toEqual([]);
  await tell(statusOf(id, 'delivered'));
  await allApplied();
  expect((await readChatApp(server, id)).status).toBe('delivered');
});

test('STOP opts the number out of everything of one organization, and START in again', async () => {
  const number = aNumber();
  const [own, theirs] = [await aContact(number), await aContact(number, other)];
  await tell(said(' Stop. ', personOf(number)));
  await allApplied();
  expect([await consentOf(own), await consentOf(theirs, other)]).toEqual(['unsubscribed', 'subscribed']);
  expect(await mayBeSentTo(number)).toBe(false);
  await tell(said('Please stop calling me', personOf(number)), said('HELP', personOf(number)));
  await tell(said('START', personOf(number)));
  await allApplied();
  expect([await consentOf(own), await mayBeSentTo(number)]).toEqual(['subscribed', true]);
});

test('what was said last counts, in whatever order it is told', async () => {
  const number = aNumber();
  const contact = await aContact(number);
  const at = (seconds: number) => new Date(clock.nowMs() - 60_000 + seconds * 1_000);
  await tell(said('STOP', personOf(number), { at: at(20) }));
  await allApplied();
  await tell(said('START', personOf(number), { at: at(10) }));
  await allApplied();
  expect([await consentOf(contact), await mayBeSentTo(number)]).toEqual(['unsubscribed', false]);
  // A time in the future would keep the person from ever taking it back.
  await tell(said('STOP', personOf(number), { at: new Date(clock.nowMs() + 86_400_000) }));
  await allApplied();
  clock.putForward(1_000);
  await tell(said('START', personOf(number)));
  await allApplied();
  expect([await consentOf(contact), await mayBeSentTo(number)]).toEqual(['subscribed', true]);
  await tell(said('STOP', personOf(number), { at: at(30) }));
  await allApplied();
  expect([await consentOf(contact), await mayBeSentTo(number)]).toEqual(['subscribed', true]);
});

test('a person who hides the number is found by the id that a status has told, also where it comes later', async () => {
  const number = aNumber();
  const contact = await aContact(number);
  const userId = `DE.${(made += 1)}`;
  const id = await aSentMessage(number);
  await tell(said('STOP', { waId: null, userId }));
  await tell(statusOf(id, 'sent', { person: { waId: number.slice(1), userId } }));
  await eventually(
    () => consentOf(contact),
    (consent) => consent === 'unsubscribed',
  );
  // As another organization calls somebody else.
  expect(
    await rowsOf(
      server,
      'select organization_id, address from chat_app_people where known_as = $1 and organization_id = $2',
      [userId, server.organizationId],
    ),
  ).toEqual([{ organization_id: server.organizationId, address: number }]);
});

test('a number that the provider writes otherwise is found by how it was written to', async () => {
  const number = `+5511${String(900_000_000 + (made += 1))}`;
  const contact = await aContact(number);
  const writtenAs = { waId: number.slice(1).replace('119', '11'), userId: null };
  await tell(statusOf(await aSentMessage(number), 'delivered', { person: writtenAs }));
  await allApplied();
  await tell(said('STOP', writtenAs));
  await allApplied();
  expect([await consentOf(contact), await mayBeSentTo(number)]).toEqual(['unsubscribed', false]);
});

test('what a person has set against marketing withdraws consent and leaves notices, and to resume undoes only that', async () => {
  const [first, second, third] = [aNumber(), aNumber(), aNumber()];
  const contacts = [await aContact(first), await aContact(second), await aContact(third)];
  const consents = () => Promise.all(contacts.map((id) => consentOf(id)));
  const patch = (id: string, chatapp: string) =>
    server.request('PATCH', `/v1/contacts/${id}`, { consent: { chatapp } });
  await patch(contacts[1]!, 'unsubscribed');
  for (const number of [first, second, third]) await tell(prefers('stop', personOf(number)));
  await allApplied();
  expect(await consents()).toEqual(['unsubscribed', 'unsubscribed', 'unsubscribed']);
  expect(await mayBeSentTo(first)).toBe(true);
  // Somebody has asked the third one, and was then told no.
  await patch(contacts[2]!, 'subscribed');
  await patch(contacts[2]!, 'unsubscribed');
  clock.putForward(1_000);
  for (const number of [first, second, third]) await tell(prefers('resume', personOf(number)));
  await allApplied();
  expect(await consents()).toEqual(['subscribed', 'unsubscribed', 'unsubscribed']);
});

test('to resume does not undo STOP', async () => {
  const number = aNumber();
  const contact = await aContact(number);
  await tell(prefers('stop', personOf(number)));
  await allApplied();
  await tell(said('STOP', personOf(number)));
  await allApplied();
  clock.putForward(1_000);
  await tell(prefers('resume', personOf(number)));
  await allApplied();
  expect([await consentOf(contact), await mayBeSentTo(number)]).toEqual(['unsubscribed', false]);
});

test('a refusal because the person stopped marketing withdraws consent, of this organization alone', async () => {
  const number = aNumber();
  const [own, theirs] = [await aContact(number), await aContact(number, other)];
  const id = await aSentMessage(number);
  await tell(statusOf(id, 'failed', { finding: { kind: 'stopped_marketing' } }));
  await allApplied();
  expect([await consentOf(own), await consentOf(theirs, other)]).toEqual(['unsubscribed', 'subscribed']);
  expect((await readChatApp(server, id)).error).toMatchObject({ code: 'blocked' });
});

/** Its outcome is written, so that it is known when that was. */
async function aHandedOffMessage(number: string): Promise<string> {
  const id = await aSentMessage(number);
  await rowsOf(
    server,
    'update recipients set handed_off_at = $3 where organization_id = $1 and message_id = $2',
    [server.organizationId, id, now(clock)],
  );
  return id;
}

test.each(['START', 'the setting in the app', 'a consent by the API'])(
  'a refusal of a message from before %s withdraws nothing, and that of a later one does',
  async (way) => {
    const number = aNumber();
    const contact = await aContact(number);
    await tell(prefers('stop', personOf(number)));
    await allApplied();
    const refuse = async (id: string) => {
      await tell(statusOf(id, 'failed', { finding: { kind: 'stopped_marketing' } }));
      await allApplied();
    };
    const older = await aHandedOffMessage(number);
    clock.putForward(1_000);
    if (way === 'START') await tell(said('START', personOf(number)));
    else if (way === 'the setting in the app') await tell(prefers('resume', personOf(number)));
    else await server.request('PATCH', `/v1/contacts/${contact}`, { consent: { chatapp: 'subscribed' } });
    await allApplied();
    expect(await consentOf(contact)).toBe('subscribed');
    await refuse(older);
    expect(await consentOf(contact)).toBe('subscribed');

    clock.putForward(1_000);
    await refuse(await aHandedOffMessage(number));
    expect(await consentOf(contact)).toBe('unsubscribed');
  },
);

test('a person who resumed after a message that is refused late has resumed', async () => {
  const number = aNumber();
  const contact = await aContact(number);
  const id = await aHandedOffMessage(number);
  clock.putForward(1_000);
  const resumedAt = now(clock);
  clock.putForward(1_000);
  await tell(statusOf(id, 'failed', { finding: { kind: 'stopped_marketing' } }));
  await allApplied();
  expect(await consentOf(contact)).toBe('unsubscribed');
  await tell(prefers('resume', personOf(number), resumedAt));
  await allApplied();
  expect(await consentOf(contact)).toBe('subscribed');
});

test('a report that a template was paused stops it', async () => {
  const { id } = await addChatTemplate(server, { content: written('Hello') });
  const message = await sendChatApp(server, { to: aNumber(), template_id: id });
  const finding = { kind: 'template', state: 'paused', words: '132015' } as const;
  await tell(statusOf(message, 'failed', { finding }));
  await allApplied();
  expect((await postChatApp(server, { to: aNumber(), template_id: id })).status).toBe(400);
});

test('a new number of a person who said stop is opted out too', async () => {
  const [before, after, unaffected] = [aNumber(), aNumber(), aNumber()];
  await tell(said('STOP', personOf(before)));
  await allApplied();
  const change = (from: string, to: string): Told => ({
    kind: 'changed_number',
    businessAccountId: ownAccount,
    organizationId: null,
    person: personOf(from),
    newPerson: personOf(to, `DE.new${to}`),
    at: now(clock),
  });
  await tell(change(before, after), change(aNumber(), unaffected));
  await allApplied();
  expect([await mayBeSentTo(after), await mayBeSentTo(unaffected)]).toEqual([false, true]);
});

test('a template that is told of by its business account is reviewed', async () => {
  const [own, theirs] = [
    await addChatTemplate(server, { name: 'told', content: written('Hello') }),
    await addChatTemplate(server, {
      name: 'told',
      content: written('Hello'),
      organizationId: other.organizationId,
    }),
  ];
  await tell({
    kind: 'template',
    businessAccountId: ownAccount,
    organizationId: null,
    template: {
      providerTemplateId: own.id,
      name: 'told',
      language: 'en_US',
      state: 'disabled',
      category: null,
      rejectionReason: null,
      quality: null,
    },
  });
  await allApplied();
  const states = await rowsOf(
    server,
    'select provider_state from chat_templates where id = any ($1) order by id = $2',
    [[own.id, theirs.id], own.id],
  );
  expect(states).toEqual([{ provider_state: 'approved' }, { provider_state: 'disabled' }]);
});

test('a person whose contact was deleted is forgotten, by every name', async () => {
  const number = aNumber();
  const contact = await aContact(number);
  const userId = `DE.${(made += 1)}`;
  await tell(
    statusOf(await aSentMessage(number), 'delivered', { person: { waId: number.slice(1), userId } }),
  );
  await tell(said('STOP', personOf(number)));
  await allApplied();
  const traces = () =>
    rowsOf(
      server,
      `select address from chat_app_people where organization_id = $1 and address = $2
       union all select address from chat_app_choices where organization_id = $1 and address = $2`,
      [server.organizationId, number],
    );
  expect(await traces()).toHaveLength(2);
  await server.request('DELETE', `/v1/contacts/${contact}`);
  expect(await traces()).toEqual([]);
  // The opt-out outlives it.
  expect(await mayBeSentTo(number)).toBe(false);
});

test('what was told by hundreds at once is all applied', async () => {
  const people = Array.from({ length: 250 }, () => aNumber());
  await tell(...people.map((number) => said('STOP', personOf(number))));
  await allApplied();
  const [row] = await rowsOf<{ count: number }>(
    server,
    'select count(*)::integer as count from chat_app_choices where organization_id = $1 and address = any ($2)',
    [server.organizationId, people],
  );
  expect(row!.count).toBe(250);
});

test('what is told of one organization, however much, keeps no other from its turn', async () => {
  const { database, newId } = server.installation;
  const dueAt = new Date(clock.nowMs() + 3_600_000);
  const eventOf = (organizationId: string) => {
    const event = { ...said('STOP', personOf(aNumber())), organizationId } as const;
    return { id: newId(), attempts: 0, event, dueAt };
  };
  const others = Array.from({ length: 30 }, () => eventOf(other.organizationId));
  const own = [eventOf(server.organizationId), eventOf(server.organizationId)];
  await insertChatAppEvents(database, [...others, ...own] as never);
  const take = async (eventsMax: number) => {
    const taken = await database.transaction((transaction) =>
      takeDueChatAppEvents(transaction, dueAt, eventsMax),
    );
    return taken.map(({ id }) => id);
  };
  const idsOf = (events: readonly { id: string }[]) => events.map(({ id }) => id);
  expect(await take(10)).toEqual(idsOf([...others.slice(0, 8), ...own]));
  expect(await take(10)).toEqual(idsOf(others.slice(8, 18)));
  expect(await take(100)).toEqual(idsOf(others.slice(18)));
});

test('no more than 10,000 words of people whom nobody knows wait, of each organization', async () => {
  await rowsOf(
    server,
    `insert into chat_app_events (id, event, due_at, attempts)
     select gen_random_uuid(), json_build_object('kind', 'inbound', 'organizationId', $1::uuid), $2, 1
     from generate_series(1, 9999)`,
    [other.organizationId, new Date(clock.nowMs() + 3_600_000)],
  );
  const hidden = (userId: string): ChatAppPerson => ({ waId: null, userId });
  await tell(
    ...[said('STOP', hidden('US.1'), { account: othersAccount })],
    ...[said('STOP', hidden('US.2'), { account: othersAccount }), said('STOP', hidden('US.3'))],
  );
  await eventually(
    () => rowsOf(server, 'select from chat_app_events where attempts = 0'),
    (left) => left.length === 0,
  );
  const counts = await rowsOf<{ organization_id: string; count: number }>(
    server,
    `select organization_id, count(*)::integer as count
     from chat_app_events
     group by organization_id
     order by count`,
  );
  expect(counts).toEqual([
    { organization_id: server.organizationId, count: 1 },
    { organization_id: other.organizationId, count: 10_000 },
  ]);
  await rowsOf(server, 'truncate chat_app_events');
});

test('no more than 10,000 reports of messages that nobody knows wait, of each organization', async () => {
  // What other tests have left there.
  await rowsOf(server, 'truncate provider_events');
  await rowsOf(
    server,
    `insert into provider_events (id, channel, provider, report, due_at, attempts, of_organization)
     select gen_random_uuid(), 'chatapp', 'whatsapp', '{}', $2, 1, $1
     from generate_series(1, 9999)`,
    [other.organizationId, new Date(clock.nowMs() + 3_600_000)],
  );
  await tell(
    ...[
      statusOf(null, 'sent', { account: othersAccount }),
      statusOf(null, 'sent', { account: othersAccount }),
    ],
    statusOf(null, 'sent'),
  );
  await eventually(
    () => rowsOf(server, 'select from provider_events where attempts = 0'),
    (left) => left.length === 0,
  );
  const counts = await rowsOf<{ of_organization: string; count: number }>(
    server,
    `select of_organization, count(*)::integer as count
     from provider_events
     group by of_organization
     order by count`,
  );
  expect(counts).toEqual([
    { of_organization: server.organizationId, count: 1 },
    { of_organization: other.organizationId, count: 10_000 },
  ]);
  await rowsOf(server, 'truncate provider_events');
});
