import {
  type Erasure,
  eraseSuppressedAddresses,
  findNextErasureAt,
  finishErasure,
  postponeErasure,
  type SuppressionTools,
  takeDueErasure,
  toErasedKey,
} from '../audience/audience.ts';
import { dateOf, now } from '../platform/clock.ts';
import { lowestIdAt, type NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { continueByIndex } from '../platform/postgres/lookup.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import { forgetCopies, forgetMessages } from '../sandbox/sandbox.ts';
import * as store from './erasure-store.ts';
import { noteRecipientChanges } from './recipient-counts.ts';
import { findListeners, tellOfContacts } from './told-contacts.ts';

export type ErasureTools = ChoreTools & SuppressionTools & { newId: NewId };

/** The channel on which a deletion of contacts wakes whoever erases their addresses. */
export const erasureChannel = 'postillion_erasures';

/** Recipients of one transaction. */
const recipientsMax = 500;
/** A message that waits for its delivery needs its address: it is looked at again. */
const pendingRetryMs = 60 * 60_000;
/** A message may have been accepted before the deletion and committed after it: it is there by then. */
const lastLookMs = 60_000;

/**
 * Takes the addresses of deleted contacts out of the messages that were sent to them: whether they arrived stays, to
 * whom does not. What was sent after the deletion is somebody's new business and is left alone.
 */
export function startErasing(tools: ErasureTools): { stop: () => Promise<void> } {
  return startChore(tools, {
    name: 'erasing addresses',
    channel: erasureChannel,
    work: async () => {
      if (await tools.database.transaction((transaction) => eraseNext(tools, transaction, now(tools.clock))))
        return 'at once';
      return findNextErasureAt(tools.database);
    },
  });
}

/** Returns whether there was one to be erased. Whose it is, is known once it is taken. */
async function eraseNext(tools: ErasureTools, transaction: Transaction, at: Date): Promise<boolean> {
  const erasure = await takeDueErasure(transaction, at);
  if (erasure === null) return false;
  const { organizationId, address } = erasure;
  const erased = await transaction.asOrganizations([organizationId], () =>
    erase(tools, transaction, erasure, at),
  );
  const idsOf = (isCampaign: boolean) =>
    erased.filter((recipient) => recipient.isCampaign === isCampaign).map(({ messageId }) => messageId);
  await forgetMessages(transaction, organizationId, idsOf(false));
  await forgetCopies(transaction, organizationId, idsOf(true), address);
  return true;
}

/** Erases some more of an address, and says when the next of it is to be erased. Returns the recipients that had it. */
async function erase(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: Erasure,
  at: Date,
): Promise<store.ErasedRecipient[]> {
  const { organizationId, address } = erasure;
  const recipients = {
    organizationId,
    addressKey: address,
    erasedKey: toErasedKey(tools, erasure),
    beforeMessageId: lowestIdAt(erasure.requestedAt.getTime() + 1),
  };
  const erased = await store.eraseRecipients(transaction, recipients, recipientsMax);
  await continueByIndex(transaction);
  await noteRecipientChanges(transaction, tools.newId, erased);
  if (erased.length > 0) {
    // Somebody may have the address again: what was sent to it before is no longer theirs.
    const holder = { organizationId, contactId: null, addressKey: address };
    await tellOfContacts(transaction, tools.newId, await findListeners(transaction, [holder]), [holder]);
  }
  const emptied = erased.flatMap(({ isCampaign, messageId }) => (isCampaign ? [] : [messageId]));
  await store.eraseMessages(transaction, organizationId, emptied);
  if (erased.length === recipientsMax) return erased;
  if (await store.hasPendingRecipients(transaction, recipients)) {
    await postponeErasure(transaction, erasure, dateOf(at.getTime() + pendingRetryMs));
    return erased;
  }
  const lastLookAtMs = erasure.requestedAt.getTime() + lastLookMs;
  if (at.getTime() < lastLookAtMs) {
    await postponeErasure(transaction, erasure, dateOf(lastLookAtMs));
    return erased;
  }
  // What was delivered meanwhile may have bounced.
  await eraseSuppressedAddresses(transaction, tools, [erasure]);
  await finishErasure(transaction, erasure);
  return erased;
}
