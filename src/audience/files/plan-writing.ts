import type { Clock } from '../../platform/clock.ts';
import type { NewId } from '../../platform/ids.ts';
import { isConflict, sqlState, type Transaction, uniqueViolation } from '../../platform/postgres/database.ts';
import type { Secrets } from '../../platform/secrets.ts';
import { settleConsents } from '../consents.ts';
import { insertContactChange } from '../contact-store.ts';
import { areSameFields } from '../contact-values.ts';
import { type ChangedContacts, listConsentChange, logContacts } from '../logged-events.ts';
import type { Plan } from './import-plan.ts';
import * as store from './import-store.ts';

/** A contact was changed or deleted after it was read. */
class ChangedMeanwhileError extends Error {
  override readonly name = 'ChangedMeanwhileError';
}

/** Whether a plan failed because of what others have written meanwhile: made anew on top of that, it may not. */
export function isOvertaken(cause: unknown): boolean {
  return isTaken(cause) || isConflict(cause) || cause instanceof ChangedMeanwhileError;
}

/** Whether a contact that was to be made, or changed, has an identifier that another one has by now. */
export function isTaken(cause: unknown): boolean {
  return sqlState(cause) === uniqueViolation;
}

export type PlanTools = { clock: Clock; newId: NewId; secrets: Secrets };

/**
 * Writes what a plan comes to, in the transaction that it was made in, which holds `shareIdentifiers` and the sets that it
 * fills. Throws what `isOvertaken` knows if the contacts are not any more as they were read. `haveOptedOut` is whether
 * anybody of the organization has. `isLast` if the transaction does nothing more.
 */
export async function writePlan(
  transaction: Transaction,
  tools: PlanTools,
  {
    organizationId,
    plan,
    haveOptedOut,
    at,
    isLast,
  }: { organizationId: string; plan: Plan; haveOptedOut: boolean; at: Date; isLast: boolean },
): Promise<void> {
  if (plan.changedIds.length === 0) return;
  await settlePlan(transaction, tools, { organizationId, plan, haveOptedOut });
  const isCertain = plan.touched.length === 0;
  const [locked] = await allInOrder([
    store.lockContacts(transaction, organizationId, plan.touched),
    // If a contact to be updated has been deleted, this creates it again; the count below then rolls that back.
    store.updateContacts(transaction, organizationId, plan.updates, at),
    store.insertContacts(transaction, organizationId, plan.inserts, at),
    store.insertMemberships(transaction, organizationId, plan.memberships),
    insertContactChange(transaction, {
      organizationId,
      id: tools.newId(),
      contactIds: plan.changedIds,
    }),
    logContacts(transaction, { organizationId, at, ...listChanges(plan) }),
    isCertain && isLast ? transaction.commit() : Promise.resolve(),
  ]);
  if (locked < plan.touched.length) {
    throw new ChangedMeanwhileError('contacts were changed while they were written');
  }
}

/**
 * Gives the contacts of a plan what holds of their consents. Where nobody of the organization has opted out, that is what
 * is said of them, and nothing is hashed.
 */
async function settlePlan(
  transaction: Transaction,
  tools: PlanTools,
  {
    organizationId,
    plan: { inserts, updates },
    haveOptedOut,
  }: { organizationId: string; plan: Plan; haveOptedOut: boolean },
): Promise<void> {
  const concerned = [...inserts, ...updates].filter(
    ({ values }) => haveOptedOut || values.unsubscribed_channels.length > 0,
  );
  if (concerned.length === 0) return;
  const settled = await settleConsents(
    transaction,
    tools,
    organizationId,
    concerned.map(({ values }) => values),
  );
  for (const [index, contact] of concerned.entries()) {
    const unsubscribedChannels = settled[index] ?? [];
    contact.values = { ...contact.values, unsubscribed_channels: unsubscribedChannels };
  }
}

/** What becomes of the contacts, as it is written. */
function listChanges({
  inserts,
  updates,
  touched,
  memberships,
}: Plan): Pick<ChangedContacts, 'created' | 'updated' | 'consents'> {
  const changed = new Set([
    ...memberships.map(({ contactId }) => contactId),
    ...updates.flatMap(({ id, values, before }) => (areSameFields(before, values) ? [] : [id])),
  ]);
  return {
    created: inserts.map(({ id }) => id),
    updated: touched.flatMap(({ id }) => (changed.has(id) ? [id] : [])),
    consents: updates.flatMap(({ id, values, before }) =>
      listConsentChange(id, before.unsubscribed_channels, values.unsubscribed_channels),
    ),
  };
}

/**
 * Results of statements that were sent together. Throws the first error in the order of sending, not of arrival: all
 * later ones only say that the transaction has failed.
 */
export async function allInOrder<const Sent extends readonly Promise<unknown>[]>(sent: Sent) {
  await Promise.allSettled(sent);
  return Promise.all(sent);
}
