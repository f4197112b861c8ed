import { emailChannel } from '../../src/email/channel.ts';
import type { Job } from '../../src/messages/channel.ts';

/** What jobs have in common that a worker has claimed for the first time. */
export const untried = {
  contactId: null,
  variables: null,
  contentBytes: 100,
  attempts: 0,
  ambiguities: 0,
  crashes: 0,
  handOffAt: null,
  isCancellable: false,
  traceId: null,
  claimNumber: 1,
} as const satisfies Partial<Job>;

/** A job of a transactional email, which no table need have. */
export function anEmailJob(more: Partial<Job> = {}): Job {
  return {
    organizationId: '01930000-0000-7000-8000-000000000001',
    messageId: '01930000-0000-7000-8000-000000000002',
    ordinal: 0,
    channel: emailChannel,
    policy: emailChannel.policyOf({ isCampaign: false }),
    isCampaign: false,
    address: 'ann@example.com',
    addressKey: 'ann@example.com',
    ...untried,
    acceptedAt: new Date(0),
    ...more,
  };
}
