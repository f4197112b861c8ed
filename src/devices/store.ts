import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import {
  type ApnsEnvironment,
  denyingStatuses,
  devicesMax,
  type DeviceStatus,
  type EnablementStatus,
  type Platform,
  type RetiredStatus,
  type Revocation,
} from './schema.ts';

/** A device as it is stored, without its organization. */
export type DeviceRow = {
  id: string;
  installation_id: string;
  contact_id: string;
  platform: Platform;
  /** Of web it is the endpoint. Null once it belongs to another installation. */
  token: string | null;
  token_sha256: Buffer | null;
  apns_environment: ApnsEnvironment | null;
  p256dh_key: string | null;
  auth_key: string | null;
  vapid_public_key: string | null;
  status: DeviceStatus;
  revoked_by: Revocation | null;
  opted_out: boolean;
  enablement_status: EnablementStatus | null;
  sdk_version: string | null;
  app_version: string | null;
  os_version: string | null;
  device_model: string | null;
  device_manufacturer: string | null;
  device_timezone: string | null;
  device_locale: string | null;
  secret_sha256: Buffer;
  registered_at: Date;
  created_at: Date;
  updated_at: Date;
};

const deviceColumns = `d.id, d.installation_id, d.contact_id, d.platform, d.token, d.token_sha256, d.apns_environment,
  d.p256dh_key, d.auth_key, d.vapid_public_key, d.status, d.revoked_by, d.opted_out, d.enablement_status, d.sdk_version,
  d.app_version, d.os_version, d.device_model, d.device_manufacturer, d.device_timezone, d.device_locale,
  d.secret_sha256, d.registered_at, d.created_at, d.updated_at`;

export type DeviceKey = { organizationId: string; id: string };

/** A token of a platform, by its digest. */
export type TokenKey = { platform: Platform; tokenSha256: Buffer };

/** Not flattened (`offset 0`): each look-up is one in an index, however small the table was when this was planned. */
const lockConcerned = statement<DeviceRow>(
  'devices_lock_concerned',
  `with concerned as (
     select found.id
     from unnest($2::text[]) as given (installation_id)
     cross join lateral (
       select d.id
       from devices d
       where d.organization_id = $1 and d.installation_id = given.installation_id
       offset 0
     ) found
     union
     select found.id
     from unnest($3::text[], $4::bytea[]) as given (platform, token_sha256)
     cross join lateral (
       select d.id
       from devices d
       where d.organization_id = $1 and d.platform = given.platform and d.token_sha256 = given.token_sha256
       offset 0
     ) found
   )
   select locked.*
   from (select id from concerned order by id) concerned
   cross join lateral (
     select ${deviceColumns}
     from devices d
     where d.organization_id = $1 and d.id = concerned.id
     for no key update of d
   ) locked`,
);

/**
 * Locks the devices of these installations, and those that have these tokens, in the order of their ids: other
 * registrations and reports of the same devices wait. Reads two indexes of the organization.
 */
export async function lockConcernedDevices(
  transaction: Connection,
  organizationId: string,
  wanted: { installationIds: readonly string[]; tokens: readonly TokenKey[] },
): Promise<DeviceRow[]> {
  return transaction.rows(lockConcerned, [
    organizationId,
    wanted.installationIds,
    wanted.tokens.map(({ platform }) => platform),
    wanted.tokens.map(({ tokenSha256 }) => tokenSha256),
  ]);
}

const selectDead = statement<{ platform: Platform; token_sha256: Buffer; status: RetiredStatus }>(
  'devices_select_dead',
  `select given.platform, given.token_sha256, dead.status
   from unnest($2::text[], $3::bytea[]) as given (platform, token_sha256)
   cross join lateral (
     select t.status
     from dead_device_tokens t
     where t.organization_id = $1 and t.platform = given.platform and t.token_sha256 = given.token_sha256
     offset 0
   ) dead`,
);

/** Those of the tokens that were refused for good. */
export async function findDeadTokens(
  connection: Connection,
  organizationId: string,
  tokens: readonly TokenKey[],
): Promise<(TokenKey & { status: RetiredStatus })[]> {
  const rows = await connection.rows(selectDead, [
    organizationId,
    tokens.map(({ platform }) => platform),
    tokens.map(({ tokenSha256 }) => tokenSha256),
  ]);
  return rows.map((row) => ({ platform: row.platform, tokenSha256: row.token_sha256, status: row.status }));
}

const retireSilentOnes = statement<{ id: string }>(
  'devices_retire_silent',
  `update devices d
   set status = 'EXPIRED', updated_at = $3
   from unnest($2::uuid[]) as given (contact_id)
   cross join lateral (
     select silent.id
     from devices silent
     where silent.organization_id = $1 and silent.contact_id = given.contact_id and silent.status = 'ACTIVE'
     order by silent.registered_at desc, silent.id desc
     offset ${devicesMax}
     for no key update
   ) silent
   where d.organization_id = $1 and d.id = silent.id
   returning d.id`,
);

/**
 * Retires what the contacts, which must be locked, have beyond `devicesMax` active devices: those that registered
 * longest ago. Returns their ids. Reads devices_contact.
 */
export async function retireSilent(
  transaction: Connection,
  { organizationId, contactIds, at }: { organizationId: string; contactIds: readonly string[]; at: Date },
): Promise<string[]> {
  const rows = await transaction.rows(retireSilentOnes, [organizationId, contactIds, at]);
  return rows.map(({ id }) => id);
}

const release = statement(
  'devices_release_tokens',
  `update devices
   set token = null, token_sha256 = null, status = case status when 'ACTIVE' then 'EXPIRED' else status end
   where organization_id = $1 and id = any ($2::uuid[])`,
);

/** Takes their tokens from devices, so that others can have them; the devices must be locked. */
export async function releaseTokens(
  transaction: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<void> {
  await transaction.rows(release, [organizationId, ids]);
}

/** What a registration writes, with the type of each column; the others stay as they were when the device was made. */
const writtenColumns = {
  contact_id: 'uuid',
  platform: 'text',
  token: 'text',
  token_sha256: 'bytea',
  apns_environment: 'text',
  p256dh_key: 'text',
  auth_key: 'text',
  vapid_public_key: 'text',
  status: 'text',
  revoked_by: 'text',
  opted_out: 'boolean',
  enablement_status: 'text',
  sdk_version: 'text',
  app_version: 'text',
  os_version: 'text',
  device_model: 'text',
  device_manufacturer: 'text',
  device_timezone: 'text',
  device_locale: 'text',
  registered_at: 'timestamptz',
  updated_at: 'timestamptz',
} as const satisfies Partial<Record<keyof DeviceRow, string>>;

const keptColumns = {
  id: 'uuid',
  installation_id: 'text',
  secret_sha256: 'bytea',
  created_at: 'timestamptz',
} as const satisfies Partial<Record<keyof DeviceRow, string>>;

const allColumns = { ...keptColumns, ...writtenColumns };
const columnNames = Object.keys(allColumns) as (keyof typeof allColumns)[]; // Object.keys forgets which there are.

const upsert = statement(
  'devices_upsert',
  `insert into devices (organization_id, ${columnNames.join(', ')})
   select $1, ${columnNames.join(', ')}
   from unnest(${Object.values(allColumns)
     .map((type, index) => `$${index + 2}::${type}[]`)
     .join(', ')}) as written (${columnNames.join(', ')})
   order by installation_id
   on conflict (organization_id, id) do update
   set ${Object.keys(writtenColumns)
     .map((column) => `${column} = excluded.${column}`)
     .join(', ')}`,
);

/**
 * Writes devices, new ones among them; the others must be locked. Throws a violation of the unique indexes of
 * installations or tokens if a device came meanwhile that was not there to be locked.
 */
export async function writeDevices(
  transaction: Connection,
  organizationId: string,
  devices: readonly DeviceRow[],
): Promise<void> {
  await transaction.rows(upsert, [
    organizationId,
    ...columnNames.map((column) => devices.map((device) => device[column])),
  ]);
}

/** Whose device the installation is; null if the organization knows no such one. Reads devices_installation. */
export async function findOwner(
  connection: Connection,
  { organizationId, installationId }: { organizationId: string; installationId: string },
): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ contact_id: string }>(
      `select d.contact_id
       from devices d
       where d.organization_id = $1 and d.installation_id = $2`,
    ),
    [organizationId, installationId],
  );
  return row?.contact_id ?? null;
}

/** The device as it is after it was revoked; null if the organization knows no such installation. */
export async function revokeDevice(
  transaction: Connection,
  wanted: { organizationId: string; installationId: string; revocation: Revocation; at: Date },
): Promise<DeviceRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<DeviceRow>(
      `update devices d
       set status = 'REVOKED', opted_out = true, updated_at = $4,
         revoked_by = case when d.opted_out and d.revoked_by = 'opt_out' then 'opt_out' else $3 end
       where d.organization_id = $1 and d.installation_id = $2
       returning ${deviceColumns}`,
    ),
    [wanted.organizationId, wanted.installationId, wanted.revocation, wanted.at],
  );
  return row ?? null;
}

/**
 * Lifts the opt-outs of a contact's devices. One that was revoked by a wish gets pushes again at once, if its token
 * still does; one on which the contact signed out waits for its next registration. Returns them.
 */
export async function liftOptOuts(
  transaction: Connection,
  contact: { organizationId: string; contactId: string; at: Date },
): Promise<Pick<DeviceRow, 'installation_id' | 'platform' | 'token_sha256'>[]> {
  return transaction.rows(
    unpreparedStatement<Pick<DeviceRow, 'installation_id' | 'platform' | 'token_sha256'>>(
      `update devices d
       set opted_out = false, updated_at = $3,
         revoked_by = case d.revoked_by when 'logout' then 'logout' end,
         status = case
           when d.revoked_by = 'logout' then 'REVOKED'
           when d.token is null then 'EXPIRED'
           else coalesce(
             (
               select t.status
               from dead_device_tokens t
               where t.organization_id = d.organization_id and t.platform = d.platform
                 and t.token_sha256 = d.token_sha256
             ),
             'ACTIVE'
           )
         end
       where d.organization_id = $1 and d.contact_id = $2 and d.opted_out
       returning d.installation_id, d.platform, d.token_sha256`,
    ),
    [contact.organizationId, contact.contactId, contact.at],
  );
}

/** One row more than the page holds; sorts what it reads by devices_contact. */
export async function listDevices(
  connection: Connection,
  contact: { organizationId: string; contactId: string },
  page: Page,
): Promise<DeviceRow[]> {
  return connection.rows(
    unpreparedStatement<DeviceRow>(
      `select ${deviceColumns}
       from devices d
       where d.organization_id = $1 and d.contact_id = $2 ${pageClause(page, 'd.id', '$3')}
       limit $4`,
    ),
    [contact.organizationId, contact.contactId, cursorOf(page), page.limit + 1],
  );
}

/** SQL: notifications may be shown on the device `d`. */
const isEnabled = toPredicate(
  `d.enablement_status is null
     or d.enablement_status not in (${denyingStatuses.map((status) => `'${status}'`).join(', ')})`,
);

/** SQL: the device `d` gets pushes. */
const getsPushes = toPredicate(`d.status = 'ACTIVE' and ${isEnabled}`);

/** SQL: the account by which the device `d` is reached. */
const accountOfDevice = `case d.platform
         when 'ios' then 'ios ' || coalesce(d.apns_environment, 'production')
         when 'web' then 'web ' || split_part(d.token, '/', 3)
         else d.platform
       end`;

/**
 * SQL for the devices of a contact that get pushes, as a table of `id` and `account`. `contact` names columns of a row of
 * contacts. Reads devices_contact, or the primary key where the id is asked for as well.
 */
export function reachableDevices(contact: { organizationId: string; id: string }): string {
  return `select d.id, ${accountOfDevice} as account
       from devices d
       where d.organization_id = ${contact.organizationId} and d.contact_id = ${contact.id} and ${getsPushes}`;
}

export type ContactOfDevices = { organizationId: string; contactId: string };

/** A device, and by which account of its organization it is reached: its platform, and the environment or host. */
export type ReachedDevice = { id: string; account: string };

const selectTargets = statement<{
  position: number;
  has_devices: boolean;
  id: string | null;
  account: string | null;
}>(
  'devices_select_targets',
  `select wanted.position::integer as position, owned.has_devices, target.id, target.account
   from unnest($1::uuid[], $2::uuid[]) with ordinality as wanted (organization_id, contact_id, position)
   cross join lateral (
     select exists (
       select
       from devices d
       where ${hasKeyOf('d', 'wanted', ['contact_id'])}
     ) as has_devices
   ) owned
   left join lateral (
     select d.id, ${accountOfDevice} as account
     from devices d
     where ${hasKeyOf('d', 'wanted', ['contact_id'])} and ${getsPushes}
     order by d.id desc
     limit ${devicesMax}
   ) target on true
   where owned.has_devices
   order by wanted.position, target.id desc`,
);

/** The devices of each contact that get pushes, newest first. Reads devices_contact; contacts without any are missing. */
export async function findTargets(
  connection: Connection,
  contacts: readonly ContactOfDevices[],
): Promise<Map<number, ReachedDevice[]>> {
  const rows = await connection.rows(selectTargets, [
    contacts.map(({ organizationId }) => organizationId),
    contacts.map(({ contactId }) => contactId),
  ]);
  const targets = new Map<number, ReachedDevice[]>();
  for (const { position, id, account } of rows) {
    const own = targets.get(position - 1) ?? [];
    if (id !== null && account !== null) own.push({ id, account });
    targets.set(position - 1, own);
  }
  return targets;
}

export type LoadedRow = DeviceRow & {
  organization_id: string;
  is_enabled: boolean;
  credentials_id: string | null;
};

const selectMany = statement<LoadedRow>(
  'devices_select_many',
  `select d.organization_id, ${deviceColumns}, ${isEnabled} as is_enabled, c.id as credentials_id
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   join devices d on ${hasKeyOf('d', 'wanted', ['id'])}
   left join push_credentials c on ${hasKeyOf('c', 'd', ['platform'])}`,
);

/** Those of the devices that are there, whatever their status, by their primary key. */
export async function findDevices(
  connection: Connection,
  devices: readonly DeviceKey[],
): Promise<LoadedRow[]> {
  return connection.rows(selectMany, [
    devices.map(({ organizationId }) => organizationId),
    devices.map(({ id }) => id),
  ]);
}

const selectBySecret = statement<{
  position: number;
  organization_id: string;
  id: string;
  installation_id: string;
  contact_id: string;
}>(
  'devices_select_by_secret',
  `select given.position::integer as position, found.*
   from unnest($1::bytea[]) with ordinality as given (secret_sha256, position)
   cross join lateral (
     select d.organization_id, d.id, d.installation_id, d.contact_id
     from devices d
     where d.secret_sha256 = given.secret_sha256 and ${isNotDeleted('d.organization_id')}
     offset 0
   ) found`,
);

/**
 * For each digest whose secret it is, or null: over all organizations, which only a connection outside of the second wall
 * sees. Reads devices_secret.
 */
export async function findDevicesBySecret(
  connection: Connection,
  digests: readonly Buffer[],
): Promise<((DeviceKey & { installationId: string; contactId: string }) | null)[]> {
  const rows = await connection.rows(selectBySecret, [digests]);
  const found = new Map(
    rows.map((row) => [
      row.position - 1,
      {
        organizationId: row.organization_id,
        id: row.id,
        installationId: row.installation_id,
        contactId: row.contact_id,
      },
    ]),
  );
  return digests.map((_digest, index) => found.get(index) ?? null);
}

/** A token that a service refused for good. */
export type DeadToken = DeviceKey & {
  tokenSha256: Buffer;
  platform: Platform;
  status: RetiredStatus;
  /** For people: `unregistered`, for example. */
  reason: string;
  /** Since when the service knows it, if it says so. */
  toldAt: Date | null;
};

const retire = statement<{ organization_id: string; contact_id: string; was_active: boolean }>(
  'devices_retire',
  `with told as (
     select distinct on (organization_id, id, token_sha256) *
     from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::timestamptz[])
       as told (organization_id, id, platform, token_sha256, status, reason, told_at)
     order by organization_id, id, token_sha256, told_at nulls first
   ), held as (
     select t.*, d.contact_id, d.status as present, d.token_sha256 = t.token_sha256 as is_held,
       coalesce(d.token_sha256 = t.token_sha256 and d.registered_at > t.told_at, false) as is_outdated
     from told t
     left join lateral (
       select d.contact_id, d.status, d.token_sha256, d.registered_at
       from devices d
       where ${hasKeyOf('d', 't', ['id'])}
       for no key update of d
     ) d on true
   ), noted as (
     insert into dead_device_tokens (organization_id, platform, token_sha256, status, reason, created_at)
     select distinct on (organization_id, platform, token_sha256)
       organization_id, platform, token_sha256, status, reason, $8::timestamptz
     from held
     where not is_outdated
     order by organization_id, platform, token_sha256
     on conflict (organization_id, platform, token_sha256) do nothing
   )
   update devices d
   set status = case d.status when 'REVOKED' then 'REVOKED' else h.status end, updated_at = $8
   from held h
   where ${hasKeyOf('d', 'h', ['id'])} and h.is_held and not h.is_outdated
   returning d.organization_id, d.contact_id, h.present = 'ACTIVE' as was_active`,
);

/**
 * Retires each of the devices that still has the token which was refused, unless it has registered with it since the
 * service knew; and notes the tokens. One that was revoked stays so. Returns the contacts of those that were active.
 * Devices are locked in the order of their organizations and ids. The transaction must plan by indexes.
 */
export async function retireDevices(
  transaction: Connection,
  told: readonly DeadToken[],
  at: Date,
): Promise<{ organizationId: string; contactId: string }[]> {
  if (told.length === 0) return [];
  const rows = await transaction.rows(retire, [
    told.map(({ organizationId }) => organizationId),
    told.map(({ id }) => id),
    told.map(({ platform }) => platform),
    told.map(({ tokenSha256 }) => tokenSha256),
    told.map(({ status }) => status),
    told.map(({ reason }) => reason),
    told.map(({ toldAt }) => toldAt),
    at,
  ]);
  return rows.flatMap((row) =>
    row.was_active ? [{ organizationId: row.organization_id, contactId: row.contact_id }] : [],
  );
}

/** A token of APNs that works in another environment than its device was registered for. */
export type MisplacedToken = DeviceKey & { tokenSha256: Buffer; environment: ApnsEnvironment };

const correctEnvironment = statement(
  'devices_correct_environments',
  `update devices d
   set apns_environment = found.environment, updated_at = $5
   from (
     select locked.organization_id, locked.id, told.environment
     from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[])
       as told (organization_id, id, token_sha256, environment)
     cross join lateral (
       select d.organization_id, d.id
       from devices d
       where ${hasKeyOf('d', 'told', ['id'])} and d.platform = 'ios' and d.token_sha256 = told.token_sha256
       for no key update of d skip locked
     ) locked
   ) found
   where ${hasKeyOf('d', 'found', ['id'])}`,
);

/**
 * Stores the environment for each of the devices that still has the token. One that somebody else has locked is left out,
 * so that nothing waits, in whatever order others lock: its next push finds out again. The transaction must plan by
 * indexes.
 */
export async function correctEnvironments(
  transaction: Connection,
  told: readonly MisplacedToken[],
  at: Date,
): Promise<void> {
  if (told.length === 0) return;
  await transaction.rows(correctEnvironment, [
    told.map(({ organizationId }) => organizationId),
    told.map(({ id }) => id),
    told.map(({ tokenSha256 }) => tokenSha256),
    told.map(({ environment }) => environment),
    at,
  ]);
}

/**
 * SQL: a contact has an active device; of one platform, unless that is null. `contact` names columns of a row of
 * contacts, and `bind` makes a value a parameter. Reads devices_contact.
 */
export function hasActiveDevice(
  platform: Platform | null,
  contact: { organizationId: string; id: string },
  bind: (value: unknown) => string,
): Predicate {
  const isOfPlatform = platform === null ? 'true' : `device.platform = ${bind(platform)}::text`;
  return toPredicate(`exists (
      select
      from devices device
      where device.organization_id = ${contact.organizationId}
        and device.contact_id = ${contact.id}
        and device.status = 'ACTIVE'
        and ${toPredicate(isOfPlatform)}
    )`);
}
