import type { Channel } from '../accounts/accounts.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { isEqualDigest, type Secrets } from '../platform/secrets.ts';
import type { Suppression, SuppressionReason } from './schema.ts';
import * as store from './suppression-store.ts';

/** What suppressions need: the hash keeps an address recognisable after the address itself was erased. */
export type SuppressionTools = { clock: Clock; secrets: Secrets };

/** `address` is normalised: lower-case, domain as A-labels; or E.164; or what `toErasedKey` left of it. */
export type SuppressedAddress = { organizationId: string; address: string };

/** With the reason `unsubscribe`, that its owner wants nothing is kept beside whatever suppresses it already. */
export async function addSuppressions(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  suppressions: readonly (SuppressedAddress & { reason: SuppressionReason })[],
): Promise<void> {
  if (suppressions.length === 0) return;
  const rows = suppressions.map((suppression) => ({
    ...suppression,
    address: isErasedKey(suppression.address) ? null : suppression.address,
    addressHash: hashAddress(tools.secrets, suppression),
  }));
  await store.insertSuppressions(connection, channel, rows, now(tools.clock));
}

/** For each address, whether it is suppressed. */
export async function areSuppressed(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<boolean[]> {
  const found = await store.findSuppressed(
    connection,
    channel,
    addresses.map((address) => ({ ...address, addressHash: hashAddress(tools.secrets, address) })),
  );
  return addresses.map((_address, index) => found.has(index));
}

/** Returns whether the address was suppressed. It still is if its owner wants nothing, whoever else said so before. */
export async function removeSuppression(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<boolean> {
  return store.deleteSuppression(connection, {
    organizationId: address.organizationId,
    channel,
    addressHash: hashAddress(tools.secrets, address),
  });
}

/** Its owner wants something again; what else suppresses the address stays. */
export async function takeBackOptOut(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<void> {
  await store.deleteOptOut(connection, {
    organizationId: address.organizationId,
    channel,
    addressHash: hashAddress(tools.secrets, address),
  });
}

export async function readSuppression(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<Suppression | null> {
  return store.findSuppression(connection, {
    organizationId: address.organizationId,
    channel,
    addressHash: hashAddress(tools.secrets, address),
  });
}

/** No address begins like that: a colon is not allowed in one. */
const erasedPrefix = 'erased:';

/**
 * What stands in the place of an address that was erased. It tells nobody the address, and still suppresses it: a
 * complaint may come after the erasure.
 */
export function toErasedKey({ secrets }: SuppressionTools, address: SuppressedAddress): string {
  return `${erasedPrefix}${hashAddress(secrets, address).toString('hex')}`;
}

function isErasedKey(address: string): boolean {
  return address.startsWith(erasedPrefix);
}

/** One organization's hashes tell nothing about another's. */
function hashAddress(secrets: Secrets, { organizationId, address }: SuppressedAddress): Buffer {
  if (isErasedKey(address)) return Buffer.from(address.slice(erasedPrefix.length), 'hex');
  return secrets.keyedHash(`${organizationId} ${address}`, 'suppression');
}

/** Forgets how these addresses read, and keeps what hangs on them. */
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

/**
 * Of a sample of the suppressions whose address is still known, how many these secrets recognise: for an installation
 * that does not know yet which secret is its own.
 */
export async function countRecognisedSuppressions(
  connection: Connection,
  secrets: Secrets,
): Promise<{ tried: number; recognised: number }> {
  const sample = await store.sampleSuppressions(connection);
  const recognised = sample.filter(({ addressHash, ...address }) =>
    isEqualDigest(addressHash, hashAddress(secrets, address)),
  );
  return { tried: sample.length, recognised: recognised.length };
}
