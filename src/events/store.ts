import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { lowestEventId } from './contact-events.ts';
import type { Conversion, EventSchema } from './schema.ts';

export type DefinitionRow = {
  id: string;
  number: number;
  name: string;
  description: string | null;
  schema: EventSchema;
  conversion: Conversion;
  created_at: Date;
  updated_at: Date;
};

export type DefinitionKey = { organizationId: string; id: string };

const definitionColumns = 'id, number, name, description, schema, conversion, created_at, updated_at';

/** One at a time in an organization: the limit of definitions and their numbers depend on it. */
export async function lockDefinitions(transaction: Connection, organizationId: string): Promise<void> {
  await lockName(transaction, `events of ${organizationId}`);
}

/** Whether the organization has so many definitions or more. */
export async function hasDefinitions(
  connection: Connection,
  organizationId: string,
  count: number,
): Promise<boolean> {
  if (count === 0) return true;
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from event_definitions
       where organization_id = $1 and deleted_at is null
       offset $2
       limit 1`,
    ),
    [organizationId, count - 1],
  );
  return rows.length === 1;
}

type WrittenDefinition = DefinitionKey & {
  description: string | null;
  schema: EventSchema;
  conversion: Conversion;
  at: Date;
};

/** Needs the lock of `lockDefinitions`. Throws a unique violation of event_definitions_name. */
export async function insertDefinition(
  transaction: Connection,
  definition: WrittenDefinition & { name: string },
): Promise<DefinitionRow> {
  const [row] = await transaction.rows(
    unpreparedStatement<DefinitionRow>(
      `insert into event_definitions
         (organization_id, id, number, name, description, schema, conversion, created_at, updated_at)
       select $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5, $6, $7, $7
       from event_definitions
       where organization_id = $1
       returning ${definitionColumns}`,
    ),
    [
      definition.organizationId,
      definition.id,
      definition.name,
      definition.description,
      JSON.stringify(definition.schema),
      JSON.stringify(definition.conversion),
      definition.at,
    ],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

/** It must be locked. */
export async function updateDefinition(
  transaction: Connection,
  definition: WrittenDefinition,
): Promise<DefinitionRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<DefinitionRow>(
      `update event_definitions
       set description = $3, schema = $4, conversion = $5, updated_at = $6
       where organization_id = $1 and id = $2 and deleted_at is null
       returning ${definitionColumns}`,
    ),
    [
      definition.organizationId,
      definition.id,
      definition.description,
      JSON.stringify(definition.schema),
      JSON.stringify(definition.conversion),
      definition.at,
    ],
  );
  return row ?? null;
}

export async function findDefinition(
  connection: Connection,
  definition: DefinitionKey,
): Promise<DefinitionRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DefinitionRow>(
      `select ${definitionColumns}
       from event_definitions
       where organization_id = $1 and id = $2 and deleted_at is null`,
    ),
    [definition.organizationId, definition.id],
  );
  return row ?? null;
}

/** Locks it against changes, deletion and new holds until the transaction ends. */
export async function lockDefinition(
  transaction: Connection,
  definition: DefinitionKey,
): Promise<DefinitionRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<DefinitionRow>(
      `select ${definitionColumns}
       from event_definitions
       where organization_id = $1 and id = $2 and deleted_at is null
       for update`,
    ),
    [definition.organizationId, definition.id],
  );
  return row ?? null;
}

/** One row more than the page holds, by the primary key. `search` matches anywhere in the name, ignoring case. */
export async function listDefinitions(
  connection: Connection,
  wanted: { organizationId: string; search?: string; page: Page },
): Promise<DefinitionRow[]> {
  const { organizationId, search, page } = wanted;
  return connection.rows(
    unpreparedStatement<DefinitionRow>(
      `select ${definitionColumns}
       from event_definitions
       where organization_id = $1 and deleted_at is null
         and ($2::text is null or strpos(lower(name), lower($2)) > 0)
         ${pageClause(page, 'id', '$3')}
       limit $4`,
    ),
    [organizationId, search ?? null, cursorOf(page), page.limit + 1],
  );
}

export async function markDefinitionDeleted(
  transaction: Connection,
  definition: DefinitionKey,
  at: Date,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'update event_definitions set deleted_at = $3 where organization_id = $1 and id = $2',
    ),
    [definition.organizationId, definition.id, at],
  );
}

/** What an event is checked against. */
export type SentDefinition = Pick<DefinitionRow, 'id' | 'number' | 'schema' | 'conversion'> & {
  organizationId: string;
};

/** By the index event_definitions_name. */
const selectByNames = statement<SentDefinition & { name: string }>(
  'events_select_definitions',
  `select d.organization_id as "organizationId", d.id, d.number, d.name, d.schema, d.conversion
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, name)
   join event_definitions d on ${hasKeyOf('d', 'wanted', ['name'])} and d.deleted_at is null`,
);

export type DefinitionName = { organizationId: string; name: string };

/** Finds definitions by their names: each organization's own, under `nameKey`. */
export async function findDefinitionsByName(
  connection: Connection,
  names: readonly DefinitionName[],
): Promise<Map<string, SentDefinition>> {
  const wanted = [...new Map(names.map((name) => [nameKey(name), name])).values()];
  if (wanted.length === 0) return new Map();
  const rows = await connection.rows(selectByNames, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ name }) => name),
  ]);
  return new Map(rows.map((row) => [nameKey(row), row]));
}

/** What conditions ask about. */
export type AskedDefinition = Pick<DefinitionRow, 'id' | 'number' | 'name' | 'schema'>;

/**
 * The definitions of these names, by the index event_definitions_name. If they are to be held, they are locked against
 * changes and deletion until the transaction ends, in the order of their ids, and come as they are then.
 */
export async function listDefinitionsByName(
  connection: Connection,
  { organizationId, names, isHeld }: { organizationId: string; names: readonly string[]; isHeld: boolean },
): Promise<AskedDefinition[]> {
  if (names.length === 0) return [];
  return connection.rows(
    unpreparedStatement<AskedDefinition>(
      `select id, number, name, schema
       from event_definitions
       where organization_id = $1 and name = any ($2::text[]) and deleted_at is null
       order by id
       ${isHeld ? 'for key share' : ''}`,
    ),
    [organizationId, names],
  );
}

export function nameKey({ organizationId, name }: DefinitionName): string {
  return `${organizationId} ${name}`;
}

/** What each event of the organization may bring, by its name. There are at most some hundred. */
export async function listSchemas(
  connection: Connection,
  organizationId: string,
): Promise<Map<string, EventSchema>> {
  const rows = await connection.rows(
    unpreparedStatement<{ name: string; schema: EventSchema }>(
      'select name, schema from event_definitions where organization_id = $1 and deleted_at is null',
    ),
    [organizationId],
  );
  return new Map(rows.map(({ name, schema }) => [name, schema]));
}

export type EventKey = { organizationId: string; contactId: string; id: string };

export type NewEvent = EventKey & {
  definitionNumber: number;
  occurredAt: Date;
  /** As JSON. */
  payload: string;
};

const insertMany = statement(
  'events_insert_events',
  `insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
   select *
   from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::timestamptz[], $6::jsonb[])`,
);

export async function insertEvents(transaction: Connection, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return;
  await transaction.rows(insertMany, [
    ...keyColumns(events),
    events.map(({ definitionNumber }) => definitionNumber),
    events.map(({ occurredAt }) => occurredAt),
    events.map(({ payload }) => payload),
  ]);
}

/** By the primary key. */
const selectIds = statement<{ id: string }>(
  'events_select_ids',
  `select e.id
   from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as wanted (organization_id, contact_id, id)
   join events e on ${hasKeyOf('e', 'wanted', ['contact_id', 'id'])}`,
);

/** The ids of those that are stored. */
export async function findEventIds(
  connection: Connection,
  events: readonly EventKey[],
): Promise<ReadonlySet<string>> {
  if (events.length === 0) return new Set();
  const rows = await connection.rows(selectIds, keyColumns(events));
  return new Set(rows.map(({ id }) => id));
}

function keyColumns(events: readonly EventKey[]): [string[], string[], string[]] {
  return [
    events.map(({ organizationId }) => organizationId),
    events.map(({ contactId }) => contactId),
    events.map(({ id }) => id),
  ];
}

export type OccurrenceRow = {
  id: string;
  name: string;
  payload: Readonly<Record<string, unknown>>;
  occurred_at: Date;
  /** Whether the page ends here because the next event would make it too large. */
  is_cut_off: boolean;
};

/**
 * A hundred payloads of 32 kB may have a million values, which an answer takes 150 ms to be made of, for everybody. A
 * page ends with the event that reaches so many bytes.
 */
const pageBytesMax = 524_288;

/**
 * One row more than the page holds, by the primary key, in the order of arrival; fewer where their payloads are large.
 */
export async function listEventsOfContact(
  connection: Connection,
  { organizationId, contactId }: { organizationId: string; contactId: string },
  page: Page,
): Promise<OccurrenceRow[]> {
  const order = page.before === null ? 'desc' : 'asc';
  return connection.rows(
    unpreparedStatement<OccurrenceRow>(
      `with page as materialized (
         select id, definition_number, payload, payload_bytes, occurred_at
         from events
         where organization_id = $1 and contact_id = $2
           ${pageClause(page, 'id', '$3')}
         limit $4
       ), measured as (
         select page.*, sum(payload_bytes) over (order by id ${order}) - payload_bytes as bytes_before
         from page
       )
       select e.id, d.name, e.payload, e.occurred_at, count(*) over () < (select count(*) from page) as is_cut_off
       from measured e
       join event_definitions d on d.organization_id = $1 and d.number = e.definition_number
       where e.bytes_before < $5
       order by e.id ${order}`,
    ),
    [organizationId, contactId, cursorOf(page), page.limit + 1, pageBytesMax],
  );
}

/** Deletes some events of a contact, by the primary key, and returns how many. */
export async function deleteEventsOfContact(
  transaction: Connection,
  { organizationId, contactId }: { organizationId: string; contactId: string },
  limit: number,
): Promise<number> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ count: number }>(
      `with condemned as (
         select id
         from events
         where organization_id = $1 and contact_id = $2
         order by id
         limit $3
       ), deleted as (
         delete from events e
         using condemned
         where e.organization_id = $1 and e.contact_id = $2 and e.id = condemned.id
         returning e.id
       )
       select count(*)::integer as count from deleted`,
    ),
    [organizationId, contactId, limit],
  );
  return row?.count ?? 0;
}

/** What happened before an instant. */
export type OldEvents = { organizationId: string; before: Date };

/** The numbers of all kinds of events, also of those that are not defined any more: their events are still there. */
export async function listNumbers(connection: Connection, organizationId: string): Promise<number[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ number: number }>(
      'select number from event_definitions where organization_id = $1 order by number',
    ),
    [organizationId],
  );
  return rows.map(({ number }) => number);
}

/**
 * Deletes some events of a kind, the oldest first, and returns how many. By the index events_of_definition, so that what
 * was imported goes by when it happened and not by when it came. Skips what another node deletes.
 */
export async function deleteEventsBefore(
  transaction: Connection,
  { organizationId, before, eventNumber }: OldEvents & { eventNumber: number },
  limit: number,
): Promise<number> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ count: number }>(
      `with old as (
         select contact_id, id
         from events
         where organization_id = $1 and definition_number = $2 and occurred_at < $3
         order by occurred_at
         limit $4
         for update skip locked
       ), deleted as (
         delete from events e
         using old
         where e.organization_id = $1 and e.contact_id = old.contact_id and e.id = old.id
         returning e.id
       )
       select count(*)::integer as count from deleted`,
    ),
    [organizationId, eventNumber, before, limit],
  );
  return row?.count ?? 0;
}

/** Deletes some of what is noted of parts that were imported before, and returns how many. */
export async function forgetImportsBefore(
  transaction: Connection,
  { organizationId, before }: OldEvents,
  limit: number,
): Promise<number> {
  const rows = await transaction.rows(
    unpreparedStatement<{ is_deleted: true }>(
      `with old as (
         select digest
         from event_imports
         where organization_id = $1 and imported_at < $2
         limit $3
         for update skip locked
       )
       delete from event_imports i
       using old
       where i.organization_id = $1 and i.digest = old.digest
       returning true as is_deleted`,
    ),
    [organizationId, before, limit],
  );
  return rows.length;
}

/** Events of one kind that happened after one instant and not after another, `until`. */
export type OccurrenceSpan = { organizationId: string; eventNumber: number; after: Date; until: Date };

function spanValues({ organizationId, eventNumber, after, until }: OccurrenceSpan): unknown[] {
  return [organizationId, eventNumber, after, until, lowestEventId(after)];
}

const isInSpan = toPredicate(`organization_id = $1 and definition_number = $2
         and occurred_at > $3 and occurred_at <= $4 and id >= $5`);

/** When the last of the first `limit` events of a span happened, by the index events_of_definition; null if there are fewer. */
export async function findLeavingEnd(
  connection: Connection,
  span: OccurrenceSpan,
  limit: number,
): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ occurred_at: Date }>(
      `select occurred_at
       from events
       where ${isInSpan}
       order by occurred_at
       offset $6
       limit 1`,
    ),
    [...spanValues(span), limit - 1],
  );
  return row?.occurred_at ?? null;
}

/** The contacts with such an event, in the order of their ids, by the index events_of_definition. */
export async function listContactsOf(
  connection: Connection,
  span: OccurrenceSpan,
  page: { after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ contact_id: string }>(
      `select distinct contact_id
       from events
       where ${isInSpan} and ($6::uuid is null or contact_id > $6)
       order by contact_id
       limit $7`,
    ),
    [...spanValues(span), page.after, page.limit],
  );
  return rows.map(({ contact_id }) => contact_id);
}

/** When the first event of a kind after an instant happened, by the index events_of_definition. */
export async function findNextOccurrence(
  connection: Connection,
  { organizationId, eventNumber, after }: Omit<OccurrenceSpan, 'until'>,
): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ occurred_at: Date }>(
      `select occurred_at
       from events
       where organization_id = $1 and definition_number = $2 and occurred_at > $3 and id >= $4
       order by occurred_at
       limit 1`,
    ),
    [organizationId, eventNumber, after, lowestEventId(after)],
  );
  return row?.occurred_at ?? null;
}
