import { sanitiseDiagnostic } from '../channels/diagnostic.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import * as store from './account-store.ts';
import { endOver } from './ending.ts';

/**
 * Accounts from which the provider takes no campaigns for now: too many people have complained, a payment is due, the
 * account is restricted. Campaigns wait meanwhile, and single messages do not. It ends at a time, or when the provider
 * says so, or when the operator has mended what was wrong.
 */
export type CampaignsHeld = {
  /** The provider's, for the operator. */
  words: string;
  /** Null where nobody knows. */
  until: Date | null;
};

/** What the row of an account says of it at that time; null if campaigns may leave. */
export function readCampaignsHeld(
  row: Pick<store.AccountRow, 'campaigns_held_words' | 'campaigns_held_until'>,
  at: Date,
): CampaignsHeld | null {
  const { campaigns_held_words: words, campaigns_held_until: until } = row;
  return words === null || (until !== null && until <= at) ? null : { words, until };
}

/** Null for an organization without an account, too. */
export async function findCampaignsHeld(
  transaction: Transaction,
  organizationId: string,
  at: Date,
): Promise<CampaignsHeld | null> {
  const [row] = await store.findAccounts(transaction, [organizationId]);
  return row === undefined ? null : readCampaignsHeld(row, at);
}

/** Never shortens what holds already. Campaigns are paused soon after. */
export async function holdCampaigns(
  transaction: Transaction,
  { organizationId, words, until }: CampaignsHeld & { organizationId: string },
): Promise<void> {
  const held = { words: sanitiseDiagnostic(words), until };
  if (!(await store.saveCampaignsHeld(transaction, organizationId, held))) return;
  await wakeOnce(transaction, 'campaigns');
  // It ends what is over, and has to know when that is.
  await wakeOnce(transaction, 'chat_templates');
}

/** Campaigns go on soon after. Returns whether they were held. */
export async function releaseCampaigns(transaction: Transaction, organizationId: string): Promise<boolean> {
  const wereHeld = await store.clearCampaignsHeld(transaction, organizationId);
  if (wereHeld) await wakeOnce(transaction, 'campaigns');
  return wereHeld;
}

/**
 * Ends what is over, at its time (ending.ts). What one provider has said holds nothing with another: where none needs an
 * account, nobody can have said it, and all of it ends.
 */
export function endHolds(
  tools: { database: Database; clock: Clock },
  { areOfAnother }: { areOfAnother: boolean },
): Promise<Date | null> {
  return endOver(tools, {
    end: (connection, at, limit) => store.clearEndedHolds(connection, areOfAnother ? null : at, limit),
    findNext: store.findNextHoldEnd,
  });
}

/** The provider takes no marketing from an account, as it said at that time. Nobody tells when it does so again. */
export type MarketingRefusal = { words: string; at: Date };

/** The last one; null for none. */
export async function findMarketingRefusal(
  transaction: Transaction,
  organizationId: string,
): Promise<MarketingRefusal | null> {
  return store.findMarketingRefusal(transaction, organizationId);
}

/** Campaigns of marketing that were queued before fail soon after. */
export async function noteMarketingRefusal(
  transaction: Transaction,
  organizationId: string,
  { words, at }: MarketingRefusal,
): Promise<void> {
  const refusal = { words: sanitiseDiagnostic(words), at };
  if (await store.saveMarketingRefusal(transaction, organizationId, refusal))
    await wakeOnce(transaction, 'campaigns');
}
