import { toSearchKey } from '../platform/characters.ts';
import { foldAddress } from '../channels/email/email.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { allOf, anyOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { contactFields, type ContactIdentifier, contactIdentifiers } from './contact-fields.ts';
import { type ContactRow, findContacts } from './contact-store.ts';

export type ContactFilter = {
  /** Beginning of the email address, of a name, or of the external id. */
  search?: string;
  /** As they are compared. */
  identifiers: Partial<Record<ContactIdentifier, string>>;
  /** Sets of which it must be in each; that they may be asked for is the caller's business. */
  setIds: readonly string[];
};

/** One row more than the page holds. */
export async function listContacts(
  connection: Connection,
  wanted: { organizationId: string; filter: ContactFilter; page: Page },
): Promise<ContactRow[]> {
  const { organizationId, filter, page } = wanted;
  const selection = selectContacts(organizationId, filter, page);
  const ids =
    filter.search === undefined
      ? await readIds(connection, selection.pick('$3'), selection.values)
      : await searchContacts(connection, selection, { organizationId, search: filter.search, page });
  return findContacts(connection, organizationId, ids, page.before === null ? 'newest' : 'oldest');
}

async function readIds(connection: Connection, text: string, values: readonly unknown[]): Promise<string[]> {
  const rows = await connection.rows(unpreparedStatement<{ id: string }>(text), values);
  return rows.map(({ id }) => id);
}

const ofOrganization = 'from contacts c where c.organization_id = $1';

type Selection = {
  /** A statement for the ids of so many contacts, nearest to the cursor first, that pass all filters but the search. */
  pick: (limit: string) => string;
  /** $1 is the organization, $2 the cursor, $3 one more than the page holds. */
  values: unknown[];
  /** Where the values have the sets of the page; none where it is of all contacts, or of an identifier. */
  setParameters: readonly string[];
  /** The contacts `c` that pass all filters but the search; of no use where the page is of sets. */
  fromContacts: string;
};

/**
 * Planned at each run, since the best plan hangs on the filter. A page without a filter is read off the primary key of
 * contacts, an identifier off its index. A page of sets is read off the primary key of memberships alone: joined with
 * contacts at once, PostgreSQL reads all of these for a set that is not large.
 */
function selectContacts(organizationId: string, filter: ContactFilter, page: Page): Selection {
  const values: unknown[] = [organizationId, cursorOf(page), page.limit + 1];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const conditions = contactIdentifiers.flatMap((field) => {
    const value = filter.identifiers[field];
    return value === undefined ? [] : [toPredicate(`c.${contactFields[field].key} = ${bind(value)}`)];
  });
  const isBySets = filter.setIds.length > 0 && conditions.length === 0;
  const [first, id] = isBySets ? ['memberships c', 'c.contact_id'] : ['contacts c', 'c.id'];
  const setParameters = filter.setIds.map(bind);
  const joinedParameters = isBySets ? setParameters.slice(1) : setParameters;
  if (isBySets) conditions.push(toPredicate(`c.set_id = ${setParameters[0] ?? ''}`));
  const joins = joinedParameters.map(
    (setParameter, index) =>
      `join memberships m${index}
         on m${index}.organization_id = c.organization_id
         and m${index}.set_id = ${setParameter}
         and m${index}.contact_id = ${id}`,
  );
  return {
    pick: (limit) =>
      `select ${id} as id
       from ${first} ${joins.join(' ')}
       where c.organization_id = $1 and ${allOf(conditions)} ${pageClause(page, id, '$2')}
       limit ${limit}`,
    values,
    setParameters: isBySets ? setParameters : [],
    fromContacts: `from contacts c ${joins.join(' ')} where c.organization_id = $1 and ${allOf(conditions)}`,
  };
}

/** The ids of one contact more than the page holds. */
async function searchContacts(
  connection: Connection,
  selection: Selection,
  { organizationId, search, page }: { organizationId: string; search: string; page: Page },
): Promise<string[]> {
  const values = [...selection.values];
  const searching = {
    ...selection,
    values,
    ranges: bindRanges(values, search),
    order: pageClause(page, 'c.id', '$2'),
  };
  if (selection.setParameters.length > 0) {
    const isRare = await isRareText(connection, organizationId, search);
    return searchMembers(connection, searching, { isRare, page });
  }
  // Of each range the first of a page: PostgreSQL chooses whether it reads the range or the primary key.
  const { fromContacts, ranges, order } = searching;
  const found = ranges.map((range) => `(select c.id ${fromContacts} and ${range} ${order} limit $3)`);
  return readIds(
    connection,
    `with found as materialized (${found.join(' union ')}) select c.id from found c where true ${order} limit $3`,
    values,
  );
}

type Searching = Selection & { ranges: readonly Predicate[]; order: string };

/**
 * Among the members of sets PostgreSQL would choose wrongly, since it takes sets and texts to have nothing to do with
 * each other. So all whose text it is are asked for their memberships, from the newest on; of a text that many have,
 * a page is found sooner among the newest members, mostly.
 */
async function searchMembers(
  connection: Connection,
  searching: Searching,
  { isRare, page }: { isRare: boolean; page: Page },
): Promise<string[]> {
  const { values, ranges, order } = searching;
  if (!isRare) {
    const newest = await searchNewestMembers(connection, searching, page);
    if (newest.ids.length > page.limit || newest.isComplete) return newest.ids;
  }
  const all = ranges.map((range) => `select c.id ${ofOrganization} and ${range}`).join(' union ');
  // In their order, so that no more of them are asked than the page needs.
  const nearestFirst = `select c.id from (${all}) c where true ${order} offset 0`;
  return readIds(
    connection,
    `select c.id from (${nearestFirst}) c ${membershipsOf(searching)} where true ${order} limit $3`,
    values,
  );
}

/**
 * A text is rare if no column has more contacts whose value begins with it. To find and sort so many takes as long as
 * to look through the newest members; with fewer, these would seldom hold a page of them.
 */
const rareMatchesMax = 15_000;

async function isRareText(connection: Connection, organizationId: string, search: string): Promise<boolean> {
  const values: unknown[] = [organizationId];
  const matches = bindRanges(values, search).map(
    (range) =>
      `(select count(*) from (select ${ofOrganization} and ${range} limit ${rareMatchesMax + 1}) matches)`,
  );
  const [row] = await connection.rows(
    unpreparedStatement<{ is_rare: boolean }>(
      `select greatest(${matches.join(', ')}) <= ${rareMatchesMax} as is_rare`,
    ),
    values,
  );
  return row?.is_rare === true;
}

/** How many of the newest members are looked through for a text that is not rare. */
const searchedNewestMax = 2_500;

/** `isComplete` if there are no more members than were looked through, which are as few as the page needs. */
async function searchNewestMembers(
  connection: Connection,
  { pick, values, ranges }: Searching,
  page: Page,
): Promise<{ ids: string[]; isComplete: boolean }> {
  const newest = pick(`${searchedNewestMax}`);
  const [found] = await connection.rows(
    unpreparedStatement<{ ids: string[]; is_complete: boolean }>(
      `with found as materialized (
         select array(
           select picked.id
           from (${newest}) picked
           cross join lateral (
             select
             from contacts c
             where c.organization_id = $1 and c.id = picked.id and ${anyOf(ranges)}
             offset 0
           ) match
           where true ${pageClause(page, 'picked.id', '$2')}
           limit $3
         ) as ids
       )
       select ids,
         case
           when cardinality(ids) < $3 then (select count(*) from (${newest}) members) < ${searchedNewestMax}
           else false
         end as is_complete
       from found`,
    ),
    values,
  );
  if (found === undefined) throw new Error('a select of one row returned none');
  return { ids: found.ids, isComplete: found.is_complete };
}

/** Asks each contact `c` for its memberships, whatever the planner thinks of the number of members. */
function membershipsOf({ setParameters }: Searching): string {
  const asked = setParameters.map(
    (setParameter, index) =>
      `cross join lateral (
         select
         from memberships m
         where m.organization_id = $1 and m.set_id = ${setParameter} and m.contact_id = c.id
         offset 0
       ) membership${index}`,
  );
  return asked.join(' ');
}

/** Compared byte by byte, every text that begins with a prefix lies between the prefix and the prefix followed by this. */
const highestCharacter = '\u{10ffff}';

/** Conditions on contacts `c`, of which one must hold; adds their bounds to the values. */
function bindRanges(values: unknown[], search: string): Predicate[] {
  const key = toSearchKey(search);
  return [
    { column: 'email_key', prefix: foldAddress(search) },
    { column: 'name_key', prefix: key },
    { column: 'last_name_key', prefix: key },
    { column: 'external_id', prefix: search },
  ].map(({ column, prefix }) => {
    const [lower, upper] = [`$${values.push(prefix)}`, `$${values.push(`${prefix}${highestCharacter}`)}`];
    return toPredicate(`c.${column} >= ${lower} and c.${column} < ${upper}`);
  });
}
