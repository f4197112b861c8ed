/** Endpoints that begin to be told at the moment in which others find that nobody has anything to be told. */
import { setImmediate } from 'node:timers/promises';
import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { insertEndpoint } from '../../test/support/webhook-endpoint.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import {
  type Connection,
  type Database,
  type Transaction,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { findUntold, noteAllTold, noteUntold } from './delivery-store.ts';
import { appendEvents, lockEnd } from './log-store.ts';
import { saveStatus } from './store.ts';

const newId = createIds(systemClock);
let database: Database;
let key: { organizationId: string; id: string };

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  key = { organizationId: newId(), id: newId() };
});

const numberOne = async (connection: Connection) => {
  const { position } = await lockEnd(connection, key.organizationId);
  await appendEvents(connection, key.organizationId, {
    rows: [
      {
        position: position + 1,
        id: newId(),
        events: 1,
        type: 'email.delivered',
        happened_at: new Date(),
        of_campaign: false,
        subject_ids: [newId()],
        ordinals: [0],
        facts: null,
      },
    ],
    day: null,
    end: { position: position + 1, id: newId() },
  });
};

const isUntold = async () =>
  (await findUntold(database, { at: new Date(), after: null, limit: 100 })).includes(key.organizationId);

/** Begins `second` while `first` is written and not committed, and commits `first` once the other waits for it. */
async function meet(
  first: (transaction: Transaction) => Promise<void>,
  second: (transaction: Transaction) => Promise<void>,
): Promise<void> {
  const other = await database.transaction(async (transaction) => {
    await first(transaction);
    const work = database.transaction(second);
    while (!(await isAnybodyWaiting())) await setImmediate();
    return { work };
  });
  await other.work;
}

async function isAnybodyWaiting(): Promise<boolean> {
  const rows = await database.rows(
    unpreparedStatement(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    ),
  );
  return rows.length > 0;
}

test('one that is enabled while another finds it paused is told', async () => {
  await database.transaction((transaction) => insertEndpoint(transaction, key));
  await saveStatus(database, key, 'paused', new Date());
  await database.transaction(numberOne);
  await meet(
    async (transaction) => {
      await saveStatus(transaction, key, 'enabled', new Date());
      await noteUntold(transaction, key.organizationId);
    },
    (transaction) => noteAllTold(transaction, key.organizationId),
  );
  expect(await isUntold()).toBe(true);
});

test.each([
  { name: 'the first', before: 0 },
  { name: 'a later', before: 2 },
])(
  'one that is made while $name event is numbered is told of it, if its cursor lies before it',
  async ({ before }) => {
    for (let number = 0; number < before; number += 1) await database.transaction(numberOne);
    expect(await isUntold()).toBe(false);
    await meet(numberOne, async (transaction) => {
      await insertEndpoint(transaction, key);
      await noteUntold(transaction, key.organizationId);
    });
    expect(await isUntold()).toBe(true);
  },
);
