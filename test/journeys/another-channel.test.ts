/**
 * A channel is its module: one that nothing in the program knows is accepted, delivered, objected to, campaigned and
 * reported on, by the contracts of src/messages/channel.ts and src/campaigns/channel.ts alone. It carries the name of a
 * channel that is not built yet, since the tables know only those.
 */
import { Type } from 'typebox';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import type { CampaignChannel } from '../../src/campaigns/channel.ts';
import { startCampaigns } from '../../src/campaigns/jobs.ts';
import { cancelCampaign, createCampaign, sendCampaign } from '../../src/campaigns/lifecycle.ts';
import type { SendingChannel } from '../../src/channels/channel.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';
import type { HandOffPermit, Job, MessageChannel, MessageChannels } from '../../src/messages/channel.ts';
import {
  type Acceptor,
  applyReports,
  createAcceptor,
  type Delivery,
  startDelivery,
  type Submission,
} from '../../src/messages/messages.ts';
import { emailChannel } from '../../src/email/channel.ts';
import { defineMessageStatus } from '../../src/messages/status.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { PublicError } from '../../src/platform/http/errors.ts';
import { createWaker } from '../../src/platform/queue/wake.ts';
import { messageChannels } from '../support/channels.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

/** Pigeons: they carry what is written to a phone number. */
const name = 'push' as SendingChannel;

const pigeons: MessageChannel = {
  name,
  words: { medium: 'by pigeon', messages: 'pigeons', unit: 'pigeons' },
  senders: {
    loadOwn: () => Promise.resolve({ has: (sender) => sender.name === 'loft' }),
    describeOther: (sender) => `${sender} is no loft of this organization.`,
  },
  policyOf: ({ isCampaign }) => ({
    acceptedStatus: 'sent',
    refusals: { hawk: { status: 'bounced', type: 'hard' } },
    retryWindowMs: 60_000,
    givenUpFor: 'winter',
    repeatsAmbiguous: !isCampaign,
  }),
  isReportedById: false,
  judgement: { failureClasses: ['hawk'], isSimulated: () => false },
  refreshStatus: defineMessageStatus(
    'pigeons',
    `min(case when r.drop_reason is not null or r.status in ('bounced', 'failed') then 'failed'
      when r.status = 'delivered' then 'delivered' when r.handed_off_at is not null then 'sent' else 'queued' end)`,
  ),
  objections: {
    findBarred: async (connection, contacts) => {
      const rows = await connection.rows(
        unpreparedStatement<{ position: number }>(
          `select position
           from unnest($1::uuid[], $2::uuid[]) with ordinality as wanted (organization_id, id, position)
           left join contacts c using (organization_id, id)
           where c.id is null or $3 = any (c.unsubscribed_channels)`,
        ),
        [contacts.map(({ organizationId }) => organizationId), contacts.map(({ id }) => id), name],
      );
      return new Map(rows.map(({ position }) => [position - 1, 'unsubscribed'] as const));
    },
    isSimulatedSuppression: (address) => address.endsWith('000'),
  },
};

const channels = { ...messageChannels, [name]: pigeons } as MessageChannels;

const campaignsByPigeon: CampaignChannel = {
  messages: pigeons,
  deliveredPerSecondMax: 10,
  path: '/pigeons/campaigns',
  noun: 'PigeonCampaign',
  object: 'pigeon_campaign',
  tag: 'Pigeon campaigns',
  contentFields: { note: Type.Optional(Type.String()) },
  contentRecord: { note: Type.String() },
  bodyFields: ['note'],
  findIssues: () => [],
  templateIdOf: () => null,
  findUnknown: () => Promise.resolve([]),
  addressColumns: { address: 'phone_number', key: 'phone_number' },
  openMeter: null,
  words: {
    medium: 'pigeons',
    address: 'phone number',
    taker: 'the loft',
    arrival: 'it landed',
    retriedFor: 'a minute',
    unfit: 'too many words',
  },
  defaultsOf: () => ({}),
  prepare: (_transaction, { content }) =>
    Promise.resolve({
      kind: 'ready',
      message: {
        sender: 'loft',
        subject: null,
        category: null,
        templateId: null,
        details: '{}',
        content: JSON.stringify(content),
        variableNames: [],
      },
    }),
  findObstacle: () => Promise.resolve(null),
  sampleRecord: {},
  emptySample: {},
  renderSample: () => Promise.resolve(null),
  addressFormat: 'phone-number',
  findOversights: () => Promise.resolve([]),
  submitTest: () => Promise.resolve(null),
};

let server: TestServer;
let other: { organizationId: string };
let acceptor: Acceptor;
let carried: string[] = [];
let outcomeOf: (job: Job) => SendOutcome<string>;
const stops: (() => Promise<void>)[] = [];

const accepted: SendOutcome<string> = { kind: 'accepted', providerMessageId: 'ring 7', reply: null };
const reply = { code: null, enhancedCode: null, diagnostic: 'A hawk', remote: null };
const nobody = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'other.example');
  const onQueued = createWaker(server.installation, 'deliveries');
  acceptor = createAcceptor({ ...server.installation, channels, onQueued });
});
afterAll(async () => {
  await server.stop();
});
beforeEach(() => {
  carried = [];
  outcomeOf = () => accepted;
});
afterEach(async () => {
  await Promise.all(stops.splice(0).map((stop) => stop()));
  await rowsOf(server, 'truncate delivery_queue, hand_offs');
});

/** Of a release that does not know pigeons. */
function deliverAsBefore(): void {
  const begin = () => ({
    prepare: () => Promise.resolve(),
    handOff: async (job: Job, permit: HandOffPermit) => {
      await permit.confirm();
      carried.push(job.addressKey);
      const facts = { isShared: false, hasAttachments: false };
      return { kind: 'outcome', outcome: accepted, facts } as const;
    },
  });
  const delivery = startDelivery({
    ...server.installation,
    ...nobody,
    random: () => 0.5,
    channels: messageChannels,
    deliveries: [{ channel: emailChannel, concurrency: 4, accountOf: null, begin }],
  });
  stops.push(delivery.stop);
}

function deliver(): Delivery {
  const delivery = startDelivery({
    ...server.installation,
    ...nobody,
    random: () => 0.5,
    channels,
    deliveries: [
      {
        channel: pigeons,
        concurrency: 4,
        accountOf: ({ organizationId }) => organizationId,
        begin: () => ({
          prepare: () => Promise.resolve(),
          handOff: async (job, permit) => {
            await permit.confirm();
            carried.push(job.addressKey);
            return {
              kind: 'outcome',
              outcome: outcomeOf(job),
              facts: { isShared: false, hasAttachments: false },
            };
          },
        }),
      },
    ],
  });
  stops.push(delivery.stop);
  return delivery;
}

async function accept(to: string, more: Partial<Submission> = {}) {
  return acceptor.accept(
    {
      organizationId: server.organizationId,
      channel: name,
      class: 'transactional',
      sender: 'loft',
      senderName: 'loft',
      subject: null,
      searchText: null,
      category: null,
      templateId: null,
      details: '{}',
      content: '{"note": "Hello"}',
      recipients: [{ field: 'to', address: to, addressKey: to, dropReason: null }],
      attachments: [],
      quotaUnits: 1,
      missingVariables: [],
      idempotencyKey: null,
      ...more,
    },
    null,
  );
}

async function send(to: string, more: Partial<Submission> = {}): Promise<string> {
  const outcome = await accept(to, more);
  if (outcome.kind === 'refused') throw outcome.error;
  return (JSON.parse(outcome.response.text) as { id: string }).id;
}

async function stateOf(id: string) {
  const [row] = await rowsOf<{ status: string; recipient: string; drop_reason: string | null }>(
    server,
    `select m.status, r.status as recipient, r.drop_reason
     from messages m join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
     where m.id = $1`,
    [id],
  );
  return row;
}

function settledAs(id: string, status: string) {
  return eventually(
    () => stateOf(id),
    (state) => state?.status === status,
  );
}

test('it is accepted by its own rules, and refused in its own words', async () => {
  const refusalOf = async (more: Partial<Submission>) => {
    const outcome = await accept('+491', more);
    return outcome.kind === 'refused' ? outcome.error.message : outcome;
  };
  expect(await refusalOf({ senderName: 'cage' })).toBe('cage is no loft of this organization.');
  await updateOrganization(server.installation, server.organizationId, { quotas: { [name]: 0 } });
  expect(await refusalOf({})).toMatch(/^The monthly by pigeon quota is used up: 0 of 0 pigeons are used/);
  await updateOrganization(server.installation, server.organizationId, {
    quotas: { [name]: null },
    suspend: [name],
  });
  expect(await refusalOf({})).toBe(
    'Sending by pigeon is suspended for this organization by the operator. Ask the operator to lift it.',
  );
  await updateOrganization(server.installation, server.organizationId, { resume: [name] });
  expect(await refusalOf({ organizationId: other.organizationId })).toMatchObject({ kind: 'response' });
});

test('it is delivered, and what its policy says of an outcome is what is written', async () => {
  outcomeOf = ({ addressKey }) =>
    addressKey === '+492' ? { kind: 'rejected', reason: 'hawk', reply } : accepted;
  const [taken, refused] = [await send('+491'), await send('+492')];
  deliver();
  await settledAs(taken, 'sent');
  await settledAs(refused, 'failed');
  expect(await stateOf(refused)).toEqual({ status: 'failed', recipient: 'bounced', drop_reason: null });
  expect(carried.toSorted()).toEqual(['+491', '+492']);
  // The hawk has caught them there for good, in this organization and on this channel.
  const again = await send('+492');
  const elsewhere = await send('+492', { organizationId: other.organizationId });
  expect(await settledAs(again, 'failed')).toMatchObject({ drop_reason: 'suppressed' });
  await settledAs(elsewhere, 'failed');
  expect(carried.filter((address) => address === '+492')).toHaveLength(2);
});

test('an account that fails at the provider delays its own jobs and no others', async () => {
  const isOthers = ({ organizationId }: Job) => organizationId === other.organizationId;
  outcomeOf = (job) =>
    isOthers(job) ? { kind: 'deferred', reason: 'provider_unavailable', reply } : accepted;
  const own: string[] = [];
  for (let each = 0; each < 12; each += 1) {
    await send(`+4950${each}`, { organizationId: other.organizationId });
    own.push(await send(`+4960${each}`));
  }
  deliver();
  for (const id of own) await settledAs(id, 'sent');
  const waits = () =>
    rowsOf<{ attempts: number }>(
      server,
      'select attempts from delivery_queue where organization_id = $1 and due_at > now()',
      [other.organizationId],
    );
  await eventually(waits, (rows) => rows.length === 12);
  // Five failures say that the account fails; what was under way meanwhile was tried as well.
  expect((await waits()).filter(({ attempts }) => attempts === 0)).not.toHaveLength(0);
});

test('a worker of an older release leaves it to others, and goes on with what it knows', async () => {
  const email = async () => {
    const sent = await server.request<{ id: string }>('POST', '/v1/email/send', {
      from: 'news@postillion.test',
      from_name: 'News',
      to: ['ann@example.com'],
      subject: 'Hello',
      text: 'Hello',
    });
    return sent.body.id;
  };
  const [suspect, announced, emailBefore] = [await send('+496'), await send('+497'), await email()];
  await rowsOf(server, 'update delivery_queue set crashes = 2 where message_id = $1', [suspect]);
  // A worker of the newer release has died.
  const [ended] = await rowsOf<{ epoch: number }>(
    server,
    `insert into workers (epoch, host, pid, started_at) values (nextval('worker_epochs'), 'there', 1, now()) returning epoch`,
  );
  await rowsOf(
    server,
    'update delivery_queue set claimed_by = $1, claim_number = 1 where message_id = any ($2::uuid[])',
    [ended!.epoch, [announced, emailBefore]],
  );
  await rowsOf(
    server,
    `insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
     values ($1, 1, array[$2::uuid], array[$3::uuid], '{0}', '{1}')`,
    [ended!.epoch, server.organizationId, announced],
  );
  const queue = () =>
    rowsOf<{ message_id: string }>(
      server,
      'select message_id, crashes, claimed_by from delivery_queue order by crashes',
    );
  const left = [
    { message_id: announced, crashes: 0, claimed_by: ended!.epoch },
    { message_id: suspect, crashes: 2, claimed_by: null },
  ];

  deliverAsBefore();
  await eventually(queue, (rows) => rows.every(({ message_id: id }) => id !== emailBefore));
  expect(await queue()).toEqual(left);
  await email();
  await eventually(queue, (rows) => rows.length === left.length);
  expect(await queue()).toEqual(left);
  expect(carried).toEqual(['ann@example.com', 'ann@example.com']);

  deliver();
  for (const id of [suspect, announced]) await settledAs(id, 'sent');
  expect(carried.slice(2)).toEqual(['+496']);
  // It may have been handed off, and is tried once more in a minute.
  expect(
    await rowsOf(server, 'select ambiguities from recipients where message_id = $1', [announced]),
  ).toEqual([{ ambiguities: 1 }]);
});

test('it is reported on, and never goes back', async () => {
  const id = await send('+493');
  deliver();
  await settledAs(id, 'sent');
  const job = { organizationId: server.organizationId, messageId: id, ordinal: 0 };
  const tools = { ...server.installation, ...nobody, random: () => 0.5 };
  await applyReports(tools, pigeons, [{ job, status: 'delivered', failure: null }]);
  await applyReports(tools, pigeons, [{ job, status: 'delayed', failure: null }]);
  expect(await stateOf(id)).toMatchObject({ status: 'delivered', recipient: 'delivered' });
});

test('addresses that are suppressed, or ask to be, get nothing', async () => {
  const { database } = server.installation;
  await database.transaction((transaction) =>
    addSuppressions(transaction, server.installation, name, [
      { organizationId: server.organizationId, address: '+494', reason: 'operator' },
    ]),
  );
  const ids = [await send('+494'), await send('+49000')];
  const fine = await send('+494', { organizationId: other.organizationId });
  deliver();
  await settledAs(fine, 'sent');
  for (const id of ids) expect(await settledAs(id, 'failed')).toMatchObject({ drop_reason: 'suppressed' });
  expect(carried).toEqual(['+494']);
});

test('campaigns go out on it, but not to those who object, and no further once they are cancelled', async () => {
  const { organizationId } = server;
  const place = { organizationId, channel: campaignsByPigeon };
  const { id: listId } = (await server.request<{ id: string }>('POST', '/v1/lists', { name: 'Friends' }))
    .body;
  const contacts: string[] = [];
  for (let number = 0; number < 5; number += 1) {
    const made = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: `+4915112345${number}00`,
      list_ids: [listId],
    });
    contacts.push(made.body.id);
  }
  const unsubscribe = (id: string) =>
    rowsOf(server, 'update contacts set unsubscribed_channels = $2 where id = $1', [id, [name]]);
  await unsubscribe(contacts[0]!);

  const start = async () => {
    const written = await createCampaign(server.installation, place, {
      name: 'News',
      note: 'Hello',
      list_ids: [listId],
    });
    if (written instanceof PublicError) throw written;
    const reference = { ...place, id: written.id };
    const sent = await sendCampaign(server.installation, reference, {
      scheduledAt: null,
      idempotencyKey: null,
    });
    if (sent.kind === 'refused') throw sent.error;
    const campaigns = startCampaigns({
      ...server.installation,
      channels: { email: null, sms: null, [name]: campaignsByPigeon },
      onFrozen: () => undefined,
      onAdmitted: () => undefined,
    });
    stops.push(campaigns.stop);
    const queued = () => rowsOf(server, 'select from delivery_queue where channel = $1', [name]);
    await eventually(
      () => {
        campaigns.wake();
        return queued();
      },
      (rows) => rows.length === 4,
    );
    return { reference, campaigns };
  };

  const { reference, campaigns } = await start();
  await unsubscribe(contacts[1]!);
  deliver();
  const statusOf = async () =>
    (
      await rowsOf<{ status: string }>(server, 'select status from campaigns where id = $1', [reference.id])
    )[0];
  await eventually(
    () => {
      campaigns.wake();
      return statusOf();
    },
    (row) => row?.status === 'sent',
  );
  expect(carried.toSorted()).toEqual(['+4915112345200', '+4915112345300', '+4915112345400']);
  await Promise.all(stops.splice(0).map((stop) => stop()));

  carried = [];
  await rowsOf(server, 'update contacts set unsubscribed_channels = $2 where id = $1', [contacts[1], []]);
  const second = await start();
  const cancelled = await cancelCampaign(server.installation, second.reference, null);
  expect(cancelled.kind).toBe('response');
  deliver();
  const marker = await send('+495');
  await settledAs(marker, 'sent');
  expect(carried).toEqual(['+495']);
});
