import type { NewId } from '../platform/ids.ts';
import { generateDeviceSecret } from './device-secret.ts';
import { traceOfInstallation, traceOfToken } from './device-opt-outs.ts';
import type { RetiredStatus } from './schema.ts';
import type { DeviceRow, TokenKey } from './store.ts';

/**
 * What becomes of devices when installations register, one after the other.
 *
 * - A device is `REVOKED` as long as it is opted out. A logout is undone when another contact registers there. An opt-out
 *   is not, and it follows its token to another installation, so that nobody has to opt out twice.
 *   An opt-out also outlives the device that it was said on (`device-opt-outs.ts`).
 * - Else it is retired as long as its token is one that was refused for good, and `ACTIVE` otherwise.
 * - A contact has `devicesMax` active devices at most. One more replaces the one that was silent longest.
 * - A token is that of the installation which gave it last. The one that had it is left without one, and `EXPIRED`.
 */

/** An installation that registers, for a contact that is there. */
export type Registration = Pick<
  DeviceRow,
  | 'installation_id'
  | 'contact_id'
  | 'platform'
  | 'apns_environment'
  | 'p256dh_key'
  | 'auth_key'
  | 'vapid_public_key'
  | 'sdk_version'
  | 'app_version'
  | 'os_version'
  | 'device_model'
  | 'device_manufacturer'
  | 'device_timezone'
  | 'device_locale'
> & {
  token: string;
  token_sha256: Buffer;
  /** Undefined where nothing was said of it. */
  enablement_status: DeviceRow['enablement_status'] | undefined;
};

export type RegisteredDevice = {
  kind: 'registered';
  device: DeviceRow;
  /** Of a device that was not there before. */
  secret: string | null;
  isSuppressed: boolean;
};

export type PlannedOutcome = RegisteredDevice;

/** What the registrations may concern, as it was locked. */
export type PresentDevices = {
  devices: readonly DeviceRow[];
  deadTokens: readonly (TokenKey & { status: RetiredStatus })[];
  /** What is known of devices on which somebody has opted out, and which are gone. */
  optedOut: ReadonlySet<string>;
};

export type RegistrationPlan = {
  /** In the order of the registrations. */
  outcomes: PlannedOutcome[];
  /** Devices that must give up the token that they have before others are written. */
  releasedIds: string[];
  written: DeviceRow[];
  /** Contacts of whom a device became active, or is it no more. */
  changedContactIds: string[];
};

export function planRegistrations(
  tools: { newId: NewId; at: Date },
  present: PresentDevices,
  registrations: readonly Registration[],
): RegistrationPlan {
  const { newId, at } = tools;
  const before = new Map(present.devices.map((device) => [device.id, device]));
  const byInstallation = new Map(present.devices.map((device) => [device.installation_id, device]));
  const byToken = new Map(
    present.devices.flatMap((device) => {
      const key = tokenKeyOf(device);
      return key === null ? [] : [[key, device.installation_id] as const];
    }),
  );
  const deaths = new Map(
    present.deadTokens.map((dead) => [joinTokenKey(dead.platform, dead.tokenSha256), dead.status]),
  );
  const written = new Map<string, DeviceRow>();

  const put = (device: DeviceRow) => {
    const replaced = byInstallation.get(device.installation_id);
    const freed = replaced === undefined ? null : tokenKeyOf(replaced);
    if (freed !== null && byToken.get(freed) === device.installation_id) byToken.delete(freed);
    const taken = tokenKeyOf(device);
    if (taken !== null) byToken.set(taken, device.installation_id);
    byInstallation.set(device.installation_id, device);
    written.set(device.id, device);
  };

  const register = (registration: Registration): PlannedOutcome => {
    const known = byInstallation.get(registration.installation_id);
    const token = joinTokenKey(registration.platform, registration.token_sha256);
    const holderId = byToken.get(token);
    const holder =
      holderId === undefined || holderId === registration.installation_id
        ? undefined
        : byInstallation.get(holderId);
    const death = deaths.get(token);
    const revocation =
      findRevocation(registration, known, holder) ??
      (isOptedOut(present.optedOut, registration, { known, holder }) ? 'opt_out' : null);
    const status = revocation === null ? (death ?? 'ACTIVE') : 'REVOKED';

    if (holder !== undefined) {
      put({
        ...holder,
        token: null,
        token_sha256: null,
        status: holder.status === 'ACTIVE' ? 'EXPIRED' : holder.status,
        updated_at: at,
      });
    }
    const created = known === undefined ? generateDeviceSecret() : null;
    const device: DeviceRow = {
      ...registration,
      id: known?.id ?? newId(),
      status,
      revoked_by: revocation,
      opted_out: revocation !== null,
      enablement_status:
        registration.enablement_status === undefined
          ? (known?.enablement_status ?? null)
          : registration.enablement_status,
      secret_sha256: created?.digest ?? requireSecret(known),
      registered_at: at,
      created_at: known?.created_at ?? at,
      updated_at: at,
    };
    put(device);
    return {
      kind: 'registered',
      device,
      secret: created?.secret ?? null,
      isSuppressed: death !== undefined,
    };
  };

  const outcomes = registrations.map(register);
  return {
    outcomes,
    releasedIds: [...written.values()].flatMap(({ id, token_sha256: token }) => {
      const held = before.get(id)?.token_sha256 ?? null;
      return held === null || (token !== null && held.equals(token)) ? [] : [id];
    }),
    written: [...written.values()],
    changedContactIds: listChangedContacts(before, [...written.values()]),
  };
}

/** Why the device stays revoked; null if it does not. One whose opt-out was lifted is revoked until it registers. */
function findRevocation(
  registration: Registration,
  known: DeviceRow | undefined,
  holder: DeviceRow | undefined,
): DeviceRow['revoked_by'] {
  if (holder?.opted_out === true && holder.revoked_by === 'opt_out') return 'opt_out';
  if (known?.opted_out !== true) return null;
  const isUndone = known.revoked_by === 'logout' && known.contact_id !== registration.contact_id;
  return isUndone ? null : known.revoked_by;
}

/** Asked where no device is there that would know. */
function isOptedOut(
  optedOut: ReadonlySet<string>,
  registration: Registration,
  { known, holder }: { known: DeviceRow | undefined; holder: DeviceRow | undefined },
): boolean {
  if (known === undefined && optedOut.has(traceOfInstallation(registration))) return true;
  const hadToken = known?.token_sha256?.equals(registration.token_sha256) === true;
  return holder === undefined && !hadToken && optedOut.has(traceOfToken(registration) ?? '');
}

function requireSecret(known: DeviceRow | undefined): Buffer {
  if (known === undefined) throw new Error('a new device has a secret of its own');
  return known.secret_sha256;
}

/** What segments ask of devices is which contacts have active ones, on which platform. */
function listChangedContacts(
  before: ReadonlyMap<string, DeviceRow>,
  written: readonly DeviceRow[],
): string[] {
  const changed = new Set<string>();
  for (const device of written) {
    const was = before.get(device.id);
    const sides = [was, device].map((side) => (side?.status === 'ACTIVE' ? side : undefined));
    const [wasActive, isActive] = sides;
    if (wasActive?.contact_id === isActive?.contact_id && wasActive?.platform === isActive?.platform)
      continue;
    for (const side of sides) if (side !== undefined) changed.add(side.contact_id);
  }
  return [...changed].sort();
}

function tokenKeyOf({ platform, token_sha256: digest }: DeviceRow): string | null {
  return digest === null ? null : joinTokenKey(platform, digest);
}

function joinTokenKey(platform: string, digest: Buffer): string {
  return `${platform} ${digest.toString('base64')}`;
}
