import {
  insertContactChange,
  lockContacts,
  type ResolvedContact,
  resolveContacts,
} from '../audience/audience.ts';
import { parseEndpoint } from '../channels/push/endpoint.ts';
import { type Clock, now } from '../platform/clock.ts';
import { overloaded } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import {
  type Connection,
  type Database,
  isConflict,
  type Transaction,
  violatedIndex,
} from '../platform/postgres/database.ts';
import { type Secrets, sha256 } from '../platform/secrets.ts';
import { findDeviceOptOuts, keepDeviceOptOuts } from './device-opt-outs.ts';
import { findPublicParts, lockCredentials, type PublicParts } from './credential-store.ts';
import { type PlannedOutcome, planRegistrations, type Registration } from './registration-plan.ts';
import type { Platform, RegistrationBody } from './schema.ts';
import { findMissingAddress } from './rules.ts';
import * as store from './store.ts';

export type RegistrationTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
};

export type RegistrationOutcome =
  | PlannedOutcome
  /** Nothing says where the device is reached. */
  | { kind: 'no_address'; issues: readonly string[] }
  | { kind: 'no_contact'; resolved: Exclude<ResolvedContact, { kind: 'found' }> }
  /** The organization has not set up the platform. */
  | { kind: 'no_credentials'; platform: Platform };

/** Two registrations of one installation at once meet once; more tries are for many of them. */
const triesMax = 5;

/**
 * Registers installations in their order, each as if it were alone: what is wrong with one keeps no other from being
 * registered. Rejects with a PublicError (503) if others keep registering the same installations meanwhile.
 */
export async function registerDevices(
  tools: RegistrationTools,
  organizationId: string,
  bodies: readonly RegistrationBody[],
): Promise<{ outcomes: RegistrationOutcome[]; hasChanged: boolean }> {
  if (bodies.length === 0) return { outcomes: [], hasChanged: false };
  for (let tries = 1; ; tries += 1) {
    try {
      return await tools.database.asOrganizationsByIndex([organizationId], (transaction) =>
        registerOnce(tools, transaction, organizationId, bodies),
      );
    } catch (cause) {
      // An installation or a token came that was not there to be locked: it is now.
      if (!isMeeting(cause)) throw cause;
      if (tries === triesMax)
        throw overloaded('The same installations are registered elsewhere. Try again in a moment.');
    }
  }
}

function isMeeting(cause: unknown): boolean {
  if (isConflict(cause)) return true;
  const index = violatedIndex(cause);
  return index === 'devices_installation' || index === 'devices_token';
}

/** Locks contacts, then devices, each in the order of their ids; a deletion of contacts does the same. */
async function registerOnce(
  tools: RegistrationTools,
  transaction: Transaction,
  organizationId: string,
  bodies: readonly RegistrationBody[],
): Promise<{ outcomes: RegistrationOutcome[]; hasChanged: boolean }> {
  const [, credentials, resolved] = await Promise.all([
    lockCredentials(transaction, organizationId, 'shared'),
    findPublicParts(transaction, organizationId),
    resolveContacts(transaction, organizationId, bodies),
  ]);
  const found = await lockFound(transaction, organizationId, resolved);

  const judged = bodies.map((body, index): Registration | Exclude<RegistrationOutcome, PlannedOutcome> => {
    const issues = findMissingAddress(body.platform, (field) => body[field] !== undefined);
    if (issues.length > 0) return { kind: 'no_address', issues };
    const contact = resolved[index] ?? { kind: 'required' };
    if (contact.kind !== 'found') return { kind: 'no_contact', resolved: contact };
    // It was deleted a moment ago.
    if (!found.has(contact.id))
      return { kind: 'no_contact', resolved: { kind: 'not_found', by: 'contact_id' } };
    if (!credentials.has(body.platform)) return { kind: 'no_credentials', platform: body.platform };
    return toRegistration(body, contact.id, credentials);
  });
  const registrations = judged.flatMap((one) => ('kind' in one ? [] : [one]));
  const planned = await writeRegistrations(tools, transaction, organizationId, registrations);
  const outcomes = planned.outcomes.values();
  return {
    outcomes: judged.map((one) => ('kind' in one ? one : takeNext(outcomes))),
    hasChanged: planned.hasChanged,
  };
}

async function lockFound(
  transaction: Connection,
  organizationId: string,
  resolved: readonly ResolvedContact[],
): Promise<Set<string>> {
  const ids = new Set(resolved.flatMap((contact) => (contact.kind === 'found' ? [contact.id] : [])));
  return ids.size === 0 ? ids : lockContacts(transaction, organizationId, [...ids]);
}

async function writeRegistrations(
  tools: RegistrationTools,
  transaction: Transaction,
  organizationId: string,
  registrations: readonly Registration[],
): Promise<{ outcomes: PlannedOutcome[]; hasChanged: boolean }> {
  if (registrations.length === 0) return { outcomes: [], hasChanged: false };
  const { clock, newId } = tools;
  const at = now(clock);
  const tokens = registrations.map(({ platform, token_sha256 }) => ({ platform, tokenSha256: token_sha256 }));
  const contactIds = [...new Set(registrations.map(({ contact_id }) => contact_id))];
  const installationIds = registrations.map(({ installation_id }) => installation_id);
  const [devices, deadTokens] = await Promise.all([
    store.lockConcernedDevices(transaction, organizationId, { installationIds, tokens }),
    store.findDeadTokens(transaction, organizationId, tokens),
  ]);
  const optedOut = await findDeviceOptOuts(
    transaction,
    tools,
    organizationId,
    listStrangers(registrations, devices),
  );
  const plan = planRegistrations({ newId, at }, { devices, deadTokens, optedOut }, registrations);
  const { releasedIds, written, changedContactIds } = plan;
  await Promise.all([
    ...(releasedIds.length > 0 ? [store.releaseTokens(transaction, organizationId, releasedIds)] : []),
    ...(written.length > 0 ? [store.writeDevices(transaction, organizationId, written)] : []),
    ...(changedContactIds.length > 0
      ? [insertContactChange(transaction, { organizationId, id: newId(), contactIds: changedContactIds })]
      : []),
  ]);
  await keepDeviceOptOuts(
    transaction,
    tools,
    organizationId,
    written.filter(({ revoked_by: revokedBy }) => revokedBy === 'opt_out'),
  );
  // After the new ones, which have just been heard of.
  const retiredIds = await store.retireSilent(transaction, { organizationId, contactIds, at });
  const isRetired = new Set(retiredIds);
  return {
    outcomes: plan.outcomes.map((outcome) =>
      isRetired.has(outcome.device.id)
        ? { ...outcome, device: { ...outcome.device, status: 'EXPIRED' as const } }
        : outcome,
    ),
    hasChanged: changedContactIds.length > 0,
  };
}

/** Those whose installation or token is new here. An app that starts again, as it was, is asked about nothing. */
function listStrangers(
  registrations: readonly Registration[],
  devices: readonly store.DeviceRow[],
): Registration[] {
  const known = new Map(devices.map((device) => [device.installation_id, device]));
  return registrations.filter(({ installation_id: id, token_sha256: digest }) => {
    const device = known.get(id);
    return device?.token_sha256?.equals(digest) !== true;
  });
}

function takeNext(outcomes: Iterator<PlannedOutcome, undefined>): PlannedOutcome {
  const { value } = outcomes.next();
  if (value === undefined) throw new Error('a registration has no outcome');
  return value;
}

function toRegistration(body: RegistrationBody, contactId: string, credentials: PublicParts): Registration {
  const token = tokenOf(body);
  const isWeb = body.platform === 'web';
  return {
    installation_id: body.installation_id,
    contact_id: contactId,
    platform: body.platform,
    token,
    token_sha256: sha256(token),
    apns_environment: body.platform === 'ios' ? (body.apns_environment ?? 'production') : null,
    p256dh_key: isWeb ? toBase64Url(body.p256dh_key ?? '') : null,
    auth_key: isWeb ? toBase64Url(body.auth_key ?? '') : null,
    vapid_public_key: isWeb ? (credentials.get('web')?.public_key ?? null) : null,
    enablement_status: body.enablement_status,
    sdk_version: orNull(body.sdk_version),
    app_version: orNull(body.app_version),
    os_version: orNull(body.os_version),
    device_model: orNull(body.device_model),
    device_manufacturer: orNull(body.device_manufacturer),
    device_timezone: body.device_timezone ?? null,
    device_locale: body.device_locale ?? null,
  };
}

/** Keys come in either alphabet, with padding or without. */
function toBase64Url(text: string): string {
  return Buffer.from(text, 'base64url').toString('base64url');
}

/** An app that does not know a detail may leave it empty. */
function orNull(text: string | undefined): string | null {
  return text === undefined || text === '' ? null : text;
}

/** As it is compared: the same token or endpoint may be spelled in several ways. */
function tokenOf({ platform, device_token: token = '', endpoint = '' }: RegistrationBody): string {
  if (platform === 'web') return parseEndpoint(endpoint)?.href ?? endpoint;
  return platform === 'ios' ? token.toLowerCase() : token;
}
