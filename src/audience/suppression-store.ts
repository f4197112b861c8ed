import { channels } from '../accounts/accounts.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import type { Suppression, SuppressionReason } from './schema.ts';

const upsertSuppressions = statement(
  'audience_upsert_suppressions',
  `insert into suppressions (organization_id, channel, address_hash, address, reason, created_at)
   select organization_id, $1, decode(address_hash, 'hex'), address, reason, $6
   from unnest($2::uuid[], $3::text[], $4::text[], $5::text[])
     as suppression (organization_id, address_hash, address, reason)
   order by organization_id, address_hash
   on conflict (organization_id, channel, address_hash) do nothing`,
);

export type SuppressionRow = {
  organizationId: string;
  addressHash: Buffer;
  address: string | null;
  reason: SuppressionReason;
};

/** What is suppressed already keeps its first reason. Sorted, so that two transactions cannot deadlock. */
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

export async function deleteSuppression(
  connection: Connection,
  key: { organizationId: string; channel: string; addressHash: Buffer },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `delete from suppressions
       where organization_id = $1 and channel = $2 and address_hash = $3
       returning organization_id`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return rows.length === 1;
}

export async function findSuppression(
  connection: Connection,
  key: { organizationId: string; channel: string; addressHash: Buffer },
): Promise<Suppression | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ address: string | null; reason: SuppressionReason; created_at: Date }>(
      `select address, reason, created_at
       from suppressions
       where organization_id = $1 and channel = $2 and address_hash = $3`,
    ),
    [key.organizationId, key.channel, key.addressHash],
  );
  return row === undefined ? null : { address: row.address, reason: row.reason, createdAt: row.created_at };
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
