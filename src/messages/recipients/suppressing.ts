import { addSuppressions, type SuppressingTools, type SuppressionReason } from '../../audience/audience.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import type { AddressJudgement, MessageChannel } from '../channel.ts';
import type { RecipientStatus } from '../schema.ts';
import type { RecipientKey } from '../keys.ts';
import { type Failure, findSoftRuns } from './store.ts';

/**
 * Which addresses are suppressed because of an outcome or a report. An address that does not exist is suppressed at its
 * first bounce, and one that complained at once. An address that cannot take mail at the moment is suppressed after a
 * run of messages that all bounced softly. A refusal that concerns the message says nothing about the address.
 * Addresses of the simulator have the same outcome every time and are never suppressed.
 */
export type ReportedFate = {
  job: RecipientKey;
  addressKey: string;
  status: RecipientStatus | null;
  failure: Failure | null;
};

/**
 * Fewer would shut out a mailbox that was full for a week. With more, the mailbox provider would see the sender as a
 * nuisance.
 */
const softRunLength = 5;

export async function suppressByFate(
  transaction: Transaction,
  tools: SuppressingTools,
  { name, judgement }: MessageChannel,
  fates: readonly ReportedFate[],
): Promise<void> {
  if (judgement === null) return;
  const suppressed: { fate: ReportedFate; reason: SuppressionReason }[] = [];
  const soft: ReportedFate[] = [];
  for (const fate of fates) {
    if (judgement.isSimulated(fate.addressKey)) continue;
    if (fate.status === 'complained') suppressed.push({ fate, reason: 'complaint' });
    else if (fate.status === 'bounced' && fate.failure?.type === 'hard')
      suppressed.push({ fate, reason: 'hard_bounce' });
    else if (isSoftBounce(fate, judgement)) soft.push(fate);
  }
  for (const fate of await findLongRuns(transaction, soft, judgement))
    suppressed.push({ fate, reason: 'soft_bounces' });
  await addSuppressions(
    transaction,
    tools,
    name,
    suppressed.map(({ fate, reason }) => ({
      organizationId: fate.job.organizationId,
      address: fate.addressKey,
      reason,
      source: { type: 'message', id: fate.job.messageId },
    })),
  );
}

function isSoftBounce({ status, failure }: ReportedFate, { failureClasses }: AddressJudgement): boolean {
  const isOver = status === 'bounced' || status === 'failed';
  return isOver && failure?.type === 'soft' && failureClasses.includes(failure.class);
}

async function findLongRuns(
  transaction: Transaction,
  soft: readonly ReportedFate[],
  { failureClasses }: AddressJudgement,
): Promise<ReportedFate[]> {
  if (soft.length === 0) return [];
  const isLong = await findSoftRuns(
    transaction,
    soft.map(({ job, addressKey }) => ({ organizationId: job.organizationId, addressKey })),
    { length: softRunLength, failureClasses },
  );
  return soft.filter((_fate, index) => isLong.has(index));
}
