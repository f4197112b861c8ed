import { expect, test } from 'vitest';
import {
  type Database,
  type Transaction,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { workerLockClass } from '../../src/platform/queue/lease.ts';
import { findHeld, sweepDatabase, type Violation } from './sweep.ts';
import { useTestDatabase } from './test-database.ts';

let database: Database;
useTestDatabase({ connectionsMax: 2, hasNeighbour: true }, (opened) => {
  database = opened.database;
});

const organization = '01a00000-0000-7000-8000-00000000000a';
const one = '01a00000-0000-7000-8000-000000000001';
const two = '01a00000-0000-7000-8000-000000000002';

const insertCampaign = (status: string) =>
  `insert into campaigns (organization_id, id, channel, name, name_key, status, content, message_id, created_at, updated_at)
   values ('${organization}', '${one}', 'email', 'News', 'news', '${status}', '{}', '${two}', now(), now())`;
const holdOf = (kind: string, holder: string) =>
  `insert into holds values ('${organization}', 'list', '${two}', '${kind}', '${holder}')`;
const insertRecipient = (handedOffAt: string) =>
  `insert into recipients
     (organization_id, message_id, ordinal, field, address, address_key, status, status_at, handed_off_at)
   values ('${organization}', '${two}', 0, 'to', 'a@b.test', 'a@b.test', 'delivered', now(), ${handedOffAt})`;
const insertCounts = (handedOff: number) =>
  `insert into recipient_counts (organization_id, message_id, slice, handed_off)
   values ('${organization}', '${two}', 0, ${handedOff})`;
const insertPending = `insert into pending_conversions
    (organization_id, id, contact_id, definition_number, occurred_at, due_at)
  values ('${organization}', '${one}', '${two}', 1, now(), now())`;
const insertConversion = `insert into conversions (organization_id, id, definition_number, occurred_at, value)
  values ('${organization}', '${one}', 1, now(), 5)`;
const insertSums = (value: number) =>
  `insert into conversion_sums
     (organization_id, definition_number, grouped_by, group_id, currency, conversions, value)
   select '${organization}', 1, grouping, '00000000-0000-0000-0000-000000000000', '', 1, ${value}
   from unnest(array['campaign_id', 'message_id', 'category']) grouping`;
const insertMembership = `insert into memberships values ('${organization}', '${one}', '${two}')`;
const insertJob = (claim: string) =>
  `insert into delivery_queue
     (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by, claim_number)
   values ('${organization}', '${two}', 0, 'email', 0, now(), now(), 1, ${claim})`;
const insertAttachment = `insert into attachment_contents values ('${organization}', '${two}', 0, 'a')`;
const insertWorker = `insert into workers values (7, 'host', 1, now())`;
const announcement = `insert into hand_offs values (7, 1, '{}', '{}', '{}', '{}')`;
const holdLock = `select pg_advisory_lock(${workerLockClass}, 7)`;

/** What is planted, and what is found of it. */
const planted: readonly { what: string; rows: string[]; found: Violation[] }[] = [
  {
    what: 'a campaign that holds its list',
    rows: [insertCampaign('sending'), holdOf('campaign', one)],
    found: [],
  },
  ...['sent', 'cancelled', 'failed'].map((status) => ({
    what: `a campaign that is ${status} and holds its list`,
    rows: [insertCampaign(status), holdOf('campaign', one)],
    found: ['campaignHolds' as const],
  })),
  { what: 'a hold of no campaign', rows: [holdOf('campaign', two)], found: ['campaignHolds'] },
  { what: 'a hold of no segment', rows: [holdOf('segment', one)], found: ['segmentHolds'] },
  { what: 'a claim of no worker', rows: [insertJob('7, 1')], found: ['claims'] },
  { what: 'a job without a claim', rows: [insertJob('null, null')], found: [] },
  { what: 'an announcement of no worker', rows: [announcement], found: ['announcements'] },
  { what: 'a worker without its lock', rows: [insertWorker], found: ['leases'] },
  { what: 'a worker at work', rows: [insertWorker, holdLock, announcement, insertJob('7, 1')], found: [] },
  { what: 'an attachment of what is over', rows: [insertAttachment], found: ['attachments'] },
  { what: 'an attachment of what is due', rows: [insertAttachment, insertJob('null, null')], found: [] },
  { what: 'a member', rows: [insertMembership], found: [] },
  {
    what: 'a member who is not counted',
    rows: [insertMembership, 'delete from membership_counts'],
    found: ['memberCounts'],
  },
  {
    what: 'a member too many in the count',
    rows: [`insert into membership_counts values ('${organization}', '${one}', 3, 1)`],
    found: ['memberCounts'],
  },
  {
    what: 'a recipient who is counted',
    rows: [insertCampaign('sent'), insertRecipient('now()'), insertCounts(1)],
    found: [],
  },
  {
    what: 'a recipient who is counted as not written to',
    rows: [insertCampaign('sent'), insertRecipient('now()'), insertCounts(0)],
    found: ['recipientCounts'],
  },
  {
    what: 'a recipient who is not counted at all',
    rows: [insertCampaign('sent'), insertRecipient('now()')],
    found: ['uncountedRecipients'],
  },
  { what: 'a conversion that is pending', rows: [insertPending], found: [] },
  { what: 'a conversion that is summed', rows: [insertConversion, insertSums(5)], found: [] },
  {
    what: 'a conversion that is still pending',
    rows: [insertConversion, insertSums(5), insertPending],
    found: ['pendingConversions'],
  },
  {
    what: 'conversions of another sum',
    rows: [insertConversion, insertSums(6)],
    found: ['conversionSums', 'conversionSums', 'conversionSums'],
  },
  {
    what: 'a conversion that is not summed',
    rows: [insertConversion],
    found: ['conversionSums', 'conversionSums', 'conversionSums'],
  },
  {
    what: 'recipients who will be counted',
    rows: [
      insertCampaign('sent'),
      insertRecipient('now()'),
      insertCounts(0),
      `insert into recipient_changes values ('${organization}', '${one}', '${two}', '{0}')`,
    ],
    found: [],
  },
];

class RolledBack extends Error {
  override readonly name = 'RolledBack';
}

/** What the sweep finds in a transaction that is rolled back. */
async function sweepAfter(plant: (transaction: Transaction) => Promise<unknown>): Promise<string[]> {
  let found: string[] = [];
  const rolledBack = database.transaction(async (transaction) => {
    await plant(transaction);
    found = await sweepDatabase(transaction);
    await transaction.rows(unpreparedStatement('select pg_advisory_unlock_all()'));
    throw new RolledBack();
  });
  await expect(rolledBack).rejects.toThrow(RolledBack);
  return found;
}

test.each(planted)('$what: $found', async ({ rows, found }) => {
  const sentences = await sweepAfter(async (transaction) => {
    for (const text of rows) await transaction.rows(unpreparedStatement(text));
  });
  expect(sentences.map((sentence) => /\((\w+)\): /.exec(sentence)?.[1])).toEqual(found);
});

test('what a test says that it has made by itself is not reported', async () => {
  const rolledBack = database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement(insertWorker));
    await transaction.rows(unpreparedStatement(insertAttachment));
    expect(await sweepDatabase(transaction)).toHaveLength(2);
    expect(await sweepDatabase(transaction, ['leases'])).toEqual([
      expect.stringContaining('an attachment of a message of which nothing is in the queue'),
    ]);
    expect(await sweepDatabase(transaction, ['leases', { violation: 'attachments', id: two }])).toEqual([]);
    expect(await sweepDatabase(transaction, ['leases', { violation: 'attachments', id: one }])).toHaveLength(
      1,
    );
    throw new RolledBack();
  });
  await expect(rolledBack).rejects.toThrow(RolledBack);
});

test('what is held of a limit is reported by its name, and so is what was given back twice', () => {
  expect(findHeld({ requests: 0, routesBytes: 0 })).toEqual([]);
  expect(findHeld({ requests: -1, routesBytes: 300_000 })).toEqual([
    'of requests there are -1 held when all is over',
    'of routesBytes there are 300000 held when all is over',
  ]);
});
