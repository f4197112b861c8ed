import type { SendingChannel } from '../../channels/channel.ts';
import {
  type Bound,
  type Connection,
  type Database,
  statement,
  type Transaction,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { isNotDeleted } from '../../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import { unburiedWorker } from '../../platform/queue/lease.ts';
import type { DeliverySlice, Job, MessageChannel, MessageChannels } from '../channel.ts';
import { sliceColumns, sliceKey } from '../slices.ts';
import {
  type Claim,
  type ClaimedJob,
  type ClaimRequest,
  pickTold,
  type ToldOfMessage,
} from './claim-store.ts';

export type SliceClaim = Omit<Claim, 'mayHaveLeft' | 'nextDueAt' | 'hasPoison'> & {
  /** Slices of which no recipient is left: all were dropped or erased since. */
  empty: readonly DeliverySlice[];
};

export type SliceClaimRequest = Omit<ClaimRequest, 'lane' | 'itemsMax' | 'at'> & { slicesMax: number };

/** With fewer, a scan of many organizations takes more claims. */
const defaultOrganizationsMax = 200;

/** Like the claim of single jobs (claim-store.ts): organizations in turns, and nothing for a worker that was buried. */
const claimSlices = statement<SliceClaimRow>(
  'slices_claim',
  `with recursive claimant as (
     ${unburiedWorker('$2')}
   ), active (organization_id, position) as (
     (select organization_id, 1
      from delivery_slices
      where channel = $4 and lane = 1 and claimed_by is null and organization_id > $1
      order by organization_id
      limit 1)
     union all
     select next.organization_id, active.position + 1
     from active
     cross join lateral (
       select organization_id
       from delivery_slices
       where channel = $4 and lane = 1 and claimed_by is null and organization_id > active.organization_id
       order by organization_id
       limit 1
     ) next
     where active.position < $6::integer
   ), served as (
     select organization_id, position
     from active
     where exists (select from claimant) and ${isNotDeleted('organization_id')}
     order by position
     limit $5
   ), due as (
     select slice.*
     from served
     cross join lateral (
       select organization_id, message_id, first_ordinal
       from delivery_slices
       where channel = $4 and lane = 1 and claimed_by is null and organization_id = served.organization_id
       order by accepted_at, first_ordinal
       limit (select greatest($5 / count(*), 1) from served)
       for update skip locked
     ) slice
   ), claimed as (
     update delivery_slices slice
     set claimed_by = $2, claim_number = $3
     from due
     where ${hasKeyOf('slice', 'due', sliceKey)}
     returning slice.organization_id, slice.message_id, slice.first_ordinal, slice.last_ordinal, slice.accepted_at,
       slice.content_bytes, slice.claim_number, slice.writes
   ), seen as (
     select
       (select count(*) from served) < $5 and (select count(*) from active) < $6::integer as is_scan_over,
       (
         select organization_id
         from (
           select organization_id, position from served
           union all
           select organization_id, position from active where (select count(*) from served) < $5
         ) looked_at
         order by position desc
         limit 1
       ) as last_organization_id
   )
   select seen.*, claimed.*
   from seen
   left join claimed on true`,
);

/** Found by the primary key: the order keeps the planner from another index, which has all of the message. */
const selectRecipients = statement<RecipientRow & { number: number }>(
  'slices_select_recipients',
  `select wanted.number, r.*
   from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[]) with ordinality
     as wanted (organization_id, message_id, first_ordinal, last_ordinal, number)
   cross join lateral (
     select ordinal, contact_id, address, address_key, variables
     from recipients
     where ${hasKeyOf('recipients', 'wanted', ['message_id'])}
       and ordinal >= wanted.first_ordinal and ordinal <= wanted.last_ordinal
       and drop_reason is null and address <> ''
     order by recipients.organization_id, recipients.message_id, ordinal
   ) r`,
);

type SliceRow = {
  organization_id: string;
  message_id: string;
  first_ordinal: number;
  last_ordinal: number;
  accepted_at: Date;
  content_bytes: number;
  claim_number: number;
  writes: number;
};

type RecipientRow = {
  ordinal: number;
  contact_id: string | null;
  address: string;
  address_key: string;
  variables: Job['variables'];
};

type SliceClaimRow = Omit<SliceRow, 'message_id'> & {
  message_id: string | null;
  is_scan_over: boolean;
  last_organization_id: string | null;
};

/** Claims slices of campaigns on a channel, and returns their recipients as jobs. */
export async function claimDueSlices(database: Database, request: SliceClaimRequest): Promise<SliceClaim> {
  const rows = await inOneRoundTrip(database, claimSlices, [
    request.afterOrganizationId,
    request.epoch,
    request.claimNumber,
    request.channel.name,
    request.slicesMax,
    request.organizationsMax ?? defaultOrganizationsMax,
  ]);
  const [first] = rows;
  const claimed = rows.filter(isClaimed).map((row) => claimedOf(row, request.channel));
  const jobs = await loadJobs(database, claimed);
  return {
    jobs,
    empty: claimed.map(({ slice }) => slice).filter(({ jobsLeft }) => jobsLeft === 0),
    lastOrganizationId: first?.last_organization_id ?? request.afterOrganizationId,
    isScanOver: first?.is_scan_over ?? true,
  };
}

function isClaimed(row: SliceClaimRow): row is SliceClaimRow & SliceRow {
  return row.message_id !== null;
}

async function loadJobs(database: Database, claimed: readonly ClaimedSlice[]): Promise<Job[]> {
  if (claimed.length === 0) return [];
  const slices = claimed.map(({ slice }) => slice);
  const rows = await inOneRoundTrip(database, selectRecipients, [
    ...sliceColumns(slices),
    slices.map(({ lastOrdinal }) => lastOrdinal),
  ]);
  const makers = claimed.map((each) => jobMakerOf(each));
  return rows.map((row) => {
    const slice = slices[row.number - 1];
    const make = makers[row.number - 1];
    if (slice === undefined || make === undefined) throw new Error('a recipient of no slice');
    slice.jobsLeft += 1;
    return make(row);
  });
}

const claimedColumns = `organization_id, message_id, first_ordinal, last_ordinal, accepted_at, content_bytes, claim_number,
     writes, channel`;

const findNext = unpreparedStatement<SliceRow>(
  `select ${claimedColumns}
   from delivery_slices
   where claimed_by = $1 and channel = any ($2)
     and (organization_id, message_id, first_ordinal) > ($3, $4, $5)
   order by organization_id, message_id, first_ordinal
   limit 1`,
);

/** The first slice after the given one that a worker had when it ended; null if there is none. */
export async function findClaimedSlice(
  connection: Connection,
  channels: MessageChannels,
  { epoch, after }: { epoch: number; after: DeliverySlice | null },
): Promise<DeliverySlice | null> {
  const [row] = await connection.rows(findNext, [
    epoch,
    Object.keys(channels),
    after?.organizationId ?? nilId,
    after?.messageId ?? nilId,
    after?.firstOrdinal ?? 0,
  ]);
  return row === undefined ? null : toSlice(row);
}

const nilId = '00000000-0000-0000-0000-000000000000';

const lockClaimed = unpreparedStatement<SliceRow & { channel: SendingChannel }>(
  `select ${claimedColumns}
   from delivery_slices
   where organization_id = $1 and message_id = $2 and first_ordinal = $3 and claimed_by = $4
   for update`,
);

export type ClaimedSlice = {
  slice: DeliverySlice;
  channel: MessageChannel;
  claimNumber: number;
  acceptedAt: Date;
  contentBytes: number;
};

/** Locks a slice, unless the worker does not have it any more. */
export async function lockClaimedSlice(
  transaction: Transaction,
  channels: MessageChannels,
  { epoch, slice }: { epoch: number; slice: DeliverySlice },
): Promise<ClaimedSlice | null> {
  const key = [slice.organizationId, slice.messageId, slice.firstOrdinal];
  const [row] = await transaction.rows(lockClaimed, [...key, epoch]);
  return row === undefined ? null : claimedOf(row, channels[row.channel]);
}

/**
 * A recipient whose outcome is written has been handed off, has another status, was dropped, or is in the queue by
 * itself. A report may have come before the outcome: then the announcement tells that the outcome was not written.
 */
const selectUnsettled = statement<
  RecipientRow & ToldOfMessage & { is_announced: boolean; announced_at: Date | null }
>(
  'slices_select_unsettled',
  `with announced as (
     select distinct job.ordinal, job.handed_off_at
     from hand_offs h
     cross join lateral unnest(h.organization_ids, h.message_ids, h.ordinals, h.claim_numbers, h.handed_off_at)
       as job (organization_id, message_id, ordinal, claim_number, handed_off_at)
     where h.epoch = $5 and job.organization_id = $1 and job.message_id = $2 and job.claim_number = $6
   )
   select r.ordinal, r.contact_id, r.address, r.address_key, r.variables, m.category, m.details,
     announced.ordinal is not null as is_announced, announced.handed_off_at as announced_at
   from recipients r
   join messages m on m.organization_id = $1 and m.id = $2
   left join announced on announced.ordinal = r.ordinal
   where r.organization_id = $1 and r.message_id = $2 and r.ordinal >= $3 and r.ordinal <= $4
     and r.drop_reason is null and r.address <> '' and r.handed_off_at is null
     and (r.status = 'sent' or announced.ordinal is not null)
     and not exists (
       select
       from delivery_queue q
       where q.organization_id = r.organization_id and q.message_id = r.message_id and q.ordinal = r.ordinal
     )
   order by r.ordinal`,
);

/** The jobs of a slice that is locked of which no outcome was written. */
export async function listUnsettled(
  transaction: Transaction,
  epoch: number,
  claimed: ClaimedSlice,
): Promise<ClaimedJob[]> {
  const { slice, claimNumber } = claimed;
  const rows = await transaction.rows(selectUnsettled, [
    slice.organizationId,
    slice.messageId,
    slice.firstOrdinal,
    slice.lastOrdinal,
    epoch,
    claimNumber,
  ]);
  const make = jobMakerOf(claimed, rows[0]);
  return rows.map((row) => ({ ...make(row), handOffAt: row.announced_at, isAnnounced: row.is_announced }));
}

const deleteClaimed = statement(
  'slices_delete',
  `delete from delivery_slices slice
   using unnest($1::uuid[], $2::uuid[], $3::integer[]) as finished (organization_id, message_id, first_ordinal)
   where ${hasKeyOf('slice', 'finished', sliceKey)} and slice.claimed_by = $4`,
);

/** Removes slices of which every outcome is written. Those that the worker does not have any more are left alone. */
export async function deleteSlices(
  connection: Connection,
  slices: readonly DeliverySlice[],
  epoch: number,
): Promise<void> {
  for (const { statement: deletion, values } of deletionOfSlices(slices, epoch))
    await connection.rows(deletion, values);
}

/** The same for statements that are sent at once. */
export function deletionOfSlices(slices: readonly DeliverySlice[], epoch: number): Bound<unknown>[] {
  return slices.length === 0 ? [] : [{ statement: deleteClaimed, values: [...sliceColumns(slices), epoch] }];
}

function toSlice(row: SliceRow): DeliverySlice {
  return {
    organizationId: row.organization_id,
    messageId: row.message_id,
    firstOrdinal: row.first_ordinal,
    lastOrdinal: row.last_ordinal,
    jobsLeft: 0,
    writes: row.writes,
  };
}

function claimedOf(row: SliceRow, channel: MessageChannel): ClaimedSlice {
  return {
    slice: toSlice(row),
    channel,
    claimNumber: row.claim_number,
    acceptedAt: row.accepted_at,
    contentBytes: row.content_bytes,
  };
}

function jobMakerOf(
  { slice, channel, claimNumber, acceptedAt, contentBytes }: ClaimedSlice,
  told?: ToldOfMessage,
): (row: RecipientRow) => Job {
  const { organizationId, messageId } = slice;
  const policy = channel.policyOf({ isCampaign: true, ...pickTold(told) });
  return (row) => ({
    organizationId,
    messageId,
    ordinal: row.ordinal,
    channel,
    policy,
    isCampaign: true,
    contactId: row.contact_id,
    address: row.address,
    addressKey: row.address_key,
    variables: row.variables,
    acceptedAt,
    contentBytes,
    attempts: 0,
    ambiguities: 0,
    crashes: 0,
    handOffAt: null,
    isCancellable: false,
    traceId: null,
    claimNumber,
    slice,
  });
}
