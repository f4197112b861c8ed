import { type Channel, channels } from '../accounts/accounts.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import type { Suppression, SuppressionReason } from './schema.ts';

const upsertSuppressions = statement(
  'audience_upsert_suppressions',
  `insert into suppressions as s (organization_id, channel, address_hash, address, reason, created_at)
   select distinct on (organization_id, address_hash)
     organization_id, $1, decode(address_hash, 'hex'), address, reason, $6
   from unnest($2::uuid[], $3::text[], $4::text[], $5::text[])
     as suppression (organization_id, address_hash, address, reason)
   order by organization_id, address_hash
   on conflict (organization_id, channel, address_hash) do update
   set
     reason = case when excluded.reason = 'unsubscribe' then s.reason else excluded.reason end,
     created_at = case when excluded.reason = 'unsubscribe' then s.created_at else excluded.created_at end,
     opted_out_at = case when excluded.reason = 'unsubscribe' then excluded.created_at else s.created_at end
   where (excluded.reason = 'unsubscribe') <> (s.reason = 'unsubscribe') and s.opted_out_at is null`,
);

export type SuppressionRow = {
  organizationId: string;
  addressHash: Buffer;
  address: string | null;
  reason: SuppressionReason;
};

/**
 * What is suppressed already keeps its first reason; only that its owner wants nothing is kept beside any other, since
 * they may take it back, and the other stays. Sorted, so that two transactions cannot deadlock.
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
    createdAt,
  ]);
}

const selectSuppressed = statement<{ position: number }>(
  'audience_select_suppressed',
  `select wanted.position
   from unnest($2::uuid[], $3::text[]) with ordinality as wanted (organization_id, address_hash, position)
   join suppressions s
     on s.organization_id = wanted.organization_id
     and s.channel = $1
     and s.address_hash = decode(wanted.address_hash, 'hex')`,
);

/** The indexes of those that are suppressed. */
export async function findSuppressed(
  connection: Connection,
  channel: string,
  wanted: readonly { organizationId: string; addressHash: Buffer }[],
): Promise<Set<number>> {
  const rows = await connection.rows(selectSuppressed, [
    channel,
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ addressHash }) => addressHash.toString('hex')),
  ]);
  return new Set(rows.map(({ position }) => position - 1));
}

type SuppressionKey = { organizationId: string; channel: string; addressHash: Buffer };

/** All but what its owner has said beside it. False if there was nothing. */
export async function deleteSuppression(connection: Connection, key: SuppressionKey): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `with kept as (
         update suppressions
         set reason = 'unsubscribe', created_at = opted_out_at, opted_out_at = null
         where organization_id = $1 and channel = $2 and address_hash = $3 and opted_out_at is not null
         returning organization_id
       ), gone as (
         delete from suppressions
         where organization_id = $1 and channel = $2 and address_hash = $3 and opted_out_at is null
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

/** What its owner has said, and nothing else. */
export async function deleteOptOut(connection: Connection, key: SuppressionKey): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with kept as (
         update suppressions
         set opted_out_at = null
         where organization_id = $1 and channel = $2 and address_hash = $3 and opted_out_at is not null
       )
       delete from suppressions
       where organization_id = $1 and channel = $2 and address_hash = $3 and reason = 'unsubscribe'`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
}

export async function findSuppression(
  connection: Connection,
  key: SuppressionKey,
): Promise<Suppression | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{
      address: string | null;
      reason: SuppressionReason;
      created_at: Date;
      opted_out_at: Date | null;
    }>(
      `select address, reason, created_at,
         case when reason = 'unsubscribe' then created_at else opted_out_at end as opted_out_at
       from suppressions
       where organization_id = $1 and channel = $2 and address_hash = $3`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  if (row === undefined) return null;
  const { address, reason, created_at: createdAt, opted_out_at: optedOutAt } = row;
  return { address, reason, createdAt, optedOutAt };
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
    unpreparedStatement<{
      address_hash: Buffer;
      address: string | null;
      reason: SuppressionReason;
      created_at: Date;
      opted_out_at: Date | null;
      position: string;
    }>(
      // The position keeps the microseconds that a Date has no room for.
      `select address_hash, address, reason, created_at, created_at::text as position,
         case when reason = 'unsubscribe' then created_at else opted_out_at end as opted_out_at
       from suppressions
       where organization_id = $1 and channel = $2
         and ($3::timestamptz is null
           or created_at <= $3 and (created_at < $3 or address_hash > decode($4, 'hex')))
       order by created_at desc, address_hash
       limit $5`,
    ),
    [organizationId, channel, after?.position ?? null, after?.addressHash.toString('hex') ?? null, limit],
  );
  return rows.map((row) => ({
    channel,
    addressHash: row.address_hash,
    address: row.address,
    reason: row.reason,
    createdAt: row.created_at,
    optedOutAt: row.opted_out_at,
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

/** Of any organizations: as many as tell one secret from another. */
export async function sampleSuppressions(
  connection: Connection,
): Promise<{ organizationId: string; address: string; addressHash: Buffer }[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ organization_id: string; address: string; address_hash: Buffer }>(
      'select organization_id, address, address_hash from suppressions where address is not null limit 100',
    ),
  );
  return rows.map((row) => ({
    organizationId: row.organization_id,
    address: row.address,
    addressHash: row.address_hash,
  }));
}
