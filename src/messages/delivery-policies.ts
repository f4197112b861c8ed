import type { Channel } from '../accounts/accounts.ts';
import type { FailureClass } from '../channels/outcome.ts';
import type { SmsFailure } from '../channels/sms/sms.ts';
import type { RecipientStatus } from './schema.ts';

/** What outcomes mean on a channel. */
export type DeliveryPolicy = {
  /** Where a recipient goes whose message the provider has taken. */
  acceptedStatus: RecipientStatus;
  /** Where it goes for which refusal; `hard` says that the address is no good. */
  refusals: Readonly<Record<string, Refusal>>;
  /** A message that is older is given up, for this reason. */
  retryWindowMs: number;
  givenUpFor: string | null;
  /** Whether what becomes of messages tells who must not be written to, and whose sending does harm. */
  judgesAddresses: boolean;
  /** Whether reports come under the provider's own id of a message. */
  isReportedById: boolean;
  /** Whether a transactional message whose hand-off was cut off is sent once more. */
  repeatsAmbiguous: boolean;
};

export type Refusal = { status: RecipientStatus; type: 'hard' | 'soft' };

const hourMs = 60 * 60_000;

/**
 * Three kinds of refusal are three different things: an address that does not exist is bounced hard and suppressed;
 * one that cannot take mail at the moment is bounced soft; and a message that was refused for what it is has failed,
 * which says nothing about the address.
 */
export const emailRefusals: Readonly<Record<FailureClass, Refusal>> = {
  mailbox_not_found: { status: 'bounced', type: 'hard' },
  domain_not_found: { status: 'bounced', type: 'hard' },
  mailbox_full: { status: 'bounced', type: 'soft' },
  policy: { status: 'failed', type: 'soft' },
  spam: { status: 'failed', type: 'soft' },
  message_too_large: { status: 'failed', type: 'soft' },
  auth_failure: { status: 'failed', type: 'soft' },
  rate_limited: { status: 'failed', type: 'soft' },
  other: { status: 'failed', type: 'soft' },
};

/** What a provider refuses at once has failed; whom a carrier cannot reach, `bounced`, is told by receipts. */
export const smsRefusals: Readonly<Record<SmsFailure, Refusal>> = {
  unknown_subscriber: { status: 'failed', type: 'hard' },
  unreachable: { status: 'failed', type: 'soft' },
  blocked: { status: 'failed', type: 'soft' },
  spam: { status: 'failed', type: 'soft' },
  sender_rejected: { status: 'failed', type: 'soft' },
  invalid_message: { status: 'failed', type: 'soft' },
  rate_limited: { status: 'failed', type: 'soft' },
  expired: { status: 'failed', type: 'soft' },
  other: { status: 'failed', type: 'soft' },
};

const policies: Partial<Record<Channel, DeliveryPolicy>> = {
  email: {
    acceptedStatus: 'delivered',
    refusals: emailRefusals,
    // As mail servers do (RFC 5321 §4.5.4.1 asks for 4 to 5 days at most).
    retryWindowMs: 72 * hourMs,
    givenUpFor: null,
    // A missing password mail is worse than two.
    repeatsAmbiguous: true,
    judgesAddresses: true,
    isReportedById: false,
  },
  sms: {
    acceptedStatus: 'sent',
    refusals: smsRefusals,
    // A code or a reminder is of no use to anybody on the next day.
    retryWindowMs: 24 * hourMs,
    givenUpFor: 'expired' satisfies SmsFailure,
    // It costs money, and receipts settle most of it.
    repeatsAmbiguous: false,
    judgesAddresses: false,
    isReportedById: true,
  },
};

export function policyOf(channel: Channel): DeliveryPolicy {
  const policy = policies[channel];
  if (policy === undefined) throw new Error(`nothing is delivered on the channel ${channel}`);
  return policy;
}
