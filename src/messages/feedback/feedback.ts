import { now } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import type { SuppressionTools } from '../../audience/audience.ts';
import type { MessageChannel } from '../channel.ts';
import { changeRecipients, type RecipientListeners, type RecipientTools } from '../recipients/recipients.ts';
import type { ReputationTools } from '../recipients/reputation.ts';
import { statusRanks } from '../status.ts';
import type { ReportedFate } from '../recipients/suppressing.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { endRepeats } from '../delivery/repeats-store.ts';
import { type RecipientKey, textOfKey, uniqueMessages } from '../keys.ts';
import type { ReportedChange } from '../recipients/report-store.ts';
import { findAddressKeys } from '../recipients/store.ts';

/**
 * Feedback: what is heard of a recipient after the hand-off. Reports arrive late, twice and out of order. A report
 * changes a recipient only if its status has a higher rank than the recipient's (`statusRanks`), so a repeated report
 * changes nothing. One exception: `sent`, of the lowest rank, says that a hand-off took place. If that was uncertain,
 * or its outcome is not written yet, the report settles it, and turns `delayed` into `sent`.
 *
 * A message that waits to be sent once more only because the reply to its hand-off was lost is not sent again once a
 * report says that the hand-off took place.
 */

/** One report, normalised at the edge where it arrived. */
export type Report = ReportedChange;

export type FeedbackTools = SuppressionTools &
  ReputationTools &
  RecipientListeners &
  RecipientTools & { database: Database };

/**
 * Applies reports in a transaction of their own. If several name one recipient, only the one with the highest status is
 * applied. A report that changes nothing is not counted for the reputation again, but it can still suppress the
 * address: the report before it may have been of a kind that does not.
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
 * The same within the caller's transaction. After the commit the caller must call `onCampaignProgress`, and
 * `onContactsChanged` if this returned true.
 */
export async function applyReportsWithin(
  transaction: Transaction,
  tools: Omit<FeedbackTools, keyof RecipientListeners>,
  channel: MessageChannel,
  reports: readonly Report[],
): Promise<boolean> {
  const at = now(tools.clock);
  const { isDeliveryFinal = false } = channel.reports;
  const strongest = strongestReports(reports, isDeliveryFinal);
  const recipients = strongest.map(({ job }) => job);
  await continueByIndex(transaction);
  const { haveContactsChanged } = await changeRecipients(transaction, tools, {
    at,
    organizationIds: [...new Set(recipients.map(({ organizationId }) => organizationId))],
    holds: {
      messages: uniqueMessages(recipients),
      recipients,
    },
    write: { kind: 'reports', reports: strongest, isDeliveryFinal },
    channelOf: () => channel,
    told: { recipients: strongest.filter(({ status }) => isToldOf(status)).map(({ job }) => job) },
    alongside: (changed) =>
      channel.reports.endsRepeats ? [endRepeats(transaction, jobsHandedOff(strongest, changed))] : [],
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

/** A delay does not tell whether a hand-off that was cut off took place. Every other report does. */
function jobsHandedOff(reports: readonly Report[], changed: ReadonlySet<string>): RecipientKey[] {
  return reports
    .filter(({ job, status }) => status !== 'delayed' && changed.has(textOfKey(job)))
    .map(({ job }) => job);
}

/** At most one report for each recipient: an update that is given several rows for one recipient picks any of them. */
function strongestReports(reports: readonly Report[], isDeliveryFinal: boolean): Report[] {
  const rankOf = ({ status }: Report) =>
    isDeliveryFinal && status === 'delivered' ? statusRanks.failed + 0.5 : statusRanks[status];
  const strongest = new Map<string, Report>();
  for (const report of reports) {
    const key = textOfKey(report.job);
    const other = strongest.get(key);
    if (other === undefined || rankOf(report) > rankOf(other)) strongest.set(key, report);
  }
  return [...strongest.values()];
}

/** Reports whose recipient is not known are left out: it is not ours, or it was erased. */
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
