import { describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import {
  addSuppressions,
  type AddressOnChannel,
  findOptOuts,
  findSuppressed,
  eraseSuppressedAddresses,
  liftUnreachable,
  noteGrants,
  readGrant,
  readSuppression,
  removeSuppression,
  type SuppressionTools,
  takeBackOptOut,
} from './suppressions.ts';
import type { SuppressionReason } from './schema.ts';

let database: Database;
const newId = createIds(systemClock);
const [own, other] = [newId(), newId()];
const atMs = Date.parse('2026-11-21T12:00:00.000Z');
const tools: SuppressionTools = {
  clock: { ...systemClock, nowMs: () => atMs },
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

test('what is suppressed keeps its first reason', async () => {
  await suppress('first@example.com', 'complaint');
  await suppress('first@example.com', 'hard_bounce');
  expect(
    await readSuppression(database, tools, 'email', { organizationId: own, address: 'first@example.com' }),
  ).toEqual({
    address: 'first@example.com',
    reason: 'complaint',
    scope: 'channel',
    createdAt: new Date(atMs),
    optedOutAt: null,
  });
});

test.each<[string, SuppressionReason[], SuppressionReason, number, number | null, string]>([
  ['a complaint, then a bounce', ['complaint', 'hard_bounce'], 'complaint', 1, null, 'suppressed'],
  ['an opt-out, then the operator', ['unsubscribe', 'operator'], 'operator', 2, 1, 'suppressed'],
  ['the operator, then an opt-out', ['operator', 'unsubscribe'], 'operator', 1, 2, 'suppressed'],
  ['unreachable twice', ['unreachable', 'unreachable'], 'unreachable', 1, null, 'unreachable'],
  ['unreachable, then an opt-out', ['unreachable', 'unsubscribe'], 'unreachable', 1, 2, 'opted_out'],
  ['an opt-out, then unreachable', ['unsubscribe', 'unreachable'], 'unreachable', 2, 1, 'opted_out'],
  ['unreachable, then a complaint', ['unreachable', 'complaint'], 'complaint', 2, null, 'suppressed'],
  [
    'unreachable, an opt-out, then a complaint',
    ['unreachable', 'unsubscribe', 'complaint'],
    'complaint',
    3,
    2,
    'suppressed',
  ],
])('what is known of %s has the time of each', async (name, reasons, reason, created, optedOut, kind) => {
  const address = { organizationId: own, address: `${name.replaceAll(/[ ,]+/g, '-')}@example.com` };
  const after = (seconds: number) => new Date(atMs + seconds * 1_000);
  for (const [index, said] of reasons.entries())
    await addSuppressions(database, tools, 'email', [{ ...address, reason: said }], after(index + 1));
  expect(await readSuppression(database, tools, 'email', address)).toMatchObject({
    reason,
    createdAt: after(created),
    optedOutAt: optedOut === null ? null : after(optedOut),
  });
  expect(await findSuppressed(database, tools, 'email', [address])).toEqual(new Map([[0, kind]]));
});

test('an address that was reached is unreachable no more, and everything else that is known of it stays', async () => {
  const cases: [SuppressionReason[], SuppressionReason | null][] = [
    [['unreachable'], null],
    [['unreachable', 'unsubscribe'], 'unsubscribe'],
    [['complaint'], 'complaint'],
    [['complaint', 'unsubscribe'], 'complaint'],
    [['unsubscribe'], 'unsubscribe'],
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
    expect((await readSuppression(database, tools, 'email', address))?.reason ?? null).toBe(left);
    expect((await readSuppression(database, tools, 'sms', address))?.reason).toBe('unreachable');
  }
  expect((await readSuppression(database, tools, 'email', elsewhere))?.reason).toBe('unreachable');
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
  for (const scopes of [['marketing', 'channel'] as const, ['channel', 'marketing'] as const]) {
    const address = { organizationId: own, address: `${scopes.join('-')}@example.com` };
    for (const scope of scopes)
      await addSuppressions(database, tools, 'email', [{ ...address, reason: 'unsubscribe', scope }]);
    expect(await readSuppression(database, tools, 'email', address)).toMatchObject({ scope: 'channel' });
    expect(await findSuppressed(database, tools, 'email', [address])).toEqual(new Map([[0, 'opted_out']]));
  }
});

describe('what the owner of an address says of it', () => {
  const address = { organizationId: own, address: 'owner@example.com' };
  const reasonLeft = async () => (await readSuppression(database, tools, 'email', address))?.reason ?? null;
  const lift = () => removeSuppression(database, tools, 'email', address);
  const takeBack = () => takeBackOptOut(database, tools, 'email', address);

  test.each([
    ['before the operator', ['unsubscribe', 'operator']],
    ['after the operator', ['operator', 'unsubscribe']],
    ['before and after the operator', ['unsubscribe', 'operator', 'unsubscribe']],
  ] as const)('%s holds when he lifts his, and his when they take it back', async (_when, reasons) => {
    for (const reason of reasons) await suppress(address.address, reason);
    expect(await readSuppression(database, tools, 'email', address)).toEqual({
      address: 'owner@example.com',
      reason: 'operator',
      scope: 'channel',
      createdAt: new Date(atMs),
      optedOutAt: new Date(atMs),
    });
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
    expect(await readSuppression(database, tools, 'email', address)).toMatchObject({ optedOutAt: at(3) });
    expect(await takeBackOptOut(database, tools, 'email', address, { saidUntil: at(3) })).toBe(true);
    expect(await kindsLeft()).toBe(beside === null ? null : 'suppressed');
  }
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
    removeSuppression(database, tools, 'email', { organizationId: own, address: 'gone@example.com' });
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
