import { addressColumns, findBarredContacts } from '../audience/audience.ts';
import { isSimulated, isSimulatedSuppression, parseAddress } from '../channels/email/email.ts';
import type { FailureClass } from '../channels/outcome.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import { isVerifiedDomain, loadVerifiedDomains } from '../domains/domains.ts';
import { repeatsUncertain } from './stored.ts';
import {
  defineAcceptance,
  defineMessageStatus,
  type MessageChannel,
  type Refusal,
} from '../messages/messages.ts';

const hourMs = 60 * 60_000;

/**
 * There are three kinds of refusal. An address that does not exist bounces hard and is suppressed. An address that
 * cannot take mail at the moment bounces softly. A message that is refused because of what it is has failed, which says
 * nothing about the address.
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

const isCounted = toPredicate(`r.drop_reason is distinct from 'duplicate' and r.status <> 'cancelled'`);

/**
 * SQL for an email's status, over the rows of its recipients `r`. An address that was given twice counts once, a
 * dropped one counts as failed, and what was cancelled counts only where nothing else is left.
 */
export const emailStatusOfRecipients = `
  case
    when bool_or(r.status = 'cancelled')
      and bool_and(r.status = 'cancelled' or r.drop_reason is not distinct from 'duplicate') then 'cancelled'
    when bool_and(r.drop_reason is not null or r.status in ('bounced', 'failed')) filter (where ${isCounted}) then 'failed'
    when bool_and(r.drop_reason is null and r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed'))
      filter (where ${isCounted}) then 'delivered'
    when bool_or(r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed'))
      and bool_or(${isCounted} and (r.drop_reason is not null or r.status in ('bounced', 'failed')))
      then 'partially_delivered'
    when bool_or(r.handed_off_at is not null) then 'sent'
    else 'queued'
  end`;

export const emailChannel: MessageChannel = {
  name: 'email',
  words: { medium: 'email', messages: 'emails', unit: 'recipients' },
  senders: {
    loadOwn: loadVerifiedDomains,
    describeOther: (name) =>
      `The domain ${name} of from is not a verified sending domain of this organization.`,
  },
  acceptance: defineAcceptance('email', isVerifiedDomain),
  policyOf: ({ isCampaign, details }) =>
    isCampaign && !repeatsUncertain(details) ? campaignPolicy : repeatingPolicy,
  refusals: emailRefusals,
  reports: {
    endsRepeats: true,
    isSameAddress: (addressKey, reported) => {
      const address = parseAddress(reported);
      // If one of them is erased or cannot be read, they may be the same.
      return address === null || !addressKey.includes('@') || address.normalised === addressKey;
    },
    findCutOff: null,
  },
  keepFindings: null,
  judgement: {
    failureClasses: [
      'mailbox_not_found',
      'mailbox_full',
      'domain_not_found',
    ] satisfies readonly FailureClass[],
    isSimulated,
  },
  refreshStatus: defineMessageStatus('email', emailStatusOfRecipients),
  // Whoever cancels is answered whom that has kept it from.
  eventOf: (what) => (what === 'cancelled' ? null : `email.${what}`),
  objections: {
    findBarred: (connection, contacts) => findBarredContacts(connection, 'email', contacts),
    askedForCategory: null,
    isSimulatedSuppression,
  },
  clickedAddress: `c.${addressColumns.email.key}`,
};

const campaignPolicy = {
  acceptedStatus: 'delivered',
  // As mail servers do (RFC 5321 §4.5.4.1 asks for 4 to 5 days at most).
  retryWindowMs: 72 * hourMs,
  givenUpFor: null,
  // Most hand-offs that are cut off have taken place.
  repeatsAmbiguous: false,
} as const;

/**
 * A password mail that is missing is worse than one that arrives twice, and so is what a campaign says where it wants
 * that (`uncertain`).
 */
export const repeatingPolicy = { ...campaignPolicy, repeatsAmbiguous: true };
