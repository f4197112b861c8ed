import { addSuppressions, type SuppressionReason, type SuppressionTools } from '../audience/audience.ts';
import { now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import * as store from './queue-store.ts';
import { statusRanks } from './status.ts';

/**
 * Feedback: what is heard of a recipient after the hand-off. Reports come late, twice and out of order; each is
 * applied once, and none moves a status down.
 */

/** One report, normalised at the edge where it arrived. */
export type Report = store.ReportedChange;

export type FeedbackTools = SuppressionTools & { database: Database };

export async function applyReports(tools: FeedbackTools, reports: readonly Report[]): Promise<void> {
  const at = now(tools.clock);
  await tools.database.transaction(async (transaction) => {
    await store.lockMessagesOf(transaction, uniqueMessages(reports.map(({ job }) => job)));
    const changed = await store.raiseStatuses(transaction, strongestReports(reports), at);
    await store.refreshMessages(transaction, uniqueMessages(changed), at);
    await suppressReported(transaction, tools, reports);
  });
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

/** Complaints and hard bounces: whoever they came from must not be written to again. */
async function suppressReported(
  transaction: Transaction,
  tools: FeedbackTools,
  reports: readonly Report[],
): Promise<void> {
  const reasons = new Map<string, SuppressionReason>();
  for (const { job, status, failure } of reports) {
    if (status === 'complained') reasons.set(store.textOfKey(job), 'complaint');
    else if (status === 'bounced' && failure?.type === 'hard')
      reasons.set(store.textOfKey(job), 'hard_bounce');
  }
  if (reasons.size === 0) return;
  const recipients = await store.findAddressKeys(
    transaction,
    reports.map(({ job }) => job).filter((job) => reasons.has(store.textOfKey(job))),
  );
  await addSuppressions(
    transaction,
    tools,
    'email',
    recipients.map((recipient) => ({
      organizationId: recipient.organizationId,
      address: recipient.addressKey,
      reason: reasons.get(store.textOfKey(recipient)) ?? 'complaint',
    })),
  );
}

/** Each message once, in the order of the ids, so that transactions that lock the same ones cannot deadlock. */
export function uniqueMessages(jobs: readonly store.JobKey[]): store.MessageKey[] {
  const messages = new Map(
    jobs.map(({ organizationId, messageId }) => [messageId, { organizationId, messageId }]),
  );
  return [...messages.values()];
}
