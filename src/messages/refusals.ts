import { type GuardSuspension, quotaRenewsOn, type SendingPlan } from '../accounts/accounts.ts';
import { defineError, PublicError } from '../platform/http/errors.ts';
import type { ChannelWords } from './channel.ts';
import { reputationLimits } from './recipients/reputation.ts';

/** Errors for requests that are refused because of the account, not because of the message. */

export const sendingSuspended = defineError(
  403,
  'sending_suspended',
  'Sending is suspended for the organization, by the operator or because of its bounce or complaint rate.',
);
export const monthlyQuotaExceeded = defineError(
  429,
  'monthly_quota_exceeded',
  'The monthly quota of the channel is used up; retrying does not help until the next month or a larger plan.',
);

/** Null if the organization may send. */
export function findSuspension(words: ChannelWords, plan: SendingPlan | undefined): PublicError | null {
  if (!plan?.isSuspended) return null;
  return new PublicError(
    sendingSuspended,
    plan.guardSuspension === null
      ? `Sending ${words.medium} is suspended for this organization by the operator. Ask the operator to lift it.`
      : describeGuardSuspension(words, plan.guardSuspension),
  );
}

function describeGuardSuspension(
  { medium, messages }: ChannelWords,
  { at, sent, bounced, complained }: GuardSuspension,
): string {
  const { suspend } = reputationLimits;
  return (
    `Sending ${medium} is suspended for this organization by the reputation guard, since ${at.toISOString()}: ` +
    `of ${formatCount(sent)} ${messages} within a day ${formatCount(bounced)} (${formatShare(bounced / sent)}) went to ` +
    `addresses that do not exist, and ${formatCount(complained)} (${formatShare(complained / sent)}) brought a ` +
    `complaint; the limits are ${formatShare(suspend.bounced)} and ${formatShare(suspend.complained)}. Remove such ` +
    'addresses, then ask the operator to lift it.'
  );
}

/** `used` and `limit` are this month's units; `needed` is the message's. */
export function quotaExceeded(
  { medium, unit }: ChannelWords,
  { used, limit, needed, at }: { used: number; limit: number; needed: number; at: Date },
): PublicError {
  const state = used >= limit ? 'is used up' : 'does not suffice';
  return new PublicError(
    monthlyQuotaExceeded,
    `The monthly ${medium} quota ${state}: ${formatCount(used)} of ${formatCount(limit)} ${unit} are used, ` +
      `and this message takes ${formatCount(needed)}. It renews on ${quotaRenewsOn(at)} (UTC); the operator can raise it.`,
  );
}

function formatCount(count: number): string {
  return count.toLocaleString('en-US');
}

/** `0.1` as `10 %`. */
function formatShare(share: number): string {
  return `${(share * 100).toLocaleString('en-US', { maximumFractionDigits: 2 })} %`;
}
