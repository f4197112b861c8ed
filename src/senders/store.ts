import type { SenderType } from '../channels/sms/sms.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';

export type SenderStatus = 'pending' | 'approved' | 'rejected';

export type SenderRow = {
  organization_id: string;
  id: string;
  name: string;
  type: SenderType;
  status: SenderStatus;
  approved_at: Date | null;
  created_at: Date;
  updated_at: Date;
};

const senderColumns = 'organization_id, id, name, type, status, approved_at, created_at, updated_at';

/** A name within an organization. */
export type SenderName = { organizationId: string; name: string };

const selectApproved = statement<{ organization_id: string; name: string; type: SenderType }>(
  'senders_select_approved',
  `select s.organization_id, s.name, s.type
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, name)
   join senders s on s.organization_id = wanted.organization_id and s.name = wanted.name
   where s.status = 'approved'`,
);

/** SQL over a row `sender` with `organization_id` and `name`: whether that is an approved sender of the organization. */
export const isApprovedSender = toPredicate(
  `select s.status = 'approved' from senders s where ${hasKeyOf('s', 'sender', ['name'])} limit 1`,
);

/** Those of the senders that are approved, each read off the unique index of its organization's names. */
export async function findApproved(
  connection: Connection,
  wanted: readonly SenderName[],
): Promise<(SenderName & { type: SenderType })[]> {
  const rows = await connection.rows(selectApproved, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ name }) => name),
  ]);
  return rows.map((row) => ({ organizationId: row.organization_id, name: row.name, type: row.type }));
}

const selectByNumber = statement<{ organization_id: string; status: SenderStatus }>(
  'senders_select_by_number',
  `select organization_id, status
   from senders
   where name = $1 and status <> 'pending' and type <> 'alphanumeric' and ${isNotDeleted('organization_id')}
   order by organization_id`,
);

/**
 * Whose a number is or was, over all organizations, which only a connection outside of the second wall sees. One that
 * is pending has never been sent from.
 */
export async function findNumber(
  connection: Connection,
  name: string,
): Promise<{ organizationId: string; status: SenderStatus }[]> {
  const rows = await connection.rows(selectByNumber, [name]);
  return rows.map((row) => ({ organizationId: row.organization_id, status: row.status }));
}

/** One row more than the page holds, read off the primary key. */
export async function listApproved(
  connection: Connection,
  organizationId: string,
  page: Page,
): Promise<SenderRow[]> {
  return connection.rows(
    unpreparedStatement<SenderRow>(
      `select ${senderColumns}
       from senders
       where organization_id = $1 and status = 'approved' ${pageClause(page, 'id', '$2')}
       limit $3`,
    ),
    [organizationId, cursorOf(page), page.limit + 1],
  );
}

/** Those of an organization, whatever their status, newest first. */
export async function listSenders(
  connection: Connection,
  organizationId: string,
  limit: number,
): Promise<SenderRow[]> {
  return connection.rows(
    unpreparedStatement<SenderRow>(
      `select ${senderColumns}
       from senders
       where organization_id = $1
       order by id desc
       limit $2`,
    ),
    [organizationId, limit],
  );
}

export type NewSender = SenderName & { id: string; type: SenderType; createdAt: Date };

/** Null if the organization has the name already, in whatever case. Two that add it at once take turns at the index. */
export async function insertSender(connection: Connection, sender: NewSender): Promise<SenderRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SenderRow>(
      // Pending: requests have no right to say what it is.
      `insert into senders (organization_id, id, name, type, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $5)
       on conflict do nothing
       returning ${senderColumns}`,
    ),
    [sender.organizationId, sender.id, sender.name, sender.type, sender.createdAt],
  );
  return row ?? null;
}

/** In whatever case and status; read off senders_name. */
export async function findSender(connection: Connection, sender: SenderName): Promise<SenderRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SenderRow>(
      `select ${senderColumns}
       from senders
       where organization_id = $1 and lower(name) = lower($2)`,
    ),
    [sender.organizationId, sender.name],
  );
  return row ?? null;
}

/**
 * Changes the status of a sender of any organization and returns it; null if there is none. Scans the table, which is
 * small; for an operator. Violates senders_approved_number if another organization has the number.
 */
export async function setStatus(
  connection: Connection,
  sender: { id: string; status: SenderStatus; at: Date },
): Promise<SenderRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<SenderRow>(
      `update senders
       set status = $2,
         approved_at = case when $2 = 'approved' then coalesce(approved_at, $3::timestamptz) end,
         updated_at = $3
       where id = $1
       returning ${senderColumns}`,
    ),
    [sender.id, sender.status, sender.at],
  );
  return row ?? null;
}
