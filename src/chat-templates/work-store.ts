import { dateOf } from '../platform/clock.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import { lockSubmissions, saveSubmissions } from './account-store.ts';
import { templateColumns, type TemplateRow } from './store.ts';

const findDue = statement<{ organization_id: string }>(
  'chat_templates_find_due',
  organizationsDue({ table: 'chat_templates', among: 'due_at is not null', due: 'due_at <= $1' }),
);

/** Those with work that is due, after `after`, in the order of their ids; by the index chat_templates_turns. */
export async function findDueOrganizations(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(findDue, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/** The first instant after this one at which work is due, by the index chat_templates_due. */
export async function findNextDueAt(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ due_at: Date }>(
      `select due_at
       from chat_templates
       where due_at > $1 and ${isNotDeleted('organization_id')}
       order by due_at
       limit 1`,
    ),
    [after],
  );
  return row?.due_at ?? null;
}

type Taking = { organizationId: string; at: Date; leaseUntil: Date };

/** Templates to be looked at or looked up, as they were before they were taken. Others may be taken meanwhile. */
export async function takeReviews(
  transaction: Connection,
  { organizationId, at, leaseUntil, limit }: Taking & { limit: number },
): Promise<TemplateRow[]> {
  const rows = await transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.due_at <= $2 and t.next_step in ('review', 'look_up')
       order by t.due_at
       limit $3
       for no key update skip locked`,
    ),
    [organizationId, at, limit],
  );
  await extendLeases(transaction, organizationId, rows, leaseUntil);
  return rows;
}

/** A template to be deleted at the provider. */
export async function takeDeletion(
  transaction: Connection,
  { organizationId, at, leaseUntil }: Taking,
): Promise<TemplateRow | null> {
  const rows = await transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.due_at <= $2 and t.next_step = 'delete'
       order by t.due_at
       limit 1
       for no key update skip locked`,
    ),
    [organizationId, at],
  );
  await extendLeases(transaction, organizationId, rows, leaseUntil);
  return rows[0] ?? null;
}

/** A template to be edited at the provider, as it was before it was taken; from now on the edit may be made there. */
export async function takeEdit(
  transaction: Connection,
  { organizationId, at, leaseUntil }: Taking,
): Promise<TemplateRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.due_at <= $2 and t.next_step = 'edit'
       order by t.due_at, t.id
       limit 1
       for no key update skip locked`,
    ),
    [organizationId, at],
  );
  if (row === undefined) return null;
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set is_edit_uncertain = true, due_at = $3
       where organization_id = $1 and id = $2`,
    ),
    [organizationId, row.id, leaseUntil],
  );
  return row;
}

async function extendLeases(
  transaction: Connection,
  organizationId: string,
  rows: readonly TemplateRow[],
  leaseUntil: Date,
): Promise<void> {
  if (rows.length === 0) return;
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set due_at = $3
       where organization_id = $1 and id = any ($2::uuid[])`,
    ),
    [organizationId, rows.map(({ id }) => id), leaseUntil],
  );
}

/** What the provider takes of an account in an hour (Meta: templates overview of 2026-05-05). */
const submissionsPerHourMax = 100;
const hourMs = 3_600_000;
/** How long a template waits before it is seen again whether its predecessor is deleted. */
const blockedMs = 60_000;

/**
 * A template to be submitted, as it was before it was taken; from now on it may be at the provider. The times of
 * submissions are kept with the account, whose lock all nodes take, so that they keep to the pace together. An
 * organization without an account has no pace: its provider needs none.
 */
export async function takeSubmission(
  transaction: Connection,
  { organizationId, at, leaseUntil }: Taking,
): Promise<TemplateRow | null> {
  const submissions = await lockSubmissions(transaction, organizationId);
  await postponeBlocked(transaction, { organizationId, at, until: dateOf(at.getTime() + blockedMs) });
  const recent = (submissions ?? []).filter((time) => time.getTime() > at.getTime() - hourMs);
  const [oldest] = recent;
  if (oldest !== undefined && recent.length >= submissionsPerHourMax) {
    await postponeSubmissions(transaction, {
      organizationId,
      at,
      until: dateOf(oldest.getTime() + hourMs),
    });
    return null;
  }
  const [row] = await transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.due_at <= $2 and t.next_step = 'submit'
       order by t.due_at, t.id
       limit 1
       for no key update skip locked`,
    ),
    [organizationId, at],
  );
  if (row === undefined) return null;
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set next_step = 'look_up', is_uncertain = true, due_at = $3
       where organization_id = $1 and id = $2`,
    ),
    [organizationId, row.id, leaseUntil],
  );
  if (submissions !== null) await saveSubmissions(transaction, organizationId, [...recent, at]);
  return row;
}

type Postponing = { organizationId: string; at: Date; until: Date };

/** Those whose predecessor of the same name and language is still to be deleted at the provider. */
async function postponeBlocked(
  transaction: Connection,
  { organizationId, at, until }: Postponing,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates t
       set due_at = $3
       where t.organization_id = $1 and t.due_at <= $2 and t.next_step = 'submit' and exists (
         select from chat_templates d
         where d.organization_id = $1 and d.name = t.name and d.language = t.language and d.next_step = 'delete'
       )`,
    ),
    [organizationId, at, until],
  );
}

async function postponeSubmissions(
  transaction: Connection,
  { organizationId, at, until }: Postponing,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set due_at = $3
       where organization_id = $1 and due_at <= $2 and next_step = 'submit'`,
    ),
    [organizationId, at, until],
  );
}

/** All that is due, saying why where it was not submitted yet. */
export async function postponeDue(
  transaction: Connection,
  { organizationId, at, until, words }: Postponing & { words: string },
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set due_at = $3, problem = case when next_step in ('submit', 'look_up', 'edit') then $4 else problem end
       where organization_id = $1 and due_at <= $2`,
    ),
    [organizationId, at, until, words],
  );
}

/** What waits for the account is due again: it has other credentials. */
export async function bringForward(transaction: Connection, organizationId: string, at: Date): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set due_at = $2
       where organization_id = $1 and due_at > $2 and next_step <> 'look_up'`,
    ),
    [organizationId, at],
  );
}

/** In the order of their ids, as everybody does who locks more than one. */
export async function lockTemplates(
  transaction: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<TemplateRow[]> {
  return transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.id = any ($2::uuid[])
       order by t.id
       for no key update`,
    ),
    [organizationId, ids],
  );
}
