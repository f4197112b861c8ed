import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { eventually } from '../../../test/support/email-journey.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  openDatabase,
  unpreparedStatement,
  type DatabaseAddress,
} from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import { applyReports, type FeedbackTools } from '../feedback/feedback.ts';
import type { Job } from '../channel.ts';
import { findByProviderIds, uncertainId } from '../recipients/provider-ids-store.ts';
import { dropJob, settleCrash, settleOutcome } from './settlement.ts';
import { returnClaims } from './claim-recovery.ts';
import { type Settled, writeUntilSettled, type WriterTools } from './settlement-writer.ts';
import { emailChannel } from '../../email/channel.ts';
import { chatAppChannel, codePolicy } from '../../chatapp/channel.ts';
import { smsChannel } from '../../sms/channel.ts';
import { messageChannels } from '../../../test/support/channels.ts';

const newId = createShuffledIds(systemClock);
const organizationId = newId();
const epoch = 7;

let address: DatabaseAddress;
let database: Database;
useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
  address = opened.address;
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

type Kind = Pick<Job, 'channel' | 'isCampaign'> & {
  addressOf: (ordinal: number, messageId: string) => string;
};

const campaignOfTexts: Kind = {
  channel: smsChannel,
  isCampaign: true,
  addressOf: (ordinal) => `+1415${5_600_000 + ordinal}`,
};
const singleEmail: Kind = {
  channel: emailChannel,
  isCampaign: false,
  addressOf: (ordinal, messageId) => `a${ordinal}-${messageId}@example.com`,
};

/** As the worker has done that is taken to have ended. */
async function announce(jobs: readonly Job[]): Promise<void> {
  await run(
    `insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
     values ($1, 1, $2, $3, $4, $5)`,
    [
      epoch,
      jobs.map((job) => job.organizationId),
      jobs.map((job) => job.messageId),
      jobs.map((job) => job.ordinal),
      jobs.map((job) => job.claimNumber),
    ],
  );
}

/** A message to so many addresses, with an attachment, all of which a worker has claimed. */
async function insertClaimed(
  count: number,
  { channel, isCampaign, addressOf }: Kind,
  owner = organizationId,
): Promise<Job[]> {
  const messageId = newId();
  const jobs = Array.from({ length: count }, (_, ordinal): Job => {
    const address = addressOf(ordinal, messageId);
    return {
      organizationId: owner,
      messageId,
      ordinal,
      channel,
      policy: channel.policyOf({ isCampaign }),
      isCampaign,
      address,
      addressKey: address,
      ...untried,
      acceptedAt: dateOf(systemClock.nowMs()),
    };
  });
  await run(
    `with message as (
       insert into messages
         (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, $3, $4, 'Acme', '{}', cardinality($6::text[]), now(), now())
     ), attachment as (
       insert into attachment_contents (organization_id, message_id, ordinal, sealed) values ($1, $2, 0, 'sealed')
     ), queued as (
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by,
           claim_number)
       select $1, $2, ordinal - 1, $3, 1, now(), now(), 100, $5, 1
       from unnest($6::text[]) with ordinality as claimed (address, ordinal)
     )
     insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at)
     select $1, $2, ordinal - 1, 'to', address, address, case when $4 = 'campaign' then gen_random_uuid() end, now()
     from unnest($6::text[]) with ordinality as claimed (address, ordinal)`,
    [
      owner,
      messageId,
      channel.name,
      isCampaign ? 'campaign' : 'transactional',
      epoch,
      jobs.map(({ address }) => address),
    ],
  );
  return jobs;
}

function toSettled(job: Job, outcome: SendOutcome<string>, message: Settled['message'] = null): Settled {
  const context = { atMs: systemClock.nowMs(), random: 0.5, dateOf };
  return { settlement: settleOutcome(job, outcome, context), message };
}

const reply = { code: null, enhancedCode: null, diagnostic: 'connection lost', remote: null };

const lease: Lease = { epoch, signal: new AbortController().signal, release: () => Promise.resolve() };

function toolsWith(connections: Database): WriterTools & FeedbackTools {
  return {
    database: connections,
    channels: messageChannels,
    deliveries: [
      { channel: emailChannel, isReportedById: false },
      { channel: smsChannel, isReportedById: true },
    ],
    clock: systemClock,
    log: silentLog,
    newId,
    random: () => 0.5,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
  };
}

test('outcomes of a campaign by SMS and its receipts, at the same time and in any order, never deadlock', async () => {
  const applicationName = 'contenders';
  const contended = openDatabase({ address: address, connectionsMax: 8, applicationName });
  const tools = toolsWith(contended);
  const rounds = 4;
  const batch = 400;
  for (let round = 0; round < rounds; round += 1) {
    const jobs = await insertClaimed(2 * batch, campaignOfTexts);
    const inOrder = jobs.map((job) =>
      toSettled(job, { kind: 'accepted', providerMessageId: `${job.messageId} ${job.ordinal}`, reply: null }),
    );
    await Promise.allSettled([
      writeUntilSettled(tools, lease, inOrder.slice(0, batch)),
      writeUntilSettled(tools, lease, inOrder.slice(batch)),
      applyReports(
        tools,
        smsChannel,
        jobs.toReversed().map((job) => ({ job, status: 'delivered', failure: null })),
      ),
      applyReports(
        tools,
        smsChannel,
        jobs.map((job) => ({ job, status: 'failed', failure: null })),
      ),
    ]);
  }
  await contended.close();
  // What a connection has counted is seen once it is gone.
  await eventually(
    () => run('select from pg_stat_activity where application_name = $1', [applicationName]),
    (connections) => connections.length === 0,
  );
  expect(
    await run(
      `select (select deadlocks from pg_stat_database where datname = current_database()) as deadlocks,
         count(*) filter (where status = 'failed' and provider_message_id is not null) as settled,
         (select count(*) from delivery_queue) as queued
       from recipients`,
    ),
  ).toEqual([{ deadlocks: 0, settled: rounds * 2 * batch, queued: 0 }]);
});

test('a text that was said to be on its way before its hand-off was cut off is not uncertain', async () => {
  const [told, untold, late] = (await insertClaimed(3, campaignOfTexts)) as [Job, Job, Job];
  const tools = toolsWith(database);
  const tellSent = (job: Job) => applyReports(tools, smsChannel, [{ job, status: 'sent', failure: null }]);
  await tellSent(told);
  await writeUntilSettled(
    tools,
    lease,
    [told, untold, late].map((job) => toSettled(job, { kind: 'unknown', reply })),
  );
  await tellSent(late);
  expect(
    await run(
      `select status, uncertain, handed_off_at is not null as is_handed_off
       from recipients where message_id = $1 order by ordinal`,
      [told.messageId],
    ),
  ).toEqual([
    { status: 'sent', uncertain: false, is_handed_off: true },
    { status: 'sent', uncertain: true, is_handed_off: true },
    { status: 'sent', uncertain: false, is_handed_off: true },
  ]);
});

test.each(['sent', 'delivered', 'failed'] as const)(
  'reported as %s: a code whose answer is given up after that is not sent again',
  async (status) => {
    const codes: Kind = {
      channel: { ...chatAppChannel, policyOf: () => codePolicy },
      isCampaign: false,
      addressOf: (ordinal) => `+1415${5_700_000 + ordinal}`,
    };
    const [told, untold, other] = (await insertClaimed(3, codes)) as [Job, Job, Job];
    const tools = {
      ...toolsWith(database),
      deliveries: [{ channel: chatAppChannel, isReportedById: true }],
    };
    await applyReports(tools, chatAppChannel, [{ job: told, status, failure: null }]);
    await applyReports(tools, chatAppChannel, [{ job: other, status: 'delayed', failure: null }]);
    await writeUntilSettled(
      tools,
      lease,
      [told, untold, other].map((job) => toSettled(job, { kind: 'unknown', reply })),
    );
    expect(
      await run('select ordinal, ambiguities from delivery_queue where message_id = $1 order by ordinal', [
        told.messageId,
      ]),
    ).toEqual([
      { ordinal: 1, ambiguities: 1 },
      { ordinal: 2, ambiguities: 1 },
    ]);
    expect(
      await run(
        'select status, uncertain, ambiguities from recipients where message_id = $1 and ordinal = 0',
        [told.messageId],
      ),
    ).toEqual([{ status, uncertain: false, ambiguities: 1 }]);
  },
);

const noSuchMailbox: SendOutcome = { kind: 'rejected', reason: 'mailbox_not_found', reply };

test('what a worker settles after it has lost the claim is not written, not counted, and suppresses nobody', async () => {
  const [kept, lost] = (await insertClaimed(2, singleEmail)) as [Job, Job];
  const messageId = kept.messageId;
  await run('update delivery_queue set claimed_by = $2 where message_id = $1 and ordinal = 1', [
    messageId,
    epoch + 1,
  ]);
  await writeUntilSettled(
    toolsWith(database),
    lease,
    [kept, lost].map((job) => toSettled(job, noSuchMailbox)),
  );
  expect(
    await run('select ordinal, status from recipients where message_id = $1 order by ordinal', [messageId]),
  ).toEqual([
    { ordinal: 0, status: 'bounced' },
    { ordinal: 1, status: 'sent' },
  ]);
  expect(await run('select ordinal from delivery_queue where message_id = $1', [messageId])).toEqual([
    { ordinal: 1 },
  ]);
  expect(
    await run('select sent, bounced from reputation_counts where organization_id = $1', [organizationId]),
  ).toEqual([{ sent: 1, bounced: 1 }]);
  expect((await run('select from suppressions where organization_id = $1', [organizationId])).length).toBe(1);
});

test('attachments are kept as long as somebody waits for them, and no longer', async () => {
  const accepted: SendOutcome<string> = { kind: 'accepted', providerMessageId: 'x', reply: null };
  const facts = { isShared: true, hasAttachments: true };
  const [first, second] = (await insertClaimed(2, singleEmail)) as [Job, Job];
  const countKept = async () =>
    (await run('select from attachment_contents where message_id = $1', [first.messageId])).length;
  await writeUntilSettled(toolsWith(database), lease, [toSettled(first, accepted, facts)]);
  expect(await countKept()).toBe(1);
  await writeUntilSettled(toolsWith(database), lease, [toSettled(second, accepted, facts)]);
  expect(await countKept()).toBe(0);
});

test('what is settled of a message that could not be read takes nothing of its batch with it', async () => {
  const [unread] = (await insertClaimed(1, singleEmail)) as [Job];
  const [read] = (await insertClaimed(1, singleEmail)) as [Job];
  const facts = { isShared: false, hasAttachments: true };
  const written = await writeUntilSettled(toolsWith(database), lease, [
    toSettled(unread, noSuchMailbox),
    toSettled(read, noSuchMailbox, facts),
  ]);
  expect(written).toEqual([true, true]);
  expect(
    await run('select status from recipients where message_id = any ($1::uuid[])', [
      [unread.messageId, read.messageId],
    ]),
  ).toEqual([{ status: 'bounced' }, { status: 'bounced' }]);
  expect(await run('select from attachment_contents where message_id = $1', [unread.messageId])).toEqual([]);
});

test('a campaign is counted again after each outcome and each report, and the counting is woken', async () => {
  const [job, other] = (await insertClaimed(2, campaignOfTexts)) as [Job, Job];
  let woken = 0;
  const tools = { ...toolsWith(database), onCampaignProgress: () => (woken += 1) };
  const takeChanges = async () =>
    (await run('delete from recipient_changes where message_id = $1 returning 1', [job.messageId])).length;
  const outcome: SendOutcome<string> = { kind: 'accepted', providerMessageId: newId(), reply: null };
  await writeUntilSettled(tools, lease, [toSettled(job, outcome)]);
  expect([await takeChanges(), woken]).toEqual([1, 1]);
  await applyReports(tools, smsChannel, [{ job: other, status: 'delivered', failure: null }]);
  expect([await takeChanges(), woken]).toEqual([1, 2]);
});

describe('outcomes of email', () => {
  type Email = { isCampaign?: boolean; recipients?: number; claimedBy?: number };

  /** To addresses of an organization of its own, claimed by this worker unless it is said otherwise. */
  async function insertEmail({ isCampaign = false, recipients = 1, claimedBy = epoch }: Email = {}): Promise<
    Job[]
  > {
    const key = { organizationId: newId(), messageId: newId() };
    const lane = isCampaign ? 1 : 0;
    await run(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', $3, 'a@postillion.test', '{}', $4, now(), now())
       ), queued as (
         insert into delivery_queue
           (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by,
             claim_number)
         select $1, $2, ordinal, 'email', $5, now(), now(), 100, $6, 1
         from generate_series(0, $4::integer - 1) ordinal
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at)
       select $1, $2, ordinal, 'to', ordinal || '@example.com', ordinal || '@example.com',
         case when $3 = 'campaign' then gen_random_uuid() end, now()
       from generate_series(0, $4::integer - 1) ordinal`,
      [
        key.organizationId,
        key.messageId,
        isCampaign ? 'campaign' : 'transactional',
        recipients,
        lane,
        claimedBy,
      ],
    );
    return Array.from({ length: recipients }, (_, ordinal) => ({
      ...key,
      ordinal,
      channel: emailChannel,
      policy: emailChannel.policyOf({ isCampaign }),
      isCampaign,
      address: `${ordinal}@example.com`,
      addressKey: `${ordinal}@example.com`,
      ...untried,
      acceptedAt: dateOf(systemClock.nowMs()),
    }));
  }

  const delivered = { kind: 'accepted', providerMessageId: 'one', reply: null } as const;
  const refused = { kind: 'rejected', reason: 'mailbox_not_found', reply } as const;
  const putOff = { kind: 'deferred', reason: 'rate_limited', reply } as const;
  const cutOff = { kind: 'unknown', reply } as const;

  const rowsOf = (table: 'recipients' | 'delivery_queue' | 'recipient_changes', job: Job) =>
    run<Record<string, unknown>>(
      `select * from ${table} where organization_id = $1 and message_id = $2${table === 'recipient_changes' ? '' : ' order by ordinal'}`,
      [job.organizationId, job.messageId],
    );
  const reputationOf = async ({ organizationId: id }: Job) =>
    run(
      'select sum(sent) as sent, sum(bounced) as bounced from reputation_counts where organization_id = $1',
      [id],
    );
  const suppressedOf = ({ organizationId: id }: Job) =>
    run('select reason from suppressions where organization_id = $1', [id]);

  test('are written with what was said, and count towards the reputation', async () => {
    const [ann, bob] = (await insertEmail({ recipients: 2 })) as [Job, Job];
    await writeUntilSettled(toolsWith(database), lease, [toSettled(ann, delivered), toSettled(bob, refused)]);
    expect(await rowsOf('recipients', ann)).toMatchObject([
      { status: 'delivered', handed_off_at: expect.any(Date) as Date, failure_class: null },
      { status: 'bounced', handed_off_at: expect.any(Date) as Date, failure_class: 'mailbox_not_found' },
    ]);
    expect(await rowsOf('delivery_queue', ann)).toEqual([]);
    expect(await reputationOf(ann)).toEqual([{ sent: 2, bounced: 1 }]);
    expect(await suppressedOf(ann)).toEqual([{ reason: 'hard_bounce' }]);
  });

  test('that put off what is another worker’s by now leave it alone', async () => {
    const [job] = (await insertEmail({ claimedBy: epoch + 1 })) as [Job];
    const before = await Promise.all([rowsOf('recipients', job), rowsOf('delivery_queue', job)]);
    await writeUntilSettled(toolsWith(database), lease, [toSettled(job, putOff)]);
    expect(await Promise.all([rowsOf('recipients', job), rowsOf('delivery_queue', job)])).toEqual(before);
  });

  test('that were cut off are remembered, so that they are repeated once', async () => {
    const [job] = (await insertEmail()) as [Job];
    await writeUntilSettled(toolsWith(database), lease, [toSettled(job, cutOff)]);
    expect(await rowsOf('delivery_queue', job)).toMatchObject([{ ambiguities: 1, claimed_by: null }]);
    expect(await rowsOf('recipients', job)).toMatchObject([{ ambiguities: 1, uncertain: true }]);
  });

  test('say why a recipient was dropped', async () => {
    const [job] = (await insertEmail()) as [Job];
    await writeUntilSettled(toolsWith(database), lease, [
      { settlement: dropJob(job, 'suppressed'), message: null },
    ]);
    expect(await rowsOf('recipients', job)).toMatchObject([{ status: 'sent', drop_reason: 'suppressed' }]);
  });

  test.each([
    [true, 1],
    [false, 0],
  ])(
    'are to be counted where they are a campaign’s (%s), and whoever counts is told',
    async (isCampaign, changes) => {
      const [job] = (await insertEmail({ isCampaign })) as [Job];
      let told = 0;
      const tools = { ...toolsWith(database), onCampaignProgress: () => (told += 1) };
      await writeUntilSettled(tools, lease, [toSettled(job, delivered)]);
      expect([(await rowsOf('recipient_changes', job)).length, told]).toEqual([changes, changes]);
    },
  );

  test('that cannot be written take none of their batch along', async () => {
    const jobs = await insertEmail({ recipients: 3 });
    const outcomes = [delivered, { ...refused, reply: { ...reply, diagnostic: 'a NUL: \0' } }, delivered];
    expect(
      await writeUntilSettled(
        toolsWith(database),
        lease,
        jobs.map((job, index) => toSettled(job, outcomes[index]!)),
      ),
    ).toEqual([true, false, true]);
    expect((await rowsOf('recipients', jobs[0]!)).map(({ status }) => status)).toEqual([
      'delivered',
      'sent',
      'delivered',
    ]);
  });

  test('are offered to a database that is away, and for ten seconds once the lease is lost', async () => {
    const clock = createManualClock();
    const away = {
      ...database,
      transactionByIndex: () => Promise.reject(new DatabaseUnavailableError('away')),
    };
    const lost = new AbortController();
    const [job] = (await insertEmail()) as [Job];
    let end = 'still offered';
    const writing = writeUntilSettled({ ...toolsWith(away), clock }, { ...lease, signal: lost.signal }, [
      toSettled(job, delivered),
    ]).catch((cause: unknown) => {
      end = cause instanceof DatabaseUnavailableError ? 'given up' : String(cause);
    });
    const goOn = async (seconds: number) => {
      for (let half = 0; half < 2 * seconds && end === 'still offered'; half += 1) {
        await clock.whenWaiting(1);
        clock.advance(500);
        await nextTurn();
      }
      return end;
    };
    expect(await goOn(60)).toBe('still offered');
    lost.abort();
    expect(await goOn(9)).toBe('still offered');
    expect(await goOn(3)).toBe('given up');
    await writing;
  });
});

test('texts do not count towards the reputation of email, and suppress no address', async () => {
  const [job] = (await insertClaimed(1, campaignOfTexts)) as [Job];
  const before = await run('select sum(sent) as sent from reputation_counts');
  await writeUntilSettled(toolsWith(database), lease, [
    toSettled(job, { kind: 'rejected', reason: 'unknown_subscriber', reply }),
  ]);
  expect(await run('select status from recipients where message_id = $1', [job.messageId])).toEqual([
    { status: 'failed' },
  ]);
  expect(await run('select sum(sent) as sent from reputation_counts')).toEqual(before);
  expect(await run('select from suppressions where address = $1', [job.addressKey])).toEqual([]);
});

test('a receipt finds a text by the name that its provider gave it', async () => {
  const [job] = (await insertClaimed(1, campaignOfTexts)) as [Job];
  const providerMessageId = `provider-${job.messageId}`;
  await writeUntilSettled(toolsWith(database), lease, [
    toSettled(job, { kind: 'accepted', providerMessageId, reply: null }),
  ]);
  const { organizationId: ofJob, messageId, ordinal } = job;
  expect(await findByProviderIds(database, 'sms', [{ organizationId: null, providerMessageId }])).toEqual(
    new Map([[0, { organizationId: ofJob, messageId, ordinal }]]),
  );
});

test('a receipt finds a text that was cut off, whoever settles it: also a process that hands off no texts', async () => {
  const [job] = (await insertClaimed(1, campaignOfTexts)) as [Job];
  await announce([job]);
  const { deliveries, ...tools } = toolsWith(database);
  const others = deliveries.filter(({ channel }) => channel !== smsChannel);
  await returnClaims({ ...tools, deliveries: others }, epoch, settleCrash);
  const name = uncertainId(tools.secrets, job.addressKey);
  const { organizationId: ofJob, messageId, ordinal } = job;
  expect(
    await findByProviderIds(database, 'sms', [{ organizationId: null, providerMessageId: name }]),
  ).toEqual(new Map([[0, { organizationId: ofJob, messageId, ordinal }]]));
});

test('five claims of a worker that ended are returned two at a time, each once, and what was announced is known to the last', async () => {
  await run('delete from delivery_queue');
  const jobs = [...(await insertClaimed(4, singleEmail)), ...(await insertClaimed(1, singleEmail, newId()))];
  await announce(jobs);
  const batches: number[] = [];
  const watched: Database = {
    ...database,
    rows: async (statement, values) => {
      const rows = await database.rows(statement, values);
      if (statement.text.startsWith('with announced')) batches.push(rows.length);
      return rows;
    },
  };
  await returnClaims({ ...toolsWith(watched), recoveryItemsMax: 2 }, epoch, settleCrash);
  expect(batches).toEqual([2, 2, 1, 0]);
  // Mail of a campaign that may have arrived is not repeated.
  expect(await run('select from delivery_queue')).toEqual([]);
  const recipients = await run<{ uncertain: boolean }>(
    'select uncertain from recipients where message_id = any ($1::uuid[])',
    [jobs.map(({ messageId }) => messageId)],
  );
  expect(recipients).toEqual(jobs.map(() => ({ uncertain: true })));
  expect(await run('select from hand_offs where epoch = $1', [epoch])).toEqual([]);
});

test('of the claims of a worker that ended one that cannot be returned keeps no other, and is asked for again', async () => {
  await run('delete from delivery_queue');
  // In the same batch as the one before it.
  const others = await insertClaimed(1, singleEmail, newId());
  const broken = (await insertClaimed(1, singleEmail)) as [Job];
  others.push(...(await insertClaimed(4, singleEmail, newId())));
  await run(
    `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
  );
  for (const change of ['update', 'delete'])
    await run(
      `create trigger refusing_${change} before ${change} on delivery_queue for each row
       when (old.message_id = '${broken[0].messageId}') execute function refuse()`,
    );
  await announce([]);
  const logged: object[] = [];
  const log = { ...silentLog, error: (fields: object) => void logged.push(fields) };
  const tools = { ...toolsWith(database), log, recoveryItemsMax: 2 };
  const listClaimed = () =>
    run<{ message_id: string }>('select message_id from delivery_queue where claimed_by = $1', [epoch]);
  await expect(returnClaims(tools, epoch, settleCrash)).rejects.toThrow('1 claims');
  expect(await listClaimed()).toEqual([{ message_id: broken[0].messageId }]);
  expect(await run('select from delivery_queue')).toHaveLength(1 + others.length);
  expect(logged).toMatchObject([{ epoch, message_id: broken[0].messageId }]);
  // It says what may have left.
  expect(await run('select from hand_offs where epoch = $1', [epoch])).toHaveLength(1);
  await run('drop function refuse() cascade');
  await returnClaims(tools, epoch, settleCrash);
  expect(await listClaimed()).toEqual([]);
  expect(await run('select from hand_offs where epoch = $1', [epoch])).toEqual([]);
});
