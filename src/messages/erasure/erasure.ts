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

/** Recipients of one transaction. */
const defaultRecipientsMax = 500;
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
    topic: 'erasures',
    work: async () => {
      if (await eraseNextAddress(tools, now(tools.clock))) return 'at once';
      return findNextErasureAt(tools.database);
    },
  });
}

/**
 * Erases some more of the address that has been due for longest. Returns whether there was one. One of which nothing can
 * be erased is put off by itself, so that it keeps no other, and no other organization's, from its turn.
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
    // Fails as well where it is the database that is away.
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
  // A campaign's message is many other people's, too.
  const idsOf = (isCampaign: boolean) =>
    erased.filter(({ contactId }) => (contactId !== null) === isCampaign).map(({ messageId }) => messageId);
  await forgetMessages(transaction, organizationId, idsOf(false));
  await forgetCopies(transaction, organizationId, idsOf(true), address);
}

/** Erases some more of an address, and says when the next of it is to be erased. Returns the recipients that had it. */
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
    // Somebody may have the address again: what was sent to it before is no longer theirs.
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
  // What was delivered meanwhile may have bounced.
  await eraseSuppressedAddresses(transaction, tools, [erasure]);
  await finishErasure(transaction, erasure);
  return erased;
}
