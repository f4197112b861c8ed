import { type Clock, dateOf, now, parseTimestamp } from '../platform/clock.ts';
import { conflict, forbidden, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import type { Page } from '../platform/http/pagination.ts';
import type { NewId } from '../platform/ids.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { AddressedChannel } from './contact-fields.ts';
import { normaliseAddress } from './suppressed-address.ts';
import type { SuppressionBody } from './suppression-schema.ts';
import {
  type AddressOnChannel,
  hashAddress,
  listSuppressions,
  logDeleted,
  type SuppressionQuery,
  type SuppressionToWrite,
  writeSuppressions,
} from './suppressions.ts';
import * as store from './suppression-store.ts';

/**
 * What an organization does with its suppressions by requests. It may add some of its own, and delete what was found out
 * of an address; what a person has said is a consent, and is changed where consents are.
 */
export type SuppressionRequestTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

export type PlacedSuppression = { suppression: store.StoredSuppression; isNew: boolean };

/** The bodies are as their schema and rules let them through. What is there already stays as it is, in the same order. */
export async function suppressByRequest(
  tools: SuppressionRequestTools,
  { organizationId, apiKeyId }: { organizationId: string; apiKeyId: string | null },
  bodies: readonly SuppressionBody[],
): Promise<PlacedSuppression[]> {
  const wanted = bodies.map((body): SuppressionToWrite => {
    const expiresMs = typeof body.expires_at === 'string' ? parseTimestamp(body.expires_at) : null;
    return {
      organizationId,
      channel: body.channel,
      address: normalised(body.channel, body.address),
      reason: 'manual',
      scope: body.scope ?? 'all',
      note: body.note ?? null,
      source: { type: 'api_key', id: apiKeyId },
      expiresAt: expiresMs === null ? null : dateOf(expiresMs),
    };
  });
  if (wanted.length === 0) return [];
  const keys = wanted.map((one) => keyOf(tools, one));
  const written = await tools.database.asOrganizations([organizationId], (transaction) =>
    writeSuppressions(transaction, tools, wanted),
  );
  const placeOf = (key: { channel: string; addressHash: Buffer }, scope: string) =>
    `${key.channel} ${key.addressHash.toString('hex')} ${scope}`;
  const byPlace = new Map(
    written.map((placed) => [placeOf(placed.suppression, placed.suppression.scope), placed]),
  );
  return wanted.map(({ scope = 'all' }, index) => {
    const key = keys[index];
    const place = key === undefined ? '' : placeOf(key, scope);
    const placed = byPlace.get(place);
    if (placed === undefined) throw new Error('a suppression was neither made nor there');
    // The same one later in the request finds it there.
    byPlace.set(place, { ...placed, isNew: false });
    return placed;
  });
}

function normalised(channel: AddressedChannel, address: string): string {
  const text = normaliseAddress(channel, address);
  if (text === null) throw new Error('an address that its rule has let through is none');
  return text;
}

function keyOf(
  { secrets }: Pick<SuppressionRequestTools, 'secrets'>,
  { organizationId, channel, address }: AddressOnChannel,
): store.SuppressionKey {
  return { organizationId, channel, addressHash: hashAddress(secrets, { organizationId, address }) };
}

export async function listByRequest(
  tools: SuppressionRequestTools,
  wanted: { organizationId: string; filter: SuppressionQuery; page: Page },
): Promise<store.StoredSuppression[]> {
  return tools.database.asOrganizations([wanted.organizationId], (transaction) =>
    listSuppressions(transaction, tools, wanted),
  );
}

/** Null if there is none of the organization that holds. */
export async function readSuppression(
  tools: SuppressionRequestTools,
  { organizationId, id }: { organizationId: string; id: string },
): Promise<store.StoredSuppression | null> {
  return tools.database.asOrganizations([organizationId], (transaction) =>
    store.findSuppressionById(transaction, { organizationId, id, at: now(tools.clock) }),
  );
}

/** For each address, as it was given, all that suppress it. */
export async function checkAddresses(
  tools: SuppressionRequestTools,
  {
    organizationId,
    channel,
    addresses,
  }: { organizationId: string; channel: AddressedChannel; addresses: readonly string[] },
): Promise<{ address: string; suppressions: store.StoredSuppression[] }[]> {
  const keys = addresses.map((address) =>
    keyOf(tools, { organizationId, channel, address: normalised(channel, address) }),
  );
  const hashes = keys.map(({ addressHash }) => addressHash.toString('hex'));
  const once = new Map(keys.map((key, index) => [hashes[index], key]));
  const found = await tools.database.asOrganizations([organizationId], (transaction) =>
    store.findSuppressions(transaction, [...once.values()], now(tools.clock)),
  );
  const byHash = groupBy(found, ({ addressHash }) => addressHash.toString('hex'));
  return addresses.map((address, index) => ({
    address,
    suppressions: byHash.get(hashes[index] ?? '') ?? [],
  }));
}

export type DeletionOutcome = 'deleted' | PublicError;

/** In the order of the ids, which may be in upper case, and more than once. */
export async function deleteByRequest(
  tools: SuppressionRequestTools,
  {
    organizationId,
    ids,
    isComplaintMeant,
  }: { organizationId: string; ids: readonly string[]; isComplaintMeant: boolean },
): Promise<DeletionOutcome[]> {
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const found = await store.lockSuppressions(transaction, { organizationId, ids, at: now(tools.clock) });
    const refusals = new Map(found.map((one) => [one.id, refuseDeletion(one, isComplaintMeant)]));
    const deletable = found.flatMap(({ id }) => (refusals.get(id) === null ? [id] : []));
    if (deletable.length > 0) {
      const deleted = await store.deleteSuppressionsByIds(transaction, organizationId, deletable);
      await logDeleted(transaction, tools, deleted);
    }
    return ids.map((id) => {
      const refusal = refusals.get(id.toLowerCase());
      return refusal === undefined ? resourceNotFound() : (refusal ?? 'deleted');
    });
  });
}

/** Null if the organization may delete it. */
function refuseDeletion(
  { reason, channel }: store.StoredSuppression,
  isComplaintMeant: boolean,
): PublicError | null {
  switch (reason) {
    case 'operator':
      return new PublicError(
        forbidden,
        'The operator has suppressed this address, and only the operator can lift it.',
      );
    case 'unsubscribe':
      return new PublicError(
        conflict,
        `The owner of this address has opted out: set the consent of the contact that has it, with {"consent": {"${channel}": "subscribed"}} in PATCH /v1/contacts/:id, once they ask for it.`,
      );
    case 'complaint':
      return isComplaintMeant
        ? null
        : new PublicError(
            conflict,
            'The owner of this address has reported a message as spam: repeat the request with confirm=complaint if it is to be written to all the same.',
          );
    case 'hard_bounce':
    case 'soft_bounces':
    case 'manual':
    case 'unreachable':
      return null;
  }
}
