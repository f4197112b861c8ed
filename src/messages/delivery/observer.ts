import type { SendingChannel } from '../../channels/channel.ts';
import type { SendOutcome } from '../../channels/outcome.ts';
import { recipientStatuses } from '../schema.ts';
import type { Settlement } from './settlement-store.ts';

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

export function endOf(outcome: SendOutcome<string>): AttemptEnd {
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
