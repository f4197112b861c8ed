import fc from 'fast-check';
import { expect, test } from 'vitest';
import { eventually } from '../../../test/support/email-journey.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Database, type Transaction, unpreparedStatement } from '../../platform/postgres/database.ts';
import { countChangedRecipients, noteRecipientChanges } from './counts.ts';
import { sumRecipientCounts } from './counts-store.ts';
import { recipientStatuses, type RecipientStatus } from '../schema.ts';
import type { RecipientFate } from '../status.ts';
import type { RecipientKey } from '../keys.ts';

let database: Database;
const newId = createShuffledIds(systemClock);
/** Of changes, which are counted in the order of time. */
const newIdInTime = createIds(systemClock);
const organizationId = newId();

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** In three slices: their first and their last, and where others lie between. */
const ordinals = [0, 999, 1_000, 2_500];

async function insertMessage(
  messageClass: 'campaign' | 'transactional',
  of: readonly number[] = ordinals,
): Promise<string> {
  const messageId = newId();
  await run(
    `with message as (
       insert into messages
         (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'email', $3, 'news@postillion.test', '{}', 1, now(), now())
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
     select $1, $2, ordinal, 'to', 'ann@example.com', 'ann@example.com', now()
     from unnest($4::integer[]) ordinal`,
    [organizationId, messageId, messageClass, of],
  );
  return messageId;
}

type State = {
  status: RecipientStatus;
  dropReason: string | null;
  isUncertain: boolean;
  isHandedOff: boolean;
  isOpened: boolean;
  isClicked: boolean;
};

type Change = { messageId: string; ordinal: number; state: State };

const delivered: State = {
  status: 'delivered',
  dropReason: null,
  isUncertain: false,
  isHandedOff: true,
  isOpened: false,
  isClicked: false,
};

/** Recipients get other states, which is noted as whoever changes them does. */
async function change(transaction: Transaction, changes: readonly Change[]): Promise<void> {
  for (const { messageId, ordinal, state } of changes) {
    await transaction.rows(
      unpreparedStatement(
        `update recipients
         set status = $4, drop_reason = $5, uncertain = $6,
           handed_off_at = case when $7 then now() end,
           opened_at = case when $8 then now() end,
           clicked_at = case when $9 then now() end
         where organization_id = $1 and message_id = $2 and ordinal = $3`,
      ),
      [
        ...[organizationId, messageId, ordinal, state.status, state.dropReason, state.isUncertain],
        ...[state.isHandedOff, state.isOpened, state.isClicked],
      ],
    );
  }
  await noteRecipientChanges(
    transaction,
    newId,
    changes.map(({ messageId, ordinal }) => keyOf(messageId, ordinal)),
  );
}

function keyOf(messageId: string, ordinal: number): RecipientKey {
  return { organizationId, messageId, ordinal };
}

async function countAll(): Promise<void> {
  while ((await countChangedRecipients({ database })).hasMore) {
    // Until nothing is left.
  }
}

type Counts = {
  sums: Record<string, number>;
  /** Ordinals by fate, in their order; or how many they are. */
  fates: Partial<Record<RecipientFate, number[] | number>>;
};

/** By the slice; one of which nothing was counted is missing. */
async function readCounts(messageId: string): Promise<Record<number, Counts>> {
  const rows = await run<{ slice: number } & Counts>(
    `select slice, fates, to_jsonb(n) - '{organization_id, message_id, slice, fates}'::text[] as sums
     from recipient_counts n
     where organization_id = $1 and message_id = $2`,
    [organizationId, messageId],
  );
  for (const ordinals of rows.flatMap(({ fates }) => Object.values(fates))) {
    if (typeof ordinals !== 'number') ordinals.sort((a, b) => a - b);
  }
  return Object.fromEntries(rows.map(({ slice, ...counts }) => [slice, counts]));
}

const deliveredStatuses = ['delivered', 'opened', 'clicked', 'complained', 'unsubscribed'];

const questions: Readonly<Record<string, (state: State) => boolean>> = {
  handed_off: ({ isHandedOff }) => isHandedOff,
  delayed: ({ status, isUncertain }) => status === 'delayed' && !isUncertain,
  delivered: ({ status }) => deliveredStatuses.includes(status),
  bounced: ({ status }) => status === 'bounced',
  failed: ({ status }) => status === 'failed',
  complained: ({ status }) => status === 'complained',
  unsubscribed: ({ status }) => status === 'unsubscribed',
  opened: ({ isOpened }) => isOpened,
  clicked: ({ isClicked }) => isClicked,
  dropped: ({ dropReason }) => dropReason !== null,
  uncertain: ({ status, isUncertain }) => isUncertain && (status === 'sent' || status === 'delayed'),
  unconfirmed: (state) => fateOf(state) === 'sent' && !state.isUncertain,
};

function fateOf({ status, dropReason, isUncertain, isHandedOff }: State): RecipientFate {
  if (dropReason !== null) return 'dropped';
  if (status !== 'sent' && status !== 'delayed') return status;
  if (isUncertain || (status === 'sent' && isHandedOff)) return 'sent';
  return status === 'delayed' ? 'delayed' : 'pending';
}

function countStates(states: readonly (State & { ordinal: number })[]): Counts {
  const fates: Partial<Record<RecipientFate, number[]>> = {};
  for (const state of states) (fates[fateOf(state)] ??= []).push(state.ordinal);
  const sums = Object.entries(questions).map(([name, is]) => [name, states.filter(is).length]);
  return { sums: Object.fromEntries(sums) as Counts['sums'], fates };
}

/** As the recipients are now, in plain code. */
async function recount(messageId: string): Promise<Record<number, Counts>> {
  const rows = await run<State & { ordinal: number }>(
    `select ordinal, status, drop_reason as "dropReason", uncertain as "isUncertain",
       handed_off_at is not null as "isHandedOff", opened_at is not null as "isOpened",
       clicked_at is not null as "isClicked"
     from recipients
     where organization_id = $1 and message_id = $2
     order by ordinal`,
    [organizationId, messageId],
  );
  const slices = [0, 1, 2].map((slice) =>
    rows.filter(({ ordinal }) => Math.floor(ordinal / 1_000) === slice),
  );
  return Object.fromEntries(slices.map((states, slice) => [slice, countStates(states)]));
}

/** Of recipients to whom nothing has happened yet. */
function untouched(ordinals: readonly number[]): Counts {
  const state = { ...delivered, status: 'sent', isHandedOff: false } as const;
  return countStates(ordinals.map((ordinal) => ({ ...state, ordinal })));
}

const state: fc.Arbitrary<State> = fc.oneof(
  {
    weight: 1,
    arbitrary: fc.constant({ ...delivered, status: 'sent', dropReason: 'unsubscribed', isHandedOff: false }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      status: fc.constantFrom(...recipientStatuses),
      dropReason: fc.constant(null),
      isUncertain: fc.boolean(),
      isHandedOff: fc.boolean(),
      isOpened: fc.boolean(),
      isClicked: fc.boolean(),
    }),
  },
);

const transactions = fc.array(
  fc.record({
    changes: fc.uniqueArray(
      fc.record({ message: fc.nat({ max: 2 }), ordinal: fc.constantFrom(...ordinals), state }),
      { minLength: 1, maxLength: 4, selector: ({ message, ordinal }) => `${message} ${ordinal}` },
    ),
    isCommitted: fc.boolean(),
  }),
  { minLength: 1, maxLength: 4 },
);

const unchanged = { 0: untouched([0, 999]), 1: untouched([1_000]), 2: untouched([2_500]) };

class TakenBackError extends Error {}

test('counts are what a recount gives, whoever else changes recipients and counts meanwhile', async () => {
  await fc.assert(
    fc.asyncProperty(transactions, transactions, fc.nat({ max: 4 }), async (first, second, counts) => {
      const campaigns = [await insertMessage('campaign'), await insertMessage('campaign')];
      const messageIds = [...campaigns, await insertMessage('transactional')];
      const write = async (sequence: typeof first) => {
        for (const { changes, isCommitted } of sequence) {
          const located = changes
            .map(({ message, ordinal, state }) => ({ messageId: messageIds[message]!, ordinal, state }))
            // In one order, or the two would wait for each other.
            .sort((a, b) =>
              a.messageId === b.messageId ? a.ordinal - b.ordinal : a.messageId < b.messageId ? -1 : 1,
            );
          const work = database.transaction(async (transaction) => {
            await change(transaction, located);
            if (!isCommitted) throw new TakenBackError();
          });
          await work.catch((cause: unknown) => {
            if (!(cause instanceof TakenBackError)) throw cause;
          });
        }
      };
      const count = async () => {
        for (let times = 0; times < counts; times += 1) await countChangedRecipients({ database });
      };
      await Promise.all([write(first), write(second), count(), count()]);
      await countAll();
      for (const messageId of campaigns) {
        expect({ ...unchanged, ...(await readCounts(messageId)) }).toEqual(await recount(messageId));
      }
      expect(await readCounts(messageIds[2]!)).toEqual({});
      expect(await run('select from recipient_changes')).toEqual([]);
    }),
    { numRuns: 25 },
  );
});

const deliveredOf = async (messageId: string) =>
  (await sumRecipientCounts(database, organizationId, [messageId])).get(messageId)?.delivered;

function makeGate(): { pass: () => void; passed: Promise<void> } {
  let pass: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { pass, passed };
}

/** Runs in a transaction that is committed when the gate opens, and resolves as soon as it has run. */
async function runUntil(gate: Promise<void>, work: (transaction: Transaction) => Promise<unknown>) {
  const ran = makeGate();
  const ended = database.transaction(async (transaction) => {
    await work(transaction);
    ran.pass();
    await gate;
  });
  await Promise.race([ran.passed, ended]);
  return { ended };
}

test('a change that is not committed yet is left to the next count', async () => {
  const messageId = await insertMessage('campaign');
  await database.transaction((transaction) =>
    change(transaction, [{ messageId, ordinal: 0, state: delivered }]),
  );
  const gate = makeGate();
  const { ended } = await runUntil(gate.passed, (transaction) =>
    change(transaction, [{ messageId, ordinal: 999, state: delivered }]),
  );
  await countAll();
  expect(await deliveredOf(messageId)).toBe(1);
  gate.pass();
  await ended;
  await countAll();
  expect(await deliveredOf(messageId)).toBe(2);
});

test('a count that had to wait does not overwrite what was counted meanwhile', async () => {
  const messageId = await insertMessage('campaign');
  const of = (ordinal: number) => ({ messageId, ordinal, state: delivered });
  const commit = (...changes: Change[]) =>
    database.transaction((transaction) => change(transaction, changes));
  await commit(of(0), of(2_500));
  await countAll();
  const gate = makeGate();
  const { ended } = await runUntil(gate.passed, (transaction) =>
    transaction.rows(
      unpreparedStatement(
        'select from recipient_counts where organization_id = $1 and message_id = $2 and slice = 0 for update',
      ),
      [organizationId, messageId],
    ),
  );
  await commit(of(0), of(2_500));
  // It has begun, and waits for the first slice before it comes to the last one.
  const late = countChangedRecipients({ database });
  await eventually(
    () =>
      run(
        'select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0',
      ),
    (waiting) => waiting.length === 1,
  );
  await commit({ ...of(2_500), state: { ...delivered, status: 'bounced' } });
  await countChangedRecipients({ database });
  gate.pass();
  await Promise.all([ended, late]);
  await countAll();
  expect(await readCounts(messageId)).toMatchObject({
    0: { sums: { delivered: 1, bounced: 0 } },
    2: { sums: { delivered: 0, bounced: 1 }, fates: { bounced: [2_500] } },
  });
});

test('one change speaks of each slice of each campaign once, and of no other message', async () => {
  const [first, second] = [await insertMessage('campaign'), await insertMessage('campaign')];
  const transactional = await insertMessage('transactional');
  await database.transaction((transaction) =>
    noteRecipientChanges(transaction, newId, [
      ...[2_500, 0, 999].map((ordinal) => keyOf(first, ordinal)),
      ...[0, 1_000].map((ordinal) => keyOf(transactional, ordinal)),
      keyOf(second, 1_000),
    ]),
  );
  const changes = await run<{ message_id: string; slices: number[] }>(
    'select message_id, slices from recipient_changes',
  );
  expect(new Map(changes.map(({ message_id, slices }) => [message_id, slices.sort()]))).toEqual(
    new Map([
      [first, [0, 2]],
      [second, [1]],
    ]),
  );
  expect(changes).toHaveLength(2);
  await countAll();
  const counted = await Promise.all([first, second, transactional].map(readCounts));
  expect(counted.map((slices) => Object.keys(slices))).toEqual([['0', '2'], ['1'], []]);
  await database.transaction((transaction) => noteRecipientChanges(transaction, newId, []));
});

test('more changes than one count takes are left to the next, which is told of them', async () => {
  const messageId = await insertMessage('campaign');
  await run(
    `insert into recipient_changes (organization_id, id, message_id, slices)
     select $1, gen_random_uuid(), $2, array[number % 3] from generate_series(1, 201) number`,
    [organizationId, messageId],
  );
  expect((await countChangedRecipients({ database })).hasMore).toBe(true);
  expect(await run('select from recipient_changes')).toHaveLength(1);
  expect((await countChangedRecipients({ database })).hasMore).toBe(true);
  expect(await run('select from recipient_changes')).toEqual([]);
  expect((await countChangedRecipients({ database })).hasMore).toBe(false);
});

test('a change of more slices than one count takes loses none of them', async () => {
  const messageId = await insertMessage('campaign');
  await run(
    `insert into recipient_changes (organization_id, id, message_id, slices)
     select $1, gen_random_uuid(), $2, array_agg(number) from generate_series(0, 119) number`,
    [organizationId, messageId],
  );
  for (const expected of [50, 100, 120]) {
    const { hasMore } = await countChangedRecipients({ database });
    expect([hasMore, Object.keys(await readCounts(messageId)).length]).toEqual([true, expected]);
  }
  expect(await run('select from recipient_changes')).toEqual([]);
});

test('which recipients have a fate is kept of twenty in a slice, and of more only how many', async () => {
  const [few, many] = [20, 21].map((count) => Array.from({ length: count }, (_, ordinal) => ordinal));
  const messageIds = [await insertMessage('campaign', few), await insertMessage('campaign', many)];
  await database.transaction((transaction) =>
    noteRecipientChanges(
      transaction,
      newId,
      messageIds.map((messageId) => keyOf(messageId, 0)),
    ),
  );
  await countAll();
  const counted = await Promise.all(messageIds.map(readCounts));
  expect(counted.map((slices) => slices[0]?.fates)).toEqual([{ pending: few }, { pending: 21 }]);
});

test('an organization whose slices change without end keeps no other from being counted, nor its own others', async () => {
  const [busy, beside] = [await insertMessage('campaign'), await insertMessage('campaign')];
  const otherId = newId();
  await run('update messages set organization_id = $2 where id = $1', [beside, otherId]);
  await run('update recipients set organization_id = $2 where message_id = $1', [beside, otherId]);
  const note = (owner: string, messageId: string, slices: number[]) =>
    run(`insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, $4)`, [
      owner,
      newIdInTime(),
      messageId,
      slices,
    ]);
  const countTwo = () => countChangedRecipients({ database, slicesMax: 2 });
  const countedOf = async (messageId: string) =>
    (
      await run<{ slice: number }>('select slice from recipient_counts where message_id = $1', [messageId])
    ).map(({ slice }) => slice);
  await note(organizationId, busy, [0, 1, 2, 3, 4]);
  await note(otherId, beside, [2]);
  expect(await countTwo()).toEqual({ hasCounted: true, hasMore: true });
  expect(await countedOf(beside)).toEqual([2]);

  // What changes once more is younger than what was left.
  for (let counts = 0; counts < 2; counts += 1) {
    await note(organizationId, busy, [0, 1, 2]);
    await countTwo();
  }
  expect((await countedOf(busy)).sort()).toEqual([0, 1, 2, 3, 4]);
  await countAll();
});

test('a change that organizations with changes without end stand before is counted when it is the oldest', async () => {
  const [busy, beside] = [await insertMessage('campaign'), await insertMessage('campaign')];
  const lastId = 'ffffffff-ffff-7fff-bfff-ffffffffffff';
  await run('update messages set organization_id = $2 where id = $1', [beside, lastId]);
  await run('update recipients set organization_id = $2 where message_id = $1', [beside, lastId]);
  const note = (owner: string, messageId: string, slices: number[], id = newIdInTime()) =>
    run(`insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, $4)`, [
      owner,
      id,
      messageId,
      slices,
    ]);
  const isCounted = async () =>
    (await run('select from recipient_counts where message_id = $1', [beside])).length > 0;

  // Two changes stand in front of it in every order but that of their ids, and two are counted at once.
  const oldId = newIdInTime();
  const backlog = async () => {
    for (const slice of [0, 1]) await note(organizationId, busy, [slice]);
  };
  await backlog();
  await note(lastId, beside, [0], oldId);
  for (let counts = 0; counts < 3; counts += 1) {
    await countChangedRecipients({ database, changesMax: 2 });
    await backlog();
  }
  expect(await isCounted()).toBe(true);
  await countAll();
});

test('five changes of two organizations are all counted by a count that takes two', async () => {
  const messageIds = [await insertMessage('campaign'), await insertMessage('campaign')];
  const otherId = newId();
  await run('update messages set organization_id = $2 where id = $1', [messageIds[1], otherId]);
  await run('update recipients set organization_id = $2 where message_id = $1', [messageIds[1], otherId]);
  const keys = [0, 1_000, 2_500].map((ordinal) => keyOf(messageIds[0]!, ordinal));
  const others = [0, 1_000].map((ordinal) => ({
    ...keyOf(messageIds[1]!, ordinal),
    organizationId: otherId,
  }));
  for (const key of [...keys, ...others])
    await database.transaction((transaction) => noteRecipientChanges(transaction, newId, [key]));
  const rounds: boolean[] = [];
  do {
    rounds.push((await countChangedRecipients({ database, changesMax: 2, slicesMax: 1 })).hasMore);
  } while (rounds.at(-1) === true && rounds.length < 50);
  expect(rounds.at(-1)).toBe(false);
  expect(await run('select from recipient_changes')).toEqual([]);
  const counted = await run<{ message_id: string; slice: number; sums: number }>(
    `select message_id, slice, unconfirmed + jsonb_array_length(fates -> 'pending') as sums
     from recipient_counts where message_id = any ($1::uuid[])
     order by array_position($1::uuid[], message_id), slice`,
    [messageIds],
  );
  expect(counted).toEqual([
    { message_id: messageIds[0], slice: 0, sums: 2 },
    { message_id: messageIds[0], slice: 1, sums: 1 },
    { message_id: messageIds[0], slice: 2, sums: 1 },
    { message_id: messageIds[1], slice: 0, sums: 2 },
    { message_id: messageIds[1], slice: 1, sums: 1 },
  ]);
});
