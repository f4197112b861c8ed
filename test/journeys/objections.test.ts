/**
 * Everything that may stop an accepted message, on both channels, as one table. Messages of both channels are due at
 * once in one organization, beside another one with the same people that may send nothing.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addSuppressions } from '../../src/audience/audience.ts';
import { campaignChannels } from '../../src/roles/channels.ts';
import { createPauses } from '../../src/platform/queue/pauses.ts';
import { advanceCampaign, freezeCampaign } from '../../src/campaigns/running.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { authorize, eventually, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

let server: TestServer;
let other: { organizationId: string; key: string };

beforeAll(async () => {
  server = await startTestServer({ newId: createShuffledIds(systemClock) });
  other = await createSender(server.installation, 'other.example');
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, 'Acme', other.organizationId);
});
afterAll(() => server.stop());

type Sender = { organizationId: string; key: string; domain: string };

async function ask<Body>(sender: Sender, method: string, path: string, body?: object): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body, authorize(sender));
  if (response.status >= 300) throw new Error(`${method} ${path}: ${response.text}`);
  return response.body;
}

type Person = { sender: Sender; contactId: string; listId: string; email: string; phone: string };

/** The ids of the messages to a person, by their kinds. */
const kinds = ['email', 'emailCampaign', 'sms', 'smsCampaign'] as const;
type Kind = (typeof kinds)[number];
type Meant = Person & { messages: Record<Kind, string>; campaigns: Record<'email' | 'sms', string> };

/** A drop reason, or: sent; `stopped`, neither sent nor dropped, for good; `waits`, in the queue. */
type Fate = 'sent' | 'unsubscribed' | 'suppressed' | 'no_address' | 'contact_deleted' | 'stopped' | 'waits';

const all: Record<Kind, Fate> = { email: 'sent', emailCampaign: 'sent', sms: 'sent', smsCampaign: 'sent' };

type Suppression = Parameters<typeof addSuppressions>[3][number]['reason'];

const suppress = (channel: 'email' | 'sms', reason: Suppression) => (person: Meant) =>
  addSuppressions(server.installation.database, server.installation, channel, [
    {
      organizationId: person.sender.organizationId,
      address: channel === 'email' ? person.email : person.phone,
      reason,
    },
  ]);
const change = (body: object) => (person: Meant) =>
  ask(person.sender, 'PATCH', `/contacts/${person.contactId}`, body);

const emailSuppressed = { ...all, email: 'suppressed', emailCampaign: 'suppressed' } as const;
const numberSuppressed = { ...all, sms: 'suppressed', smsCampaign: 'suppressed' } as const;

/**
 * A suppression of an address counts for everything that is sent to it. The consent of a contact, or its deletion,
 * counts for campaigns alone: a transactional message answers something that the recipient did.
 */
const table: readonly [string, (person: Meant) => Promise<unknown>, Record<Kind, Fate>][] = [
  ['nothing', () => Promise.resolve(), all],
  [
    'unsubscribed from email',
    change({ consent: { email: 'unsubscribed' } }),
    { ...all, emailCampaign: 'unsubscribed' },
  ],
  [
    'unsubscribed from SMS',
    change({ consent: { sms: 'unsubscribed' } }),
    { ...all, smsCampaign: 'unsubscribed' },
  ],
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
  ['STOP', suppress('sms', 'unsubscribe'), numberSuppressed],
  ['number suppressed by the operator', suppress('sms', 'operator'), numberSuppressed],
  ['email lost', change({ email: null }), { ...all, emailCampaign: 'no_address' }],
  ['number lost', change({ phone_number: null }), { ...all, smsCampaign: 'no_address' }],
  [
    'contact deleted',
    ({ sender, contactId }) => ask(sender, 'DELETE', `/contacts/${contactId}`),
    { ...all, emailCampaign: 'contact_deleted', smsCampaign: 'contact_deleted' },
  ],
  [
    'email campaign cancelled',
    ({ sender, campaigns }) => ask(sender, 'POST', `/email/campaigns/${campaigns.email}/cancel`),
    { ...all, emailCampaign: 'stopped' },
  ],
  [
    'SMS campaign cancelled',
    ({ sender, campaigns }) => ask(sender, 'POST', `/sms/campaigns/${campaigns.sms}/cancel`),
    { ...all, smsCampaign: 'stopped' },
  ],
  [
    'SMS campaign stopped in the memory of a worker',
    ({ messages }) =>
      rowsOf(server, 'update messages set is_stopped = true where id = $1', [messages.smsCampaign]),
    { ...all, smsCampaign: 'stopped' },
  ],
];

async function aPerson(sender: Sender, name: string): Promise<Person> {
  const email = `${name.replaceAll(' ', '.').toLowerCase()}@example.com`;
  const phone = `+4915112${345_000 + table.findIndex(([row]) => row === name)}`;
  const { id: listId } = await ask<{ id: string }>(sender, 'POST', '/lists', { name });
  const { id: contactId } = await ask<{ id: string }>(sender, 'POST', '/contacts', {
    external_id: name,
    email,
    phone_number: phone,
    list_ids: [listId],
  });
  return { sender, contactId, listId, email, phone };
}

/** A message of each kind, not handed off yet. */
async function meanAll(person: Person): Promise<Meant> {
  const { sender, listId } = person;
  const email = { from: `hello@${sender.domain}`, from_name: 'Postillion', subject: 'News', text: 'Email' };
  const transactional = {
    email: await ask<{ id: string }>(sender, 'POST', '/email/send', { ...email, to: [person.email] }),
    sms: await ask<{ id: string }>(sender, 'POST', '/sms/send', {
      from: 'Acme',
      to: person.phone,
      body: 'Text',
    }),
  };
  const campaigns = {
    email: await queueCampaign(sender, 'email', { ...email, list_ids: [listId] }),
    sms: await queueCampaign(sender, 'sms', { from: 'Acme', body: 'Text', list_ids: [listId] }),
  };
  return {
    ...person,
    messages: {
      email: transactional.email.id,
      sms: transactional.sms.id,
      emailCampaign: campaigns.email.messageId,
      smsCampaign: campaigns.sms.messageId,
    },
    campaigns: { email: campaigns.email.id, sms: campaigns.sms.id },
  };
}

async function queueCampaign(sender: Sender, channel: 'email' | 'sms', body: object) {
  const { id } = await ask<{ id: string }>(sender, 'POST', `/${channel}/campaigns`, {
    name: 'News',
    ...body,
  });
  await ask(sender, 'POST', `/${channel}/campaigns/${id}/send`, {});
  const { installation } = server;
  const tools = {
    ...installation,
    channels: campaignChannels,
    admissionPauses: createPauses(installation.clock),
    onAdmitted: () => undefined,
  };
  const campaign = { organizationId: sender.organizationId, id };
  await freezeCampaign(tools, campaign);
  await advanceCampaign(tools, campaign);
  const [row] = await rowsOf<{ message_id: string }>(
    server,
    'select message_id from campaigns where organization_id = $1 and id = $2',
    [sender.organizationId, id],
  );
  return { id, messageId: row!.message_id };
}

type RecipientRow = {
  message_id: string;
  drop_reason: Fate | null;
  is_queued: boolean;
  left_by: { channel: string; recipient: string; source: string }[] | null;
};

async function fatesOf({ email, phone, messages, sender }: Meant): Promise<Record<Kind, string>> {
  const rows = await rowsOf<RecipientRow>(
    server,
    `select r.message_id, r.drop_reason,
       exists (select from delivery_queue q where q.organization_id = $1 and q.message_id = r.message_id) as is_queued,
       (select json_agg(json_build_object('channel', s.channel, 'recipient', s.recipient,
          'source', convert_from(s.source, 'UTF8')))
        from sandbox_messages s where s.organization_id = $1 and s.message_id = r.message_id) as left_by
     from recipients r where r.organization_id = $1 and r.message_id = any ($2::uuid[])`,
    [sender.organizationId, Object.values(messages)],
  );
  const ofMessage = new Map(rows.map((row) => [row.message_id, row]));
  const entries = kinds.map((kind) => {
    const row = ofMessage.get(messages[kind])!;
    const isEmail = kind.startsWith('email');
    for (const left of row.left_by ?? []) {
      expect(left).toMatchObject({
        channel: isEmail ? 'email' : 'sms',
        recipient: isEmail ? email : phone,
        // A text is kept as it is; an email has headers.
        source: isEmail ? (expect.stringContaining('\r\nSubject: News\r\n') as string) : 'Text',
      });
    }
    const times = row.left_by?.length ?? 0;
    const fate = times === 0 ? (row.drop_reason ?? (row.is_queued ? 'waits' : 'stopped')) : 'sent';
    return [kind, times > 1 ? `sent ${times} times` : fate] as const;
  });
  return Object.fromEntries(entries) as Record<Kind, string>;
}

test('what is sent, dropped and left, and why, for each objection', async () => {
  const sender = { ...server, domain: 'postillion.test' };
  const suspended = { ...other, domain: 'other.example' };
  const meanFor = async (whose: Sender, name: string) => meanAll(await aPerson(whose, name));
  const meant = await Promise.all(table.map(([name]) => meanFor(sender, name)));
  // The same addresses, numbers and names.
  const suspendedToo = await Promise.all(
    ['nothing', 'email bounced hard', 'STOP'].map((name) => meanFor(suspended, name)),
  );
  await Promise.all(table.map(([, object], index) => object(meant[index]!)));
  await rowsOf(server, `update organizations set suspended_channels = '{email}' where id = $1`, [
    other.organizationId,
  ]);
  const worker = await startWorker(server.installation);
  try {
    // Of the suspended organization only its email campaigns stay in the queue.
    await eventually(
      () =>
        rowsOf(
          server,
          'select channel, lane from delivery_queue where channel = $1 or lane = 0 or organization_id = $2',
          ['sms', sender.organizationId],
        ),
      (left) => left.length === 0,
    );
  } finally {
    await worker.stop();
  }
  const fates = await Promise.all(meant.map(fatesOf));
  expect(fates.map((fate, index) => [table[index]![0], fate])).toEqual(
    table.map(([name, , expected]) => [name, expected]),
  );
  for (const person of suspendedToo)
    expect(await fatesOf(person)).toEqual({ ...all, emailCampaign: 'waits' });
});
