import { expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { emailChannel } from '../../email/channel.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import type { RecipientStatus } from '../schema.ts';
import { settleJobs, type Settlement } from './settlement-store.ts';
import type { Failure } from './store.ts';

const epoch = 7;
const newId = createIds(systemClock);
const organizationId = newId();
const acceptedAt = dateOf(systemClock.nowMs());
const at = dateOf(acceptedAt.getTime() + 60_000);

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

type Before = { status?: RecipientStatus; failureClass?: string; claimedBy?: number; handedOffAt?: Date };

/** A recipient, and its job that a worker has claimed. */
async function insertJob(before: Before = {}): Promise<Job> {
  const messageId = newId();
  const { status = 'sent', failureClass = null, claimedBy = epoch, handedOffAt = null } = before;
  await run(
    `with queued as (
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by,
           claim_number)
       values ($1, $2, 0, 'email', 0, $3, $3, 100, $4, 1)
     )
     insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, status, status_at, failure_type,
         failure_class, diagnostic, handed_off_at)
     values ($1, $2, 0, 'to', 'Ann@example.com', 'ann@example.com', $5, $3, case when $6::text is not null then 'soft' end,
       $6, case when $6::text is not null then 'Of the report' end, $7)`,
    [organizationId, messageId, acceptedAt, claimedBy, status, failureClass, handedOffAt],
  );
  return {
    organizationId,
    messageId,
    ordinal: 0,
    channel: emailChannel,
    policy: emailChannel.policyOf({ isCampaign: false }),
    isCampaign: false,
    address: 'Ann@example.com',
    addressKey: 'ann@example.com',
    ...untried,
    acceptedAt,
  };
}

function settlementOf(job: Job, more: Partial<Settlement>): Settlement {
  return {
    job,
    status: null,
    dropReason: null,
    failure: null,
    providerMessageId: null,
    wasHandedOff: false,
    isAmbiguous: false,
    requeue: null,
    ...more,
  };
}

function failureOf(failureClass: string): Failure {
  return {
    type: 'soft',
    class: failureClass,
    smtpCode: 451,
    enhancedCode: '4.7.1',
    diagnostic: 'Of the outcome',
    remote: 'mx.example',
  };
}

const settle = (...settlements: Settlement[]) => settleJobs(database, settlements, { epoch, at });

async function recipientOf({ messageId }: Job) {
  const [row] = await run<Record<string, unknown>>('select * from recipients where message_id = $1', [
    messageId,
  ]);
  return row!;
}

const queueOf = ({ messageId }: Job) =>
  run<Record<string, unknown>>('select * from delivery_queue where message_id = $1', [messageId]);

const cutOff = { wasHandedOff: true, isAmbiguous: true };

test.each<{ before: Before; outcome: Partial<Settlement>; after: [RecipientStatus, string | null] }>([
  { before: {}, outcome: { status: 'delivered' }, after: ['delivered', null] },
  {
    before: { status: 'delayed', failureClass: 'policy' },
    outcome: { status: 'delivered' },
    after: ['delivered', null],
  },
  // `sent` ranks below `delayed`.
  {
    before: { status: 'delayed', failureClass: 'policy' },
    outcome: { status: 'sent' },
    after: ['sent', null],
  },
  {
    before: { status: 'delayed', failureClass: 'policy' },
    outcome: { status: 'delayed', failure: failureOf('rate_limited') },
    after: ['delayed', 'rate_limited'],
  },
  { before: { status: 'delivered' }, outcome: { status: 'sent' }, after: ['delivered', null] },
  { before: { status: 'opened' }, outcome: { status: 'delivered' }, after: ['opened', null] },
  {
    before: { status: 'failed', failureClass: 'spam' },
    outcome: { status: 'delivered' },
    after: ['failed', 'spam'],
  },
  {
    before: { status: 'complained' },
    outcome: { status: 'bounced', failure: failureOf('mailbox_full') },
    after: ['complained', null],
  },
  { before: { status: 'delayed', failureClass: 'policy' }, outcome: cutOff, after: ['delayed', 'policy'] },
  {
    before: { status: 'bounced', failureClass: 'mailbox_full' },
    outcome: cutOff,
    after: ['bounced', 'mailbox_full'],
  },
])('$before, and then $outcome: it is $after', async ({ before, outcome, after }) => {
  const job = await insertJob(before);
  await settle(settlementOf(job, outcome));
  const { status, status_at: statusAt, failure_class: failureClass, ...row } = await recipientOf(job);
  expect([status, failureClass]).toEqual(after);
  expect(statusAt).toEqual(status === (before.status ?? 'sent') ? acceptedAt : at);
  const said = failureClass === null ? null : outcome.failure ? 'Of the outcome' : 'Of the report';
  expect(row.diagnostic).toBe(said);
  expect(await queueOf(job)).toEqual([]);
});

test('the first hand-off is the one whose time is kept, and so is the name that the provider gave', async () => {
  const job = await insertJob({ handedOffAt: acceptedAt });
  await settle(settlementOf(job, { status: 'sent', wasHandedOff: true, providerMessageId: 'SM1' }));
  expect(await recipientOf(job)).toMatchObject({ handed_off_at: acceptedAt, provider_message_id: 'SM1' });

  await run(
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by, claim_number)
     values ($1, $2, 0, 'email', 0, $3, $3, 100, $4, 2)`,
    [organizationId, job.messageId, acceptedAt, epoch],
  );
  await settle(settlementOf(job, cutOff));
  expect(await recipientOf(job)).toMatchObject({ handed_off_at: acceptedAt, provider_message_id: 'SM1' });
});

test('a job that is cut off keeps the time of its first hand-off, whatever becomes of the repeat', async () => {
  const job = await insertJob();
  const requeue = { dueAt: at, attempts: 1, crashes: 0, setAsideAt: null };
  const handOffAt = new Date(at.getTime() - 60_000);
  const timeOf = async () => (await queueOf(job))[0]!.first_handed_off_at;
  const claimAgain = () =>
    run('update delivery_queue set claimed_by = $2, claim_number = 2 where message_id = $1', [
      job.messageId,
      epoch,
    ]);
  await settle(settlementOf({ ...job, handOffAt: at }, { status: 'delayed', requeue }));
  expect(await timeOf()).toBeNull();
  await claimAgain();
  await settle(settlementOf({ ...job, handOffAt }, { ...cutOff, requeue }));
  expect(await timeOf()).toEqual(handOffAt);
  await claimAgain();
  await settle(settlementOf({ ...job, handOffAt }, { status: 'delayed', requeue }));
  expect(await timeOf()).toEqual(handOffAt);
});

test('a job that is given back is in the queue as it is said to be, and its recipient is as it was', async () => {
  const job = await insertJob();
  const before = await recipientOf(job);
  const requeue = { dueAt: at, attempts: 3, crashes: 2, setAsideAt: at };
  expect(await settle(settlementOf(job, { requeue }))).toEqual([]);
  expect(await recipientOf(job)).toEqual(before);
  expect(await queueOf(job)).toMatchObject([
    {
      due_at: at,
      attempts: 3,
      crashes: 2,
      set_aside_at: at,
      claimed_by: null,
      claim_number: null,
      ambiguities: 0,
    },
  ]);
});

test('those are returned whose recipient was changed, and of what another worker has nothing is written', async () => {
  const [own, anothers, done] = [
    await insertJob(),
    await insertJob({ claimedBy: epoch + 1 }),
    await insertJob(),
  ];
  const before = await recipientOf(anothers);
  const changed = await settle(
    settlementOf(own, { dropReason: 'suppressed' }),
    settlementOf(anothers, { status: 'delivered' }),
    settlementOf(done, {}),
  );
  expect(changed).toEqual([
    {
      organizationId,
      messageId: own.messageId,
      ordinal: 0,
      contactId: null,
      addressKey: 'ann@example.com',
      happened: [{ what: 'dropped', at, dropReason: 'suppressed' }],
    },
  ]);
  expect(await recipientOf(anothers)).toEqual(before);
  expect(await Promise.all([own, anothers, done].map(queueOf))).toMatchObject([[], [{ claimed_by: 8 }], []]);
});
