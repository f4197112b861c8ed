import { hearOptOut } from '../audience/audience.ts';
import type { SmsFinding } from '../channels/sms/sms.ts';
import { type Finding, type FindingTools, latestOfEach } from '../messages/messages.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/**
 * What hand-offs and receipts found out of numbers. A provider that refuses a text because its owner has said STOP knows of
 * an opt-out that may never have come here: it was said to the provider's own words, or before the number was ours.
 * Organizations and numbers come in their order, as everybody locks them who locks more than one.
 */
export async function keepSmsFindings(
  tools: FindingTools,
  transaction: Transaction,
  findings: readonly Finding[],
): Promise<boolean> {
  const stopped = findings.filter(({ finding }) => (finding as SmsFinding).kind === 'opted_out'); // As delivery.ts and events.ts gave it.
  const groups = [...groupBy(stopped, ({ organizationId }) => organizationId)];
  groups.sort(([one], [other]) => (one < other ? -1 : 1));
  let haveContactsChanged = false;
  for (const [organizationId, own] of groups) {
    await transaction.asOrganizations([organizationId], async () => {
      for (const { addressKey: address, sentAt, messageId } of latestOfEach(own)) {
        const number = { organizationId, address };
        const heard = { scope: 'all' as const, sentAt, messageId };
        const contact = await hearOptOut(transaction, tools, 'sms', number, heard);
        haveContactsChanged ||= contact === 'changed';
      }
    });
  }
  return haveContactsChanged;
}
