import type { BudgetRequest, Forecast, Foreseen, PeopleBudget } from '../campaigns/campaigns.ts';
import {
  type Budget,
  findBudget,
  findReachedAddresses,
  lockBudget,
} from '../chat-templates/chat-templates.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { wordFor } from '../platform/wording.ts';

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

const counts = new Intl.NumberFormat('en');

/** Meta delivers no marketing to the numbers of the USA (since 2025-04-01), which share this beginning with others. */
const withoutMarketing = '+1';

/** How many days a campaign will take, and how many of its people WhatsApp may not let have it. */
export async function foreseeChatApp(
  transaction: Transaction,
  { organizationId, at, message, audience, countBeginningWith }: Foreseen,
): Promise<Forecast> {
  const budget = await findBudget(transaction, organizationId, at);
  const days = budget === null ? null : estimateDays(budget, audience);
  const warnings: string[] = [];
  if (budget !== null && days !== 1)
    warnings.push(
      `Campaigns of this organization may reach ${counts.format(budget.campaignPeopleMax)} people in 24 hours, and ` +
        `${counts.format(budget.reached)} were reached: ${counts.format(audience)} recipients ` +
        (days === null
          ? 'cannot get it.'
          : `will take about ${counts.format(days)} ${wordFor(days, 'day')}.`),
    );
  if (message?.category === 'marketing') {
    const undelivered = await countBeginningWith(withoutMarketing);
    if (undelivered !== null && undelivered > 0)
      warnings.push(
        `${counts.format(undelivered)} of the numbers begin with +1: WhatsApp delivers no marketing in the USA.`,
      );
  }
  return { days, warnings };
}

/**
 * The people of each day at once, the first of them less those who were reached. Who of the audience was reached already
 * is not looked up: it takes less then. Null for a limit that leaves nobody to campaigns.
 */
function estimateDays({ campaignPeopleMax, reached }: Budget, audience: number): number | null {
  const today = Math.max(0, campaignPeopleMax - reached);
  if (audience <= today) return 1;
  return campaignPeopleMax === 0 ? null : 1 + Math.ceil((audience - today) / campaignPeopleMax);
}
