import type { SendOutcome } from '../../channels/outcome.ts';
import { sanitiseDiagnostic } from '../../channels/diagnostic.ts';
import { dateOf } from '../../platform/clock.ts';
import { DatabaseUnavailableError } from '../../platform/postgres/database.ts';
import { UnknownKeyError } from '../../platform/secrets.ts';
import { type Job, smallContentBytesMax } from '../channel.ts';
import { type Attempted, sealedUnderUnknownKey } from './attempt-result.ts';
import type { ChannelSession, LeaseSession } from './lease-session.ts';
import { logFailure } from './observer.ts';
import type { Objection } from './unwanted.ts';

/**
 * Hands one job off, once there is room in memory for its content, and says how that ended. No fault of the job makes it
 * reject.
 */
export function attempt(session: LeaseSession, channelSession: ChannelSession, job: Job): Promise<Attempted> {
  return job.contentBytes <= smallContentBytesMax
    ? attemptUnlessClosed(session, channelSession, job)
    : attemptWithinBudget(session, channelSession, job);
}

async function attemptWithinBudget(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
): Promise<Attempted> {
  const release = await takeBytes(session, job);
  try {
    return await attemptUnlessClosed(session, channelSession, job);
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

const untried = (pauseMs = 0): Attempted => ({ result: { kind: 'untried', pauseMs }, facts: null });

/** Not while the breaker of the job's account is open, nor once the worker stops. */
async function attemptUnlessClosed(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
): Promise<Attempted> {
  if (session.signal.aborted) return untried();
  const { breakers } = channelSession;
  const breaker = breakers.of(job);
  const entry = breaker.enter();
  if (entry === 'refused') return untried(breakers.putOffMs(job, session.tools.random()));
  const attempted = await handOff(session, channelSession, job);
  const isNoted = noteResult(session, channelSession, job, attempted);
  // Otherwise a probe that never reached the provider would keep the breaker open for ever.
  if (entry === 'probes' && !isNoted) breaker.abandonProbe();
  return attempted;
}

async function handOff(session: LeaseSession, channelSession: ChannelSession, job: Job): Promise<Attempted> {
  const { tools, signal } = session;
  const { channel, provider, delivery, isAnnouncedAhead, ledger } = channelSession;
  let isConfirmed = false;
  try {
    const objection = await session.objections.findLate(job);
    if (objection !== undefined) return objectedTo(objection);
    job.handOffAt ??= dateOf(tools.clock.nowMs());
    // Not where a repeat is the last attempt: what was announced twice and never left would be lost.
    if (isAnnouncedAhead && job.slice !== undefined) ledger.announceAhead(job);
    const { facts, ...result } = await delivery.handOff(job, {
      confirm: async () => {
        await confirmHandOff(session, channelSession, job);
        isConfirmed = true;
        tools.observer?.onHandedOff({ channel: channel.name, provider });
      },
      signal,
    });
    if (facts?.policy !== undefined) job.policy = facts.policy;
    return { result, facts };
  } catch (cause) {
    return attemptedInVain(session, cause, isConfirmed);
  }
}

const objectedTo = (objection: Objection): Attempted => ({
  result: { kind: 'objected', objection },
  facts: null,
});

/** How an attempt ended that has no outcome. */
function attemptedInVain({ tools, signal }: LeaseSession, cause: unknown, isConfirmed: boolean): Attempted {
  if (cause instanceof UnwantedError) return objectedTo(cause.objection);
  const isStopped = signal.aborted || cause instanceof NotConfirmedError;
  if (!isConfirmed && (isStopped || cause instanceof DatabaseUnavailableError)) return untried();
  logFailure(tools.log, cause);
  if (isConfirmed) return { result: { kind: 'uncertain' }, facts: null };
  if (cause instanceof UnknownKeyError)
    return { result: { kind: 'outcome', outcome: sealedUnderUnknownKey }, facts: null };
  // Counted as a crash: a message that cannot be built, or that makes a provider throw, must not be tried for ever.
  return { result: { kind: 'crashed', words: wordsOf(cause) }, facts: null };
}

/** For the operator; it may quote the message. */
function wordsOf(cause: unknown): string {
  return sanitiseDiagnostic(cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause));
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

/**
 * What was cancelled is not this worker's any more, as if its claim had been lost. Whoever departs once has departed: a
 * repeat cannot be cancelled.
 */
async function departUnlessCancelled({ departures }: LeaseSession, job: Job): Promise<void> {
  if (!job.isCancellable) return;
  const hasDeparted = await departures.add(job).catch((cause: unknown) => {
    throw new NotConfirmedError('the departure could not be stored', { cause });
  });
  if (!hasDeparted) throw new NotConfirmedError('the job was cancelled');
  job.isCancellable = false;
}

async function confirmHandOff(session: LeaseSession, { ledger }: ChannelSession, job: Job): Promise<void> {
  // Connecting to a slow server may have taken minutes.
  const objection = await session.objections.findLate(job)?.catch((cause: unknown) => {
    throw new NotConfirmedError('objections could not be looked up', { cause });
  });
  if (objection !== undefined) throw new UnwantedError(objection);
  await departUnlessCancelled(session, job);
  const isOwn = await ledger.announce(job).catch((cause: unknown) => {
    throw new NotConfirmedError('the marker could not be stored', { cause });
  });
  if (!isOwn || session.signal.aborted) throw new NotConfirmedError('the claim on the job was lost');
}

/** Has the breaker learn from an outcome whether the provider is available; returns whether it says anything about that. */
function noteResult(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
  { result }: Attempted,
): boolean {
  // After one that is postponed nothing was tried.
  if (result.kind !== 'outcome' || result.outcome.kind === 'postponed') return false;
  noteOutcome(session, channelSession, job, result.outcome);
  return true;
}

function noteOutcome(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
  outcome: SendOutcome<string>,
): void {
  const isUnavailable = outcome.kind === 'deferred' && outcome.reason === 'provider_unavailable';
  const { breakers } = channelSession;
  const change = breakers.of(job).note(isUnavailable);
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
