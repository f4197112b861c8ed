import type { Channel } from '../accounts/accounts.ts';
import { now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { continueByIndex } from '../platform/postgres/lookup.ts';
import type { NewId } from '../platform/ids.ts';
import type { SuppressionTools } from '../audience/audience.ts';
import { policyOf } from './delivery-policies.ts';
import * as store from './queue-store.ts';
import { noteRecipientChanges } from './recipient-counts.ts';
import { countFates, type ReputationTools } from './reputation.ts';
import { statusRanks } from './status.ts';
import { type RecipientFate, suppressByFate } from './suppressing.ts';
import { findListeners, isToldOf, tellOfContacts } from './told-contacts.ts';

/**
 * Feedback: what is heard of a recipient after the hand-off. Reports come late, twice and out of order; each is
 * applied once, and none moves a status down.
 */

/** One report, normalised at the edge where it arrived. */
export type Report = store.ReportedChange;

export type FeedbackTools = SuppressionTools &
  ReputationTools &
  FeedbackListeners & {
    database: Database;
    newId: NewId;
  };

/** Who is told of changes after their commit. */
export type FeedbackListeners = {
  /** Of those that may have changed recipients of a campaign. */
  onCampaignProgress: () => void;
  /** Of those that changed what segments ask of contacts. */
  onContactsChanged: () => void;
};

/**
 * A report that changes nothing is not counted again; but whoever it speaks of is suppressed all the same, since an
 * earlier one may have been of another kind.
 */
export async function applyReports(
  tools: FeedbackTools,
  channel: Channel,
  reports: readonly Report[],
): Promise<void> {
  const haveContactsChanged = await tools.database.transaction((transaction) =>
    applyReportsWithin(transaction, tools, channel, reports),
  );
  tools.onCampaignProgress();
  if (haveContactsChanged) tools.onContactsChanged();
}

/**
 * The same as a part of a transaction; `onCampaignProgress` is left to whoever commits it, and so is
 * `onContactsChanged` if it returns true.
 */
export async function applyReportsWithin(
  transaction: Transaction,
  tools: Omit<FeedbackTools, keyof FeedbackListeners>,
  channel: Channel,
  reports: readonly Report[],
): Promise<boolean> {
  const organizationIds = [...new Set(reports.map(({ job }) => job.organizationId))];
  const { changedFates, haveContactsChanged } = await transaction.asOrganizations(organizationIds, () =>
    raise(transaction, tools, channel, reports),
  );
  await countFates(
    transaction,
    tools,
    changedFates.map((fate) => ({ ...fate, wasHandedOff: false })),
  );
  return haveContactsChanged;
}

/** Returns what became of those recipients whose status changed, where the channel judges addresses by it. */
async function raise(
  transaction: Transaction,
  tools: Omit<FeedbackTools, keyof FeedbackListeners>,
  channel: Channel,
  reports: readonly Report[],
): Promise<{ changedFates: RecipientFate[]; haveContactsChanged: boolean }> {
  const at = now(tools.clock);
  await continueByIndex(transaction);
  await store.lockMessagesOf(transaction, uniqueMessages(reports.map(({ job }) => job)));
  const strongest = strongestReports(reports);
  if (policyOf(channel).isReportedById)
    await store.lockRecipientsOf(
      transaction,
      strongest.map(({ job }) => job),
    );
  const told = strongest.filter(({ status }) => isToldOf(status)).map(({ job }) => job);
  const [changed, listeners] = await Promise.all([
    store.raiseStatuses(transaction, strongest, at),
    findListeners(transaction, told),
  ]);
  await store.refreshMessages(transaction, uniqueMessages(changed), at);
  await noteRecipientChanges(transaction, tools.newId, changed);
  const toldKeys = new Set(told.map(store.textOfKey));
  const haveContactsChanged = await tellOfContacts(
    transaction,
    tools.newId,
    listeners,
    changed.filter((recipient) => toldKeys.has(store.textOfKey(recipient))),
  );
  if (!policyOf(channel).judgesAddresses) return { changedFates: [], haveContactsChanged };
  const fates = await findFates(transaction, strongest);
  await suppressByFate(transaction, tools, fates);
  const changedKeys = new Set(changed.map(store.textOfKey));
  const changedFates = fates.filter(({ job }) => changedKeys.has(store.textOfKey(job)));
  return { changedFates, haveContactsChanged };
}

/** One a recipient: of several rows for one, an update takes any. */
function strongestReports(reports: readonly Report[]): Report[] {
  const strongest = new Map<string, Report>();
  for (const report of reports) {
    const key = store.textOfKey(report.job);
    const other = strongest.get(key);
    if (other === undefined || statusRanks[report.status] > statusRanks[other.status])
      strongest.set(key, report);
  }
  return [...strongest.values()];
}

/** What is not known of a report is not of ours, or was erased. */
async function findFates(transaction: Transaction, reports: readonly Report[]): Promise<RecipientFate[]> {
  const addressKeys = new Map(
    (
      await store.findAddressKeys(
        transaction,
        reports.map(({ job }) => job),
      )
    ).map((recipient) => [store.textOfKey(recipient), recipient.addressKey]),
  );
  return reports.flatMap((report) => {
    const addressKey = addressKeys.get(store.textOfKey(report.job));
    return addressKey === undefined ? [] : [{ ...report, addressKey }];
  });
}

/** Each message once, in the order of the ids, so that transactions that lock the same ones cannot deadlock. */
export function uniqueMessages(jobs: readonly store.JobKey[]): store.MessageKey[] {
  const messages = new Map(
    jobs.map(({ organizationId, messageId }) => [messageId, { organizationId, messageId }]),
  );
  return [...messages.values()];
}
