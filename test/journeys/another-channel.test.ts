/**
 * What a channel may have that neither email nor SMS has: accounts of organizations at its provider, messages without
 * recipients, messages that expire, findings of its hand-offs about addresses, and workers of an older release that do
 * not know it. What all channels have in common is tested in channels.test.ts.
 */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import type { RecipientKey, SendOutcome } from '../../src/channels/outcome.ts';
import { emailChannel } from '../../src/email/channel.ts';
import type { HandOffPermit, Job, MessageChannels } from '../../src/messages/channel.ts';
import { type Acceptor, createAcceptor, startDelivery } from '../../src/messages/messages.ts';
import { createWaker } from '../../src/platform/queue/wake.ts';
import { messageChannels } from '../support/channels.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createPigeons } from '../support/pigeons.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const pigeons = createPigeons();
const channels = { ...messageChannels, [pigeons.channel.name]: pigeons.channel } as MessageChannels;

/** Without the channel whose name the pigeons have. */
const { [pigeons.channel.name]: _replaced, ...others } = messageChannels;
const before = others as MessageChannels;

let server: TestServer;
let other: { organizationId: string };
let acceptor: Acceptor;
let carried: string[] = [];
let outcomeOf: (reference: RecipientKey) => SendOutcome<string>;
const stops: (() => Promise<void>)[] = [];

const accepted: SendOutcome<string> = { kind: 'accepted', providerMessageId: 'ring 7', reply: null };
const reply = { code: null, enhancedCode: null, diagnostic: 'A hawk', remote: null };
const nobody = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'other.example');
  for (const { organizationId } of [server, other]) pigeons.lofts.add(organizationId, 'loft');
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
    channels: before,
    deliveries: [
      {
        channel: emailChannel,
        provider: 'none',
        concurrency: 4,
        accountOf: null,
        isReportedById: false,
        begin,
      },
    ],
  });
  stops.push(delivery.stop);
}

function deliver(): void {
  const delivery = startDelivery({
    ...server.installation,
    ...nobody,
    random: () => 0.5,
    channels,
    deliveries: [
      pigeons.createDelivery(server.installation.database, async ({ reference, to, confirm }) => {
        await confirm();
        carried.push(to);
        return outcomeOf(reference);
      }),
    ],
  });
  stops.push(delivery.stop);
}

async function send(
  to: string | string[],
  { organizationId } = { organizationId: server.organizationId },
  more: { expiresAtMs?: number } = {},
): Promise<string> {
  const outcome = await acceptor.accept(
    pigeons.submit({ organizationId, loft: 'loft', to, text: 'Hello', ...more }),
    null,
  );
  if (outcome.kind === 'refused') throw outcome.error;
  return (JSON.parse(outcome.response.text) as { id: string }).id;
}

function settledAs(id: string, status: string) {
  return eventually(
    () => rowsOf<{ status: string }>(server, 'select status from messages where id = $1', [id]),
    ([message]) => message?.status === status,
  );
}

test('an account that fails at the provider delays its own jobs and no others', async () => {
  outcomeOf = ({ organizationId }) =>
    organizationId === other.organizationId
      ? { kind: 'deferred', reason: 'provider_unavailable', reply }
      : accepted;
  const own: string[] = [];
  for (let each = 0; each < 12; each += 1) {
    await send(`+4950${each}`, other);
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
  await eventually(
    () => rowsOf(server, 'select from workers where epoch = $1', [ended!.epoch]),
    (workers) => workers.length === 0,
  );
});

test('a message without recipients is accepted, takes its place in the quota, and is skipped', async () => {
  const id = await send([]);
  const [message] = await rowsOf(server, 'select status, recipient_count from messages where id = $1', [id]);
  expect(message).toEqual({ status: 'skipped', recipient_count: 0 });
  deliver();
  await settledAs(await send('+49700'), 'sent');
  expect(carried).toEqual(['+49700']);
  expect(await rowsOf(server, 'select status from messages where id = $1', [id])).toEqual([
    { status: 'skipped' },
  ]);
});

test('the copies of a message for several places of one person each have an outcome of their own', async () => {
  const id = await send(['+49801', '+49802', '+49803']);
  outcomeOf = ({ ordinal }) => (ordinal === 1 ? { kind: 'rejected', reason: 'storm', reply } : accepted);
  deliver();
  const statuses = () =>
    rowsOf<{ status: string }>(
      server,
      'select status from recipients where message_id = $1 order by ordinal',
      [id],
    );
  await eventually(
    () => rowsOf(server, 'select from delivery_queue'),
    (jobs) => jobs.length === 0,
  );
  expect((await statuses()).map(({ status }) => status)).toEqual(['sent', 'failed', 'sent']);
  expect(carried.toSorted()).toEqual(['+49801', '+49802', '+49803']);
});

test('a message that expires soon is tried again before it does, and given up afterwards', async () => {
  const nowMs = server.installation.clock.nowMs();
  outcomeOf = () => ({ kind: 'deferred', reason: 'storm', reply });
  const [soon, over] = [
    await send('+49901', undefined, { expiresAtMs: nowMs + 40_000 }),
    await send('+49902', undefined, { expiresAtMs: nowMs + 5_000 }),
  ];
  deliver();
  await settledAs(over, 'failed');
  const [waiting] = await eventually(
    () =>
      rowsOf<{ due_at: Date; attempts: number }>(
        server,
        'select due_at, attempts from delivery_queue where message_id = $1 and claimed_by is null and attempts = 1',
        [soon],
      ),
    (jobs) => jobs.length === 1,
  );
  expect(waiting!.due_at.getTime()).toBeLessThan(nowMs + 40_000);
  const [failure] = await rowsOf(server, 'select failure_class from recipients where message_id = $1', [
    over,
  ]);
  expect(failure).toEqual({ failure_class: 'winter' });
});

test('what a hand-off finds out about an address is kept for its own organization', async () => {
  const to = '+4915112340001';
  for (const { organizationId } of [server, other]) {
    await rowsOf(
      server,
      `insert into contacts (organization_id, id, phone_number, created_at, updated_at)
       values ($1, $2, $3, now(), now())`,
      [organizationId, server.installation.newId(), to],
    );
  }
  outcomeOf = ({ organizationId }) =>
    organizationId === other.organizationId ? accepted : { kind: 'rejected', reason: 'storm', reply };
  const others = await send(to, other);
  const own = await send(to);
  deliver();
  await settledAs(others, 'sent');
  await settledAs(own, 'failed');
  expect(
    await rowsOf(
      server,
      `select organization_id = $1 as is_own, last_name from contacts
       where phone_number = $2 and organization_id in ($1, $3) order by 1`,
      [server.organizationId, to, other.organizationId],
    ),
  ).toEqual([
    { is_own: false, last_name: null },
    { is_own: true, last_name: 'storm' },
  ]);
  const [written] = await rowsOf<{ is_together: boolean }>(
    server,
    `select c.xmin = r.xmin as is_together
     from contacts c
     join recipients r on r.organization_id = c.organization_id and r.message_id = $2
     where c.organization_id = $1 and c.phone_number = $3`,
    [server.organizationId, own, to],
  );
  expect(written).toEqual({ is_together: true });
});
