import { lowestIdAt } from '../../platform/ids.ts';
import { allOf, type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';

/** What can be asked of what was sent to a contact: whether any of its messages came this far. */
export const engagementActions = ['delivered', 'opened', 'clicked', 'bounced'] as const;

export type EngagementAction = (typeof engagementActions)[number];

/**
 * What is heard of a message later than this after its acceptance is not looked for where a time is given: the
 * partitions before are not read. Fewer days would lose opens of mail that lay unread, more would read partitions
 * in which next to nothing is found.
 */
const reportedWithinMs = 90 * 86_400_000;

/**
 * Each action's rows and when it took place. An open survives a complaint in its own column, and a click is an open
 * too. Whoever unsubscribed or complained had the message. A delivery has no time of its own that later statuses
 * leave alone: the hand-off stands for it.
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
  /** Not counted is what took place before. */
  since: Date | null;
  /** The message of a campaign, if only that one counts. */
  messageId: string | null;
};

/** The columns of the contact that is asked about, the address in normalised form. */
export type ContactColumns = { organizationId: string; id: string; addressKey: string };

/**
 * True where the action was seen on a message to a contact; never null. `bind` makes a value a parameter and
 * returns its placeholder.
 *
 * A campaign's recipients are contacts: they are found by the index recipients_contact, whatever became of their
 * addresses since. Those of other messages are addresses, whoever has them now. An address is found by the index
 * recipients_address, whose collation is the database's. No address of an email is a phone number, so that the channel
 * need not be looked up.
 */
export function hasEngaged(
  { action, since, messageId }: Engagement,
  contact: ContactColumns,
  bind: (value: unknown) => string,
): Predicate {
  const { condition, at } = actions[action];
  const conditions = [toPredicate(`r.organization_id = ${contact.organizationId}`), condition];
  if (messageId === null) {
    conditions.push(toPredicate(`r.address_key = ${contact.addressKey} collate "default"`));
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

function lowestMessageId(since: Date): string {
  return lowestIdAt(Math.max(since.getTime() - reportedWithinMs, 0));
}
