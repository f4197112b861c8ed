import { toSearchKey } from '../platform/characters.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { type AudienceIds, audienceFields } from './audience-fields.ts';
import type { CampaignContent } from './channel.ts';
import type { CampaignStatus, PauseReason } from './states.ts';

export type CampaignKey = { organizationId: string; channel: SendingChannel; id: string };

/** As it is stored; `content` has no bodies where it was read for a list. */
export type CampaignRow = AudienceIds & {
  organization_id: string;
  channel: SendingChannel;
  id: string;
  name: string;
  status: CampaignStatus;
  content: CampaignContent;
  scheduled_at: Date | null;
  queued_at: Date | null;
  started_at: Date | null;
  completed_at: Date | null;
  cancelled_at: Date | null;
  pause_reason: PauseReason | null;
  failure_reason: string | null;
  message_id: string | null;
  frozen_at: Date | null;
  /** The audience is frozen up to this contact; null if all of it is. */
  frozen_through: string | null;
  /** Contacts up to this one were frozen at `frozen_at`, the others later; null if all were frozen at once. */
  first_frozen_through: string | null;
  rest_frozen_at: Date | null;
  /** How many of its audience have a row as recipients. */
  expanded: number;
  audience: number | null;
  excluded_unsubscribed: number | null;
  excluded_suppressed: number | null;
  excluded_no_address: number | null;
  excluded_duplicate: number | null;
  created_at: Date;
  updated_at: Date;
};

const audienceColumns = audienceFields.join(', ');

/** Bodies are stored apart from the row, and are read only if a statement names them. */
const listedColumns = `organization_id, channel, id, name, status, content, ${audienceColumns},
  scheduled_at, queued_at, started_at, completed_at, cancelled_at, pause_reason, failure_reason,
  message_id, frozen_at, frozen_through, first_frozen_through, rest_frozen_at, expanded, audience,
  excluded_unsubscribed, excluded_suppressed, excluded_no_address, excluded_duplicate, created_at, updated_at`;

/** A row that was read with its bodies. */
type WholeRow = CampaignRow & { bodies: CampaignContent };

const wholeColumns = `${listedColumns}, bodies`;

function withBodies(row: WholeRow | undefined): CampaignRow | null {
  if (row === undefined) return null;
  const { bodies, ...rest } = row;
  return { ...rest, content: { ...rest.content, ...bodies } };
}

/** The inputs of a client. `bodyFields` are the fields of the content that lists leave out. */
type CampaignValues = {
  name: string;
  content: CampaignContent;
  bodyFields: readonly string[];
  audience: AudienceIds;
};

export async function insertCampaign(
  connection: Connection,
  campaign: CampaignKey & CampaignValues & { at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into campaigns
         (organization_id, channel, id, created_at, updated_at, name, name_key, content, bodies,
         ${audienceColumns})
       values ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
    ),
    parametersOf(campaign),
  );
}

/** The row must be locked. */
export async function updateCampaign(
  connection: Connection,
  campaign: CampaignKey & CampaignValues & { at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set updated_at = $4, name = $5, name_key = $6, content = $7, bodies = $8,
         (${audienceColumns}) = row($9::uuid[], $10::uuid[], $11::uuid[], $12::uuid[], $13::uuid[], $14::uuid[])
       where organization_id = $1 and channel = $2 and id = $3`,
    ),
    parametersOf(campaign),
  );
}

function parametersOf(campaign: CampaignKey & CampaignValues & { at: Date }): unknown[] {
  return [
    ...keyOf(campaign),
    campaign.at,
    campaign.name,
    toSearchKey(campaign.name),
    pickFields(campaign.content, (field) => !campaign.bodyFields.includes(field)),
    pickFields(campaign.content, (field) => campaign.bodyFields.includes(field)),
    ...audienceFields.map((field) => campaign.audience[field]),
  ];
}

function pickFields(content: CampaignContent, isWanted: (field: string) => boolean): string {
  return JSON.stringify(Object.fromEntries(Object.entries(content).filter(([field]) => isWanted(field))));
}

function keyOf({ organizationId, channel, id }: CampaignKey): unknown[] {
  return [organizationId, channel, id];
}

export async function findCampaign(
  connection: Connection,
  campaign: CampaignKey,
): Promise<CampaignRow | null> {
  return select(connection, campaign, '');
}

/** For uses that do not need the bodies. */
export async function findCampaignWithoutBodies(
  connection: Connection,
  campaign: CampaignKey,
): Promise<CampaignRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<CampaignRow>(
      `select ${listedColumns}
       from campaigns
       where organization_id = $1 and channel = $2 and id = $3 and deleted_at is null`,
    ),
    keyOf(campaign),
  );
  return row ?? null;
}

/** The same of several, on any channel. */
export async function findCampaigns(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<CampaignRow[]> {
  return connection.rows(
    unpreparedStatement<CampaignRow>(
      `select ${listedColumns}
       from campaigns
       where organization_id = $1 and id = any ($2::uuid[]) and deleted_at is null`,
    ),
    [organizationId, ids],
  );
}

/**
 * Locks the campaign's row. Every move takes this lock, so that the second of two concurrent moves sees the result of
 * the first.
 */
export async function lockCampaign(
  connection: Connection,
  campaign: CampaignKey,
): Promise<CampaignRow | null> {
  return select(connection, campaign, 'for update');
}

async function select(
  connection: Connection,
  campaign: CampaignKey,
  locking: '' | 'for update',
): Promise<CampaignRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<WholeRow>(
      `select ${wholeColumns}
       from campaigns
       where organization_id = $1 and channel = $2 and id = $3 and deleted_at is null
       ${locking}`,
    ),
    keyOf(campaign),
  );
  return withBodies(row);
}

/** Locks a campaign whose time has come. Null if it is no longer waiting, or another node has it. */
export async function lockDueCampaign(
  connection: Connection,
  campaign: { organizationId: string; id: string },
  at: Date,
): Promise<CampaignRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<WholeRow>(
      `select ${wholeColumns}
       from campaigns
       where organization_id = $1 and id = $2 and status = 'scheduled' and scheduled_at <= $3
         and deleted_at is null
       for update skip locked`,
    ),
    [campaign.organizationId, campaign.id, at],
  );
  return withBodies(row);
}

export type CampaignFilter = { search?: string; status?: CampaignStatus };

/**
 * Returns one row more than the page holds, without bodies, by the index campaigns_channel or campaigns_status.
 * `search` matches anywhere in the name, without an index: organizations have hundreds of campaigns, not millions.
 */
export async function listCampaigns(
  connection: Connection,
  wanted: {
    organizationId: string;
    channel: SendingChannel;
    filter: CampaignFilter;
    page: Page;
  },
): Promise<CampaignRow[]> {
  const { organizationId, channel, filter, page } = wanted;
  return connection.rows(
    unpreparedStatement<CampaignRow>(
      `select ${listedColumns}
       from campaigns
       where organization_id = $1 and channel = $2 and deleted_at is null
         and ($3::text is null or status = $3)
         and ($4::text is null or strpos(name_key, $4) > 0)
         ${pageClause(page, 'id', '$5')}
       limit $6`,
    ),
    [
      organizationId,
      channel,
      filter.status ?? null,
      filter.search === undefined ? null : toSearchKey(filter.search),
      cursorOf(page),
      page.limit + 1,
    ],
  );
}

/** From now on the API does not show the campaign. Messages that were sent stay. */
export async function markDeleted(
  connection: Connection,
  campaign: CampaignKey & { at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update campaigns
       set deleted_at = $4, updated_at = $4
       where organization_id = $1 and channel = $2 and id = $3`,
    ),
    [...keyOf(campaign), campaign.at],
  );
}

/** Deletes the part of its audience that has no rows as recipients, and will get none. */
export async function deleteSlices(connection: Connection, campaign: CampaignKey): Promise<void> {
  await connection.rows(
    unpreparedStatement('delete from campaign_slices where organization_id = $1 and campaign_id = $2'),
    [campaign.organizationId, campaign.id],
  );
}
