import type { Channel } from '../accounts/accounts.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import type { CampaignChannel } from './channel.ts';

export type CampaignKey = { organizationId: string; id: string };

/** What the engine needs of a campaign that it holds. */
export type RunningCampaign = CampaignKey & {
  channel: Channel;
  status: 'queued' | 'sending' | 'paused';
  pauseReason: 'sending_suspended' | 'quota_exceeded' | null;
  messageId: string;
  variableNames: string[];
  frozenAt: Date | null;
  contentBytes: number;
  audience: number;
  expanded: number;
  admitted: number;
};

type RunningRow = {
  organization_id: string;
  id: string;
  channel: Channel;
  status: RunningCampaign['status'];
  pause_reason: RunningCampaign['pauseReason'];
  message_id: string;
  variable_names: string[] | null;
  frozen_at: Date | null;
  content_bytes: number | null;
  audience: number | null;
  expanded: number;
  admitted: number;
};

/** Of those that are under way; one that missed its time waits for a person. */
const isUnderWay = `status in ('queued', 'sending', 'paused') and deleted_at is null
  and pause_reason is distinct from 'schedule_missed'`;

const selectUnderWay = statement<{ organization_id: string; id: string }>(
  'campaigns_select_under_way',
  `select organization_id, id
   from campaigns
   where ${isUnderWay} and (frozen_at is not null) = $4 and (organization_id, id) > ($1, $2)
   order by organization_id, id
   limit $3`,
);

/** Those whose audience is frozen, or those whose is not. */
export async function listUnderWay(
  connection: Connection,
  wanted: { isFrozen: boolean; after: CampaignKey; limit: number },
): Promise<CampaignKey[]> {
  const { isFrozen, after, limit } = wanted;
  const rows = await connection.rows(selectUnderWay, [after.organizationId, after.id, limit, isFrozen]);
  return rows.map((row) => ({ organizationId: row.organization_id, id: row.id }));
}

const selectRunning = `select organization_id, id, channel, status, pause_reason, message_id, variable_names,
     frozen_at, content_bytes, audience, expanded, admitted
   from campaigns
   where organization_id = $1 and id = $2 and ${isUnderWay}`;

const holdOne = statement<RunningRow>('campaigns_hold', `${selectRunning} for update skip locked`);

/** Holds it until the transaction ends; null if it is not under way any more, or somebody else has it. */
export async function holdRunning(
  connection: Connection,
  campaign: CampaignKey,
): Promise<RunningCampaign | null> {
  const [row] = await connection.rows(holdOne, [campaign.organizationId, campaign.id]);
  return row === undefined ? null : toRunning(row);
}

/** The same without holding it. */
export async function findRunning(
  connection: Connection,
  campaign: CampaignKey,
): Promise<RunningCampaign | null> {
  const [row] = await connection.rows(unpreparedStatement<RunningRow>(selectRunning), [
    campaign.organizationId,
    campaign.id,
  ]);
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
    frozenAt: row.frozen_at,
    contentBytes: row.content_bytes ?? 0,
    audience: row.audience ?? 0,
    expanded: row.expanded,
    admitted: row.admitted,
  };
}

const selectDue = unpreparedStatement<{ organization_id: string; id: string }>(
  `select organization_id, id
   from campaigns
   where status = 'scheduled' and deleted_at is null and scheduled_at <= $1 and id <> all ($2::uuid[])
   order by scheduled_at
   limit $3`,
);

export async function listDue(
  connection: Connection,
  at: Date,
  exceptIds: readonly string[],
  limit: number,
): Promise<CampaignKey[]> {
  const rows = await connection.rows(selectDue, [at, exceptIds, limit]);
  return rows.map((row) => ({ organizationId: row.organization_id, id: row.id }));
}

export async function findNextScheduledAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next_at: Date | null }>(
      `select min(scheduled_at) as next_at from campaigns where status = 'scheduled' and deleted_at is null`,
    ),
  );
  return row?.next_at ?? null;
}

/**
 * Whether the segments that the campaign speaks of have the members that they had when it was queued: one may still be
 * computed, or have changes of contacts to follow, or it cannot be computed at all.
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
  /** Always none: no two contacts of an organization have the same address. */
  duplicate: number;
};

type JudgedRow = {
  candidates: number;
  audience: number;
  unsubscribed: number;
  suppressed: number;
  no_address: number;
};

/**
 * SQL for everybody whom the campaign is meant for, each once, and why not where it is not for them after all: the
 * union of its sets without the excluded ones. Suppressed addresses that were erased are known by a hash alone, and
 * are found when their turn comes. `columns` are further ones of the contacts `c`.
 */
export function judgedCandidates(
  channel: Pick<CampaignChannel, 'addressColumns'>,
  columns: readonly string[] = [],
): string {
  const { key } = channel.addressColumns;
  return `campaign as (
      select list_ids || tag_ids || segment_ids as included,
        exclude_list_ids || exclude_tag_ids || exclude_segment_ids as excluded, channel
      from campaigns
      where organization_id = $1 and id = $2
    ), candidates as (
      select distinct contact_id
      from memberships
      where organization_id = $1 and set_id = any ((select included from campaign)::uuid[])
    ), judged as (
      select c.id,
        case
          when c.${key} is null then 'no_address'
          when (select channel from campaign) = any (c.unsubscribed_channels) then 'unsubscribed'
          when s.address is not null then 'suppressed'
        end as exclusion${columns.map((column) => `, ${column}`).join('')}
      from candidates
      join contacts c on c.organization_id = $1 and c.id = candidates.contact_id
      left join (
        select distinct address
        from suppressions
        where organization_id = $1 and channel = (select channel from campaign) and address is not null
      ) s on s.address = c.${key}
      where not exists (
        select
        from memberships x
        where x.organization_id = $1
          and x.set_id = any ((select excluded from campaign)::uuid[])
          and x.contact_id = c.id
      )
    )`;
}

const countJudged = `count(*) as candidates,
  count(*) filter (where exclusion is null) as audience,
  count(*) filter (where exclusion = 'unsubscribed') as unsubscribed,
  count(*) filter (where exclusion = 'suppressed') as suppressed,
  count(*) filter (where exclusion = 'no_address') as no_address`;

/** Writes down, in one statement, whom the campaign goes to, and counts whom it does not go to. */
export async function freezeAudience(
  connection: Connection,
  campaign: CampaignKey,
  channel: Pick<CampaignChannel, 'addressColumns'>,
  sliceSize: number,
): Promise<FrozenAudience> {
  const [row] = await connection.rows(
    unpreparedStatement<JudgedRow>(
      `with ${judgedCandidates(channel)}, frozen as (
         insert into campaign_slices (organization_id, campaign_id, number, contact_ids)
         select $1, $2, number, array_agg(id order by id)
         from (
           select id, (row_number() over (order by id) - 1) / $3::integer as number
           from judged
           where exclusion is null
         ) numbered
         group by number
       )
       select ${countJudged} from judged`,
    ),
    [campaign.organizationId, campaign.id, sliceSize],
  );
  return toFrozenAudience(row);
}

/** The same without writing anything down. */
export async function countAudience(
  connection: Connection,
  campaign: CampaignKey,
  channel: Pick<CampaignChannel, 'addressColumns'>,
): Promise<FrozenAudience> {
  const [row] = await connection.rows(
    unpreparedStatement<JudgedRow>(`with ${judgedCandidates(channel)} select ${countJudged} from judged`),
    [campaign.organizationId, campaign.id],
  );
  return toFrozenAudience(row);
}

function toFrozenAudience(row: JudgedRow | undefined): FrozenAudience {
  if (row === undefined) throw new Error('a count returned no row');
  const { candidates, audience, unsubscribed, suppressed, no_address: noAddress } = row;
  return { candidates, audience, unsubscribed, suppressed, noAddress, duplicate: 0 };
}

/** A million contacts are sorted in memory, if it is there, and no request waits for them. */
export async function allowForLargeAudience(
  connection: Connection,
  statementTimeoutMs: number,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `select set_config('work_mem', '128MB', true), set_config('statement_timeout', $1, true)`,
    ),
    [`${statementTimeoutMs}`],
  );
}

export async function markFrozen(
  connection: Connection,
  campaign: CampaignKey,
  frozen: FrozenAudience & { contentBytes: number },
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set frozen_at = $3, candidates = $4, audience = $5, excluded_unsubscribed = $6, excluded_suppressed = $7,
         excluded_no_address = $8, excluded_duplicate = $9, content_bytes = $10
       where organization_id = $1 and id = $2`,
    ),
    [
      campaign.organizationId,
      campaign.id,
      at,
      frozen.candidates,
      frozen.audience,
      frozen.unsubscribed,
      frozen.suppressed,
      frozen.noAddress,
      frozen.duplicate,
      frozen.contentBytes,
    ],
  );
}

/** Takes slices of the frozen audience, in their order: their contacts get rows of their own. */
export async function takeSlices(
  connection: Connection,
  campaign: CampaignKey,
  slices: { first: number; count: number },
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ number: number; contact_ids: string[] }>(
      `with taken as (
         delete from campaign_slices
         where organization_id = $1 and campaign_id = $2 and number >= $3 and number < $3 + $4::integer
         returning number, contact_ids
       )
       select number, contact_ids from taken order by number`,
    ),
    [campaign.organizationId, campaign.id, slices.first, slices.count],
  );
  return rows.flatMap((row) => row.contact_ids);
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

export async function markStarted(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set status = 'sending', started_at = coalesce(started_at, $3), updated_at = $3
       where organization_id = $1 and id = $2`,
    ),
    [campaign.organizationId, campaign.id, at],
  );
}

export async function markSent(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set status = 'sent', completed_at = $3, updated_at = $3
       where organization_id = $1 and id = $2`,
    ),
    [campaign.organizationId, campaign.id, at],
  );
}

export async function markFailed(
  connection: Connection,
  campaign: CampaignKey,
  reason: string,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set status = 'failed', failure_reason = $3, pause_reason = null, completed_at = $4, updated_at = $4
       where organization_id = $1 and id = $2`,
    ),
    [campaign.organizationId, campaign.id, reason, at],
  );
}

export async function markPaused(
  connection: Connection,
  campaign: CampaignKey,
  reason: 'sending_suspended' | 'quota_exceeded' | 'schedule_missed',
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set status = 'paused', pause_reason = $3, updated_at = $4
       where organization_id = $1 and id = $2`,
    ),
    [campaign.organizationId, campaign.id, reason, at],
  );
}

/** Back to where it was: what was begun goes on. */
export async function markResumed(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set status = case when started_at is null then 'queued' else 'sending' end, pause_reason = null,
         updated_at = $3
       where organization_id = $1 and id = $2`,
    ),
    [campaign.organizationId, campaign.id, at],
  );
}
