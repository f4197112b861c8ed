import { findKeptDays, type PlanChange, updateOrganization } from '../accounts/accounts.ts';
import { addressesMax } from '../alerts/alerts.ts';
import { parseAddress } from '../channels/email/email.ts';
import type { Installation } from '../installation/installation.ts';
import { forgiveReputation, limitKept, logSuspensions } from '../messages/messages.ts';
import { now } from '../platform/clock.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { wordFor } from '../platform/wording.ts';
import { computeEventReaders } from '../segments/segments.ts';

export { saveAlertAddresses } from '../alerts/alerts.ts';

/** Addresses with commas between them, or `none`; else a sentence on what is wrong. */
export function readAlertAddresses(text: string): string[] | string {
  if (text.trim() === 'none') return [];
  const addresses = [...new Set(text.split(',').map((address) => address.trim()))];
  const wrong = addresses.find((address) => parseAddress(address) === null);
  if (wrong !== undefined)
    return `--alerts must be email addresses with commas between them, or none: "${wrong}" is no address.`;
  if (addresses.length > addressesMax) return `--alerts can name ${addressesMax} addresses at most.`;
  return addresses;
}

/** Changes the plan of an organization, and has everything done at once that follows from it. */
export async function changePlan(
  { database, clock }: Pick<Installation, 'database' | 'clock'>,
  organizationId: string,
  change: PlanChange,
): Promise<void> {
  // Before it may send again: else the bounces that led to the suspension would lead to the next one at once.
  if (change.resume?.includes('email')) await forgiveReputation(database, organizationId);
  await database.transaction(async (transaction) => {
    const changed = await updateOrganization({ database: transaction, clock }, organizationId, change);
    const told = { organizationId, reason: 'operator', at: now(clock) } as const;
    const { suspended = [], resumed = [] } = changed ?? {};
    await logSuspensions(transaction, { ...told, channels: suspended, isSuspended: true });
    await logSuspensions(transaction, { ...told, channels: resumed, isSuspended: false });
    if (change.eventsKeptDays === undefined) return;
    // Whoever is in a segment for an event that is too old now has to leave it.
    await transaction.asOrganizations([organizationId], () =>
      computeEventReaders(transaction, organizationId, now(clock)),
    );
  });
  if (change.eventsKeptDays !== undefined) await wakeOnce(database, 'segments');
  // A campaign may have to be paused, or may go on.
  await wakeOnce(database, 'campaigns');
}

/** What of the change has no effect, since less is kept anyway: a sentence for each. */
export async function findIneffective(
  { config, database }: Pick<Installation, 'config' | 'database'>,
  organizationId: string,
  { messagesKeptDays, contentKeptDays }: PlanChange,
): Promise<string[]> {
  const { messages, content } = limitKept(config.keptDays, await findKeptDays(database, organizationId));
  const found: string[] = [];
  if (isLonger(messagesKeptDays, messages))
    found.push(
      `--messages-kept-days ${messagesKeptDays} has no effect: the installation keeps messages for ${showDays(messages)} (POSTILLION_MESSAGES_KEPT_DAYS).`,
    );
  if (isLonger(contentKeptDays, content))
    found.push(
      content === messages
        ? `--content-kept-days ${contentKeptDays} has no effect: messages are kept for ${showDays(content)}, and what they say for no longer.`
        : `--content-kept-days ${contentKeptDays} has no effect: the installation keeps what messages say for ${showDays(content)} (POSTILLION_CONTENT_KEPT_DAYS).`,
    );
  return found;
}

/** Null, which stands for whatever the installation has, is never too long. */
function isLonger(wanted: number | null | undefined, kept: number | null): kept is number {
  return typeof wanted === 'number' && kept !== null && wanted > kept;
}

function showDays(days: number): string {
  return `${days} ${wordFor(days, 'day')}`;
}
