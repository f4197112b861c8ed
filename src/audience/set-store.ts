import { toSearchKey } from '../platform/characters.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import { eventsOfRowMax, insertIntoOutbox, isEventWanted, wakeNumbering } from '../webhooks/webhooks.ts';
import type { SetKind, SetPatch } from './schema.ts';

export type SetRow = {
  id: string;
  name: string;
  description: string | null;
  contact_count: number;
  created_at: Date;
  updated_at: Date;
};

export type SetKey = { organizationId: string; kind: SetKind; id: string };

const setColumns = `s.id, s.name, s.description, s.created_at, s.updated_at,
  coalesce(
    (select sum(n.contacts)
     from membership_counts n
     where n.organization_id = s.organization_id and n.set_id = s.id),
    0
  ) as contact_count`;

/** Throws a unique violation of contact_sets_name if there is another list, or tag, of that name. */
export async function insertSet(
  connection: Connection,
  set: SetKey & { name: string; description: string | null; isReady: boolean; at: Date },
): Promise<SetRow> {
  const [row] = await connection.rows(
    unpreparedStatement<Omit<SetRow, 'contact_count'>>(
      `insert into contact_sets
         (organization_id, id, kind, name, name_key, description, is_ready, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $8)
       returning id, name, description, created_at, updated_at`,
    ),
    [
      set.organizationId,
      set.id,
      set.kind,
      set.name,
      toSearchKey(set.name),
      set.description,
      set.isReady,
      set.at,
    ],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return { ...row, contact_count: 0 };
}

const selectSet = statement<SetRow>(
  'audience_select_set',
  `select ${setColumns}
   from contact_sets s
   where s.organization_id = $1 and s.kind = $2 and s.id = $3 and s.deleted_at is null`,
);

export async function findSet(connection: Connection, set: SetKey): Promise<SetRow | null> {
  const [row] = await connection.rows(selectSet, [set.organizationId, set.kind, set.id]);
  return row ?? null;
}

/**
 * Returns one row more than the page holds, by the index contact_sets_kind. `search` matches anywhere in the name,
 * without an index: organizations have hundreds of lists, not millions.
 */
export async function listSets(
  connection: Connection,
  wanted: { organizationId: string; kind: SetKind; search?: string; page: Page },
): Promise<SetRow[]> {
  const { organizationId, kind, search, page } = wanted;
  return connection.rows(
    unpreparedStatement<SetRow>(
      `select ${setColumns}
       from contact_sets s
       where s.organization_id = $1 and s.kind = $2 and s.deleted_at is null
         and ($3::text is null or strpos(s.name_key, $3) > 0)
         ${pageClause(page, 's.id', '$4')}
       limit $5`,
    ),
    [organizationId, kind, search === undefined ? null : toSearchKey(search), cursorOf(page), page.limit + 1],
  );
}

/** Throws a unique violation of contact_sets_name if there is another list, or tag, of that name. */
export async function updateSet(
  connection: Connection,
  set: SetKey & { patch: SetPatch; at: Date },
): Promise<SetRow | null> {
  const { patch } = set;
  const rows = await connection.rows(
    unpreparedStatement(
      `update contact_sets
       set name = coalesce($4, name), name_key = coalesce($5, name_key),
         description = case when $6 then $7 else description end, updated_at = $8
       where organization_id = $1 and kind = $2 and id = $3 and deleted_at is null
       returning id`,
    ),
    [
      set.organizationId,
      set.kind,
      set.id,
      patch.name ?? null,
      patch.name === undefined ? null : toSearchKey(patch.name),
      patch.description !== undefined,
      patch.description ?? null,
      set.at,
    ],
  );
  return rows.length === 0 ? null : findSet(connection, set);
}

/** Locks the set until the transaction ends, so that it cannot be deleted and no new hold on it can be made. */
export async function lockSet(connection: Connection, set: SetKey): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from contact_sets
       where organization_id = $1 and kind = $2 and id = $3 and deleted_at is null
       for update`,
    ),
    [set.organizationId, set.kind, set.id],
  );
  return rows.length === 1;
}

/** From now on the API does not show the set. `removeMembersOfDeleted` removes its members. */
export async function markSetDeleted(connection: Connection, set: SetKey, at: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update contact_sets
       set deleted_at = $4
       where organization_id = $1 and kind = $2 and id = $3`,
    ),
    [set.organizationId, set.kind, set.id, at],
  );
}

/**
 * The kinds and names of those of the sets that exist, and whether their members were computed. On request, the sets
 * are locked against deletion.
 */
export async function findSets(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
  options: { areKept: boolean } = { areKept: false },
): Promise<Map<string, { kind: SetKind; name: string; isReady: boolean }>> {
  if (ids.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<{ id: string; kind: SetKind; name: string; is_ready: boolean }>(
      `select id, kind, name, is_ready
       from contact_sets
       where organization_id = $1 and id = any ($2::uuid[]) and deleted_at is null
       ${options.areKept ? 'order by id for key share' : ''}`,
    ),
    [organizationId, ids],
  );
  return new Map(rows.map(({ id, kind, name, is_ready: isReady }) => [id, { kind, name, isReady }]));
}

/** Lists and tags of these contacts, oldest first. */
export async function listSetsOfContacts(
  connection: Connection,
  organizationId: string,
  contactIds: readonly string[],
): Promise<{ contact_id: string; set_id: string; kind: 'list' | 'tag' }[]> {
  return connection.rows(
    unpreparedStatement<{ contact_id: string; set_id: string; kind: 'list' | 'tag' }>(
      `select m.contact_id, m.set_id, s.kind
       from memberships m
       join contact_sets s on s.organization_id = m.organization_id and s.id = m.set_id
       where m.organization_id = $1 and m.contact_id = any ($2::uuid[])
         and s.kind <> 'segment' and s.deleted_at is null
       order by m.contact_id, m.set_id`,
    ),
    [organizationId, contactIds],
  );
}

/** Those of these lists that the contact is in, by name. */
export async function listMemberLists(
  connection: Connection,
  wanted: { organizationId: string; contactId: string; listIds: readonly string[] },
): Promise<{ id: string; name: string }[]> {
  return connection.rows(
    unpreparedStatement<{ id: string; name: string }>(
      `select s.id, s.name
       from contact_sets s
       join memberships m on m.organization_id = s.organization_id and m.set_id = s.id
       where s.organization_id = $1 and s.id = any ($3::uuid[]) and s.kind = 'list' and s.deleted_at is null
         and m.contact_id = $2
       order by s.name_key, s.id`,
    ),
    [wanted.organizationId, wanted.contactId, wanted.listIds],
  );
}

/** What happened to the contacts that were to join or leave a set. */
export type MembershipChange = { found: string[]; changed: string[] };

/**
 * Locks the set and the contacts against deletion: otherwise memberships of deleted ones could remain and never be
 * removed. Null if the set is deleted already.
 */
export async function insertMembers(
  connection: Connection,
  set: { organizationId: string; setId: string; contactIds: readonly string[] },
): Promise<MembershipChange | null> {
  const [row] = await connection.rows(
    unpreparedStatement<MembershipChange>(
      `with target as (
         select id
         from contact_sets
         where organization_id = $1 and id = $2 and deleted_at is null
         for key share
       ), found as (
         select id
         from contacts
         where organization_id = $1 and id = any ($3::uuid[])
         order by id
         for key share
       ), joined as (
         insert into memberships (organization_id, set_id, contact_id)
         select $1, target.id, found.id
         from target cross join found
         on conflict do nothing
         returning contact_id
       )
       select array(select id from found) as found, array(select contact_id from joined) as changed
       from target`,
    ),
    [set.organizationId, set.setId, set.contactIds],
  );
  return row ?? null;
}

/** The contact must have been created in the same transaction, and the sets be locked against deletion. */
export async function insertMemberships(
  connection: Connection,
  memberships: { organizationId: string; contactId: string; setIds: readonly string[] },
): Promise<void> {
  if (memberships.setIds.length === 0) return;
  await connection.rows(
    unpreparedStatement(
      `insert into memberships (organization_id, set_id, contact_id)
       select distinct $1::uuid, set_id, $2::uuid
       from unnest($3::uuid[]) as wanted (set_id)`,
    ),
    [memberships.organizationId, memberships.contactId, memberships.setIds],
  );
}

export async function deleteMembers(
  connection: Connection,
  set: { organizationId: string; setId: string; contactIds: readonly string[] },
): Promise<MembershipChange> {
  const [row] = await connection.rows(
    unpreparedStatement<MembershipChange>(
      `with found as (
         select id
         from contacts
         where organization_id = $1 and id = any ($3::uuid[])
       ), gone as (
         delete from memberships
         where organization_id = $1 and set_id = $2 and contact_id = any ($3::uuid[])
         returning contact_id
       )
       select array(select id from found) as found, array(select contact_id from gone) as changed`,
    ),
    [set.organizationId, set.setId, set.contactIds],
  );
  return row ?? { found: [], changed: [] };
}

export type DeletedSet = { organizationId: string; id: string; deletedAt: Date };

const findDeletedSets = statement<{ organization_id: string }>(
  'contact_sets_find_deleted',
  organizationsDue({ table: 'contact_sets', among: 'deleted_at is not null', due: 'deleted_at <= $1' }),
);

/** Organizations with sets that were deleted, after `after`, in the order of their ids. */
export async function findOrganizationsOfDeletedSets(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(findDeletedSets, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/**
 * Takes the organization's set that was deleted first, but none of `exceptIds`; another node that asks before the
 * transaction ends gets another one. Null if there is none.
 */
export async function takeDeletedSet(
  transaction: Connection,
  { organizationId, exceptIds }: { organizationId: string; exceptIds: readonly string[] },
): Promise<DeletedSet | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ organization_id: string; id: string; deleted_at: Date }>(
      `select organization_id, id, deleted_at
       from contact_sets
       where organization_id = $1 and deleted_at is not null and id <> all ($2::uuid[])
       order by deleted_at
       limit 1
       for update skip locked`,
    ),
    [organizationId, exceptIds],
  );
  return row === undefined
    ? null
    : { organizationId: row.organization_id, id: row.id, deletedAt: row.deleted_at };
}

/** Removes members of a set that was deleted, and the set itself when there are no more. */
export async function removeMembersOfDeleted(
  transaction: Connection,
  set: { organizationId: string; id: string },
  limit: number,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `with leaving as (
         select m.organization_id, m.set_id, m.contact_id
         from memberships m
         where m.organization_id = $1 and m.set_id = $2
         limit $3
       ), gone as (
         delete from memberships m
         using leaving
         where m.organization_id = leaving.organization_id
           and m.set_id = leaving.set_id
           and m.contact_id = leaving.contact_id
       ), removed as (
         delete from contact_sets s
         where s.organization_id = $1
           and s.id = $2
           and not exists (select from leaving)
         returning s.organization_id, s.id
       )
       delete from membership_counts n
       using removed
       where n.organization_id = removed.organization_id and n.set_id = removed.id`,
    ),
    [set.organizationId, set.id, limit],
  );
}

/** What a holder uses. None of it can be deleted while it is held. */
export type Held = { kind: SetKind | 'property' | OutsideKind; id: string };

/** What belongs to other rooms. */
type OutsideKind = 'template' | 'event' | 'chat_template';

const outsideKinds: readonly string[] = ['template', 'event', 'chat_template'] satisfies OutsideKind[];

export type Holder = { organizationId: string; kind: 'segment' | 'campaign'; id: string };

/**
 * Replaces everything that the holder holds. Locks what is to be held, so that it cannot be deleted in the meantime. If
 * some ids do not exist, returns these and writes nothing. Templates and events belong to other rooms: the caller must
 * have locked them before.
 */
export async function replaceHolds(
  transaction: Connection,
  holder: Holder,
  held: readonly Held[],
): Promise<string[]> {
  const setIds = held
    .filter(({ kind }) => kind !== 'property' && !outsideKinds.includes(kind))
    .map(({ id }) => id);
  const propertyIds = held.filter(({ kind }) => kind === 'property').map(({ id }) => id);
  const there = await Promise.all([
    lockForHold(transaction, 'contact_sets', holder.organizationId, setIds),
    lockForHold(transaction, 'contact_properties', holder.organizationId, propertyIds),
  ]);
  const thereIds = new Set(there.flat());
  const missing = [...setIds, ...propertyIds].filter((id) => !thereIds.has(id));
  if (missing.length > 0) return missing;
  await transaction.rows(
    unpreparedStatement('delete from holds where organization_id = $1 and holder_id = $2'),
    [holder.organizationId, holder.id],
  );
  await transaction.rows(
    unpreparedStatement(
      `insert into holds (organization_id, held_kind, held_id, holder_kind, holder_id)
       select distinct $1::uuid, kind, id, $2, $3::uuid
       from unnest($4::text[], $5::uuid[]) as held (kind, id)`,
    ),
    [holder.organizationId, holder.kind, holder.id, held.map(({ kind }) => kind), held.map(({ id }) => id)],
  );
  return [];
}

/** Locks them against deletion until the transaction ends, and returns the ids of those that exist. */
export async function lockForHold(
  transaction: Connection,
  table: 'contact_sets' | 'contact_properties',
  organizationId: string,
  ids: readonly string[],
): Promise<string[]> {
  if (ids.length === 0) return [];
  const rows = await transaction.rows(
    unpreparedStatement<{ id: string }>(
      `select id
       from ${table}
       where organization_id = $1 and id = any ($2::uuid[]) and deleted_at is null
       order by id
       for key share`,
    ),
    [organizationId, ids],
  );
  return rows.map(({ id }) => id);
}

const selectHeld = statement<{ held_id: string }>(
  'audience_select_held',
  `select wanted.held_id
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, held_id)
   -- The limit makes each a look-up in the primary key.
   cross join lateral (
     select
     from holds h
     where h.organization_id = wanted.organization_id and h.held_id = wanted.held_id
     limit 1
   ) held`,
);

/** The ids of those that anything uses. */
export async function findHeld(
  connection: Connection,
  keys: readonly { organizationId: string; id: string }[],
): Promise<ReadonlySet<string>> {
  if (keys.length === 0) return new Set();
  const rows = await connection.rows(selectHeld, [
    keys.map(({ organizationId }) => organizationId),
    keys.map(({ id }) => id),
  ]);
  return new Set(rows.map(({ held_id }) => held_id));
}

/** Who uses it, if anything does. It must be locked before. */
export async function findHolder(
  transaction: Connection,
  held: { organizationId: string; id: string },
): Promise<Holder | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ holder_kind: Holder['kind']; holder_id: string }>(
      `select holder_kind, holder_id
       from holds
       where organization_id = $1 and held_id = $2
       order by holder_kind
       limit 1`,
    ),
    [held.organizationId, held.id],
  );
  return row === undefined
    ? null
    : { organizationId: held.organizationId, kind: row.holder_kind, id: row.holder_id };
}

/**
 * Sets whether the members of segments can be read. Locks in the order of the ids, so that two transactions cannot
 * deadlock.
 */
export async function setReadiness(
  connection: Connection,
  sets: { organizationId: string; ids: readonly string[]; isReady: boolean },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with these as (
         select id
         from contact_sets
         where organization_id = $1 and id = any ($2::uuid[])
         order by id
         for no key update
       )
       update contact_sets s
       set is_ready = $3
       from these
       where s.organization_id = $1 and s.id = these.id`,
    ),
    [sets.organizationId, sets.ids, sets.isReady],
  );
}

const selectReaders = statement<{ organization_id: string }>(
  'audience_select_message_readers',
  `select wanted.organization_id
   from unnest($1::uuid[]) as wanted (organization_id)
   -- The limit makes each a look-up in the index contact_sets_reading, which has only such segments.
   cross join lateral (
     select
     from contact_sets s
     where s.organization_id = wanted.organization_id and s.reads_messages and s.deleted_at is null
     limit 1
   ) reader`,
);

/** SQL: whether the organization has a segment that reads messages. Uses the same index. */
export function hasMessageReader(organizationId: string): Predicate {
  return toPredicate(
    `exists (
       select from contact_sets s
       where s.organization_id = ${organizationId} and s.reads_messages and s.deleted_at is null
       limit 1
     )`,
  );
}

/** Those of these organizations, each named once, that have a segment that reads messages. */
export async function findMessageReaders(
  connection: Connection,
  organizationIds: readonly string[],
): Promise<ReadonlySet<string>> {
  const rows = await connection.rows(selectReaders, [organizationIds]);
  return new Set(rows.map(({ organization_id }) => organization_id));
}

/**
 * Marks whether a segment reads messages. If it does, transactions that change recipients insert changes for it from
 * then on.
 */
export async function markMessageReader(
  connection: Connection,
  { organizationId, id, readsMessages }: { organizationId: string; id: string; readsMessages: boolean },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update contact_sets
       set reads_messages = $3
       where organization_id = $1 and id = $2 and reads_messages <> $3`,
    ),
    [organizationId, id, readsMessages],
  );
}

/** The kinds of all sets that any segment or campaign of the organization uses. */
export async function findHeldSets(
  connection: Connection,
  organizationId: string,
): Promise<Map<string, SetKind>> {
  const rows = await connection.rows(
    unpreparedStatement<{ held_id: string; held_kind: SetKind }>(
      `select distinct held_id, held_kind
       from holds
       where organization_id = $1 and held_kind in ('list', 'tag', 'segment')`,
    ),
    [organizationId],
  );
  return new Map(rows.map(({ held_id, held_kind }) => [held_id, held_kind]));
}

/**
 * Makes the contacts for which a predicate over `contact`, and over what it joins to it, is true the members of a segment,
 * and writes only differences. What is joined has one row for each contact at most. The predicate's values begin with the
 * organization, the segment, and, if `isPartial`, the ids of the contacts to which the update is limited. No other
 * transaction may write the members of the segment in the meantime. `toldAt`: when programs that want to hear of it are
 * told that they entered and left; null if nobody is told.
 */
export async function syncMembers(
  transaction: Connection,
  predicate: { text: Predicate; joins: string; values: readonly unknown[] },
  { isPartial, toldAt }: { isPartial: boolean; toldAt: Date | null },
): Promise<{ joined: number; left: number }> {
  const among = (column: string) =>
    toPredicate(isPartial ? `${column} = any ($3::uuid[])` : '$3::uuid[] is null');
  const at = `$${predicate.values.length + 1}::timestamptz`;
  const [row] = await transaction.rows(
    unpreparedStatement<{ joined: number; left: number }>(
      `with matching as materialized (
         select contact.id
         from contacts contact ${predicate.joins}
         where contact.organization_id = $1 and ${among('contact.id')} and ${predicate.text}
       ), joined as (
         insert into memberships (organization_id, set_id, contact_id)
         select $1, $2, matching.id
         from matching
         where not exists (
           select
           from memberships m
           where m.organization_id = $1 and m.set_id = $2 and m.contact_id = matching.id
         )
         on conflict do nothing
         returning contact_id
       ), gone as (
         delete from memberships m
         where m.organization_id = $1 and m.set_id = $2 and ${among('m.contact_id')}
           and not exists (select from matching where matching.id = m.contact_id)
         returning m.contact_id
       ), logged as (
         ${insertIntoOutbox(
           `select $1, moved.type, ${at}, false, moved.contact_ids, null,
             json_build_array(json_build_object('segment_id', $2::uuid))
           from (${selectMoved('joined', 'segment.entered', at)} union all ${selectMoved('gone', 'segment.left', at)}) moved`,
         )}
         returning true as is_logged
       ), woken as (
         ${wakeNumbering('logged')}
       )
       select (select count(*) from joined) as joined, (select count(*) from gone) as left, (select count(*) from woken)`,
    ),
    [...predicate.values, toldAt],
  );
  return row ?? { joined: 0, left: 0 };
}

/** What is told of a contact that entered or left a segment besides the contact. */
export type SegmentFacts = { segment_id: string };

/** SQL: the contacts of a CTE in pieces of so many as a row of the log has. Nothing is read if nobody is told. */
function selectMoved(
  moved: 'joined' | 'gone',
  type: 'segment.entered' | 'segment.left',
  toldAt: string,
): string {
  return `select '${type}' as type, array_agg(contact_id order by contact_id) as contact_ids
     from (
       select contact_id, (row_number() over (order by contact_id) - 1) / ${eventsOfRowMax} as piece
       from ${moved}
       where ${toldAt} is not null and ${isEventWanted('$1', `'${type}'`, 'false')}
     ) placed
     group by piece`;
}
