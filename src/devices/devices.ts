import { insertContactChange, type SuppressionTools } from '../audience/audience.ts';
import { type Clock, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Transaction } from '../platform/postgres/database.ts';
import { forgetDeviceOptOuts } from './device-opt-outs.ts';
import type { ApnsEnvironment, DeviceStatus } from './schema.ts';
import * as store from './store.ts';
import type { ContactOfDevices, DeadToken, DeviceKey, MisplacedToken, ReachedDevice } from './store.ts';

/** What the other rooms may know of devices. */
export { type ApnsToken, shareApnsToken } from './apns-token.ts';
export {
  type AndroidCredentials,
  countedMax,
  type CredentialsContent,
  type CredentialsTools,
  examineCredentials,
  type FaultyCredentials,
  findFirstBrowserKey,
  type IosCredentials,
  listCredentials,
  type LoadedCredentials,
  loadPushCredentials,
  makeVapidPair,
  parseCredentials,
  setCredentials,
  type ShownCredentials,
  type WebCredentials,
} from './credentials.ts';
export { createDeviceRing, type DeviceRing, deviceSecretHelp } from './device-ring.ts';
export { makeSandboxCredentials } from './sandbox-credentials.ts';
export { deviceRules, pushHostsSetting } from './rules.ts';
export { describeDevices, deviceFormats, devicesMax, type Platform, platforms } from './schema.ts';
export {
  type ContactOfDevices,
  type DeadToken,
  type DeviceKey,
  findOwner,
  hasActiveDevice,
  type MisplacedToken,
  reachableDevices,
  type ReachedDevice,
} from './store.ts';

/** What a push to a contact would reach. */
export type PushTargets = {
  /** Active, and notifications may be shown on them; newest first, `devicesMax` of them at most. */
  devices: readonly ReachedDevice[];
  /** Whether the contact has any device at all: one that has none is skipped, one whose devices are of no use is refused. */
  hasDevices: boolean;
};

/** For each contact, in the order given. */
export async function findPushTargets(
  connection: Connection,
  contacts: readonly ContactOfDevices[],
): Promise<PushTargets[]> {
  const found = await store.findTargets(connection, contacts);
  return contacts.map((_contact, index) => ({
    devices: found.get(index) ?? [],
    hasDevices: found.has(index),
  }));
}

/** Where a device is reached. */
export type DeviceTarget =
  | { platform: 'android'; token: string; isInstrumented: boolean }
  | { platform: 'ios'; token: string; environment: ApnsEnvironment }
  /** Keys in base64url. */
  | { platform: 'web'; endpoint: string; p256dh: string; auth: string };

/** A device, as a delivery needs it. */
export type LoadedDevice = DeviceKey & {
  contactId: string;
  status: DeviceStatus;
  /** Whether notifications may be shown. */
  isEnabled: boolean;
  /** Null of one that has no token any more. */
  target: DeviceTarget | null;
  /** Of the token, for `retireDevices`; null where there is none. */
  tokenSha256: Buffer | null;
  /** Null where the organization has none for the platform any more. */
  credentialsId: string | null;
};

/** Those of the devices that are there, whatever their status. The transaction should plan by indexes. */
export async function loadDevices(
  connection: Connection,
  keys: readonly DeviceKey[],
): Promise<LoadedDevice[]> {
  const rows = await store.findDevices(connection, keys);
  return rows.map((row) => ({
    organizationId: row.organization_id,
    id: row.id,
    contactId: row.contact_id,
    status: row.status,
    isEnabled: row.is_enabled,
    target: toTarget(row),
    tokenSha256: row.token_sha256,
    credentialsId: row.credentials_id,
  }));
}

function toTarget(row: store.DeviceRow): DeviceTarget | null {
  const { platform, token } = row;
  if (token === null) return null;
  switch (platform) {
    case 'android':
      return { platform, token, isInstrumented: row.sdk_version !== null };
    case 'ios':
      return { platform, token, environment: row.apns_environment ?? 'production' };
    case 'web':
      return row.p256dh_key === null || row.auth_key === null
        ? null
        : { platform, endpoint: token, p256dh: row.p256dh_key, auth: row.auth_key };
  }
}

/**
 * Retires devices whose tokens were refused for good, as `DeadToken` says. Returns whether the work of segments must be
 * woken after the commit. The transaction must plan by indexes.
 */
export async function retireDevices(
  tools: { clock: Clock; newId: NewId },
  transaction: Transaction,
  told: readonly DeadToken[],
): Promise<boolean> {
  const changed = await store.retireDevices(transaction, told, now(tools.clock));
  const byOrganization = groupBy(changed, ({ organizationId }) => organizationId);
  await Promise.all(
    [...byOrganization].map(([organizationId, contacts]) =>
      insertContactChange(transaction, {
        organizationId,
        id: tools.newId(),
        contactIds: [...new Set(contacts.map(({ contactId }) => contactId))],
      }),
    ),
  );
  return changed.length > 0;
}

/** Stores where the tokens of devices work, as `MisplacedToken` says. The transaction must plan by indexes. */
export async function correctEnvironments(
  tools: { clock: Clock },
  transaction: Transaction,
  told: readonly MisplacedToken[],
): Promise<void> {
  await store.correctEnvironments(transaction, told, now(tools.clock));
}

/** A contact has said through the API that it wants pushes: its devices are opted out no more. */
export async function liftOptOuts(
  tools: SuppressionTools,
  transaction: Transaction,
  contact: { organizationId: string; id: string },
): Promise<void> {
  const lifted = await store.liftOptOuts(transaction, {
    organizationId: contact.organizationId,
    contactId: contact.id,
    at: now(tools.clock),
  });
  await forgetDeviceOptOuts(transaction, tools, contact.organizationId, lifted);
}
