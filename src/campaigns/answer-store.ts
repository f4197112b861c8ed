import type { SetKind } from '../audience/audience.ts';
import type { Values } from '../channels/placeholders.ts';
import { devicesMax, reachableDevices } from '../devices/devices.ts';
import { type ContactVariables, keyOfContact, loadContactValues } from '../messages/messages.ts';
import { cursorOf, type Page } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import type { CampaignChannel } from './channel.ts';
import { type CampaignKey, judgedCandidates, type Meant, valuesOfMeant } from './engine-store.ts';

type Reaching = Pick<CampaignChannel, 'reach'>;

/**
 * SQL for the last slice that begins at a contact or before it, or the first slice if all begin after it. Slices are in
 * the order of the contacts' ids. Binary search takes ten steps for a thousand slices, each a row by the primary key; a
 * scan would read 16 kB of each slice.
 */
const nearestSlice = `with recursive halving as (
    select min(number) as low, max(number) as high
    from campaign_slices
    where organization_id = $1 and campaign_id = $2
    union all
    select
      case when s.contact_ids[1] <= $3 then s.number else low end,
      case when s.contact_ids[1] <= $3 then high else s.number - 1 end
    from halving
    join campaign_slices s
      on s.organization_id = $1 and s.campaign_id = $2 and s.number = (low + high + 1) / 2
    where low < high
  ), nearest as (
    select low as number from halving where low = high
  )`;

/** `device_ids` are those of a contact that is reached on its devices. */
export type WaitingRow = { contact_id: string; address: string | null; device_ids: string[] | null };

/** Slices that a page may lie in besides the one in which it begins, and the last one, which may be short. */
function furtherSlices({ reach }: Reaching, { limit }: Page, sliceSize: number): number {
  return Math.ceil(((limit + 1) * (reach.kind === 'devices' ? devicesMax : 1)) / sliceSize);
}

/** Contacts of the frozen audience that have no row as recipients yet, up to one more than the page holds. */
export async function listWaiting(
  connection: Connection,
  channel: Reaching,
  campaign: CampaignKey,
  { page, sliceSize }: { page: Page; sliceSize: number },
): Promise<WaitingRow[]> {
  const isAscending = page.before !== null;
  const order = isAscending ? 'asc' : 'desc';
  const { reach } = channel;
  const [members, columns, address] =
    reach.kind === 'devices'
      ? [
          'unnest(s.contact_ids, s.device_ids) as member (id, device_id)',
          'array_agg(member.device_id order by member.device_id)',
          'null',
        ]
      : ['unnest(s.contact_ids) as member (id)', 'null::uuid[]', `c.${reach.columns.address}`];
  return connection.rows(
    unpreparedStatement<WaitingRow>(
      `${nearestSlice}, page as (
         select member.id, ${columns} as device_ids
         from nearest
         join campaign_slices s
           on s.organization_id = $1 and s.campaign_id = $2
           and s.number between nearest.number - ${isAscending ? '0' : '$5::integer'}
             and nearest.number + ${isAscending ? '$5::integer' : '0'}
         cross join lateral ${members}
         where member.id ${isAscending ? '>' : '<'} $3
         group by member.id
         order by member.id ${order}
         limit $4
       )
       select page.id as contact_id, ${address} as address, page.device_ids
       from page
       left join contacts c on c.organization_id = $1 and c.id = page.id
       order by page.id ${order}`,
    ),
    [
      campaign.organizationId,
      campaign.id,
      cursorOf(page) ?? lastUuid,
      page.limit + 1,
      furtherSlices(channel, page, sliceSize),
    ],
  );
}

const lastUuid = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

/** The ordinal that a waiting contact will get, its first of several; null if the contact is not waiting for a row. */
export async function findWaitingOrdinal(
  connection: Connection,
  campaign: CampaignKey,
  contact: { id: string; sliceSize: number },
): Promise<number | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ ordinal: number | null }>(
      `${nearestSlice}
       select s.number * $4::integer + array_position(s.contact_ids, $3) - 1 as ordinal
       from nearest
       join campaign_slices s
         on s.organization_id = $1 and s.campaign_id = $2 and s.number = nearest.number`,
    ),
    [campaign.organizationId, campaign.id, contact.id, contact.sliceSize],
  );
  return row?.ordinal ?? null;
}

export type StandingSet = { id: string; kind: SetKind; name: string };

/** The contact's present relation to a campaign. */
export type StandingRow = {
  address: string | null;
  address_key: string | null;
  is_unsubscribed: boolean;
  created_at: Date;
  /** Those of the campaign's sets that the contact is in. */
  sets: StandingSet[];
};

/** SQL: the contact `c` can be reached. */
function isReachable(reach: Reaching['reach']): Predicate {
  return reach.kind === 'devices'
    ? toPredicate(`exists (${reachableDevices({ organizationId: 'c.organization_id', id: 'c.id' })})`)
    : toPredicate(`${keyOfContact(reach)} is not null`);
}

/** Null if the contact does not exist. */
export async function findStanding(
  connection: Connection,
  { reach, messages }: Pick<CampaignChannel, 'reach' | 'messages'>,
  contact: { organizationId: string; id: string },
  setIds: readonly string[],
): Promise<StandingRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<StandingRow>(
      `select ${reach.kind === 'devices' ? 'null' : `c.${reach.columns.address}`} as address,
         case when ${isReachable(reach)} then ${keyOfContact(reach)} end as address_key,
         $4 = any (c.unsubscribed_channels) as is_unsubscribed, c.created_at,
         (
           select coalesce(json_agg(json_build_object('id', s.id, 'kind', s.kind, 'name', s.name) order by s.id), '[]')
           from memberships m
           join contact_sets s on s.organization_id = m.organization_id and s.id = m.set_id
           where m.organization_id = c.organization_id and m.contact_id = c.id and m.set_id = any ($3::uuid[])
             and s.deleted_at is null
         ) as sets
       from contacts c
       where c.organization_id = $1 and c.id = $2`,
    ),
    [contact.organizationId, contact.id, setIds, messages.name],
  );
  return row ?? null;
}

/**
 * How many contacts would get the campaign, and for each variable, by name, how many of them have no value for it. One
 * statement that reads all of them.
 */
export async function countWithoutValue(
  connection: Connection,
  meant: Meant,
  variables: ContactVariables,
): Promise<{ contacts: number; missing: Map<string, number> }> {
  const values = valuesOfMeant(meant);
  const contacts = meant.channel.reach.kind === 'devices' ? 'count(distinct id)' : 'count(*)';
  const tests = [
    ...variables.fields.map((field) => ({ name: field, isMissing: `c.${field} is null` })),
    ...variables.properties.map(({ key, number }) => ({
      name: key,
      isMissing: `c.properties -> $${values.push(`${number}`)}::text is null`,
    })),
  ];
  const columns = tests.map(({ isMissing }, index) => `${isMissing} as missing_${index}`);
  const counts = [contacts, ...tests.map((_test, index) => `${contacts} filter (where missing_${index})`)];
  const [row] = await connection.rows(
    unpreparedStatement<{ counts: number[] }>(
      `with ${judgedCandidates(meant, { columns })}
       select array[${counts.join(', ')}]::integer[] as counts
       from judged
       where exclusion is null`,
    ),
    values,
  );
  const [all = 0, ...missing] = row?.counts ?? [];
  return { contacts: all, missing: new Map(tests.map(({ name }, index) => [name, missing[index] ?? 0])) };
}

/** How many addresses of the audience begin with a text. */
export async function countBeginningWith(
  connection: Connection,
  meant: Meant,
  text: string,
): Promise<number> {
  const values = [...valuesOfMeant(meant), text];
  const isMeant = `starts_with(${keyOfContact(meant.channel.reach)}, $${values.length}) as is_meant`;
  const [row] = await connection.rows(
    unpreparedStatement<{ contacts: number }>(
      `with ${judgedCandidates(meant, { columns: [isMeant] })}
       select count(*) filter (where exclusion is null and is_meant) as contacts from judged`,
    ),
    values,
  );
  return row?.contacts ?? 0;
}

/**
 * The first contact that would get the campaign. Suppressions are not checked, since nothing is sent to the contact.
 * The memberships of each set are read until a contact fits.
 */
export async function findSampleContact(
  connection: Connection,
  campaign: CampaignKey,
  { reach, messages }: Pick<CampaignChannel, 'reach' | 'messages'>,
): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ id: string }>(
      `select first.id
       from campaigns g
       cross join lateral unnest(g.list_ids || g.tag_ids || g.segment_ids) as included (set_id)
       cross join lateral (
         select c.id
         from memberships m
         join contacts c on c.organization_id = $1 and c.id = m.contact_id
         where m.organization_id = $1 and m.set_id = included.set_id
           and ${isReachable(reach)}
           and not $3 = any (c.unsubscribed_channels)
           and not exists (
             select
             from memberships x
             where x.organization_id = $1 and x.contact_id = m.contact_id
               and x.set_id = any (g.exclude_list_ids || g.exclude_tag_ids || g.exclude_segment_ids)
           )
         order by m.contact_id
         limit 1
       ) first
       where g.organization_id = $1 and g.id = $2
       order by first.id
       limit 1`,
    ),
    [campaign.organizationId, campaign.id, messages.name],
  );
  return row?.id ?? null;
}

/** Null if the contact does not exist. */
export async function findContactValues(
  connection: Connection,
  contact: { organizationId: string; id: string },
  variables: ContactVariables,
): Promise<Values | null> {
  const rows = await connection.rows(
    unpreparedStatement('select from contacts where organization_id = $1 and id = $2'),
    [contact.organizationId, contact.id],
  );
  return rows.length === 0 ? null : loadContactValues(connection, contact, variables);
}

/** Sets a savepoint to return to if the next statement takes too long. */
export async function savePoint(connection: Connection): Promise<void> {
  await connection.rows(unpreparedStatement('savepoint counted'));
}

export async function returnToSavePoint(connection: Connection): Promise<void> {
  await connection.rows(unpreparedStatement('rollback to savepoint counted'));
}
