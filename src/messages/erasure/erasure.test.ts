import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type Clock, dateOf, systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { eraseNextAddress, type ErasureTools, startErasing } from './erasure.ts';

const newId = createShuffledIds(systemClock);
const address = 'ann@example.com';
let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

function erasingTools(clock: Clock): ErasureTools {
  return {
    database: { ...database, connectAlone: () => Promise.reject(new Error('nobody notifies')) },
    clock,
    log: silentLog,
    newId,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
  };
}

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** Messages to the address, which were all delivered. */
async function insertMessages(organizationId: string, count: number): Promise<void> {
  for (let number = 0; number < count; number += 1) {
    await run(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'transactional', 'a@postillion.test', '{}', 1, now(), now())
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status, status_at, handed_off_at)
       values ($1, $2, 0, 'to', $3, $3, 'delivered', now(), now())`,
      [organizationId, newId(), address],
    );
  }
}

async function insertErasure(organizationId: string, requestedAt: Date): Promise<void> {
  await run('insert into erasures (organization_id, address, requested_at, due_at) values ($1, $2, $3, $3)', [
    organizationId,
    address,
    requestedAt,
  ]);
}

/** Rows of the organization cannot be changed until it is called. */
async function breakRecipientsOf(organizationId: string): Promise<() => Promise<void>> {
  await run(
    `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
  );
  await run(
    `create trigger refusing before update on recipients for each row
     when (old.organization_id = '${organizationId}') execute function refuse()`,
  );
  return async () => {
    await run('drop function refuse() cascade');
  };
}

test('an address that cannot be erased is put off for longer each time, and keeps nobody else from their turn', async () => {
  const [broken, other] = [newId(), newId()];
  await insertMessages(broken, 1);
  await insertMessages(other, 1);
  const requestedAtMs = systemClock.nowMs() + 1_000;
  await insertErasure(broken, dateOf(requestedAtMs));
  await insertErasure(other, dateOf(requestedAtMs + 1));
  const logged: object[] = [];
  const tools = {
    ...erasingTools(createManualClock()),
    log: { ...silentLog, error: (fields: object) => void logged.push(fields) },
  };
  /** After so many minutes. */
  const eraseAll = async (minutes: number) => {
    const at = dateOf(requestedAtMs + minutes * 60_000 + 1);
    // Once of each organization, and once in vain.
    for (let round = 0; await eraseNextAddress(tools, at); round += 1) expect(round).toBeLessThan(2);
    const [row] = await run<{ due_at: Date }>('select due_at from erasures where organization_id = $1', [
      broken,
    ]);
    return row && (row.due_at.getTime() - at.getTime()) / 60_000;
  };
  const repair = await breakRecipientsOf(broken);
  expect(await eraseAll(0)).toBe(1);
  expect(await run('select organization_id from recipients where address = $1', [address])).toEqual([
    { organization_id: broken },
  ]);
  expect(logged).toMatchObject([{ organization_id: broken, pause_ms: 60_000 }]);
  expect(await eraseAll(5)).toBeCloseTo(5, 3);
  expect(await eraseAll(30)).toBeCloseTo(30, 3);
  expect(await eraseAll(10 * 60)).toBe(60);
  await repair();
  expect(await eraseAll(12 * 60)).toBeUndefined();
  expect(await run('select from recipients where address = $1', [address])).toEqual([]);
});

test('an address is erased from five messages two at a time, at once, and from nobody else’s', async () => {
  const [organizationId, other] = [newId(), newId()];
  await insertMessages(organizationId, 5);
  await insertMessages(other, 5);
  const requestedAt = dateOf(systemClock.nowMs() + 1_000);
  await insertErasure(organizationId, requestedAt);
  const clock = createManualClock(requestedAt.getTime());
  const erasing = startErasing({ ...erasingTools(clock), recipientsMax: 2 });
  // It sleeps until the last look, and so does its next attempt at listening.
  await clock.whenWaiting(2);
  const left = () =>
    run('select organization_id, count(*) as messages from recipients where address = $1 group by 1', [
      address,
    ]);
  expect(await left()).toEqual([{ organization_id: other, messages: 5 }]);
  expect(await run('select due_at from erasures')).toEqual([
    { due_at: dateOf(requestedAt.getTime() + 60_000) },
  ]);

  // Three that were accepted before the deletion, and committed after it.
  await run(
    `update recipients set address = $2, address_key = $2
     where organization_id = $1 and message_id in (select message_id from recipients where organization_id = $1 limit 3)`,
    [organizationId, address],
  );
  clock.advance(60_001);
  await clock.whenWaiting(2);
  expect(await left()).toEqual([{ organization_id: other, messages: 5 }]);
  expect(await run('select from erasures')).toEqual([]);
  await erasing.stop();
});
