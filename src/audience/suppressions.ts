import type { Channel } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Connection, Transaction } from '../platform/postgres/database.ts';
import { isEqualDigest, type Secrets } from '../platform/secrets.ts';
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

/** Under a secret: `erased` have no address any more, so that nothing tells what they were hashed under. */
export type SuppressionCensus = { recognised: number; misfits: number; erased: number };

/** Larger lets a big installation hold more in memory, smaller takes more round trips. */
const censusBatch = 1_000;

/** Reads all suppressions, in batches, and counts those that these secrets recognise. */
export async function countRecognisedSuppressions(
  connection: Connection,
  secrets: Secrets,
): Promise<SuppressionCensus> {
  return visitSuppressions(connection, secrets, () => Promise.resolve());
}

/** Statements of a sample: a second or so, however much is stored. */
const sampleBatchesMax = 100;

/** After every hash: those that are stored have 32 octets. */
const lastHash = Buffer.alloc(33, 0xff);

/**
 * As `countRecognisedSuppressions`, of the first thousand of each organization and channel, and of a hundred thousand
 * altogether. They are in the order of their hashes, so that the first ones are any. `isWhole` is false if there may be
 * more.
 */
export async function sampleSuppressions(
  connection: Connection,
  secrets: Secrets,
): Promise<SuppressionCensus & { isWhole: boolean }> {
  const census = { recognised: 0, misfits: 0, erased: 0 };
  let after: store.StoredSuppression | null = null;
  let isWhole = true;
  for (let batches = 0; batches < sampleBatchesMax; batches += 1) {
    const batch: store.StoredSuppression[] = await store.readSuppressionBatch(connection, after, censusBatch);
    judgeBatch(secrets, batch, census);
    const [first, last] = [batch[0], batch.at(-1)];
    if (first === undefined || last === undefined || batch.length < censusBatch)
      return { ...census, isWhole };
    const isOfOne = first.organizationId === last.organizationId && first.channel === last.channel;
    if (isOfOne) isWhole = false;
    after = isOfOne ? { ...last, addressHash: lastHash } : last;
  }
  return { ...census, isWhole: false };
}

/**
 * Hashes again those whose address is known and which these secrets do not recognise; what is under the right hash
 * already is merged with them. No one else can write suppressions until the transaction ends.
 */
export async function rehashSuppressions(transaction: Transaction, secrets: Secrets): Promise<void> {
  await store.lockSuppressions(transaction);
  await visitSuppressions(transaction, secrets, (moves) => store.moveSuppressions(transaction, moves));
}

/** One that these secrets hash otherwise, and how. */
type Misfit = { from: store.StoredSuppression; addressHash: Buffer };

/** Adds to the census. */
function judgeBatch(
  secrets: Secrets,
  batch: readonly store.StoredSuppression[],
  census: SuppressionCensus,
): Misfit[] {
  const misfits: Misfit[] = [];
  for (const from of batch) {
    const { organizationId, address } = from;
    if (address === null) {
      census.erased += 1;
      continue;
    }
    const addressHash = hashAddress(secrets, { organizationId, address });
    if (isEqualDigest(from.addressHash, addressHash)) census.recognised += 1;
    else misfits.push({ from, addressHash });
  }
  census.misfits += misfits.length;
  return misfits;
}

/** Ends at the last key. What a move puts further on is met again there, and is right by then. */
async function visitSuppressions(
  connection: Connection,
  secrets: Secrets,
  onMisfits: (misfits: Misfit[]) => Promise<void>,
): Promise<SuppressionCensus> {
  const census = { recognised: 0, misfits: 0, erased: 0 };
  let after: store.StoredSuppression | null = null;
  for (;;) {
    const batch: store.StoredSuppression[] = await store.readSuppressionBatch(connection, after, censusBatch);
    const moves = judgeBatch(secrets, batch, census);
    if (moves.length > 0) await onMisfits(moves);
    after = batch.at(-1) ?? null;
    if (after === null || batch.length < censusBatch) return census;
  }
}
