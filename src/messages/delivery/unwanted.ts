import { loadSendingPlans } from '../../accounts/accounts.ts';
import { findSuppressed, type SuppressionKind, type SuppressionTools } from '../../audience/audience.ts';
import type { Database } from '../../platform/postgres/database.ts';
import { findStoppedMessages } from '../campaigns/store.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { Job, MessageChannel } from '../channel.ts';
import type { DropReason } from '../schema.ts';
import { uniqueMessages } from '../keys.ts';
import { findAskedFor } from '../recipients/store.ts';

/**
 * Why a job that is due must not be handed off: its recipient must not be written to, its campaign was cancelled, or
 * its organization is suspended, which other messages than those of campaigns are asked about when they are accepted, and
 * once more where they have a time of their own. Looked up when jobs are claimed, and again before the hand-off of a job that has
 * waited since.
 */
export type Objection = DropReason | 'stopped' | 'suspended';

export async function findObjections(
  tools: SuppressionTools & { database: Database },
  jobs: readonly Job[],
): Promise<Map<Job, Objection>> {
  if (jobs.length === 0) return new Map();
  const byChannel = groupBy(jobs, ({ channel }) => channel);
  const found = await Promise.all(
    [...byChannel].map(([channel, ofChannel]) => findObjectionsOn(tools, channel, ofChannel)),
  );
  return new Map(found.flatMap((objections) => [...objections]));
}

/** What keeps no more than campaigns from an address. */
const isOfCampaigns: Readonly<Record<SuppressionKind, boolean>> = {
  suppressed_marketing: true,
  unsubscribed: true,
  unreachable: false,
  opted_out: false,
  suppressed: false,
};

const dropReasons: Readonly<Record<SuppressionKind, DropReason>> = {
  suppressed_marketing: 'suppressed',
  unsubscribed: 'unsubscribed',
  unreachable: 'unreachable',
  opted_out: 'suppressed',
  suppressed: 'suppressed',
};

async function findObjectionsOn(
  tools: SuppressionTools & { database: Database },
  channel: MessageChannel,
  jobs: readonly Job[],
): Promise<Map<Job, Objection>> {
  const [suppressed, objections, suspended] = await Promise.all([
    findSuppressed(
      tools.database,
      tools,
      channel.name,
      jobs.map(({ organizationId, addressKey }) => ({ organizationId, address: addressKey })),
    ),
    findCampaignObjections(tools.database, channel, jobs),
    findSuspended(
      tools.database,
      channel,
      jobs.filter(({ isCancellable }) => isCancellable),
    ),
  ]);
  for (const job of jobs) {
    if (job.isCancellable && suspended.has(job.organizationId)) objections.set(job, 'suspended');
  }
  const barred = new Map(
    jobs.flatMap((job, index) => {
      const isSimulated = channel.objections.isSimulatedSuppression(job.addressKey);
      const kind = suppressed.get(index) ?? (isSimulated ? 'suppressed' : undefined);
      // Who gets no campaigns gets other messages.
      const isWanted = kind === undefined || (isOfCampaigns[kind] && job.contactId === null);
      return isWanted || objections.has(job) ? [] : [[job, kind] as const];
    }),
  );
  const askedFor = await loadAskedFor(tools.database, channel, [...barred.keys()]);
  for (const [job, kind] of barred) {
    const way = askedFor.get(job);
    const goesOut = way === 'answer' || (way === 'category' && kind === 'opted_out');
    if (!goesOut) objections.set(job, dropReasons[kind]);
  }
  return objections;
}

/** Organizations of these jobs whose sending on the channel is suspended. */
async function findSuspended(
  database: Database,
  channel: MessageChannel,
  jobs: readonly Job[],
): Promise<ReadonlySet<string>> {
  const organizationIds = [...new Set(jobs.map(({ organizationId }) => organizationId))];
  const plans =
    organizationIds.length === 0 ? [] : await loadSendingPlans(database, organizationIds, channel.name);
  return new Set(plans.flatMap(({ organizationId, isSuspended }) => (isSuspended ? [organizationId] : [])));
}

async function loadAskedFor(database: Database, channel: MessageChannel, jobs: readonly Job[]) {
  if (jobs.length === 0) return new Map<Job, 'answer' | 'category'>();
  const organizationIds = [...new Set(jobs.map(({ organizationId }) => organizationId))];
  return database.asOrganizationsByIndex(organizationIds, (transaction) =>
    findAskedFor(transaction, jobs, channel.objections.askedForCategory),
  );
}

async function findCampaignObjections(
  database: Database,
  channel: MessageChannel,
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
  const [barred, stopped, suspended] = await Promise.all([
    channel.objections.findBarred(
      database,
      personal.map(({ contact }) => contact),
    ),
    findStoppedMessages(database, uniqueMessages(personal.map(({ job }) => job))),
    findSuspended(
      database,
      channel,
      personal.map(({ job }) => job),
    ),
  ]);
  const objections = new Map<Job, Objection>();
  for (const [index, { job }] of personal.entries()) {
    const isSuspended = suspended.has(job.organizationId);
    const objection = stopped.has(job.messageId)
      ? 'stopped'
      : (barred.get(index) ?? (isSuspended ? 'suspended' : undefined));
    if (objection !== undefined) objections.set(job, objection);
  }
  return objections;
}
