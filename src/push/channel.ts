import { toPredicate } from '../platform/postgres/predicate.ts';
import { findUnwillingContacts } from '../audience/audience.ts';
import type { PushFailure } from '../channels/push/provider.ts';
import {
  defineAcceptance,
  defineMessageStatus,
  type DeliveryPolicy,
  type Finding,
  type MessageChannel,
  type Refusal,
} from '../messages/messages.ts';
import {
  correctEnvironments,
  type DeadToken,
  type MisplacedToken,
  retireDevices,
} from '../devices/devices.ts';
import { defaultTtlSeconds } from './stored.ts';

/** A push that a service refuses has failed; two of the refusals say that the device is no good (`keepFindings`). */
const pushRefusals: Readonly<Record<PushFailure, Refusal>> = {
  unregistered: { status: 'failed', type: 'hard' },
  invalid_token: { status: 'failed', type: 'hard' },
  invalid_message: { status: 'failed', type: 'soft' },
  message_too_large: { status: 'failed', type: 'soft' },
  rate_limited: { status: 'failed', type: 'soft' },
  credentials: { status: 'failed', type: 'soft' },
  expired: { status: 'failed', type: 'soft' },
  other: { status: 'failed', type: 'soft' },
};

/** SQL for a push's status, over the rows of its devices `r`. */
const pushStatusOfRecipients = `
  case
    when bool_or(r.drop_reason is null and r.status not in ('failed', 'delayed', 'cancelled')
      and (r.uncertain or r.handed_off_at is not null)) then 'sent'
    when bool_or(r.drop_reason is null and r.status in ('sent', 'delayed')) then 'queued'
    when bool_or(r.status = 'cancelled') then 'cancelled'
    when bool_or(r.status = 'failed') then 'failed'
    else 'skipped'
  end`;

const policy: DeliveryPolicy = {
  acceptedStatus: 'sent',
  // A push has an end of its own, which is no later.
  retryWindowMs: defaultTtlSeconds * 1_000,
  givenUpFor: 'expired' satisfies PushFailure,
  // With the same id, by which the device or its service folds the two.
  repeatsAmbiguous: true,
};

const eventOfPush: MessageChannel['eventOf'] = (what) => {
  if (what === 'dropped') return 'push.failed';
  const isTold =
    what === 'sent' || what === 'delivered' || what === 'failed' || what === 'opened' || what === 'clicked';
  return isTold ? `push.${what}` : null;
};

/** What a hand-off found out about a device. */
export type PushFinding =
  | ({ kind: 'dead' } & Omit<DeadToken, 'organizationId'>)
  | ({ kind: 'misplaced' } & Omit<MisplacedToken, 'organizationId'>);

/** A recipient is a device, not a contact: each has its own credentials, its own answer and its own end. */
export const pushChannel: MessageChannel = {
  name: 'push',
  words: { medium: 'push', messages: 'pushes', unit: 'messages' },
  // Whose app it is, is said by the organization's credentials.
  senders: { loadOwn: () => Promise.resolve({ has: () => true }), describeOther: (name) => name },
  acceptance: defineAcceptance('push', toPredicate('true')),
  policyOf: () => policy,
  endsByAcceptance: true,
  refusals: pushRefusals,
  // Devices report by their own secret, and never under the id of a service.
  reports: { endsRepeats: true, isSameAddress: (key, reported) => key === reported, findCutOff: null },
  judgement: null,
  keepFindings: async (tools, transaction, findings) => {
    const told = findings.map(readFinding);
    await correctEnvironments(
      tools,
      transaction,
      told.filter((finding) => finding.kind === 'misplaced'),
    );
    return retireDevices(
      tools,
      transaction,
      told.filter((finding) => finding.kind === 'dead'),
    );
  },
  refreshStatus: defineMessageStatus('push', pushStatusOfRecipients),
  eventOf: eventOfPush,
  objections: {
    findBarred: (connection, contacts) => findUnwillingContacts(connection, 'push', contacts),
    askedForCategory: null,
    isSimulatedSuppression: () => false,
  },
  // A recipient is one of the contact's devices, and its address for all others is the contact.
  clickedAddress: 'wanted.contact_id::text',
  tables: ['push_engagements'],
};

function readFinding({ organizationId, finding }: Finding): PushFinding & { organizationId: string } {
  // As delivery.ts gave it.
  return { organizationId, ...(finding as PushFinding) };
}
