import { lowestIdAt } from '../../platform/ids.ts';
import { allOf, type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';

/** Conditions about the messages sent to a contact: whether any of them got this far. */
export const engagementActions = ['delivered', 'opened', 'clicked', 'bounced'] as const;

export type EngagementAction = (typeof engagementActions)[number];

/**
 * Where a condition gives a time, messages accepted earlier than this before it are not searched, so that their
 * partitions are not read. Fewer days would miss opens of mail that lay unread; more would read partitions in which
 * almost nothing is found.
 */
const reportedWithinMs = 90 * 86_400_000;

/**
 * For each action, the condition on a recipient's row and the time of the action. An open has a column of its own,
 * which a later complaint does not overwrite; a click is an open too. A recipient that unsubscribed or complained has
 * received the message. The time of a delivery is overwritten by later statuses, so the time of the hand-off is used.
 */
const actions: Readonly<Record<EngagementAction, { condition: Predicate; at: string }>> = {
  delivered: {
    condition: toPredicate("r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed')"),
    at: 'coalesce(r.handed_off_at, r.status_at)',
  },
  opened: { condition: toPredicate('r.opened_at is not null'), at: 'r.opened_at' },
  clicked: { condition: toPredicate('r.clicked_at is not null'), at: 'r.clicked_at' },
  bounced: { condition: toPredicate("r.status = 'bounced'"), at: 'r.status_at' },
};

export type Engagement = {
  action: EngagementAction;
  /** Earlier actions do not count. */
  since: Date | null;
  /** A campaign's message, if only that one counts. */
  messageId: string | null;
};

/** SQL for the columns of the contact, and whether a column of normalised addresses holds one of the contact's. */
export type ContactColumns = {
  organizationId: string;
  id: string;
  isAddress: (column: string) => Predicate;
};

/**
 * SQL that is true if the action took place on a message to the contact, and is never null. `bind` makes a value a
 * parameter and returns its placeholder.
 *
 * A campaign's recipients are contacts. They are found by the index recipients_contact, even if their addresses have
 * changed since. Recipients of other messages are addresses and count for the contact that has the address now. They
 * are found by the index recipients_address, whose collation is the database's. An email address is never a phone
 * number, so the channel need not be looked up.
 */
export function hasEngaged(
  { action, since, messageId }: Engagement,
  contact: ContactColumns,
  bind: (value: unknown) => string,
): Predicate {
  const { condition, at } = actions[action];
  const conditions = [toPredicate(`r.organization_id = ${contact.organizationId}`), condition];
  if (messageId === null) {
    conditions.push(contact.isAddress('r.address_key'));
    if (since !== null) conditions.push(toPredicate(`r.message_id >= ${bind(lowestMessageId(since))}::uuid`));
  } else {
    conditions.push(
      toPredicate(`r.message_id = ${bind(messageId)}::uuid`),
      toPredicate(`r.contact_id = ${contact.id}`),
    );
  }
  if (since !== null) conditions.push(toPredicate(`${at} > ${bind(since.toISOString())}::timestamptz`));
  return toPredicate(`exists (
      select
      from recipients r
      where ${allOf(conditions)}
    )`);
}

/** Of the messages on which something may have happened since then. */
export function lowestMessageId(since: Date): string {
  return lowestIdAt(Math.max(since.getTime() - reportedWithinMs, 0));
}
