import type { RemoteReply, SendOutcome } from '../../channels/outcome.ts';
import type { Job, MessageChannel, Refusal } from '../channel.ts';
import type { AttemptResult } from './attempt-result.ts';
import { dueAfterMs, nextPauseMs } from './retry.ts';
import type { DropReason } from '../schema.ts';
import type { Objection } from './unwanted.ts';
import type { Failure } from '../recipients/store.ts';
import type { Settlement } from '../recipients/settlement-store.ts';

/** Rarely is the second reply lost too. A minute gives the remote side time to finish the first hand-off. */
const ambiguousRetryMs = 60_000;

export type SettlementContext = {
  atMs: number;
  random: number;
  dateOf: (epochMs: number) => Date;
  /** Of the message; left out if it has no end of its own, or nothing is known of it. */
  expiresAt?: Date | undefined;
};

/** What to write after an attempt. */
export function settlementOf(job: Job, result: AttemptResult, context: SettlementContext): Settlement {
  switch (result.kind) {
    case 'untried':
    case 'released':
      return releaseJob(job, context, result.pauseMs);
    case 'objected':
      return settleObjection(job, result.objection, context);
    case 'failed':
      return failJob(job, result.reason, result.diagnostic);
    case 'outcome':
      return settleOutcome(job, result.outcome, context);
    case 'uncertain':
      return settleAmbiguity(job, context);
    case 'crashed':
      return settleCrash(job, context, result.words);
  }
}

export function settleOutcome(
  job: Job,
  outcome: SendOutcome<string>,
  context: SettlementContext,
): Settlement {
  const { policy } = job;
  switch (outcome.kind) {
    case 'accepted':
      return {
        ...untouched(job),
        status: policy.acceptedStatus,
        providerMessageId: outcome.providerMessageId,
        wasHandedOff: true,
      };
    case 'rejected': {
      const { status, type } = refusalFor(job.channel, outcome.reason);
      return {
        ...untouched(job),
        status,
        failure: toFailure(type, outcome.reason, outcome.reply),
        wasHandedOff: true,
      };
    }
    case 'deferred':
      return outcome.reason === 'provider_unavailable'
        ? settleUnavailability(job, outcome.reply, context, outcome.retryAfterMs)
        : settleDeferral(job, outcome.reason, outcome, context);
    case 'postponed':
      return settleUnavailability(job, outcome.reply, context, outcome.retryAfterMs);
    case 'unknown':
      return settleAmbiguity(job, context);
  }
}

function settleDeferral(
  job: Job,
  reason: string,
  outcome: { retryAfterMs?: number; reply: RemoteReply },
  context: SettlementContext,
): Settlement {
  const attempts = job.attempts + 1;
  const failure = toFailure('soft', reason, outcome.reply);
  const pauseMs = nextPauseMs(attempts, outcome.retryAfterMs, context.random);
  const dueAtMs = dueAfterMs(
    context.atMs,
    outcome.retryAfterMs === undefined ? shortenForEnd(pauseMs, context) : pauseMs,
  );
  if (isGivenUp(job, dueAtMs, context))
    return { ...untouched(job), status: 'failed', failure: failureOfGivingUp(job, reason, outcome.reply) };
  return {
    ...untouched(job),
    status: 'delayed',
    failure,
    requeue: { dueAt: context.dateOf(dueAtMs), attempts, crashes: 0, setAsideAt: null },
  };
}

/** No attempt was made, so none is counted. A message that is too old is given up. */
function settleUnavailability(
  job: Job,
  reply: RemoteReply,
  context: SettlementContext,
  pauseMs = 0,
): Settlement {
  return isGivenUp(job, context.atMs, context)
    ? { ...untouched(job), status: 'failed', failure: failureOfGivingUp(job, 'other', reply) }
    : releaseJob(job, context, pauseMs);
}

function isGivenUp(job: Job, atMs: number, { expiresAt }: SettlementContext): boolean {
  const endMs = expiresAt?.getTime() ?? Infinity;
  return atMs > Math.min(endMs, job.acceptedAt.getTime() + job.policy.retryWindowMs);
}

/** Providers ask not to be tried again sooner. */
const shortenedPauseMinMs = 10_000;

/** A message that ends soon is tried again when half of its time is over, so that a pause does not outlast it. */
function shortenForEnd(pauseMs: number, { atMs, expiresAt }: SettlementContext): number {
  if (expiresAt === undefined) return pauseMs;
  return Math.min(pauseMs, Math.max((expiresAt.getTime() - atMs) / 2, shortenedPauseMinMs));
}

function failureOfGivingUp(job: Job, reason: string, reply: RemoteReply): Failure {
  return toFailure('soft', job.policy.givenUpFor ?? reason, reply);
}

/** A reason that the channel does not know says nothing about the address. */
function refusalFor({ refusals }: MessageChannel, reason: string): Refusal {
  return refusals[reason] ?? { status: 'failed', type: 'soft' };
}

/** The reply to a hand-off was lost, so it may have taken place. It is tried once more if the policy says so. */
export function settleAmbiguity(job: Job, context: SettlementContext): Settlement {
  const { ambiguousPauseMs = ambiguousRetryMs } = job.policy;
  const dueAtMs = dueAfterMs(context.atMs, shortenForEnd(ambiguousPauseMs, context));
  const mayRepeat = job.policy.repeatsAmbiguous && job.ambiguities === 0 && !isGivenUp(job, dueAtMs, context);
  return {
    ...untouched(job),
    wasHandedOff: true,
    isAmbiguous: true,
    requeue: mayRepeat
      ? {
          dueAt: context.dateOf(dueAtMs),
          attempts: job.attempts + 1,
          crashes: job.crashes,
          setAsideAt: null,
        }
      : null,
  };
}

/** Gives a job back unchanged: the message is not the reason why it was not handed off. */
export function releaseJob(job: Job, context: SettlementContext, pauseMs = 0): Settlement {
  return {
    ...untouched(job),
    requeue: {
      dueAt: context.dateOf(dueAfterMs(context.atMs, pauseMs)),
      attempts: job.attempts,
      crashes: job.crashes,
      setAsideAt: null,
    },
  };
}

/** A job that has crashed so many workers waits for an operator. */
const crashesMax = 3;

/** Decides on a job that its worker had not announced when it ended: nothing was sent. */
export type UnannouncedRule = (job: Job, context: SettlementContext) => Settlement;

const workerEnded = 'Its worker ended while it was being handed off.';

/** The worker died before it was about to hand the message off, or failed by a fault of ours: nothing was sent. */
export function settleCrash(job: Job, context: SettlementContext, words = workerEnded): Settlement {
  const crashes = job.crashes + 1;
  // A campaign with a job that waits for an operator would never end, so the job fails.
  if (job.isCampaign && crashes >= crashesMax)
    return failJob(job, 'other', 'Its worker died three times while it was being handed off.');
  return {
    ...untouched(job),
    crashWords: words,
    requeue: {
      dueAt: context.dateOf(context.atMs),
      attempts: job.attempts,
      crashes,
      setAsideAt: crashes >= crashesMax ? context.dateOf(context.atMs) : null,
    },
  };
}

/**
 * The recipient failed a check: nothing is sent. A recipient that was never tried is dropped, and its status stays. One
 * that was deferred has failed, and one whose hand-off was cut off stays uncertain.
 */
export function dropJob(job: Job, dropReason: DropReason): Settlement {
  if (job.attempts > job.ambiguities)
    return failJob(job, 'policy', `Not tried again: the address is now ${dropReason}.`);
  return job.ambiguities > 0 ? untouched(job) : { ...untouched(job), dropReason };
}

/**
 * An operator gives up a job that was set aside. If an earlier hand-off of it was cut off, it may have arrived, and its
 * recipient stays uncertain, as after a second one that is cut off.
 */
export function giveUpSetAside(job: Job): Settlement {
  if (job.ambiguities > 0) return untouched(job);
  return failJob(
    job,
    'other',
    'Given up by the operator of this service: a fault of the service kept it from being handed off.',
  );
}

/**
 * For a cancelled campaign nothing is written: recipients without an outcome are those that got nothing. A job of a
 * suspended organization waits in the queue, where the campaign's own work hides it from the workers. A single message
 * would wait there for nobody knows how long, and has failed.
 */
export function settleObjection(job: Job, objection: Objection, context: SettlementContext): Settlement {
  if (objection === 'stopped') return untouched(job);
  if (objection !== 'suspended') return dropJob(job, objection);
  return job.isCampaign
    ? releaseJob(job, context, suspendedPauseMs)
    : failJob(job, 'other', 'Sending was suspended for the organization when the time of the message came.');
}

const suspendedPauseMs = 10_000;

/** The message cannot be built or sent at all. */
export function failJob(job: Job, reason: string, diagnostic: string): Settlement {
  return {
    ...untouched(job),
    status: 'failed',
    failure: toFailure('soft', reason, { code: null, enhancedCode: null, diagnostic, remote: null }),
  };
}

function untouched(job: Job): Settlement {
  return {
    job,
    status: null,
    dropReason: null,
    failure: null,
    providerMessageId: null,
    wasHandedOff: false,
    isAmbiguous: false,
    requeue: null,
  };
}

export function toFailure(type: 'hard' | 'soft', failureClass: string, reply: RemoteReply): Failure {
  return {
    type,
    class: failureClass,
    smtpCode: reply.code,
    enhancedCode: reply.enhancedCode,
    diagnostic: reply.diagnostic,
    remote: reply.remote,
  };
}
