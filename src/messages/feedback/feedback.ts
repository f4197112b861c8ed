import { now } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import type { SuppressionTools } from '../../audience/audience.ts';
import type { MessageChannel } from '../channel.ts';
import { changeRecipients, type RecipientTools } from '../recipients/recipients.ts';
import type { ReputationTools } from '../recipients/reputation.ts';
import { statusRanks } from '../status.ts';
import type { ReportedFate } from '../recipients/suppressing.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { textOfKey, uniqueMessages } from '../keys.ts';
import { findAddressKeys, raiseStatuses, type ReportedChange } from '../recipients/store.ts';

/**
 * Feedback: what is heard of a recipient after the hand-off. Reports come late, twice and out of order; each is
 * applied once, and none moves a status down.
 */

/** One report, normalised at the edge where it arrived. */
export type Report = ReportedChange;

export type FeedbackTools = SuppressionTools &
  ReputationTools &
  FeedbackListeners &
  RecipientTools & { database: Database };

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
  channel: MessageChannel,
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
  channel: MessageChannel,
  reports: readonly Report[],
): Promise<boolean> {
  const at = now(tools.clock);
  const strongest = strongestReports(reports);
  const recipients = strongest.map(({ job }) => job);
  await continueByIndex(transaction);
  const { haveContactsChanged } = await changeRecipients(transaction, tools, {
    at,
    organizationIds: [...new Set(recipients.map(({ organizationId }) => organizationId))],
    holds: {
      messages: uniqueMessages(recipients),
      recipients: channel.isReportedById ? recipients : [],
    },
    write: () => raiseStatuses(transaction, strongest, at),
    channelOf: () => channel,
    told: { recipients: strongest.filter(({ status }) => isToldOf(status)).map(({ job }) => job) },
    ...(channel.judgement !== null && {
      judgement: {
        tools,
        channelOf: () => channel,
        judge: async (changed) => {
          const fates = await findFates(transaction, strongest);
          return {
            suppressing: fates,
            counted: fates
              .filter(({ job }) => changed.has(textOfKey(job)))
              .map((fate) => ({ ...fate, wasHandedOff: false })),
          };
        },
      },
    }),
  });
  return haveContactsChanged;
}

/** One a recipient: of several rows for one, an update takes any. */
function strongestReports(reports: readonly Report[]): Report[] {
  const strongest = new Map<string, Report>();
  for (const report of reports) {
    const key = textOfKey(report.job);
    const other = strongest.get(key);
    if (other === undefined || statusRanks[report.status] > statusRanks[other.status])
      strongest.set(key, report);
  }
  return [...strongest.values()];
}

/** What is not known of a report is not of ours, or was erased. */
async function findFates(transaction: Transaction, reports: readonly Report[]): Promise<ReportedFate[]> {
  const addressKeys = new Map(
    (
      await findAddressKeys(
        transaction,
        reports.map(({ job }) => job),
      )
    ).map((recipient) => [textOfKey(recipient), recipient.addressKey]),
  );
  return reports.flatMap((report) => {
    const addressKey = addressKeys.get(textOfKey(report.job));
    return addressKey === undefined ? [] : [{ ...report, addressKey }];
  });
}
