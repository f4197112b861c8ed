import type { SuppressionTools } from '../audience/audience.ts';
import { dateOf, sleep } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  isConflict,
  type Transaction,
} from '../platform/postgres/database.ts';
import type { Lease } from '../platform/queue/lease.ts';
import { type FeedbackListeners, uniqueMessages } from './feedback.ts';
import { policyOf } from './delivery-policies.ts';
import { keepProviderIds, type ProviderId, uncertainId } from './provider-ids.ts';
import * as store from './queue-store.ts';
import { noteRecipientChanges } from './recipient-counts.ts';
import { countFates } from './reputation.ts';
import { settleAmbiguity, type settleCrash } from './settlement.ts';
import { suppressByFate } from './suppressing.ts';
import { findListeners, isToldOf, tellOfContacts } from './told-contacts.ts';

/** What writing outcomes needs. */
export type WriterTools = SuppressionTools &
  FeedbackListeners & {
    database: Database;
    log: Log;
    newId: NewId;
    random: () => number;
  };

/** `message` is null where nothing is known of it, so that nothing may be left out. */
export type Settled = { settlement: store.Settlement; message: MessageFacts | null };

export type MessageFacts = { isShared: boolean; hasAttachments: boolean };

/**
 * Outcomes are known only here: they are written again and again until the database takes them. Returns for each
 * whether it was written.
 */
export async function writeUntilSettled(
  tools: WriterTools,
  lease: Lease,
  items: readonly Settled[],
): Promise<boolean[]> {
  let lostAtMs: number | null = null;
  for (;;) {
    try {
      await writeSettlements(tools, lease.epoch, items);
      return items.map(() => true);
    } catch (cause) {
      if (!(cause instanceof DatabaseUnavailableError) && !isConflict(cause)) {
        return writeOneByOne(tools, lease, items, cause);
      }
      // Once the lease is lost for good, the claims are others' to recover, as ambiguous as they are to them.
      if (lease.signal.aborted) lostAtMs ??= tools.clock.monotonicMs();
      if (lostAtMs !== null && tools.clock.monotonicMs() - lostAtMs > lostLeaseMs) throw cause;
      await sleep(tools.clock, rewriteMs);
    }
  }
}

/** One outcome that cannot be written must not take the others of its batch with it. */
async function writeOneByOne(
  tools: WriterTools,
  lease: Lease,
  items: readonly Settled[],
  cause: unknown,
): Promise<boolean[]> {
  if (items.length === 1) {
    // The job stays claimed, and is recovered when this lease ends.
    tools.log.error(
      { err: cause, message_id: items[0]?.settlement.job.messageId },
      'an outcome cannot be written',
    );
    return [false];
  }
  const written: boolean[] = [];
  for (const item of items) written.push(...(await writeUntilSettled(tools, lease, [item])));
  return written;
}

const rewriteMs = 500;

/** How long outcomes of a lost lease are still offered to a database that does not answer. */
const lostLeaseMs = 10_000;

async function writeSettlements(tools: WriterTools, epoch: number, items: readonly Settled[]): Promise<void> {
  const at = dateOf(tools.clock.nowMs());
  const settlements = items.map(({ settlement }) => settlement);
  // A campaign has no status of its own rows to keep, and far too many recipients to go through.
  const messagesWith = (has: (facts: MessageFacts, job: store.Job) => boolean) =>
    uniqueMessages(
      items
        .filter(
          ({ settlement: { job }, message }) => !job.isCampaign && (message === null || has(message, job)),
        )
        .map(({ settlement }) => settlement.job),
    );
  const haveContactsChanged = await tools.database.transactionByIndex(async (transaction) => {
    await store.lockMessagesOf(
      transaction,
      // What a provider reports may be applied at this very moment, and holds messages before it writes recipients.
      messagesWith(({ isShared }, { channel }) => isShared || policyOf(channel).isReportedById),
    );
    // Reports on a campaign go over the same rows at the same time: they come within milliseconds.
    await store.lockRecipientsOf(
      transaction,
      settlements.map(({ job }) => job).filter(({ channel }) => policyOf(channel).isReportedById),
    );
    const told = settlements.filter(({ status }) => isToldOf(status)).map(({ job }) => job);
    const [changedRecipients, listeners] = await Promise.all([
      store.settleJobs(transaction, settlements, { epoch, at }),
      findListeners(transaction, told),
    ]);
    const changed = new Set(changedRecipients.map(store.textOfKey));
    const toldKeys = new Set(told.map(store.textOfKey));
    const changedSettlements = settlements.filter(({ job }) => changed.has(store.textOfKey(job)));
    const changedJobs = changedSettlements.map(({ job }) => job).filter(({ isCampaign }) => !isCampaign);
    const changedOfCampaigns = changedSettlements
      .map(({ job }) => job)
      .filter(({ isCampaign }) => isCampaign);
    // Sent at once, the commit behind them, unless a bounce has to be looked into.
    const [isTold] = await Promise.all([
      tellOfContacts(
        transaction,
        tools.newId,
        listeners,
        changedRecipients.filter((recipient) => toldKeys.has(store.textOfKey(recipient))),
      ),
      store.refreshMessages(transaction, uniqueMessages(changedJobs), at),
      noteRecipientChanges(transaction, tools.newId, changedOfCampaigns),
      store.deleteFinishedAttachments(
        transaction,
        messagesWith(({ hasAttachments }) => hasAttachments),
      ),
      keepProviderIds(
        transaction,
        changedSettlements.flatMap((settlement) => listProviderIds(tools, settlement)),
        at,
      ),
      actOnFates(transaction, tools, changedSettlements),
    ]);
    return isTold;
  });
  if (haveContactsChanged) tools.onContactsChanged();
  if (settlements.some(({ job }) => job.isCampaign)) tools.onCampaignProgress();
}

function listProviderIds(tools: WriterTools, settlement: store.Settlement): ProviderId[] {
  const { job, isAmbiguous } = settlement;
  if (!policyOf(job.channel).isReportedById) return [];
  const id = isAmbiguous ? uncertainId(tools.secrets, job.addressKey) : settlement.providerMessageId;
  return id === null ? [] : [{ job, channel: job.channel, providerMessageId: id }];
}

async function actOnFates(
  transaction: Transaction,
  tools: WriterTools,
  settlements: readonly store.Settlement[],
): Promise<void> {
  const fates = settlements
    .filter(({ job }) => policyOf(job.channel).judgesAddresses)
    .map((settlement) => ({ ...settlement, addressKey: settlement.job.addressKey }));
  await suppressByFate(transaction, tools, fates);
  await Promise.all([countFates(transaction, tools, fates), transaction.commit()]);
}

const recoveryItemsMax = 500;

/**
 * Settles what a worker that has ended had claimed: until there is no more of it, and once more costs nothing.
 * `settleUnannounced` says what becomes of jobs that were not about to be handed off.
 */
export async function returnClaims(
  tools: WriterTools,
  epoch: number,
  settleUnannounced: typeof settleCrash,
): Promise<void> {
  for (;;) {
    const claims = await store.listClaims(tools.database, epoch, recoveryItemsMax);
    if (claims.length === 0) return store.deleteMarkers(tools.database, epoch);
    const context = { atMs: tools.clock.nowMs(), random: tools.random(), dateOf };
    await writeSettlements(
      tools,
      epoch,
      claims.map((job) => ({
        settlement: job.isAnnounced ? settleAmbiguity(job, context) : settleUnannounced(job, context),
        message: null,
      })),
    );
    tools.log.warn({ epoch, jobs: claims.length }, 'claims of an ended worker returned to the queue');
  }
}
