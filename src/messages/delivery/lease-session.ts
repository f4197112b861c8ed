import { type Batcher, createBatcher } from '../../platform/batcher.ts';
import type { ByteBudget } from '../../platform/byte-budget.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import type { Wakeup } from '../../platform/wakeup.ts';
import {
  type ChannelDelivery,
  contentBytesMax,
  type DeliverySession,
  type Job,
  type MessageChannel,
} from '../channel.ts';
import { textOfKey } from '../keys.ts';
import { type Breakers, createBreakers } from './breaker.ts';
import { type BreakerNotes, openBreakerNotes } from './breaker-notes.ts';
import { departJobs } from './departure-store.ts';
import { createObjectionLookups, type ObjectionLookups } from './late-objections.ts';
import { type Ledger, openLedger } from './ledger.ts';
import type { WriterTools } from './settlement-writer.ts';

export type DeliveryTools = Omit<WriterTools, 'deliveries'> & {
  deliveries: readonly ChannelDelivery[];
  /** The content of messages in memory at once; a larger message waits until it is the only one. */
  contentBytesMax?: number;
  /** Jobs that are being handed off, or whose outcome is not written yet. Smaller in tests. */
  underWayMax?: number;
};

/** What a worker has under one lease. Only the budget is kept for the next lease. */
export type LeaseSession = {
  tools: DeliveryTools;
  lease: Lease;
  /** Aborts when nothing more may be handed off, which `end` causes too. */
  signal: AbortSignal;
  end: () => void;
  wakeup: Wakeup;
  channelSessions: readonly ChannelSession[];
  contentBytesMax: number;
  budget: ByteBudget;
  breakerNotes: BreakerNotes;
  objections: ObjectionLookups;
  /** Has jobs depart that may be cancelled until then; false for one that was cancelled, or is not this worker's any more. */
  departures: Batcher<Job, boolean>;
};

/** A channel under one lease, with breakers of its own, so that an unavailable provider stops no other channel. */
export type ChannelSession = {
  channel: MessageChannel;
  provider: string;
  concurrency: number;
  isAnnouncedAhead: boolean;
  ledger: Ledger;
  breakers: Breakers;
  delivery: DeliverySession;
};

/** Of one transaction. With more, those that wait for a cancellation would hold up more others. */
const departuresMax = 500;

/**
 * `budget` is shared by all leases: messages under way when a lease is lost stay in memory until their hand-off ends.
 */
export function openLeaseSession(
  tools: DeliveryTools,
  lease: Lease,
  { wakeup, budget, stopping }: { wakeup: Wakeup; budget: ByteBudget; stopping: AbortSignal },
): LeaseSession {
  const ended = new AbortController();
  const signal = AbortSignal.any([lease.signal, stopping, ended.signal]);
  let lastBatch = 0;
  const nextBatch = () => (lastBatch += 1);
  return {
    tools,
    lease,
    signal,
    end: () => {
      ended.abort(new Error('the lease session is over'));
    },
    wakeup,
    channelSessions: tools.deliveries.map(
      ({ channel, provider, concurrency, isAnnouncedAhead = false, accountOf, begin }) => ({
        channel,
        provider,
        concurrency,
        isAnnouncedAhead,
        ledger: openLedger(tools, {
          lease,
          nextBatch,
          announcedMax: isAnnouncedAhead ? concurrency : 2 * concurrency,
          isAnnouncedApart: !isAnnouncedAhead,
        }),
        breakers: createBreakers(tools.clock, accountOf),
        delivery: begin(),
      }),
    ),
    contentBytesMax: tools.contentBytesMax ?? contentBytesMax,
    budget,
    breakerNotes: openBreakerNotes(tools, lease.epoch, signal),
    objections: createObjectionLookups(tools),
    departures: createBatcher({
      itemsMax: departuresMax,
      concurrency: 1,
      run: async (jobs) => {
        const organizationIds = [...new Set(jobs.map(({ organizationId }) => organizationId))];
        const departed = await tools.database.asOrganizationsByIndex(organizationIds, (transaction) =>
          departJobs(transaction, jobs, lease.epoch),
        );
        return jobs.map((job) => departed.has(textOfKey(job)));
      },
    }),
  };
}
