import { foldAddress } from '../channels/email/email.ts';
import { type Channel, channels } from '../channels/channel.ts';
import { dateOf } from '../platform/clock.ts';
import { lowestIdAt } from '../platform/ids.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { allOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { type SuppressionReason, suppressionReasons } from './schema.ts';
import {
  columns,
  holdsAt,
  type StoredSuppression,
  type SuppressionColumns,
  toSuppression,
} from './suppression-store.ts';

export type SuppressionFilter = {
  channel?: Channel;
  reason?: SuppressionReason;
  createdAfter?: Date;
  /** A whole address, by all the hashes that it may have, or the beginning of one that is not erased. */
  search?: { text: string; hashes: readonly Buffer[] };
};

/** Those that hold at an instant; one row more than the page holds. Planned at each run, since the plan hangs on the filter. */
export async function listSuppressions(
  connection: Connection,
  wanted: { organizationId: string; filter: SuppressionFilter; page: Page; at: Date },
): Promise<StoredSuppression[]> {
  const { organizationId, filter, page, at } = wanted;
  const values: unknown[] = [organizationId, cursorOf(page), page.limit + 1, at];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const order = pageClause(page, 's.id', '$2');
  const conditions = [holdsAt('$4')];
  if (filter.createdAfter !== undefined) {
    // By the id, which was made no earlier, the page ends where older ones begin. Nothing is older than 1970.
    const afterMs = Math.max(0, filter.createdAfter.getTime());
    const [lowestId, after] = [bind(lowestIdAt(afterMs)), bind(dateOf(afterMs))];
    conditions.push(toPredicate(`s.id >= ${lowestId} and s.created_at > ${after}`));
  }
  const { search } = filter;
  const text =
    search === undefined
      ? selectPage(filter, conditions, bind, order)
      : selectFound(search, [...conditions, ...conditionsOf(filter, bind)], bind, order);
  const rows = await connection.rows(unpreparedStatement<SuppressionColumns>(text), values);
  return rows.map(toSuppression);
}

type Bind = (value: unknown) => string;

function conditionsOf({ channel, reason }: SuppressionFilter, bind: Bind): Predicate[] {
  return [
    ...(channel === undefined ? [] : [toPredicate(`s.channel = ${bind(channel)}`)]),
    ...(reason === undefined ? [] : [toPredicate(`s.reason = ${bind(reason)}`)]),
  ];
}

/**
 * Without a filter the page is read off the primary key. With one it is merged of the first of each channel and reason
 * meant, by suppressions_reason: of a reason that few have all others would be walked through else.
 */
function selectPage(
  { channel, reason }: SuppressionFilter,
  conditions: readonly Predicate[],
  bind: Bind,
  order: string,
): string {
  const filtered = `select ${columns} from suppressions s where s.organization_id = $1 and ${allOf(conditions)}`;
  if (channel === undefined && reason === undefined) return `${filtered} ${order} limit $3`;
  const ofChannels = bind(channel === undefined ? channels : [channel]);
  const ofReasons = bind(reason === undefined ? suppressionReasons : [reason]);
  return `select ${columns}
     from unnest(${ofChannels}::text[]) as meant_channel (channel)
     cross join unnest(${ofReasons}::text[]) as meant_reason (reason)
     cross join lateral (
       ${filtered} and s.channel = meant_channel.channel and s.reason = meant_reason.reason ${order} limit $3
     ) s
     where true ${order}
     limit $3`;
}

/** Compared byte by byte, every text that begins with a prefix lies between the prefix and the prefix followed by this. */
const highestCharacter = '\u{10ffff}';

/**
 * An address is found by suppressions_key, whose hash outlives it, and the beginning of one by suppressions_address; of a
 * beginning that many have PostgreSQL may read the primary key instead.
 */
function selectFound(
  { text, hashes }: NonNullable<SuppressionFilter['search']>,
  conditions: readonly Predicate[],
  bind: Bind,
  order: string,
): string {
  const ids = `select s.id from suppressions s where s.organization_id = $1 and ${allOf(conditions)}`;
  const hashTexts = bind(hashes.map((hash) => hash.toString('hex')));
  const exact = `${ids} and s.channel = any (${bind(channels)}::text[])
       and s.address_hash = any (array(select decode(hash, 'hex') from unnest(${hashTexts}::text[]) as asked (hash)))`;
  // What a push is opted out by keeps its case.
  const prefixes = [...new Set([text, foldAddress(text)])];
  const beginning = prefixes.map((prefix) => {
    const [lower, upper] = [bind(prefix), bind(`${prefix}${highestCharacter}`)];
    return `(${ids} and s.address >= ${lower} and s.address < ${upper} ${order} limit $3)`;
  });
  return `with found as materialized (${exact} union ${beginning.join(' union ')})
     select ${columns}
     from found
     join suppressions s on s.organization_id = $1 and s.id = found.id
     where true ${order}
     limit $3`;
}
