/** Recipients of campaigns that are claimed, settled and returned by slices. */
import { beforeEach, describe, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { messageChannels } from '../../../test/support/channels.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import { emailChannel } from '../../email/channel.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import { createSecrets } from '../../platform/secrets.ts';
import type { Job } from '../channel.ts';
import { announceHandOffs, countBatches } from '../../../test/support/delivery-slices.ts';
import { type Ledger, type LedgerOptions, openLedger } from './ledger.ts';
import { dropJob, failJob, releaseJob, settleAmbiguity, settleCrash, settleOutcome } from './settlement.ts';
import { returnClaims } from './claim-recovery.ts';
import { type Settled, writeSettlements, type WriterTools } from './settlement-writer.ts';
import { claimDueSlices, deleteSlices, type SliceClaim } from './slice-store.ts';
import { isPlainlyTaken, writeTaken } from './taken.ts';

const newId = createShuffledIds(systemClock);
const organizationId = newId();
const epoch = 7;
const firstOrganization = '00000000-0000-0000-0000-000000000000';
const reply = { code: 451, enhancedCode: null, diagnostic: 'come back later', remote: null };
const accepted: SendOutcome<string> = { kind: 'accepted', providerMessageId: 'ring 7', reply: null };
const deferred: SendOutcome<string> = { kind: 'deferred', reason: 'greylisted', reply };

let address: DatabaseAddress;
let database: Database;
let progress: number;
let claims = 0;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  address = opened.address;
  database = opened.database;
});
beforeEach(async () => {
  progress = 0;
  await run(
    'truncate hand_offs, workers, delivery_queue, delivery_slices, recipients, recipient_changes, contact_sets, reputation_counts cascade',
  );
  await run("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())", [epoch]);
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

type Admitted = { count: number; owner?: string; channel?: string; lane?: 1 | 2; sliceSize?: number };

/** A campaign's message of which so many recipients wait; returns its id. */
async function admit({
  count,
  owner = organizationId,
  channel = 'email',
  lane = 1,
  sliceSize = 1_000,
}: Admitted): Promise<string> {
  const messageId = newId();
  await run(
    `with message as (
       insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, $3, 'campaign', 'Acme', '{}', $4::integer, now(), now())
     ), slices as (
       insert into delivery_slices (organization_id, message_id, first_ordinal, last_ordinal, channel, lane, recipients,
         accepted_at, content_bytes)
       select $1, $2, min(n), max(n), $3, $5::smallint, count(*), now(), 100
       from generate_series(0, $4::integer - 1) n
       group by n / $6::integer
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at)
     select $1, $2, n, 'to', 'r' || n || '@example.com', 'r' || n || '@example.com', gen_random_uuid(), now()
     from generate_series(0, $4::integer - 1) n`,
    [owner, messageId, channel, count, lane, sliceSize],
  );
  return messageId;
}

function claim(more: Partial<Parameters<typeof claimDueSlices>[1]> = {}): Promise<SliceClaim> {
  claims += 1;
  return claimDueSlices(database, {
    epoch,
    claimNumber: claims,
    channel: emailChannel,
    slicesMax: 10,
    afterOrganizationId: firstOrganization,
    ...more,
  });
}

const tools = (more: Partial<WriterTools> = {}): WriterTools => ({
  database,
  channels: messageChannels,
  deliveries: [{ channel: emailChannel, isReportedById: false }],
  clock: systemClock,
  log: silentLog,
  newId,
  random: () => 0.5,
  secrets: createSecrets('a secret of the tests, and of nothing else'),
  onCampaignProgress: () => {
    progress += 1;
  },
  onContactsChanged: () => undefined,
  ...more,
});

const context = () => ({ atMs: systemClock.nowMs(), random: 0.5, dateOf });

function toSettled(job: Job, outcome: SendOutcome<string> = accepted): Settled {
  return { settlement: settleOutcome(job, outcome, context()), message: null };
}

type Fate = { ordinal: number; status: string; handed_off: boolean; ambiguities: number; queued: number };

const fatesOf = (messageId: string): Promise<Fate[]> =>
  run(
    `select ordinal, status, handed_off_at is not null as handed_off, ambiguities,
       (select count(*)::integer from delivery_queue q where q.message_id = r.message_id and q.ordinal = r.ordinal) as queued
     from recipients r
     where message_id = $1
     order by ordinal`,
    [messageId],
  );

const slicesOf = (messageId: string) =>
  run<{ first_ordinal: number; writes: number }>(
    'select first_ordinal, writes from delivery_slices where message_id = $1 order by first_ordinal',
    [messageId],
  );

const queueOf = (messageId: string) =>
  run<Record<string, unknown>>('select * from delivery_queue where message_id = $1 order by ordinal', [
    messageId,
  ]);

describe('a claim', () => {
  test('of a slice gives a job for each of its recipients who was not dropped or erased since', async () => {
    const messageId = await admit({ count: 5 });
    await run("update recipients set drop_reason = 'contact_deleted' where message_id = $1 and ordinal = 1", [
      messageId,
    ]);
    await run("update recipients set address = '' where message_id = $1 and ordinal = 3", [messageId]);
    const { jobs, empty } = await claim();
    expect(jobs.map(({ ordinal, address }) => [ordinal, address])).toEqual([
      [0, 'r0@example.com'],
      [2, 'r2@example.com'],
      [4, 'r4@example.com'],
    ]);
    expect(jobs[0]).toMatchObject({
      organizationId,
      messageId,
      isCampaign: true,
      attempts: 0,
      contentBytes: 100,
    });
    expect(jobs[0]?.slice).toMatchObject({ firstOrdinal: 0, lastOrdinal: 4, jobsLeft: 3, writes: 0 });
    expect(empty).toEqual([]);
    expect((await claim()).jobs).toEqual([]);
  });

  test('of a slice of which nobody is left says so, and the slice is removed', async () => {
    const messageId = await admit({ count: 2 });
    await run("update recipients set drop_reason = 'unsubscribed' where message_id = $1", [messageId]);
    const { jobs, empty } = await claim();
    expect(jobs).toEqual([]);
    await deleteSlices(database, empty, epoch);
    expect(await slicesOf(messageId)).toEqual([]);
  });

  test('sees neither what is paused, nor other channels, nor what another worker has', async () => {
    await admit({ count: 1, lane: 2 });
    await admit({ count: 1, channel: 'sms' });
    await admit({ count: 1 });
    await run("insert into workers (epoch, host, pid, started_at) values (8, 'there', 1, now())");
    expect((await claim({ epoch: 8 })).jobs).toHaveLength(1);
    expect((await claim()).jobs).toEqual([]);
  });

  test('of a worker that was buried finds nothing, and changes nothing', async () => {
    const messageId = await admit({ count: 1 });
    await run('delete from workers');
    expect(await claim()).toMatchObject({ jobs: [], isScanOver: true });
    expect(await run('select from delivery_slices where claimed_by is null')).toHaveLength(1);
    expect(await slicesOf(messageId)).toHaveLength(1);
  });

  test('takes what was accepted first, whatever was made first', async () => {
    const [late, early] = [await admit({ count: 1 }), await admit({ count: 1 })];
    await run(
      "update delivery_slices set accepted_at = accepted_at - interval '1 hour' where message_id = $1",
      [early],
    );
    for (const messageId of [early, late]) {
      const { jobs } = await claim({ slicesMax: 1 });
      expect(jobs.map((job) => job.messageId)).toEqual([messageId]);
    }
  });

  test('gives organizations equal shares, and a scan comes to all of them', async () => {
    const owners = Array.from({ length: 5 }, () => newId());
    for (const owner of owners) await admit({ count: 4, owner, sliceSize: 1 });
    const seen: string[] = [];
    let after = firstOrganization;
    for (;;) {
      const { jobs, lastOrganizationId, isScanOver } = await claim({
        afterOrganizationId: after,
        slicesMax: 4,
        organizationsMax: 2,
      });
      expect(jobs).toHaveLength(isScanOver ? 4 : 4);
      seen.push(...jobs.map((job) => `${job.organizationId} ${job.ordinal}`));
      if (isScanOver) break;
      after = lastOrganizationId;
    }
    const shares = owners.map((owner) => seen.filter((each) => each.startsWith(owner)).length);
    expect(shares.sort()).toEqual([2, 2, 2, 2, 4]);
    expect(seen.filter((each) => each.endsWith(' 0'))).toHaveLength(5);
  });
});

describe.each([
  ['accepted ones alone, in one statement', writeTaken],
  ['those of all kinds', writeSettlements],
])('the outcomes of a slice, %s,', (_how, write) => {
  test('are written, counted, and noted for the counts; with the last one the slice is gone', async () => {
    const messageId = await admit({ count: 3 });
    const other = await admit({ count: 3, owner: newId() });
    const { jobs } = await claim();
    const own = jobs.filter((job) => job.messageId === messageId);
    await write(
      tools(),
      epoch,
      own.slice(0, 2).map((job) => toSettled(job)),
    );
    expect(await fatesOf(messageId)).toMatchObject([
      { status: 'delivered', handed_off: true, queued: 0 },
      { status: 'delivered', handed_off: true, queued: 0 },
      { status: 'sent', handed_off: false, queued: 0 },
    ]);
    expect(await slicesOf(messageId)).toEqual([{ first_ordinal: 0, writes: 1 }]);
    await write(
      tools(),
      epoch,
      own.slice(2).map((job) => toSettled(job)),
    );
    expect(await slicesOf(messageId)).toEqual([]);
    expect(await fatesOf(other)).toMatchObject([{ status: 'sent' }, { status: 'sent' }, { status: 'sent' }]);
    expect(await run('select distinct message_id, slices from recipient_changes')).toEqual([
      { message_id: messageId, slices: [0] },
    ]);
    expect(
      await run('select organization_id, sum(sent)::integer as sent from reputation_counts group by 1'),
    ).toEqual([{ organization_id: organizationId, sent: 3 }]);
    expect(progress).toBe(2);
  });

  test('are written once, also if the answer to the commit is lost and they are written again', async () => {
    const messageId = await admit({ count: 2 });
    const { jobs } = await claim();
    const [slice] = jobs.map((job) => job.slice!);
    const items = jobs.slice(0, 1).map((job) => toSettled(job));
    await write(tools(), epoch, items);
    // As it was before: nothing is known of the commit.
    slice!.writes -= 1;
    slice!.jobsLeft += 1;
    await run("update recipients set status = 'opened' where message_id = $1 and ordinal = 0", [messageId]);
    await write(tools(), epoch, items);
    expect(await slicesOf(messageId)).toEqual([{ first_ordinal: 0, writes: 1 }]);
    expect((await fatesOf(messageId))[0]).toMatchObject({ status: 'opened' });
    expect(await run('select sum(sent)::integer as sent from reputation_counts')).toEqual([{ sent: 1 }]);
    await write(
      tools(),
      epoch,
      jobs.slice(1).map((job) => toSettled(job)),
    );
    expect(await slicesOf(messageId)).toEqual([]);
  });

  test('of more slices than one, of two organizations and a thousand recipients, are written together', async () => {
    const ids = [
      await admit({ count: 700, sliceSize: 250 }),
      await admit({ count: 600, sliceSize: 250, owner: newId() }),
    ];
    const { jobs } = await claim();
    expect(jobs).toHaveLength(1_300);
    await write(
      tools(),
      epoch,
      jobs.map((job) => toSettled(job)),
    );
    for (const id of ids) {
      expect((await fatesOf(id)).every(({ status }) => status === 'delivered')).toBe(true);
      expect(await slicesOf(id)).toEqual([]);
    }
  });

  test('that a worker writes after its slice was returned change nothing', async () => {
    const messageId = await admit({ count: 2 });
    const { jobs } = await claim();
    await returnClaims(tools(), epoch, settleCrash);
    await write(
      tools(),
      epoch,
      jobs.map((job) => toSettled(job)),
    );
    expect(await fatesOf(messageId)).toMatchObject([
      { status: 'sent', queued: 1 },
      { status: 'sent', queued: 1 },
    ]);
    expect(await run('select from reputation_counts')).toEqual([]);
  });

  test('leave what a report has said before', async () => {
    const messageId = await admit({ count: 1 });
    const { jobs } = await claim();
    await run(
      `update recipients set status = 'bounced', handed_off_at = now(), failure_type = 'hard',
         failure_class = 'mailbox_not_found' where message_id = $1`,
      [messageId],
    );
    await write(
      tools(),
      epoch,
      jobs.map((job) => toSettled(job)),
    );
    expect(
      await run('select status, failure_class from recipients where message_id = $1', [messageId]),
    ).toEqual([{ status: 'bounced', failure_class: 'mailbox_not_found' }]);
  });
});

test('an outcome is written in one statement only if nothing else follows from it', async () => {
  await admit({ count: 1 });
  const [job] = (await claim()).jobs;
  const usual = toSettled(job!);
  expect(isPlainlyTaken(tools(), usual)).toBe(true);
  const { slice: _slice, ...ofQueue } = job!;
  const others: Settled[] = [
    toSettled(ofQueue),
    toSettled(job!, deferred),
    { ...usual, finding: 'a device is gone' },
    { settlement: settleAmbiguity(job!, context()), message: null },
    { settlement: dropJob(job!, 'unsubscribed'), message: null },
    { settlement: failJob(job!, 'other', 'It cannot be built.'), message: null },
    { settlement: releaseJob(job!, context()), message: null },
  ];
  expect(others.map((each) => isPlainlyTaken(tools(), each))).toEqual(others.map(() => false));
  const reportedById = tools({ deliveries: [{ channel: emailChannel, isReportedById: true }] });
  expect(isPlainlyTaken(reportedById, usual)).toBe(false);
});

describe('where a segment of the organization reads messages', () => {
  beforeEach(() =>
    run(
      `insert into contact_sets (organization_id, id, kind, name, name_key, reads_messages, created_at, updated_at)
       values ($1, gen_random_uuid(), 'segment', 'Readers', 'readers', true, now(), now())`,
      [organizationId],
    ),
  );

  test('nothing is written in one statement, and its contacts are told of', async () => {
    const messageId = await admit({ count: 2 });
    await run(
      `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       select organization_id, contact_id, address, address_key, now(), now() from recipients where message_id = $1`,
      [messageId],
    );
    const { jobs } = await claim();
    const items = jobs.map((job) => toSettled(job));
    expect(await writeTaken(tools(), epoch, items)).toBe(null);
    expect(await fatesOf(messageId)).toMatchObject([{ status: 'sent' }, { status: 'sent' }]);
    expect(await slicesOf(messageId)).toEqual([{ first_ordinal: 0, writes: 0 }]);

    const ledger = ledgerOf(tools());
    expect(await Promise.all(items.map(ledger.settle))).toEqual([true, true]);
    expect(await fatesOf(messageId)).toMatchObject([{ status: 'delivered' }, { status: 'delivered' }]);
    expect(await run('select organization_id from contact_changes')).toEqual([
      { organization_id: organizationId },
    ]);
    await run('truncate contact_changes, contacts cascade');
  });

  test('those of other organizations are written in one statement', async () => {
    const messageId = await admit({ count: 1, owner: newId() });
    const { jobs } = await claim();
    expect(
      await writeTaken(
        tools(),
        epoch,
        jobs.map((job) => toSettled(job)),
      ),
    ).toEqual([]);
    expect(await fatesOf(messageId)).toMatchObject([{ status: 'delivered' }]);
  });
});

describe('a recipient of a slice', () => {
  test('that is to be tried again has a row of its own in the queue, as its slice was admitted', async () => {
    const messageId = await admit({ count: 3 });
    const { jobs } = await claim();
    // Paused meanwhile: what comes back is not seen by the workers.
    await run('update delivery_slices set lane = 2 where message_id = $1', [messageId]);
    const [first, second, third] = jobs;
    await writeSettlements(tools(), epoch, [
      toSettled(first!, deferred),
      { settlement: releaseJob(second!, context(), 60_000), message: null },
      { settlement: dropJob(third!, 'unsubscribed'), message: null },
    ]);
    expect(await queueOf(messageId)).toMatchObject([
      {
        ordinal: 0,
        channel: 'email',
        lane: 2,
        attempts: 1,
        ambiguities: 0,
        crashes: 0,
        content_bytes: 100,
        claimed_by: null,
      },
      {
        ordinal: 1,
        channel: 'email',
        lane: 2,
        attempts: 0,
        ambiguities: 0,
        crashes: 0,
        content_bytes: 100,
        claimed_by: null,
      },
    ]);
    expect(
      await run('select status, drop_reason from recipients where message_id = $1 order by ordinal', [
        messageId,
      ]),
    ).toEqual([
      { status: 'delayed', drop_reason: null },
      { status: 'sent', drop_reason: null },
      { status: 'sent', drop_reason: 'unsubscribed' },
    ]);
    expect(await slicesOf(messageId)).toEqual([]);
  });

  test('whose hand-off was cut off is uncertain, and is not queued again in a campaign', async () => {
    const messageId = await admit({ count: 1 });
    const { jobs } = await claim();
    await writeSettlements(tools(), epoch, [
      { settlement: settleAmbiguity(jobs[0]!, context()), message: null },
    ]);
    expect(await fatesOf(messageId)).toMatchObject([{ handed_off: true, ambiguities: 1, queued: 0 }]);
    expect(await run('select uncertain from recipients where message_id = $1', [messageId])).toEqual([
      { uncertain: true },
    ]);
  });
});

describe('a slice of a worker that died', () => {
  test('is over: who was announced is uncertain, whose outcome is written stays, and the others are queued', async () => {
    const messageId = await admit({ count: 7 });
    const other = await admit({ count: 2, owner: newId() });
    const { jobs } = await claim();
    const own = jobs.filter((job) => job.messageId === messageId);
    const [taken, put, announced, told, , stopped, failed] = own;
    await announceHandOffs(database, [taken!, put!, announced!, told!], { epoch, batch: 1, batchesOver: [] });
    await writeSettlements(tools(), epoch, [
      toSettled(taken!),
      toSettled(put!, deferred),
      { settlement: failJob(failed!, 'other', 'It cannot be built.'), message: null },
    ]);
    // A report came before the outcome was written.
    await run(
      "update recipients set status = 'delivered', handed_off_at = now() where message_id = $1 and ordinal = 3",
      [messageId],
    );
    await run("update recipients set drop_reason = 'suppressed' where message_id = $1 and ordinal = $2", [
      messageId,
      stopped!.ordinal,
    ]);
    await returnClaims(tools(), epoch, settleCrash);
    expect(await fatesOf(messageId)).toEqual([
      { ordinal: 0, status: 'delivered', handed_off: true, ambiguities: 0, queued: 0 },
      { ordinal: 1, status: 'delayed', handed_off: false, ambiguities: 0, queued: 1 },
      { ordinal: 2, status: 'sent', handed_off: true, ambiguities: 1, queued: 0 },
      { ordinal: 3, status: 'delivered', handed_off: true, ambiguities: 0, queued: 0 },
      { ordinal: 4, status: 'sent', handed_off: false, ambiguities: 0, queued: 1 },
      { ordinal: 5, status: 'sent', handed_off: false, ambiguities: 0, queued: 0 },
      { ordinal: 6, status: 'failed', handed_off: false, ambiguities: 0, queued: 0 },
    ]);
    expect(await queueOf(messageId)).toMatchObject([
      { ordinal: 1, attempts: 1, crashes: 0 },
      { ordinal: 4, attempts: 0, crashes: 1 },
    ]);
    expect(await queueOf(other)).toMatchObject([{ crashes: 1 }, { crashes: 1 }]);
    expect(await run('select from delivery_slices')).toEqual([]);
    expect(await run('select from hand_offs')).toEqual([]);
  });

  test('of a campaign that repeats what is uncertain queues who was announced once more, in a minute', async () => {
    const messageId = await admit({ count: 2 });
    const other = await admit({ count: 1, owner: newId() });
    await run('update messages set details = $2 where id = $1', [messageId, { repeatsUncertain: true }]);
    const { jobs } = await claim();
    const before = dateOf(systemClock.nowMs());
    const handOffAt = dateOf(before.getTime() - 5_000);
    const announced = jobs.filter(({ ordinal }) => ordinal === 0).map((job) => ({ ...job, handOffAt }));
    await announceHandOffs(database, announced, { epoch, batch: 1, batchesOver: [] });
    await returnClaims(tools(), epoch, settleCrash);
    const [repeated, returned] = await queueOf(messageId);
    expect(repeated).toMatchObject({
      ordinal: 0,
      attempts: 1,
      ambiguities: 1,
      first_handed_off_at: handOffAt,
    });
    expect((repeated!.due_at as Date).getTime()).toBeGreaterThanOrEqual(before.getTime() + 60_000);
    expect(returned).toMatchObject({ ordinal: 1, attempts: 0, ambiguities: 0, crashes: 1 });
    expect(await queueOf(other)).toEqual([]);
    expect(await fatesOf(other)).toMatchObject([{ ambiguities: 1, queued: 0 }]);

    // The worker that repeats it dies as well: its claim stands in the queue, and once is enough.
    await run('update delivery_queue set claimed_by = $2, claim_number = 99 where message_id = $1', [
      messageId,
      epoch,
    ]);
    const [again] = announced.map((job) => ({ ...job, claimNumber: 99 }));
    await announceHandOffs(database, [again!], { epoch, batch: 2, batchesOver: [] });
    await returnClaims(tools(), epoch, settleCrash);
    expect(await fatesOf(messageId)).toMatchObject([
      { ordinal: 0, ambiguities: 2, queued: 0 },
      { ordinal: 1, ambiguities: 0, queued: 1 },
    ]);
  });

  test('was not announced by an announcement of another claim, nor were jobs of the queue', async () => {
    const messageId = await admit({ count: 2 });
    const other = await admit({ count: 2, owner: newId() });
    const { jobs } = await claim();
    const announceBefore = (claimNumber: number, batch: number) =>
      announceHandOffs(
        database,
        jobs.map((job) => ({ ...job, claimNumber: claimNumber - 1 })),
        { epoch, batch, batchesOver: [] },
      );
    await announceBefore(jobs[0]!.claimNumber, 1);
    await returnClaims(tools(), epoch, settleCrash);
    await run('update delivery_queue set claimed_by = $1, claim_number = 99', [epoch]);
    await announceBefore(99, 2);
    await returnClaims(tools(), epoch, settleCrash);
    for (const id of [messageId, other]) {
      expect(await fatesOf(id)).toMatchObject([
        { ambiguities: 0, queued: 1 },
        { ambiguities: 0, queued: 1 },
      ]);
      expect(await queueOf(id)).toMatchObject([{ crashes: 2 }, { crashes: 2 }]);
    }
  });

  test('whose recipients cannot all be returned keeps those, and the others are queued', async () => {
    const messageId = await admit({ count: 4 });
    await claim();
    await run(`create function refuse_two() returns trigger language plpgsql as $$
      begin
        if new.ordinal = 2 then raise exception 'not this one'; end if;
        return new;
      end $$`);
    await run(
      'create trigger refuse_two before insert on delivery_queue for each row execute function refuse_two()',
    );
    await expect(returnClaims(tools(), epoch, settleCrash)).rejects.toThrow('1 claims');
    expect((await queueOf(messageId)).map(({ ordinal }) => ordinal)).toEqual([0, 1, 3]);
    expect(await slicesOf(messageId)).toHaveLength(1);
    await run('drop trigger refuse_two on delivery_queue');
    await returnClaims(tools(), epoch, settleCrash);
    expect((await queueOf(messageId)).map(({ ordinal }) => ordinal)).toEqual([0, 1, 2, 3]);
    expect(await slicesOf(messageId)).toEqual([]);
  });

  test('on a channel that only newer workers know is left to them', async () => {
    const messageId = await admit({ count: 1 });
    await claim();
    const { sms } = messageChannels;
    const older = tools({ channels: { sms } as unknown as WriterTools['channels'] });
    await expect(returnClaims(older, epoch, settleCrash)).rejects.toThrow('email');
    expect(await slicesOf(messageId)).toHaveLength(1);
  });
});

const lease: Lease = { epoch, signal: new AbortController().signal, release: () => Promise.resolve() };

function ledgerOf(
  given: WriterTools,
  { announcedMax = 4, isAnnouncedApart = false }: Partial<LedgerOptions> = {},
): Ledger {
  return openLedger(given, { lease, nextBatch: countBatches(), announcedMax, isAnnouncedApart });
}

describe('the ledger', () => {
  /** How many transactions were begun. */
  let transactions: number;
  const counting = (): WriterTools =>
    tools({
      database: {
        ...database,
        transactionByIndex: (work) => {
          transactions += 1;
          return database.transactionByIndex(work);
        },
        together: (organizationIds, statements) => {
          transactions += 1;
          return database.together(organizationIds, statements);
        },
      },
    });
  beforeEach(() => {
    transactions = 0;
  });

  const announcedJobs = async () =>
    (await run<{ ordinals: number[] }>('select ordinals from hand_offs order by batch')).map(
      ({ ordinals }) => ordinals,
    );

  test('writes outcomes and announces what follows in one transaction', async () => {
    const messageId = await admit({ count: 4 });
    const { jobs } = await claim();
    const ledger = ledgerOf(counting());
    expect(await Promise.all(jobs.slice(0, 2).map(ledger.announce))).toEqual([true, true]);
    expect(transactions).toBe(1);
    await Promise.all([
      ...jobs.slice(0, 2).map((job) => ledger.settle(toSettled(job))),
      ...jobs.slice(2).map(ledger.announce),
    ]);
    expect(transactions).toBe(2);
    expect((await fatesOf(messageId)).map(({ status }) => status)).toEqual([
      'delivered',
      'delivered',
      'sent',
      'sent',
    ]);
    expect(await announcedJobs()).toEqual([
      [0, 1],
      [2, 3],
    ]);
  });

  test('announces no more than may be uncertain, until outcomes are written', async () => {
    await admit({ count: 6 });
    const { jobs } = await claim();
    const ledger = ledgerOf(tools());
    const announced: number[] = [];
    const announcing = jobs.map(async (job) => {
      await ledger.announce(job);
      announced.push(job.ordinal);
    });
    await Promise.all(announcing.slice(0, 4));
    // Whatever is not announced by then waits for an outcome.
    await ledger.settle({ settlement: releaseJob(jobs[5]!, context()), message: null });
    expect(announced.sort()).toEqual([0, 1, 2, 3, 5]);
    expect(await announcedJobs()).toEqual([[0, 1, 2, 3]]);
    await ledger.settle(toSettled(jobs[0]!));
    await announcing[4];
    expect(await announcedJobs()).toEqual([[0, 1, 2, 3], [4]]);
  });

  test('announces nobody who ended before', async () => {
    await admit({ count: 5 });
    const { jobs } = await claim();
    const ledger = ledgerOf(tools());
    await Promise.all(jobs.slice(0, 4).map(ledger.announce));
    const last = ledger.announce(jobs[4]!);
    const ending = ledger.settle({ settlement: releaseJob(jobs[4]!, context()), message: null });
    expect(await last).toBe(false);
    await ending;
    expect(await announcedJobs()).toEqual([[0, 1, 2, 3]]);
  });

  test('announces a job once, however often it is asked', async () => {
    await admit({ count: 1 });
    const { jobs } = await claim();
    const ledger = ledgerOf(counting());
    expect(await Promise.all([ledger.announce(jobs[0]!), ledger.announce(jobs[0]!)])).toEqual([true, true]);
    expect(await ledger.announce(jobs[0]!)).toBe(true);
    expect(transactions).toBe(1);
  });

  describe('that announces ahead', () => {
    test('writes together what no connection waits for, once it is enough or has waited for long enough', async () => {
      await admit({ count: 6 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf({ ...counting(), clock }, { announcedMax: 8 });
      await Promise.all(jobs.slice(0, 2).map(ledger.announce));
      ledger.announceAhead(jobs[2]!);
      const first = ledger.settle(toSettled(jobs[0]!));
      await clock.whenWaiting(1);
      await new Promise(setImmediate);
      expect(transactions).toBe(1);
      clock.advance(5);
      expect(await first).toBe(true);
      expect(transactions).toBe(2);
      for (const job of jobs.slice(3)) ledger.announceAhead(job);
      expect(await ledger.settle(toSettled(jobs[1]!))).toBe(true);
      expect(transactions).toBe(3);
      expect(await announcedJobs()).toEqual([[0, 1], [2], [3, 4, 5]]);
    });

    test('writes at once where a connection waits, or where nothing more is under way', async () => {
      await admit({ count: 3 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf({ ...counting(), clock }, { announcedMax: 8 });
      await Promise.all(jobs.slice(0, 2).map(ledger.announce));
      ledger.announceAhead(jobs[2]!);
      await clock.whenWaiting(1);
      expect(await ledger.announce(jobs[2]!)).toBe(true);
      expect(transactions).toBe(2);
      expect(await Promise.all(jobs.map((job) => ledger.settle(toSettled(job))))).toEqual([true, true, true]);
      expect(transactions).toBe(3);
    });
  });

  describe('that announces apart', () => {
    test('announces while outcomes are being written, and holds them up by nothing', async () => {
      const messageId = await admit({ count: 3 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf(tools({ clock }), { isAnnouncedApart: true });
      await ledger.announce(jobs[0]!);
      const other = openDatabase({ address, connectionsMax: 1 });
      let settling: Promise<boolean> | undefined;
      let later: Promise<boolean> | undefined;
      await other.transaction(async (transaction) => {
        await transaction.rows(
          unpreparedStatement('select from recipients where message_id = $1 for update'),
          [messageId],
        );
        settling = ledger.settle(toSettled(jobs[0]!));
        await clock.whenWaiting(1);
        clock.advance(20);
        expect(await ledger.announce(jobs[1]!)).toBe(true);
        later = ledger.settle(toSettled(jobs[2]!));
      });
      expect(await settling).toBe(true);
      await clock.whenWaiting(1);
      clock.advance(20);
      expect(await later).toBe(true);
      expect(await announcedJobs()).toEqual([[0], [1]]);
      await other.close();
    });

    test('writes outcomes when there are enough, and a few when the first has waited for long enough', async () => {
      await admit({ count: 67 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf({ ...counting(), clock }, { isAnnouncedApart: true });
      await Promise.all(jobs.slice(0, 64).map((job) => ledger.settle(toSettled(job))));
      expect(transactions).toBe(1);
      const first = ledger.settle(toSettled(jobs[64]!));
      await clock.whenWaiting(1);
      clock.advance(10);
      const second = ledger.settle(toSettled(jobs[65]!));
      expect(transactions).toBe(1);
      clock.advance(10);
      await Promise.all([first, second]);
      expect(transactions).toBe(2);
      const third = ledger.settle(toSettled(jobs[66]!));
      await clock.whenWaiting(1);
      clock.advance(20);
      expect(await third).toBe(true);
    });

    test('leaves the room of a job free whose outcome is written before its announcement', async () => {
      await admit({ count: 2 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf(tools({ clock }), { isAnnouncedApart: true, announcedMax: 1 });
      const other = openDatabase({ address, connectionsMax: 1 });
      let first: Promise<boolean> | undefined;
      await other.transaction(async (transaction) => {
        await transaction.rows(unpreparedStatement('lock table hand_offs in exclusive mode'));
        first = ledger.announce(jobs[0]!);
        // From then on the announcement is under way.
        await new Promise(setImmediate);
        const settled = ledger.settle(toSettled(jobs[0]!));
        await clock.whenWaiting(1);
        clock.advance(20);
        expect(await settled).toBe(true);
      });
      await first;
      expect(await ledger.announce(jobs[1]!)).toBe(true);
      await other.close();
    });

    test('announces what waits for room when outcomes have been written', async () => {
      await admit({ count: 3 });
      const { jobs } = await claim();
      const clock = createManualClock();
      const ledger = ledgerOf(tools({ clock }), { isAnnouncedApart: true, announcedMax: 2 });
      await Promise.all(jobs.slice(0, 2).map(ledger.announce));
      const third = ledger.announce(jobs[2]!);
      const settled = ledger.settle(toSettled(jobs[0]!));
      await clock.whenWaiting(1);
      clock.advance(20);
      expect(await settled).toBe(true);
      expect(await third).toBe(true);
      expect(await announcedJobs()).toEqual([[0, 1], [2]]);
    });
  });

  test('of a worker that was buried announces and writes nothing', async () => {
    const messageId = await admit({ count: 2 });
    const { jobs } = await claim();
    const ledger = ledgerOf(tools());
    await run('delete from workers');
    expect(await ledger.announce(jobs[0]!)).toBe(false);
    await returnClaims(tools(), epoch, settleCrash);
    await Promise.all([ledger.settle(toSettled(jobs[0]!)), ledger.announce(jobs[1]!)]);
    expect(await fatesOf(messageId)).toMatchObject([
      { status: 'sent', queued: 1 },
      { status: 'sent', queued: 1 },
    ]);
    expect(await announcedJobs()).toEqual([]);
  });

  test('writes the others, and announces, where one outcome cannot be written', async () => {
    const messageId = await admit({ count: 4 });
    const { jobs } = await claim();
    await run(`create function refuse_one() returns trigger language plpgsql as $$
      begin
        if new.ordinal = 1 and new.handed_off_at is not null then raise exception 'not this one'; end if;
        return new;
      end $$`);
    await run(
      'create trigger refuse_one before update on recipients for each row execute function refuse_one()',
    );
    const ledger = ledgerOf(tools());
    const [first, second, third, fourth] = jobs;
    const written = await Promise.all([
      ...[first!, second!, third!].map((job) => ledger.settle(toSettled(job))),
      ledger.announce(fourth!),
    ]);
    expect(written).toEqual([true, false, true, true]);
    expect((await fatesOf(messageId)).map(({ status }) => status)).toEqual([
      'delivered',
      'sent',
      'delivered',
      'sent',
    ]);
    await run('drop trigger refuse_one on recipients');
    // It stays with the worker, until its claims are returned.
    await returnClaims(tools(), epoch, settleCrash);
    expect((await fatesOf(messageId)).map(({ queued, ambiguities }) => queued + ambiguities)).toEqual([
      0, 1, 0, 1,
    ]);
  });
});
