import { type Channel, channels } from '../channels/channel.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import type { Suppression, SuppressionReason, SuppressionScope } from './schema.ts';

const upsertSuppressions = statement(
  'audience_upsert_suppressions',
  `insert into suppressions as s
     (organization_id, channel, address_hash, address, reason, scope, opted_out_at, created_at)
   select distinct on (organization_id, address_hash, scope)
     organization_id, $1, decode(address_hash, 'hex'), address, reason, scope,
     case when reason = 'unsubscribe' then $7::timestamptz end, $7
   from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
     as suppression (organization_id, address_hash, address, reason, scope)
   order by organization_id, address_hash, scope
   on conflict (organization_id, channel, address_hash, scope) do update
   set
     reason = case when excluded.reason = 'unsubscribe' then s.reason else excluded.reason end,
     created_at = case when excluded.reason = 'unsubscribe' then s.created_at else excluded.created_at end,
     opted_out_at = greatest(s.opted_out_at, excluded.opted_out_at)
   where excluded.opted_out_at > coalesce(s.opted_out_at, '-infinity')
     or (s.reason = 'unsubscribe' and excluded.reason <> 'unsubscribe')
     or (s.reason = 'unreachable' and excluded.reason not in ('unsubscribe', 'unreachable'))`,
);

export type SuppressionRow = {
  organizationId: string;
  addressHash: Buffer;
  address: string | null;
  reason: SuppressionReason;
  scope: SuppressionScope;
};

/**
 * What is suppressed already keeps its first reason; only that its owner wants nothing is kept beside any other, since
 * they may take it back, and the other stays. Of what the owner has said the last time counts, so that a word in between
 * that is heard of late takes nothing back. That it cannot be reached gives way to every other reason, since it ends by
 * itself. Sorted, so that two transactions cannot deadlock.
 */
export async function insertSuppressions(
  connection: Connection,
  channel: string,
  suppressions: readonly SuppressionRow[],
  createdAt: Date,
): Promise<void> {
  await connection.rows(upsertSuppressions, [
    channel,
    suppressions.map(({ organizationId }) => organizationId),
    suppressions.map(({ addressHash }) => addressHash.toString('hex')),
    suppressions.map(({ address }) => address),
    suppressions.map(({ reason }) => reason),
    suppressions.map(({ scope }) => scope),
    createdAt,
  ]);
}

/**
 * What an address is suppressed for: by its owner from campaigns alone (`unsubscribed`) or from everything (`opted_out`);
 * since the medium does not reach it; or for any other reason, whatever its owner says.
 */
export type SuppressionKind = (typeof kindsByStrength)[number];

const kindsByStrength = ['unsubscribed', 'unreachable', 'opted_out', 'suppressed'] as const;

const selectSuppressed = statement<{ position: number; kind: SuppressionKind }>(
  'audience_select_suppressed',
  `select wanted.position,
     case
       when s.scope = 'marketing' then 'unsubscribed'
       when s.reason = 'unsubscribe' or (s.reason = 'unreachable' and s.opted_out_at is not null) then 'opted_out'
       when s.reason = 'unreachable' then 'unreachable'
       else 'suppressed'
     end as kind
   from unnest($2::uuid[], $3::text[]) with ordinality as wanted (organization_id, address_hash, position)
   join suppressions s
     on s.organization_id = wanted.organization_id
     and s.channel = $1
     and s.address_hash = decode(wanted.address_hash, 'hex')`,
);

type HashedAddress = { organizationId: string; addressHash: Buffer };

/** The indexes of those that are suppressed, each with the strongest of its kinds. */
export async function findSuppressed(
  connection: Connection,
  channel: string,
  wanted: readonly HashedAddress[],
): Promise<Map<number, SuppressionKind>> {
  const rows = await connection.rows(selectSuppressed, [
    channel,
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ addressHash }) => addressHash.toString('hex')),
  ]);
  const found = new Map<number, SuppressionKind>();
  for (const { position, kind } of rows) {
    const other = found.get(position - 1);
    if (other === undefined || kindsByStrength.indexOf(kind) > kindsByStrength.indexOf(other))
      found.set(position - 1, kind);
  }
  return found;
}

/** SQL: the suppression `s` is a word of the owner of its address. */
const isOptOut = toPredicate('s.opted_out_at is not null');

const selectOptOuts = statement<{ position: number }>(
  'audience_select_opt_outs',
  `select distinct wanted.position::integer as position
   from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality
     as wanted (organization_id, channel, address_hash, position)
   cross join lateral (
     select
     from suppressions s
     where s.organization_id = wanted.organization_id
       and s.channel = wanted.channel
       and s.address_hash = decode(wanted.address_hash, 'hex')
       and ${isOptOut}
     offset 0
   ) found`,
);

/** The indexes of those whose owners have opted out, whatever its scope. Each is looked up by the primary key. */
export async function findOptOuts(
  connection: Connection,
  wanted: readonly SuppressionKey[],
): Promise<Set<number>> {
  const rows = await connection.rows(selectOptOuts, keyColumns(wanted));
  return new Set(rows.map(({ position }) => position - 1));
}

function keyColumns(keys: readonly SuppressionKey[]): unknown[] {
  return [
    keys.map(({ organizationId }) => organizationId),
    keys.map(({ channel }) => channel),
    keys.map(({ addressHash }) => addressHash.toString('hex')),
  ];
}

/** Whether an organization knows of any opt-out, by suppressions_opt_outs. */
export async function hasOptOuts(connection: Connection, organizationId: string): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from suppressions s
       where s.organization_id = $1 and ${isOptOut}
       limit 1`,
    ),
    [organizationId],
  );
  return rows.length > 0;
}

const deleteAllUnreachable = statement(
  'audience_delete_unreachable',
  `with lifted as (
     select s.organization_id, s.address_hash
     from unnest($2::uuid[], $3::text[]) as wanted (organization_id, address_hash)
     join suppressions s
       on s.organization_id = wanted.organization_id
       and s.channel = $1
       and s.address_hash = decode(wanted.address_hash, 'hex')
     where s.reason = 'unreachable'
     order by s.organization_id, s.address_hash
     for update of s
   ), kept as (
     update suppressions s
     set reason = 'unsubscribe', created_at = s.opted_out_at
     from lifted
     where s.organization_id = lifted.organization_id and s.channel = $1
       and s.address_hash = lifted.address_hash and s.scope = 'channel' and s.opted_out_at is not null
   )
   delete from suppressions s
   using lifted
   where s.organization_id = lifted.organization_id and s.channel = $1
     and s.address_hash = lifted.address_hash and s.scope = 'channel' and s.opted_out_at is null`,
);

/** All but what their owners have said beside it. Locks nothing where nothing is found, in the order of the keys else. */
export async function deleteUnreachable(
  connection: Connection,
  channel: string,
  wanted: readonly HashedAddress[],
): Promise<void> {
  await connection.rows(deleteAllUnreachable, [
    channel,
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ addressHash }) => addressHash.toString('hex')),
  ]);
}

export type SuppressionKey = { organizationId: string; channel: Channel; addressHash: Buffer };

/** All but what its owner has said. False if there was nothing. */
export async function deleteSuppression(connection: Connection, key: SuppressionKey): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `with kept as (
         update suppressions
         set reason = 'unsubscribe', created_at = opted_out_at
         where organization_id = $1 and channel = $2 and address_hash = $3 and scope = 'channel'
           and reason <> 'unsubscribe' and opted_out_at is not null
         returning organization_id
       ), gone as (
         delete from suppressions
         where organization_id = $1 and channel = $2 and address_hash = $3 and scope = 'channel'
           and opted_out_at is null
         returning organization_id
       )
       select organization_id from kept
       union all
       select organization_id from gone`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return rows.length === 1;
}

/**
 * What its owner has said until then, of one scope or, if that is null, of any; and nothing else. Returns whether there
 * was anything.
 */
export async function deleteOptOut(
  connection: Connection,
  key: SuppressionKey,
  { scope, saidUntil }: { scope: SuppressionScope | null; saidUntil: Date | null },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `with kept as (
         update suppressions
         set opted_out_at = null
         where organization_id = $1 and channel = $2 and address_hash = $3
           and ($4::text is null or scope = $4)
           and reason <> 'unsubscribe'
           and opted_out_at is not null and ($5::timestamptz is null or opted_out_at <= $5)
         returning organization_id
       ), gone as (
         delete from suppressions
         where organization_id = $1 and channel = $2 and address_hash = $3
           and ($4::text is null or scope = $4)
           and reason = 'unsubscribe' and ($5::timestamptz is null or opted_out_at <= $5)
         returning organization_id
       )
       select organization_id from kept
       union all
       select organization_id from gone`,
    ),
    [key.organizationId, key.channel, key.addressHash, scope, saidUntil],
  );
  return rows.length > 0;
}

/** `apiKeyId` is null where no request said so. */
export type ConsentGrant = { apiKeyId: string | null; grantedAt: Date };

/** Only the last one is kept; they may be heard of in any order. */
export async function upsertGrants(
  connection: Connection,
  keys: readonly SuppressionKey[],
  { apiKeyId, grantedAt }: ConsentGrant,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into consent_grants (organization_id, channel, address_hash, api_key_id, granted_at)
       select organization_id, channel, decode(address_hash, 'hex'), $4, $5
       from unnest($1::uuid[], $2::text[], $3::text[]) as granted (organization_id, channel, address_hash)
       order by organization_id, channel, address_hash
       on conflict (organization_id, channel, address_hash) do update
       set api_key_id = excluded.api_key_id, granted_at = excluded.granted_at
       where excluded.granted_at >= consent_grants.granted_at`,
    ),
    [...keyColumns(keys), apiKeyId, grantedAt],
  );
}

export async function findGrant(connection: Connection, key: SuppressionKey): Promise<ConsentGrant | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ api_key_id: string | null; granted_at: Date }>(
      `select api_key_id, granted_at
       from consent_grants
       where organization_id = $1 and channel = $2 and address_hash = $3`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return row === undefined ? null : { apiKeyId: row.api_key_id, grantedAt: row.granted_at };
}

/** Of what is suppressed on the whole channel, and else of what its owner wants no campaigns by. */
export async function findSuppression(
  connection: Connection,
  key: SuppressionKey,
): Promise<Suppression | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `select address, reason, scope, created_at, opted_out_at
       from suppressions
       where organization_id = $1 and channel = $2 and address_hash = $3
       order by scope
       limit 1`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return row === undefined ? null : toSuppression(row);
}

type SuppressionColumns = {
  address: string | null;
  reason: SuppressionReason;
  scope: SuppressionScope;
  created_at: Date;
  opted_out_at: Date | null;
};

function toSuppression(row: SuppressionColumns): Suppression {
  const { address, reason, scope, created_at: createdAt, opted_out_at: optedOutAt } = row;
  return { address, reason, scope, createdAt, optedOutAt };
}

export type ListedSuppression = Suppression & { channel: Channel; addressHash: Buffer; position: string };

/**
 * Newest first, those after `after`; read off suppressions_newest. An address that has two reasons is listed once, by
 * when the first of them came.
 */
export async function listSuppressions(
  connection: Connection,
  wanted: { organizationId: string; channel: Channel; after: ListedSuppression | null; limit: number },
): Promise<ListedSuppression[]> {
  const { organizationId, channel, after, limit } = wanted;
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns & { address_hash: Buffer; position: string }>(
      // The position keeps the microseconds that a Date has no room for.
      `select address_hash, address, reason, scope, created_at, created_at::text as position, opted_out_at
       from suppressions
       where organization_id = $1 and channel = $2
         and ($3::timestamptz is null
           or created_at <= $3 and (created_at < $3 or (address_hash, scope) > (decode($4, 'hex'), $5)))
       order by created_at desc, address_hash, scope
       limit $6`,
    ),
    [
      organizationId,
      channel,
      after?.position ?? null,
      after?.addressHash.toString('hex') ?? null,
      after?.scope ?? null,
      limit,
    ],
  );
  return rows.map((row) => ({
    channel,
    ...toSuppression(row),
    addressHash: row.address_hash,
    position: row.position,
  }));
}

/** On whatever channel. */
export async function clearAddresses(
  connection: Connection,
  suppressions: readonly { organizationId: string; addressHash: Buffer }[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update suppressions s
       set address = null
       from unnest($1::uuid[], $2::text[]) as erased (organization_id, address_hash)
       where s.organization_id = erased.organization_id
         and s.channel = any ($3)
         and s.address_hash = decode(erased.address_hash, 'hex')`,
    ),
    [
      suppressions.map(({ organizationId }) => organizationId),
      suppressions.map(({ addressHash }) => addressHash.toString('hex')),
      channels,
    ],
  );
}
