import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import { type CampaignEvents, type EventType, progressType } from './event-types.ts';

/** The end of an organization's log. */
export type LogEnd = { position: number; id: string | null };

/** Of a row of the outbox, and of one of the log, which may be a piece of it. */
export type LoggedRow = {
  type: EventType;
  happened_at: Date;
  of_campaign: boolean;
  subject_ids: readonly string[];
  ordinals: readonly number[] | null;
  facts: readonly (object | null)[] | null;
};

export type OutboxRow = LoggedRow & { number: number };

export type EventRow = LoggedRow & { position: number; id: string; events: number };

const selectWaiting = statement<{ organization_id: string }>(
  'webhook_outbox_find_organizations',
  // The outbox has nothing that is to be done later.
  organizationsDue({ table: 'webhook_outbox', due: '$1::timestamptz is not null' }),
);

/** Organizations of which something waits to be numbered, after the one given. */
export async function findUnnumbered(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(selectWaiting, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/** Locks the end of the log, which is made where there is none yet. */
export async function lockEnd(connection: Connection, organizationId: string): Promise<LogEnd> {
  await connection.rows(
    unpreparedStatement('insert into webhook_positions (organization_id) values ($1) on conflict do nothing'),
    [organizationId],
  );
  const [row] = await connection.rows(
    unpreparedStatement<{ last_position: number; last_id: string | null }>(
      'select last_position, last_id from webhook_positions where organization_id = $1 for no key update',
    ),
    [organizationId],
  );
  if (row === undefined) throw new Error('the end of the log was just made');
  return { position: row.last_position, id: row.last_id };
}

/** Takes so many rows, the oldest, in the order in which they were stored: those before which there are fewer events. */
export async function takeUnnumbered(
  connection: Connection,
  organizationId: string,
  { rowsMax, eventsMax }: { rowsMax: number; eventsMax: number },
): Promise<OutboxRow[]> {
  const rows = await connection.rows(
    statement<OutboxRow>(
      'webhook_outbox_take',
      `with oldest as (
         select number, coalesce(cardinality(ordinals), cardinality(subject_ids)) as events
         from webhook_outbox
         where organization_id = $1
         order by number
         limit $2
       ), taken as (
         delete from webhook_outbox o
         where o.organization_id = $1 and o.number in (
           select number
           from (select number, sum(events) over (order by number) - events as events_before from oldest) counted
           where events_before < $3
         )
         returning o.number, o.type, o.happened_at, o.of_campaign, o.subject_ids, o.ordinals, o.facts
       )
       select * from taken order by number`,
    ),
    [organizationId, rowsMax, eventsMax],
  );
  return rows;
}

/** With which event a day begins: none of the day has a lower id. */
export type LogDay = { firstPosition: number; firstId: string };

/**
 * Adds rows to the end of the log, which must be locked. `day`: where a new one begins with them. `hasAlerts`: whether there
 * is something that alerts want and have not read.
 */
export async function appendEvents(
  connection: Connection,
  organizationId: string,
  { rows, day, end }: { rows: readonly EventRow[]; day: LogDay | null; end: LogEnd },
): Promise<{ hasAlerts: boolean }> {
  const [[row]] = await Promise.all([
    connection.rows(
      unpreparedStatement<{ has_alerts: boolean }>(
        `update webhook_positions
         set last_position = $2, last_id = $3,
           is_untold = is_untold or exists (select from webhook_cursors where organization_id = $1),
           has_alerts = has_alerts or exists (
             select
             from webhook_interests i
             where i.organization_id = $1 and i.reader = 'alerts' and not i.of_campaigns
               and i.type_pattern = any ($4::text[])
           )
         where organization_id = $1
         returning has_alerts`,
      ),
      [organizationId, end.position, end.id, [...new Set(rows.map(({ type }) => type))]],
    ),
    connection.rows(
      statement(
        'webhook_events_append',
        `insert into webhook_events
           (organization_id, position, id, events, type, happened_at, of_campaign, subject_ids, ordinals, facts)
         select $1, position, id, events, type, happened_at, of_campaign, subject_ids::uuid[], ordinals::integer[], facts
         from unnest(
           $2::bigint[], $3::uuid[], $4::integer[], $5::text[], $6::timestamptz[], $7::boolean[], $8::text[], $9::text[],
           $10::json[]
         ) as given (position, id, events, type, happened_at, of_campaign, subject_ids, ordinals, facts)`,
      ),
      [
        organizationId,
        rows.map(({ position }) => position),
        rows.map(({ id }) => id),
        rows.map(({ events }) => events),
        rows.map(({ type }) => type),
        rows.map((row) => row.happened_at),
        rows.map((row) => row.of_campaign),
        rows.map((row) => `{${row.subject_ids.join(',')}}`),
        rows.map(({ ordinals }) => ordinals && `{${ordinals.join(',')}}`),
        rows.map(({ facts }) => facts && JSON.stringify(facts)),
      ],
    ),
    ...(day === null
      ? []
      : [
          connection.rows(
            unpreparedStatement(
              'insert into webhook_event_days (organization_id, first_position, first_id) values ($1, $2, $3)',
            ),
            [organizationId, day.firstPosition, day.firstId],
          ),
        ]),
  ]);
  return { hasAlerts: row?.has_alerts === true };
}

/** A part of the log: from a position on, what is of these types. */
export type LogRange = {
  organizationId: string;
  from: number;
  /** The last that is looked at. */
  to: number;
  /** Null for all types. */
  types: readonly EventType[] | null;
  /** What of campaigns' recipients is wanted; null for whatever there is. */
  campaignEvents: CampaignEvents | null;
  /** No more rows are read than hold so many. */
  eventsMax: number;
};

/** The end of the log, and the position of the oldest event that is kept; null if there is none. */
export type LogExtent = { last: number; oldest: number | null };

export async function findExtent(connection: Connection, organizationId: string): Promise<LogExtent> {
  const [row] = await connection.rows(
    statement<{ last: number; oldest: number | null }>(
      'webhook_positions_find_extent',
      `select coalesce((select last_position from webhook_positions where organization_id = $1), 0) as last,
         (select min(first_position) from webhook_event_days where organization_id = $1) as oldest`,
    ),
    [organizationId],
  );
  return row ?? { last: 0, oldest: null };
}

/** A row that begins so many positions before another may reach it. */
export const eventsOfRowMax = 500;

/**
 * Rows with events of the range, in the order of their positions. Where few types are wanted, each is looked for by the index
 * on types. A row may have hundreds of events: those behind what is wanted stay in the database.
 */
export async function readRows(
  connection: Connection,
  { organizationId, from, to, types, campaignEvents, eventsMax }: LogRange,
): Promise<EventRow[]> {
  const columns = 'position, id, events, type, happened_at, of_campaign, subject_ids, ordinals, facts';
  // The first and the last id leave out the days before and after.
  const isWithin = toPredicate(
    `position > $2::bigint - ${eventsOfRowMax} and position + events > $2 and position <= $3
       and (not of_campaign or $4::text is null or $4 = case type when '${progressType}' then 'summary' else 'all' end)
       and id >= coalesce(
         (select first_id
          from webhook_event_days
          where organization_id = $1 and first_position <= $2
          order by first_position desc
          limit 1),
         '00000000-0000-0000-0000-000000000000'
       )
       and id <= (select last_id from webhook_positions where organization_id = $1)`,
  );
  const ofAll = `select ${columns} from webhook_events where organization_id = $1 and ${isWithin} order by position limit $5`;
  const ofEach = `select of_type.*
       from unnest($6::text[]) as wanted (type)
       cross join lateral (
         select ${columns}
         from webhook_events e
         where organization_id = $1 and ${isWithin} and e.type = wanted.type
         order by position
         limit $5
       ) of_type
       order by of_type.position
       limit $5`;
  return connection.rows(
    statement<EventRow>(
      types === null ? 'webhook_events_read' : 'webhook_events_read_types',
      `select ${columns}
       from (
         select *, sum(least(events, position + events - $2)) over (order by position rows unbounded preceding)
           - least(events, position + events - $2) as events_before
         from (${types === null ? ofAll : ofEach}) found
       ) counted
       where events_before < $5
       order by position`,
    ),
    [organizationId, from, to, campaignEvents, eventsMax, ...(types === null ? [] : [types])],
  );
}

/** What is older is dropped by days; what says where they began goes with them. */
export async function forgetDays(connection: Connection, beforeId: string): Promise<void> {
  await connection.rows(unpreparedStatement('delete from webhook_event_days where first_id < $1'), [
    beforeId,
  ]);
}
