import { EventEmitter, once } from 'node:events';
import { beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, DatabaseUnavailableError } from '../platform/postgres/database.ts';
import {
  type AccountTools,
  createApiKey,
  createOrganization,
  listApiKeys,
  revokeApiKey,
} from './accounts.ts';
import { generateApiKey } from './api-key.ts';
import { createKeyring, type Keyring } from './keyring.ts';

let database: Database;
/** Statements that reached the database since the test began. */
let statements = 0;
let isAway = false;
let clock: ManualClock;
let tools: AccountTools;
let keyring: Keyring;
let organizationId: string;

useTestDatabase({ connectionsMax: 3 }, ({ database: pool }) => {
  database = {
    ...pool,
    rows: (...given) => {
      statements += 1;
      return isAway ? Promise.reject(new DatabaseUnavailableError('away')) : pool.rows(...given);
    },
  };
});

beforeEach(async () => {
  clock = createManualClock();
  tools = { database, clock, newId: createIds(clock) };
  keyring = createKeyring({ database, clock, log: silentLog });
  organizationId = (await createOrganization(tools, 'Test organization')).id;
  statements = 0;
});

const address = '192.0.2.1';

async function aKey(expiresAt: Date | null = null): Promise<{ id: string; key: string }> {
  const made = await createApiKey(tools, { organizationId, name: 'K', scopes: ['read_only'], expiresAt });
  statements = 0;
  return made;
}

/** Of other installations: their checksums are right, so that only a look-up tells. */
const wrongKeys: string[] = [];

function wrongKey(index: number): string {
  return (wrongKeys[index] ??= generateApiKey());
}

/** What waits for a statement that is shared has it now. */
async function answered<Outcome>(waiting: Promise<Outcome>): Promise<Outcome> {
  await clock.whenWaiting(1);
  clock.advance(20);
  return waiting;
}

test('a key opens its organization with the scopes and limits that it has', async () => {
  const { id, key } = await aKey();
  expect(await keyring.find(key, address)).toMatchObject({
    keyId: id,
    organizationId,
    requestsPerWindow: 600,
    eventsPerWindow: 6_000,
  });
});

test('a key that is known is not asked for again until it is no longer fresh', async () => {
  const { key } = await aKey();
  await Promise.all(Array.from({ length: 1_000 }, () => keyring.find(key, address)));
  clock.advance(999);
  await keyring.find(key, address);
  expect(statements).toBe(1);
  clock.advance(5_000);
  statements = 0;
  await keyring.find(key, address);
  expect(statements).toBeGreaterThan(0);
});

test('a revoked key is refused by every node within five seconds, and stays refused', async () => {
  const { id, key } = await aKey();
  const other = createKeyring({ database, clock, log: silentLog });
  const find = () => Promise.all([keyring.find(key, address), other.find(key, address)]);
  await find();
  await revokeApiKey(tools, id);
  clock.advance(5_000);
  expect(await find()).toEqual(['unauthorized', 'unauthorized']);
  clock.advance(600_000);
  expect(await find()).toEqual(['unauthorized', 'unauthorized']);
});

test('the five seconds count from when the database was asked, however late it answers', async () => {
  const { id, key } = await aKey();
  const slow = new EventEmitter();
  const node = createKeyring({
    clock,
    log: silentLog,
    database: {
      ...database,
      rows: async (...given) => {
        const rows = await database.rows(...given);
        slow.emit('read');
        await once(slow, 'answer');
        return rows;
      },
    },
  });
  const first = node.find(key, address);
  await once(slow, 'read');
  await revokeApiKey(tools, id);
  clock.advance(4_500);
  slow.emit('answer');
  await first;
  clock.advance(500);
  const second = node.find(key, address);
  await once(slow, 'read');
  slow.emit('answer');
  expect(await second).toBe('unauthorized');
});

test('an expired key is refused at that very millisecond, although it is known', async () => {
  const { key } = await aKey(new Date(clock.nowMs() + 2_000));
  expect(await keyring.find(key, address)).toMatchObject({ organizationId });
  clock.advance(1_999);
  expect(await keyring.find(key, address)).toMatchObject({ organizationId });
  clock.advance(1);
  expect(await keyring.find(key, address)).toBe('unauthorized');
  expect(await createKeyring({ database, clock, log: silentLog }).find(key, address)).toBe('unauthorized');
});

test('what has not the form of a key is refused without a question to the database', async () => {
  const { key } = await aKey();
  for (const text of [
    '',
    'pst_',
    key.slice(0, -1),
    `${key}x`,
    key.toUpperCase(),
    `pst_${'é'.repeat(43)}`,
    `${key}\n`,
  ]) {
    expect(await keyring.find(text, address)).toBe('unauthorized');
  }
  expect(statements).toBe(0);
});

test('an address that tried many wrong keys is told so, and its keys that are right are found all the same', async () => {
  const known = await aKey();
  await keyring.find(known.key, address);
  const unknown = await aKey();
  const other = (await createOrganization(tools, 'Clashing')).id;
  const wanted = { organizationId: other, name: 'K', scopes: ['full_access'], expiresAt: null };
  const others = await createApiKey(tools, wanted);
  for (let index = 0; index < 120; index += 1)
    expect(await keyring.find(wrongKey(index), address)).toBe('unauthorized');
  expect(await answered(keyring.find(wrongKey(120), address))).toBe('too_many_wrong_keys');
  expect(await keyring.find(known.key, address), 'one that is known').toMatchObject({ organizationId });
  expect(await answered(keyring.find(unknown.key, address)), 'one that is not').toMatchObject({
    organizationId,
  });
  expect(await answered(keyring.find(others.key, address))).toMatchObject({ organizationId: other });
  expect(await keyring.find(wrongKey(0), '192.0.2.2'), 'another address').toBe('unauthorized');
});

test('all of a /64 is one client, and an IPv4 address is another one each, however it is written', async () => {
  for (let index = 0; index < 120; index += 1) {
    const [ofOne64, mapped] = [`2001:db8:1:2::${index.toString(16)}`, `::ffff:192.0.2.${index + 1}`];
    expect(await keyring.find(wrongKey(index), ofOne64)).toBe('unauthorized');
    expect(await keyring.find(wrongKey(1_000 + index), mapped)).toBe('unauthorized');
  }
  expect(await answered(keyring.find(wrongKey(120), '2001:db8:1:2:ffff::1'))).toBe('too_many_wrong_keys');
  expect(await keyring.find(wrongKey(120), '2001:db8:1:3::1'), 'another /64').toBe('unauthorized');
  expect(await keyring.find(wrongKey(120), '::ffff:192.0.2.121'), 'another IPv4 address').toBe(
    'unauthorized',
  );
  for (let index = 0; index < 119; index += 1) await keyring.find(wrongKey(2_000 + index), '192.0.2.1');
  expect(await answered(keyring.find(wrongKey(120), '::ffff:192.0.2.1'))).toBe('too_many_wrong_keys');
});

test('a flood of wrong keys shares few statements, and a right one among them is found', async () => {
  const { key } = await aKey();
  const flood = Array.from({ length: 1_000 }, (_, index) => keyring.find(wrongKey(index), address));
  const right = keyring.find(key, address);
  const outcomes: unknown[] = [];
  for (const outcome of flood) void outcome.then((value) => outcomes.push(value));
  expect(statements).toBe(120);
  await clock.whenWaiting(1);
  clock.advance(20);
  expect(statements, 'one at a time').toBe(121);
  await clock.whenWaiting(1);
  clock.advance(20);
  expect(await right).toMatchObject({ organizationId });
  await Promise.all(flood);
  expect(statements).toBe(122);
  expect(outcomes.filter((outcome) => outcome === 'unauthorized')).toHaveLength(120);
  expect(outcomes.filter((outcome) => outcome === 'too_many_wrong_keys')).toHaveLength(880);
});

test('more keys than could be looked up are turned away as an overload, and not as wrong', async () => {
  const flood = Array.from({ length: 2_125 }, (_, index) => keyring.find(wrongKey(index), address));
  const refused = flood
    .slice(2_120)
    .map((outcome) => expect(outcome).rejects.toMatchObject({ definition: { statusCode: 503 } }));
  await Promise.all(refused);
  for (let batch = 0; batch < 4; batch += 1) {
    await clock.whenWaiting(1);
    clock.advance(20);
  }
  await Promise.all(flood.slice(0, 2_120));
  expect(statements).toBe(124);
});

test('keys that were made up are told by their checksum: no look-up, and no limit is reached', async () => {
  const { key } = await aKey();
  for (let index = 0; index < 500; index += 1) {
    const made = `${key.slice(0, 4)}${`${index}`.padStart(43, 'x')}${key.slice(-6)}`;
    expect(await keyring.find(made, address)).toBe('unauthorized');
  }
  expect(statements).toBe(0);
  expect(await keyring.find(key, address)).toMatchObject({ organizationId });
});

test('keys that are right count for no wrong ones, however many are used for the first time', async () => {
  const keys = [];
  for (let index = 0; index < 130; index += 1) keys.push((await aKey()).key);
  for (const key of keys) expect(await keyring.find(key, address)).toMatchObject({ organizationId });
});

test('an address that was refused may try again after a minute', async () => {
  await Promise.all(Array.from({ length: 120 }, (_, index) => keyring.find(wrongKey(index), address)));
  clock.advance(59_000);
  expect(await answered(keyring.find(wrongKey(0), address))).toBe('too_many_wrong_keys');
  clock.advance(1_001);
  expect(await keyring.find(wrongKey(0), address)).toBe('unauthorized');
});

test('a database that is away is told as such: no key passes for wrong, and a fresh one still opens', async () => {
  const { key } = await aKey();
  await keyring.find(key, address);
  const unknown = await aKey();
  isAway = true;
  try {
    for (let attempt = 0; attempt < 130; attempt += 1) {
      await expect(keyring.find(unknown.key, address)).rejects.toBeInstanceOf(DatabaseUnavailableError);
    }
    expect(await keyring.find(key, address)).toMatchObject({ organizationId });
    clock.advance(5_000);
    await expect(keyring.find(key, address)).rejects.toBeInstanceOf(DatabaseUnavailableError);
  } finally {
    isAway = false;
  }
  expect(await keyring.find(unknown.key, address)).toMatchObject({ organizationId });
});

async function lastUsedAt(): Promise<Date | null> {
  return (await listApiKeys(database, organizationId, 1))[0]!.lastUsedAt;
}

test('the last use of a key is its own, and none of the organization’s other keys', async () => {
  const { key } = await aKey();
  await aKey();
  await keyring.find(key, address);
  await keyring.flush();
  const [other, used] = await listApiKeys(database, organizationId, 2);
  expect([other!.lastUsedAt, used!.lastUsedAt]).toEqual([null, new Date(clock.nowMs())]);
});

test('a key that was made for some networks opens nothing from elsewhere, and nothing is written of that', async () => {
  const wanted = { organizationId, name: 'K', scopes: ['read_only'], expiresAt: null };
  const { key } = await createApiKey(tools, {
    ...wanted,
    allowedNetworks: ['192.0.2.0/28', '2001:db8::/32'],
  });
  for (const from of ['192.0.2.1', '::ffff:192.0.2.15', '2001:db8::7'])
    expect(await keyring.find(key, from), from).toMatchObject({ organizationId });
  await keyring.flush();
  for (const from of ['192.0.2.16', '2001:db9::7', 'unknown'])
    expect(await keyring.find(key, from), from).toMatchObject({ kind: 'foreign_address' });
  clock.advance(60_001);
  expect(await keyring.find(key, '198.51.100.1')).toMatchObject({ kind: 'foreign_address' });
  await keyring.flush();
  expect((await listApiKeys(database, organizationId, 1))[0]!.lastUsedAddress).toBe('192.0.2.1');
});

test('the last use of a key says from where it was', async () => {
  const { key } = await aKey();
  for (const [from, written] of [
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['fe80::1%eth0', 'fe80::1'],
    ['unknown', null],
  ] as const) {
    clock.advance(60_001);
    await keyring.find(key, from);
    await keyring.flush();
    expect((await listApiKeys(database, organizationId, 1))[0]!.lastUsedAddress).toBe(written);
  }
});

test('the last use of a key is written behind its back, and once a minute at most', async () => {
  const { key } = await aKey();
  await keyring.find(key, address);
  expect(await lastUsedAt()).toBeNull();
  await keyring.flush();
  const firstUse = new Date(clock.nowMs());
  expect(await lastUsedAt()).toEqual(firstUse);
  clock.advance(30_000);
  await keyring.find(key, address);
  await keyring.flush();
  expect(await lastUsedAt()).toEqual(firstUse);
  clock.advance(30_001);
  await keyring.find(key, address);
  await keyring.flush();
  expect(await lastUsedAt()).toEqual(new Date(clock.nowMs()));
});

test('a use is written by itself a second later', async () => {
  const { key } = await aKey();
  await keyring.find(key, address);
  statements = 0;
  clock.advance(1_000);
  expect(statements).toBe(1);
  for (let usedAt = await lastUsedAt(); usedAt === null;) usedAt = await lastUsedAt();
});

test('a use that is refused is none', async () => {
  const { id, key } = await aKey();
  await revokeApiKey(tools, id);
  await keyring.find(key, address);
  await keyring.flush();
  expect(await lastUsedAt()).toBeNull();
});
