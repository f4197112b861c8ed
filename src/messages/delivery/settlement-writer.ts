import type { SuppressionTools } from '../../audience/audience.ts';
import { dateOf, sleep } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import { groupBy } from '../../platform/grouping.ts';
import {
  type Bound,
  type Database,
  DatabaseUnavailableError,
  isConflict,
  type Transaction,
} from '../../platform/postgres/database.ts';
import { type Lease, LeftToOthersError } from '../../platform/queue/lease.ts';
import type {
  ChannelDelivery,
  DeliverySlice,
  Job,
  MessageChannel,
  MessageChannels,
  MessageFacts,
} from '../channel.ts';
import { keepProviderIds, type ProviderId, uncertainId } from '../recipients/provider-ids.ts';
import { changeRecipients, type RecipientListeners, type RecipientTools } from '../recipients/recipients.ts';
import { settleAmbiguity, type SettlementContext, type UnannouncedRule } from './settlement.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { type RecipientKey, textOfKey, uniqueMessages } from '../keys.ts';
import { type ClaimedJob, listClaims, listOtherChannels } from './claim-store.ts';
import { deleteFinishedAttachments } from './content-store.ts';
import { type Announced, deleteMarkers } from './hand-off-store.ts';
import type { DeliveryObserver } from './observer.ts';
import { withoutReported } from './repeats.ts';
import { settleJobs, type Settlement } from './settlement-store.ts';
import { noteCrashes } from './set-aside-store.ts';
import { deleteSlices, findClaimedSlice, listUnsettled, lockClaimedSlice } from './slice-store.ts';

type WaysOfReporting = Pick<ChannelDelivery, 'isReportedById' | 'isReportedByRecipients'>;

/** What writing outcomes needs. */
export type WriterTools = SuppressionTools &
  RecipientListeners &
  RecipientTools & {
    database: Database;
    channels: MessageChannels;
    /** Of the channels on which this process hands off. */
    deliveries: readonly (Pick<ChannelDelivery, 'channel'> & WaysOfReporting)[];
    log: Log;
    random: () => number;
    /** Left out: nothing is counted. */
    observer?: DeliveryObserver;
    /** Smaller in tests. */
    recoveryItemsMax?: number;
  };

/** `message` is null if nothing is known of it; no step may be skipped then. */
export type Settled = { settlement: Settlement; message: MessageFacts | null; finding?: unknown };

/**
 * Outcomes exist only in memory here, so writing is retried until the database accepts them. Returns for each whether
 * it was written.
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
      // Once the lease is lost for good, other workers recover the claims, as ambiguities.
      if (lease.signal.aborted) lostAtMs ??= tools.clock.monotonicMs();
      if (lostAtMs !== null && tools.clock.monotonicMs() - lostAtMs > lostLeaseMs) throw cause;
      await sleep(tools.clock, rewriteMs);
    }
  }
}

/** An outcome that cannot be written must not prevent the others of its batch from being written. */
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

/** How long writing is retried after the lease was lost, while the database does not answer. */
const lostLeaseMs = 10_000;

/** `announcement` is stored in the same transaction; returns what it does. */
export async function writeSettlements(
  tools: WriterTools,
  epoch: number,
  given: readonly Settled[],
  announcement: Bound<Announced> | null = null,
): Promise<readonly Announced[]> {
  const items = given.map(withFinding);
  const written = listWritten(items);
  // The commit must follow what is kept of findings.
  const isLast = items.every(({ finding }) => finding === undefined);
  const [haveContactsChanged, announced] = await tools.database.transactionByIndex((transaction) =>
    Promise.all([
      settleWithin(transaction, tools, { epoch, items, finished: listFinished(written), isLast }),
      announcement === null ? [] : transaction.rows(announcement.statement, announcement.values),
    ]),
  );
  for (const [slice, jobs] of written) {
    slice.writes += 1;
    slice.jobsLeft -= jobs;
  }
  if (haveContactsChanged) tools.onContactsChanged();
  if (items.some(({ settlement }) => settlement.job.isCampaign)) tools.onCampaignProgress();
  tellSetAside(tools.log, items);
  tools.observer?.onSettled(items.map(({ settlement }) => settlement));
  return announced;
}

/** Nothing else happens to such a job until an operator has looked at it. */
function tellSetAside(log: Log, items: readonly Settled[]): void {
  for (const { settlement } of items) {
    const { job, requeue } = settlement;
    if ((requeue?.setAsideAt ?? null) === null) continue;
    log.error(
      {
        organization_id: job.organizationId,
        message_id: job.messageId,
        ordinal: job.ordinal,
        channel: job.channel.name,
        crashes: requeue?.crashes,
      },
      'a job was set aside: see "postillion queue list"',
    );
  }
}

/** The slices that these are of, with the number of jobs. */
function listWritten(items: readonly Settled[]): Map<DeliverySlice, number> {
  const written = new Map<DeliverySlice, number>();
  for (const { settlement } of items) {
    const { slice } = settlement.job;
    if (slice !== undefined) written.set(slice, (written.get(slice) ?? 0) + 1);
  }
  return written;
}

function listFinished(written: ReadonlyMap<DeliverySlice, number>): DeliverySlice[] {
  return [...written].filter(([slice, jobs]) => slice.jobsLeft === jobs).map(([slice]) => slice);
}

type Writing = {
  epoch: number;
  items: readonly Settled[];
  finished: readonly DeliverySlice[];
  isLast: boolean;
};

/** Returns whether segments must be looked at again. The jobs must be claimed under the epoch. */
export async function settleWithin(
  transaction: Transaction,
  tools: WriterTools,
  { epoch, items, finished, isLast }: Writing,
): Promise<boolean> {
  const at = dateOf(tools.clock.nowMs());
  const settlements = items.map(({ settlement }) => settlement);
  const jobs = new Map(settlements.map(({ job }) => [textOfKey(job), job]));
  // Messages of campaigns are left out: they have no status, and far too many recipients to read.
  const messagesWith = (has: (facts: MessageFacts, job: Job) => boolean) =>
    uniqueMessages(
      items
        .filter(
          ({ settlement: { job }, message }) => !job.isCampaign && (message === null || has(message, job)),
        )
        .map(({ settlement }) => settlement.job),
    );
  const changedOf = (changed: ReadonlySet<string>) =>
    settlements.filter(({ job }) => changed.has(textOfKey(job)));
  const channelOf = (recipient: RecipientKey) => channelOfJob(jobs, recipient);
  let changedKeys: ReadonlySet<string> = new Set();
  const written = await changeRecipients(transaction, tools, {
    at,
    holds: {
      // Reports may be applied at the same moment. They lock messages before they write recipients.
      messages: messagesWith(({ isShared }, { channel }) => isShared || isReportedSoon(tools, channel)),
      // Reports come within milliseconds, and change the same recipients of a campaign at the same time.
      recipients: settlements.map(({ job }) => job).filter(({ channel }) => isReportedSoon(tools, channel)),
    },
    write: async () =>
      settleJobs(transaction, await withoutReported(transaction, settlements), { epoch, at }),
    channelOf,
    told: { recipients: settlements.filter(({ status }) => isToldOf(status)).map(({ job }) => job) },
    alongside: (changed) => {
      changedKeys = changed;
      return [
        deleteSlices(transaction, finished, epoch),
        noteCrashes(transaction, settlements, at),
        deleteFinishedAttachments(
          transaction,
          messagesWith(({ hasAttachments }) => hasAttachments),
        ),
        keepProviderIds(
          transaction,
          changedOf(changed).flatMap((settlement) => listProviderIds(tools, settlement)),
          at,
        ),
      ];
    },
    judgement: {
      tools,
      channelOf,
      judge: (changed) => {
        const fates = changedOf(changed).map((settlement) => ({
          ...settlement,
          addressKey: settlement.job.addressKey,
        }));
        return Promise.resolve({ suppressing: fates, counted: fates });
      },
    },
    isLast,
  });
  const haveFound = await keepFindings(tools, transaction, items, changedKeys);
  return written.haveContactsChanged || haveFound;
}

/**
 * Returns whether segments must be looked at again. Alone in its transaction: a channel may take the role of an
 * organization for it, under which nothing else may be written meanwhile.
 */
async function keepFindings(
  tools: WriterTools,
  transaction: Transaction,
  items: readonly Settled[],
  changed: ReadonlySet<string>,
): Promise<boolean> {
  const found = items.filter(
    ({ settlement, finding }) =>
      finding !== undefined && (isGivenBack(settlement) || changed.has(textOfKey(settlement.job))),
  );
  let haveContactsChanged = false;
  for (const [channel, ofChannel] of groupBy(found, ({ settlement }) => settlement.job.channel)) {
    const findings = ofChannel.map(({ settlement: { job }, finding }) => ({
      organizationId: job.organizationId,
      messageId: job.messageId,
      ordinal: job.ordinal,
      addressKey: job.addressKey,
      sentAt: null,
      finding,
    }));
    const isNews = await channel.keepFindings?.(tools, transaction, findings);
    haveContactsChanged ||= isNews === true;
  }
  return haveContactsChanged;
}

/** Whoever tells that a hand-off was cut off need not know what follows from it on its channel. */
function withFinding(item: Settled): Settled {
  const { job, isAmbiguous } = item.settlement;
  return item.finding === undefined && isAmbiguous ? { ...item, finding: job.channel.cutOffFinding } : item;
}

/** The provider took nothing, of whatever message: no recipient is changed by it, and why it did so counts all the same. */
function isGivenBack({ status, isAmbiguous, dropReason }: Settlement): boolean {
  return status === null && !isAmbiguous && dropReason === null;
}

function listProviderIds(tools: WriterTools, settlement: Settlement): ProviderId[] {
  const { job, isAmbiguous } = settlement;
  if (!waysOfReporting(tools, job.channel).isReportedById) return [];
  const isFound = job.channel.reports.findCutOff !== null;
  const uncertain = isFound ? uncertainId(tools.secrets, job.addressKey) : null;
  const id = isAmbiguous ? uncertain : settlement.providerMessageId;
  return id === null ? [] : [{ job, channel: job.channel.name, providerMessageId: id }];
}

/** Of a channel on which only others hand off, any: this process settles what one of them has left when it ended. */
function waysOfReporting({ deliveries }: WriterTools, { name }: MessageChannel): WaysOfReporting {
  return deliveries.find(({ channel }) => channel.name === name) ?? { isReportedById: true };
}

/** A report may be applied while an outcome is written. */
export function isReportedSoon(tools: WriterTools, channel: MessageChannel): boolean {
  const { isReportedById, isReportedByRecipients = false } = waysOfReporting(tools, channel);
  return isReportedById || isReportedByRecipients;
}

function channelOfJob(jobs: ReadonlyMap<string, Job>, recipient: RecipientKey): MessageChannel {
  const job = jobs.get(textOfKey(recipient));
  if (job === undefined) throw new Error('only what was to be settled is changed');
  return job.channel;
}

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
