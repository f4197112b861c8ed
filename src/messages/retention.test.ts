/** What is removed of messages, and what stays although its time is over. The journey is test/journeys/retention.test.ts. */
import { beforeEach, expect, test } from 'vitest';
import { messageChannels } from '../../test/support/channels.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization, updateOrganization } from '../accounts/accounts.ts';
import { campaignsUnderWay } from '../campaigns/campaigns.ts';
import { createIds, type NewId } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createPartitions } from '../platform/postgres/partitions.ts';
import { now } from '../platform/clock.ts';
import { removeOldMessages } from './retention.ts';

const dayMs = 86_400_000;
/** In so many batches. */
const batchMax = 10;
const many = 210;
const never = new AbortController().signal;

let database: Database;
let clock: ManualClock;
let newId: NewId;
let own: string;
let theirs: string;

useTestDatabase({ isForEachTest: true }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  // In the middle of a month far ahead, whose partition begins with it.
  clock = createManualClock(Date.parse('2031-03-15T12:00:00Z'));
  newId = createIds(clock);
  await createPartitions(database, now(clock));
  [own, theirs] = [await anOrganization('Acme'), await anOrganization('Emca')];
});

const run = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

const anOrganization = async (name: string) =>
  (await createOrganization({ database, clock, newId }, name)).id;

/** Messages of now, with contents and a recipient each, in the order of their ids. */
async function accepted(organizationId: string, count: number): Promise<string[]> {
  const ids = Array.from({ length: count }, () => newId());
  await run(
    `with message as (
       insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       select $1, id, 'email', 'transactional', 'a@example.com', '{}', 1, $3, $3 from unnest($2::uuid[]) as id
     ), content as (
       insert into message_contents (organization_id, message_id, content)
       select $1, id, '{"html":"Hello"}' from unnest($2::uuid[]) as id
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
     select $1, id, 0, 'to', 'ann@example.com', 'ann@example.com', $3 from unnest($2::uuid[]) as id`,
    [organizationId, ids, now(clock)],
  );
  return ids;
}

async function queued(organizationId: string, ids: readonly string[]): Promise<void> {
  await run(
    `insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
     select $1, id, 0, 'email', 0, $3, $3, 100 from unnest($2::uuid[]) as id`,
    [organizationId, ids, now(clock)],
  );
}

const contents = async (organizationId: string) =>
  (
    await run<{ message_id: string }>(
      'select message_id from message_contents where organization_id = $1 order by 1',
      [organizationId],
    )
  ).map((row) => row.message_id);

const countOf = async (table: 'messages' | 'recipients' | 'message_contents') =>
  (await run<{ count: number }>(`select count(*)::integer as count from ${table}`))[0]!.count;

const rooms = { channels: messageChannels, keeper: campaignsUnderWay };

const tidy = (installed: { messages: number | null; content: number | null }) =>
  removeOldMessages({ ...rooms, database, clock, installed, batchMax, organizationsMax: 1 }, never);

const forever = { messages: null, content: null };

test('without a limit nothing goes', async () => {
  await accepted(own, 3);
  clock.advance(4_000 * dayMs);
  await tidy(forever);
  expect([await countOf('messages'), await countOf('message_contents')]).toEqual([3, 3]);
});

test('of a shorter plan all old contents go, in batches, but for those of messages that are under way', async () => {
  const ids = await accepted(own, many);
  const others = await accepted(theirs, many);
  // More than a batch at the beginning, and one in the middle that was set aside.
  const waiting = [...ids.slice(0, batchMax + 2), ids[many / 2]!];
  await queued(own, waiting);
  await run('update delivery_queue set set_aside_at = due_at where message_id = $1', [ids[many / 2]]);
  await updateOrganization({ database, clock }, own, { contentKeptDays: 5 });
  clock.advance(5 * dayMs - 1);
  const young = await accepted(own, 1);
  await tidy(forever);
  expect(await contents(own)).toEqual([...ids, ...young].sort());
  clock.advance(60_000);
  await tidy(forever);
  expect(await contents(own)).toEqual([...waiting, ...young].sort());
  expect(await contents(theirs)).toEqual(others);
  expect(await countOf('recipients')).toBe(2 * many + 1);
  await run('delete from delivery_queue');
  await tidy(forever);
  expect(await contents(own)).toEqual(young);
});

test('a campaign that is not over keeps what it says, one that is over does not', async () => {
  const [pausedId, overId, deletedId] = await accepted(own, 3);
  for (const [messageId, status] of [
    [pausedId, 'paused'],
    [overId, 'sent'],
    [deletedId, 'paused'],
  ] as const)
    await run(
      `insert into campaigns (organization_id, id, channel, name, name_key, status, pause_reason, content, message_id,
         created_at, updated_at, deleted_at)
       values ($1, $2, 'email', 'News', 'news', $3, $4, '{}', $5, $6, $6, $7)`,
      [
        own,
        newId(),
        status,
        status === 'paused' ? 'quota_exceeded' : null,
        messageId,
        now(clock),
        messageId === deletedId ? now(clock) : null,
      ],
    );
  await updateOrganization({ database, clock }, own, { contentKeptDays: 1 });
  clock.advance(2 * dayMs);
  await tidy(forever);
  expect(await contents(own)).toEqual([pausedId]);
});

test('a partition goes with the longest of all plans, or with the limit of the installation, whichever is shorter', async () => {
  await accepted(own, 2);
  clock.advance(45 * dayMs);
  await updateOrganization({ database, clock }, own, { messagesKeptDays: 7 });
  await tidy(forever);
  // The other one keeps its messages for ever.
  expect(await countOf('messages')).toBe(2);
  await updateOrganization({ database, clock }, theirs, { messagesKeptDays: 40 });
  await tidy(forever);
  // March was over a month ago, and not for forty days.
  expect(await countOf('messages')).toBe(2);
  await tidy({ messages: null, content: 20 });
  expect([await countOf('messages'), await countOf('message_contents')]).toEqual([2, 0]);
  await tidy({ messages: 20, content: null });
  expect([await countOf('messages'), await countOf('recipients')]).toEqual([0, 0]);
});

test('a partition stays as long as recipients have changed that were not counted since', async () => {
  const [id] = await accepted(own, 1);
  await run(
    'insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, array[0])',
    [own, newId(), id],
  );
  clock.advance(60 * dayMs);
  await tidy({ messages: 7, content: null });
  expect([await countOf('messages'), await countOf('recipients')]).toEqual([1, 1]);
  await run('delete from recipient_changes');
  await tidy({ messages: 7, content: null });
  expect([await countOf('messages'), await countOf('recipients')]).toEqual([0, 0]);
});

test('a job in the queue keeps its partition, and no other one', async () => {
  const [early] = await accepted(own, 1);
  await queued(own, [early!]);
  clock.advance(31 * dayMs);
  await createPartitions(database, now(clock));
  await accepted(theirs, 4);
  clock.advance(60 * dayMs);
  await tidy({ messages: 7, content: 7 });
  expect(await contents(own)).toEqual([early]);
  expect([await countOf('messages'), await countOf('recipients')]).toEqual([1, 1]);
});

test('it ends between two batches when the process stops', async () => {
  await accepted(own, 3 * batchMax);
  await updateOrganization({ database, clock }, own, { contentKeptDays: 1 });
  clock.advance(2 * dayMs);
  const stopping = new AbortController();
  const batches: unknown[] = [];
  const watched: Database = {
    ...database,
    asOrganizations: (ids, work) => {
      batches.push(ids);
      stopping.abort();
      return database.asOrganizations(ids, work);
    },
  };
  await removeOldMessages(
    { ...rooms, database: watched, clock, installed: forever, batchMax },
    stopping.signal,
  );
  expect([batches.length, (await contents(own)).length]).toEqual([1, 2 * batchMax]);
});
