import {
  type AddressErasure,
  type ContactErasure,
  type Erasure,
  eraseSuppressedAddresses,
  findErasingOrganizations,
  findHeldAddresses,
  findNextErasureAt,
  finishErasure,
  postponeErasure,
  type SuppressionTools,
  takeDueAddress,
  takeDueContact,
  toErasedKey,
} from '../../audience/audience.ts';
import { forgetReached } from '../../chat-templates/chat-templates.ts';
import { deleteEventsOfContact } from '../../events/events.ts';
import { dateOf, now } from '../../platform/clock.ts';
import { lowestIdAt } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import type { ChoreTools } from '../../platform/queue/chore.ts';
import { pauseAfterFailureMs } from '../../platform/queue/pauses.ts';
import { busyPauseMs, startTurns } from '../../platform/queue/turns.ts';
import { forgetCopies, forgetMessages } from '../../sandbox/sandbox.ts';
import * as store from './store.ts';
import type { MessageChannels } from '../channel.ts';
import { cancelScheduledOf } from '../scheduling.ts';
import { changeRecipients, type RecipientTools } from '../recipients/recipients.ts';
import type { ChangedRecipient } from '../recipients/store.ts';

export type ErasureTools = ChoreTools &
  SuppressionTools &
  RecipientTools & {
    channels: MessageChannels;
    /** Smaller in tests. */
    recipientsMax?: number;
    eventsMax?: number;
  };

/** Recipients that are erased in one transaction. */
const defaultRecipientsMax = 500;
/** Events that are deleted in one transaction; each is a row, and entries in two indexes. */
const defaultEventsMax = 5_000;
/** A message that is still queued needs its address. It is looked at again after this time. */
const pendingRetryMs = 60 * 60_000;
/** A message that was accepted before the deletion may be committed after it. By this time it has been. */
const lastLookMs = 60_000;

/**
 * Erases deleted contacts from the messages that were sent to them, and what they did. The outcome of each delivery is
 * kept, the address is not; events are deleted. Messages are found in two ways:
 *
 * - By the addresses that the contact had when it was deleted. Messages sent after the deletion are left alone: the
 *   address may belong to a new contact.
 * - By the id of the contact, which a campaign's recipients have, whatever the address was. A former address may belong
 *   to another contact by now, whose messages are left alone. So are transactional messages to a former address: nothing
 *   says whose they were.
 *
 * What waits for a time of its own is cancelled for these addresses: they would be kept until then.
 */
export function startErasing(tools: ErasureTools): { stop: () => Promise<void> } {
  const { database, clock } = tools;
  return startTurns(tools, {
    name: 'erasing addresses',
    topic: 'erasures',
    slicesMs: [null],
    organizationsMax,
    find: (after, limit) => findErasingOrganizations(database, { at: now(clock), after, limit }),
    work: async (organizationId) =>
      (await eraseNextOf(tools, { organizationId, at: now(clock) })) ? 'more' : busyPauseMs,
    findNextAt: (after) => findNextErasureAt(database, after),
  });
}

/** How many organizations are looked for at once. */
const organizationsMax = 100;

/** A turn of each organization. Returns false if nothing is due. */
export async function eraseNext(tools: ErasureTools, at: Date): Promise<boolean> {
  const due = await findErasingOrganizations(tools.database, { at, after: null, limit: organizationsMax });
  let isAny = false;
  for (const organizationId of due) isAny = (await eraseNextOf(tools, { organizationId, at })) || isAny;
  return isAny;
}

/**
 * Erases another batch of recipients of the address that has been due longest, and another of the contact that has been
 * due longest. Returns false if neither is due. An erasure that fails is postponed on its own, so that it does not block
 * others.
 */
async function eraseNextOf(tools: ErasureTools, wanted: TakingErasure): Promise<boolean> {
  const hadAddress = await eraseDue(tools, wanted, takeDueAddress, eraseSomeOfAddress);
  const hadContact = await eraseDue(tools, wanted, takeDueContact, eraseSomeOfContact);
  return hadAddress || hadContact;
}

type TakingErasure = { organizationId: string; at: Date };

type EraseSome<Due extends Erasure> = (
  tools: ErasureTools,
  transaction: Transaction,
  erasure: Due,
  at: Date,
) => Promise<void>;

async function eraseDue<Due extends Erasure>(
  tools: ErasureTools,
  wanted: TakingErasure,
  takeDue: (transaction: Transaction, wanted: TakingErasure) => Promise<Due | null>,
  eraseSome: EraseSome<Due>,
): Promise<boolean> {
  const { at } = wanted;
  const taken: Due[] = [];
  try {
    return await tools.database.transaction(async (transaction) => {
      const erasure = await takeDue(transaction, wanted);
      if (erasure === null) return false;
      taken.push(erasure);
      await eraseSome(tools, transaction, erasure, at);
      return true;
    });
  } catch (cause) {
    const [erasure] = taken;
    if (erasure === undefined) throw cause;
    // This also fails if the cause is that the database is down.
    await putOff(tools, erasure, at, cause);
    return true;
  }
}

async function putOff(tools: ErasureTools, erasure: Erasure, at: Date, cause: unknown): Promise<void> {
  const { organizationId, requestedAt } = erasure;
  const pauseMs = pauseAfterFailureMs(at.getTime() - requestedAt.getTime());
  await tools.database.asOrganizations([organizationId], (transaction) =>
    postponeErasure(transaction, erasure, dateOf(at.getTime() + pauseMs)),
  );
  tools.log.error(
    { err: cause, organization_id: organizationId, pause_ms: pauseMs },
    'address' in erasure
      ? 'an address of a deleted contact cannot be erased, and is tried again later'
      : 'what campaigns sent to a deleted contact cannot be erased, and is tried again later',
  );
}

async function eraseSomeOfAddress(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: AddressErasure,
  at: Date,
): Promise<void> {
  const { organizationId } = erasure;
  const erased = await transaction.asOrganizations([organizationId], () =>
    eraseAddress(tools, transaction, erasure, at),
  );
  // A campaign's message has other recipients too, so only this recipient's copies are deleted.
  const ofCampaigns = erased.filter(({ contactId }) => contactId !== null);
  await forgetMessages(
    transaction,
    organizationId,
    erased.flatMap(({ contactId, messageId }) => (contactId === null ? [messageId] : [])),
  );
  await forgetCopies(transaction, organizationId, ofCampaigns);
}

/**
 * Erases the next batch of recipients of an address, and schedules the following batch. Returns the erased recipients.
 */
async function eraseAddress(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: AddressErasure,
  at: Date,
): Promise<readonly ChangedRecipient[]> {
  const { organizationId, address } = erasure;
  const { recipientsMax = defaultRecipientsMax } = tools;
  const recipients = {
    organizationId,
    addressKey: address,
    erasedKey: toErasedKey(tools, erasure),
    beforeMessageId: lowestIdAt(erasure.requestedAt.getTime() + 1),
  };
  if (await cancelScheduledOf(tools, transaction, recipients, { at, limit: recipientsMax })) return [];
  const { changed: erased } = await changeRecipients(transaction, tools, {
    at,
    write: { kind: 'erasure_of_address', erased: recipients, recipientsMax },
    // Another contact may have the address by now. Segments must not count the erased messages as sent to that contact.
    told: { contacts: [{ organizationId, contactId: null, addressKey: address }] },
  });
  const emptied = erased.flatMap(({ contactId, messageId }) => (contactId === null ? [messageId] : []));
  await store.eraseMessages(transaction, organizationId, emptied);
  await forgetReached(tools, transaction, { organizationId, addresses: [address] });
  if (erased.length === recipientsMax) return erased;
  if (await store.hasPendingRecipients(transaction, recipients)) {
    await postponeErasure(transaction, erasure, dateOf(at.getTime() + pendingRetryMs));
    return erased;
  }
  if (await isLookedAtAgain(transaction, erasure, at)) return erased;
  // Messages delivered since the deletion may have bounced and suppressed the address again. What another contact has by
  // now is readable by right.
  const held = await findHeldAddresses(transaction, organizationId, [address]);
  if (!held.has(address)) await eraseSuppressedAddresses(transaction, tools, [erasure]);
  await finishErasure(transaction, erasure);
  return erased;
}

async function isLookedAtAgain(transaction: Transaction, erasure: Erasure, at: Date): Promise<boolean> {
  const lastLookAtMs = erasure.requestedAt.getTime() + lastLookMs;
  if (at.getTime() >= lastLookAtMs) return false;
  await postponeErasure(transaction, erasure, dateOf(lastLookAtMs));
  return true;
}

async function eraseSomeOfContact(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: ContactErasure,
  at: Date,
): Promise<void> {
  const { organizationId } = erasure;
  const erased = await transaction.asOrganizations([organizationId], () =>
    eraseContact(tools, transaction, erasure, at),
  );
  await forgetCopies(transaction, organizationId, erased);
}

/**
 * Deletes what the contact did. Then erases the next batch of its recipients in campaigns, and schedules the following batch. Returns the erased
 * recipients as they were before.
 */
async function eraseContact(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: ContactErasure,
  at: Date,
): Promise<store.ReadableRecipient[]> {
  const { organizationId } = erasure;
  const { recipientsMax = defaultRecipientsMax, eventsMax = defaultEventsMax } = tools;
  // It is still due, and comes again at once.
  if ((await deleteEventsOfContact(transaction, erasure, eventsMax)) === eventsMax) return [];
  const readable = await store.listReadableRecipients(transaction, erasure, recipientsMax);
  await continueByIndex(transaction);
  const settled = readable.filter(({ isWaiting }) => !isWaiting);
  if (settled.length > 0) await eraseReadable(tools, transaction, organizationId, settled, at);
  if (settled.length === recipientsMax) return settled;
  if (readable.length > settled.length) {
    await postponeErasure(transaction, erasure, dateOf(at.getTime() + pendingRetryMs));
    return settled;
  }
  if (!(await isLookedAtAgain(transaction, erasure, at))) await finishErasure(transaction, erasure);
  return settled;
}

async function eraseReadable(
  tools: ErasureTools,
  transaction: Transaction,
  organizationId: string,
  readable: readonly store.ReadableRecipient[],
  at: Date,
): Promise<void> {
  // The key is empty if the contact had lost its address when the campaign reached it.
  const addresses = [...new Set(readable.map(({ addressKey }) => addressKey))].filter((key) => key !== '');
  const erasedKeys = new Map(
    addresses.map((address) => [address, toErasedKey(tools, { organizationId, address })]),
  );
  await changeRecipients(transaction, tools, {
    at,
    holds: { messages: [], recipients: readable },
    write: {
      kind: 'erasure',
      recipients: readable.map((recipient) => ({
        ...recipient,
        erasedKey: erasedKeys.get(recipient.addressKey) ?? '',
      })),
    },
    // Segments counted these messages for the contact that has the address now.
    told: { contacts: addresses.map((addressKey) => ({ organizationId, contactId: null, addressKey })) },
  });
  const held = await findHeldAddresses(transaction, organizationId, addresses);
  await eraseSuppressedAddresses(
    transaction,
    tools,
    addresses.filter((address) => !held.has(address)).map((address) => ({ organizationId, address })),
  );
  await forgetReached(tools, transaction, { organizationId, addresses });
}
