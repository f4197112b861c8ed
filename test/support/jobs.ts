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
  traceId: null,
  claimNumber: 1,
} as const satisfies Partial<Job>;
