import { type Channel, channels } from '../channels/channel.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { deleteOldRows } from '../platform/postgres/old-rows.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { insertIntoOutbox, isEventWanted, wakeNumbering } from '../webhooks/webhooks.ts';
import type { Suppression, SuppressionReason, SuppressionScope, SuppressionSource } from './schema.ts';

/**
 * Suppressions of addresses, a record for each reason. Whoever writes or locks several of them does so in the order of
 * their keys (organization, channel, hash, reason, scope), so that two transactions cannot deadlock.
 */

/** What records are made and ended by: each returns what it has written, so that it can be told of. */
export type StoredSuppression = Suppression & {
  organizationId: string;
  channel: Channel;
  /** Of the normalised address. */
  addressHash: Buffer;
};

export type SuppressionColumns = {
  organization_id: string;
  id: string;
  channel: Channel;
  address_hash: Buffer;
  reason: SuppressionReason;
  scope: SuppressionScope;
  address: string | null;
  note: string | null;
  source_type: SuppressionSource['type'];
  source_id: string | null;
  opted_out_at: Date | null;
  created_at: Date;
  expires_at: Date | null;
};

/** SQL: of the suppression `s`. */
export const columns = `s.organization_id, s.id, s.channel, s.address_hash, s.reason, s.scope, s.address, s.note,
     s.source_type, s.source_id, s.opted_out_at, s.created_at, s.expires_at`;

export function toSuppression(row: SuppressionColumns): StoredSuppression {
  return {
    organizationId: row.organization_id,
    id: row.id,
    channel: row.channel,
    addressHash: row.address_hash,
    reason: row.reason,
    scope: row.scope,
    address: row.address,
    note: row.note,
    source: { type: row.source_type, id: row.source_id },
    optedOutAt: row.opted_out_at,
    createdAt: row.created_at,
    expiresAt: row.expires_at,
  };
}

/** SQL: the suppression `s` still holds at an instant. */
export function holdsAt(instant: string): Predicate {
  return toPredicate(`s.expires_at is null or s.expires_at > ${instant}`);
}

const upsertSuppressions = statement<SuppressionColumns>(
  'audience_upsert_suppressions',
  `insert into suppressions as s
     (organization_id, id, channel, address_hash, reason, scope, address, note, source_type, source_id, opted_out_at,
      created_at, expires_at)
   select distinct on (organization_id, channel, address_hash, reason, scope)
     organization_id, id, channel, decode(address_hash, 'hex'), reason, scope, address, note, source_type, source_id,
     opted_out_at, $13, expires_at
   from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
     $9::text[], $10::uuid[], $11::timestamptz[], $12::timestamptz[]) with ordinality
     as suppression (organization_id, id, channel, address_hash, reason, scope, address, note, source_type, source_id,
       opted_out_at, expires_at, position)
   order by organization_id, channel, address_hash, reason, scope, opted_out_at desc, position
   on conflict (organization_id, channel, address_hash, reason, scope) do update
   set opted_out_at = excluded.opted_out_at
   where excluded.opted_out_at > s.opted_out_at or s.reason = 'manual'
   returning ${columns}`,
);

export type SuppressionRow = Omit<StoredSuppression, 'createdAt'>;

/**
 * A record that is there for the same reason stays as it is. Of what the owner of an address has said the last time
 * counts, so that a word in between that is heard of late takes nothing back. Returns those that were made, opt-outs that
 * were said again, and `manual` ones that were there: an update that changes nothing is the only statement which is sure to
 * find these.
 */
export async function insertSuppressions(
  connection: Connection,
  suppressions: readonly SuppressionRow[],
  createdAt: Date,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(upsertSuppressions, [
    suppressions.map(({ organizationId }) => organizationId),
    suppressions.map(({ id }) => id),
    suppressions.map(({ channel }) => channel),
    suppressions.map(({ addressHash }) => addressHash.toString('hex')),
    suppressions.map(({ reason }) => reason),
    suppressions.map(({ scope }) => scope),
    suppressions.map(({ address }) => address),
    suppressions.map(({ note }) => note),
    suppressions.map(({ source }) => source.type),
    suppressions.map(({ source }) => source.id),
    suppressions.map(({ optedOutAt }) => optedOutAt),
    suppressions.map(({ expiresAt }) => expiresAt),
    createdAt,
  ]);
  return rows.map(toSuppression);
}

/**
 * What an address is suppressed for: by its owner from campaigns alone (`unsubscribed`) or from everything (`opted_out`);
 * by the organization from campaigns alone; since the medium does not reach it; or for any other reason, whatever its
 * owner says.
 */
export type SuppressionKind = (typeof kindsByStrength)[number];

const kindsByStrength = [
  'suppressed_marketing',
  'unsubscribed',
  'unreachable',
  'opted_out',
  'suppressed',
] as const;

const selectSuppressed = statement<{ position: number; kind: SuppressionKind }>(
  'audience_select_suppressed',
  `select wanted.position,
     case
       when s.reason = 'unsubscribe' and s.scope = 'marketing' then 'unsubscribed'
       when s.scope = 'marketing' then 'suppressed_marketing'
       when s.reason = 'unsubscribe' then 'opted_out'
       when s.reason = 'unreachable' then 'unreachable'
       else 'suppressed'
     end as kind
   from unnest($2::uuid[], $3::text[]) with ordinality as wanted (organization_id, address_hash, position)
   join suppressions s
     on s.organization_id = wanted.organization_id
     and s.channel = $1
     and s.address_hash = decode(wanted.address_hash, 'hex')
     and ${holdsAt('$4')}`,
);

type HashedAddress = { organizationId: string; addressHash: Buffer };

/** The indexes of those that are suppressed at an instant, each with the strongest of its kinds. */
export async function findSuppressed(
  connection: Connection,
  channel: string,
  wanted: readonly HashedAddress[],
  at: Date,
): Promise<Map<number, SuppressionKind>> {
  const rows = await connection.rows(selectSuppressed, [channel, ...addressColumns(wanted), at]);
  const found = new Map<number, SuppressionKind>();
  for (const { position, kind } of rows) {
    const other = found.get(position - 1);
    if (other === undefined || kindsByStrength.indexOf(kind) > kindsByStrength.indexOf(other))
      found.set(position - 1, kind);
  }
  return found;
}

function addressColumns(addresses: readonly HashedAddress[]): unknown[] {
  return [
    addresses.map(({ organizationId }) => organizationId),
    addresses.map(({ addressHash }) => addressHash.toString('hex')),
  ];
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

/** The indexes of those whose owners have opted out, whatever its scope. Each is looked up by suppressions_key. */
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

/**
 * SQL that deletes suppressions `s` and returns them. `found` is what follows `select` and their keys, and ends in the order
 * of their keys, in which they are locked.
 */
function deletionOf(found: string): string {
  return `with found as (
     select s.organization_id, s.id
     ${found}
     for update of s
   )
   delete from suppressions s
   using found
   where s.organization_id = found.organization_id and s.id = found.id
   returning ${columns}`;
}

const deleteAllUnreachable = statement<SuppressionColumns>(
  'audience_delete_unreachable',
  deletionOf(
    `from unnest($2::uuid[], $3::text[]) as wanted (organization_id, address_hash)
     join suppressions s
       on s.organization_id = wanted.organization_id
       and s.channel = $1
       and s.address_hash = decode(wanted.address_hash, 'hex')
       and s.reason = 'unreachable'
     order by s.organization_id, s.address_hash`,
  ),
);

/** Locks nothing where nothing is found. */
export async function deleteUnreachable(
  connection: Connection,
  channel: string,
  wanted: readonly HashedAddress[],
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(deleteAllUnreachable, [channel, ...addressColumns(wanted)]);
  return rows.map(toSuppression);
}

export type SuppressionKey = { organizationId: string; channel: Channel; addressHash: Buffer };

/** All of an address but what its owner has said. */
export async function deleteSuppressions(
  connection: Connection,
  key: SuppressionKey,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      deletionOf(
        `from suppressions s
         where s.organization_id = $1 and s.channel = $2 and s.address_hash = $3 and s.reason <> 'unsubscribe'
         order by s.reason, s.scope`,
      ),
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return rows.map(toSuppression);
}

/** What its owner has said until then, or ever if that is null; and nothing else. */
export async function deleteOptOuts(
  connection: Connection,
  key: SuppressionKey,
  saidUntil: Date | null,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      deletionOf(
        `from suppressions s
         where s.organization_id = $1 and s.channel = $2 and s.address_hash = $3 and s.reason = 'unsubscribe'
           and ($4::timestamptz is null or s.opted_out_at <= $4)
         order by s.scope`,
      ),
    ),
    [key.organizationId, key.channel, key.addressHash, saidUntil],
  );
  return rows.map(toSuppression);
}

/** Those of these ids that hold, locked. */
export async function lockSuppressions(
  connection: Connection,
  { organizationId, ids, at }: { organizationId: string; ids: readonly string[]; at: Date },
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `select ${columns}
       from suppressions s
       where s.organization_id = $1 and s.id = any ($2::uuid[]) and ${holdsAt('$3')}
       order by s.channel, s.address_hash, s.reason, s.scope
       for update`,
    ),
    [organizationId, ids, at],
  );
  return rows.map(toSuppression);
}

/** To be locked before. */
export async function deleteSuppressionsByIds(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `delete from suppressions s
       where s.organization_id = $1 and s.id = any ($2::uuid[])
       returning ${columns}`,
    ),
    [organizationId, ids],
  );
  return rows.map(toSuppression);
}

export async function findSuppressionById(
  connection: Connection,
  { organizationId, id, at }: { organizationId: string; id: string; at: Date },
): Promise<StoredSuppression | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `select ${columns}
       from suppressions s
       where s.organization_id = $1 and s.id = $2 and ${holdsAt('$3')}`,
    ),
    [organizationId, id, at],
  );
  return row === undefined ? null : toSuppression(row);
}

/** Those of these ids that are there, be it that they hold no more. */
export async function findSuppressionsByIds(
  connection: Connection,
  { organizationId, ids }: { organizationId: string; ids: readonly string[] },
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `select ${columns}
       from suppressions s
       where s.organization_id = $1 and s.id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
  return rows.map(toSuppression);
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

/** By the indexes of the keys. */
export async function findGrants(
  connection: Connection,
  keys: readonly SuppressionKey[],
): Promise<Map<number, ConsentGrant>> {
  const rows = await connection.rows(
    unpreparedStatement<{ position: number; api_key_id: string | null; granted_at: Date }>(
      `select wanted.position::integer as position, g.api_key_id, g.granted_at
       from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality
         as wanted (organization_id, channel, address_hash, position)
       join consent_grants g
         on g.organization_id = wanted.organization_id
         and g.channel = wanted.channel
         and g.address_hash = decode(wanted.address_hash, 'hex')`,
    ),
    keyColumns(keys),
  );
  return new Map(
    rows.map(({ position, api_key_id: apiKeyId, granted_at: grantedAt }) => [
      position - 1,
      { apiKeyId, grantedAt },
    ]),
  );
}

/**
 * All that hold of these addresses. Those of one address that keep the most from it come first: everything before
 * campaigns, what stays before what ends by itself or by its owner's word, and of those the oldest.
 */
export async function findSuppressions(
  connection: Connection,
  keys: readonly SuppressionKey[],
  at: Date,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      `select ${columns}
       from unnest($1::uuid[], $2::text[], $3::text[]) as wanted (organization_id, channel, address_hash)
       join suppressions s
         on s.organization_id = wanted.organization_id
         and s.channel = wanted.channel
         and s.address_hash = decode(wanted.address_hash, 'hex')
         and ${holdsAt('$4')}
       order by s.scope, s.reason = 'unsubscribe', s.reason = 'unreachable', s.id`,
    ),
    [...keyColumns(keys), at],
  );
  return rows.map(toSuppression);
}

/** The readable form on whatever channel, and what was noted with it. */
export async function clearAddresses(
  connection: Connection,
  suppressions: readonly { organizationId: string; addressHash: Buffer }[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with found as (
         select s.organization_id, s.id
         from unnest($1::uuid[], $2::text[]) as erased (organization_id, address_hash)
         join suppressions s
           on s.organization_id = erased.organization_id
           and s.channel = any ($3)
           and s.address_hash = decode(erased.address_hash, 'hex')
         order by s.organization_id, s.channel, s.address_hash, s.reason, s.scope
         for update of s
       )
       update suppressions s
       set address = null, note = null
       from found
       where s.organization_id = found.organization_id and s.id = found.id`,
    ),
    [...addressColumns(suppressions), channels],
  );
}

const deleteExpired = unpreparedStatement(
  `with expired as (
     select organization_id, id
     from suppressions
     where expires_at <= $1
     limit $2
     for update skip locked
   ), ended as (
     delete from suppressions s
     using expired
     where s.organization_id = expired.organization_id and s.id = expired.id
     returning s.organization_id, s.id, s.channel, s.reason, s.scope, s.expires_at
   ), logged as (
     ${insertIntoOutbox(
       `select ended.organization_id, 'suppression.deleted', ended.expires_at, false, array_agg(ended.id order by ended.id),
         null, json_agg(json_build_object('channel', ended.channel, 'reason', ended.reason, 'scope', ended.scope) order by ended.id)
       from ended
       where ${isEventWanted('ended.organization_id', "'suppression.deleted'", 'false')}
         and ${isNotDeleted('ended.organization_id')}
       group by ended.organization_id, ended.expires_at`,
     )}
     returning true as is_logged
   ), woken as (
     ${wakeNumbering('logged')}
   )
   select
   from ended
   left join woken on true`,
);

/**
 * By suppressions_expired. Competes with requests that renew or delete one, and skips those. It is of all organizations, so
 * that it tells of them by itself what else `logSuppressions` does: that each ended when it said that it would.
 */
export async function deleteExpiredSuppressions(
  connection: Connection,
  at: Date,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteExpired, at, rowsMax);
}

/** Those of these addresses that hold no more, in whose place new ones can be made then. */
export async function deleteExpiredOf(
  connection: Connection,
  keys: readonly SuppressionKey[],
  at: Date,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<SuppressionColumns>(
      deletionOf(
        `from unnest($1::uuid[], $2::text[], $3::text[]) as wanted (organization_id, channel, address_hash)
         join suppressions s
           on s.organization_id = wanted.organization_id
           and s.channel = wanted.channel
           and s.address_hash = decode(wanted.address_hash, 'hex')
           and s.reason = 'manual'
           and s.expires_at <= $4
         order by s.organization_id, s.channel, s.address_hash, s.scope`,
      ),
    ),
    [...keyColumns(keys), at],
  );
  return rows.map(toSuppression);
}
