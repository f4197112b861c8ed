import { isUuid } from '../platform/ids.ts';
import {
  type Bound,
  type Connection,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { isNotStopped } from '../platform/postgres/stop.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import type {
  ApiKey,
  DeletionState,
  GuardSuspension,
  Organization,
  Plan,
  PlanChange,
  StorageUsage,
} from './schema.ts';
import type { Channel } from '../channels/channel.ts';
import type { FullStorage } from '../platform/http/route.ts';

export async function insertOrganization(
  connection: Connection,
  organization: Organization,
  storageLimitBytes: number | null,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into organizations (id, name, storage_limit_bytes, created_at, updated_at)
       values ($1, $2, $4, $3, $3)`,
    ),
    [organization.id, organization.name, organization.createdAt, storageLimitBytes],
  );
}

/** What is deleted leaves its row for a while (deletion.ts). */
const isNotGone = toPredicate("deletion is distinct from 'gone'");

export async function hasOrganizations(connection: Connection): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(`select from organizations where ${isNotGone} limit 1`),
  );
  return rows.length > 0;
}

export async function hasOrganization(connection: Connection, organizationId: string): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(`select from organizations where id = $1 and ${isNotGone}`),
    [organizationId],
  );
  return rows.length === 1;
}

/** The one with that id; or else those with that name in whatever case, a few at most: no two need be called alike. */
export async function findOrganizations(
  connection: Connection,
  idOrName: string,
): Promise<Pick<Organization, 'id' | 'name' | 'deletion'>[]> {
  const asId = isUuid(idOrName) ? idOrName : null;
  return connection.rows(
    unpreparedStatement<Pick<Organization, 'id' | 'name' | 'deletion'>>(
      `select id, name, deletion
       from organizations
       where (id = $1::uuid or ($1 is null and lower(name) = lower($2))) and ${isNotGone}
       order by id desc
       limit 5`,
    ),
    [asId, idOrName.trim()],
  );
}

/** The newest, for the operator. */
export async function listOrganizationNames(
  connection: Connection,
  limit: number,
): Promise<Pick<Organization, 'id' | 'name'>[]> {
  return connection.rows(
    unpreparedStatement<Pick<Organization, 'id' | 'name'>>(
      'select id, name from organizations where deletion is null order by id desc limit $1',
    ),
    [limit],
  );
}

export async function listOrganizations(
  connection: Connection,
  page: { after: string | null; limit: number },
): Promise<(Organization & Plan & { storage: StorageUsage | null })[]> {
  const rows = await connection.rows(
    unpreparedStatement<OrganizationRow & UsageRow>(
      `select ${organizationColumns}, u.bytes as stored_bytes, u.bytes_by_kind, u.measured_at
       from organizations
       left join storage_usage u on u.organization_id = organizations.id
       where ($1::uuid is null or id < $1) and ${isNotGone}
       order by id desc
       limit $2`,
    ),
    [page.after, page.limit],
  );
  return rows.map((row) => ({
    id: row.id,
    name: row.name,
    deletion: row.deletion,
    createdAt: row.created_at,
    ...planOf(row),
    storage: storageOf(row),
  }));
}

/** All null where it was not measured yet. */
type UsageRow =
  | { stored_bytes: number; bytes_by_kind: StorageUsage['bytesByKind']; measured_at: Date }
  | { stored_bytes: null; bytes_by_kind: null; measured_at: null };

function storageOf(row: UsageRow): StorageUsage | null {
  return row.stored_bytes === null
    ? null
    : { bytes: row.stored_bytes, bytesByKind: row.bytes_by_kind, measuredAt: row.measured_at };
}

/** Returns the name that it had; null if there is no such organization. */
export async function renameOrganization(
  connection: Connection,
  organizationId: string,
  name: string,
  updatedAt: Date,
): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ former: string }>(
      `with former as (
         select id, name
         from organizations
         where id = $1
         for update
       )
       update organizations
       set name = $2, updated_at = $3
       from former
       where organizations.id = former.id
       returning former.name as former`,
    ),
    [organizationId, name, updatedAt],
  );
  return row?.former ?? null;
}

/** Channels that an organization may not send on since a change, and those that it may send on again. */
export type SuspensionChange = { suspended: Channel[]; resumed: Channel[] };

/**
 * Holds what was used this month on these channels, and has it looked at by the quotas that the transaction gives it. In the
 * opposite order of the shards: whoever uses more beyond a quota holds another shard before the first.
 */
export async function lookAtQuotas(
  connection: Connection,
  {
    organizationId,
    channels,
    month,
  }: { organizationId: string; channels: readonly Channel[]; month: string },
): Promise<{ changed: () => Promise<void> }> {
  const values = [organizationId, channels, month];
  // A row that is not there cannot be held.
  await connection.rows(
    unpreparedStatement(
      `insert into quota_usage (organization_id, channel, month, shard, used)
       select $1, channel, $3, 0, 0
       from unnest($2::text[]) as changed (channel)
       order by channel
       on conflict do nothing`,
    ),
    values,
  );
  await connection.rows(
    unpreparedStatement(
      `select
       from quota_usage
       where organization_id = $1 and channel = any ($2) and month = $3
       order by channel, shard desc
       for update`,
    ),
    values,
  );
  return {
    changed: async () => {
      await connection.rows(
        unpreparedStatement(
          `update quota_usage set look_at = null
           where organization_id = $1 and channel = any ($2) and month = $3`,
        ),
        values,
      );
    },
  };
}

export type QuotaCrossing = {
  channel: Channel;
  /** `2026-11`, and the day on which the next one begins. */
  month: string;
  renewsOn: string;
  quota: number;
  used: number;
  crossedPercent: number;
  toldPercent: number;
};

const findUntold = statement<{ organization_id: string }>(
  'quota_usage_find_untold',
  organizationsDue({
    table: 'quota_usage',
    among: 'crossed_percent > told_percent',
    due: '$1::timestamptz is not null',
  }),
);

/** Organizations of which a threshold of a quota is crossed and was not told, after the one given. */
export async function findCrossedQuotas(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(findUntold, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/** Takes what is crossed and was not told: it is told by this transaction, and by no other. */
export async function takeCrossedQuotas(
  transaction: Connection,
  organizationId: string,
): Promise<QuotaCrossing[]> {
  // By a statement of its own: one that waits for a row sees the quotas as they were before it waited.
  await transaction.rows(
    unpreparedStatement(
      `select
       from quota_usage
       where organization_id = $1 and crossed_percent > told_percent
       order by channel, month
       for update`,
    ),
    [organizationId],
  );
  return transaction.rows(
    unpreparedStatement<QuotaCrossing>(
      `with untold as (
         select channel, month, shard, told_percent
         from quota_usage
         where organization_id = $1 and crossed_percent > told_percent
       ), told as (
         update quota_usage u
         set told_percent = u.crossed_percent
         from untold
         where u.organization_id = $1 and u.channel = untold.channel and u.month = untold.month
           and u.shard = untold.shard and u.crossed_percent > u.told_percent
         returning u.channel, u.month, u.crossed_percent, untold.told_percent
       )
       select told.channel, to_char(told.month, 'YYYY-MM') as month,
         (told.month + interval '1 month')::date::text as "renewsOn", told.crossed_percent as "crossedPercent",
         told.told_percent as "toldPercent",
         case told.channel
           when 'email' then o.email_quota
           when 'sms' then o.sms_quota
           when 'push' then o.push_quota
           when 'chatapp' then o.chatapp_quota
         end as quota,
         (
           select sum(u.used)
           from quota_usage u
           where u.organization_id = $1 and u.channel = told.channel and u.month = told.month
         ) as used
       from told
       join organizations o on o.id = $1
       order by told.channel, told.month`,
    ),
    [organizationId],
  );
}

/** Applies the change. Null if there is no such organization. */
export async function updateOrganization(
  connection: Connection,
  organizationId: string,
  change: PlanChange,
  updatedAt: Date,
): Promise<SuspensionChange | null> {
  const columns: [string, unknown][] = [];
  if (change.requestsPerWindow !== undefined) columns.push(['requests_per_window', change.requestsPerWindow]);
  if (change.eventsPerWindow !== undefined) columns.push(['events_per_window', change.eventsPerWindow]);
  if (change.eventsKeptDays !== undefined) columns.push(['events_kept_days', change.eventsKeptDays]);
  if (change.messagesKeptDays !== undefined) columns.push(['messages_kept_days', change.messagesKeptDays]);
  if (change.storageLimitBytes !== undefined) columns.push(['storage_limit_bytes', change.storageLimitBytes]);
  if (change.contentKeptDays !== undefined) columns.push(['content_kept_days', change.contentKeptDays]);
  if (change.hasReputationGuard !== undefined)
    columns.push(['has_reputation_guard', change.hasReputationGuard]);
  if (change.hasRequestLog !== undefined) columns.push(['has_request_log', change.hasRequestLog]);
  for (const [channel, quota] of Object.entries(change.quotas ?? {}))
    columns.push([`${channel}_quota`, quota]);
  for (const [noun, limit] of Object.entries(change.limits ?? {}))
    columns.push([`${noun.slice(0, -1)}_limit`, limit]);

  // A suspension or resumption by the operator replaces one by the reputation guard.
  if (change.suspend?.includes('email') || change.resume?.includes('email'))
    for (const column of guardColumns) columns.push([column, null]);

  const assignments = columns.map(([column], index) => `${column} = $${index + 5}, `).join('');
  const [row] = await connection.rows(
    unpreparedStatement<{ before: Channel[]; after: Channel[] }>(
      `with former as (
         select id, suspended_channels
         from organizations
         where id = $1
         for update
       )
       update organizations
       set ${assignments}
         suspended_channels = array(
           select unnest(former.suspended_channels || $3::text[]) except select unnest($4::text[])
         ),
         updated_at = $2
       from former
       where organizations.id = former.id
       returning former.suspended_channels as before, organizations.suspended_channels as after`,
    ),
    [
      organizationId,
      updatedAt,
      change.suspend ?? [],
      change.resume ?? [],
      ...columns.map(([, value]) => value),
    ],
  );
  if (row === undefined) return null;
  const { before, after } = row;
  return {
    suspended: after.filter((channel) => !before.includes(channel)),
    resumed: before.filter((channel) => !after.includes(channel)),
  };
}

const guardColumns = ['guard_suspended_at', 'guard_sent', 'guard_bounced', 'guard_complained'] as const;

const dayMs = 86_400_000;

/** For how long events of an organization are kept, in milliseconds; null for ever. */
export async function findEventsKeptMs(
  connection: Connection,
  organizationId: string,
): Promise<number | null> {
  const [row] = await connection.rows(selectEventsKept, [organizationId]);
  return row === undefined || row.events_kept_days === null ? null : row.events_kept_days * dayMs;
}

const selectEventsKept = statement<{ events_kept_days: number | null }>(
  'accounts_select_events_kept',
  'select events_kept_days from organizations where id = $1',
);

/** Those organizations whose events are not kept for ever, by their ids. */
export async function listEventsKept(
  connection: Connection,
  page: { after: string | null; limit: number },
): Promise<{ organizationId: string; keptMs: number }[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ id: string; events_kept_days: number }>(
      `select id, events_kept_days
       from organizations
       where events_kept_days is not null and ($1::uuid is null or id > $1)
       order by id
       limit $2`,
    ),
    [page.after, page.limit],
  );
  return rows.map((row) => ({ organizationId: row.id, keptMs: row.events_kept_days * dayMs }));
}

/** After what time the events of no organization are kept, in milliseconds; null if some keep theirs for ever. */
export async function findLongestEventsKeptMs(connection: Connection): Promise<number | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ days: number | null }>(
      `select case when bool_and(events_kept_days is not null) then max(events_kept_days) end as days
       from organizations`,
    ),
  );
  return row === undefined || row.days === null ? null : row.days * dayMs;
}

/** For how many days an organization's plan keeps its messages, and what they say; null for no limit of its own. */
export type KeptDays = { messages: number | null; content: number | null };

const selectKeptDays = statement<KeptDays>(
  'accounts_select_kept_days',
  'select messages_kept_days as messages, content_kept_days as content from organizations where id = $1',
);

export async function findKeptDays(connection: Connection, organizationId: string): Promise<KeptDays> {
  const [row] = await connection.rows(selectKeptDays, [organizationId]);
  return row ?? { messages: null, content: null };
}

/** Those organizations whose plan limits either, by their ids. */
export async function listKeptDays(
  connection: Connection,
  page: { after: string | null; limit: number },
): Promise<(KeptDays & { organizationId: string })[]> {
  return connection.rows(
    unpreparedStatement<KeptDays & { organizationId: string }>(
      `select id as "organizationId", messages_kept_days as messages, content_kept_days as content
       from organizations
       where (messages_kept_days is not null or content_kept_days is not null) and ($1::uuid is null or id > $1)
       order by id
       limit $2`,
    ),
    [page.after, page.limit],
  );
}

/** The longest of all plans; null if there is one without a limit. What a plan says of messages limits their content. */
export async function findLongestKeptDays(connection: Connection): Promise<KeptDays> {
  const [row] = await connection.rows(
    unpreparedStatement<KeptDays>(
      `select
         case when bool_and(messages_kept_days is not null) then max(messages_kept_days) end as messages,
         case
           when bool_and(messages_kept_days is not null or content_kept_days is not null)
             then max(least(messages_kept_days, content_kept_days))
         end as content
       from organizations`,
    ),
  );
  return row ?? { messages: null, content: null };
}

/** Returns whether it was suspended by this: neither before, nor forbidden by the operator. */
export async function suspendForReputation(
  connection: Connection,
  organizationId: string,
  suspension: GuardSuspension,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update organizations
       set
         suspended_channels = array_append(suspended_channels, 'email'),
         updated_at = $2,
         guard_suspended_at = $2,
         guard_sent = $3,
         guard_bounced = $4,
         guard_complained = $5
       where id = $1 and has_reputation_guard and not 'email' = any (suspended_channels)
       returning id`,
    ),
    [organizationId, suspension.at, suspension.sent, suspension.bounced, suspension.complained],
  );
  return rows.length === 1;
}

/** Returns whether a warning is due: none was given since, and it is not suspended anyway. */
export async function warnOfReputation(
  connection: Connection,
  organizationId: string,
  warning: { at: Date; since: Date },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update organizations
       set reputation_warned_at = $2
       where id = $1
         and has_reputation_guard
         and not 'email' = any (suspended_channels)
         and (reputation_warned_at is null or reputation_warned_at < $3)
       returning id`,
    ),
    [organizationId, warning.at, warning.since],
  );
  return rows.length === 1;
}

export async function insertApiKey(
  connection: Connection,
  key: Omit<ApiKey, 'revokedAt' | 'lastUsedAt' | 'lastUsedAddress'> & { sha256: Buffer },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into api_keys (
         organization_id, id, name, prefix, key_sha256, scopes, expires_at, allowed_networks, created_at
       )
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
    ),
    [
      key.organizationId,
      key.id,
      key.name,
      key.prefix,
      key.sha256,
      key.scopes,
      key.expiresAt,
      key.allowedNetworks,
      key.createdAt,
    ],
  );
}

export async function listApiKeys(
  connection: Connection,
  organizationId: string,
  limit: number,
): Promise<ApiKey[]> {
  const rows = await connection.rows(
    unpreparedStatement<ApiKeyRow>(
      `select ${apiKeyColumns}
       from api_keys
       where organization_id = $1
       order by id desc
       limit $2`,
    ),
    [organizationId, limit],
  );
  return rows.map(apiKeyOf);
}

/** Returns whether the key exists; one that is revoked already stays as it is. */
export async function revokeApiKey(connection: Connection, keyId: string, revokedAt: Date): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      'update api_keys set revoked_at = coalesce(revoked_at, $2) where id = $1 returning organization_id',
    ),
    [keyId, revokedAt],
  );
  return rows.length === 1;
}

export type KeyGrant = {
  key: ApiKey;
  requestsPerWindow: number;
  eventsPerWindow: number;
  fullStorage: FullStorage | null;
};

type GrantRow = ApiKeyRow & {
  position: number;
  requests_per_window: number;
  events_per_window: number;
  storage_limit_bytes: number | null;
  /** Null where it was not measured yet. */
  stored_bytes: number | null;
};

const selectGrants = statement<GrantRow>(
  'accounts_select_grants',
  `select
     wanted.position,
     k.organization_id, k.id, k.name, k.prefix, k.scopes, k.expires_at, k.revoked_at, k.allowed_networks,
     k.last_used_at, k.last_used_address, k.created_at,
     o.requests_per_window, o.events_per_window, o.storage_limit_bytes, u.bytes as stored_bytes
   from unnest($1::text[]) with ordinality as wanted (key_sha256, position)
   join api_keys k on k.key_sha256 = decode(wanted.key_sha256, 'hex')
   join organizations o on o.id = k.organization_id and o.deletion is null
   left join storage_usage u on u.organization_id = o.id`,
);

/**
 * For each digest what its key opens, or null. The one look-up before the organization is known: by the unique digest
 * of the key.
 */
export async function findGrants(
  connection: Connection,
  digests: readonly Buffer[],
): Promise<(KeyGrant | null)[]> {
  const grants: (KeyGrant | null)[] = digests.map(() => null);
  const rows = await connection.rows(selectGrants, [digests.map((digest) => digest.toString('hex'))]);
  for (const row of rows) {
    grants[row.position - 1] = {
      key: apiKeyOf(row),
      requestsPerWindow: row.requests_per_window,
      eventsPerWindow: row.events_per_window,
      fullStorage: fullStorageOf(row),
    };
  }
  return grants;
}

function fullStorageOf({
  storage_limit_bytes: limitBytes,
  stored_bytes: bytes,
}: GrantRow): FullStorage | null {
  return limitBytes === null || bytes === null || bytes < limitBytes ? null : { bytes, limitBytes };
}

export async function touchApiKeys(
  connection: Connection,
  used: readonly { organizationId: string; id: string; address: string | null }[],
  usedAt: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update api_keys k
       set last_used_at = $4, last_used_address = used.address
       from unnest($1::uuid[], $2::uuid[], $3::inet[]) as used (organization_id, id, address)
       where k.organization_id = used.organization_id
         and k.id = used.id`,
    ),
    [
      used.map(({ organizationId }) => organizationId),
      used.map(({ id }) => id),
      used.map(({ address }) => address),
      usedAt,
    ],
  );
}

/** What the plan allows an organization to hold; null is no limit. */
export async function loadLimits(connection: Connection, organizationId: string): Promise<Plan['limits']> {
  const [row] = await connection.rows(
    unpreparedStatement<Pick<OrganizationRow, 'domain_limit' | 'segment_limit' | 'event_limit'>>(
      'select domain_limit, segment_limit, event_limit from organizations where id = $1',
    ),
    [organizationId],
  );
  return {
    domains: row?.domain_limit ?? null,
    segments: row?.segment_limit ?? null,
    events: row?.event_limit ?? null,
  };
}

export type SendingPlan = {
  organizationId: string;
  quota: number | null;
  isSuspended: boolean;
  /** Set where it is suspended by the reputation guard, and not by the operator. */
  guardSuspension: GuardSuspension | null;
};

const selectSendingPlans = statement<GuardRow & { id: string; quota: number | null; is_suspended: boolean }>(
  'accounts_select_sending_plans',
  `select
     id,
     guard_suspended_at, guard_sent, guard_bounced, guard_complained,
     case $2
       when 'email' then email_quota
       when 'sms' then sms_quota
       when 'push' then push_quota
       when 'chatapp' then chatapp_quota
     end as quota,
     $2 = any (suspended_channels) as is_suspended
   from organizations
   where id = any ($1::uuid[])`,
);

export async function loadSendingPlans(
  connection: Connection,
  organizationIds: readonly string[],
  channel: Channel,
): Promise<SendingPlan[]> {
  const rows = await connection.rows(selectSendingPlans, [organizationIds, channel]);
  return rows.map((row) => ({
    organizationId: row.id,
    quota: row.quota,
    isSuspended: row.is_suspended,
    guardSuspension: channel === 'email' ? guardSuspensionOf(row) : null,
  }));
}

const addUsage = statement(
  'accounts_add_usage',
  `insert into quota_usage as u (organization_id, channel, month, shard, used)
   select organization_id, $1, $2, $3, used
   from unnest($4::uuid[], $5::bigint[]) as addition (organization_id, used)
   order by organization_id
   on conflict (organization_id, channel, month, shard)
   do update set used = u.used + excluded.used`,
);

/** Counts what was accepted. Sorted, so that transactions that count the same organizations cannot deadlock. */
export async function insertUsage(
  connection: Connection,
  usage: { channel: Channel; month: string; shard: number; additions: ReadonlyMap<string, number> },
): Promise<void> {
  await connection.rows(addUsage, [
    usage.channel,
    usage.month,
    usage.shard,
    [...usage.additions.keys()],
    [...usage.additions.values()],
  ]);
}

/**
 * SQL over a row `demand` of an organization, with `units` and `is_held`: whether its plan lets it send so much more on
 * a channel in a month, which is a parameter. Where there is a limit, what was used must be held by `holdUsage`: a
 * statement before this one in the transaction.
 */
export function planAllows(channel: Channel, month: string): Predicate {
  return toPredicate(
    `select not '${channel}' = any (o.suspended_channels)
       and (
         o.${channel}_quota is null
         or (
           demand.is_held
           and demand.units + (
             select coalesce(sum(u.used), 0)
             from quota_usage u
             where ${hasKeyOf('u', 'demand', [])} and u.channel = '${channel}' and u.month = ${month}::date
           ) <= o.${channel}_quota
         )
       )
     from organizations o
     where o.id = demand.organization_id
     limit 1`,
  );
}

/** SQL that adds the rows of `demand` to what was used, if the condition holds. In the order of the ids, as others do. */
export function countDemand(of: {
  channel: Channel;
  month: string;
  shard: string;
  condition: Predicate;
}): string {
  return `insert into quota_usage as u (organization_id, channel, month, shard, used)
       select organization_id, '${of.channel}', ${of.month}::date, case when is_held then 0 else ${of.shard}::smallint end, units
       from demand
       where ${of.condition}
       order by organization_id
       on conflict (organization_id, channel, month, shard)
       do update set used = u.used + excluded.used`;
}

/** Makes sure that the shards to be held exist, since a row that is not there cannot be locked. */
const insertHeldShards = statement(
  'accounts_insert_held_shards',
  `insert into quota_usage (organization_id, channel, month, shard, used)
   select organization_id, $1, $2, 0, 0
   from unnest($3::uuid[]) as held (organization_id)
   where ${isNotStopped}
   order by organization_id
   on conflict do nothing`,
);

/** Competes with every other transaction that accepts messages of the same limited organizations. */
const lockHeldShards = statement<{ organization_id: string }>(
  'accounts_lock_held_shards',
  `select organization_id
   from quota_usage
   where organization_id = any ($3::uuid[]) and channel = $1 and month = $2 and shard = 0 and ${isNotStopped}
   order by organization_id
   for update`,
);

const sumUsage = statement<{ organization_id: string; used: number }>(
  'accounts_sum_usage',
  `select organization_id, sum(used) as used
   from quota_usage
   where organization_id = any ($3::uuid[]) and channel = $1 and month = $2
   group by organization_id`,
);

export type UsageOf = { channel: Channel; month: string; organizationIds: readonly string[] };

/** What these organizations used this month, by their ids; those that used nothing are not in it. */
export async function loadUsage(
  connection: Connection,
  { channel, month, organizationIds }: UsageOf,
): Promise<Map<string, number>> {
  const rows = await connection.rows(sumUsage, [channel, month, organizationIds]);
  return new Map(rows.map((row) => [row.organization_id, row.used]));
}

/** The same, held still until the transaction ends. */
export async function lockUsage(connection: Connection, of: UsageOf): Promise<Map<string, number>> {
  const [, used] = await Promise.all([
    Promise.all(holdUsage(of).map(({ statement: given, values }) => connection.rows(given, values))),
    loadUsage(connection, of),
  ]);
  return used;
}

/** Statements after which what was used stays as it is until the transaction ends. Stopped, they wait for nobody. */
export function holdUsage(of: UsageOf): Bound<unknown>[] {
  const values = [of.channel, of.month, of.organizationIds];
  return [
    { statement: insertHeldShards, values },
    { statement: lockHeldShards, values },
  ];
}

type GuardRow = {
  guard_suspended_at: Date | null;
  guard_sent: number | null;
  guard_bounced: number | null;
  guard_complained: number | null;
};

function guardSuspensionOf(row: GuardRow): GuardSuspension | null {
  if (row.guard_suspended_at === null) return null;
  return {
    at: row.guard_suspended_at,
    sent: row.guard_sent ?? 0,
    bounced: row.guard_bounced ?? 0,
    complained: row.guard_complained ?? 0,
  };
}

type OrganizationRow = GuardRow & {
  suspended_channels: Channel[];
  id: string;
  name: string;
  deletion: DeletionState;
  requests_per_window: number;
  events_per_window: number;
  email_quota: number | null;
  sms_quota: number | null;
  push_quota: number | null;
  chatapp_quota: number | null;
  domain_limit: number | null;
  segment_limit: number | null;
  event_limit: number | null;
  storage_limit_bytes: number | null;
  events_kept_days: number | null;
  messages_kept_days: number | null;
  content_kept_days: number | null;
  has_reputation_guard: boolean;
  reputation_warned_at: Date | null;
  has_request_log: boolean;
  created_at: Date;
};

const organizationColumns = `id, name, deletion, requests_per_window, events_per_window, email_quota, sms_quota,
  push_quota, chatapp_quota, domain_limit, segment_limit, event_limit, storage_limit_bytes, events_kept_days,
  messages_kept_days, content_kept_days, suspended_channels, has_reputation_guard,
  reputation_warned_at, has_request_log, guard_suspended_at, guard_sent, guard_bounced, guard_complained, created_at`;

function planOf(row: OrganizationRow): Plan {
  return {
    requestsPerWindow: row.requests_per_window,
    eventsPerWindow: row.events_per_window,
    quotas: { email: row.email_quota, sms: row.sms_quota, push: row.push_quota, chatapp: row.chatapp_quota },
    limits: { domains: row.domain_limit, segments: row.segment_limit, events: row.event_limit },
    storageLimitBytes: row.storage_limit_bytes,
    eventsKeptDays: row.events_kept_days,
    messagesKeptDays: row.messages_kept_days,
    contentKeptDays: row.content_kept_days,
    suspendedChannels: row.suspended_channels,
    guardSuspension: guardSuspensionOf(row),
    hasReputationGuard: row.has_reputation_guard,
    reputationWarnedAt: row.reputation_warned_at,
    hasRequestLog: row.has_request_log,
  };
}

type ApiKeyRow = {
  organization_id: string;
  id: string;
  name: string;
  prefix: string;
  scopes: string[];
  expires_at: Date | null;
  revoked_at: Date | null;
  allowed_networks: string[] | null;
  last_used_at: Date | null;
  last_used_address: string | null;
  created_at: Date;
};

const apiKeyColumns =
  'organization_id, id, name, prefix, scopes, expires_at, revoked_at, allowed_networks, last_used_at, last_used_address, created_at';

function apiKeyOf(row: ApiKeyRow): ApiKey {
  return {
    id: row.id,
    organizationId: row.organization_id,
    name: row.name,
    prefix: row.prefix,
    scopes: row.scopes,
    expiresAt: row.expires_at,
    revokedAt: row.revoked_at,
    allowedNetworks: row.allowed_networks,
    lastUsedAt: row.last_used_at,
    lastUsedAddress: row.last_used_address,
    createdAt: row.created_at,
  };
}
