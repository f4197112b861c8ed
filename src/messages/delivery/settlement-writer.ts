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
import type { Lease } from '../../platform/queue/lease.ts';
import type {
  ChannelDelivery,
  DeliverySlice,
  Job,
  MessageChannel,
  MessageChannels,
  MessageFacts,
} from '../channel.ts';
import { keepProviderIds, type ProviderId, uncertainId } from '../recipients/provider-ids-store.ts';
import { changeRecipients, type RecipientListeners, type RecipientTools } from '../recipients/recipients.ts';
import { isToldOf } from '../recipients/told-contacts.ts';
import { type RecipientKey, textOfKey, uniqueMessages } from '../keys.ts';
import { deleteFinishedAttachments } from './content-store.ts';
import type { Announced } from './hand-off-store.ts';
import type { DeliveryObserver } from './observer.ts';
import type { Settlement } from '../recipients/settlement-store.ts';
import { noteCrashes } from './set-aside-store.ts';
import { deleteSlices } from './slice-store.ts';

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
  noteWritten(written);
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
export function listWritten(items: readonly Settled[]): Map<DeliverySlice, number> {
  const written = new Map<DeliverySlice, number>();
  for (const { settlement } of items) {
    const { slice } = settlement.job;
    if (slice !== undefined) written.set(slice, (written.get(slice) ?? 0) + 1);
  }
  return written;
}

/** Those of which no outcome is left. */
export function listFinished(written: ReadonlyMap<DeliverySlice, number>): DeliverySlice[] {
  return [...written].filter(([slice, jobs]) => slice.jobsLeft === jobs).map(([slice]) => slice);
}

/** To be called when these outcomes are committed. */
export function noteWritten(written: ReadonlyMap<DeliverySlice, number>): void {
  for (const [slice, jobs] of written) {
    slice.writes += 1;
    slice.jobsLeft -= jobs;
  }
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
    write: { kind: 'outcomes', settlements, epoch },
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
export function withFinding(item: Settled): Settled {
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
