/**
 * Outcomes of messages to one, written by the statements for the usual kind, against the same ones written step by step:
 * both must leave the same rows.
 */
import { beforeEach, describe, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { announceHandOffs, countBatches } from '../../../test/support/delivery-slices.ts';
import { messageChannels } from '../../../test/support/channels.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import { emailChannel } from '../../email/channel.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { smsChannel } from '../../sms/channel.ts';
import type { Job, MessageChannel } from '../channel.ts';
import { announcementOf } from './hand-off-store.ts';
import { openLedger } from './ledger.ts';
import { settleOutcome } from './settlement.ts';
import { type Settled, writeSettlements, type WriterTools } from './settlement-writer.ts';
import { isPlainlyTaken, writeTaken } from './taken.ts';

const newId = createShuffledIds(systemClock);
const [one, other] = [newId(), newId()];
const epoch = 7;
const accepted: SendOutcome<string> = { kind: 'accepted', providerMessageId: 'ring 7', reply: null };
const reply = { code: 451, enhancedCode: null, diagnostic: 'come back later', remote: null };

let database: Database;
let contactsChanged: number;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  contactsChanged = 0;
  await run(
    `truncate hand_offs, workers, delivery_queue, recipients, messages, contact_sets, contact_changes, contacts,
       reputation_counts cascade`,
  );
  await run("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())", [epoch]);
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

type Kind = { channel?: MessageChannel; owner?: string; address?: string };

/** A message to one, claimed by the worker. */
async function claimedJob({ channel = emailChannel, owner = one, address }: Kind = {}): Promise<Job> {
  const messageId = newId();
  const to = address ?? (channel === emailChannel ? 'ann@example.com' : '+14155600000');
  await run(
    `with message as (
       insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, $3, 'transactional', 'Acme', '{}', 1, now(), now())
     ), recipient as (
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       values ($1, $2, 0, 'to', $4, $4, now())
     )
     insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes,
       claimed_by, claim_number)
     values ($1, $2, 0, $3, 0, now(), now(), 100, $5, 1)`,
    [owner, messageId, channel.name, to, epoch],
  );
  return {
    organizationId: owner,
    messageId,
    ordinal: 0,
    channel,
    policy: channel.policyOf({ isCampaign: false }),
    isCampaign: false,
    address: to,
    addressKey: to,
    ...untried,
    acceptedAt: dateOf(systemClock.nowMs()),
  };
}

const tools = (more: Partial<WriterTools> = {}): WriterTools => ({
  database,
  channels: messageChannels,
  deliveries: Object.values(messageChannels).map((channel) => ({ channel, isReportedById: false })),
  clock: systemClock,
  log: silentLog,
  newId,
  random: () => 0.5,
  secrets: createSecrets('a secret of the tests, and of nothing else'),
  onCampaignProgress: () => undefined,
  onContactsChanged: () => {
    contactsChanged += 1;
  },
  ...more,
});

const context = () => ({ atMs: systemClock.nowMs(), random: 0.5, dateOf });

function toSettled(job: Job, outcome: SendOutcome<string> = accepted): Settled {
  return {
    settlement: settleOutcome(job, outcome, context()),
    message: { isShared: false, hasAttachments: false },
  };
}

const rowsOfAll = `select m.channel, m.status as message_status, r.organization_id, r.status, r.handed_off_at is not null as handed_off,
    r.uncertain, r.ambiguities, r.provider_message_id, r.failure_type, r.failure_class, r.diagnostic,
    (select count(*)::integer from delivery_queue q where q.message_id = m.id and q.claimed_by is not null) as claimed,
    (select count(*)::integer from delivery_queue q where q.message_id = m.id and q.claimed_by is null) as queued,
    (select sum(sent)::integer from reputation_counts c where c.organization_id = r.organization_id) as counted
  from messages m
  join recipients r on r.message_id = m.id
  order by m.channel, r.organization_id, r.status, r.address`;

const writers = [writeTaken, writeSettlements];

/** What both leave of the same, made anew for each of them. */
async function rowsAfter(make: () => Promise<readonly Job[]>): Promise<Record<string, unknown>[][]> {
  const found: Record<string, unknown>[][] = [];
  for (const write of writers) {
    await run('truncate delivery_queue, recipients, messages, reputation_counts');
    const jobs = await make();
    await write(
      tools(),
      epoch,
      jobs.map((job) => toSettled(job)),
    );
    found.push(await run(rowsOfAll));
  }
  return found;
}

const stories: Readonly<Record<string, { make: () => Promise<Job[]>; rows: object[] }>> = {
  'of two organizations and channels, to addresses of which one is the simulator’s': {
    make: async () => [
      await claimedJob(),
      await claimedJob({ address: 'delivered@simulator.postillion.test' }),
      await claimedJob({ owner: other, channel: smsChannel }),
    ],
    rows: [
      { status: 'delivered', message_status: 'delivered', claimed: 0, queued: 0, counted: 1 },
      { status: 'delivered', message_status: 'delivered', claimed: 0, queued: 0, counted: 1 },
      { channel: 'sms', status: 'sent', message_status: 'sent', handed_off: true, counted: null },
    ],
  },
  'that a report has overtaken': {
    make: async () => {
      const job = await claimedJob();
      await run(
        `update recipients set status = 'bounced', handed_off_at = now(), failure_type = 'hard',
           failure_class = 'mailbox_not_found' where message_id = $1`,
        [job.messageId],
      );
      return [job];
    },
    rows: [{ status: 'bounced', failure_class: 'mailbox_not_found', claimed: 0, message_status: 'failed' }],
  },
  'of a job that was given to another worker, or that nobody has any more': {
    make: async () => {
      const [lost, gone] = [await claimedJob(), await claimedJob({ owner: other })];
      await run('update delivery_queue set claimed_by = 8 where message_id = $1', [lost.messageId]);
      await run('delete from delivery_queue where message_id = $1', [gone.messageId]);
      return [lost, gone];
    },
    rows: [
      { status: 'sent', handed_off: false, provider_message_id: null, counted: null },
      { status: 'sent', handed_off: false, provider_message_id: null, counted: null },
    ],
  },
};

test.each(Object.entries(stories))(
  'outcomes %s leave the same in both ways',
  async (_name, { make, rows }) => {
    const [atOnce, byStep] = await rowsAfter(make);
    expect(atOnce).toEqual(byStep);
    expect(atOnce).toMatchObject(rows);
  },
);

test('an outcome whose commit was not answered is written once', async () => {
  const items = [toSettled(await claimedJob())];
  for (const write of [writeTaken, writeTaken, writeSettlements]) await write(tools(), epoch, items);
  expect(await run(rowsOfAll)).toMatchObject([{ status: 'delivered', counted: 1, claimed: 0 }]);
});

test('an announcement is stored in the same transaction, unless the worker was buried', async () => {
  const [settled, next] = [await claimedJob(), await claimedJob({ owner: other })];
  const announcement = announcementOf([next], { epoch, batch: 3, batchesOver: [] });
  expect(await writeTaken(tools(), epoch, [toSettled(settled)], announcement)).toEqual([{ batch: 3 }]);
  expect(await run('select message_ids from hand_offs')).toEqual([{ message_ids: [next.messageId] }]);
  await run('truncate workers cascade');
  const later = announcementOf([next], { epoch, batch: 4, batchesOver: [3] });
  expect(await writeTaken(tools(), epoch, [toSettled(next)], later)).toEqual([]);
  expect(await announceHandOffs(database, [next], { epoch, batch: 5, batchesOver: [] })).toBe(false);
});

test('only the first and accepted attempt of a message to one with nothing to clear up is of the usual kind', async () => {
  const job = await claimedJob();
  expect(isPlainlyTaken(tools(), toSettled(job))).toBe(true);
  const { settlement } = toSettled(job);
  const others: Settled[] = [
    toSettled({ ...job, attempts: 1 }),
    toSettled({ ...job, ambiguities: 1 }),
    toSettled({ ...job, isCampaign: true }),
    toSettled(job, { kind: 'deferred', reason: 'greylisted', reply }),
    { settlement, message: null },
    { settlement, message: { isShared: true, hasAttachments: false } },
    { settlement, message: { isShared: false, hasAttachments: true } },
  ];
  expect(others.map((each) => isPlainlyTaken(tools(), each))).toEqual(others.map(() => false));
});

describe('where a segment of one organization reads messages', () => {
  beforeEach(async () => {
    await run(
      `insert into contact_sets (organization_id, id, kind, name, name_key, reads_messages, created_at, updated_at)
       values ($1, gen_random_uuid(), 'segment', 'Readers', 'readers', true, now(), now())`,
      [one],
    );
    await run(
      `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       select owner, gen_random_uuid(), 'ann@example.com', 'ann@example.com', now(), now()
       from unnest($1::uuid[]) as owner`,
      [[one, other]],
    );
  });

  const ledger = () => {
    const lease: Lease = { epoch, signal: new AbortController().signal, release: () => Promise.resolve() };
    return openLedger(tools(), {
      lease,
      nextBatch: countBatches(),
      announcedMax: 8,
      isAnnouncedApart: false,
    });
  };

  test('its contact is told of, in the transaction that writes the outcome, and no other', async () => {
    const { settle } = ledger();
    const jobs = [await claimedJob(), await claimedJob({ owner: other })];
    expect(await Promise.all(jobs.map((job) => settle(toSettled(job))))).toEqual([true, true]);
    expect(await run('select organization_id from contact_changes')).toEqual([{ organization_id: one }]);
    expect(contactsChanged).toBe(1);
    expect(await run(rowsOfAll)).toMatchObject([{ status: 'delivered' }, { status: 'delivered' }]);
  });

  test('what nobody asks about is written as usual', async () => {
    const text = await claimedJob({ channel: smsChannel });
    expect(await writeTaken(tools(), epoch, [toSettled(text)])).toEqual([]);
    expect(await writeTaken(tools(), epoch, [toSettled(await claimedJob())])).toBe(null);
    expect(await run(rowsOfAll)).toMatchObject([
      { channel: 'email', status: 'sent', claimed: 1 },
      { channel: 'sms', status: 'sent', handed_off: true, claimed: 0 },
    ]);
  });
});
