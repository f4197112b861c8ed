import { groupBy } from '../../platform/grouping.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Bound } from '../../platform/postgres/database.ts';
import type { DeliverySlice, Job } from '../channel.ts';
import { refreshmentOf } from '../status-store.ts';
import { countSliceOf } from './counts.ts';
import { shardOf } from './reputation.ts';
import {
  hasReaders,
  settlementOfJobs,
  settlementOfParts,
  type TakenContext,
  type TakenJob,
  type TakenPart,
} from './taken-store.ts';
import { isToldOf } from './told-contacts.ts';

/**
 * Recipients whose first hand-off the provider has accepted, and of whom nothing else is known: nearly all. What follows
 * from such an outcome does not depend on what is found when it is written, so that one statement does for all of them
 * what `changeRecipients` does by several. taken.test.ts compares the two: the same
 * outcomes leave the same rows.
 */
export { hasReaders };

export type TakenTools = { newId: NewId; random: () => number };

/** Of a slice, or the only recipient of a message. */
export type TakenRecipient = { job: Job; providerMessageId: string | null };

/**
 * The statements that write these recipients, and all that follows from it, in one transaction. They fail with `hasReaders`
 * where a segment of an organization asks about messages, and must hear of the outcomes: then it is for
 * `changeRecipients` to write them.
 */
export function takenStatements(
  tools: TakenTools,
  taken: readonly TakenRecipient[],
  { epoch, at }: { epoch: number; at: Date },
): Bound<unknown>[] {
  const context: TakenContext = { epoch, at, shard: shardOf(tools) };
  const parts = [...groupBy(taken, ({ job }) => job.slice)].flatMap(([slice, ofSlice]) =>
    slice === undefined ? [] : [partOf(tools, slice, ofSlice)],
  );
  const alone = taken.filter(({ job }) => job.slice === undefined);
  return [
    ...(parts.length > 0 ? [settlementOfParts.bind({ parts, ...context })] : []),
    ...(alone.length > 0 ? [settlementOfJobs.bind({ jobs: alone.map(takenJobOf), ...context })] : []),
    ...[...groupBy(alone, ({ job }) => job.channel)].map(([channel, ofChannel]) =>
      refreshmentOf(
        channel,
        ofChannel.map(({ job }) => job),
        at,
      ),
    ),
  ];
}

function partOf({ newId }: TakenTools, slice: DeliverySlice, taken: readonly TakenRecipient[]): TakenPart {
  const [first] = taken;
  if (first === undefined) throw new Error('a part has recipients');
  const { acceptedStatus } = first.job.policy;
  return {
    slice,
    changeId: newId(),
    countSlices: [...new Set(taken.map(({ job }) => countSliceOf(job)))],
    status: acceptedStatus,
    isTold: isToldOf(acceptedStatus),
    event: first.job.channel.eventOf(acceptedStatus, null),
    recipients: taken.map(({ job: { ordinal }, providerMessageId }) => ({ ordinal, providerMessageId })),
    sent: taken.filter(({ job }) => countsAsSent(job)).length,
  };
}

function takenJobOf({ job, providerMessageId }: TakenRecipient): TakenJob {
  const { organizationId, messageId, ordinal, channel, policy } = job;
  return {
    organizationId,
    messageId,
    ordinal,
    status: policy.acceptedStatus,
    isTold: isToldOf(policy.acceptedStatus),
    event: channel.eventOf(policy.acceptedStatus, null),
    providerMessageId,
    sent: countsAsSent(job) ? 1 : 0,
  };
}

/** Simulated addresses must neither suspend an organization nor lower its bounce rate. */
function countsAsSent({ channel: { judgement }, addressKey }: Job): boolean {
  return judgement !== null && !judgement.isSimulated(addressKey);
}
