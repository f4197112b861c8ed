import { dateOf } from '../../platform/clock.ts';
import { groupBy } from '../../platform/grouping.ts';
import { sqlState, type Transaction } from '../../platform/postgres/database.ts';
import type { DeliverySlice } from '../channel.ts';
import { countSliceOf } from '../recipients/counts.ts';
import { shardOf } from '../recipients/reputation.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { isReportedSoon, type Settled, type WriterTools } from './settlement-writer.ts';
import { deleteSlices } from './slice-store.ts';
import { hasReaders, settleTaken, type TakenPart } from './taken-store.ts';

/**
 * Outcomes of the usual kind: a recipient of a slice, whose hand-off was accepted, and of whom nothing else is known.
 * Nothing that follows from such an outcome depends on what the statement finds, so everything is sent at once.
 */
export function isPlainlyTaken(tools: WriterTools, { settlement, finding }: Settled): boolean {
  const { job, status, requeue, isAmbiguous } = settlement;
  return (
    job.slice !== undefined &&
    status === job.policy.acceptedStatus &&
    requeue === null &&
    !isAmbiguous &&
    finding === undefined &&
    tools.outbox === undefined &&
    !isReportedSoon(tools, job.channel)
  );
}

/** False if a segment of an organization reads messages: nothing is written then, and it must hear of the outcomes. */
export async function writeTaken(
  tools: WriterTools,
  epoch: number,
  items: readonly Settled[],
  alongside: (transaction: Transaction) => Promise<unknown>,
): Promise<boolean> {
  const parts = partsOf(tools, items);
  const finished = parts.filter(({ slice, recipients }) => slice.jobsLeft === recipients.length);
  const written = { epoch, at: dateOf(tools.clock.nowMs()), shard: shardOf(tools) };
  try {
    await tools.database.transactionByIndex((transaction) =>
      Promise.all([
        alongside(transaction),
        settleTaken(transaction, parts, written),
        deleteSlices(
          transaction,
          finished.map(({ slice }) => slice),
          epoch,
        ),
        transaction.commit(),
      ]),
    );
  } catch (cause) {
    if (sqlState(cause) === hasReaders) return false;
    throw cause;
  }
  for (const { slice, recipients } of parts) {
    slice.writes += 1;
    slice.jobsLeft -= recipients.length;
  }
  tools.onCampaignProgress();
  return true;
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
  const { judgement } = job.channel;
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
    sent:
      judgement === null
        ? 0
        : items.filter(({ settlement }) => !judgement.isSimulated(settlement.job.addressKey)).length,
  };
}
