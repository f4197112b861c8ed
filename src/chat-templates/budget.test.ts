import { beforeEach, describe, expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import { setAccount } from './account.ts';
import {
  countReached,
  deleteOldReached,
  findBudget,
  findPeopleLimit,
  findReachedAddresses,
  forgetReached,
  isUsedUp,
  loadBudgets,
  notePeopleLimit,
} from './budget.ts';

let database: Database;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');

useTestDatabase({ connectionsMax: 8, hasNeighbour: true }, (opened) => {
  database = opened.database;
});

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;

let own: string;
let other: string;
let clock: ReturnType<typeof createManualClock>;
beforeEach(async () => {
  [own, other] = [newId(), newId()];
  clock = createManualClock();
  await told(own, 250);
  await told(other, 2_000);
});

const tools = () => ({ clock, secrets });
const at = () => new Date(clock.nowMs());

const told = (organizationId: string, peoplePerDayMax: number | 'unlimited') =>
  database.asOrganizations([organizationId], (transaction) =>
    notePeopleLimit({ clock }, transaction, { organizationId, peoplePerDayMax }),
  );
const reach = (addresses: readonly string[], organizationId = own) =>
  database.asOrganizations([organizationId], (transaction) =>
    countReached(tools(), transaction, { organizationId, addresses }),
  );
const budget = (organizationId = own) =>
  database.asOrganizations([organizationId], (transaction) => findBudget(transaction, organizationId, at()));
const reached = async (organizationId = own) => (await budget(organizationId))?.reached;
const known = (addresses: readonly string[], organizationId = own) =>
  database.asOrganizations([organizationId], (transaction) =>
    findReachedAddresses(tools(), transaction, { organizationId, addresses, at: at() }),
  );
const rows = (text: string, values: unknown[] = [own]) =>
  database.rows(unpreparedStatement<Record<string, unknown>>(text), values);

const numbers = (count: number, from = 0) =>
  Array.from({ length: count }, (_none, index) => `+49151${String(from + index).padStart(8, '0')}`);
const [ann, ben] = ['+4915100000001', '+4915100000002'];

describe('people who were written to', () => {
  test('are counted once, however often, by whom, and in which order', async () => {
    await Promise.all(
      Array.from({ length: 8 }, (_none, turn) =>
        reach(turn % 2 === 0 ? numbers(300) : [...numbers(300)].reverse()),
      ),
    );
    await reach([ann, ann, ann]);
    expect(await reached()).toBe(300);
    expect(await reached(other)).toBe(0);
  });

  test('are counted for 24 hours from the last message, and ten minutes at most beyond', async () => {
    await reach([ann, ben]);
    clock.advance(20 * hourMs);
    await reach([ann]);
    expect(await reached()).toBe(2);
    clock.advance(4 * hourMs - 1);
    expect(await reached()).toBe(2);
    clock.advance(10 * minuteMs + 1);
    expect(await reached()).toBe(1);
    expect(await known([ann, ben])).toEqual(new Set([ann]));
    clock.advance(20 * hourMs);
    expect(await reached()).toBe(0);
    expect(await known([ann, ben])).toEqual(new Set());
  });

  test('are counted anew after their day, whether they were tidied away or not', async () => {
    await reach([ann, ben]);
    clock.advance(30 * hourMs);
    await reach([ann]);
    expect(await reached()).toBe(1);
    await deleteOldReached({ clock }, database);
    await reach([ann, ben]);
    expect(await reached()).toBe(2);
    clock.advance(30 * hourMs);
    await deleteOldReached({ clock }, database, 1);
    const left = 'select period from %s where organization_id = $1';
    expect(await rows(left.replace('%s', 'chat_app_reached_people'))).toEqual([]);
    expect(await rows(left.replace('%s', 'chat_app_reached_counts'))).toEqual([]);
  });

  test('are not tidied away as long as they count', async () => {
    await reach(numbers(3));
    clock.advance(24 * hourMs);
    await deleteOldReached({ clock }, database, 1);
    expect(await reached()).toBe(3);
    await reach(numbers(3));
    expect(await reached()).toBe(3);
  });

  test('are one person less or more in no period, wherever their messages fall', async () => {
    let step = 7;
    const written = new Map<string, number>();
    for (let turn = 0; turn < 200; turn += 1) {
      // A sequence that looks random and is the same in every run.
      step = (step * 48_271) % 2_147_483_647;
      const people = numbers(1 + (step % 4), step % 400);
      await reach(people);
      for (const person of people) written.set(person, clock.nowMs());
      clock.advance((step % 53) * minuteMs);
      const since = (ms: number) => [...written.values()].filter((atMs) => atMs > clock.nowMs() - ms).length;
      const counted = (await reached())!;
      expect(counted).toBeGreaterThanOrEqual(since(24 * hourMs));
      expect(counted).toBeLessThanOrEqual(since(24 * hourMs + 10 * minuteMs));
    }
  });

  test('are counted for each organization by itself, also where several are asked about at once', async () => {
    await reach(numbers(3));
    await reach(numbers(1), other);
    const budgets = await database.asOrganizations([own, other], (transaction) =>
      loadBudgets({ clock }, transaction, [own, other]),
    );
    expect([budgets.get(own)?.reached, budgets.get(other)?.reached]).toEqual([3, 1]);
  });

  test('count as long as they do by the clock that is ahead', async () => {
    await reach([ann]);
    const writtenAtMs = clock.nowMs();
    clock.setWallTime(writtenAtMs - 20 * minuteMs);
    await reach([ann]);
    clock.setWallTime(writtenAtMs + 24 * hourMs - 1);
    expect(await reached()).toBe(1);
  });

  test('are known by a keyed hash alone, which differs from organization to organization', async () => {
    await reach([ann]);
    await reach([ann], other);
    const kept = await rows(
      'select person, p::text as text from chat_app_reached_people p where organization_id = any ($1)',
      [[own, other]],
    );
    expect(new Set(kept.map(({ person }) => (person as Buffer).toString('hex'))).size).toBe(2);
    expect(JSON.stringify(kept)).not.toContain(ann.slice(1));
  });

  test('leave nothing behind once they are erased, and are counted as the provider counts them', async () => {
    await reach([ann, ben]);
    await reach([ann], other);
    await database.asOrganizations([own], (transaction) =>
      forgetReached({ secrets }, transaction, { organizationId: own, addresses: [ann, 'erased:00'] }),
    );
    expect(await reached()).toBe(2);
    expect(await known([ann, ben])).toEqual(new Set([ben]));
    expect(await known([ann], other)).toEqual(new Set([ann]));
  });

  test('whose number was erased before the outcome is written are not counted', async () => {
    await reach(['erased:0011', '']);
    expect(await reached()).toBe(0);
  });
});

describe('a limit', () => {
  test('leaves a tenth of it to single messages, and a step is a twentieth of the rest', async () => {
    expect(await budget()).toEqual({ peopleMax: 250, reached: 0, campaignPeopleMax: 225, step: 11 });
    expect(await budget(other)).toMatchObject({ campaignPeopleMax: 1_800, step: 90 });
    await told(own, 1);
    expect(await budget()).toMatchObject({ campaignPeopleMax: 0, step: 1 });
  });

  test('is used up by the last of its people', async () => {
    await reach(numbers(249));
    expect(isUsedUp((await budget())!)).toBe(false);
    await reach(numbers(250));
    expect(isUsedUp((await budget())!)).toBe(true);
  });

  test('that is raised or lowered keeps what was counted', async () => {
    await reach(numbers(300));
    expect(isUsedUp((await budget())!)).toBe(true);
    await told(own, 2_000);
    expect(await budget()).toMatchObject({ peopleMax: 2_000, reached: 300 });
    expect(isUsedUp((await budget())!)).toBe(false);
    await told(own, 250);
    expect(isUsedUp((await budget())!)).toBe(true);
  });

  test('that there is none of, or that nobody told, takes no row for anybody', async () => {
    await told(own, 'unlimited');
    const silent = newId();
    for (const organizationId of [own, silent]) {
      await reach([ann], organizationId);
      expect(await budget(organizationId)).toBeNull();
      expect(
        await rows('select from chat_app_reached_people where organization_id = $1', [organizationId]),
      ).toEqual([]);
    }
    const find = (organizationId: string) =>
      database.asOrganizations([organizationId], (transaction) =>
        findPeopleLimit(transaction, organizationId),
      );
    expect(await find(own)).toEqual({ peoplePerDayMax: null, toldAt: at() });
    expect(await find(silent)).toBeNull();
    const budgets = await database.asOrganizations([own, other, silent], (transaction) =>
      loadBudgets({ clock }, transaction, [own, other, silent]),
    );
    expect([...budgets.keys()]).toEqual([other]);
  });

  test('is forgotten with the business account, and kept with a new token', async () => {
    const give = (businessAccountId: string, accessToken: string) =>
      setAccount({ database, clock, newId, secrets }, own, {
        ...{ businessAccountId, accessToken, phoneNumberIds: ['1'], ownApp: null },
      });
    await give('881', 'first');
    await give('881', 'second');
    expect(await budget()).toMatchObject({ peopleMax: 250 });
    await give('882', 'third');
    expect(await budget()).toBeNull();
  });
});
