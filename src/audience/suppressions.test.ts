import { describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import {
  addSuppressions,
  type AddressOnChannel,
  type SuppressedAddress,
  findOptOuts,
  findSuppressed,
  eraseSuppressedAddresses,
  liftUnreachable,
  noteGrants,
  readGrant,
  readSuppressions,
  removeSuppressions,
  type SuppressingTools,
  takeBackOptOut,
  writeSuppressions,
} from './suppressions.ts';
import type { SuppressionReason } from './schema.ts';

let database: Database;
const newId = createIds(systemClock);
const [own, other] = [newId(), newId()];
const atMs = Date.parse('2026-11-21T12:00:00.000Z');
const tools: SuppressingTools = {
  clock: { ...systemClock, nowMs: () => atMs },
  newId,
  secrets: createSecrets('a secret of the tests, and of nothing else'),
};

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

const suppress = (address: string, reason: SuppressionReason = 'operator', organizationId = own) =>
  addSuppressions(database, tools, 'email', [{ organizationId, address, reason }]);
const ask = async (addresses: readonly string[], organizationId = own, by = tools) => {
  const wanted = addresses.map((address) => ({ organizationId, address }));
  const found = await findSuppressed(database, by, 'email', wanted);
  return addresses.map((_address, index) => found.has(index));
};

test('each address is answered by itself, in the order of the question, repetitions too', async () => {
  await suppress('yes@example.com');
  expect(await ask(['no@example.com', 'yes@example.com', 'xyes@example.com', 'yes@example.com'])).toEqual([
    false,
    true,
    false,
    true,
  ]);
  expect(await ask([])).toEqual([]);
});

test('a suppression holds for one organization and one channel', async () => {
  await suppress('scope@example.com');
  expect(await ask(['scope@example.com'], other)).toEqual([false]);
  const wanted = [{ organizationId: own, address: 'scope@example.com' }];
  expect(await findSuppressed(database, tools, 'sms', wanted)).toEqual(new Map());
});

const reasonsOf = async (address: SuppressedAddress, channel: 'email' | 'sms' = 'email') =>
  (await readSuppressions(database, tools, channel, address)).map(({ reason }) => reason);

test('a second suppression for the same reason changes nothing, and only the first is told as made', async () => {
  const address = { organizationId: own, address: 'first@example.com' };
  const complain = (source: string) =>
    addSuppressions(database, tools, 'email', [
      { ...address, reason: 'complaint', source: { type: 'message', id: source } },
    ]);
  const [message, another] = [newId(), newId()];
  const made = await complain(message);
  expect(made).toEqual([
    {
      organizationId: own,
      id: expect.any(String) as string,
      channel: 'email',
      addressHash: expect.any(Buffer) as Buffer,
      address: 'first@example.com',
      reason: 'complaint',
      scope: 'all',
      note: null,
      source: { type: 'message', id: message },
      createdAt: new Date(atMs),
      optedOutAt: null,
      expiresAt: null,
    },
  ]);
  expect(await complain(another)).toEqual([]);
  expect(await readSuppressions(database, tools, 'email', address)).toEqual(made);
});

test.each<[string, SuppressionReason[], SuppressionReason[], string]>([
  ['a complaint, then a bounce', ['complaint', 'hard_bounce'], ['complaint', 'hard_bounce'], 'suppressed'],
  ['an opt-out, then the operator', ['unsubscribe', 'operator'], ['operator', 'unsubscribe'], 'suppressed'],
  ['the operator, then an opt-out', ['operator', 'unsubscribe'], ['operator', 'unsubscribe'], 'suppressed'],
  ['unreachable twice', ['unreachable', 'unreachable'], ['unreachable'], 'unreachable'],
  [
    'unreachable, then an opt-out',
    ['unreachable', 'unsubscribe'],
    ['unreachable', 'unsubscribe'],
    'opted_out',
  ],
  [
    'an opt-out, then unreachable',
    ['unsubscribe', 'unreachable'],
    ['unreachable', 'unsubscribe'],
    'opted_out',
  ],
  ['unreachable, then a complaint', ['unreachable', 'complaint'], ['complaint', 'unreachable'], 'suppressed'],
])('each reason of %s is kept, what stays before what ends by itself', async (name, given, kept, kind) => {
  const address = { organizationId: own, address: `${name.replaceAll(/[ ,]+/g, '-')}@example.com` };
  for (const reason of given) await suppress(address.address, reason);
  expect(await reasonsOf(address)).toEqual(kept);
  expect(await findSuppressed(database, tools, 'email', [address])).toEqual(new Map([[0, kind]]));
});

test('an address that was reached is unreachable no more, and everything else that is known of it stays', async () => {
  const cases: [SuppressionReason[], SuppressionReason[]][] = [
    [['unreachable'], []],
    [['unreachable', 'unsubscribe'], ['unsubscribe']],
    [['complaint'], ['complaint']],
    [
      ['complaint', 'unsubscribe'],
      ['complaint', 'unsubscribe'],
    ],
    [['unsubscribe'], ['unsubscribe']],
  ];
  const addresses = cases.map(([reasons]) => ({
    organizationId: own,
    address: `reached-${reasons.join('-')}@example.com`,
  }));
  const elsewhere = { organizationId: other, address: addresses[0]!.address };
  await addSuppressions(database, tools, 'email', [{ ...elsewhere, reason: 'unreachable' }]);
  for (const [index, [reasons]] of cases.entries()) {
    const address = addresses[index]!;
    await addSuppressions(database, tools, 'sms', [{ ...address, reason: 'unreachable' }]);
    for (const reason of reasons) await addSuppressions(database, tools, 'email', [{ ...address, reason }]);
  }
  await liftUnreachable(database, tools, 'email', addresses);
  for (const [index, [, left]] of cases.entries()) {
    const address = addresses[index]!;
    expect(await reasonsOf(address)).toEqual(left);
    expect(await reasonsOf(address, 'sms')).toEqual(['unreachable']);
  }
  expect(await reasonsOf(elsewhere)).toEqual(['unreachable']);
});

test('an opt-out is known beside another reason as well, and no other reason is one', async () => {
  const [both, complaint, alone] = ['both', 'complaint', 'alone'].map((name) => ({
    organizationId: own,
    channel: 'email' as const,
    address: `opted-out-${name}@example.com`,
  })) as [AddressOnChannel, AddressOnChannel, AddressOnChannel];
  for (const [address, reason] of [
    [both, 'complaint'],
    [both, 'unsubscribe'],
    [complaint, 'complaint'],
    [alone, 'unsubscribe'],
  ] as const)
    await addSuppressions(database, tools, 'email', [{ ...address, reason }]);
  const wanted = [both, complaint, alone, { ...both, channel: 'sms' as const }];
  expect(await findOptOuts(database, tools, wanted)).toEqual(new Set([0, 2]));
});

test('of two records of an address the one that keeps the most from it counts, whichever came first', async () => {
  for (const scopes of [['marketing', 'all'] as const, ['all', 'marketing'] as const]) {
    const address = { organizationId: own, address: `${scopes.join('-')}@example.com` };
    for (const scope of scopes)
      await addSuppressions(database, tools, 'email', [{ ...address, reason: 'unsubscribe', scope }]);
    const [first] = await readSuppressions(database, tools, 'email', address);
    expect(first).toMatchObject({ scope: 'all' });
    expect(await findSuppressed(database, tools, 'email', [address])).toEqual(new Map([[0, 'opted_out']]));
  }
});

describe('what the owner of an address says of it', () => {
  const address = { organizationId: own, address: 'owner@example.com' };
  const reasonLeft = async () => (await reasonsOf(address))[0] ?? null;
  const lift = () => removeSuppressions(database, tools, 'email', address);
  const takeBack = () => takeBackOptOut(database, tools, 'email', address);

  test.each([
    ['before the operator', ['unsubscribe', 'operator']],
    ['after the operator', ['operator', 'unsubscribe']],
    ['before and after the operator', ['unsubscribe', 'operator', 'unsubscribe']],
  ] as const)('%s holds when he lifts his, and his when they take it back', async (_when, reasons) => {
    for (const reason of reasons) await suppress(address.address, reason);
    expect(await reasonsOf(address)).toEqual(['operator', 'unsubscribe']);
    expect(await lift()).toBe(true);
    expect(await reasonLeft()).toBe('unsubscribe');
    await suppress(address.address, 'operator');
    await takeBack();
    expect(await reasonLeft()).toBe('operator');
    expect(await lift()).toBe(true);
    expect([await reasonLeft(), await lift()]).toEqual([null, false]);
  });

  test('lifts nothing that the operator suppressed, if the owner had said nothing', async () => {
    await suppress(address.address, 'operator');
    await takeBack();
    expect([await reasonLeft(), await lift()]).toEqual(['operator', true]);
  });

  test('alone is taken back, and not lifted with what else suppresses the address', async () => {
    await suppress(address.address, 'unsubscribe');
    expect([await lift(), await reasonLeft()]).toEqual([false, 'unsubscribe']);
    await takeBack();
    expect(await reasonLeft()).toBeNull();
  });
});

test.each<[string, SuppressionReason | null]>([
  ['alone', null],
  ['beside the operator', 'operator'],
])('of two opt-outs %s the later one counts, whichever is heard of first', async (_where, beside) => {
  const at = (seconds: number) => new Date(atMs + seconds * 1_000);
  for (const times of [
    [1, 3],
    [3, 1],
  ]) {
    const address = {
      organizationId: own,
      address: `said-${beside ?? 'alone'}-${times.join('-')}@example.com`,
    };
    const kindsLeft = async () => (await findSuppressed(database, tools, 'email', [address])).get(0) ?? null;
    if (beside !== null)
      await addSuppressions(database, tools, 'email', [{ ...address, reason: beside }], at(0));
    for (const seconds of times)
      await addSuppressions(database, tools, 'email', [{ ...address, reason: 'unsubscribe' }], at(seconds));
    expect(await takeBackOptOut(database, tools, 'email', address, { saidUntil: at(2) })).toBe(false);
    const suppressions = await readSuppressions(database, tools, 'email', address);
    expect(suppressions.at(-1)).toMatchObject({ optedOutAt: at(3) });
    expect(await takeBackOptOut(database, tools, 'email', address, { saidUntil: at(3) })).toBe(true);
    expect(await kindsLeft()).toBe(beside === null ? null : 'suppressed');
  }
});

test('one that has ended gives way to a new one before anybody has cleared it, and one that holds does not', async () => {
  const address = { organizationId: own, address: 'ended@example.com' };
  const write = async (by: SuppressingTools, expiresAt: Date | null, organizationId = own) => {
    const wanted = { ...address, organizationId, channel: 'email', reason: 'manual', expiresAt } as const;
    const [written] = await writeSuppressions(database, by, [wanted]);
    return written!;
  };
  const later = { ...tools, clock: { ...systemClock, nowMs: () => atMs + 1_000 } };
  const end = new Date(atMs + 1_000);
  const [first, theirs] = [await write(tools, end), await write(tools, null, other)];
  expect(await write(tools, null)).toEqual({ ...first, isNew: false });
  const anew = await write(later, null);
  expect(anew).toMatchObject({ isNew: true, suppression: { expiresAt: null } });
  expect(await ask([address.address], own, later)).toEqual([true]);
  expect(await write(later, null, other)).toEqual({ ...theirs, isNew: false });
});

test('one address twice in a batch is suppressed once', async () => {
  const suppression = { organizationId: own, address: 'twice@example.com', reason: 'operator' } as const;
  await addSuppressions(database, tools, 'email', [suppression, suppression]);
  expect(await ask(['twice@example.com'])).toEqual([true]);
});

test('removing says whether there was anything to remove, and touches no other organization', async () => {
  await suppress('gone@example.com');
  await suppress('gone@example.com', 'operator', other);
  const remove = () =>
    removeSuppressions(database, tools, 'email', { organizationId: own, address: 'gone@example.com' });
  expect([await remove(), await remove()]).toEqual([true, false]);
  expect(await ask(['gone@example.com'])).toEqual([false]);
  expect(await ask(['gone@example.com'], other)).toEqual([true]);
});

test('it outlives the erasure of the address, and tells nothing without the secret', async () => {
  await suppress('erased@example.com', 'unsubscribe');
  await database.rows(unpreparedStatement('update suppressions set address = null where address = $1'), [
    'erased@example.com',
  ]);
  expect(await ask(['erased@example.com'])).toEqual([true]);
  const stranger = { ...tools, secrets: createSecrets('another secret, of another installation') };
  expect(await ask(['erased@example.com'], own, stranger)).toEqual([false]);
});

test('the hash of an address in one organization tells nothing of who has it suppressed in another', async () => {
  for (const organizationId of [own, other]) await suppress('both@example.com', 'operator', organizationId);
  const [count] = await database.rows(
    unpreparedStatement<{ rows: number; hashes: number }>(
      `select count(*) as rows, count(distinct address_hash) as hashes
       from suppressions
       where address = 'both@example.com'`,
    ),
  );
  expect(count).toEqual({ rows: 2, hashes: 2 });
});

test('an address is erased on every channel, of its organization alone, and stays suppressed', async () => {
  const address = '+14155550123';
  for (const organizationId of [own, other])
    await addSuppressions(database, tools, 'sms', [{ organizationId, address, reason: 'unsubscribe' }]);
  await eraseSuppressedAddresses(database, tools, [{ organizationId: own, address }]);
  const readable = await database.rows(
    unpreparedStatement<{ organization_id: string }>(
      'select organization_id from suppressions where address = $1',
    ),
    [address],
  );
  expect(readable).toEqual([{ organization_id: other }]);
  expect(await findSuppressed(database, tools, 'sms', [{ organizationId: own, address }])).toEqual(
    new Map([[0, 'opted_out']]),
  );
});

test('of two consents the later one is kept, whichever is heard of first, for its channel alone', async () => {
  const address = { organizationId: own, address: 'granted@example.com' };
  const key = newId();
  const note = (grantedAt: Date, apiKeyId: string | null, channel: 'email' | 'sms' = 'email') =>
    noteGrants(database, tools, [{ ...address, channel }], { apiKeyId, grantedAt });
  await note(new Date(atMs + 1_000), key);
  await note(new Date(atMs), null);
  await note(new Date(atMs + 9_000), null, 'sms');
  expect(await readGrant(database, tools, 'email', address)).toEqual({
    apiKeyId: key,
    grantedAt: new Date(atMs + 1_000),
  });
  await note(new Date(atMs + 2_000), null);
  expect(await readGrant(database, tools, 'email', address)).toEqual({
    apiKeyId: null,
    grantedAt: new Date(atMs + 2_000),
  });
  expect(await readGrant(database, tools, 'email', { ...address, organizationId: other })).toBeNull();
});
