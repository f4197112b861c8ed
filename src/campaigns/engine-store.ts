import { holdsAt } from '../audience/audience.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { reachableDevices } from '../devices/devices.ts';
import { keyOfContact, type NewMembers, type Reach, type RecipientSums } from '../messages/messages.ts';
import {
  type Connection,
  type Statement,
  statement,
  type Transaction,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { allOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import { isProgressWanted } from '../webhooks/webhooks.ts';
import { type AudienceIds, audienceFields, includedAndExcluded } from './audience-fields.ts';
import type { CampaignChannel } from './channel.ts';
import type { CampaignStatus, PassingPauseReason } from './states.ts';

export type CampaignKey = { organizationId: string; id: string };

/** What the engine needs of a campaign whose row it has locked. */
export type RunningCampaign = CampaignKey & {
  channel: SendingChannel;
  status: 'queued' | 'sending' | 'paused';
  pauseReason: PassingPauseReason | null;
  messageId: string;
  variableNames: string[];
  sets: AudienceIds;
  frozenAt: Date | null;
  /** Null as well when the whole audience is frozen. */
  frozenThrough: string | null;
  contentBytes: number;
  /** Recipients that are frozen so far. */
  audience: number;
  expanded: number;
  admitted: number;
  /** What programs are told of its recipients; null where none wants to hear of it. */
  progress: { toldAt: Date | null; told: RecipientSums | null } | null;
};

type RunningRow = AudienceIds & {
  organization_id: string;
  id: string;
  channel: SendingChannel;
  status: RunningCampaign['status'];
  pause_reason: RunningCampaign['pauseReason'];
  message_id: string;
  variable_names: string[] | null;
  frozen_at: Date | null;
  frozen_through: string | null;
  content_bytes: number | null;
  audience: number | null;
  expanded: number;
  admitted: number;
  is_progress_wanted: boolean;
  progress_told_at: Date | null;
  progress_told: RecipientSums | null;
};

/** Campaigns under way. One that missed its time is not: it waits for a person. */
const isUnderWay = toPredicate(
  `status in ('queued', 'sending', 'paused') and deleted_at is null
    and pause_reason is distinct from 'schedule_missed'`,
);

/** Those whose audience is not frozen completely, or those of whose audience at least a part is frozen. */
export type CampaignPart = 'to_freeze' | 'frozen';

const isOfPart = (part: string) =>
  toPredicate(
    `case ${part} when 'to_freeze' then frozen_at is null or frozen_through is not null else frozen_at is not null end`,
  );

/** A page of organizations, in the order of their ids. */
type NextById = { after: string | null; limit: number };

const findUnderWay = statement<{ organization_id: string }>(
  'campaigns_find_under_way',
  organizationsDue({
    table: 'campaigns',
    among: "status in ('queued', 'sending', 'paused')",
    due: allOf([isUnderWay, isOfPart('$1')]),
  }),
);

/** Organizations with campaigns under way. */
export async function findOrganizationsUnderWay(
  connection: Connection,
  { part, after, limit }: NextById & { part: CampaignPart },
): Promise<string[]> {
  const rows = await connection.rows(findUnderWay, [part, after, limit]);
  return rows.map((row) => row.organization_id);
}

const selectUnderWay = statement<{ organization_id: string; id: string }>(
  'campaigns_select_under_way',
  `select organization_id, id
   from campaigns
   where organization_id = $1 and ${isUnderWay} and ($2::uuid is null or id > $2) and ${isOfPart('$4')}
     and id <> all ($5::uuid[])
   order by id
   limit $3`,
);

/**
 * How many campaigns wait for their time or are under way, by status: of all organizations, and no more than `most` of
 * either kind. By the indexes campaigns_due and campaigns_under_way.
 */
export async function countCampaignsUnderWay(
  connection: Connection,
  most: number,
): Promise<{ status: CampaignStatus; campaigns: number }[]> {
  return connection.rows(
    unpreparedStatement<{ status: CampaignStatus; campaigns: number }>(
      `select status, count(*) as campaigns
       from (
         (select status from campaigns where status = 'scheduled' and deleted_at is null limit $1)
         union all
         (
           select status
           from campaigns
           where status in ('queued', 'sending', 'paused') and deleted_at is null
           limit $1
         )
       ) seen
       group by status
       order by status`,
    ),
    [most],
  );
}

/** What is listed of an organization, in the order of ids: none of `exceptIds`. */
type Wanted = { organizationId: string; exceptIds: readonly string[]; limit: number };

/** Campaigns of the organization that are under way, after `after` if that is given, by the index campaigns_under_way. */
export async function listUnderWay(
  connection: Connection,
  {
    organizationId,
    part,
    after = null,
    exceptIds,
    limit,
  }: Wanted & { part: CampaignPart; after?: string | null },
): Promise<CampaignKey[]> {
  const rows = await connection.rows(selectUnderWay, [organizationId, after, limit, part, exceptIds]);
  return rows.map((row) => ({ organizationId: row.organization_id, id: row.id }));
}

const selectRunning = `select organization_id, id, channel, status, pause_reason, message_id, variable_names,
     frozen_at, frozen_through, content_bytes, audience, expanded, admitted, ${audienceFields.join(', ')},
     progress_told_at, progress_told, ${isProgressWanted('campaigns.organization_id')} as is_progress_wanted
   from campaigns
   where organization_id = $1 and id = $2 and ${isUnderWay}`;

const holdOne = statement<RunningRow>('campaigns_hold', `${selectRunning} for update skip locked`);
const awaitOne = statement<RunningRow>('campaigns_await', `${selectRunning} for update`);
const findOne = unpreparedStatement<RunningRow>(selectRunning);

/** Locks the campaign until the transaction ends. Null if it is no longer under way, or another transaction has it. */
export function holdRunning(connection: Connection, campaign: CampaignKey): Promise<RunningCampaign | null> {
  return readRunning(connection, holdOne, campaign);
}

/** The same, but waits for a transaction that has it. */
export function awaitRunning(connection: Connection, campaign: CampaignKey): Promise<RunningCampaign | null> {
  return readRunning(connection, awaitOne, campaign);
}

/** The same without the lock. */
export function findRunning(connection: Connection, campaign: CampaignKey): Promise<RunningCampaign | null> {
  return readRunning(connection, findOne, campaign);
}

async function readRunning(
  connection: Connection,
  reading: Statement<RunningRow>,
  campaign: CampaignKey,
): Promise<RunningCampaign | null> {
  const [row] = await connection.rows(reading, [campaign.organizationId, campaign.id]);
  return row === undefined ? null : toRunning(row);
}

function toRunning(row: RunningRow): RunningCampaign {
  return {
    organizationId: row.organization_id,
    id: row.id,
    channel: row.channel,
    status: row.status,
    pauseReason: row.pause_reason,
    messageId: row.message_id,
    variableNames: row.variable_names ?? [],
    sets: row,
    frozenAt: row.frozen_at,
    frozenThrough: row.frozen_through,
    contentBytes: row.content_bytes ?? 0,
    audience: row.audience ?? 0,
    expanded: row.expanded,
    admitted: row.admitted,
    progress: row.is_progress_wanted ? { toldAt: row.progress_told_at, told: row.progress_told } : null,
  };
}

const selectMessages = statement<{ message_id: string }>(
  'campaigns_select_messages_under_way',
  `select message_id
   from campaigns
   where organization_id = $1 and channel = $2 and ${isUnderWay} and message_id is not null
   limit $3`,
);

/** More campaigns at once have but a few copies each in the queue. */
const messagesMax = 1_000;

/** The messages of an organization's campaigns under way, by the index campaigns_status. */
export async function listMessagesUnderWay(
  connection: Connection,
  { organizationId, channel }: Pick<RunningCampaign, 'organizationId' | 'channel'>,
): Promise<string[]> {
  const rows = await connection.rows(selectMessages, [organizationId, channel, messagesMax]);
  return rows.map(({ message_id: messageId }) => messageId);
}

const isScheduled = toPredicate("status = 'scheduled' and deleted_at is null");

const findDue = statement<{ organization_id: string }>(
  'campaigns_find_due',
  organizationsDue({ table: 'campaigns', among: isScheduled, due: 'scheduled_at <= $1' }),
);

/** Organizations with campaigns whose time has come. */
export async function findOrganizationsDue(
  connection: Connection,
  { at, after, limit }: NextById & { at: Date },
): Promise<string[]> {
  const rows = await connection.rows(findDue, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

const selectDue = statement<{ organization_id: string; id: string }>(
  'campaigns_select_due',
  `select organization_id, id
   from campaigns
   where organization_id = $1 and ${isScheduled} and scheduled_at <= $2 and id <> all ($3::uuid[])
   order by id
   limit $4`,
);

/** Campaigns of the organization whose time has come, by the index campaigns_due_turns. */
export async function listDue(
  connection: Connection,
  { organizationId, at, exceptIds, limit }: Wanted & { at: Date },
): Promise<CampaignKey[]> {
  const rows = await connection.rows(selectDue, [organizationId, at, exceptIds, limit]);
  return rows.map((row) => ({ organizationId: row.organization_id, id: row.id }));
}

/** The first instant after this one for which a campaign is scheduled, by the index campaigns_due. */
export async function findNextScheduledAt(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next_at: Date }>(
      `select scheduled_at as next_at
       from campaigns
       where ${isScheduled} and scheduled_at > $1 and ${isNotDeleted('organization_id')}
       order by scheduled_at
       limit 1`,
    ),
    [after],
  );
  return row?.next_at ?? null;
}

/**
 * Whether the campaign's segments are up to date as of the time when it was queued. A segment may still be being
 * computed, have changes of contacts left to follow, or be impossible to compute.
 */
export async function findSegmentState(
  connection: Connection,
  campaign: CampaignKey,
): Promise<'current' | 'behind' | 'failed'> {
  const [row] = await connection.rows(
    unpreparedStatement<{ has_failed: boolean; is_behind: boolean }>(
      `select coalesce(bool_or(g.status = 'failed'), false) as has_failed,
         coalesce(bool_or(not s.is_ready), false) or (
           count(s.id) > 0 and exists (
             select
             from contact_changes x
             where x.organization_id = $1 and x.id < lowest_id_at(max(c.queued_at))
           )
         ) as is_behind
       from campaigns c
       join contact_sets s
         on s.organization_id = c.organization_id and s.id = any (c.segment_ids || c.exclude_segment_ids)
       left join segments g on g.organization_id = s.organization_id and g.id = s.id
       where c.organization_id = $1 and c.id = $2`,
    ),
    [campaign.organizationId, campaign.id],
  );
  if (row?.has_failed === true) return 'failed';
  return row?.is_behind === true ? 'behind' : 'current';
}

export type FrozenAudience = {
  candidates: number;
  audience: number;
  unsubscribed: number;
  suppressed: number;
  noAddress: number;
  /** Always 0: no two contacts of an organization have the same address. */
  duplicate: number;
};

type JudgedRow = {
  candidates: number;
  audience: number;
  unsubscribed: number;
  suppressed: number;
  no_address: number;
};

/** The sets that a campaign is for, and its channel; `at` is when that is asked. */
export type Meant = {
  organizationId: string;
  at: Date;
  channel: Pick<CampaignChannel, 'messages' | 'reach'>;
  sets: AudienceIds;
};

/**
 * The parameters `$1` to `$5` of `judgedCandidates`. The ids are parameters, so that the planner can estimate by them.
 */
export function valuesOfMeant({ organizationId, channel, sets, at }: Meant): unknown[] {
  const { included, excluded } = includedAndExcluded(sets);
  return [organizationId, channel.messages.name, included, excluded, at];
}

/**
 * SQL for the candidates of the campaign: the union of its sets without the excluded ones, each contact once, with the
 * reason if the contact does not get the campaign. If the channel reaches devices, a contact is there once for each of its
 * devices, and one without any is there once. Suppressed addresses that were erased are stored as a hash only, and
 * are found later, when recipients are inserted. `columns` are further columns of the contacts `c`; `where` restricts
 * the memberships `m`.
 */
export function judgedCandidates(
  { channel: { reach } }: Meant,
  { columns = [], where = allOf([]) }: { columns?: readonly string[]; where?: Predicate } = {},
): string {
  const key = keyOfContact(reach);
  const place = placeOf(reach);
  return `candidates as (
      select distinct m.contact_id
      from memberships m
      where m.organization_id = $1 and m.set_id = any ($3::uuid[]) and ${where}
    ), judged as (
      select c.id${place.columns},
        case
          when ${place.id} is null then 'no_address'
          when $2 = any (c.unsubscribed_channels) then 'unsubscribed'
          when s.address is not null then 'suppressed'
        end as exclusion${columns.map((column) => `, ${column}`).join('')}
      from candidates
      join contacts c on c.organization_id = $1 and c.id = candidates.contact_id${place.join}
      left join (
        select distinct s.address
        from suppressions s
        where s.organization_id = $1 and s.channel = $2 and s.address is not null
          and (s.scope = 'all' or s.reason = 'manual') and ${holdsAt('$5')}
      ) s on s.address = ${key}
      where not exists (
        select
        from memberships x
        where x.organization_id = $1 and x.set_id = any ($4::uuid[]) and x.contact_id = c.id
      )
    )`;
}

/** SQL for where a candidate is reached: what joins it to its contact, its columns, and what is null if there is none. */
function placeOf(reach: Reach): { join: string; columns: string; id: string } {
  if (reach.kind === 'address') return { join: '', columns: '', id: keyOfContact(reach) };
  const devices = reachableDevices({ organizationId: '$1', id: 'c.id' });
  return {
    join: `\n      left join lateral (${devices}) device on true`,
    columns: ', device.id as device_id',
    id: 'device.id',
  };
}

const countJudged = `count(*) as candidates,
  count(*) filter (where exclusion is null) as audience,
  count(*) filter (where exclusion = 'unsubscribed') as unsubscribed,
  count(*) filter (where exclusion = 'suppressed') as suppressed,
  count(*) filter (where exclusion = 'no_address') as no_address`;

/** The lowest contact up to which some included set has `count` members; null if no set has so many. */
export async function findEarlyMember(
  connection: Connection,
  { organizationId, sets }: Meant,
  count: number,
): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ contact_id: string }>(
      `select reached.contact_id
       from unnest($2::uuid[]) as included (set_id)
       cross join lateral (
         select m.contact_id
         from memberships m
         where m.organization_id = $1 and m.set_id = included.set_id
         order by m.contact_id
         offset $3::integer - 1
         limit 1
       ) reached
       order by reached.contact_id
       limit 1`,
    ),
    [organizationId, includedAndExcluded(sets).included, count],
  );
  return row?.contact_id ?? null;
}

/**
 * Freezes the first slice, if the contacts up to the given one fill it, and returns the last contact in it. This takes
 * milliseconds, where the whole audience takes seconds. Only where contacts are reached at an address: the end of a slice
 * may lie between two devices of a contact.
 */
export async function freezeFirstSlice(
  connection: Connection,
  campaign: CampaignKey,
  meant: Meant,
  { upTo, sliceSize }: { upTo: string; sliceSize: number },
): Promise<{ frozen: FrozenAudience; through: string } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<JudgedRow & { through: string }>(
      `with ${judgedCandidates(meant, { where: toPredicate('m.contact_id <= $7') })}, last as (
         select id from judged where exclusion is null order by id offset $8::integer - 1 limit 1
       ), looked_at as (
         select judged.*, last.id as through from judged join last on judged.id <= last.id
       ), frozen as (
         insert into campaign_slices (organization_id, campaign_id, number, contact_ids)
         select $1, $6, 0, array_agg(id order by id) from looked_at where exclusion is null group by through
       )
       select ${countJudged}, through from looked_at group by through`,
    ),
    [...valuesOfMeant(meant), campaign.id, upTo, sliceSize],
  );
  return row === undefined ? null : { frozen: toFrozenAudience(row), through: row.through };
}

/** Freezes, in one statement, the audience after a contact, and counts the contacts that are left out. */
export async function freezeAudience(
  connection: Connection,
  campaign: CampaignKey,
  meant: Meant,
  behind: { contactId: string | null; firstSlice: number; sliceSize: number },
): Promise<FrozenAudience> {
  const { contactId, firstSlice, sliceSize } = behind;
  const members = membersOf(meant.channel.reach);
  const [row] = await connection.rows(
    unpreparedStatement<JudgedRow>(
      `with ${judgedCandidates(meant, { where: toPredicate('m.contact_id > $7') })}, counted as (
         select ${countJudged}, ${members.aggregates} from judged
       ), frozen as (
         insert into campaign_slices (organization_id, campaign_id, number, ${members.columns})
         select $1, $6, $8::integer + slice, ${members.ofSlice}
         from counted
         cross join generate_series(0, (audience::integer - 1) / $9::integer) slice
         where audience > 0
       )
       select candidates, audience, unsubscribed, suppressed, no_address from counted`,
    ),
    [...valuesOfMeant(meant), campaign.id, contactId ?? lowestUuid, firstSlice, sliceSize],
  );
  return toFrozenAudience(row);
}

/** SQL for the members of slices, in the order of their contacts. */
function membersOf(reach: Reach): { aggregates: string; columns: string; ofSlice: string } {
  const columns =
    reach.kind === 'devices' ? { contact_ids: 'id', device_ids: 'device_id' } : { contact_ids: 'id' };
  const order = Object.values(columns).join(', ');
  const names = Object.keys(columns);
  return {
    aggregates: Object.entries(columns)
      .map(([name, id]) => `array_agg(${id} order by ${order}) filter (where exclusion is null) as ${name}`)
      .join(', '),
    columns: names.join(', '),
    ofSlice: names.map((name) => `${name}[slice * $9::integer + 1:(slice + 1) * $9::integer]`).join(', '),
  };
}

const lowestUuid = '00000000-0000-0000-0000-000000000000';

/** The same counts without freezing anything. */
export async function countAudience(connection: Connection, meant: Meant): Promise<FrozenAudience> {
  const [row] = await connection.rows(
    unpreparedStatement<JudgedRow>(`with ${judgedCandidates(meant)} select ${countJudged} from judged`),
    valuesOfMeant(meant),
  );
  return toFrozenAudience(row);
}

function toFrozenAudience(row: JudgedRow | undefined): FrozenAudience {
  if (row === undefined) throw new Error('a count returned no row');
  const { candidates, audience, unsubscribed, suppressed, no_address: noAddress } = row;
  return { candidates, audience, unsubscribed, suppressed, noAddress, duplicate: 0 };
}

/**
 * Settings for a large audience. They allow a million contacts to be sorted in memory; no request waits for this.
 * Reading the memberships in the order of an index takes half as long as hashing them, although the planner estimates
 * hashing as cheaper.
 */
export async function allowForLargeAudience(transaction: Transaction, statementMaxMs: number): Promise<void> {
  await Promise.all([
    transaction.allowTime(statementMaxMs),
    transaction.rows(
      unpreparedStatement(
        "select set_config('work_mem', '128MB', true), set_config('enable_hashagg', 'off', true)",
      ),
    ),
  ]);
}

/** Adds newly frozen recipients to the earlier ones. `through` is null if they are the last. */
export async function saveFrozen(
  connection: Connection,
  campaign: CampaignKey,
  saved: { frozen: FrozenAudience; through: string | null; contentBytes: number; at: Date },
): Promise<void> {
  const { frozen, through, contentBytes, at } = saved;
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set frozen_at = coalesce(frozen_at, $3), rest_frozen_at = case when frozen_at is not null then $3::timestamptz end,
         frozen_through = $4, first_frozen_through = coalesce($4, first_frozen_through), content_bytes = $5,
         candidates = coalesce(candidates, 0) + $6, audience = coalesce(audience, 0) + $7,
         excluded_unsubscribed = coalesce(excluded_unsubscribed, 0) + $8,
         excluded_suppressed = coalesce(excluded_suppressed, 0) + $9,
         excluded_no_address = coalesce(excluded_no_address, 0) + $10,
         excluded_duplicate = coalesce(excluded_duplicate, 0) + $11
       where organization_id = $1 and id = $2`,
    ),
    [
      campaign.organizationId,
      campaign.id,
      at,
      through,
      contentBytes,
      frozen.candidates,
      frozen.audience,
      frozen.unsubscribed,
      frozen.suppressed,
      frozen.noAddress,
      frozen.duplicate,
    ],
  );
}

/**
 * Removes the next slices of the frozen audience, in their order, and returns their members, which become recipients.
 */
export async function takeSlices(
  connection: Connection,
  campaign: CampaignKey,
  slices: { first: number; count: number },
): Promise<NewMembers> {
  const rows = await connection.rows(
    unpreparedStatement<{ number: number; contact_ids: string[]; device_ids: string[] | null }>(
      `with taken as (
         delete from campaign_slices
         where organization_id = $1 and campaign_id = $2 and number >= $3 and number < $3 + $4::integer
         returning number, contact_ids, device_ids
       )
       select number, contact_ids, device_ids from taken order by number`,
    ),
    [campaign.organizationId, campaign.id, slices.first, slices.count],
  );
  return {
    contactIds: rows.flatMap((row) => row.contact_ids),
    deviceIds: rows.flatMap((row) => row.device_ids ?? []),
  };
}

const advanceOne = statement(
  'campaigns_advance',
  'update campaigns set expanded = $3, admitted = $4 where organization_id = $1 and id = $2',
);

export async function saveProgress(
  connection: Connection,
  campaign: CampaignKey,
  progress: { expanded: number; admitted: number },
): Promise<void> {
  await connection.rows(advanceOne, [
    campaign.organizationId,
    campaign.id,
    progress.expanded,
    progress.admitted,
  ]);
}

export async function saveProgressTold(
  connection: Connection,
  campaign: CampaignKey,
  sums: RecipientSums,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'update campaigns set progress_told_at = $3, progress_told = $4 where organization_id = $1 and id = $2',
    ),
    [campaign.organizationId, campaign.id, at, JSON.stringify(sums)],
  );
}
