import { areSuppressed, findBarredContacts, type SuppressionTools } from '../audience/audience.ts';
import type { Database } from '../platform/postgres/database.ts';
import { findStoppedMessages } from './campaign-store.ts';
import { uniqueMessages } from './feedback.ts';
import type { Job } from './queue-store.ts';
import type { DropReason } from './schema.ts';

/**
 * Why a job must not be handed off although it is due: whom it is for must not be written to, or its campaign was
 * cancelled. Asked when jobs are claimed, and again by those of a campaign that have waited since.
 */
export type Objection = DropReason | 'stopped';

export async function findObjections(
  tools: SuppressionTools & { database: Database },
  jobs: readonly Job[],
): Promise<Map<Job, Objection>> {
  if (jobs.length === 0) return new Map();
  const [suppressed, ofCampaigns] = await Promise.all([
    areSuppressed(
      tools.database,
      tools,
      'email',
      jobs.map(({ organizationId, addressKey }) => ({ organizationId, address: addressKey })),
    ),
    findCampaignObjections(tools.database, jobs),
  ]);
  const objections = new Map<Job, Objection>();
  for (const [index, job] of jobs.entries()) {
    const objection = ofCampaigns.get(job) ?? (suppressed[index] === true ? 'suppressed' : undefined);
    if (objection !== undefined) objections.set(job, objection);
  }
  return objections;
}

async function findCampaignObjections(
  database: Database,
  jobs: readonly Job[],
): Promise<Map<Job, Objection>> {
  const personal = jobs.flatMap((job) =>
    job.contactId === null
      ? []
      : [
          {
            job,
            contact: {
              organizationId: job.organizationId,
              id: job.contactId,
              addressKey: job.addressKey,
            },
          },
        ],
  );
  if (personal.length === 0) return new Map();
  const [barred, stopped] = await Promise.all([
    findBarredContacts(
      database,
      'email',
      personal.map(({ contact }) => contact),
    ),
    findStoppedMessages(database, uniqueMessages(personal.map(({ job }) => job))),
  ]);
  const objections = new Map<Job, Objection>();
  for (const [index, { job }] of personal.entries()) {
    const objection = stopped.has(job.messageId) ? 'stopped' : barred.get(index);
    if (objection !== undefined) objections.set(job, objection);
  }
  return objections;
}
