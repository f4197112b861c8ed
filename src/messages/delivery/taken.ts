import { dateOf } from '../../platform/clock.ts';
import { groupBy } from '../../platform/grouping.ts';
import { type Bound, sqlState } from '../../platform/postgres/database.ts';
import type { DeliverySlice, Job, MessageFacts } from '../channel.ts';
import { countSliceOf } from '../recipients/counts.ts';
import { shardOf } from '../recipients/reputation.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { refreshmentOf } from '../status-store.ts';
import type { Announced } from './hand-off-store.ts';
import { isReportedSoon, type Settled, type WriterTools } from './settlement-writer.ts';
import { deletionOfSlices } from './slice-store.ts';
import {
  hasReaders,
  settlementOfJobs,
  settlementOfParts,
  type TakenContext,
  type TakenJob,
  type TakenPart,
} from './taken-store.ts';

/**
 * Outcomes of the usual kind: the first hand-off of a recipient of a slice, or of the only one of a message, which was
 * accepted, and of whom nothing else is known. Nothing that follows from such an outcome depends on what the statement
 * finds, so everything is sent at once.
 */
export function isPlainlyTaken(tools: WriterTools, { settlement, message, finding }: Settled): boolean {
  const { job, status, requeue, isAmbiguous } = settlement;
  return (
    (job.slice !== undefined || isAlone(job, message)) &&
    status === job.policy.acceptedStatus &&
    requeue === null &&
    !isAmbiguous &&
    finding === undefined &&
    !isReportedSoon(tools, job.channel)
  );
}

/** No other recipient and no earlier attempt has to do with its outcome, and nothing is cleared up after it. */
function isAlone({ isCampaign, attempts, ambiguities }: Job, message: MessageFacts | null): boolean {
  if (isCampaign || attempts > 0 || ambiguities > 0 || message === null) return false;
  return !message.isShared && !message.hasAttachments;
}

/**
 * `announcement` is stored in the same transaction; returns what it does. Null if a segment of an organization reads
 * messages: nothing is written then, and it must hear of the outcomes.
 */
export async function writeTaken(
  tools: WriterTools,
  epoch: number,
  items: readonly Settled[],
  announcement: Bound<Announced> | null = null,
): Promise<readonly Announced[] | null> {
  const parts = partsOf(tools, items);
  const alone = items.filter(({ settlement }) => settlement.job.slice === undefined);
  const finished = parts.filter(({ slice, recipients }) => slice.jobsLeft === recipients.length);
  const written: TakenContext = { epoch, at: dateOf(tools.clock.nowMs()), shard: shardOf(tools) };
  const settlements = [
    ...(parts.length > 0 ? [settlementOfParts(parts, written)] : []),
    ...settlementsOfAlone(alone, written),
    ...deletionOfSlices(
      finished.map(({ slice }) => slice),
      epoch,
    ),
  ];
  let announced: readonly Announced[] = [];
  try {
    if (announcement === null) await tools.database.together(null, settlements);
    else
      [announced] = await tools.database.together<[Announced, ...unknown[]]>(null, [
        announcement,
        ...settlements,
      ]);
  } catch (cause) {
    if (sqlState(cause) === hasReaders) return null;
    throw cause;
  }
  for (const { slice, recipients } of parts) {
    slice.writes += 1;
    slice.jobsLeft -= recipients.length;
  }
  if (parts.length > 0) tools.onCampaignProgress();
  tools.observer?.onSettled(items.map(({ settlement }) => settlement));
  return announced;
}

function settlementsOfAlone(items: readonly Settled[], written: TakenContext): Bound<unknown>[] {
  if (items.length === 0) return [];
  const jobs = items.map(({ settlement: { job, providerMessageId } }): TakenJob => {
    const { organizationId, messageId, ordinal, policy } = job;
    return {
      organizationId,
      messageId,
      ordinal,
      status: policy.acceptedStatus,
      isTold: isToldOf(policy.acceptedStatus),
      providerMessageId,
      sent: countsAsSent(job) ? 1 : 0,
    };
  });
  const byChannel = groupBy(items, ({ settlement }) => settlement.job.channel);
  return [
    settlementOfJobs(jobs, written),
    ...[...byChannel].map(([channel, ofChannel]) =>
      refreshmentOf(
        channel,
        ofChannel.map(({ settlement: { job } }) => job),
        written.at,
      ),
    ),
  ];
}

/** Simulated addresses must neither suspend an organization nor lower its bounce rate. */
function countsAsSent({ channel: { judgement }, addressKey }: Job): boolean {
  return judgement !== null && !judgement.isSimulated(addressKey);
}

function partsOf(tools: WriterTools, items: readonly Settled[]): TakenPart[] {
  return [...groupBy(items, ({ settlement: { job } }) => job.slice)].flatMap(([slice, ofSlice]) =>
    slice === undefined ? [] : [partOf(tools, slice, ofSlice)],
  );
}

function partOf(tools: WriterTools, slice: DeliverySlice, items: readonly Settled[]): TakenPart {
  const [first] = items;
  if (first === undefined) throw new Error('a part has recipients');
  const { job } = first.settlement;
  const recipients = items.map(
    ({
      settlement: {
        job: { ordinal },
        providerMessageId,
      },
    }) => ({
      ordinal,
      providerMessageId,
    }),
  );
  return {
    slice,
    changeId: tools.newId(),
    countSlices: [...new Set(recipients.map(countSliceOf))],
    status: job.policy.acceptedStatus,
    isTold: isToldOf(job.policy.acceptedStatus),
    recipients,
    sent: items.filter(({ settlement }) => countsAsSent(settlement.job)).length,
  };
}
