import type { Channel } from '../accounts/accounts.ts';
import { loadVerifiedDomains } from '../domains/domains.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { findApprovedSenders } from '../senders/senders.ts';

/** By what a message says whose it is: for email, the domain of its sender; for SMS, the sender. */
export type SenderName = { organizationId: string; name: string };

/** In whose name messages of a channel may go out. */
export type SenderRule = {
  /** Which of these are the organization's own at the moment. */
  loadOwn: (connection: Connection, wanted: readonly SenderName[]) => Promise<OwnSenders>;
  /** What is said of one that is not. */
  describeOther: (name: string) => string;
};

export type OwnSenders = { has: (sender: SenderName) => boolean };

const rules: Partial<Record<Channel, SenderRule>> = {
  email: {
    loadOwn: loadVerifiedDomains,
    describeOther: (name) =>
      `The domain ${name} of from is not a verified sending domain of this organization.`,
  },
  sms: {
    loadOwn: async (connection, wanted) => {
      const approved = await findApprovedSenders(connection, wanted);
      return { has: (sender) => approved.get(sender) !== undefined };
    },
    describeOther: (name) => `from is not an approved sender of this organization: ${name}`,
  },
};

export function senderRuleOf(channel: Channel): SenderRule {
  const rule = rules[channel];
  if (rule === undefined) throw new Error(`nothing is accepted on the channel ${channel}`);
  return rule;
}
