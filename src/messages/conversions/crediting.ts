import {
  type Credit,
  creditConversions,
  findNextConversionAt,
  insertPendingConversions,
  logConversions,
  type PendingConversion,
  takeDueConversions,
} from '../../events/events.ts';
import { dateOf, now } from '../../platform/clock.ts';
import { instantOfId } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import { type ChoreTools, type RunningChore, startChore } from '../../platform/queue/chore.ts';
import { pauseAfterFailureMs } from '../../platform/queue/pauses.ts';
import { applyDueEvents } from '../feedback/stored-events.ts';
import type { MessageChannels } from '../channel.ts';
import { defineLastClicked, findLastClicked } from './store.ts';

/**
 * Credits conversions: events that were worth something, each to the message that its contact clicked last, at most seven
 * days before it happened. A conversion comes here some seconds after its event, when the clicks that came before it are
 * written. One transaction takes conversions out of those that are pending, finds their messages, stores them and adds them
 * to their sums: however a worker ends, each is credited once. What a conversion was credited to never changes.
 *
 * Messages are found by the address that the contact has now, and by its id, which is the address of a push. A click of
 * a campaign counts for the contact that got it, whoever has the address now; of other messages nothing says whose they
 * were. Each message has the time of its first click only. Clicks of machines have no time.
 *
 * A contact that was deleted before its conversion came here is found by its pushes only.
 */
export type CreditingTools = ChoreTools & {
  channels: MessageChannels;
  /** Smaller in tests. */
  creditedMax?: number;
};

/** Conversions that are credited in one transaction. Each looks for a click among the newest messages of its contact. */
const defaultCreditedMax = 200;

/** May run on any number of nodes. */
export function startCrediting(tools: CreditingTools): RunningChore {
  const { creditedMax = defaultCreditedMax } = tools;
  const lastClicked = defineLastClicked(tools.channels);
  return startChore(tools, {
    name: 'crediting conversions',
    topic: 'conversions',
    work: async () => {
      const taken = await applyDueEvents<PendingConversion>(tools, {
        name: 'conversions',
        appliedMax: creditedMax,
        apply: (conversionsMax) => creditTogether(tools, lastClicked, conversionsMax),
        takeNext: (transaction) => takeDueConversions(transaction, now(tools.clock), 1),
        putBack: (transaction, conversions) => putBack(tools, transaction, conversions),
      });
      return taken !== 0 ? 'at once' : findNextConversionAt(tools.database);
    },
  });
}

/** Returns how many were credited. */
async function creditTogether(
  { database, clock }: CreditingTools,
  lastClicked: ReturnType<typeof defineLastClicked>,
  conversionsMax: number,
): Promise<number> {
  return database.transactionByIndex(async (transaction) => {
    const conversions = await takeDueConversions(transaction, now(clock), conversionsMax);
    if (conversions.length === 0) return 0;
    await transaction.asOrganizations(organizationsOf(conversions), async () => {
      const clicked = await findLastClicked(transaction, lastClicked, conversions);
      const credited = conversions.map((conversion) => ({
        ...conversion,
        ...(clicked.get(conversion.id) ?? nothing),
      }));
      await Promise.all([creditConversions(transaction, credited), logConversions(transaction, credited)]);
    });
    return conversions.length;
  });
}

const nothing: Credit = { messageId: null, campaignId: null, category: null };

/** One that cannot be credited is tried again after longer and longer pauses; it is never given up. */
async function putBack(
  { clock }: CreditingTools,
  transaction: Transaction,
  conversions: readonly PendingConversion[],
): Promise<void> {
  const atMs = clock.nowMs();
  await transaction.asOrganizations(organizationsOf(conversions), async () => {
    for (const conversion of conversions) {
      const pauseMs = pauseAfterFailureMs(atMs - instantOfId(conversion.id).getTime());
      await insertPendingConversions(transaction, [conversion], dateOf(atMs + pauseMs));
    }
  });
}

function organizationsOf(conversions: readonly PendingConversion[]): string[] {
  return [...new Set(conversions.map(({ organizationId }) => organizationId))];
}
