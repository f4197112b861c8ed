import { findBarredContacts } from '../audience/audience.ts';
import type { SmsFailure } from '../channels/sms/sms.ts';
import { findApprovedSenders, isApprovedSender } from '../senders/senders.ts';
import { bringTextsForward } from './event-store.ts';
import { keepSmsFindings } from './findings.ts';
import { findCutOffTexts } from './store.ts';
import {
  defineAcceptance,
  defineMessageStatus,
  type DeliveryPolicy,
  type MessageChannel,
  type Refusal,
} from '../messages/messages.ts';

const hourMs = 60 * 60_000;

/**
 * A text that the provider refuses at once has failed. Receipts report numbers that the carrier cannot reach:
 * `bounced`.
 */
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

/** SQL for a text's status, over the row of its one recipient `r`. */
export const smsStatusOfRecipients = `
  min(case
    when r.drop_reason is not null then 'failed'
    when r.status = 'cancelled' then 'cancelled'
    when r.status = 'bounced' then 'undelivered'
    when r.status = 'failed' and r.failure_class = 'expired' then 'expired'
    when r.status in ('delivered', 'failed') then r.status
    when r.uncertain or r.status = 'delayed' then 'sending'
    when r.handed_off_at is not null then 'sent'
    else 'queued'
  end)`;

const policy: DeliveryPolicy = {
  acceptedStatus: 'sent',
  // A code or a reminder is useless on the next day.
  retryWindowMs: 24 * hourMs,
  givenUpFor: 'expired' satisfies SmsFailure,
  // A second text costs money, and receipts settle most ambiguous hand-offs.
  repeatsAmbiguous: false,
};

/** As `smsStatusOfRecipients` calls them. A text that is put off has no status of its own. */
const eventOfSms: MessageChannel['eventOf'] = (what, failureClass) => {
  if (what === 'dropped') return 'sms.failed';
  if (what === 'bounced') return 'sms.undelivered';
  if (what === 'failed') return failureClass === 'expired' ? 'sms.expired' : 'sms.failed';
  return what === 'sent' || what === 'delivered' ? `sms.${what}` : null;
};

/** The last digits of a number are the same in every spelling, with the country code and without. */
const comparedDigits = 7;

export const smsChannel: MessageChannel = {
  name: 'sms',
  words: { medium: 'SMS', messages: 'texts', unit: 'segments' },
  senders: {
    loadOwn: async (connection, wanted) => {
      const approved = await findApprovedSenders(connection, wanted);
      return { has: (sender) => approved.get(sender) !== undefined };
    },
    describeOther: (name) => `from is not an approved sender of this organization: ${name}`,
  },
  acceptance: defineAcceptance('sms', isApprovedSender),
  policyOf: () => policy,
  refusals: smsRefusals,
  reports: {
    endsRepeats: false,
    // If one of the numbers is erased, they may be the same.
    isSameAddress: (number, reported) =>
      !number.startsWith('+') || number.slice(-comparedDigits) === reported.slice(-comparedDigits),
    findCutOff: findCutOffTexts,
  },
  keepFindings: keepSmsFindings,
  judgement: null,
  refreshStatus: defineMessageStatus('sms', smsStatusOfRecipients),
  eventOf: eventOfSms,
  objections: {
    findBarred: (connection, contacts) => findBarredContacts(connection, 'sms', contacts),
    askedForCategory: null,
    isSimulatedSuppression: () => false,
  },
  bringForward: bringTextsForward,
};
