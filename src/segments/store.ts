import { toSearchKey } from '../platform/characters.ts';
import { dateOf } from '../platform/clock.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import type { Predicate } from '../platform/postgres/predicate.ts';
import { instantOfId } from '../platform/ids.ts';
import { lockName, tryLockName } from '../platform/postgres/name-locks.ts';
import type { CompiledPredicate } from './compile.ts';
import type { SegmentStatus } from './schema.ts';

/** Names, descriptions and members of segments are those of their contact sets, which the audience writes. */
export type SegmentRow = {
  id: string;
  name: string;
  description: string | null;
  conditions: Readonly<Record<string, unknown>>;
  status: SegmentStatus;
  contact_count: number;
  computed_at: Date | null;
  created_at: Date;
  updated_at: Date;
};

export type SegmentKey = { organizationId: string; id: string };

const segmentColumns = `s.id, s.name, s.description, g.conditions, g.status, g.computed_at, s.created_at, s.updated_at,
  coalesce(
    (select sum(n.contacts)
     from membership_counts n
     where n.organization_id = s.organization_id and n.set_id = s.id),
    0
  ) as contact_count`;

const fromSegments = `from segments g
  join contact_sets s on s.organization_id = g.organization_id and s.id = g.id and s.deleted_at is null`;

export async function findSegment(connection: Connection, segment: SegmentKey): Promise<SegmentRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SegmentRow>(
      `select ${segmentColumns}
       ${fromSegments}
       where g.organization_id = $1 and g.id = $2`,
    ),
    [segment.organizationId, segment.id],
  );
  return row ?? null;
}

/** Returns one row more than the page holds, by the primary key. `search` matches anywhere in the name. */
export async function listSegments(
  connection: Connection,
  wanted: { organizationId: string; search?: string; page: Page },
): Promise<SegmentRow[]> {
  const { organizationId, search, page } = wanted;
  return connection.rows(
    unpreparedStatement<SegmentRow>(
      `select ${segmentColumns}
       ${fromSegments}
       where g.organization_id = $1
         and ($2::text is null or strpos(s.name_key, $2) > 0)
         ${pageClause(page, 'g.id', '$3')}
       limit $4`,
    ),
    [organizationId, search === undefined ? null : toSearchKey(search), cursorOf(page), page.limit + 1],
  );
}

/**
 * Makes changes to an organization's segments wait for each other: the limit of segments and the absence of cycles
 * depend on it.
 */
export async function lockSegments(transaction: Connection, organizationId: string): Promise<void> {
  await lockName(transaction, `segments of ${organizationId}`);
}

/** Whether the organization has so many segments or more. */
export async function hasSegments(
  connection: Connection,
  organizationId: string,
  count: number,
): Promise<boolean> {
  if (count === 0) return true;
  const rows = await connection.rows(
    unpreparedStatement('select from segments where organization_id = $1 offset $2 limit 1'),
    [organizationId, count - 1],
  );
  return rows.length === 1;
}

/** To be computed at once. */
export async function insertSegment(
  connection: Connection,
  segment: SegmentKey & { conditions: unknown; at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into segments (organization_id, id, conditions, conditions_at, status, compute_at)
       values ($1, $2, $3, $4, 'computing', $4)`,
    ),
    [segment.organizationId, segment.id, JSON.stringify(segment.conditions), segment.at],
  );
}

/** To be computed at once. */
export async function replaceConditions(
  connection: Connection,
  segment: SegmentKey & { conditions: unknown; at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update segments
       set conditions = $3, conditions_at = $4, revision = revision + 1, status = 'computing', is_filled = false,
         compute_at = $4, windows_due_at = null
       where organization_id = $1 and id = $2`,
    ),
    [segment.organizationId, segment.id, JSON.stringify(segment.conditions), segment.at],
  );
}

export async function deleteSegment(connection: Connection, segment: SegmentKey): Promise<void> {
  await connection.rows(unpreparedStatement('delete from segments where organization_id = $1 and id = $2'), [
    segment.organizationId,
    segment.id,
  ]);
}

/** Whether any of these segments uses that one, directly or through others. */
export async function usesSegment(
  connection: Connection,
  wanted: { organizationId: string; ids: readonly string[]; usedId: string },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `with recursive used (id) as (
         select unnest($2::uuid[])
         union
         select h.held_id
         from used
         join holds h on h.organization_id = $1 and h.holder_id = used.id and h.held_kind = 'segment'
       )
       select from used where id = $3`,
    ),
    [wanted.organizationId, wanted.ids, wanted.usedId],
  );
  return rows.length > 0;
}

/**
 * Organizations after `after` whose contacts changed. Reads one change of each, by skipping from one organization to
 * the next.
 */
export async function findChangedOrganizations(
  connection: Connection,
  after: string | null,
  limit: number,
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ organization_id: string }>(
      `with recursive changed (organization_id) as (
         (select organization_id
          from contact_changes
          where $1::uuid is null or organization_id > $1
          order by organization_id
          limit 1)
         union all
         select (
           select c.organization_id
           from contact_changes c
           where c.organization_id > changed.organization_id
           order by c.organization_id
           limit 1
         )
         from changed
         where changed.organization_id is not null
       )
       select organization_id
       from changed
       where organization_id is not null and ${isNotDeleted('organization_id')}
       limit $2`,
    ),
    [after, limit],
  );
  return rows.map(({ organization_id }) => organization_id);
}

/** Organizations looked at. With fewer, the oldest change may be of another; more take longer. */
const laggingOrganizationsMax = 1_000;

/**
 * Since when a change of contacts has waited to be followed, or a segment to be computed, of any organization; null if
 * nothing waits. A loose scan over the primary key of contact_changes, whose ids tell when they were made, and the index
 * segments_compute_at.
 */
export async function findLaggingSince(connection: Connection, at: Date): Promise<Date | null> {
  const [changes, due] = await Promise.all([
    connection.rows(
      unpreparedStatement<{ id: string }>(
        `with recursive oldest (organization_id, id) as (
           (select organization_id, id from contact_changes order by organization_id, id limit 1)
           union all
           select next.organization_id, next.id
           from oldest
           cross join lateral (
             select c.organization_id, c.id
             from contact_changes c
             where c.organization_id > oldest.organization_id
             order by c.organization_id, c.id
             limit 1
           ) next
         )
         select id
         from (select id from oldest limit $1) seen
         order by id
         limit 1`,
      ),
      [laggingOrganizationsMax],
    ),
    findNextDueAt(connection, 'compute_at', dateOf(0)),
  ]);
  const instants = [...changes.map(({ id }) => instantOfId(id)), ...(due !== null && due <= at ? [due] : [])];
  return instants.reduce<Date | null>(
    (first, instant) => (first === null || instant < first ? instant : first),
    null,
  );
}

/** For what a segment is due: to be computed, or to be looked at for those whose events have left its windows. */
export type DueColumn = 'compute_at' | 'windows_due_at';

/**
 * Organizations with segments that are due, after `after`, however many segments each of them has. Uses the index
 * segments_compute_at or segments_windows_due_at: the order differs from the index's, so that all due segments are read,
 * and no others.
 */
export async function findDueOrganizations(
  connection: Connection,
  column: DueColumn,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ organization_id: string }>(
      `with due as materialized (
         select organization_id
         from segments
         where ${column} <= $1 and ($2::uuid is null or organization_id > $2) and ${isNotDeleted('organization_id')}
       )
       select distinct organization_id
       from due
       order by organization_id
       limit $3`,
    ),
    [at, after, limit],
  );
  return rows.map(({ organization_id }) => organization_id);
}

/** The first instant after this one at which a segment is due, by the same indexes. */
export async function findNextDueAt(
  connection: Connection,
  column: DueColumn,
  after: Date,
): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ due_at: Date }>(
      `select ${column} as due_at
       from segments
       where ${column} > $1 and ${isNotDeleted('organization_id')}
       order by ${column}
       limit 1`,
    ),
    [after],
  );
  return row?.due_at ?? null;
}

/** A segment whose windows are to be looked through. */
export type DueSegment = SegmentKey & { conditions: unknown; revision: number; windowsUntil: Date };

/** The one of an organization that has been due for longest. */
export async function findWindowsDue(
  transaction: Connection,
  organizationId: string,
  at: Date,
): Promise<DueSegment | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ id: string; conditions: unknown; revision: number; windows_until: Date | null }>(
      `select id, conditions, revision, windows_until
       from segments
       where organization_id = $1 and windows_due_at <= $2
       order by windows_due_at
       limit 1`,
    ),
    [organizationId, at],
  );
  if (row === undefined) return null;
  const { id, conditions, revision, windows_until: windowsUntil } = row;
  return { organizationId, id, conditions, revision, windowsUntil: windowsUntil ?? at };
}

/** Unless it got other conditions meanwhile. */
export async function markLooked(
  transaction: Connection,
  segment: SegmentKey & { revision: number; windowsUntil: Date; windowsDueAt: Date | null },
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update segments
       set windows_until = $4, windows_due_at = $5
       where organization_id = $1 and id = $2 and revision = $3 and windows_due_at is not null`,
    ),
    [segment.organizationId, segment.id, segment.revision, segment.windowsUntil, segment.windowsDueAt],
  );
}

/** Has these segments look through their windows at a time, unless they will before. */
export async function lookBy(
  transaction: Connection,
  organizationId: string,
  ids: readonly string[],
  at: Date,
): Promise<void> {
  if (ids.length === 0) return;
  await transaction.rows(
    unpreparedStatement(
      `update segments
       set windows_due_at = $3
       where organization_id = $1 and id = any ($2::uuid[])
         and (windows_due_at is null or windows_due_at > $3)`,
    ),
    [organizationId, ids, at],
  );
}

/**
 * Tries to lock the members of the organization's segments until the transaction ends. Returns false if another node
 * has the lock.
 */
export async function tryLockMembers(transaction: Connection, organizationId: string): Promise<boolean> {
  return tryLockName(transaction, `segment members of ${organizationId}`);
}

/** Tries to be the one that computes segments of the organization, until the transaction ends. */
export async function tryLockComputing(transaction: Connection, organizationId: string): Promise<boolean> {
  return tryLockName(transaction, `computing segments of ${organizationId}`);
}

/** As `tryLockMembers`, but waits for the lock. Nodes that only try do not get it in the meantime. */
export async function lockMembers(transaction: Connection, organizationId: string): Promise<void> {
  await lockName(transaction, `segment members of ${organizationId}`);
}

/** The process that serves this transaction, for `cancelStatement`. */
export async function readBackendPid(transaction: Connection): Promise<number> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ pid: number }>('select pg_backend_pid() as pid'),
  );
  return row?.pid ?? 0;
}

/** Ends the statement that another connection is running, if any. */
export async function cancelStatement(connection: Connection, backendPid: number): Promise<void> {
  await connection.rows(unpreparedStatement('select pg_cancel_backend($1)'), [backendPid]);
}

/** Each holds a connection, and looks at all contacts of an organization. */
const previewsMax = 3;

/**
 * Tries to lock a preview until the transaction ends. Returns false if another one of the organization is running, or
 * too many of all organizations.
 */
export async function tryLockPreview(transaction: Connection, organizationId: string): Promise<boolean> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ is_locked: boolean }>(
      `select pg_try_advisory_xact_lock(hashtextextended('segment preview of ' || $1, 0))
         and exists (
           select
           from generate_series(1, ${previewsMax}) slot
           where pg_try_advisory_xact_lock(hashtextextended('segment preview ' || slot, 0))
         ) as is_locked`,
    ),
    [organizationId],
  );
  return row?.is_locked === true;
}

/** The segments that hold what has this id, with their conditions. */
export async function listHolders(
  connection: Connection,
  held: { organizationId: string; id: string },
): Promise<{ id: string; conditions: unknown }[]> {
  return connection.rows(
    unpreparedStatement<{ id: string; conditions: unknown }>(
      `select g.id, g.conditions
       from holds h
       join segments g on g.organization_id = h.organization_id and g.id = h.holder_id
       where h.organization_id = $1 and h.held_id = $2 and h.holder_kind = 'segment'
       order by g.id`,
    ),
    [held.organizationId, held.id],
  );
}

/** A segment as its members are kept. */
export type KeptSegment = SegmentKey & {
  conditions: unknown;
  revision: number;
  /** Whether its members match its conditions, as far as changes were followed. */
  isReady: boolean;
  /** Whether its members have matched its conditions, be it before something that these ask about became uncertain. */
  isFilled: boolean;
  computeAt: Date | null;
  conditionsAt: Date;
  /** Whether outcomes of messages insert changes for this segment. */
  isToldOfMessages: boolean;
  /** The segments that its conditions refer to. */
  usedIds: string[];
};

export async function listKeptSegments(
  connection: Connection,
  organizationId: string,
): Promise<KeptSegment[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      id: string;
      conditions: unknown;
      revision: number;
      is_ready: boolean;
      is_filled: boolean;
      compute_at: Date | null;
      conditions_at: Date;
      reads_messages: boolean;
      used_ids: string[];
    }>(
      `select g.id, g.conditions, g.revision, s.is_ready, g.is_filled, g.compute_at, g.conditions_at,
         s.reads_messages,
         array(
           select h.held_id
           from holds h
           where h.organization_id = g.organization_id and h.holder_id = g.id and h.held_kind = 'segment'
         ) as used_ids
       ${fromSegments}
       where g.organization_id = $1
       order by g.id`,
    ),
    [organizationId],
  );
  return rows.map((row) => ({
    organizationId,
    id: row.id,
    conditions: row.conditions,
    revision: row.revision,
    isReady: row.is_ready,
    isFilled: row.is_filled,
    computeAt: row.compute_at,
    conditionsAt: row.conditions_at,
    isToldOfMessages: row.reads_messages,
    usedIds: row.used_ids,
  }));
}

/**
 * Its windows, if it has any, are looked at from `windowsUntil` on, and soon. Returns false if it was deleted or got other
 * conditions meanwhile.
 */
export async function markComputed(
  connection: Connection,
  segment: SegmentKey & { revision: number; at: Date; nextAt: Date | null; windowsUntil: Date | null },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update segments
       set status = 'ready', is_filled = true, computed_at = $4, compute_at = $5, windows_until = $6,
         windows_due_at = case when $6::timestamptz is not null then $4::timestamptz end
       where organization_id = $1 and id = $2 and revision = $3
       returning id`,
    ),
    [segment.organizationId, segment.id, segment.revision, segment.at, segment.nextAt, segment.windowsUntil],
  );
  return rows.length === 1;
}

/** Unless it was deleted or got other conditions meanwhile. */
export async function markFailed(
  connection: Connection,
  segment: SegmentKey & { revision: number; nextAt: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update segments
       set status = 'failed', compute_at = $4, windows_due_at = null
       where organization_id = $1 and id = $2 and revision = $3`,
    ),
    [segment.organizationId, segment.id, segment.revision, segment.nextAt],
  );
}

/** The segments that use this one are computed as soon as possible. */
export async function computeUsers(connection: Connection, segment: SegmentKey, at: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update segments g
       set compute_at = $3
       from holds h
       where h.organization_id = $1 and h.held_id = $2 and h.holder_kind = 'segment'
         and g.organization_id = $1 and g.id = h.holder_id
         and (g.compute_at is null or g.compute_at > $3)`,
    ),
    [segment.organizationId, segment.id, at],
  );
}

/** The segments of an organization that ask about events are computed as soon as possible, also those under way. */
export async function computeEventReaders(
  connection: Connection,
  organizationId: string,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update segments
       set revision = revision + 1, compute_at = $2
       where organization_id = $1
         and id in (
           select holder_id
           from holds
           where organization_id = $1 and holder_kind = 'segment' and held_kind = 'event'
         )`,
    ),
    [organizationId, at],
  );
}

/** The segment waits until those that it uses are ready; `computeUsers` then schedules it again. */
export async function waitForUsed(connection: Connection, segment: SegmentKey): Promise<void> {
  await connection.rows(
    unpreparedStatement('update segments set compute_at = null where organization_id = $1 and id = $2'),
    [segment.organizationId, segment.id],
  );
}

/** All that use this one, directly or through others. */
export async function findUsers(connection: Connection, segment: SegmentKey): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ id: string }>(
      `with recursive users (id) as (
         select holder_id from holds where organization_id = $1 and held_id = $2 and holder_kind = 'segment'
         union
         select h.holder_id
         from users
         join holds h on h.organization_id = $1 and h.held_id = users.id and h.holder_kind = 'segment'
       )
       select id from users order by id`,
    ),
    [segment.organizationId, segment.id],
  );
  return rows.map(({ id }) => id);
}

/** Their members are based on conditions that no longer apply. */
export async function markStale(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update segments
       set status = 'computing', compute_at = null, windows_due_at = null
       where organization_id = $1 and id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
}

/** Runs a statement with such a predicate: what it joins is joined by hash, and by no nested loop. */
export async function joinByHash<Result>(
  transaction: Connection,
  { joins }: Pick<CompiledPredicate, 'joins'>,
  run: () => Promise<Result>,
): Promise<Result> {
  if (joins === '') return run();
  await transaction.rows(unpreparedStatement('set local enable_nestloop to off'));
  const result = await run();
  await transaction.rows(unpreparedStatement('set local enable_nestloop to default'));
  return result;
}

/** Counts the contacts for which a condition holds, and shows the newest of them. `values` begin with the organization. */
export async function countMatching(
  transaction: Connection,
  condition: CompiledPredicate,
  sampleSize: number,
): Promise<{ count: number; sampleIds: string[] }> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ count: number; sample_ids: string[] }>(
      `with matching as materialized (
         select contact.id
         from contacts contact ${condition.joins}
         where contact.organization_id = $1 and ${condition.text}
       )
       select (select count(*) from matching) as count,
         array(select id from matching order by id desc limit ${sampleSize}) as sample_ids`,
    ),
    condition.values,
  );
  return { count: row?.count ?? 0, sampleIds: row?.sample_ids ?? [] };
}

/**
 * The ids of one contact more than the page holds, of those for whom a condition holds. `values` begin with the organization,
 * the cursor of the page, and one more than it holds.
 */
export async function listMatching(
  transaction: Connection,
  condition: CompiledPredicate,
  page: Page,
): Promise<string[]> {
  const rows = await transaction.rows(
    unpreparedStatement<{ id: string }>(
      `select contact.id
       from contacts contact ${condition.joins}
       where contact.organization_id = $1 and ${condition.text} ${pageClause(page, 'contact.id', '$2')}
       limit $3`,
    ),
    condition.values,
  );
  return rows.map(({ id }) => id);
}

/** Which of the expressions are true for a contact, and whether it is a member; null if there is no such contact. */
export async function testContact(
  connection: Connection,
  wanted: { expressions: readonly Predicate[]; values: readonly unknown[] },
): Promise<{ isMember: boolean; truths: boolean[] } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ is_member: boolean; truths: boolean[] }>(
      `select array[${wanted.expressions.join(', ')}]::boolean[] as truths,
         exists (
           select
           from memberships m
           where m.organization_id = $1 and m.set_id = $3 and m.contact_id = $2
         ) as is_member
       from contacts contact
       where contact.organization_id = $1 and contact.id = $2`,
    ),
    wanted.values,
  );
  return row === undefined ? null : { isMember: row.is_member, truths: row.truths };
}
