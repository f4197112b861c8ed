import {
  type Connection,
  type Statement,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { lockName } from '../../platform/postgres/name-locks.ts';
import { contactFields, type ContactIdentifier, contactIdentifiers } from '../contact-fields.ts';
import { contactColumns, type ContactRow } from '../contact-store.ts';
import { type ContactValues, textColumns } from '../contact-values.ts';
import { lockForHold } from '../set-store.ts';

/**
 * Statements of imports and exports: each over thousands of contacts at once.
 *
 * None of them leaves the planner a choice that could go wrong. As long as a table was never analyzed, which is how a
 * first import meets it, the planner takes the contacts of an organization for a handful, and would rather read all of
 * them than look thousands up. Hence `offset 0`: it keeps a lookup a lookup, one after the other in the given order,
 * by an index that promises one row.
 */

/**
 * One import at a time writes contacts of an organization, a batch each in turn: two of the same file would else
 * wait for each other's rows, in the order of one for some and of the other for the rest.
 */
export async function lockImports(transaction: Connection, organizationId: string): Promise<void> {
  await lockName(transaction, `contact import ${organizationId}`);
}

/** Keeps sets and properties from being deleted until the transaction ends; returns the ids of those that are there. */
export async function lockTargets(
  transaction: Connection,
  targets: { organizationId: string; setIds: readonly string[]; propertyIds: readonly string[] },
): Promise<string[]> {
  const { organizationId, setIds, propertyIds } = targets;
  const there = await Promise.all([
    lockForHold(transaction, 'contact_sets', organizationId, setIds),
    lockForHold(transaction, 'contact_properties', organizationId, propertyIds),
  ]);
  return there.flat();
}

/** As they are compared. */
export type Identifiers = Readonly<Record<ContactIdentifier, readonly string[]>>;

export type PresentRow = ContactRow & {
  /** Another one after every change of the row. */
  version: string;
  /** Those of the asked sets that it belongs to. */
  set_ids: string[];
};

/** Each reads the index of its key. */
const idsByIdentifier = contactIdentifiers.map(
  (field, index) =>
    `select hit.id
     from unnest($${index + 3}::text[]) as wanted (key)
     cross join lateral (
       select id from contacts where organization_id = $1 and ${contactFields[field].key} = wanted.key offset 0
     ) hit`,
);

/**
 * Not prepared: a plan that was made while the table was empty would read all of the organization's contacts for each
 * value.
 */
const selectPresent = unpreparedStatement<PresentRow>(
  `with found as materialized (${idsByIdentifier.join(' union ')})
   select present.*
   from found
   cross join lateral (
     select ${contactColumns}, c.xmin::text as version,
       array(
         select m.set_id
         from memberships m
         where m.organization_id = $1 and m.contact_id = c.id and m.set_id = any ($2::uuid[])
       ) as set_ids
     from contacts c
     where c.organization_id = $1 and c.id = found.id
     offset 0
   ) present`,
);

/** Contacts that have any of the identifiers. */
export async function findPresent(
  connection: Connection,
  wanted: { organizationId: string; identifiers: Identifiers; setIds: readonly string[] },
): Promise<PresentRow[]> {
  return connection.rows(selectPresent, [
    wanted.organizationId,
    wanted.setIds,
    ...contactIdentifiers.map((field) => wanted.identifiers[field]),
  ]);
}

export type ContactToWrite = { id: string; values: ContactValues };

const textNames = textColumns.map(({ column }) => column).join(', ');

/**
 * Values of properties come as one JSON array. As an array of texts, in which every quote is escaped, they cost the
 * client 3 to 4 µs a contact instead of 0.5, and PostgreSQL no less.
 */
const insertFromArrays = `insert into contacts as c
     (organization_id, id, created_at, updated_at, properties, unsubscribed_channels, email_key, ${textNames})
   select $1::uuid, id, $2::timestamptz, $2::timestamptz, properties,
     coalesce(unsubscribed_channels::text[], '{}'), coalesce(email_key, email), ${textNames}
   from rows from (
     unnest($3::uuid[]), jsonb_array_elements($4::jsonb), unnest($5::text[]), unnest($6::text[]),
     ${textColumns.map((_column, index) => `unnest($${index + 7}::text[])`).join(', ')}
   ) as contact (id, properties, unsubscribed_channels, email_key, ${textNames})`;

const insertAll = statement('audience_import_insert', insertFromArrays);

/** In the order that is given. Throws a unique violation if another contact has one of the identifiers. */
export async function insertContacts(
  transaction: Connection,
  organizationId: string,
  contacts: readonly ContactToWrite[],
  at: Date,
): Promise<void> {
  await writeContacts(transaction, insertAll, { organizationId, contacts, at });
}

/**
 * As an insert, since that finds the rows by the primary key whatever the planner thinks: all of them are there, and
 * locked.
 */
const updateAll = statement(
  'audience_import_update',
  `${insertFromArrays}
   on conflict (organization_id, id) do update
     set updated_at = excluded.updated_at, properties = excluded.properties,
       unsubscribed_channels = excluded.unsubscribed_channels, email_key = excluded.email_key,
       ${textColumns.map(({ column }) => `${column} = excluded.${column}`).join(', ')}`,
);

/** Contacts that `lockContacts` holds. Throws a unique violation as `insertContacts` does. */
export async function updateContacts(
  transaction: Connection,
  organizationId: string,
  contacts: readonly ContactToWrite[],
  at: Date,
): Promise<void> {
  await writeContacts(transaction, updateAll, { organizationId, contacts, at });
}

async function writeContacts(
  transaction: Connection,
  write: Statement<unknown>,
  written: { organizationId: string; contacts: readonly ContactToWrite[]; at: Date },
): Promise<void> {
  const { organizationId, contacts, at } = written;
  if (contacts.length === 0) return;
  const values = contacts.map((contact) => contact.values);
  await transaction.rows(write, [
    organizationId,
    at,
    `{${contacts.map(({ id }) => id).join(',')}}`,
    JSON.stringify(values.map(({ properties }) => properties)),
    toArrayText(
      values.map(({ unsubscribed_channels: none }) => (none.length === 0 ? null : `{${none.join(',')}}`)),
    ),
    // Mostly the same text once more: left out where it is.
    toArrayText(values.map(({ email, email_key: key }) => (key === email ? null : key))),
    ...textColumns.map(({ textOf }) => toArrayText(values.map(textOf))),
  ]);
}

/**
 * An array as PostgreSQL reads it (its manual, section 8.15.6). The driver does the same, and took 10 µs of processor
 * time a contact for all columns, a sixth of what an import needed.
 */
function toArrayText(values: readonly (string | null)[]): string {
  const parts = values.map((value) => {
    if (value === null) return 'null';
    return /["\\]/.test(value) ? `"${value.replace(/["\\]/g, '\\$&')}"` : `"${value}"`;
  });
  return `{${parts.join(',')}}`;
}

/**
 * Until tables are analyzed, the planner expects a few members in each set, and joins them by nested loops. A table that
 * is being vacuumed or indexed is skipped and left to autovacuum: the import would wait for it, and time out.
 */
export async function analyzeAudience(connection: Connection): Promise<void> {
  await connection.rows(unpreparedStatement('analyze (skip_locked) contacts, memberships'), []);
}

export type ContactVersion = { id: string; version: string };

const lockAll = unpreparedStatement(
  `select
   from unnest($2::uuid[], $3::text[]) as wanted (id, version)
   cross join lateral (
     select
     from contacts c
     where c.organization_id = $1 and c.id = wanted.id and c.xmin::text = wanted.version
     offset 0
     for no key update
   ) present`,
);

/**
 * Keeps contacts from being changed or deleted until the transaction ends. Given in order, so that two transactions
 * cannot deadlock. Returns how many there are: those that were changed or deleted since they were read are not.
 */
export async function lockContacts(
  transaction: Connection,
  organizationId: string,
  contacts: readonly ContactVersion[],
): Promise<number> {
  if (contacts.length === 0) return 0;
  const locked = await transaction.rows(lockAll, [
    organizationId,
    contacts.map(({ id }) => id),
    contacts.map(({ version }) => version),
  ]);
  return locked.length;
}

export type Membership = { setId: string; contactId: string };

const insertAllMemberships = statement(
  'audience_import_memberships',
  `insert into memberships (organization_id, set_id, contact_id)
   select $1, set_id, contact_id
   from unnest($2::uuid[], $3::uuid[]) as membership (set_id, contact_id)
   on conflict do nothing`,
);

/** Given in order, so that two transactions cannot deadlock. Needs the locks of `lockTargets` on the sets. */
export async function insertMemberships(
  transaction: Connection,
  organizationId: string,
  memberships: readonly Membership[],
): Promise<void> {
  if (memberships.length === 0) return;
  await transaction.rows(insertAllMemberships, [
    organizationId,
    memberships.map(({ setId }) => setId),
    memberships.map(({ contactId }) => contactId),
  ]);
}

export type NamedSet = { id: string; name: string; name_key: string };

/** Lists, or tags, by their names in lower case. */
export async function findSetsByName(
  connection: Connection,
  wanted: { organizationId: string; kind: 'list' | 'tag'; nameKeys: readonly string[] },
): Promise<NamedSet[]> {
  return connection.rows(
    unpreparedStatement<NamedSet>(
      `select id, name, name_key
       from contact_sets
       where organization_id = $1 and kind = $2 and name_key = any ($3::text[]) and deleted_at is null`,
    ),
    [wanted.organizationId, wanted.kind, wanted.nameKeys],
  );
}

/** Leaves out those whose names are taken; returns the others. Sorted, so that two transactions cannot deadlock. */
export async function insertSets(
  connection: Connection,
  sets: {
    organizationId: string;
    kind: 'list' | 'tag';
    rows: readonly { id: string; name: string; nameKey: string }[];
    at: Date;
  },
): Promise<NamedSet[]> {
  return connection.rows(
    unpreparedStatement<NamedSet>(
      `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
       select $1, id, $2, name, name_key, $3, $3
       from unnest($4::uuid[], $5::text[], $6::text[]) as made (id, name, name_key)
       order by name_key
       on conflict (organization_id, kind, name_key) where deleted_at is null and kind <> 'segment' do nothing
       returning id, name, name_key`,
    ),
    [
      sets.organizationId,
      sets.kind,
      sets.at,
      sets.rows.map(({ id }) => id),
      sets.rows.map(({ name }) => name),
      sets.rows.map(({ nameKey }) => nameKey),
    ],
  );
}

/** Lists and tags, as long as they are there: people have hundreds of them. */
export async function listSetNames(
  connection: Connection,
  organizationId: string,
): Promise<{ id: string; kind: 'list' | 'tag'; name: string }[]> {
  return connection.rows(
    unpreparedStatement<{ id: string; kind: 'list' | 'tag'; name: string }>(
      `select id, kind, name
       from contact_sets
       where organization_id = $1 and kind <> 'segment' and deleted_at is null
       order by name_key`,
    ),
    [organizationId],
  );
}

/** `set_ids` are those of segments too. */
export type ExportedRow = ContactRow & { set_ids: string[] };

const exportedColumns = `${contactColumns},
  array(select m.set_id from memberships m where m.organization_id = $1 and m.contact_id = c.id) as set_ids`;

const exportAll = unpreparedStatement<ExportedRow>(
  `select ${exportedColumns}
   from contacts c
   where c.organization_id = $1 and c.id > $2
   order by c.id
   limit $3`,
);

const exportMembers = unpreparedStatement<ExportedRow>(
  `with page as materialized (
     select m.contact_id
     from memberships m
     where m.organization_id = $1 and m.contact_id > $2 and m.set_id = $4
       and not exists (
         select
         from unnest($5::uuid[]) as other (set_id)
         where not exists (
           select
           from memberships o
           where o.organization_id = $1 and o.set_id = other.set_id and o.contact_id = m.contact_id
         )
       )
     order by m.contact_id
     limit $3
   )
   select present.*
   from page
   cross join lateral (
     select ${exportedColumns}
     from contacts c
     where c.organization_id = $1 and c.id = page.contact_id
     offset 0
   ) present
   order by present.id`,
);

const lowestId = '00000000-0000-0000-0000-000000000000';

/**
 * The contacts that come next by id, oldest first: read off the primary key of contacts, or of memberships where
 * they have to belong to sets, all of them.
 */
export async function listForExport(
  connection: Connection,
  wanted: { organizationId: string; setIds: readonly string[]; after: string | null; limit: number },
): Promise<ExportedRow[]> {
  const [setId, ...otherSetIds] = wanted.setIds;
  const values = [wanted.organizationId, wanted.after ?? lowestId, wanted.limit];
  return setId === undefined
    ? connection.rows(exportAll, values)
    : connection.rows(exportMembers, [...values, setId, otherSetIds]);
}

/** How many `listForExport` will go through: read off the primary key of contacts, or of memberships. */
export async function countForExport(
  connection: Connection,
  wanted: { organizationId: string; setIds: readonly string[] },
): Promise<number> {
  const [setId, ...otherSetIds] = wanted.setIds;
  const counting =
    setId === undefined
      ? connection.rows(
          unpreparedStatement<{ count: number }>(
            'select count(*)::integer as count from contacts where organization_id = $1',
          ),
          [wanted.organizationId],
        )
      : connection.rows(
          unpreparedStatement<{ count: number }>(
            `select count(*)::integer as count
             from memberships m
             where m.organization_id = $1 and m.set_id = $2
               and not exists (
                 select
                 from unnest($3::uuid[]) as other (set_id)
                 where not exists (
                   select
                   from memberships o
                   where o.organization_id = $1 and o.set_id = other.set_id and o.contact_id = m.contact_id
                 )
               )`,
          ),
          [wanted.organizationId, setId, otherSetIds],
        );
  return (await counting)[0]?.count ?? 0;
}
