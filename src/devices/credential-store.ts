import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { lockName, shareNameLock } from '../platform/postgres/name-locks.ts';
import type { Platform } from './schema.ts';

export type PlatformKey = { organizationId: string; platform: Platform };

/** What may be shown of credentials, by name. */
export type PublicPart = Readonly<Record<string, string>>;

export type PublicParts = ReadonlyMap<Platform, PublicPart>;

/**
 * Until the transaction ends, no credentials of the organization are replaced; or, `alone`, no device is registered
 * under those that are.
 */
export async function lockCredentials(
  transaction: Connection,
  organizationId: string,
  mode: 'shared' | 'alone',
): Promise<void> {
  const name = `push credentials ${organizationId}`;
  await (mode === 'shared' ? shareNameLock(transaction, name) : lockName(transaction, name));
}

const selectPublicParts = statement<{ platform: Platform; public_part: PublicPart }>(
  'devices_select_public_parts',
  `select platform, public_part
   from push_credentials
   where organization_id = $1`,
);

/** Of the platforms that the organization has set up. */
export async function findPublicParts(connection: Connection, organizationId: string): Promise<PublicParts> {
  const rows = await connection.rows(selectPublicParts, [organizationId]);
  return new Map(rows.map((row) => [row.platform, row.public_part]));
}

/**
 * The VAPID key of the organization that has had one for longest, by its age: for a person who tries a push out, and
 * has signed in nowhere. By the primary key, through few organizations or one that has set it up.
 */
export async function findFirstBrowserKey(
  connection: Connection,
): Promise<{ organizationId: string; publicPart: PublicPart } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ organization_id: string; public_part: PublicPart }>(
      `select organization_id, public_part
       from push_credentials
       where platform = 'web' and ${isNotDeleted('organization_id')}
       order by organization_id
       limit 1`,
    ),
  );
  return row === undefined ? null : { organizationId: row.organization_id, publicPart: row.public_part };
}

export type CredentialsRow = {
  organization_id: string;
  platform: Platform;
  id: string;
  content_sealed: Buffer;
  public_part: PublicPart;
  created_at: Date;
  updated_at: Date;
};

const credentialsColumns =
  'c.organization_id, c.platform, c.id, c.content_sealed, c.public_part, c.created_at, c.updated_at';

const selectCredentials = statement<CredentialsRow>(
  'devices_select_credentials',
  `select ${credentialsColumns}
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, platform)
   join push_credentials c on ${hasKeyOf('c', 'wanted', ['platform'])}`,
);

/** Those that there are, by the primary key. */
export async function findCredentials(
  connection: Connection,
  wanted: readonly PlatformKey[],
): Promise<CredentialsRow[]> {
  return connection.rows(selectCredentials, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ platform }) => platform),
  ]);
}

/** Those of an organization, by platform. */
export async function listCredentials(
  connection: Connection,
  organizationId: string,
): Promise<CredentialsRow[]> {
  return connection.rows(
    unpreparedStatement<CredentialsRow>(
      `select ${credentialsColumns}
       from push_credentials c
       where c.organization_id = $1
       order by c.platform`,
    ),
    [organizationId],
  );
}

export type NewCredentials = PlatformKey & {
  id: string;
  contentSealed: Buffer;
  publicPart: PublicPart;
  at: Date;
};

/** Puts them in the place of those that there were. */
export async function upsertCredentials(
  transaction: Connection,
  credentials: NewCredentials,
): Promise<CredentialsRow> {
  const [row] = await transaction.rows(
    unpreparedStatement<CredentialsRow>(
      `insert into push_credentials as c
         (organization_id, platform, id, content_sealed, public_part, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $6)
       on conflict (organization_id, platform) do update
       set id = excluded.id, content_sealed = excluded.content_sealed, public_part = excluded.public_part,
         apns_token_sealed = null, apns_token_made_at = null, updated_at = excluded.updated_at
       returning ${credentialsColumns}`,
    ),
    [
      credentials.organizationId,
      credentials.platform,
      credentials.id,
      credentials.contentSealed,
      JSON.stringify(credentials.publicPart),
      credentials.at,
    ],
  );
  if (row === undefined) throw new Error('an upsert returned no row');
  return row;
}

/** Of all organizations, in the order of the primary key, those after `after`; for an operator. */
export async function readCredentialsBatch(
  connection: Connection,
  after: PlatformKey | null,
  limit: number,
): Promise<CredentialsRow[]> {
  return connection.rows(
    unpreparedStatement<CredentialsRow>(
      `select ${credentialsColumns}
       from push_credentials c
       where $1::uuid is null or (c.organization_id, c.platform) > ($1, $2)
       order by c.organization_id, c.platform
       limit $3`,
    ),
    [after?.organizationId ?? null, after?.platform ?? null, limit],
  );
}

/** Forgets the tokens of a platform that could never work: with other credentials they may. */
export async function forgetFailedTokens(transaction: Connection, key: PlatformKey): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `delete from dead_device_tokens where organization_id = $1 and platform = $2 and status = 'FAILED'`,
    ),
    [key.organizationId, key.platform],
  );
}

/**
 * Retires up to `limit` browsers that are subscribed under another VAPID key than this one, and notes their endpoints as
 * dead. Returns the contacts of those that were active, how many these are, and whether they were the last.
 */
export async function retireSubscriptions(
  transaction: Connection,
  wanted: { organizationId: string; publicKey: string; limit: number; at: Date },
): Promise<{ contactIds: string[]; activeCount: number; isWhole: boolean }> {
  const rows = await transaction.rows(
    unpreparedStatement<{ contact_id: string; was_active: boolean }>(
      `with outdated as (
         select id, token_sha256, status
         from devices
         where organization_id = $1 and platform = 'web' and vapid_public_key <> $2 and token is not null
         limit $3
         for no key update
       ), noted as (
         insert into dead_device_tokens (organization_id, platform, token_sha256, status, reason, created_at)
         select $1, 'web', token_sha256, 'EXPIRED', 'vapid_key_replaced', $4
         from outdated
         on conflict (organization_id, platform, token_sha256) do nothing
       )
       update devices d
       set token = null, token_sha256 = null, updated_at = $4,
         status = case d.status when 'ACTIVE' then 'EXPIRED' else d.status end
       from outdated
       where d.organization_id = $1 and d.id = outdated.id
       returning d.contact_id, outdated.status = 'ACTIVE' as was_active`,
    ),
    [wanted.organizationId, wanted.publicKey, wanted.limit, wanted.at],
  );
  const active = rows.filter((row) => row.was_active);
  return {
    contactIds: [...new Set(active.map((row) => row.contact_id))],
    activeCount: active.length,
    isWhole: rows.length < wanted.limit,
  };
}

/** Active devices of a platform, up to `limit`. Looks through those of the organization; for an operator. */
export async function countDevicesOfPlatform(
  connection: Connection,
  { organizationId, platform }: PlatformKey,
  limit: number,
): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ count: number }>(
      `select count(*)::integer as count
       from (
         select from devices where organization_id = $1 and platform = $2 and status = 'ACTIVE' limit $3
       ) counted`,
    ),
    [organizationId, platform, limit],
  );
  return row?.count ?? 0;
}

export type ApnsTokenRow = CredentialsRow & {
  apns_token_sealed: Buffer | null;
  apns_token_made_at: Date | null;
};

const apnsTokenColumns = `${credentialsColumns}, c.apns_token_sealed, c.apns_token_made_at`;

const selectApnsToken = statement<ApnsTokenRow>(
  'devices_select_apns_token',
  `select ${apnsTokenColumns}
   from push_credentials c
   where c.organization_id = $1 and c.platform = 'ios' and c.id = $2`,
);

const lockApnsToken = statement<ApnsTokenRow>(
  'devices_lock_apns_token',
  `select ${apnsTokenColumns}
   from push_credentials c
   where c.organization_id = $1 and c.platform = 'ios' and c.id = $2
   for update`,
);

export type CredentialsKey = { organizationId: string; id: string };

/** Null once the credentials were replaced. Locked, other nodes that want another token wait for this one. */
export async function findApnsToken(
  connection: Connection,
  { organizationId, id }: CredentialsKey,
  { isLocked }: { isLocked: boolean },
): Promise<ApnsTokenRow | null> {
  const [row] = await connection.rows(isLocked ? lockApnsToken : selectApnsToken, [organizationId, id]);
  return row ?? null;
}

/** The row must be locked. */
export async function saveApnsToken(
  transaction: Connection,
  token: CredentialsKey & { sealed: Buffer; madeAt: Date },
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update push_credentials
       set apns_token_sealed = $3, apns_token_made_at = $4
       where organization_id = $1 and platform = 'ios' and id = $2`,
    ),
    [token.organizationId, token.id, token.sealed, token.madeAt],
  );
}
