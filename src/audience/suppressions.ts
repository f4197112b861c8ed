import type { Channel } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { readAddress } from '../channels/email/email.ts';
import type { Page } from '../platform/http/pagination.ts';
import { logSuppressions } from './logged-events.ts';
import { listSuppressions as listStored, type SuppressionFilter } from './suppression-listing-store.ts';
import type { SuppressionReason, SuppressionScope, SuppressionSource } from './schema.ts';
import * as store from './suppression-store.ts';

/** What suppressions need. The hash identifies an address after the address itself was erased. */
export type SuppressionTools = { clock: Clock; secrets: Secrets };

/** `address` is normalised: lower-case, domain as A-labels; or E.164; or what `toErasedKey` left of it. */
export type SuppressedAddress = { organizationId: string; address: string };

/** What it takes to make suppressions. */
export type SuppressingTools = SuppressionTools & { newId: NewId };

export type NewSuppression = SuppressedAddress & {
  reason: SuppressionReason;
  /** Everything if not given. */
  scope?: SuppressionScope;
  /** What the reason says if not given. */
  source?: SuppressionSource;
};

/** Where suppressions come from for the most part. */
const usualSources: Readonly<Record<SuppressionReason, SuppressionSource['type']>> = {
  hard_bounce: 'message',
  soft_bounces: 'message',
  complaint: 'message',
  unsubscribe: 'consent',
  manual: 'api_key',
  operator: 'operator',
  unreachable: 'message',
};

/**
 * An address has a suppression for each reason: those that are there for the same one stay as they are. `saidAt` is when
 * what its owner has said was said, for the reason `unsubscribe`. Returns those that were made.
 */
export async function addSuppressions(
  connection: Connection,
  tools: SuppressingTools,
  channel: Channel,
  suppressions: readonly NewSuppression[],
  saidAt = now(tools.clock),
): Promise<store.StoredSuppression[]> {
  const rows = suppressions.map((suppression) => ({ ...suppression, channel, saidAt }));
  const written = await writeSuppressions(connection, tools, rows);
  return written.flatMap(({ suppression, isNew }) => (isNew ? [suppression] : []));
}

export type SuppressionToWrite = NewSuppression & {
  channel: Channel;
  /** Of what its owner has said; just now if not given. */
  saidAt?: Date;
  note?: string | null;
  expiresAt?: Date | null;
};

/** In no order; of those that were there, the `manual` ones alone are returned for sure. */
export async function writeSuppressions(
  connection: Connection,
  tools: SuppressingTools,
  suppressions: readonly SuppressionToWrite[],
): Promise<{ suppression: store.StoredSuppression; isNew: boolean }[]> {
  if (suppressions.length === 0) return [];
  const createdAt = now(tools.clock);
  const rows = suppressions.map((suppression) => ({
    organizationId: suppression.organizationId,
    id: tools.newId(),
    channel: suppression.channel,
    addressHash: hashAddress(tools.secrets, suppression),
    reason: suppression.reason,
    scope: suppression.scope ?? 'all',
    address: isErasedKey(suppression.address) ? null : suppression.address,
    note: suppression.note ?? null,
    source: suppression.source ?? { type: usualSources[suppression.reason], id: null },
    optedOutAt: suppression.reason === 'unsubscribe' ? (suppression.saidAt ?? createdAt) : null,
    expiresAt: suppression.expiresAt ?? null,
  }));
  const ids = new Set(rows.map(({ id }) => id));
  const manual = rows.filter(({ reason }) => reason === 'manual');
  if (manual.length > 0) {
    const ended = await store.deleteExpiredOf(connection, manual, createdAt);
    await logSuppressions(
      connection,
      'suppression.deleted',
      ended,
      ({ expiresAt }) => expiresAt ?? createdAt,
    );
  }
  const written = (await store.insertSuppressions(connection, rows, createdAt)).map((suppression) => ({
    suppression,
    isNew: ids.has(suppression.id),
  }));
  const made = written.flatMap(({ suppression, isNew }) => (isNew ? [suppression] : []));
  await logSuppressions(connection, 'suppression.created', made, () => createdAt);
  return written;
}

/** Those of the addresses, as indexes, that are suppressed, and how. */
export async function findSuppressed(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<Map<number, store.SuppressionKind>> {
  return store.findSuppressed(connection, channel, hashAll(tools, addresses), now(tools.clock));
}

/** These addresses were reached, or are to be tried again. What else suppresses them stays. */
export async function liftUnreachable(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<void> {
  if (addresses.length === 0) return;
  await logDeleted(
    connection,
    tools,
    await store.deleteUnreachable(connection, channel, hashAll(tools, addresses)),
  );
}

function hashAll({ secrets }: SuppressionTools, addresses: readonly SuppressedAddress[]) {
  return addresses.map((address) => ({ ...address, addressHash: hashAddress(secrets, address) }));
}

/** Removes everything but what its owner has said. Returns whether there was anything. */
export async function removeSuppressions(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<boolean> {
  const deleted = await store.deleteSuppressions(connection, keyOf(tools, channel, address));
  await logDeleted(connection, tools, deleted);
  return deleted.length > 0;
}

/** To be called in the transaction that deletes them. */
export async function logDeleted(
  connection: Connection,
  { clock }: Pick<SuppressionTools, 'clock'>,
  deleted: readonly store.StoredSuppression[],
): Promise<void> {
  const at = now(clock);
  await logSuppressions(connection, 'suppression.deleted', deleted, () => at);
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
 * The owner has subscribed again, to everything; other suppressions of the address stay, and so does an opt-out that was
 * said after `saidUntil`. Returns whether the owner had opted out until then.
 */
export async function takeBackOptOut(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
  { saidUntil = null }: { saidUntil?: Date | null } = {},
): Promise<boolean> {
  const deleted = await store.deleteOptOuts(connection, keyOf(tools, channel, address), saidUntil);
  await logDeleted(connection, tools, deleted);
  return deleted.length > 0;
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

/** The last consents that were given for these addresses, by their indexes. */
export async function readGrants(
  connection: Connection,
  tools: SuppressionTools,
  addresses: readonly AddressOnChannel[],
): Promise<Map<number, store.ConsentGrant>> {
  return store.findGrants(connection, keysOf(tools, addresses));
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

export type SuppressionQuery = Omit<SuppressionFilter, 'search'> & { search?: string };

/** Newest first; one more than the page holds. */
export async function listSuppressions(
  connection: Connection,
  tools: SuppressionTools,
  {
    organizationId,
    filter: { search, ...filter },
    page,
  }: { organizationId: string; filter: SuppressionQuery; page: Page },
): Promise<store.StoredSuppression[]> {
  const at = now(tools.clock);
  if (search === undefined) return listStored(connection, { organizationId, filter, page, at });
  const addresses = new Set([search, readAddress(search)?.normalised ?? search]);
  const hashes = [...addresses].map((address) => hashAddress(tools.secrets, { organizationId, address }));
  const searching = { ...filter, search: { text: search, hashes } };
  return listStored(connection, { organizationId, filter: searching, page, at });
}

/** All that suppress the address now. The first is the one that keeps the most from it. */
export async function readSuppressions(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<store.StoredSuppression[]> {
  return store.findSuppressions(connection, [keyOf(tools, channel, address)], now(tools.clock));
}

/** Whether the owner of the address wants nothing more on the channel, and not only no campaigns. */
export async function hasOptedOutOfChannel(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  address: SuppressedAddress,
): Promise<boolean> {
  const optedOut = await findOptedOutOfChannel(connection, tools, channel, [address]);
  return optedOut.has(0);
}

/** The same of many: those whose owners want nothing more, as indexes. */
export async function findOptedOutOfChannel(
  connection: Connection,
  tools: SuppressionTools,
  channel: Channel,
  addresses: readonly SuppressedAddress[],
): Promise<Set<number>> {
  if (addresses.length === 0) return new Set();
  const keys = addresses.map((address) => keyOf(tools, channel, address));
  const nameOf = ({ organizationId, addressHash }: { organizationId: string; addressHash: Buffer }) =>
    `${organizationId} ${addressHash.toString('hex')}`;
  const found = await store.findSuppressions(connection, keys, now(tools.clock));
  const optedOut = new Set(
    found.filter(({ reason, scope }) => reason === 'unsubscribe' && scope === 'all').map(nameOf),
  );
  return new Set(keys.flatMap((key, index) => (optedOut.has(nameOf(key)) ? [index] : [])));
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
export function hashAddress(secrets: Secrets, { organizationId, address }: SuppressedAddress): Buffer {
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
