import type { BudgetRequest, PeopleBudget } from '../campaigns/campaigns.ts';
import { findBudget, findReachedAddresses, lockBudget } from '../chat-templates/chat-templates.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';

/** What campaigns may still take of the messaging limit; null where there is none. */
export async function openChatAppBudget(
  { secrets }: { secrets: Secrets },
  transaction: Transaction,
  { organizationId, at, countInHand }: BudgetRequest,
): Promise<PeopleBudget | null> {
  const peopleMax = await lockBudget(transaction, organizationId);
  if (peopleMax === null) return null;
  // First: what is settled in between is counted twice, and not left out.
  const inHand = await countInHand(peopleMax);
  const budget = await findBudget(transaction, organizationId, at);
  if (budget === null) return null;
  return {
    pauseReason: 'messaging_limit',
    left: budget.campaignPeopleMax - budget.reached - inHand,
    step: budget.step,
    findFree: (addresses) =>
      findReachedAddresses({ secrets }, transaction, { organizationId, addresses, at }),
  };
}
