import { beforeAll, expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { sha256 } from '../platform/secrets.ts';
import {
  type AccountTools,
  createApiKey,
  createOrganization,
  hasOrganizations,
  holdQuota,
  listApiKeys,
  listOrganizations,
  loadSendingPlans,
  quotaRenewsOn,
  type QuotaDemand,
  resolveScopes,
  revokeApiKey,
  scopeBundles,
  scopes,
  updateOrganization,
} from './accounts.ts';

const clock = createManualClock();
let database: Database;
let tools: AccountTools;

useTestDatabase({ connectionsMax: 5 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  tools = { database, clock, newId: createIds(clock) };
});

async function anOrganization(): Promise<string> {
  return (await createOrganization(tools, 'Test organization')).id;
}

test('a fresh installation has no organization, and lists those it has newest first, with the defaults', async () => {
  expect(await hasOrganizations(database)).toBe(false);
  const [first, second] = [await anOrganization(), await anOrganization()];
  expect(await hasOrganizations(database)).toBe(true);
  const listed = await listOrganizations(database, { after: null, limit: 10 });
  expect(listed.map(({ id }) => id)).toEqual([second, first]);
  expect(listed[1]).toEqual({
    id: first,
    name: 'Test organization',
    deletion: null,
    createdAt: new Date(clock.nowMs()),
    requestsPerWindow: 600,
    eventsPerWindow: 6_000,
    eventsKeptDays: null,
    messagesKeptDays: null,
    contentKeptDays: null,
    quotas: { email: null, sms: null, push: null, chatapp: null },
    limits: { domains: null, segments: null, events: null },
    storageLimitBytes: null,
    storage: null,
    suspendedChannels: [],
    guardSuspension: null,
    hasReputationGuard: true,
    reputationWarnedAt: null,
    hasRequestLog: true,
  });
  expect(await listOrganizations(database, { after: second, limit: 10 })).toHaveLength(1);
  expect(await listOrganizations(database, { after: null, limit: 1 })).toHaveLength(1);
});

async function readOrganization(id: string): Promise<Record<string, unknown>> {
  const [row] = await database.rows(
    unpreparedStatement<Record<string, unknown>>('select * from organizations where id = $1'),
    [id],
  );
  return row!;
}

test('an update changes what it names and leaves everything else, also in other organizations', async () => {
  const [id, other] = [await anOrganization(), await anOrganization()];
  const [before, otherBefore] = [await readOrganization(id), await readOrganization(other)];
  clock.advance(60_000);
  const changed = await updateOrganization(tools, id, {
    requestsPerWindow: 7,
    quotas: { email: 1_000, sms: 0 },
    limits: { domains: 5, segments: 6, events: 8 },
  });
  expect(changed).toEqual({ suspended: [], resumed: [] });
  expect(await readOrganization(id)).toEqual({
    ...before,
    requests_per_window: 7,
    email_quota: 1_000,
    sms_quota: 0,
    domain_limit: 5,
    segment_limit: 6,
    event_limit: 8,
    updated_at: new Date(clock.nowMs()),
  });
  expect(await readOrganization(other)).toEqual(otherBefore);

  await updateOrganization(tools, id, { quotas: { email: null }, eventsPerWindow: 9 });
  expect(await readOrganization(id)).toMatchObject({ email_quota: null, sms_quota: 0, events_per_window: 9 });
});

test('a channel that is suspended twice is suspended once, and resumed by one word', async () => {
  const id = await anOrganization();
  const suspendedOf = async () => [...((await readOrganization(id)).suspended_channels as string[])].sort();
  await updateOrganization(tools, id, { suspend: ['email'] });
  expect(await updateOrganization(tools, id, { suspend: ['email', 'sms'] })).toEqual({
    suspended: ['sms'],
    resumed: [],
  });
  expect(await suspendedOf()).toEqual(['email', 'sms']);
  await updateOrganization(tools, id, { requestsPerWindow: 5 });
  expect(await suspendedOf()).toEqual(['email', 'sms']);
  expect(await updateOrganization(tools, id, { resume: ['email', 'push'] })).toEqual({
    suspended: [],
    resumed: ['email'],
  });
  expect(await suspendedOf()).toEqual(['sms']);
  expect(await loadSendingPlans(database, [id], 'sms')).toEqual([
    { organizationId: id, quota: null, isSuspended: true, guardSuspension: null },
  ]);
  expect((await loadSendingPlans(database, [id], 'email'))[0]?.isSuspended).toBe(false);
});

test('an update of an organization that does not exist says so', async () => {
  expect(await updateOrganization(tools, tools.newId(), { requestsPerWindow: 5 })).toBeNull();
});

test('the plan that is loaded for a channel is that of the channel', async () => {
  const id = await anOrganization();
  await updateOrganization(tools, id, { quotas: { email: 1, sms: 2, push: 3, chatapp: null } });
  const quotas = [];
  for (const channel of ['email', 'sms', 'push', 'chatapp'] as const) {
    quotas.push((await loadSendingPlans(database, [id], channel))[0]?.quota);
  }
  expect(quotas).toEqual([1, 2, 3, null]);
});

test('a key is pst_, 256 bits and a checksum in base62, and of it only the digest and the beginning are stored', async () => {
  const organizationId = await anOrganization();
  const keys = await Promise.all(
    Array.from({ length: 50 }, () =>
      createApiKey(tools, { organizationId, name: 'K', scopes: ['email:send'], expiresAt: null }),
    ),
  );
  expect(new Set(keys.map(({ key }) => key)).size).toBe(50);
  for (const { key } of keys) expect(key).toMatch(/^pst_[0-9A-Za-z]{49}$/);

  const { id, key } = keys[0]!;
  const [row] = await database.rows(
    unpreparedStatement<{ whole: string; prefix: string; key_sha256: Buffer }>(
      'select k::text as whole, prefix, key_sha256 from api_keys k where id = $1',
    ),
    [id],
  );
  expect(row?.key_sha256).toEqual(sha256(key));
  expect(row?.prefix).toBe(key.slice(0, 12));
  expect(row?.whole).not.toContain(key.slice(0, 13));
  expect(row?.whole).not.toContain(key.slice(12));
});

test('scopes that do not exist are refused by name, and no key is made', async () => {
  const organizationId = await anOrganization();
  const attempt = createApiKey(tools, {
    organizationId,
    name: 'K',
    scopes: ['email:send', 'email:sent', 'toString', '__proto__', 'full_acess'],
    expiresAt: null,
  });
  await expect(attempt).rejects.toThrow('unknown scopes: email:sent, toString, __proto__, full_acess');
  expect(await listApiKeys(database, organizationId, 10)).toEqual([]);
});

test('a bundle opens what its name says, and scopes of nobody open nothing', () => {
  expect(resolveScopes(['full_access'])).toEqual(new Set(scopes));
  const sending = [...resolveScopes(['sending_access'])];
  expect(sending.every((scope) => /:(send|read)$/.test(scope))).toBe(true);
  expect(sending).toEqual(scopes.filter((scope) => /:(send|read)$/.test(scope)));
  expect([...resolveScopes(['read_only'])]).toEqual(scopes.filter((scope) => scope.endsWith(':read')));
  expect([...resolveScopes(['read_only', 'email:send', 'email:send'])]).toEqual([
    ...scopeBundles.read_only,
    'email:send',
  ]);
  expect([...resolveScopes(['constructor', 'email:sent', ''])]).toEqual([]);
});

test('keys are listed newest first with what a person needs to tell them apart, for one organization alone', async () => {
  const [organizationId, other] = [await anOrganization(), await anOrganization()];
  const expiresAt = new Date(clock.nowMs() + 1_000);
  const first = await createApiKey(tools, { organizationId, name: 'A', scopes: ['read_only'], expiresAt });
  const second = await createApiKey(tools, {
    organizationId,
    name: 'B',
    scopes: ['full_access'],
    expiresAt: null,
  });
  await createApiKey(tools, { organizationId: other, name: 'C', scopes: ['full_access'], expiresAt: null });
  const listed = await listApiKeys(database, organizationId, 10);
  expect(listed.map(({ id }) => id)).toEqual([second.id, first.id]);
  expect(listed[1]).toEqual({
    id: first.id,
    organizationId,
    name: 'A',
    prefix: first.key.slice(0, 12),
    scopes: ['read_only'],
    expiresAt,
    revokedAt: null,
    allowedNetworks: null,
    lastUsedAt: null,
    lastUsedAddress: null,
    createdAt: new Date(clock.nowMs()),
  });
});

test('a key that is revoked twice keeps the time of the first, and an unknown one is told', async () => {
  const organizationId = await anOrganization();
  const { id } = await createApiKey(tools, {
    organizationId,
    name: 'K',
    scopes: ['read_only'],
    expiresAt: null,
  });
  expect(await revokeApiKey(tools, id)).toBe(true);
  const revokedAt = new Date(clock.nowMs());
  clock.advance(60_000);
  expect(await revokeApiKey(tools, id)).toBe(true);
  expect((await listApiKeys(database, organizationId, 1))[0]?.revokedAt).toEqual(revokedAt);
  expect(await revokeApiKey(tools, tools.newId())).toBe(false);
});

/** Holds the demands in a transaction of their own. */
function hold(
  demands: readonly QuotaDemand[],
  at = new Date(clock.nowMs()),
  channel: 'email' | 'sms' = 'email',
): Promise<boolean[]> {
  return database.transaction(async (transaction) => {
    const { fits, count } = await holdQuota(transaction, { channel, at, demands });
    await count();
    return fits;
  });
}

async function usageOf(organizationId: string): Promise<{ month: string; shard: number; used: number }[]> {
  return database.rows(
    unpreparedStatement<{ month: string; shard: number; used: number }>(
      `select month, shard, used from quota_usage
       where organization_id = $1 and channel = 'email' order by month, shard`,
    ),
    [organizationId],
  );
}

test('a demand that does not fit takes nothing, and a smaller one behind it still fits', async () => {
  const organizationId = await anOrganization();
  const demands = [6, 5, 4, 1].map((amount) => ({ organizationId, amount, limit: 10 }));
  expect(await hold(demands)).toEqual([true, false, true, false]);
  expect(await usageOf(organizationId)).toEqual([{ month: '2026-11-01', shard: 0, used: 10 }]);
  expect(await hold([{ organizationId, amount: 1, limit: 10 }])).toEqual([false]);
});

test('each demand is told what was used before it', async () => {
  const organizationId = await anOrganization();
  const other = await anOrganization();
  await hold([{ organizationId, amount: 3, limit: 10 }]);
  const demands = [
    { organizationId, amount: 6, limit: 10 },
    { organizationId, amount: 2, limit: 10 },
    { organizationId: other, amount: 2, limit: null },
    { organizationId, amount: 1, limit: 10 },
  ];
  const verdict = await database.transaction((transaction) =>
    holdQuota(transaction, { channel: 'email', at: new Date(clock.nowMs()), demands }),
  );
  expect(verdict).toMatchObject({ fits: [true, false, true, true], used: [3, 9, 0, 9] });
});

test.each([
  ['2026-11-22T13:00:00Z', '2026-12-01'],
  ['2026-12-31T23:59:59.999Z', '2027-01-01'],
  ['2028-02-29T00:00:00Z', '2028-03-01'],
])('the quota of %s begins anew at %s', (at, renewal) => {
  expect(quotaRenewsOn(new Date(at))).toBe(renewal);
});

test('however many transactions ask at once, a quota is used up exactly', async () => {
  const [organizationId, other] = [await anOrganization(), await anOrganization()];
  // Both organizations in either order: whoever locked them as they came would deadlock.
  const fits = await Promise.all(
    Array.from({ length: 40 }, (_, index) => {
      const demands = [organizationId, other].map((id) => ({ organizationId: id, amount: 3, limit: 50 }));
      return hold(index % 2 === 0 ? demands : demands.toReversed());
    }),
  );
  expect(fits.flat().filter(Boolean)).toHaveLength(32);
  for (const id of [organizationId, other]) {
    expect(await usageOf(id)).toEqual([{ month: '2026-11-01', shard: 0, used: 48 }]);
  }
});

test('what was held in a transaction that fails is not used', async () => {
  const organizationId = await anOrganization();
  const failed = database.transaction(async (transaction) => {
    const demands = [{ organizationId, amount: 10, limit: 10 }];
    const { count } = await holdQuota(transaction, { channel: 'email', at: new Date(), demands });
    await count();
    throw new Error('not accepted');
  });
  await expect(failed).rejects.toThrow('not accepted');
  expect(await hold([{ organizationId, amount: 10, limit: 10 }])).toEqual([true]);
});

test('without a limit everything fits and is counted in shards, and all of them count once there is a limit', async () => {
  const organizationId = await anOrganization();
  for (const millisecond of [0, 1, 5, 3]) {
    const at = new Date(`2026-11-20T12:00:00.00${millisecond}Z`);
    expect(await hold([{ organizationId, amount: 10, limit: null }], at)).toEqual([true]);
  }
  expect(await usageOf(organizationId)).toEqual([
    { month: '2026-11-01', shard: 1, used: 10 },
    { month: '2026-11-01', shard: 2, used: 20 },
    { month: '2026-11-01', shard: 4, used: 10 },
  ]);
  const limited = [6, 5].map((amount) => ({ organizationId, amount, limit: 46 }));
  expect(await hold(limited)).toEqual([true, false]);
  expect(await hold([{ organizationId, amount: 1, limit: 46 }])).toEqual([false]);
  expect(await hold([{ organizationId, amount: 1, limit: null }])).toEqual([true]);
});

test('a month begins in UTC with a quota of its own', async () => {
  const organizationId = await anOrganization();
  const demand = { organizationId, amount: 10, limit: 10 };
  expect(await hold([demand], new Date('2026-11-30T23:59:59.999Z'))).toEqual([true]);
  expect(await hold([demand], new Date('2026-11-30T23:59:59.999Z'))).toEqual([false]);
  expect(await hold([demand], new Date('2026-12-01'))).toEqual([true]);
  expect((await usageOf(organizationId)).map(({ month }) => month)).toEqual(['2026-11-01', '2026-12-01']);
});

test('each channel has a quota of its own', async () => {
  const organizationId = await anOrganization();
  const demand = { organizationId, amount: 10, limit: 10 };
  expect(await hold([demand], undefined, 'sms')).toEqual([true]);
  expect(await hold([demand])).toEqual([true]);
  expect(await hold([demand], undefined, 'sms')).toEqual([false]);
});

test('the demands of several organizations are each held against their own quota', async () => {
  const [small, large, free] = [await anOrganization(), await anOrganization(), await anOrganization()];
  const demands = [
    { organizationId: small, amount: 2, limit: 2 },
    { organizationId: large, amount: 2, limit: 100 },
    { organizationId: free, amount: 2, limit: null },
    { organizationId: small, amount: 1, limit: 2 },
    { organizationId: large, amount: 1, limit: 100 },
  ];
  expect(await hold(demands, new Date('2026-11-20T12:00:00.002Z'))).toEqual([true, true, true, false, true]);
  expect((await usageOf(free))[0]).toMatchObject({ shard: 3, used: 2 });
  expect((await usageOf(large))[0]).toMatchObject({ shard: 0, used: 3 });
});
