import { createHash } from 'node:crypto';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { dueInTurns } from '../platform/queue/turns.ts';
import type { Worth } from './conversion.ts';

/** An event that converts. `id` is that of the event. */
export type ConvertedEvent = Worth & {
  organizationId: string;
  id: string;
  definitionNumber: number;
  occurredAt: Date;
};

export type PendingConversion = ConvertedEvent & { contactId: string };

const insertPending = statement(
  'conversions_insert_pending',
  `insert into pending_conversions
     (organization_id, id, contact_id, definition_number, occurred_at, value, currency, due_at)
   select *
   from unnest(
     $1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::timestamptz[], $6::numeric[], $7::text[], $8::timestamptz[]
   )`,
);

/** To be called in the transaction that stores their events. */
export async function insertPendingConversions(
  transaction: Connection,
  conversions: readonly PendingConversion[],
  dueAt: Date,
): Promise<void> {
  if (conversions.length === 0) return;
  await transaction.rows(insertPending, [
    conversions.map(({ organizationId }) => organizationId),
    conversions.map(({ id }) => id),
    conversions.map(({ contactId }) => contactId),
    conversions.map(({ definitionNumber }) => definitionNumber),
    conversions.map(({ occurredAt }) => occurredAt),
    conversions.map(({ value }) => value),
    conversions.map(({ currency }) => currency),
    conversions.map(() => dueAt),
  ]);
}

/** Other nodes take others at the same time. */
const takeDue = statement<PendingConversion>(
  'conversions_take_due',
  `with recursive ${dueInTurns({
    table: 'pending_conversions',
    of: 'organization_id',
    columns: ['organization_id', 'id'],
    order: ['due_at', 'id'],
    due: 'due_at <= $1',
    limit: '$2',
  })}, taken as (
     delete from pending_conversions p
     using due
     where ${hasKeyOf('p', 'due', ['id'])}
     returning p.*
   )
   select organization_id as "organizationId", id, contact_id as "contactId",
     definition_number as "definitionNumber", occurred_at as "occurredAt", value::text, currency
   from taken
   order by id`,
);

/**
 * Takes conversions that are due, in turns of organizations, by the index pending_conversions_turns. The transaction must
 * credit them or put them back.
 */
export async function takeDueConversions(
  transaction: Connection,
  at: Date,
  conversionsMax: number,
): Promise<PendingConversion[]> {
  return transaction.rows(takeDue, [at, conversionsMax]);
}

const selectNext = statement<{ due_at: Date }>(
  'conversions_next_due',
  `select due_at from pending_conversions where ${isNotDeleted('organization_id')} order by due_at limit 1`,
);

export async function findNextConversionAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(selectNext);
  return row?.due_at ?? null;
}

/**
 * Makes conversions due that were put off while the clock was ahead, and returns one row for each. By the index
 * pending_conversions_due.
 */
export async function bringConversionsForward(
  connection: Connection,
  { at, dueLatest }: { at: Date; dueLatest: Date },
  limit: number,
): Promise<readonly unknown[]> {
  return connection.rows(
    unpreparedStatement(
      `with ahead as (
         select organization_id, id
         from pending_conversions
         where due_at > $2
         limit $3
         for update skip locked
       )
       update pending_conversions p
       set due_at = $1
       from ahead
       where ${hasKeyOf('p', 'ahead', ['id'])}
       returning true as is_forward`,
    ),
    [at, dueLatest, limit],
  );
}

/** The message that a conversion is credited to; all null for none. */
export type Credit = { messageId: string | null; campaignId: string | null; category: string | null };

/** The group of conversions that have no campaign, message or category. */
export const groupOfNone = '00000000-0000-0000-0000-000000000000';

/**
 * Rows of sums are locked in their order, so that two nodes cannot deadlock. A sum is added to by the transaction that
 * stores what it is of, and not counted again: a campaign may have a million conversions.
 */
const creditAll = statement(
  'conversions_credit',
  `with credited as (
     select *
     from unnest(
       $1::uuid[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::numeric[], $6::text[], $7::uuid[], $8::uuid[],
       $9::text[], $10::uuid[]
     ) as credited (
       organization_id, id, definition_number, occurred_at, value, currency, message_id, campaign_id, category,
       category_id
     )
   ), stored as (
     insert into conversions
       (organization_id, id, definition_number, occurred_at, value, currency, message_id, campaign_id, category)
     select organization_id, id, definition_number, occurred_at, value, currency, message_id, campaign_id, category
     from credited
   )
   insert into conversion_sums as s
     (organization_id, definition_number, grouped_by, group_id, currency, category, conversions, value)
   select organization_id, definition_number, grouped_by, coalesce(group_id, $11), coalesce(currency, ''),
     grouped.category, count(*), sum(value)
   from credited
   cross join lateral (
     values ('campaign_id', campaign_id, null), ('message_id', message_id, null),
       ('category', category_id, credited.category)
   ) as grouped (grouped_by, group_id, category)
   group by 1, 2, 3, 4, 5, 6
   order by 1, 2, 3, 4, 5
   on conflict (organization_id, definition_number, grouped_by, group_id, currency) do update
   set conversions = s.conversions + excluded.conversions,
     value = coalesce(s.value + excluded.value, s.value, excluded.value)`,
);

/** To be called in the transaction that took these conversions. */
export async function creditConversions(
  transaction: Connection,
  credited: readonly (ConvertedEvent & Credit)[],
): Promise<void> {
  if (credited.length === 0) return;
  await transaction.rows(creditAll, [
    credited.map(({ organizationId }) => organizationId),
    credited.map(({ id }) => id),
    credited.map(({ definitionNumber }) => definitionNumber),
    credited.map(({ occurredAt }) => occurredAt),
    credited.map(({ value }) => value),
    credited.map(({ currency }) => currency),
    credited.map(({ messageId }) => messageId),
    credited.map(({ campaignId }) => campaignId),
    credited.map(({ category }) => category),
    credited.map(({ category }) => (category === null ? null : idOfCategory(category))),
    groupOfNone,
  ]);
}

export type ToldConversion = {
  id: string;
  /** Of the event; null if nobody knows any more. */
  name: string | null;
  value: number | null;
  currency: string | null;
  message_id: string | null;
  campaign_id: string | null;
  category: string | null;
};

/** Those that there are, by the primary key. */
export async function findConversions(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<ToldConversion[]> {
  return connection.rows(
    unpreparedStatement<ToldConversion>(
      `select c.id, d.name, c.value::float8 as value, c.currency, c.message_id, c.campaign_id, c.category
       from conversions c
       left join event_definitions d on ${hasKeyOf('d', 'c', [['number', 'definition_number']])}
       where c.organization_id = $1 and c.id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
}

/** Below every UUIDv7: categories have no time, and all of them stand in the first partition. */
function idOfCategory(category: string): string {
  const hex = createHash('sha256').update(category).digest('hex');
  return `00000000-0000-8${hex.slice(0, 3)}-8${hex.slice(3, 6)}-${hex.slice(6, 18)}`;
}

export const groupings = ['campaign_id', 'message_id', 'category'] as const;

export type Grouping = (typeof groupings)[number];

export type CurrencySum = { currency: string | null; value: number };

export type ConversionSums = { count: number; values: CurrencySum[] };

export type ConversionGroup = ConversionSums & { id: string; category: string | null };

/** SQL: by currency, the values of sums `s`; those without a currency come first. */
const valuesByCurrency = `coalesce(
     json_agg(json_build_object('currency', nullif(s.currency, ''), 'value', s.value) order by s.currency)
       filter (where s.value is not null),
     '[]'
   )`;

/** One group more than the page holds, by the primary key; a group has a row for each currency. */
export async function listConversionGroups(
  connection: Connection,
  wanted: { organizationId: string; definitionNumber: number; groupedBy: Grouping; page: Page },
): Promise<ConversionGroup[]> {
  const { organizationId, definitionNumber, groupedBy, page } = wanted;
  return connection.rows(
    unpreparedStatement<ConversionGroup>(
      `with page as (
         select distinct group_id
         from conversion_sums
         where organization_id = $1 and definition_number = $2 and grouped_by = $3
           ${pageClause(page, 'group_id', '$4')}
         limit $5
       )
       select page.group_id as id, sums.*
       from page
       cross join lateral (
         select max(s.category) as category, sum(s.conversions) as count, ${valuesByCurrency} as values
         from conversion_sums s
         where s.organization_id = $1 and s.definition_number = $2 and s.grouped_by = $3
           and s.group_id = page.group_id
       ) sums
       order by page.group_id ${page.before === null ? 'desc' : 'asc'}`,
    ),
    [organizationId, definitionNumber, groupedBy, cursorOf(page), page.limit + 1],
  );
}

/**
 * What was credited to campaigns, whatever the event, by their ids; those without any are missing. By the index
 * conversion_sums_campaign: a row for each definition and currency.
 */
export async function sumConversionsOfCampaigns(
  connection: Connection,
  organizationId: string,
  campaignIds: readonly string[],
): Promise<Map<string, ConversionSums>> {
  if (campaignIds.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<ConversionSums & { id: string }>(
      `select s.group_id as id, sum(s.conversions) as count, ${valuesByCurrency} as values
       from (
         select group_id, currency, sum(conversions) as conversions, sum(value) as value
         from conversion_sums
         where organization_id = $1 and grouped_by = 'campaign_id' and group_id = any ($2::uuid[])
         group by group_id, currency
       ) s
       group by s.group_id`,
    ),
    [organizationId, campaignIds],
  );
  return new Map(rows.map(({ id, ...sums }) => [id, sums]));
}
