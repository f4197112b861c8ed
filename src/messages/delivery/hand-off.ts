import { sanitiseDiagnostic } from '../../channels/diagnostic.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import { type Batcher, createBatcher } from '../../platform/batcher.ts';
import type { Wakeup } from '../../platform/wakeup.ts';
import type { ByteBudget } from '../../platform/byte-budget.ts';
import { dateOf } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import { DatabaseUnavailableError } from '../../platform/postgres/database.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import { UnknownKeyError } from '../../platform/secrets.ts';
import { type Breakers, createBreakers } from './breaker.ts';
import { type BreakerNotes, openBreakerNotes } from './breaker-notes.ts';
import {
  type Attempt,
  type ChannelDelivery,
  contentBytesMax,
  type DeliverySession,
  type Job,
  type MessageChannel,
  type MessageFacts,
  smallContentBytesMax,
} from '../channel.ts';
import { type Ledger, openLedger } from './ledger.ts';
import { type MarkerBook, openMarkerBook } from './markers.ts';
import {
  dropJob,
  failJob,
  releaseJob,
  sealedUnderUnknownKey,
  settleAmbiguity,
  settleCrash,
  type SettlementContext,
  settleObjection,
  settleOutcome,
} from './settlement.ts';
import { type AttemptEnd, endOf } from './observer.ts';
import type { Settled, WriterTools } from './settlement-writer.ts';
import { findObjections, type Objection } from './unwanted.ts';
import type { Settlement } from './settlement-store.ts';

export type HandOffTools = Omit<WriterTools, 'deliveries'> & {
  deliveries: readonly ChannelDelivery[];
  /** The content of messages in memory at once; a larger message waits until it is the only one. */
  contentBytesMax?: number;
  /** Jobs that are being handed off, or whose outcome is not written yet. Smaller in tests. */
  underWayMax?: number;
};

/** What a worker has under one lease. Only the budget is kept for the next lease. */
export type LeaseSession = {
  tools: HandOffTools;
  lease: Lease;
  /** Aborts when nothing more may be handed off, which `end` causes too. */
  signal: AbortSignal;
  end: () => void;
  wakeup: Wakeup;
  channelSessions: readonly ChannelSession[];
  contentBytesMax: number;
  budget: ByteBudget;
  markers: MarkerBook;
  breakerNotes: BreakerNotes;
  /** When objections to a job were last looked up. */
  checkedAtMs: WeakMap<Job, number>;
  /** Looks objections up for jobs that have waited since, many at a time. */
  lateObjections: Batcher<Job, Objection | undefined>;
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

/**
 * `budget` is shared by all leases: messages under way when a lease is lost stay in memory until their hand-off ends.
 */
export function openLeaseSession(
  tools: HandOffTools,
  lease: Lease,
  { wakeup, budget, stopping }: { wakeup: Wakeup; budget: ByteBudget; stopping: AbortSignal },
): LeaseSession {
  const ended = new AbortController();
  const markers = openMarkerBook(lease.epoch);
  const signal = AbortSignal.any([lease.signal, stopping, ended.signal]);
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
          book: markers,
          announcedMax: isAnnouncedAhead ? concurrency : 2 * concurrency,
          isAnnouncedApart: !isAnnouncedAhead,
        }),
        breakers: createBreakers(tools.clock, accountOf),
        delivery: begin(),
      }),
    ),
    contentBytesMax: tools.contentBytesMax ?? contentBytesMax,
    budget,
    markers,
    breakerNotes: openBreakerNotes(tools, lease.epoch, signal),
    checkedAtMs: new WeakMap(),
    lateObjections: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      run: async (jobs) => {
        const objections = await findObjections(tools, jobs);
        return jobs.map((job) => objections.get(job));
      },
    }),
  };
}

/** Writes an outcome, and returns whether it was written. */
export async function settle(
  session: LeaseSession,
  { ledger }: ChannelSession,
  settled: Settled,
): Promise<boolean> {
  const isWritten = await ledger.settle(settled);
  if (isWritten) session.markers.clear(settled.settlement.job);
  return isWritten;
}

/** Hands one job off and returns what to write of it. No fault of the job makes it reject. */
export function handOffJob(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
): Promise<Settled> {
  return job.contentBytes <= smallContentBytesMax
    ? attempt(session, channelSession, job)
    : attemptWithinBudget(session, channelSession, job);
}

async function attemptWithinBudget(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
): Promise<Settled> {
  const release = await takeBytes(session, job);
  try {
    return await attempt(session, channelSession, job);
  } finally {
    release();
  }
}

const budgetWaitMs = 5_000;

async function takeBytes(session: LeaseSession, job: Job): Promise<() => void> {
  for (;;) {
    const release = session.budget.take(Math.min(job.contentBytes, session.contentBytesMax));
    if (release !== null) return release;
    // Other jobs hold the bytes. Each wakes this one when it ends.
    await session.wakeup.wait(budgetWaitMs);
  }
}

async function attempt(session: LeaseSession, channelSession: ChannelSession, job: Job): Promise<Settled> {
  const { clock } = session.tools;
  const startedAtMs = clock.monotonicMs();
  const { settled, end } = await tryOnce(session, channelSession, job);
  if (end !== null)
    tellAttempt(session, channelSession, {
      settlement: settled.settlement,
      end,
      durationMs: clock.monotonicMs() - startedAtMs,
    });
  return settled;
}

type Tried = { settled: Settled; end: AttemptEnd };

async function tryOnce(session: LeaseSession, channelSession: ChannelSession, job: Job): Promise<Tried> {
  const { tools } = session;
  const breaker = channelSession.breakers.of(job);
  const context = (facts: MessageFacts | null = null): SettlementContext => ({
    atMs: tools.clock.nowMs(),
    random: tools.random(),
    dateOf,
    expiresAt: facts?.expiresAt,
  });
  let isConfirmed = false;
  const settled = (settlement: Settlement, end: AttemptEnd = null): Tried => ({
    settled: { settlement, message: null },
    end,
  });
  if (session.signal.aborted) return settled(releaseJob(job, context()));
  const entry = breaker.enter();
  if (entry === 'refused')
    return settled(releaseJob(job, context(), channelSession.breakers.putOffMs(job, tools.random())));
  let isNoted = false;
  try {
    const objection = await findLateObjection(session, job);
    if (objection !== undefined) return settled(...settleLate(job, objection, context()));
    job.handOffAt ??= dateOf(tools.clock.nowMs());
    // Not where a repeat is the last attempt: what was announced twice and never left would be lost.
    if (channelSession.isAnnouncedAhead && job.slice !== undefined) channelSession.ledger.announceAhead(job);
    const result = await channelSession.delivery.handOff(job, {
      confirm: async () => {
        await confirmHandOff(session, channelSession, job);
        isConfirmed = true;
        tools.observer?.onHandedOff({ channel: job.channel.name, provider: channelSession.provider });
      },
      signal: session.signal,
    });
    if (result.kind === 'outcome') {
      noteOutcome(session, channelSession, job, result.outcome);
      // Nothing was tried, so this says nothing about the provider.
      isNoted = result.outcome.kind !== 'postponed';
    }
    if (result.facts?.policy !== undefined) job.policy = result.facts.policy;
    return {
      settled: {
        settlement: settleAttempt(job, result, context(result.facts)),
        message: result.facts,
        ...(result.kind === 'outcome' && { finding: result.finding }),
      },
      end: endOfAttempt(result),
    };
  } catch (cause) {
    if (cause instanceof UnwantedError) return settled(...settleLate(job, cause.objection, context()));
    const isStopped = session.signal.aborted || cause instanceof NotConfirmedError;
    if (!isConfirmed && (isStopped || cause instanceof DatabaseUnavailableError)) {
      return settled(releaseJob(job, context()));
    }
    if (!isConfirmed && cause instanceof UnknownKeyError) {
      logFailure(tools.log, cause);
      return settled(settleOutcome(job, sealedUnderUnknownKey, context()), {
        outcome: 'postponed',
        reason: 'unknown_key',
      });
    }
    // Counted as a crash: a message that cannot be built, or that makes a provider throw, must not be tried for ever.
    logFailure(tools.log, cause);
    return isConfirmed
      ? settled(settleAmbiguity(job, context()), { outcome: 'unknown' })
      : settled(settleCrash(job, context(), wordsOf(cause)), { outcome: 'crashed' });
  } finally {
    // Otherwise a probe that never reached the provider would keep the breaker open for ever.
    if (entry === 'probes' && !isNoted) breaker.abandonProbe();
  }
}

function settleLate(
  job: Job,
  objection: Objection,
  context: SettlementContext,
): [settlement: Settlement, end: AttemptEnd] {
  return [settleObjection(job, objection, context), { outcome: 'dropped', reason: objection }];
}

function endOfAttempt(attempt: Attempt): AttemptEnd {
  switch (attempt.kind) {
    case 'outcome':
      return endOf(attempt.outcome);
    case 'dropped':
    case 'failed':
      return { outcome: attempt.kind, reason: attempt.reason };
    case 'released':
      return { outcome: 'released' };
  }
}

/**
 * Of a campaign's recipients one in so many has lines in the log, the same with each of its attempts. With fewer, a
 * campaign of a million makes too few lines to look at; with more, its lines hide all others.
 */
const sampledRecipients = 100;

/** One line says all that is known of an attempt. What the remote side said may quote the message, and is not in it. */
function tellAttempt(
  { tools: { log, observer } }: LeaseSession,
  { provider }: ChannelSession,
  {
    settlement: { job, requeue },
    end,
    durationMs,
  }: { settlement: Settlement; end: NonNullable<AttemptEnd>; durationMs: number },
): void {
  const channel = job.channel.name;
  observer?.onAttempted({ channel, provider, outcome: end.outcome, durationMs });
  const isQuiet = job.isCampaign && job.ordinal % sampledRecipients !== 0;
  log[isQuiet ? 'debug' : 'info'](
    {
      organization_id: job.organizationId,
      message_id: job.messageId,
      ordinal: job.ordinal,
      channel,
      provider,
      class: job.isCampaign ? 'campaign' : 'transactional',
      attempt: job.attempts + 1,
      outcome: end.outcome,
      reason: end.reason,
      code: end.code ?? undefined,
      possible_duplicate: job.ambiguities > 0,
      next_attempt_at: requeue?.dueAt,
      trace_id: job.traceId ?? undefined,
      ms: Math.round(durationMs),
    },
    'attempt',
  );
}

/** For the operator; it may quote the message. */
function wordsOf(cause: unknown): string {
  return sanitiseDiagnostic(cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause));
}

function settleAttempt(job: Job, attempt: Attempt, context: SettlementContext): Settlement {
  switch (attempt.kind) {
    case 'outcome':
      return settleOutcome(job, attempt.outcome, context);
    case 'dropped':
      return dropJob(job, attempt.reason);
    case 'failed':
      return failJob(job, attempt.reason, attempt.diagnostic);
    case 'released':
      return releaseJob(job, context, attempt.pauseMs);
  }
}

/**
 * A recipient that unsubscribed longer ago than this gets nothing more. If shorter, more statements are needed for few
 * more unsubscriptions.
 */
const objectionMaxAgeMs = 2_000;

/** A job may have waited in memory for a long time for slow destinations. No promise if objections are known by now. */
function findLateObjection(session: LeaseSession, job: Job): Promise<Objection | undefined> | undefined {
  const checkedAtMs = session.checkedAtMs.get(job) ?? -Infinity;
  const isKnown = session.tools.clock.monotonicMs() - checkedAtMs < objectionMaxAgeMs;
  return isKnown ? undefined : lookUpObjection(session, job);
}

async function lookUpObjection(session: LeaseSession, job: Job): Promise<Objection | undefined> {
  const askedAtMs = session.tools.clock.monotonicMs();
  const objection = await session.lateObjections.add(job);
  session.checkedAtMs.set(job, askedAtMs);
  return objection;
}

/** The job must not be handed off: its claim was lost, or this is unknown. */
class NotConfirmedError extends Error {
  override readonly name = 'NotConfirmedError';
}

/** The job must not be handed off: an objection was found after it was claimed. */
class UnwantedError extends Error {
  override readonly name = 'UnwantedError';
  readonly objection: Objection;
  constructor(objection: Objection) {
    super('the hand-off is not wanted any more');
    this.objection = objection;
  }
}

async function confirmHandOff(session: LeaseSession, { ledger }: ChannelSession, job: Job): Promise<void> {
  // Connecting to a slow server may have taken minutes.
  const objection = await findLateObjection(session, job)?.catch((cause: unknown) => {
    throw new NotConfirmedError('objections could not be looked up', { cause });
  });
  if (objection !== undefined) throw new UnwantedError(objection);
  const isOwn = await ledger.announce(job).catch((cause: unknown) => {
    throw new NotConfirmedError('the marker could not be stored', { cause });
  });
  if (!isOwn || session.signal.aborted) throw new NotConfirmedError('the claim on the job was lost');
}

function noteOutcome(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
  outcome: SendOutcome<string>,
): void {
  const isUnavailable = outcome.kind === 'deferred' && outcome.reason === 'provider_unavailable';
  const { breakers } = channelSession;
  const change = outcome.kind === 'postponed' ? null : breakers.of(job).note(isUnavailable);
  if (change !== null) session.breakerNotes.noteChange(channelSession);
  const { log } = session.tools;
  const whose = { channel: job.channel.name, account: breakers.accountOf?.(job) };
  if (change === 'opened' && isUnavailable) {
    log.error(
      { ...whose, diagnostic: outcome.reply.diagnostic },
      'the provider is not available; delivery pauses',
    );
  } else if (change === 'closed') {
    log.info(whose, 'the provider is available again');
  }
}

export function logFailure(log: Log, cause: unknown): void {
  if (cause instanceof DatabaseUnavailableError) {
    log.warn({ err: cause }, 'database unavailable, delivery pauses');
  } else {
    log.error({ err: cause }, 'delivery failed');
  }
}
