import {
  findMessageReaders,
  insertChangesOfRecipients,
  type MessagedContact,
} from '../../audience/audience.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import type { RecipientStatus } from '../schema.ts';

/**
 * Segments ask what became of messages. Whoever writes that tells, in the same transaction, which contacts it concerns,
 * so that these alone are looked at again: one row an organization and transaction, and none in organizations without
 * such a segment, for which it costs one look-up in an index a batch.
 */

/** For `tellOfContacts`; may be sent along with the statement that writes the recipients. */
export async function findListeners(
  transaction: Transaction,
  recipients: readonly { organizationId: string }[],
): Promise<ReadonlySet<string>> {
  const ids = [...new Set(recipients.map(({ organizationId }) => organizationId))];
  return ids.length === 0 ? new Set() : findMessageReaders(transaction, ids);
}

/**
 * To be called in the transaction that changes these recipients, by index. Returns whether whoever keeps segments is to
 * be woken once it is committed.
 */
export async function tellOfContacts(
  transaction: Transaction,
  newId: NewId,
  listeners: ReadonlySet<string>,
  recipients: readonly MessagedContact[],
): Promise<boolean> {
  const told = recipients.filter(({ organizationId }) => listeners.has(organizationId));
  return told.length > 0 && insertChangesOfRecipients(transaction, newId, told);
}

/** Of what comes before a delivery no condition speaks, and none of these takes the place of what one speaks of. */
export function isToldOf(status: RecipientStatus | null): boolean {
  return status !== null && status !== 'sent' && status !== 'delayed';
}
