/**
 * What became of one attempt to hand one message to a provider. The provider that saw a failure classifies it;
 * what it cannot classify it calls `other`, and what may have been sent it calls `unknown`.
 */

/** Which recipient of which message this is: what a provider keeps, and reports under. */
export type RecipientKey = { organizationId: string; messageId: string; ordinal: number };

/** Why an email was refused, its address or its sender: the classes that users read in `bounce.class`. */
export const failureClasses = [
  'mailbox_not_found',
  'mailbox_full',
  'domain_not_found',
  'policy',
  'spam',
  'message_too_large',
  'auth_failure',
  'rate_limited',
  'other',
] as const;

export type FailureClass = (typeof failureClasses)[number];

/**
 * `provider_unavailable` is about the provider and not about the message: nothing can be handed off at the moment
 * (connection refused, credentials refused). It trips the breaker and does not count as an attempt.
 */
export type DeferReason<Reason = FailureClass> = Reason | 'provider_unavailable';

/** The remote side's own words. `diagnostic` is untrusted: at most 500 characters, no control characters. */
export type RemoteReply = {
  code: number | null;
  /** RFC 3463, for example `5.1.1`. */
  enhancedCode: string | null;
  diagnostic: string;
  /** The host that said so, or null where there was none. */
  remote: string | null;
};

/** `Reason` says why, in the words of the channel. */
export type SendOutcome<Reason = FailureClass> =
  | { kind: 'accepted'; providerMessageId: string; reply: RemoteReply | null }
  | { kind: 'deferred'; reason: DeferReason<Reason>; retryAfterMs?: number; reply: RemoteReply }
  | { kind: 'rejected'; reason: Reason; reply: RemoteReply }
  /** Not tried, so that no attempt counts: its destination has no room for it at the moment. */
  | { kind: 'postponed'; retryAfterMs: number; reply: RemoteReply }
  /** It may have been sent: the policy of the message's class decides. */
  | { kind: 'unknown'; reply: RemoteReply };
