import type { SendingChannel } from '../../channels/channel.ts';
import {
  type Connection,
  type Database,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { isNotDeleted } from '../../platform/postgres/deleted-organizations.ts';
import { groupBy } from '../../platform/grouping.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import { unburiedWorker } from '../../platform/queue/lease.ts';
import type { Job, MessageChannel, MessageChannels } from '../channel.ts';
import { recipientKey } from '../keys.ts';

export type ClaimRequest = {
  epoch: number;
  /** A number that this worker has not used before. */
  claimNumber: number;
  at: Date;
  channel: MessageChannel;
  lane: 0 | 1;
  itemsMax: number;
  /** Organizations are served in turns. This one was the last that had its turn. */
  afterOrganizationId: string;
  /** Organizations looked at. */
  organizationsMax?: number;
};

export type Claim = {
  jobs: Job[];
  /** The last organization that had its turn. */
  lastOrganizationId: string;
  /** No organization follows it. */
  isScanOver: boolean;
  /** An organization has had its whole share, and may have more that is due. */
  mayHaveLeft: boolean;
  /** When the first of the jobs that were seen but not due yet falls due. */
  nextDueAt: Date | null;
  /** Whether the channel has a poison job. */
  hasPoison: boolean;
};

/** A job that has crashed its worker this often is a poison job: it is tried alone, and set aside at the next crash. */
export const poisonCrashes = 2;

/** With fewer, deferred mail of many organizations could hide due mail of others. */
const defaultOrganizationsMax = 200;

/**
 * A loose index scan over delivery_queue_due finds the organizations that have due jobs, and each gets an equal share.
 * Rows that another worker is claiming at this moment are skipped. A worker whose lease was taken over gets nothing.
 *
 * Its commit waits for the disk. If the server lost a claim in a crash, the worker would go on with it until it hears that
 * its lease is gone, which takes seconds where a machine died without a word, and others would claim the same jobs: of ten
 * recipients nine had a second copy when that was tried.
 */
const claimDue = statement<ClaimRow>(
  'queue_claim_due',
  `with recursive claimant as (
     ${unburiedWorker('$5')}
   ), active (organization_id, due_at, position) as (
     (select organization_id, due_at, 1
      from delivery_queue
      where channel = $7 and lane = $1 and claimed_by is null and set_aside_at is null and organization_id > $2
      order by organization_id, due_at
      limit 1)
     union all
     select next.organization_id, next.due_at, active.position + 1
     from active
     cross join lateral (
       select organization_id, due_at
       from delivery_queue
       where channel = $7 and lane = $1 and claimed_by is null and set_aside_at is null
         and organization_id > active.organization_id
       order by organization_id, due_at
       limit 1
     ) next
     where active.position < $8::integer
   ), served as (
     select organization_id, position
     from active
     where due_at <= $3 and exists (select from claimant) and ${isNotDeleted('organization_id')}
     order by position
     limit $4
   ), due as (
     select job.organization_id, job.message_id, job.ordinal
     from served
     cross join lateral (
       select organization_id, message_id, ordinal
       from delivery_queue
       where channel = $7 and lane = $1 and organization_id = served.organization_id and due_at <= $3
         and claimed_by is null and set_aside_at is null and crashes < ${poisonCrashes}
       order by due_at
       limit (select greatest($4 / count(*), 1) from served)
       for update skip locked
     ) job
   ), claimed as (
     update delivery_queue q
     set claimed_by = $5, claim_number = $6
     from due
     where ${hasKeyOf('q', 'due', recipientKey)}
     returning q.organization_id, q.message_id, q.ordinal, q.channel, q.lane, q.accepted_at, q.content_bytes,
       q.attempts, q.ambiguities, q.crashes, q.first_handed_off_at, q.claim_number, q.trace_id, q.is_cancellable
   ), seen as (
     select
       (select count(*) from served) < $4 and (select count(*) from active) < $8::integer as is_scan_over,
       case
         when (select count(*) from served) < $4
         then (select organization_id from active order by position desc limit 1)
         else (select organization_id from served order by position offset $4 - 1 limit 1)
       end as last_organization_id,
       least(
         (select min(due_at) from active where due_at > $3),
         (
           select min(later.due_at)
           from served
           cross join lateral (
             select due_at
             from delivery_queue
             where channel = $7 and lane = $1 and organization_id = served.organization_id and due_at > $3
               and claimed_by is null and set_aside_at is null
             order by due_at
             limit 1
           ) later
         )
       ) as next_due_at,
       (select greatest($4 / count(*), 1)::integer from served having count(*) > 0) as share,
       -- Ordered as in the index of poison jobs: without the order, the planner might read another index through and
       -- find none.
       (
         select true from delivery_queue
         where claimed_by is null and set_aside_at is null and crashes >= ${poisonCrashes} and due_at <= $3
           and lane < 2 and channel = $7 and ${isNotDeleted('organization_id')}
         order by due_at
         limit 1
       ) is not null as has_poison
   )
   select seen.*, claimed.*, r.contact_id, r.address, r.address_key, r.variables
   from seen
   left join (claimed join recipients r on ${hasKeyOf('r', 'claimed', recipientKey)}) on true`,
);

export type JobRow = {
  organization_id: string;
  message_id: string;
  ordinal: number;
  channel: SendingChannel;
  lane: number;
  contact_id: string | null;
  address: string;
  address_key: string;
  variables: Job['variables'];
  accepted_at: Date;
  content_bytes: number;
  attempts: number;
  ambiguities: number;
  crashes: number;
  first_handed_off_at: Date | null;
  claim_number: number;
  trace_id: string | null;
  is_cancellable: boolean;
};

type ClaimRow = Omit<JobRow, 'message_id'> & {
  message_id: string | null;
  is_scan_over: boolean;
  last_organization_id: string | null;
  next_due_at: Date | null;
  share: number | null;
  has_poison: boolean;
};

export async function claimDueJobs(database: Database, request: ClaimRequest): Promise<Claim> {
  const rows = await inOneRoundTrip(database, claimDue, [
    request.lane,
    request.afterOrganizationId,
    request.at,
    request.itemsMax,
    request.epoch,
    request.claimNumber,
    request.channel.name,
    request.organizationsMax ?? defaultOrganizationsMax,
  ]);
  const [first] = rows;
  const jobs = rows
    .filter((row): row is ClaimRow & JobRow => row.message_id !== null)
    .map((row) => toJob(row, request.channel));
  const share = first?.share ?? Infinity;
  return {
    jobs,
    mayHaveLeft: [...groupBy(jobs, ({ organizationId }) => organizationId).values()].some(
      (own) => own.length >= share,
    ),
    lastOrganizationId: first?.last_organization_id ?? request.afterOrganizationId,
    isScanOver: first?.is_scan_over ?? true,
    nextDueAt: first?.next_due_at ?? null,
    hasPoison: first?.has_poison ?? false,
  };
}

/**
 * Claims one poison job, to be tried while nothing else is under way. It must be of one of these channels, since newer
 * workers may know channels that this one does not.
 */
export async function claimPoisonJob(
  connection: Connection,
  request: { channels: readonly MessageChannel[]; epoch: number; claimNumber: number; at: Date },
): Promise<Job | null> {
  const [row] = await connection.rows(
    unpreparedStatement<JobRow>(
      `with claimant as (
         ${unburiedWorker('$2')}
       ), poison as (
         select organization_id, message_id, ordinal
         from delivery_queue
         where claimed_by is null and set_aside_at is null and due_at <= $1 and crashes >= ${poisonCrashes}
           and lane < 2 and channel = any ($4) and exists (select from claimant)
           and ${isNotDeleted('organization_id')}
         order by due_at
         limit 1
         for update skip locked
       ), claimed as (
         update delivery_queue q
         set claimed_by = $2, claim_number = $3
         from poison
         where q.organization_id = poison.organization_id
           and q.message_id = poison.message_id
           and q.ordinal = poison.ordinal
         returning q.*
       )
       select claimed.*, r.contact_id, r.address, r.address_key, r.variables
       from claimed
       join recipients r using (organization_id, message_id, ordinal)`,
    ),
    [request.at, request.epoch, request.claimNumber, request.channels.map(({ name }) => name)],
  );
  const channel = request.channels.find(({ name }) => name === row?.channel);
  return row === undefined || channel === undefined ? null : toJob(row, channel);
}

/** What a policy may depend on where no attempt tells it. */
export type ToldOfMessage = { category: string | null; details: unknown };

export function pickTold(told: ToldOfMessage | undefined): Partial<ToldOfMessage> {
  return told === undefined ? {} : { category: told.category, details: told.details };
}

export type ClaimedJob = Job & {
  /** Its worker had announced the hand-off, which may have taken place. */
  isAnnounced: boolean;
};

/** The claims on these channels that a worker had when it ended, a batch at a time. */
export async function listClaims(
  connection: Connection,
  channels: MessageChannels,
  { epoch, itemsMax }: { epoch: number; itemsMax: number },
): Promise<ClaimedJob[]> {
  const rows = await connection.rows(
    unpreparedStatement<JobRow & ToldOfMessage & { is_announced: boolean; announced_at: Date | null }>(
      `with announced as (
         select distinct job.*
         from hand_offs h
         cross join lateral unnest(h.organization_ids, h.message_ids, h.ordinals, h.claim_numbers, h.handed_off_at)
           as job (organization_id, message_id, ordinal, claim_number, handed_off_at)
         where h.epoch = $1
       )
       select q.*, r.contact_id, r.address, r.address_key, r.variables, m.category,
         case when q.lane > 0 then m.details end as details,
         a.claim_number is not null as is_announced, a.handed_off_at as announced_at
       from delivery_queue q
       join recipients r using (organization_id, message_id, ordinal)
       left join announced a using (organization_id, message_id, ordinal, claim_number)
       join messages m on m.organization_id = q.organization_id and m.id = q.message_id
       where q.claimed_by = $1 and q.channel = any ($3)
       limit $2`,
    ),
    [epoch, itemsMax, Object.keys(channels)],
  );
  return rows.map((row) => ({
    ...toJob(row, channels[row.channel], row),
    handOffAt: row.first_handed_off_at ?? row.announced_at,
    isAnnounced: row.is_announced,
  }));
}

/** Further channels on which the worker had claims: newer workers may know channels that this one does not. */
export async function listOtherChannels(
  connection: Connection,
  channels: MessageChannels,
  epoch: number,
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ channel: string }>(
      `select distinct channel from delivery_queue where claimed_by = $1 and channel <> all ($2)
       union
       select channel from delivery_slices where claimed_by = $1 and channel <> all ($2)
       order by channel`,
    ),
    [epoch, Object.keys(channels)],
  );
  return rows.map(({ channel }) => channel);
}

export function toJob(row: JobRow, channel: MessageChannel, told?: ToldOfMessage): Job {
  const isCampaign = row.lane > 0;
  return {
    organizationId: row.organization_id,
    messageId: row.message_id,
    ordinal: row.ordinal,
    channel,
    policy: channel.policyOf({ isCampaign, ...pickTold(told) }),
    isCampaign,
    contactId: row.contact_id,
    address: row.address,
    addressKey: row.address_key,
    variables: row.variables,
    acceptedAt: row.accepted_at,
    contentBytes: row.content_bytes,
    attempts: row.attempts,
    ambiguities: row.ambiguities,
    crashes: row.crashes,
    handOffAt: row.first_handed_off_at,
    claimNumber: row.claim_number,
    isCancellable: row.is_cancellable,
    traceId: row.trace_id?.replaceAll('-', '') ?? null,
  };
}
