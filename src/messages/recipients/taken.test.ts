/**
 * The statements for hand-offs of the usual kind against `changeRecipients`, which writes the same outcomes step by step:
 * whatever is known of a recipient before, both leave the same rows.
 */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { messageChannels } from '../../../test/support/channels.ts';
import { untried } from '../../../test/support/jobs.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { dateOf } from '../../platform/clock.ts';
import { groupBy } from '../../platform/grouping.ts';
import { silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import type { DeliverySlice, Job } from '../channel.ts';
import { settleOutcome } from '../delivery/settlement.ts';
import { type Settled, writeSettlements, type WriterTools } from '../delivery/settlement-writer.ts';
import { isPlainlyTaken, writeTaken } from '../delivery/taken.ts';
import { recipientStatuses } from '../schema.ts';
import { refreshMessages } from '../status-store.ts';

const clock = createManualClock();
const newId = createShuffledIds(clock);
const organizationIds = [newId(), newId()];
const [epoch, otherEpoch] = [7, 8];
const acceptedAt = dateOf(clock.nowMs());
const reportedAt = dateOf(clock.nowMs() + 1_000);
clock.advance(60_000);

let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** What a report may have written before the outcome is. */
const before = fc.record({
  status: fc.constantFrom(...recipientStatuses),
  handed_off_at: fc.constantFrom(null, reportedAt),
  uncertain: fc.boolean(),
  ambiguities: fc.nat({ max: 2 }),
  provider_message_id: fc.constantFrom(null, 'as reported'),
  failure: fc.constantFrom(null, 'mailbox_full'),
  opened_at: fc.constantFrom(null, reportedAt),
});

const taken = fc.record({
  before,
  providerMessageId: fc.constantFrom('ring 7', 'ring 8'),
  isSimulated: fc.boolean(),
});

const message = {
  owner: fc.nat({ max: 1 }),
  channel: fc.constantFrom('email', 'sms'),
  claimedBy: fc.constantFrom(epoch, epoch, epoch, otherEpoch),
};

const alone = fc.record({ ...message, recipient: taken });

const slice = fc.record({
  ...message,
  /** Its first ordinal: several slices of counts may be concerned. */
  first: fc.constantFrom(0, 998, 1_000),
  recipients: fc.array(taken, { minLength: 1, maxLength: 4 }),
  /** Their outcomes are written later. */
  left: fc.nat({ max: 1 }),
  /** Whether another transaction has written outcomes of it, whose answer was lost. */
  isWritten: fc.constantFrom(false, false, false, true),
});

const world = fc.record({
  alone: fc.array(alone, { maxLength: 6 }),
  slices: fc.array(slice, { maxLength: 4 }),
});

type World = typeof world extends fc.Arbitrary<infer Value> ? Value : never;
type Taken = typeof taken extends fc.Arbitrary<infer Value> ? Value : never;

function addressOf({ isSimulated }: Taken): string {
  return isSimulated ? 'delivered@simulator.postillion.test' : 'ann@example.com';
}

type Ids = { organizationId: string; messageId: string };

function messageRow({ organizationId, messageId }: Ids, more: object): object {
  return {
    organization_id: organizationId,
    id: messageId,
    status: 'queued',
    sender: 'Acme',
    details: {},
    recipient_count: 1,
    created_at: acceptedAt,
    updated_at: acceptedAt,
    is_stopped: false,
    ...more,
  };
}

function columnsOf({ organizationId, messageId }: Ids): object {
  return { organization_id: organizationId, message_id: messageId };
}

function recipientRow(ids: Ids, recipient: Taken, more: object): object {
  const { failure, ...known } = recipient.before;
  return {
    ...columnsOf(ids),
    field: 'to',
    address: addressOf(recipient),
    address_key: addressOf(recipient),
    status_at: acceptedAt,
    ...known,
    ...(failure !== null && {
      failure_type: 'soft',
      failure_class: failure,
      smtp_code: 452,
      enhanced_code: '4.2.2',
      diagnostic: 'as reported',
      remote: 'mx.example.com',
    }),
    ...more,
  };
}

const waiting = { accepted_at: acceptedAt, content_bytes: 100, claim_number: 1 };

type Row = readonly [table: string, row: object];

/** Rows of the tables, and what a worker has found out that has written nothing yet. */
type Story = { rows: readonly Row[]; outcomes: () => Settled[] };

function storyOf({ alone, slices }: World): Story {
  const parts = [...alone.map(storyOfOne), ...slices.map(storyOfSlice)];
  return {
    rows: parts.flatMap(({ rows }) => rows),
    outcomes: () => parts.flatMap((part) => part.outcomes()),
  };
}

function storyOfOne({ owner, channel, claimedBy, recipient }: World['alone'][number]): Story {
  const ids = { organizationId: organizationIds[owner]!, messageId: newId() };
  const queued = { ...waiting, ordinal: 0, channel, lane: 0, due_at: acceptedAt, claimed_by: claimedBy };
  const untriedYet = { is_cancellable: false, attempts: 0, ambiguities: 0, crashes: 0 };
  return {
    rows: [
      ['messages', messageRow(ids, { channel, class: 'transactional' })],
      ['recipients', recipientRow(ids, recipient, { ordinal: 0 })],
      ['delivery_queue', { ...columnsOf(ids), ...queued, ...untriedYet }],
    ],
    outcomes: () => [outcomeOf(jobOf(ids, channel, recipient, { ordinal: 0 }), recipient)],
  };
}

function storyOfSlice(made: World['slices'][number]): Story {
  const { owner, channel, claimedBy, first, recipients, left, isWritten } = made;
  const ids = { organizationId: organizationIds[owner]!, messageId: newId() };
  const jobsLeft = recipients.length + left;
  const place = { first_ordinal: first, last_ordinal: first + jobsLeft - 1, recipients: jobsLeft };
  const claimed = { ...waiting, channel, lane: 1, claimed_by: claimedBy, writes: isWritten ? 1 : 0 };
  const numbered = recipients.map(
    (recipient, index) => [recipient, { ordinal: first + index, contactId: newId() }] as const,
  );
  return {
    rows: [
      ['messages', messageRow(ids, { channel, class: 'campaign' })],
      ['delivery_slices', { ...columnsOf(ids), ...place, ...claimed }],
      ...numbered.map(([recipient, { ordinal, contactId }]): Row => [
        'recipients',
        recipientRow(ids, recipient, { ordinal, contact_id: contactId }),
      ]),
    ],
    outcomes: () => {
      const { first_ordinal: firstOrdinal, last_ordinal: lastOrdinal } = place;
      const slice: DeliverySlice = { ...ids, firstOrdinal, lastOrdinal, jobsLeft, writes: 0 };
      return numbered.map(([recipient, member]) =>
        outcomeOf(jobOf(ids, channel, recipient, { ...member, slice }), recipient),
      );
    },
  };
}

function jobOf(
  ids: Ids,
  name: 'email' | 'sms',
  recipient: Taken,
  more: Pick<Job, 'ordinal'> & Partial<Job>,
): Job {
  const channel = messageChannels[name];
  const isCampaign = more.slice !== undefined;
  const address = addressOf(recipient);
  const policy = channel.policyOf({ isCampaign });
  return {
    ...untried,
    ...ids,
    channel,
    policy,
    isCampaign,
    address,
    addressKey: address,
    acceptedAt,
    ...more,
  };
}

function outcomeOf(job: Job, { providerMessageId }: Taken): Settled {
  return {
    settlement: settleOutcome(
      job,
      { kind: 'accepted', providerMessageId, reply: null },
      { atMs: clock.nowMs(), random: 0.5, dateOf },
    ),
    message: job.isCampaign ? null : { isShared: false, hasAttachments: false },
  };
}

const tools: WriterTools = {
  get database() {
    return database;
  },
  channels: messageChannels,
  deliveries: Object.values(messageChannels).map((channel) => ({ channel, isReportedById: false })),
  clock,
  log: silentLog,
  newId,
  random: () => 0.5,
  secrets: createSecrets('a secret of the tests, and of nothing else'),
  onCampaignProgress: () => undefined,
  onContactsChanged: () => undefined,
};

/** What programs were told of, of which organization: each event once. */
const told = `select organization_id, type, of_campaign, happened_at,
    case cardinality(subject_ids) when 1 then subject_ids[1] else subject_ids[place] end as message_id, ordinal
  from webhook_outbox
  cross join unnest(ordinals) with ordinality as each (ordinal, place)
  order by message_id, ordinal`;

const tables = ['messages', 'recipients', 'delivery_queue', 'delivery_slices', 'reputation_counts'];

/** Written at once, the status of a message is computed also where another worker has its job: to be what it was. */
const messageAfter = `case
  when exists (select from delivery_queue q where q.message_id = t.id and q.claimed_by = ${otherEpoch})
    then to_jsonb(t) - 'updated_at'
  else to_jsonb(t)
end`;

/** All rows as they are afterwards; of noted changes each slice of counts once. */
async function rowsAfter(write: typeof writeTaken, story: Story): Promise<Record<string, unknown>> {
  for (const table of [...tables, 'recipient_changes', 'webhook_outbox']) await run(`delete from ${table}`);
  for (const [table, row] of story.rows)
    await run(`insert into ${table} select * from jsonb_populate_record(null::${table}, $1::jsonb)`, [
      JSON.stringify(row),
    ]);
  const outcomes = story.outcomes();
  const alone = outcomes.map(({ settlement }) => settlement.job).filter(({ isCampaign }) => !isCampaign);
  for (const [channel, jobs] of groupBy(alone, (job) => job.channel))
    await refreshMessages(database, channel, jobs, acceptedAt);
  expect(outcomes.every((outcome) => isPlainlyTaken(tools, outcome))).toBe(true);
  await write(tools, epoch, outcomes);
  const found: Record<string, unknown> = {
    told: await run(told),
    changes: await run(
      'select distinct message_id, unnest(slices) as slice from recipient_changes order by message_id, slice',
    ),
  };
  for (const table of tables) {
    const row = table === 'messages' ? messageAfter : 'to_jsonb(t)';
    found[table] = await run(`select ${row} as row from ${table} t order by 1`);
  }
  return found;
}

test('accepted hand-offs leave the same rows whether they are written at once or step by step', async () => {
  await run(
    `insert into webhook_interests (organization_id, of_campaigns, type_pattern)
     values ($1, false, 'email.*'), ($1, true, '*'), ($2, false, 'sms.sent'), ($2, true, 'email.delivered')`,
    organizationIds,
  );
  await fc.assert(
    fc.asyncProperty(world, async (made) => {
      const story = storyOf(made);
      expect(await rowsAfter(writeTaken, story)).toEqual(await rowsAfter(writeSettlements, story));
    }),
    { numRuns: 60 },
  );
});
