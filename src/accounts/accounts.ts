import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Bound, Connection, Database } from '../platform/postgres/database.ts';
import { sha256 } from '../platform/secrets.ts';
import { generateApiKey } from './api-key.ts';
import { type ApiKey, isScopeOrBundle, type Organization, type Plan, type PlanChange } from './schema.ts';
import { type Channel, channels } from '../channels/channel.ts';
import * as store from './store.ts';

export { deleteOrganization, goneMs } from './deletion.ts';
export { countRowsUpTo, deleteGoneOrganizations, listDeletions } from './deletion-store.ts';
export { measureStorage, measureStorageWhenDue } from './storage.ts';
export { createKeyring, type Keyring, type Grant } from './keyring.ts';
export { resolveScopes, scopeBundles, scopes } from './schema.ts';
export type {
  ApiKey,
  DeletionState,
  GuardSuspension,
  Organization,
  Plan,
  PlanChange,
  Scope,
  StorageUsage,
} from './schema.ts';
export {
  countDemand,
  findCrossedQuotas,
  findEventsKeptMs,
  findKeptDays,
  findLongestEventsKeptMs,
  findLongestKeptDays,
  findOrganizations,
  hasOrganization,
  hasOrganizations,
  listApiKeys,
  listEventsKept,
  listKeptDays,
  listOrganizationNames,
  listOrganizations,
  loadLimits,
  loadSendingPlans,
  planAllows,
  suspendForReputation,
  takeCrossedQuotas,
  warnOfReputation,
} from './store.ts';
export type { KeptDays, QuotaCrossing, SendingPlan } from './store.ts';

/** What account commands need. */
export type AccountTools = { database: Database; clock: Clock; newId: NewId };

export async function createOrganization(
  tools: AccountTools,
  name: string,
  plan: Partial<Pick<Plan, 'storageLimitBytes'>> = {},
): Promise<Organization> {
  const organization = { id: tools.newId(), name, deletion: null, createdAt: now(tools.clock) };
  await store.insertOrganization(tools.database, organization, plan.storageLimitBytes ?? null);
  return organization;
}

/** Returns its former name; null if there is no such organization. Names need not be unique. */
export async function renameOrganization(
  { database, clock }: Pick<AccountTools, 'database' | 'clock'>,
  organizationId: string,
  name: string,
): Promise<string | null> {
  return store.renameOrganization(database, organizationId, name, now(clock));
}

/** Within a transaction. Null if there is no such organization. */
export async function updateOrganization(
  { database: transaction, clock }: { database: Connection; clock: Clock },
  organizationId: string,
  change: PlanChange,
): Promise<store.SuspensionChange | null> {
  const at = now(clock);
  const { quotas = {} } = change;
  const ofQuotas = channels.filter((channel) => quotas[channel] !== undefined);
  if (ofQuotas.length === 0 || !(await store.hasOrganization(transaction, organizationId)))
    return store.updateOrganization(transaction, organizationId, change, at);
  const looked = await store.lookAtQuotas(transaction, {
    organizationId,
    channels: ofQuotas,
    month: monthOf(at),
  });
  const changed = await store.updateOrganization(transaction, organizationId, change, at);
  await looked.changed();
  return changed;
}

export type NewApiKey = Pick<ApiKey, 'organizationId' | 'name' | 'scopes' | 'expiresAt'> & {
  /** As `parseNetwork` writes them, 50 at most; left out, it may be used from any address. */
  allowedNetworks?: string[] | null;
};

/**
 * Makes an API key and returns it: the only time that it is seen, since only its digest is stored.
 * Throws a RangeError that names the scopes which do not exist.
 */
export async function createApiKey(
  tools: AccountTools,
  wanted: NewApiKey,
): Promise<{ id: string; key: string }> {
  const unknownScopes = wanted.scopes.filter((scope) => !isScopeOrBundle(scope));
  if (unknownScopes.length > 0) throw new RangeError(`unknown scopes: ${unknownScopes.join(', ')}`);

  const id = tools.newId();
  const key = generateApiKey();
  await store.insertApiKey(tools.database, {
    ...wanted,
    allowedNetworks: wanted.allowedNetworks ?? null,
    id,
    prefix: key.slice(0, prefixLength),
    sha256: sha256(key),
    createdAt: now(tools.clock),
  });
  return { id, key };
}

/** Returns whether the key exists. Every node refuses it within five seconds. */
export async function revokeApiKey(tools: AccountTools, keyId: string): Promise<boolean> {
  return store.revokeApiKey(tools.database, keyId, now(tools.clock));
}

/** `pst_` and eight characters: enough to tell keys apart, and 208 of the 256 bits stay unknown. */
const prefixLength = 12;

/** One organization's wish to send: how much of the month's quota it takes. */
export type QuotaDemand = { organizationId: string; amount: number; limit: number | null };

export type QuotaDemands = { channel: Channel; at: Date; demands: readonly QuotaDemand[] };

/** For each demand, in their order, whether it fits. */
export type QuotaVerdict = {
  fits: boolean[];
  /** What was used of the quota before each demand; 0 for those without a limit. */
  used: number[];
};

/** `count` adds the demands that fit to what was used. */
export type HeldQuota = QuotaVerdict & { count: () => Promise<void> };

/** What `holdQuota` would return now, without locking: others may take the quota before it is held. */
export async function foreseeQuota(
  connection: Connection,
  { channel, at, demands }: QuotaDemands,
): Promise<QuotaVerdict> {
  const organizationIds = limitedAmong(demands);
  const used =
    organizationIds.length > 0
      ? await store.loadUsage(connection, { channel, month: monthOf(at), organizationIds })
      : new Map<string, number>();
  return judgeDemands(demands, used);
}

/**
 * Holds demands against the month's quotas, in their order. A demand that does not fit takes nothing, so that a
 * smaller one after it may still fit. It is part of the transaction that accepts the messages: until that ends, no
 * other takes from the quota of an organization that has a limit. `count` sends its statements at once, so that
 * they can share a round trip with the caller's own.
 */
export async function holdQuota(
  transaction: Connection,
  { channel, at, demands }: QuotaDemands,
): Promise<HeldQuota> {
  const month = monthOf(at);
  const organizationIds = limitedAmong(demands);
  const used =
    organizationIds.length > 0
      ? await store.lockUsage(transaction, { channel, month, organizationIds })
      : new Map<string, number>();
  const verdict = judgeDemands(demands, used);

  const countIn = async (additions: ReadonlyMap<string, number>, shard: number) => {
    if (additions.size > 0) await store.insertUsage(transaction, { channel, month, shard, additions });
  };
  return {
    ...verdict,
    count: async () => {
      const fitting = demands.filter((_demand, index) => verdict.fits[index] === true);
      await Promise.all([
        countIn(sumAmounts(fitting.filter(({ limit }) => limit === null)), chooseFreeShard(at)),
        countIn(sumAmounts(fitting.filter(({ limit }) => limit !== null)), heldShard),
      ]);
    },
  };
}

/** What an organization would take of its quota; `isHeld` if `holdUsage` comes before the statement that asks. */
export type HeldDemand = { organizationId: string; units: number; isHeld: boolean };

/** Statements that hold what these organizations used, for `planAllows` in the same transaction. */
export function holdUsage({
  channel,
  at,
  organizationIds,
}: {
  channel: Channel;
  at: Date;
  organizationIds: readonly string[];
}): Bound<unknown>[] {
  return organizationIds.length === 0
    ? []
    : store.holdUsage({ channel, month: monthOf(at), organizationIds });
}

/** The parameters of `planAllows` and `countDemand`: the month, and the shard of organizations without a limit. */
export function usagePlace(at: Date): [month: string, shard: number] {
  return [monthOf(at), chooseFreeShard(at)];
}

function limitedAmong(demands: readonly QuotaDemand[]): string[] {
  const limited = demands.filter(({ limit }) => limit !== null);
  return [...new Set(limited.map(({ organizationId }) => organizationId))];
}

function judgeDemands(
  demands: readonly QuotaDemand[],
  usedAtFirst: ReadonlyMap<string, number>,
): QuotaVerdict {
  const usedNow = new Map(usedAtFirst);
  const judged = demands.map(({ organizationId, amount, limit }) => {
    if (limit === null) return { fits: true, used: 0 };
    const used = usedNow.get(organizationId) ?? 0;
    // What takes nothing is no question of the quota, though more may be used by now than a lower limit allows.
    const fits = amount === 0 || used + amount <= limit;
    if (fits) usedNow.set(organizationId, used + amount);
    return { fits, used };
  });
  return { fits: judged.map(({ fits }) => fits), used: judged.map(({ used }) => used) };
}

function sumAmounts(demands: readonly QuotaDemand[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const { organizationId, amount } of demands)
    sums.set(organizationId, (sums.get(organizationId) ?? 0) + amount);
  return sums;
}

/** What is left of one organization's quota; null where it has no limit. */
export type QuotaRest = { rest: number | null; count: (amount: number) => Promise<void> };

/**
 * Locks a month's quota for a caller that takes as much of it as there is. Like `holdQuota` it is part of a
 * transaction, and no other takes from a limited quota until that ends.
 */
export async function openQuota(
  transaction: Connection,
  opening: { organizationId: string; channel: Channel; at: Date; limit: number | null },
): Promise<QuotaRest> {
  const { organizationId, channel, limit } = opening;
  const month = monthOf(opening.at);
  const shard = limit === null ? chooseFreeShard(opening.at) : heldShard;
  const used =
    limit === null
      ? undefined
      : await store.lockUsage(transaction, { channel, month, organizationIds: [organizationId] });
  return {
    rest: limit === null ? null : Math.max(limit - (used?.get(organizationId) ?? 0), 0),
    count: async (amount) => {
      if (amount === 0) return;
      const additions = new Map([[organizationId, amount]]);
      await store.insertUsage(transaction, { channel, month, shard, additions });
    },
  };
}

function monthOf(at: Date): string {
  return `${at.toISOString().slice(0, 7)}-01`;
}

/** The day on which the quota after the month of `at` begins, such as `2026-12-01`. Months are those of UTC. */
export function quotaRenewsOn(at: Date): string {
  const [year, month] = [at.getUTCFullYear(), at.getUTCMonth() + 1];
  return month === 12 ? `${year + 1}-01-01` : `${year}-${String(month + 1).padStart(2, '0')}-01`;
}

/** The shard in which organizations with a limit are counted, under a lock; the others use those above it. */
const heldShard = 0;
const freeShards = 4;

/** Spread, so that transactions at the same time do not wait for a row. */
function chooseFreeShard(at: Date): number {
  return heldShard + 1 + (at.getTime() % freeShards);
}
