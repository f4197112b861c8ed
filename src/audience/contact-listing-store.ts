import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { type ContactRow, findContacts } from './contact-store.ts';
import { toSearchKey } from './contact-values.ts';

export type ContactFilter = {
  /** Beginning of the email address, of a name, or of the external id. */
  search?: string;
  emailKey?: string;
  externalId?: string;
  phoneNumber?: string;
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
      : await searchContacts(connection, selection, filter.search, page);
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
  const identifiers = [
    ['email_key', filter.emailKey],
    ['external_id', filter.externalId],
    ['phone_number', filter.phoneNumber],
  ] as const;
  const conditions = identifiers.flatMap(([column, value]) =>
    value === undefined ? [] : [`and c.${column} = ${bind(value)}`],
  );
  const isBySets = filter.setIds.length > 0 && conditions.length === 0;
  const [first, id] = isBySets ? ['memberships c', 'c.contact_id'] : ['contacts c', 'c.id'];
  const setParameters = filter.setIds.map(bind);
  const joinedParameters = isBySets ? setParameters.slice(1) : setParameters;
  if (isBySets) conditions.push(`and c.set_id = ${setParameters[0] ?? ''}`);
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
       where c.organization_id = $1 ${conditions.join(' ')} ${pageClause(page, id, '$2')}
       limit ${limit}`,
    values,
    setParameters: isBySets ? setParameters : [],
    fromContacts: `from contacts c ${joins.join(' ')} where c.organization_id = $1 ${conditions.join(' ')}`,
  };
}

/** The ids of one contact more than the page holds. */
async function searchContacts(
  connection: Connection,
  selection: Selection,
  search: string,
  page: Page,
): Promise<string[]> {
  const values = [...selection.values];
  const ranges = rangesOf(search).map(({ column, from: lowest, to }) => {
    const [lower, upper] = [`$${values.push(lowest)}`, `$${values.push(to)}`];
    return `c.${column} >= ${lower} and c.${column} < ${upper}`;
  });
  const searching = { ...selection, values, ranges, order: pageClause(page, 'c.id', '$2') };
  if (selection.setParameters.length > 0) return searchMembers(connection, searching, page);
  // Of each range the first of a page: PostgreSQL chooses whether it reads the range or the primary key.
  const { fromContacts, order } = searching;
  const found = ranges.map((range) => `(select c.id ${fromContacts} and ${range} ${order} limit $3)`);
  return readIds(
    connection,
    `with found as materialized (${found.join(' union ')}) select c.id from found c where true ${order} limit $3`,
    values,
  );
}

type Searching = Selection & { ranges: readonly string[]; order: string };

/**
 * Among the members of sets PostgreSQL would choose wrongly, since it takes sets and texts to have nothing to do with
 * each other. So a rare text is looked up first, and its contacts are asked for their memberships; of one that is not
 * rare, a page is mostly found among the newest members; and if it is not, all whose text it is are asked.
 */
async function searchMembers(connection: Connection, searching: Searching, page: Page): Promise<string[]> {
  const rare = await searchRareMembers(connection, searching);
  if (rare !== null) return rare;
  const { pick, values, ranges, order } = searching;
  const [newest] = await connection.rows(
    unpreparedStatement<{ looked_at: number; ids: string[] }>(
      `with newest as materialized (
         select picked.id, looked_at.is_found
         from (${pick(`${searchedNewestMax}`)}) picked
         cross join lateral (
           select (${ranges.join(' or ')}) as is_found
           from contacts c
           where c.organization_id = $1 and c.id = picked.id
           offset 0
         ) looked_at
       )
       select (select count(*) from newest) as looked_at,
         array(select c.id from newest c where c.is_found ${order} limit $3) as ids`,
    ),
    values,
  );
  if (newest === undefined) throw new Error('a select of one row returned none');
  if (newest.ids.length > page.limit || newest.looked_at < searchedNewestMax) return newest.ids;
  const all = ranges.map((range) => `select c.id ${ofOrganization} and ${range}`).join(' union ');
  // In their order, so that no more are asked than the page needs.
  const nearestFirst = `select c.id from (${all}) c where true ${order} offset 0`;
  const text = `select c.id from (${nearestFirst}) c ${membershipsOf(searching)} where true ${order} limit $3`;
  return readIds(connection, text, values);
}

/** How many of the newest members are looked through for a text that is not rare. */
const searchedNewestMax = 2_500;

/** A text is rare if no column has more contacts whose value begins with it. */
const rareMatchesMax = 500;

/** Null if the text is not rare. */
async function searchRareMembers(connection: Connection, searching: Searching): Promise<string[] | null> {
  const { values, ranges, order } = searching;
  const matches = ranges.map(
    (range, index) =>
      `(select c.id, ${index} as range_number ${ofOrganization} and ${range} limit ${rareMatchesMax + 1})`,
  );
  const [found] = await connection.rows(
    unpreparedStatement<{ is_rare: boolean; ids: string[] }>(
      `with matched as materialized (${matches.join(' union all ')}),
       counted as (
         select coalesce(max(matches), 0) <= ${rareMatchesMax} as is_rare
         from (select count(*) as matches from matched group by range_number) counts
       )
       select is_rare, array(
         select c.id
         from (select distinct id from matched) c ${membershipsOf(searching)}
         where is_rare ${order}
         limit $3
       ) as ids
       from counted`,
    ),
    values,
  );
  return found?.is_rare === true ? found.ids : null;
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

/** Every text that begins with a prefix lies, octet by octet, between the prefix and the prefix with this behind it. */
const highestCharacter = '\u{10ffff}';

function rangesOf(search: string): { column: string; from: string; to: string }[] {
  const key = toSearchKey(search);
  return [
    { column: 'email_key', prefix: key },
    { column: 'name_key', prefix: key },
    { column: 'last_name_key', prefix: key },
    { column: 'external_id', prefix: search },
  ].map(({ column, prefix }) => ({ column, from: prefix, to: `${prefix}${highestCharacter}` }));
}
