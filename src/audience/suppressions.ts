import type { Channel } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { Suppression, SuppressionReason, SuppressionScope } from './schema.ts';
import * as store from './suppression-store.ts';

/** What suppressions need. The hash identifies an address after the address itself was erased. */
export type SuppressionTools = { clock: Clock; secrets: Secrets };

/** `address` is normalised: lower-case, domain as A-labels; or E.164; or what `toErasedKey` left of it. */
export type SuppressedAddress = { organizationId: string; address: string };

/**
 * The reason `unsubscribe` is stored in addition to an existing suppression, and alone can have the scope of marketing;
 * `unreachable` gives way to all others.
 */
export async function addSuppressions(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  suppressions: readonly (SuppressedAddress & { reason: SuppressionReason; scope?: SuppressionScope })[],
  at = now(tools.clock),
): Promise<void> {
  if (suppressions.length === 0) return;
  const rows = suppressions.map((suppression) => ({
    ...suppression,
    scope: suppression.scope ?? 'channel',
    address: isErasedKey(suppression.address) ? null : suppression.address,
    addressHash: hashAddress(tools.secrets, suppression),
  }));
  await store.insertSuppressions(connection, channel, rows, at);
}

/** Those of the addresses, as indexes, that are suppressed, and how. */
export async function findSuppressed(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<Map<number, store.SuppressionKind>> {
  return store.findSuppressed(connection, channel, hashAll(tools, addresses));
}

/** These addresses were reached, or are to be tried again. What else suppresses them stays. */
export async function liftUnreachable(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<void> {
  if (addresses.length === 0) return;
  await store.deleteUnreachable(connection, channel, hashAll(tools, addresses));
}

function hashAll({ secrets }: SuppressionTools, addresses: readonly SuppressedAddress[]) {
  return addresses.map((address) => ({ ...address, addressHash: hashAddress(secrets, address) }));
}

/** Removes everything but what its owner has said. Returns whether there was anything. */
export async function removeSuppression(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<boolean> {
  return store.deleteSuppression(connection, keyOf(tools, channel, address));
}

/** An address of a person on a channel. */
export type AddressOnChannel = SuppressedAddress & { channel: Channel };

/** Those of the addresses, as indexes, whose owners have opted out, of campaigns or of everything. */
export async function findOptOuts(
  connection: Connection,
  tools: SuppressionTools,
  addresses: readonly AddressOnChannel[],
): Promise<Set<number>> {
  if (addresses.length === 0) return new Set();
  return store.findOptOuts(connection, keysOf(tools, addresses));
}

/**
 * The owner has subscribed again, to what is in the scope, or to everything; other suppressions of the address stay.
 * Returns whether the owner had opted out until then.
 */
export async function takeBackOptOut(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
  { scope = null, saidUntil = null }: { scope?: SuppressionScope | null; saidUntil?: Date | null } = {},
): Promise<boolean> {
  return store.deleteOptOut(connection, keyOf(tools, channel, address), { scope, saidUntil });
}

/** Notes that a consent was given for these addresses: by a request with an API key, or by their owners or the operator. */
export async function noteGrants(
  connection: Connection,
  tools: SuppressionTools,
  addresses: readonly AddressOnChannel[],
  grant: store.ConsentGrant,
): Promise<void> {
  if (addresses.length === 0) return;
  await store.upsertGrants(connection, keysOf(tools, addresses), grant);
}

/** The last consent that was given for the address; null if there was none. */
export async function readGrant(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<store.ConsentGrant | null> {
  return store.findGrant(connection, keyOf(tools, channel, address));
}

/** Of two addresses that are one text, as texts and chat apps have them, the hash is made once. */
function keysOf(
  { secrets }: SuppressionTools,
  addresses: readonly AddressOnChannel[],
): store.SuppressionKey[] {
  const hashes = new Map<string, Buffer>();
  return addresses.map(({ organizationId, channel, address }) => {
    const text = `${organizationId} ${address}`;
    const addressHash = hashes.get(text) ?? hashAddress(secrets, { organizationId, address });
    hashes.set(text, addressHash);
    return { organizationId, channel, addressHash };
  });
}

function keyOf(
  { secrets }: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): store.SuppressionKey {
  return { organizationId: address.organizationId, channel, addressHash: hashAddress(secrets, address) };
}

/** The one that keeps the most from the address: everything on the channel, or campaigns alone. */
export async function readSuppression(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<Suppression | null> {
  return store.findSuppression(connection, keyOf(tools, channel, address));
}

/** Whether the owner of the address wants nothing more on the channel, and not only no campaigns. */
export async function hasOptedOutOfChannel(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<boolean> {
  const suppression = await readSuppression(connection, tools, channel, address);
  return suppression?.scope === 'channel' && suppression.optedOutAt !== null;
}

/** No address begins like that: a colon is not allowed in one. */
const erasedPrefix = 'erased:';

/**
 * The text that replaces an erased address. It does not reveal the address, but can still suppress it: a complaint may
 * come after the erasure.
 */
export function toErasedKey({ secrets }: SuppressionTools, address: SuppressedAddress): string {
  return `${erasedPrefix}${hashAddress(secrets, address).toString('hex')}`;
}

function isErasedKey(address: string): boolean {
  return address.startsWith(erasedPrefix);
}

/** The hashes of one organization reveal nothing about those of another. */
function hashAddress(secrets: Secrets, { organizationId, address }: SuppressedAddress): Buffer {
  if (isErasedKey(address)) return Buffer.from(address.slice(erasedPrefix.length), 'hex');
  return secrets.keyedHash(`${organizationId} ${address}`, 'suppression');
}

/** Deletes the readable form of these addresses, and keeps their suppressions. */
export async function eraseSuppressedAddresses(
  connection: Connection,
  tools: SuppressionTools,
  addresses: readonly SuppressedAddress[],
): Promise<void> {
  if (addresses.length === 0) return;
  await store.clearAddresses(
    connection,
    addresses.map((address) => ({
      organizationId: address.organizationId,
      addressHash: hashAddress(tools.secrets, address),
    })),
  );
}
