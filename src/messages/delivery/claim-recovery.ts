import { dateOf } from '../../platform/clock.ts';
import { DatabaseUnavailableError, isConflict } from '../../platform/postgres/database.ts';
import { LeftToOthersError } from '../../platform/queue/lease.ts';
import type { DeliverySlice } from '../channel.ts';
import { textOfKey } from '../keys.ts';
import { type ClaimedJob, listClaims, listOtherChannels } from './claim-store.ts';
import { deleteMarkers } from './hand-off-store.ts';
import { settleAmbiguity, type SettlementContext, type UnannouncedRule } from './settlement.ts';
import type { Settlement } from '../recipients/settlement-store.ts';
import {
  type Settled,
  settleWithin,
  withFinding,
  writeSettlements,
  type WriterTools,
} from './settlement-writer.ts';
import { findClaimedSlice, listUnsettled, lockClaimedSlice } from './slice-store.ts';

/**
 * With fewer, more transactions are needed; with more, locks are held longer, and reports on the same messages wait.
 */
const defaultRecoveryItemsMax = 500;

/**
 * Settles the claims of a worker that has ended, until none is left; calling it again does no harm. Throws if some
 * could not be settled, after settling the rest. Claims on channels that only newer workers know are left to them
 * (LeftToOthersError). `settleUnannounced` decides on jobs whose hand-off was not announced.
 */
export async function returnClaims(
  tools: WriterTools,
  epoch: number,
  settleUnannounced: UnannouncedRule,
): Promise<void> {
  const { recoveryItemsMax = defaultRecoveryItemsMax } = tools;
  const stuck = new Map<string, unknown>();
  // Ends because a settled job is no longer claimed, and one that cannot be settled is remembered as stuck.
  for (;;) {
    const listed = await listClaims(tools.database, tools.channels, {
      epoch,
      itemsMax: recoveryItemsMax + stuck.size,
    });
    const claims = listed.filter((job) => !stuck.has(textOfKey(job))).slice(0, recoveryItemsMax);
    if (claims.length === 0) break;
    const context = { atMs: tools.clock.nowMs(), random: tools.random(), dateOf };
    const failed = await writeTogetherOrApart(
      tools,
      epoch,
      claims.map((job) => ({
        settlement: settleClaim(job, context, settleUnannounced),
        message: null,
      })),
    );
    for (const [key, cause] of failed) stuck.set(key, cause);
    const jobs = claims.length - failed.size;
    tools.log.warn({ epoch, jobs }, 'claims of an ended worker returned to the queue');
  }
  const causes = [...stuck.values(), ...(await returnSlices(tools, epoch, settleUnannounced))];
  const unknown = await listOtherChannels(tools.database, tools.channels, epoch);
  if (unknown.length > 0)
    throw new LeftToOthersError(`claims on channels that are not known here: ${unknown.join(', ')}`);
  // Their markers stay too, since they tell which messages may have been sent.
  if (causes.length > 0)
    throw new Error(`${causes.length} claims of an ended worker cannot be returned`, { cause: causes[0] });
  await deleteMarkers(tools.database, epoch);
}

/** Returns why some of their recipients could not be returned, one cause for each; the others are. */
async function returnSlices(
  tools: WriterTools,
  epoch: number,
  settleUnannounced: UnannouncedRule,
): Promise<unknown[]> {
  const causes: unknown[] = [];
  let slice: DeliverySlice | null = null;
  // Ends because each turn takes a later slice.
  for (;;) {
    slice = await findClaimedSlice(tools.database, tools.channels, { epoch, after: slice });
    if (slice === null) return causes;
    const part = { epoch, slice, settleUnannounced };
    try {
      const jobs = await returnOfSlice(tools, part);
      tools.log.warn({ epoch, jobs }, 'a slice of an ended worker returned to the queue');
    } catch (cause) {
      if (cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
      causes.push(...(await returnApart(tools, part)));
    }
  }
}

type ReturnedPart = { epoch: number; slice: DeliverySlice; settleUnannounced: UnannouncedRule };

async function returnApart(tools: WriterTools, part: ReturnedPart): Promise<unknown[]> {
  const { epoch, slice } = part;
  const causes: unknown[] = [];
  for (let ordinal = slice.firstOrdinal; ordinal <= slice.lastOrdinal; ordinal += 1) {
    try {
      await returnOfSlice(tools, part, ordinal);
    } catch (cause) {
      if (cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
      tools.log.error(
        { err: cause, epoch, message_id: slice.messageId, ordinal },
        'a claim cannot be returned',
      );
      causes.push(cause);
    }
  }
  if (causes.length === 0) await returnOfSlice(tools, part);
  return causes;
}

/**
 * Gives recipients of a slice rows of their own in the queue, in a transaction that has locked it: no outcome of the
 * worker that ended can be written any more, and two workers that return it cannot both queue a recipient. The slice is
 * over, unless only one ordinal of it is meant. Returns how many they are.
 */
async function returnOfSlice(
  tools: WriterTools,
  { epoch, slice, settleUnannounced }: ReturnedPart,
  ordinal?: number,
): Promise<number> {
  const context = { atMs: tools.clock.nowMs(), random: tools.random(), dateOf };
  const returned = await tools.database.transactionByIndex(async (transaction) => {
    const claimed = await lockClaimedSlice(transaction, tools.channels, { epoch, slice });
    if (claimed === null) return { items: [], haveContactsChanged: false };
    const unsettled = await listUnsettled(transaction, epoch, claimed);
    const items = unsettled
      .filter((job) => ordinal === undefined || job.ordinal === ordinal)
      .map((job) => withFinding({ settlement: settleClaim(job, context, settleUnannounced), message: null }));
    const finished = ordinal === undefined ? [claimed.slice] : [];
    const haveContactsChanged = await settleWithin(transaction, tools, {
      epoch,
      items,
      finished,
      isLast: false,
    });
    return { items, haveContactsChanged };
  });
  if (returned.haveContactsChanged) tools.onContactsChanged();
  tools.onCampaignProgress();
  tools.observer?.onSettled(returned.items.map(({ settlement }) => settlement));
  return returned.items.length;
}

function settleClaim(
  job: ClaimedJob,
  context: SettlementContext,
  settleUnannounced: UnannouncedRule,
): Settlement {
  return job.isAnnounced ? settleAmbiguity(job, context) : settleUnannounced(job, context);
}

/** Returns those that cannot be written, with the cause; the others are written. */
async function writeTogetherOrApart(
  tools: WriterTools,
  epoch: number,
  items: readonly Settled[],
): Promise<Map<string, unknown>> {
  try {
    await writeSettlements(tools, epoch, items);
    return new Map();
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
    const [item, ...others] = items;
    if (item === undefined || others.length > 0) return writeApart(tools, epoch, items);
    const { job } = item.settlement;
    tools.log.error({ err: cause, epoch, message_id: job.messageId }, 'a claim cannot be returned');
    return new Map([[textOfKey(job), cause]]);
  }
}

async function writeApart(
  tools: WriterTools,
  epoch: number,
  items: readonly Settled[],
): Promise<Map<string, unknown>> {
  const failed = new Map<string, unknown>();
  for (const item of items)
    for (const [key, cause] of await writeTogetherOrApart(tools, epoch, [item])) failed.set(key, cause);
  return failed;
}
