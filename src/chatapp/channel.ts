import { toPredicate } from '../platform/postgres/predicate.ts';
import { findBarredContacts } from '../audience/audience.ts';
import type { ChatAppFailure } from '../channels/chatapp/provider.ts';
import {
  defineAcceptance,
  defineMessageStatus,
  type DeliveryPolicy,
  type MessageChannel,
  type Refusal,
} from '../messages/messages.ts';
import { bringChatAppEventsForward } from './event-store.ts';
import { type CutOffFinding, keepChatAppFindings } from './findings.ts';

/** A message that is refused has failed. None of the refusals says for sure that the number does not exist. */
const chatAppRefusals: Readonly<Record<ChatAppFailure, Refusal>> = {
  unreachable: { status: 'failed', type: 'soft' },
  blocked: { status: 'failed', type: 'soft' },
  template_unavailable: { status: 'failed', type: 'soft' },
  sender_rejected: { status: 'failed', type: 'soft' },
  invalid_message: { status: 'failed', type: 'soft' },
  rate_limited: { status: 'failed', type: 'soft' },
  expired: { status: 'failed', type: 'soft' },
  other: { status: 'failed', type: 'soft' },
};

/** SQL for the status of a chat-app message, over the row of its one recipient `r`. */
const chatAppStatusOfRecipients = `
  min(case
    when r.drop_reason is not null then 'failed'
    when r.status in ('delivered', 'failed', 'cancelled') then r.status
    when r.status = 'bounced' then 'failed'
    when r.status in ('opened', 'clicked', 'complained', 'unsubscribed') then 'read'
    when r.uncertain or (r.status <> 'delayed' and r.handed_off_at is not null) then 'sent'
    else 'queued'
  end)`;

/** As `chatAppStatusOfRecipients` calls them. */
const eventOfChatApp: MessageChannel['eventOf'] = (what) => {
  if (what === 'dropped' || what === 'bounced' || what === 'failed') return 'chatapp.failed';
  if (what === 'opened') return 'chatapp.read';
  return what === 'sent' || what === 'delivered' ? `chatapp.${what}` : null;
};

const minuteMs = 60_000;

const policy: DeliveryPolicy = {
  acceptedStatus: 'sent',
  retryWindowMs: 24 * 60 * minuteMs,
  givenUpFor: 'expired' satisfies ChatAppFailure,
  // A second message costs money, and receipts settle the first.
  repeatsAmbiguous: false,
};

/** A person waits for a code, and a second message has the same one. */
export const codePolicy: DeliveryPolicy = {
  ...policy,
  retryWindowMs: 15 * minuteMs,
  repeatsAmbiguous: true,
  // Receipts of the first come within seconds. Sooner would repeat some that arrived, later makes the person ask again.
  ambiguousPauseMs: 8_000,
};

export const chatAppChannel: MessageChannel = {
  name: 'chatapp',
  words: { medium: 'chat-app messages', messages: 'chat-app messages', unit: 'messages' },
  // Whose business it is, is said by the account at the provider.
  senders: { loadOwn: () => Promise.resolve({ has: () => true }), describeOther: (name) => name },
  acceptance: defineAcceptance('chatapp', toPredicate('true')),
  policyOf: ({ category }) => (category === 'authentication' ? codePolicy : policy),
  refusals: chatAppRefusals,
  reports: {
    endsRepeats: true,
    isDeliveryFinal: true,
    // Providers write numbers as they like, and people may hide theirs.
    isSameAddress: () => true,
    findCutOff: null,
  },
  judgement: null,
  keepFindings: keepChatAppFindings,
  cutOffFinding: { kind: 'cut off', finding: null } satisfies CutOffFinding,
  refreshStatus: defineMessageStatus('chatapp', chatAppStatusOfRecipients),
  eventOf: eventOfChatApp,
  objections: {
    findBarred: (connection, contacts) => findBarredContacts(connection, 'chatapp', contacts),
    askedForCategory: 'authentication',
    isSimulatedSuppression: () => false,
  },
  bringForward: bringChatAppEventsForward,
};
