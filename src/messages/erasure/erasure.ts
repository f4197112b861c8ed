import {
  type Erasure,
  eraseSuppressedAddresses,
  findNextErasureAt,
  finishErasure,
  postponeErasure,
  type SuppressionTools,
  takeDueErasure,
  toErasedKey,
} from '../../audience/audience.ts';
import { dateOf, now } from '../../platform/clock.ts';
import { lowestIdAt } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import { type ChoreTools, startChore } from '../../platform/queue/chore.ts';
import { pauseAfterFailureMs } from '../../platform/queue/pauses.ts';
import { forgetCopies, forgetMessages } from '../../sandbox/sandbox.ts';
import * as store from './store.ts';
import { changeRecipients, type RecipientTools } from '../recipients/recipients.ts';
import type { ChangedRecipient } from '../recipients/store.ts';

export type ErasureTools = ChoreTools &
  SuppressionTools &
  RecipientTools & {
    /** Smaller in tests. */
    recipientsMax?: number;
  };

/** Recipients that are erased in one transaction. */
const defaultRecipientsMax = 500;
/** A message that is still queued needs its address. It is looked at again after this time. */
const pendingRetryMs = 60 * 60_000;
/** A message that was accepted before the deletion may be committed after it. By this time it has been. */
const lastLookMs = 60_000;

/**
 * Erases the addresses of deleted contacts from the messages that were sent to them. The outcome of each delivery is
 * kept, the address is not. Messages sent after the deletion are left alone: the address may belong to a new contact.
 */
export function startErasing(tools: ErasureTools): { stop: () => Promise<void> } {
  return startChore(tools, {
    name: 'erasing addresses',
    topic: 'erasures',
    work: async () => {
      if (await eraseNextAddress(tools, now(tools.clock))) return 'at once';
      return findNextErasureAt(tools.database);
    },
  });
}

/**
 * Erases another batch of recipients of the address that has been due longest. Returns false if no address is due. An
 * address whose erasure fails is postponed on its own, so that it does not block other addresses or organizations.
 */
export async function eraseNextAddress(tools: ErasureTools, at: Date): Promise<boolean> {
  const taken: Erasure[] = [];
  try {
    return await tools.database.transaction(async (transaction) => {
      const erasure = await takeDueErasure(transaction, at);
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
    'an address of a deleted contact cannot be erased, and is tried again later',
  );
}

async function eraseSome(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: Erasure,
  at: Date,
): Promise<void> {
  const { organizationId, address } = erasure;
  const erased = await transaction.asOrganizations([organizationId], () =>
    erase(tools, transaction, erasure, at),
  );
  // A campaign's message has other recipients too, so only this recipient's copies are deleted.
  const idsOf = (isCampaign: boolean) =>
    erased.filter(({ contactId }) => (contactId !== null) === isCampaign).map(({ messageId }) => messageId);
  await forgetMessages(transaction, organizationId, idsOf(false));
  await forgetCopies(transaction, organizationId, idsOf(true), address);
}

/**
 * Erases the next batch of recipients of an address, and schedules the following batch. Returns the erased recipients.
 */
async function erase(
  tools: ErasureTools,
  transaction: Transaction,
  erasure: Erasure,
  at: Date,
): Promise<ChangedRecipient[]> {
  const { organizationId, address } = erasure;
  const { recipientsMax = defaultRecipientsMax } = tools;
  const recipients = {
    organizationId,
    addressKey: address,
    erasedKey: toErasedKey(tools, erasure),
    beforeMessageId: lowestIdAt(erasure.requestedAt.getTime() + 1),
  };
  let erased: ChangedRecipient[] = [];
  await changeRecipients(transaction, tools, {
    at,
    write: async () => {
      erased = await store.eraseRecipients(transaction, recipients, recipientsMax);
      await continueByIndex(transaction);
      return erased;
    },
    // Another contact may have the address by now. Segments must not count the erased messages as sent to that contact.
    told: { contacts: [{ organizationId, contactId: null, addressKey: address }] },
  });
  const emptied = erased.flatMap(({ contactId, messageId }) => (contactId === null ? [messageId] : []));
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
  // Messages delivered since the deletion may have bounced and suppressed the address again.
  await eraseSuppressedAddresses(transaction, tools, [erasure]);
  await finishErasure(transaction, erasure);
  return erased;
}
