import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createOrganization, updateOrganization } from '../accounts/accounts.ts';
import { createIds, lowestIdAt } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import { createHorizon, isBeyond, limitKept, messageNotFound, noHorizon } from './kept.ts';

const dayMs = 86_400_000;
const clock = createManualClock();
const newId = createIds(clock);
let database: Database;

useTestDatabase({ connectionsMax: 2, hasNeighbour: true }, (opened) => {
  database = opened.database;
});

test('of two limits the shorter holds, and content is kept no longer than its message', () => {
  const forever = { messages: null, content: null };
  expect(limitKept(forever, forever)).toEqual(forever);
  expect(limitKept(forever, { messages: 30, content: null })).toEqual({ messages: 30, content: 30 });
  expect(limitKept({ messages: 30, content: 90 }, { messages: 60, content: 40 })).toEqual({
    messages: 30,
    content: 30,
  });
  expect(limitKept({ messages: 400, content: null }, { messages: 30, content: null })).toEqual({
    messages: 30,
    content: 30,
  });
  expect(limitKept({ messages: 90, content: 60 }, { messages: 400, content: 7 })).toEqual({
    messages: 90,
    content: 7,
  });
  expect(limitKept({ messages: null, content: 60 }, { messages: 30, content: null })).toEqual({
    messages: 30,
    content: 30,
  });
});

test('each organization has a horizon of its own, which moves with the time', async () => {
  const tools = { database, clock, newId };
  const [short, own] = [await createOrganization(tools, 'Short'), await createOrganization(tools, 'Own')];
  await updateOrganization(tools, short.id, { messagesKeptDays: 30, contentKeptDays: 7 });
  let installed: { messages: number | null; content: number | null } = { messages: null, content: null };
  const readHorizon = createHorizon({ clock, installed: () => installed });
  const read = ({ id }: { id: string }) =>
    database.asOrganizations([id], (transaction) => readHorizon(transaction, id));
  const at = (days: number) => lowestIdAt(clock.nowMs() - days * dayMs);
  expect(await read(own)).toMatchObject({ days: null, messagesFrom: null, contentFrom: null });
  expect(await read(short)).toMatchObject({ days: 30, messagesFrom: at(30), contentFrom: at(7) });
  installed = { messages: 20, content: 400 };
  clock.advance(dayMs);
  expect(await read(own)).toMatchObject({ days: 20, messagesFrom: at(20), contentFrom: at(20) });
  expect(await read(short)).toMatchObject({ days: 20, messagesFrom: at(20), contentFrom: at(7) });
  // An organization that is gone has no plan.
  expect(await read({ id: newId() })).toMatchObject({ days: 20 });
});

test('a message is beyond the horizon to the millisecond, however its id is written', () => {
  const messagesFrom = lowestIdAt(1_795_000_000_000);
  const last = `${lowestIdAt(1_794_999_999_999).slice(0, 13)}-7fff-bfff-ffffffffffff`;
  const first = `${lowestIdAt(1_795_000_000_000).slice(0, 13)}-7000-8000-000000000000`;
  for (const write of [(id: string) => id, (id: string) => id.toUpperCase()]) {
    expect(isBeyond({ messagesFrom }, write(last))).toBe(true);
    expect(isBeyond({ messagesFrom }, write(first))).toBe(false);
  }
  expect(isBeyond({ messagesFrom: null }, last)).toBe(false);
});

test('only an id that has a time, and an old one, is told to be too old', () => {
  const horizon = { ...noHorizon, days: 30, messagesFrom: lowestIdAt(1_795_000_000_000) };
  const old = `${lowestIdAt(1_794_000_000_000).slice(0, 13)}-7fff-bfff-ffffffffffff`;
  const unknown = 'The requested resource does not exist.';
  expect(messageNotFound(horizon, old)).toMatchObject({
    definition: { statusCode: 404, name: 'not_found' },
    message:
      'This id is of 2026-11-06. Messages and their recipients are kept for 30 days here: older ones have been removed.',
  });
  expect(messageNotFound(noHorizon, old).message).toBe(unknown);
  expect(messageNotFound(horizon, `${old.slice(0, 14)}4${old.slice(15)}`).message).toBe(unknown);
  expect(messageNotFound(horizon, `ffffffff${old.slice(8)}`).message).toBe(unknown);
});
