import { toSearchKey } from '../platform/characters.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import type { Properties } from './contact-values.ts';
import type { Property, PropertyType } from './schema.ts';

export type PropertyRow = {
  id: string;
  number: number;
  key: string;
  name: string;
  type: PropertyType;
  description: string | null;
  created_at: Date;
  updated_at: Date;
};

const propertyColumns = 'id, number, key, name, type, description, created_at, updated_at';

export type PropertyKey = { organizationId: string; id: string };

/** More would make every contact a document, and every reader of one carry them all. */
export const propertiesMax = 500;

const selectAll = statement<Property>(
  'audience_select_properties',
  `select id, number, key, type
   from contact_properties
   where organization_id = $1 and deleted_at is null
   limit ${propertiesMax}`,
);

/** All that are defined, by key. */
export async function loadProperties(connection: Connection, organizationId: string): Promise<Properties> {
  const rows = await connection.rows(selectAll, [organizationId]);
  return new Map(rows.map((property) => [property.key, property]));
}

/** One at a time in an organization, so that each gets a number of its own; held until the transaction ends. */
export async function lockProperties(transaction: Connection, organizationId: string): Promise<void> {
  await lockName(transaction, `contact properties ${organizationId}`);
}

/** Needs the lock of `lockProperties`. Throws a unique violation of contact_properties_key. */
export async function insertProperty(
  transaction: Connection,
  property: PropertyKey & {
    key: string;
    name: string;
    type: PropertyType;
    description: string | null;
    at: Date;
  },
): Promise<PropertyRow> {
  const [row] = await transaction.rows(
    unpreparedStatement<PropertyRow>(
      `insert into contact_properties
         (organization_id, id, number, key, name, type, description, created_at, updated_at, name_key)
       select $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5, $6, $7, $7, $8
       from contact_properties
       where organization_id = $1
       returning ${propertyColumns}`,
    ),
    [
      property.organizationId,
      property.id,
      property.key,
      property.name,
      property.type,
      property.description,
      property.at,
      toSearchKey(property.name),
    ],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

export async function findProperty(
  connection: Connection,
  property: PropertyKey,
): Promise<PropertyRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<PropertyRow>(
      `select ${propertyColumns}
       from contact_properties
       where organization_id = $1 and id = $2 and deleted_at is null`,
    ),
    [property.organizationId, property.id],
  );
  return row ?? null;
}

/** One row more than the page holds, read off the primary key. `search` is looked for in the key and in the name. */
export async function listProperties(
  connection: Connection,
  wanted: { organizationId: string; search?: string; page: Page },
): Promise<PropertyRow[]> {
  const { organizationId, search, page } = wanted;
  return connection.rows(
    unpreparedStatement<PropertyRow>(
      `select ${propertyColumns}
       from contact_properties
       where organization_id = $1 and deleted_at is null
         and ($2::text is null or strpos(key, $2) > 0 or strpos(name_key, $2) > 0)
         ${pageClause(page, 'id', '$3')}
       limit $4`,
    ),
    [organizationId, search === undefined ? null : toSearchKey(search), cursorOf(page), page.limit + 1],
  );
}

export async function updateProperty(
  connection: Connection,
  property: PropertyKey & { name?: string; description?: string | null; at: Date },
): Promise<PropertyRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<PropertyRow>(
      `update contact_properties
       set name = coalesce($3, name), name_key = coalesce($7, name_key),
         description = case when $4 then $5 else description end, updated_at = $6
       where organization_id = $1 and id = $2 and deleted_at is null
       returning ${propertyColumns}`,
    ),
    [
      property.organizationId,
      property.id,
      property.name ?? null,
      property.description !== undefined,
      property.description ?? null,
      property.at,
      property.name === undefined ? null : toSearchKey(property.name),
    ],
  );
  return row ?? null;
}

/** Prevents new holds on it until the transaction ends. */
export async function lockProperty(transaction: Connection, property: PropertyKey): Promise<boolean> {
  const rows = await transaction.rows(
    unpreparedStatement(
      `select
       from contact_properties
       where organization_id = $1 and id = $2 and deleted_at is null
       for update`,
    ),
    [property.organizationId, property.id],
  );
  return rows.length === 1;
}

/** Its values are no longer shown from now on; `forgetValues` removes them from the contacts. */
export async function markPropertyDeleted(
  transaction: Connection,
  property: PropertyKey,
  at: Date,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'update contact_properties set deleted_at = $3 where organization_id = $1 and id = $2',
    ),
    [property.organizationId, property.id, at],
  );
}

export type DeletedProperty = PropertyKey & {
  number: number;
  forgottenUntil: string | null;
  deletedAt: Date;
};

const isUnforgotten = toPredicate('deleted_at is not null and forgotten_at is null');

const findDeletedProperties = statement<{ organization_id: string }>(
  'contact_properties_find_deleted',
  organizationsDue({ table: 'contact_properties', among: isUnforgotten, due: 'deleted_at <= $1' }),
);

/** Organizations with properties that were deleted before `at` and whose values are still there, after `after`, by their ids. */
export async function findOrganizationsOfDeletedProperties(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(findDeletedProperties, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/**
 * The one of the organization that was deleted first, before `deletedBefore`, and is none of `exceptIds`; another node that
 * asks before the transaction ends gets another one.
 */
export async function takeDeletedProperty(
  transaction: Connection,
  {
    organizationId,
    deletedBefore,
    exceptIds,
  }: { organizationId: string; deletedBefore: Date; exceptIds: readonly string[] },
): Promise<DeletedProperty | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{
      organization_id: string;
      id: string;
      number: number;
      forgotten_until: string | null;
      deleted_at: Date;
    }>(
      `select organization_id, id, number, forgotten_until, deleted_at
       from contact_properties
       where organization_id = $1 and deleted_at <= $2 and ${isUnforgotten} and id <> all ($3::uuid[])
       order by deleted_at
       limit 1
       for update skip locked`,
    ),
    [organizationId, deletedBefore, exceptIds],
  );
  return row === undefined
    ? null
    : {
        organizationId: row.organization_id,
        id: row.id,
        number: row.number,
        forgottenUntil: row.forgotten_until,
        deletedAt: row.deleted_at,
      };
}

/** When the first one after this instant was deleted of which values are still there, by the index contact_properties_deleted. */
export async function findNextDeletedAt(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ deleted_at: Date }>(
      `select deleted_at
       from contact_properties
       where ${isUnforgotten} and deleted_at > $1 and ${isNotDeleted('organization_id')}
       order by deleted_at
       limit 1`,
    ),
    [after],
  );
  return row?.deleted_at ?? null;
}

/** Removes its values from the next contacts by id; returns the last that was looked at, or null after the last. */
export async function forgetValues(
  transaction: Connection,
  property: DeletedProperty,
  limit: number,
): Promise<string | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ last_id: string | null }>(
      `with looked_at as (
         select id, properties ? $2 as has_value
         from contacts
         where organization_id = $1 and ($3::uuid is null or id > $3)
         order by id
         limit $4
       ), carrying as (
         select c.id
         from contacts c
         where c.organization_id = $1 and c.id in (select id from looked_at where has_value)
         order by c.id
         for update
       ), forgotten as (
         update contacts c
         set properties = c.properties - $2
         from carrying
         where c.organization_id = $1 and c.id = carrying.id
       )
       select (select id from looked_at order by id desc limit 1) as last_id`,
    ),
    [property.organizationId, `${property.number}`, property.forgottenUntil, limit],
  );
  return row?.last_id ?? null;
}

/** `until` is the contact that was looked at last; null for all of them. */
export async function markForgotten(
  transaction: Connection,
  property: PropertyKey,
  until: string | null,
  at: Date,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update contact_properties
       set forgotten_until = $3, forgotten_at = case when $3::uuid is null then $4::timestamptz end
       where organization_id = $1 and id = $2`,
    ),
    [property.organizationId, property.id, until, at],
  );
}
