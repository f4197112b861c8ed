/**
 * Campaigns to people who have opted out, each in one of the ways there are, and whose contact was deleted and created again
 * since: none gets anything, on any channel, while whoever has said nothing does.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { makeChoice } from '../../src/chatapp/choices.ts';
import { chatAppChannel } from '../../src/chatapp/channel.ts';
import { emailChannel } from '../../src/email/channel.ts';
import { applyReports, type MessageChannel } from '../../src/messages/messages.ts';
import { now } from '../../src/platform/clock.ts';
import { createIntake } from '../../src/roles/providers/sms.ts';
import { smsChannel } from '../../src/sms/channel.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { addChatTemplate, written } from '../support/chat-app-journey.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { androidApp, register, setUpPush, unregister } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

const sender = '+14155550100';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ worker: true });
  await addApprovedSender(server, sender);
  await setUpPush(server);
});
afterAll(() => server.stop());

async function call<Body>(method: string, path: string, body?: object): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body);
  expect([path, Math.floor(response.status / 100), response.text]).toEqual([path, 2, response.text]);
  return response.body;
}
const make = async (path: string, body: object) => (await call<{ id: string }>('POST', path, body)).id;

type Person = { external_id: string; email: string; phone_number: string; contactId: string };
type Channel = 'email' | 'sms' | 'push' | 'chatapp';

let made = 0;
const phoneOf = ({ external_id: name }: Person) => androidApp(`phone-of-${name}`);

/** In a list, with a phone on which pushes are shown. */
async function join(person: Omit<Person, 'contactId'>, list: string): Promise<Person> {
  const contactId = await make('/contacts', { ...person, list_ids: [list] });
  const joined = { ...person, contactId };
  await register(server, { ...phoneOf(joined), contact_id: contactId });
  return joined;
}

function newPerson(): Omit<Person, 'contactId'> {
  made += 1;
  return {
    external_id: `person-${made}`,
    email: `person-${made}@example.com`,
    phone_number: `+4930${2_000_000 + made}`,
  };
}

const addressOf = ({ phone_number: address }: Person) => ({ organizationId: server.organizationId, address });

/** The link of a mail that the person got, and its recipient. */
async function mailed({ contactId, email }: Person) {
  const { organizationId, installation } = server;
  const { messageId, tokens } = await insertSentCampaign(installation, {
    organizationId,
    contacts: [{ id: contactId, email }],
  });
  return {
    job: { organizationId, messageId, ordinal: 0 },
    link: `${server.url}/u/${tokens[0]!.unsubscribe}`,
  };
}

const click = async (link: string) => {
  const init = { method: 'POST', body: new URLSearchParams({ 'List-Unsubscribe': 'One-Click' }) };
  expect((await fetch(link, init)).status).toBe(200);
};

const listeners = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };

/** What a provider says when it refuses a message to the person. */
async function refuse(channel: MessageChannel, person: Person, finding: unknown): Promise<void> {
  const { organizationId, installation } = server;
  const key = { organizationId, messageId: installation.newId(), ordinal: 0 };
  await installation.database.transaction((transaction) =>
    channel.keepFindings!(installation, transaction, [
      { ...key, addressKey: person.phone_number, sentAt: null, finding },
    ]),
  );
}

const chooses = (person: Person, subject: 'all' | 'marketing') =>
  server.installation.database.asOrganizations([server.organizationId], (transaction) =>
    makeChoice(transaction, server.installation, {
      ...addressOf(person),
      subject,
      choice: 'stop',
      at: now(server.installation.clock),
    }),
  );

const byApi = (channel: Channel) => (person: Person) =>
  call('PATCH', `/contacts/${person.contactId}`, { consent: { [channel]: 'unsubscribed' } });

const waysOut: Readonly<Record<Channel, Readonly<Record<string, (person: Person) => Promise<unknown>>>>> = {
  email: {
    'by the API': byApi('email'),
    'by a link': async (person) => click((await mailed(person)).link),
    'by a link, after the deletion': async (person) => {
      const { link } = await mailed(person);
      await call('DELETE', `/contacts/${person.contactId}`);
      await click(link);
    },
    'by a complaint': async (person) => {
      const { job } = await mailed(person);
      await applyReports(
        { ...server.installation, log: server.installation.log, random: Math.random, ...listeners },
        emailChannel,
        [{ job, status: 'complained', failure: null }],
      );
    },
  },
  sms: {
    'by the API': byApi('sms'),
    'by STOP': async (person) => {
      await createIntake(server.installation).takeInbound({
        providerMessageId: null,
        from: person.phone_number,
        senderName: sender.slice(1),
        text: 'STOP',
      });
      await eventually(
        () => rowsOf(server, 'select from sms_events'),
        (events) => events.length === 0,
      );
    },
    "in the provider's words": (person) => refuse(smsChannel, person, { kind: 'opted_out' }),
  },
  push: {
    'by the API': byApi('push'),
    'on the device': (person) => unregister(server, `phone-of-${person.external_id}`, 'opt_out'),
  },
  chatapp: {
    'by the API': byApi('chatapp'),
    'by STOP': (person) => chooses(person, 'all'),
    'in the app': (person) => chooses(person, 'marketing'),
    "in the provider's words": (person) =>
      refuse(chatAppChannel, person, {
        kind: 'reported',
        person: { waId: null, userId: null },
        finding: { kind: 'stopped_marketing' },
        hasArrived: false,
      }),
  },
};

const contents: Readonly<Record<Channel, () => Promise<object>>> = {
  email: () =>
    Promise.resolve({ from: 'news@postillion.test', subject: 'News', text: 'News. {{unsubscribe_url}}' }),
  sms: () => Promise.resolve({ from: sender, body: 'News' }),
  push: () => Promise.resolve({ title: 'News', body: 'News' }),
  chatapp: async () => ({
    template_id: (await addChatTemplate(server, { category: 'marketing', content: written('News') })).id,
    parameters: {},
  }),
};

test.each(Object.keys(waysOut) as Channel[])('by %s reach nobody who has opted out', async (channel) => {
  const list = await make('/lists', { name: `Readers by ${channel}` });
  const spared = await join(newPerson(), list);
  const optedOut = new Map<string, string>();
  for (const [way, leave] of Object.entries(waysOut[channel])) {
    const person = newPerson();
    await leave(await join(person, list));
    const [listed] = (
      await call<{ data: { id: string }[] }>('GET', `/contacts?external_id=${person.external_id}`)
    ).data;
    if (listed !== undefined) await call('DELETE', `/contacts/${listed.id}`);
    optedOut.set((await join(person, list)).contactId, way);
  }

  const id = await make(`/${channel}/campaigns`, {
    name: `News by ${channel}`,
    list_ids: [list],
    ...(await contents[channel]()),
  });
  const path = `/${channel}/campaigns/${id}`;
  await call('POST', `${path}/send`, {});
  await eventually(
    () => call<{ status: string; stats: Record<string, number> }>('GET', path),
    (campaign) => campaign.status === 'sent' && campaign.stats.pending === 0,
  );
  const recipients = await rowsOf<{ contact_id: string; handed_off: boolean }>(
    server,
    `select r.contact_id, r.handed_off_at is not null as handed_off
     from recipients r join campaigns c on c.message_id = r.message_id
     where c.id = $1 and r.drop_reason is null`,
    [id],
  );
  expect(recipients).toEqual([{ contact_id: spared.contactId, handed_off: true }]);
  for (const [contactId, way] of optedOut) {
    const told = await call<{ outcome: string; reason: string }>('GET', `${path}/recipients/${contactId}`);
    // Of a push it says which device, or that there is none.
    const why = channel === 'push' ? /\S/ : /(is unsubscribed from .*|has been suppressed) since \d{4}-/;
    // An address that was erased is known by a hash alone, which is asked for when its turn comes.
    const outcome = expect.stringMatching(/^(excluded|dropped)$/) as string;
    expect([way, told]).toEqual([
      way,
      expect.objectContaining({ outcome, reason: expect.stringMatching(why) as string }),
    ]);
  }
});
