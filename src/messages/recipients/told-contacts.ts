import {
  findMessageReaders,
  insertChangesOfRecipients,
  type MessagedContact,
} from '../../audience/audience.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Connection, Transaction } from '../../platform/postgres/database.ts';
import type { RecipientStatus } from '../schema.ts';

/**
 * Some segments have conditions about the outcomes of messages. A transaction that writes such outcomes records which
 * contacts they concern, so that only these are looked at again: one row for each organization and transaction.
 * Organizations without such a segment get no row; for them it costs one index look-up a batch.
 */

/** For `tellOfContacts`. May be sent in one round trip with the statement that writes the recipients. */
export async function findListeners(
  connection: Connection,
  recipients: readonly { organizationId: string }[],
): Promise<ReadonlySet<string>> {
  const ids = [...new Set(recipients.map(({ organizationId }) => organizationId))];
  return ids.length === 0 ? new Set() : findMessageReaders(connection, ids);
}

/**
 * To be called in the transaction that changes these recipients. Returns whether the work of segments must be woken
 * after the commit.
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

/**
 * No condition asks about the statuses before a delivery, and these never overwrite a status that a condition asks
 * about.
 */
export function isToldOf(status: RecipientStatus | null): boolean {
  return status !== null && status !== 'sent' && status !== 'delayed';
}
