import { type PlanChange, updateOrganization } from '../accounts/accounts.ts';
import type { Installation } from '../installation/installation.ts';
import { forgiveReputation } from '../messages/messages.ts';
import { now } from '../platform/clock.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { computeEventReaders } from '../segments/segments.ts';

/** Changes the plan of an organization, and has everything done at once that follows from it. */
export async function changePlan(
  { database, clock }: Pick<Installation, 'database' | 'clock'>,
  organizationId: string,
  change: PlanChange,
): Promise<void> {
  // Before it may send again: else the bounces that led to the suspension would lead to the next one at once.
  if (change.resume?.includes('email')) await forgiveReputation(database, organizationId);
  await database.transaction(async (transaction) => {
    await updateOrganization({ database: transaction, clock }, organizationId, change);
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
