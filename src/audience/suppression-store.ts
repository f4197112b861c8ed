import { type Channel, channels } from '../channels/channel.ts';
import {
  type Connection,
  statement,
  type Transaction,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
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
     opted_out_at = case
       when excluded.reason = 'unsubscribe' then excluded.created_at
       when s.reason = 'unsubscribe' then s.created_at
       else s.opted_out_at
     end
   where ((excluded.reason = 'unsubscribe') <> (s.reason = 'unsubscribe') and s.opted_out_at is null)
     or (s.reason = 'unreachable' and excluded.reason not in ('unsubscribe', 'unreachable'))`,
);

export type SuppressionRow = {
  organizationId: string;
  addressHash: Buffer;
  address: string | null;
  reason: SuppressionReason;
};

/**
 * What is suppressed already keeps its first reason; only that its owner wants nothing is kept beside any other, since
 * they may take it back, and the other stays. That it cannot be reached gives way to every other reason, since it ends by
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
    createdAt,
  ]);
}

const selectSuppressed = statement<{ position: number; kind: 'suppressed' | 'unreachable' }>(
  'audience_select_suppressed',
  `select wanted.position,
     case when s.reason = 'unreachable' and s.opted_out_at is null then s.reason else 'suppressed' end as kind
   from unnest($2::uuid[], $3::text[]) with ordinality as wanted (organization_id, address_hash, position)
   join suppressions s
     on s.organization_id = wanted.organization_id
     and s.channel = $1
     and s.address_hash = decode(wanted.address_hash, 'hex')`,
);

type HashedAddress = { organizationId: string; addressHash: Buffer };

/** The indexes of those that are suppressed. */
export async function findSuppressed(
  connection: Connection,
  channel: string,
  wanted: readonly HashedAddress[],
): Promise<Map<number, 'suppressed' | 'unreachable'>> {
  const rows = await connection.rows(selectSuppressed, [
    channel,
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ addressHash }) => addressHash.toString('hex')),
  ]);
  return new Map(rows.map(({ position, kind }) => [position - 1, kind]));
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
     set reason = 'unsubscribe', created_at = s.opted_out_at, opted_out_at = null
     from lifted
     where s.organization_id = lifted.organization_id and s.channel = $1
       and s.address_hash = lifted.address_hash and s.opted_out_at is not null
   )
   delete from suppressions s
   using lifted
   where s.organization_id = lifted.organization_id and s.channel = $1
     and s.address_hash = lifted.address_hash and s.opted_out_at is null`,
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

export type StoredSuppression = {
  organizationId: string;
  channel: string;
  addressHash: Buffer;
  address: string | null;
};

/** Of all organizations, by their key, those after `after`. */
export async function readSuppressionBatch(
  connection: Connection,
  after: StoredSuppression | null,
  limit: number,
): Promise<StoredSuppression[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      organization_id: string;
      channel: string;
      address_hash: Buffer;
      address: string | null;
    }>(
      `select organization_id, channel, address_hash, address
       from suppressions
       where $1::uuid is null
         or (organization_id, channel, address_hash) > ($1, $2::text, decode($3::text, 'hex'))
       order by organization_id, channel, address_hash
       limit $4`,
    ),
    [
      after?.organizationId ?? null,
      after?.channel ?? null,
      after?.addressHash.toString('hex') ?? null,
      limit,
    ],
  );
  return rows.map((row) => ({
    organizationId: row.organization_id,
    channel: row.channel,
    addressHash: row.address_hash,
    address: row.address,
  }));
}

/** Locks suppressions against other writers until the transaction ends; they can still be read. */
export async function lockSuppressions(transaction: Transaction): Promise<void> {
  await transaction.rows(unpreparedStatement('lock table suppressions in share row exclusive mode'));
}

/**
 * Gives suppressions another hash. Where there is one under that hash already, the two become one: of their reasons
 * the first that is not an opt-out, and the first opt-out beside it. An address that was erased there stays erased.
 */
export async function moveSuppressions(
  transaction: Transaction,
  moves: readonly { from: StoredSuppression; addressHash: Buffer }[],
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `with moved as (
         delete from suppressions s
         using unnest($1::uuid[], $2::text[], $3::text[], $4::text[])
           as move (organization_id, channel, old_hash, new_hash)
         where s.organization_id = move.organization_id
           and s.channel = move.channel
           and s.address_hash = decode(move.old_hash, 'hex')
         returning s.organization_id, s.channel, decode(move.new_hash, 'hex') as address_hash, s.address, s.reason,
           s.created_at, s.opted_out_at
       ), merged as (
         select organization_id, channel, address_hash, min(address) as address,
           (array_agg(reason order by created_at) filter (where reason <> 'unsubscribe'))[1] as reason,
           min(created_at) filter (where reason <> 'unsubscribe') as created_at,
           min(case when reason = 'unsubscribe' then created_at else opted_out_at end) as opted_out_at
         from moved
         group by organization_id, channel, address_hash
       )
       insert into suppressions as s
         (organization_id, channel, address_hash, address, reason, created_at, opted_out_at)
       select organization_id, channel, address_hash, address, coalesce(reason, 'unsubscribe'),
         coalesce(created_at, opted_out_at), case when reason is not null then opted_out_at end
       from merged
       on conflict (organization_id, channel, address_hash) do update
       set
         reason = case
           when s.reason = 'unsubscribe' then excluded.reason
           when excluded.reason = 'unsubscribe' or s.created_at <= excluded.created_at then s.reason
           else excluded.reason
         end,
         created_at = case
           when (s.reason = 'unsubscribe') = (excluded.reason = 'unsubscribe')
             then least(s.created_at, excluded.created_at)
           when s.reason = 'unsubscribe' then excluded.created_at
           else s.created_at
         end,
         opted_out_at = case
           when s.reason = 'unsubscribe' and excluded.reason = 'unsubscribe' then null
           else least(
             case when s.reason = 'unsubscribe' then s.created_at else s.opted_out_at end,
             case when excluded.reason = 'unsubscribe' then excluded.created_at else excluded.opted_out_at end)
         end`,
    ),
    [
      moves.map(({ from }) => from.organizationId),
      moves.map(({ from }) => from.channel),
      moves.map(({ from }) => from.addressHash.toString('hex')),
      moves.map(({ addressHash }) => addressHash.toString('hex')),
    ],
  );
}
