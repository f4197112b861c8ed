import type { SendingChannel } from '../../channels/channel.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import type { Log } from '../../platform/log.ts';
import { DatabaseUnavailableError } from '../../platform/postgres/database.ts';
import { recipientStatuses } from '../schema.ts';
import { type AttemptResult, sealedUnderUnknownKey } from './attempt-result.ts';
import type { Settlement } from '../recipients/settlement-store.ts';

/**
 * Told what delivery does, so that it can be counted. It is called for each attempt and each batch of outcomes: it must
 * not throw, and must return at once.
 */
export type DeliveryObserver = {
  /** "About to hand off" is committed, and the message leaves. */
  onHandedOff: (whose: { channel: SendingChannel; provider: string }) => void;
  onAttempted: (attempt: {
    channel: SendingChannel;
    provider: string;
    outcome: AttemptOutcome;
    durationMs: number;
  }) => void;
  /** Outcomes were written, of jobs that this worker claimed or that a worker that ended had claimed. */
  onSettled: (settlements: readonly Settlement[]) => void;
};

/**
 * How an attempt ends: as the provider says; `unavailable`, if the provider could not be reached; `dropped`, if a check
 * refused the recipient at the last moment; `failed`, if the message can never be sent; `released`, if it goes back to
 * the queue untried; `crashed`, by a fault of ours.
 */
export const attemptOutcomes = [
  'accepted',
  'deferred',
  'rejected',
  'postponed',
  'unavailable',
  'unknown',
  'dropped',
  'failed',
  'released',
  'crashed',
] as const;

export type AttemptOutcome = (typeof attemptOutcomes)[number];

/** `reason` is of a closed list, and `code` what the remote side answered with. Null: nothing was tried. */
export type AttemptEnd = { outcome: AttemptOutcome; reason?: string; code?: number | null } | null;

export function endOf(result: AttemptResult): AttemptEnd {
  switch (result.kind) {
    case 'untried':
      return null;
    case 'released':
    case 'crashed':
      return { outcome: result.kind };
    case 'objected':
      return { outcome: 'dropped', reason: result.objection };
    case 'failed':
      return { outcome: 'failed', reason: result.reason };
    case 'outcome':
      return endOfOutcome(result.outcome);
    case 'uncertain':
      return { outcome: 'unknown' };
  }
}

function endOfOutcome(outcome: SendOutcome<string>): AttemptEnd {
  if (outcome === sealedUnderUnknownKey) return { outcome: 'postponed', reason: 'unknown_key' };
  const code = outcome.reply?.code ?? null;
  switch (outcome.kind) {
    case 'accepted':
    case 'unknown':
    case 'postponed':
      return { outcome: outcome.kind, code };
    case 'deferred':
      return outcome.reason === 'provider_unavailable'
        ? { outcome: 'unavailable', code }
        : { outcome: 'deferred', reason: outcome.reason, code };
    case 'rejected':
      return { outcome: 'rejected', reason: outcome.reason, code };
  }
}

/**
 * Of a campaign's recipients one in so many has lines in the log, the same with each of its attempts. With fewer, a
 * campaign of a million makes too few lines to look at; with more, its lines hide all others.
 */
const sampledRecipients = 100;

/** One line says all that is known of an attempt. What the remote side said may quote the message, and is not in it. */
export function tellAttempt(
  { log, observer }: { log: Log; observer?: DeliveryObserver },
  provider: string,
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

export function logFailure(log: Log, cause: unknown): void {
  if (cause instanceof DatabaseUnavailableError) {
    log.warn({ err: cause }, 'database unavailable, delivery pauses');
  } else {
    log.error({ err: cause }, 'delivery failed');
  }
}

/**
 * What was written of a job. Besides the status of a recipient that is done: `uncertain`, if the hand-off was cut off and
 * is not repeated; `dropped`, if nothing is sent to it; `stopped`, if it is over without an outcome of its own. The others
 * are still queued: `delayed`, `repeated` after a hand-off that was cut off, `released` untried, and `set_aside`.
 */
export const settledOutcomes = [
  ...recipientStatuses,
  'uncertain',
  'dropped',
  'stopped',
  'repeated',
  'released',
  'set_aside',
] as const;

export type SettledOutcome = (typeof settledOutcomes)[number];

export function settledOutcomeOf(settlement: Settlement): SettledOutcome {
  const { status, dropReason, isAmbiguous, requeue } = settlement;
  if (requeue === null) return status ?? outcomeWithoutStatus(dropReason !== null, isAmbiguous);
  if (requeue.setAsideAt !== null) return 'set_aside';
  if (isAmbiguous) return 'repeated';
  return status ?? 'released';
}

function outcomeWithoutStatus(isDropped: boolean, isAmbiguous: boolean): SettledOutcome {
  if (isDropped) return 'dropped';
  return isAmbiguous ? 'uncertain' : 'stopped';
}
