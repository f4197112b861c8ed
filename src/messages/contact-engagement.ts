import { lowestIdAt } from '../platform/ids.ts';

/** What can be asked of a contact's email: whether any of its messages came this far. */
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
const actions: Readonly<Record<EngagementAction, { condition: string; at: string }>> = {
  delivered: {
    condition: "r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed')",
    at: 'coalesce(r.handed_off_at, r.status_at)',
  },
  opened: { condition: 'r.opened_at is not null', at: 'r.opened_at' },
  clicked: { condition: 'r.clicked_at is not null', at: 'r.clicked_at' },
  bounced: { condition: "r.status = 'bounced'", at: 'r.status_at' },
};

/**
 * SQL that is true where an address was a recipient of an email on which the action was seen, after `since` if that
 * is given; never null. `organizationId` and `addressKey` are columns of the row that is asked about, the latter in
 * normalised form; `bind` makes a value a parameter and returns its placeholder.
 *
 * An address is found by the index recipients_address, whose collation is the database's. Only emails have addresses
 * like that, so that the channel need not be looked up.
 */
export function hasEngaged(
  engagement: { action: EngagementAction; since: Date | null },
  sql: { organizationId: string; addressKey: string; bind: (value: unknown) => string },
): string {
  const { condition, at } = actions[engagement.action];
  const sinceConditions =
    engagement.since === null
      ? ''
      : `and ${at} > ${sql.bind(engagement.since.toISOString())}::timestamptz
        and r.message_id >= ${sql.bind(lowestMessageId(engagement.since))}::uuid`;
  return `exists (
      select
      from recipients r
      where r.organization_id = ${sql.organizationId}
        and r.address_key = ${sql.addressKey} collate "default"
        and ${condition}
        ${sinceConditions}
    )`;
}

function lowestMessageId(since: Date): string {
  return lowestIdAt(Math.max(since.getTime() - reportedWithinMs, 0));
}
