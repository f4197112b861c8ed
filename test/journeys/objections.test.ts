/**
 * Everything that may stop an accepted message, on all channels, as one table. Messages of all channels are due at
 * once in one organization, beside another one with the same people, whose campaigns are suspended on two channels.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import { campaignChannels } from '../../src/roles/channels.ts';
import type { RunningChore } from '../../src/platform/queue/chore.ts';
import { createPauses } from '../../src/platform/queue/pauses.ts';
import { createWaker } from '../../src/platform/queue/wake.ts';
import { advanceCampaign, freezeCampaign } from '../../src/campaigns/running.ts';
import type { SendingChannel } from '../../src/channels/channel.ts';
import { createChatAppIntake, startChatAppEvents } from '../../src/chatapp/chatapp.ts';
import { createIntake as createSmsIntake } from '../../src/roles/providers/sms.ts';
import { startSmsEvents } from '../../src/sms/sms.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { addChatTemplate, setTemplate, written } from '../support/chat-app-journey.ts';
import { authorize, eventually, rowsOf } from '../support/email-journey.ts';
import { androidApp, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

let server: TestServer;
let other: { organizationId: string; key: string };

const ownNumber = '14155550100';

beforeAll(async () => {
  server = await startTestServer({ newId: createShuffledIds(systemClock) });
  other = await createSender(server.installation, 'other.example');
  for (const { organizationId } of [server, other]) {
    await addApprovedSender(server, 'Acme', organizationId);
    await setUpPush(server, organizationId);
    await updateOrganization(server.installation, organizationId, { requestsPerWindow: 10_000 });
  }
  await addApprovedSender(server, ownNumber);
});
afterAll(() => server.stop());

type Sender = { organizationId: string; key: string; domain: string };

async function ask<Body>(sender: Sender, method: string, path: string, body?: object): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body, authorize(sender));
  if (response.status >= 300) throw new Error(`${method} ${path}: ${response.text}`);
  return response.body;
}

/** Has an address on every channel: a mailbox, a number, and a phone with an app. */
type Person = {
  sender: Sender;
  contactId: string;
  listId: string;
  email: string;
  number: string;
  phone: { installationId: string; token: string };
  /** Of the chat-app messages to this person. */
  templateId: string;
};

/** The kinds of messages to a person. A chat-app message names a number, or a contact, who has also a consent. */
const channelOf = {
  email: 'email',
  emailCampaign: 'email',
  sms: 'sms',
  smsCampaign: 'sms',
  push: 'push',
  pushCampaign: 'push',
  chatApp: 'chatapp',
  chatAppByContact: 'chatapp',
  chatAppCampaign: 'chatapp',
} as const satisfies Record<string, SendingChannel>;
type Kind = keyof typeof channelOf;
const kinds = Object.keys(channelOf) as Kind[];
type Meant = Person & { messages: Record<Kind, string>; campaigns: Record<SendingChannel, string> };

/** A drop reason, or: sent; `stopped`, neither sent nor dropped, for good; `waits`, in the queue. */
type Fate = 'sent' | 'unsubscribed' | 'suppressed' | 'no_address' | 'contact_deleted' | 'stopped' | 'waits';

const all: Record<Kind, Fate> = {
  ...{ email: 'sent', emailCampaign: 'sent', sms: 'sent', smsCampaign: 'sent' },
  ...{ push: 'sent', pushCampaign: 'sent' },
  ...{ chatApp: 'sent', chatAppByContact: 'sent', chatAppCampaign: 'sent' },
};

type Objecting = (person: Meant) => Promise<unknown>;
type Suppression = Parameters<typeof addSuppressions>[3][number]['reason'];

const suppress =
  (channel: 'email' | 'sms' | 'chatapp', reason: Suppression): Objecting =>
  ({ sender: { organizationId }, email, number }) =>
    addSuppressions(server.installation.database, server.installation, channel, [
      { organizationId, address: channel === 'email' ? email : number, reason },
    ]);
const change =
  (body: object): Objecting =>
  ({ sender, contactId }) =>
    ask(sender, 'PATCH', `/contacts/${contactId}`, body);
const unsubscribe = (channel: SendingChannel) => change({ consent: { [channel]: 'unsubscribed' } });
const cancel =
  (channel: SendingChannel): Objecting =>
  ({ sender, campaigns }) =>
    ask(sender, 'POST', `/${channel}/campaigns/${campaigns[channel]}/cancel`);
const stopInMemory =
  (kind: Kind): Objecting =>
  ({ messages }) =>
    rowsOf(server, 'update messages set is_stopped = true where id = $1', [messages[kind]]);
const unregister =
  (reason: 'logout' | 'opt_out'): Objecting =>
  ({ sender, phone }) =>
    ask(sender, 'POST', '/push/devices/unregister', { installation_id: phone.installationId, reason });
async function register({ sender, contactId, phone }: Omit<Person, 'templateId'>, more: object = {}) {
  const { installationId, token } = phone;
  const device = androidApp(installationId, { device_token: token, contact_id: contactId, ...more });
  await ask(sender, 'POST', '/push/devices', device);
}

/** All that has been told is applied before more is. */
async function untilApplied(): Promise<void> {
  await eventually(
    () => rowsOf(server, 'select id from sms_events union all select id from chat_app_events'),
    (left) => left.length === 0,
  );
}

const texts =
  (...keywords: readonly string[]): Objecting =>
  async ({ number: from }) => {
    const { takeInbound } = createSmsIntake(server.installation);
    for (const text of keywords) {
      await takeInbound({ providerMessageId: null, from, senderName: ownNumber, text });
      await untilApplied();
    }
  };

/** A text, or what a person sets in the app itself. */
type Saying = ({ text: string } | { marketing: 'stop' | 'resume' }) & { secondsAgo: number };

/** What people say in the chat app, in the order in which it is told. */
const says =
  (...sayings: readonly Saying[]): Objecting =>
  async ({ sender: { organizationId }, number }) => {
    const nothing = () => undefined;
    const wakers = { onReported: nothing, onTold: createWaker(server.installation, 'chat_app_events') };
    const tell = createChatAppIntake({ ...server.installation, provider: 'sandbox', ...wakers });
    for (const { secondsAgo, ...saying } of sayings) {
      const common = {
        organizationId,
        businessAccountId: organizationId,
        person: { waId: number.slice(1), userId: null },
        at: new Date(systemClock.nowMs() - 1_000 * secondsAgo),
      };
      await tell(
        'text' in saying
          ? { ...common, kind: 'inbound', providerMessageId: 'wamid.1', text: saying.text }
          : { ...common, kind: 'marketing_preference', value: saying.marketing },
      );
      await untilApplied();
    }
  };

const emailSuppressed = { ...all, email: 'suppressed', emailCampaign: 'suppressed' } as const;
const textsSuppressed = { ...all, sms: 'suppressed', smsCampaign: 'suppressed' } as const;
const pushUnreachable = { ...all, push: 'no_address', pushCampaign: 'no_address' } as const;
/** Without a word against anything but campaigns. */
const chatAppUnsubscribed = { ...all, chatAppCampaign: 'unsubscribed' } as const;
const chatAppSuppressed = {
  ...all,
  chatApp: 'suppressed',
  chatAppByContact: 'suppressed',
  chatAppCampaign: 'suppressed',
} as const;
/** Of a contact, whose consent is the reason that is found first. */
const chatAppStopped = { ...chatAppSuppressed, chatAppCampaign: 'unsubscribed' } as const;

/**
 * A suppression of an address counts for everything that is sent to it. The consent of a contact, or its deletion,
 * counts for campaigns, and for messages that name the contact: what names an address answers something that its
 * owner did. A push always names a contact.
 */
const table: readonly [string, Objecting, Record<Kind, Fate>][] = [
  ['nothing', () => Promise.resolve(), all],
  ['unsubscribed from email', unsubscribe('email'), { ...all, emailCampaign: 'unsubscribed' }],
  ['unsubscribed from SMS', unsubscribe('sms'), { ...all, smsCampaign: 'unsubscribed' }],
  [
    'unsubscribed from push',
    unsubscribe('push'),
    { ...all, push: 'unsubscribed', pushCampaign: 'unsubscribed' },
  ],
  ['unsubscribed from chat apps', unsubscribe('chatapp'), chatAppUnsubscribed],
  [
    'left the list after it was frozen',
    ({ sender, listId, contactId }) =>
      rowsOf(
        server,
        'delete from memberships where organization_id = $1 and set_id = $2 and contact_id = $3',
        [sender.organizationId, listId, contactId],
      ),
    all,
  ],
  ['email bounced hard', suppress('email', 'hard_bounce'), emailSuppressed],
  ['email complained of', suppress('email', 'complaint'), emailSuppressed],
  ['email suppressed by the operator', suppress('email', 'operator'), emailSuppressed],
  ['unsubscribed by the link of an email', suppress('email', 'unsubscribe'), emailSuppressed],
  ['STOP from a number that no contact has', suppress('sms', 'unsubscribe'), textsSuppressed],
  ['STOP by text', texts('STOP'), { ...textsSuppressed, smsCampaign: 'unsubscribed' }],
  ['STOP and START by text', texts('STOP', 'START'), all],
  ['number suppressed by the operator', suppress('sms', 'operator'), textsSuppressed],
  ['number suppressed for chat apps by the operator', suppress('chatapp', 'operator'), chatAppSuppressed],
  ['STOP in the chat app', says({ text: 'STOP', secondsAgo: 9 }), chatAppStopped],
  [
    'STOP and START in the chat app',
    says({ text: 'STOP', secondsAgo: 9 }, { text: 'Start!', secondsAgo: 8 }),
    all,
  ],
  [
    'STOP in the chat app, told after an earlier START was',
    says({ text: 'START', secondsAgo: 8 }, { text: 'STOP', secondsAgo: 7 }, { text: 'START', secondsAgo: 9 }),
    chatAppStopped,
  ],
  ['a sentence in the chat app', says({ text: 'Please stop by on Monday', secondsAgo: 9 }), all],
  ['marketing stopped in the chat app', says({ marketing: 'stop', secondsAgo: 9 }), chatAppUnsubscribed],
  [
    'marketing stopped and resumed',
    says({ marketing: 'stop', secondsAgo: 9 }, { marketing: 'resume', secondsAgo: 8 }),
    all,
  ],
  [
    'STOP, then marketing resumed',
    says({ text: 'STOP', secondsAgo: 9 }, { marketing: 'resume', secondsAgo: 8 }),
    chatAppStopped,
  ],
  [
    'unsubscribed from chat apps, then marketing stopped and resumed',
    async (person) => {
      await unsubscribe('chatapp')(person);
      await says({ marketing: 'stop', secondsAgo: 9 }, { marketing: 'resume', secondsAgo: 8 })(person);
    },
    chatAppUnsubscribed,
  ],
  ['email lost', change({ email: null }), { ...all, emailCampaign: 'no_address' }],
  [
    'number lost',
    change({ phone_number: null }),
    { ...all, smsCampaign: 'no_address', chatAppCampaign: 'no_address' },
  ],
  ['signed out of the app', unregister('logout'), pushUnreachable],
  ['opted out in the app', unregister('opt_out'), pushUnreachable],
  [
    'notifications forbidden on the phone',
    (person) => register(person, { enablement_status: 'DENIED' }),
    pushUnreachable,
  ],
  [
    'somebody else signed in on the phone',
    async (person) => {
      const { sender } = person;
      const { id } = await ask<{ id: string }>(sender, 'POST', '/contacts', { external_id: 'Somebody else' });
      await register(person, { contact_id: id });
    },
    pushUnreachable,
  ],
  [
    'contact deleted',
    ({ sender, contactId }) => ask(sender, 'DELETE', `/contacts/${contactId}`),
    {
      ...all,
      emailCampaign: 'contact_deleted',
      smsCampaign: 'contact_deleted',
      push: 'contact_deleted',
      pushCampaign: 'contact_deleted',
      chatAppByContact: 'contact_deleted',
      chatAppCampaign: 'contact_deleted',
    },
  ],
  ['email campaign cancelled', cancel('email'), { ...all, emailCampaign: 'stopped' }],
  ['SMS campaign cancelled', cancel('sms'), { ...all, smsCampaign: 'stopped' }],
  ['push campaign cancelled', cancel('push'), { ...all, pushCampaign: 'stopped' }],
  ['chat-app campaign cancelled', cancel('chatapp'), { ...all, chatAppCampaign: 'stopped' }],
  [
    'SMS campaign stopped in the memory of a worker',
    stopInMemory('smsCampaign'),
    { ...all, smsCampaign: 'stopped' },
  ],
  [
    'push campaign stopped in the memory of a worker',
    stopInMemory('pushCampaign'),
    { ...all, pushCampaign: 'stopped' },
  ],
  [
    'chat-app campaign stopped in the memory of a worker',
    stopInMemory('chatAppCampaign'),
    { ...all, chatAppCampaign: 'stopped' },
  ],
  [
    'chat-app template paused',
    ({ templateId }) => setTemplate(server.installation, templateId, `provider_state = 'paused'`),
    { ...all, chatApp: 'waits', chatAppByContact: 'waits', chatAppCampaign: 'waits' },
  ],
  [
    'chat-app template disabled',
    async (person) => {
      await setTemplate(server.installation, person.templateId, `provider_state = 'disabled'`);
      // Before a worker looks at its messages, which would let them wait for a minute.
      await advance(person.sender, person.campaigns.chatapp);
    },
    { ...all, chatApp: 'stopped', chatAppByContact: 'stopped', chatAppCampaign: 'stopped' },
  ],
];

async function aPerson(sender: Sender, name: string): Promise<Person> {
  const words = name.replaceAll(/[ ,]+/g, '.').toLowerCase();
  const email = `${words}@example.com`;
  const number = `+4915112${345_000 + table.findIndex(([row]) => row === name)}`;
  const { id: listId } = await ask<{ id: string }>(sender, 'POST', '/lists', { name });
  const { id: contactId } = await ask<{ id: string }>(sender, 'POST', '/contacts', {
    external_id: name,
    email,
    phone_number: number,
    list_ids: [listId],
  });
  const { organizationId } = sender;
  const { id: templateId } = await addChatTemplate(server, { organizationId, content: written('Message') });
  const phone = { installationId: words, token: `token-of-${words}` };
  const person = { sender, contactId, listId, email, number, phone, templateId };
  await register(person);
  return person;
}

/** A message of each kind, not handed off yet. */
async function meanAll(person: Person): Promise<Meant> {
  const { sender, listId, contactId, number, templateId } = person;
  const email = { from: `hello@${sender.domain}`, from_name: 'Postillion', subject: 'News', text: 'Email' };
  const sms = { from: 'Acme', body: 'Text' };
  const push = { title: 'News', body: 'Push' };
  const chatApp = { template_id: templateId };
  const send = async (channel: SendingChannel, body: object) =>
    (await ask<{ id: string }>(sender, 'POST', `/${channel}/send`, body)).id;
  const campaigns = {
    email: await queueCampaign(sender, 'email', { ...email, list_ids: [listId] }),
    sms: await queueCampaign(sender, 'sms', { ...sms, list_ids: [listId] }),
    push: await queueCampaign(sender, 'push', { ...push, list_ids: [listId] }),
    chatapp: await queueCampaign(sender, 'chatapp', { ...chatApp, list_ids: [listId] }),
  };
  return {
    ...person,
    messages: {
      email: await send('email', { ...email, to: [person.email] }),
      sms: await send('sms', { ...sms, to: number }),
      push: await send('push', { ...push, contact_id: contactId }),
      chatApp: await send('chatapp', { ...chatApp, to: number }),
      chatAppByContact: await send('chatapp', { ...chatApp, contact_id: contactId }),
      emailCampaign: campaigns.email.messageId,
      smsCampaign: campaigns.sms.messageId,
      pushCampaign: campaigns.push.messageId,
      chatAppCampaign: campaigns.chatapp.messageId,
    },
    campaigns: {
      email: campaigns.email.id,
      sms: campaigns.sms.id,
      push: campaigns.push.id,
      chatapp: campaigns.chatapp.id,
    },
  };
}

async function queueCampaign(sender: Sender, channel: SendingChannel, body: object) {
  const { id } = await ask<{ id: string }>(sender, 'POST', `/${channel}/campaigns`, {
    name: 'News',
    ...body,
  });
  await ask(sender, 'POST', `/${channel}/campaigns/${id}/send`, {});
  await freezeCampaign(campaignTools(), { organizationId: sender.organizationId, id });
  await advance(sender, id);
  const [row] = await rowsOf<{ message_id: string }>(
    server,
    'select message_id from campaigns where organization_id = $1 and id = $2',
    [sender.organizationId, id],
  );
  return { id, messageId: row!.message_id };
}

function campaignTools() {
  const { installation } = server;
  return {
    ...installation,
    channels: campaignChannels,
    admissionPauses: createPauses(installation.clock),
    progressPauses: createPauses(installation.clock),
    onAdmitted: () => undefined,
  };
}

const advance = ({ organizationId }: Sender, id: string) =>
  advanceCampaign(campaignTools(), { organizationId, id });

/** What people say, applied as it is told; without answers, which would be messages of their own. */
function startApplying(): RunningChore[] {
  const nothing = () => undefined;
  const followUps = { onContactsChanged: nothing, onQueued: nothing };
  const tools = { ...server.installation, ...followUps };
  return [startSmsEvents({ ...tools, answersKeywords: false }), startChatAppEvents(tools)];
}

type RecipientRow = {
  message_id: string;
  drop_reason: Fate | null;
  is_queued: boolean;
  left_by: { channel: string; recipient: string; source: string }[] | null;
};

async function fatesOf({ email, number, phone, messages, sender }: Meant): Promise<Record<Kind, string>> {
  const rows = await rowsOf<RecipientRow>(
    server,
    `select r.message_id, r.drop_reason,
       exists (select from delivery_queue q where q.organization_id = $1 and q.message_id = r.message_id)
         or exists (select from delivery_slices s where s.organization_id = $1 and s.message_id = r.message_id)
         as is_queued,
       (select json_agg(json_build_object('channel', s.channel, 'recipient', s.recipient,
          'source', convert_from(s.source, 'UTF8')))
        from sandbox_messages s where s.organization_id = $1 and s.message_id = r.message_id) as left_by
     from recipients r where r.organization_id = $1 and r.message_id = any ($2::uuid[])`,
    [sender.organizationId, Object.values(messages)],
  );
  const ofMessage = new Map(rows.map((row) => [row.message_id, row]));
  // A text is kept as it is; an email has headers, and the others have parts.
  const left: Record<SendingChannel, { recipient: string; source: string }> = {
    email: { recipient: email, source: '\r\nSubject: News\r\n' },
    sms: { recipient: number, source: 'Text' },
    push: { recipient: phone.token, source: '"body": "Push"' },
    chatapp: { recipient: number, source: '"body": "Message"' },
  };
  const entries = kinds.map((kind) => {
    const row = ofMessage.get(messages[kind])!;
    const channel = channelOf[kind];
    const { recipient, source } = left[channel];
    for (const copy of row.left_by ?? []) {
      expect(copy).toEqual({ channel, recipient, source: expect.stringContaining(source) as string });
    }
    const times = row.left_by?.length ?? 0;
    const fate = times === 0 ? (row.drop_reason ?? (row.is_queued ? 'waits' : 'stopped')) : 'sent';
    return [kind, times > 1 ? `sent ${times} times` : fate] as const;
  });
  return Object.fromEntries(entries) as Record<Kind, string>;
}

/** Of nobody but the suspended organization's campaigns, and of a template that is paused. */
const leftToDo = `
  select q.channel, q.lane, q.organization_id
  from (
    select channel, lane, organization_id, message_id from delivery_queue
    union all
    select channel, lane, organization_id, message_id from delivery_slices
  ) q
  where (q.organization_id = $1 or q.lane = 0 or q.channel in ('sms', 'chatapp'))
    and not exists (
      select from messages m
      join chat_templates t on t.organization_id = m.organization_id and t.id = m.template_id
      where m.organization_id = q.organization_id and m.id = q.message_id and t.provider_state = 'paused'
    )`;

/** Those whose people are also written to by the other organization, which nobody says anything to. */
const sharedObjections: readonly string[] = [
  'nothing',
  'unsubscribed from push',
  'email bounced hard',
  'STOP by text',
  'number suppressed for chat apps by the operator',
  'STOP in the chat app',
  'marketing stopped in the chat app',
  'number lost',
  'opted out in the app',
  'somebody else signed in on the phone',
  'contact deleted',
];

test('what is sent, dropped and left, and why, for each objection', async () => {
  const sender = { ...server, domain: 'postillion.test' };
  const suspended = { ...other, domain: 'other.example' };
  const meanFor = async (whose: Sender, name: string) => meanAll(await aPerson(whose, name));
  const meant = await Promise.all(table.map(([name]) => meanFor(sender, name)));
  // The same addresses, numbers, phones and names.
  const meantBySuspended = await Promise.all(sharedObjections.map((name) => meanFor(suspended, name)));
  const applying = startApplying();
  for (const [index, [, object]] of table.entries()) await object(meant[index]!);
  await Promise.all(applying.map((chore) => chore.stop()));
  await rowsOf(server, `update organizations set suspended_channels = '{email,push}' where id = $1`, [
    other.organizationId,
  ]);
  const worker = await startWorker(server.installation);
  try {
    await eventually(
      () => rowsOf(server, leftToDo, [sender.organizationId]),
      (left) => left.length === 0,
    );
  } finally {
    await worker.stop();
  }
  const fates = await Promise.all(meant.map(fatesOf));
  expect(fates.map((fate, index) => [table[index]![0], fate])).toEqual(
    table.map(([name, , expected]) => [name, expected]),
  );
  for (const person of meantBySuspended)
    expect(await fatesOf(person)).toEqual({ ...all, emailCampaign: 'waits', pushCampaign: 'waits' });
});
