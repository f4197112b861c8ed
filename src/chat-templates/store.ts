import type {
  TemplateCategory,
  TemplateContent,
  TemplateQuality,
  TemplateState,
} from '../channels/chatapp/chatapp.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';

export type TemplateKey = { organizationId: string; id: string };

export type TemplateStatus = 'pending' | 'approved' | 'rejected';

/** What is to be done with a template at the provider next. */
export type NextStep = 'submit' | 'look_up' | 'review' | 'edit' | 'delete';

export type TemplateRow = {
  organization_id: string;
  id: string;
  name: string;
  language: string;
  category: TemplateCategory;
  content: TemplateContent;
  status: TemplateStatus;
  rejection_reason: string | null;
  reviewed_at: Date | null;
  provider_template_id: string | null;
  provider_state: TemplateState | null;
  provider_category: TemplateCategory | null;
  quality: TemplateQuality;
  next_step: NextStep | null;
  due_at: Date | null;
  is_uncertain: boolean;
  submitted_at: Date | null;
  problem: string | null;
  /** What it is to say once the provider takes it; null where no edit is under way. */
  edited_content: TemplateContent | null;
  is_edit_uncertain: boolean;
  edited_at: Date | null;
  edit_refusal: string | null;
  /** The last ones while it was approved, the oldest first. */
  edits: Date[];
  marketing_from: Date | null;
  missing_since: Date | null;
  /** See refusals.ts. */
  refused_hand_offs: number;
  refused_reports: string[];
  refusal_words: string | null;
  paused_until: Date | null;
  created_at: Date;
  updated_at: Date;
  deleted_at: Date | null;
};

const columnNames = [
  'organization_id',
  'id',
  'name',
  'language',
  'category',
  'content',
  'status',
  'rejection_reason',
  'reviewed_at',
  'provider_template_id',
  'provider_state',
  'provider_category',
  'quality',
  'next_step',
  'due_at',
  'is_uncertain',
  'submitted_at',
  'problem',
  'edited_content',
  'is_edit_uncertain',
  'edited_at',
  'edit_refusal',
  'edits',
  'marketing_from',
  'missing_since',
  'refused_hand_offs',
  'refused_reports',
  'refusal_words',
  'paused_until',
  'created_at',
  'updated_at',
  'deleted_at',
] as const satisfies readonly (keyof TemplateRow)[];

export const templateColumns = columnNames.map((name) => `t.${name}`).join(', ');

export type NewTemplate = TemplateKey & {
  name: string;
  language: string;
  category: TemplateCategory;
  content: TemplateContent;
  at: Date;
};

/** Throws a unique violation of chat_templates_name if there is another one of that name and language. */
export async function insertTemplate(connection: Connection, template: NewTemplate): Promise<TemplateRow> {
  const [row] = await connection.rows(
    unpreparedStatement<TemplateRow>(
      `insert into chat_templates as t
         (organization_id, id, name, language, category, content, status, quality, next_step, due_at, created_at,
         updated_at)
       values ($1, $2, $3, $4, $5, $6, 'pending', 'unknown', 'submit', $7, $7, $7)
       returning ${templateColumns}`,
    ),
    [
      template.organizationId,
      template.id,
      template.name,
      template.language,
      template.category,
      JSON.stringify(template.content),
      template.at,
    ],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

/** Whether the organization has so many templates or more, without those that were deleted. */
export async function hasTemplates(
  connection: Connection,
  organizationId: string,
  count: number,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from chat_templates
       where organization_id = $1 and deleted_at is null
       offset $2
       limit 1`,
    ),
    [organizationId, count - 1],
  );
  return rows.length === 1;
}

const selectTemplate = statement<TemplateRow>(
  'chat_templates_select',
  `select ${templateColumns}
   from chat_templates t
   where t.organization_id = $1 and t.id = $2 and t.deleted_at is null`,
);

const selectTemplateByName = statement<TemplateRow>(
  'chat_templates_select_by_name',
  `select ${templateColumns}
   from chat_templates t
   where t.organization_id = $1 and t.name = $2 and t.language = $3 and t.deleted_at is null`,
);

/** What names a template within its organization. */
export type WantedTemplate = { id: string } | { name: string; language: string };

/** Null for one that was deleted. Locks nothing. */
export async function findTemplate(
  connection: Connection,
  organizationId: string,
  wanted: WantedTemplate,
): Promise<TemplateRow | null> {
  const [row] = await ('id' in wanted
    ? connection.rows(selectTemplate, [organizationId, wanted.id])
    : connection.rows(selectTemplateByName, [organizationId, wanted.name, wanted.language]));
  return row ?? null;
}

/** The same, and kept from being deleted until the transaction ends; a review may change it. */
export async function keepTemplate(
  connection: Connection,
  template: TemplateKey,
): Promise<TemplateRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.id = $2 and t.deleted_at is null
       for key share`,
    ),
    [template.organizationId, template.id],
  );
  return row ?? null;
}

const selectTemplates = statement<TemplateRow>(
  'chat_templates_select_many',
  `select ${templateColumns}
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   join chat_templates t on ${hasKeyOf('t', 'wanted', ['id'])}`,
);

/** Those that there are, also of deleted ones. The transaction should plan by indexes. */
export async function findTemplates(
  connection: Connection,
  wanted: readonly TemplateKey[],
): Promise<TemplateRow[]> {
  return connection.rows(selectTemplates, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ id }) => id),
  ]);
}

export type ListedTemplates = {
  organizationId: string;
  name?: string | undefined;
  language?: string | undefined;
  status?: TemplateStatus | undefined;
  category?: TemplateCategory | undefined;
  page: Page;
};

/** One row more than the page holds, read off the primary key. Organizations have thousands of them at most. */
export async function listTemplates(connection: Connection, wanted: ListedTemplates): Promise<TemplateRow[]> {
  const { organizationId, name, language, status, category, page } = wanted;
  return connection.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.deleted_at is null
         and ($2::text is null or t.name = $2)
         and ($3::text is null or t.language = $3)
         and ($4::text is null or t.status = $4)
         and ($5::text is null or t.category = $5)
         ${pageClause(page, 't.id', '$6')}
       limit $7`,
    ),
    [
      organizationId,
      name ?? null,
      language ?? null,
      status ?? null,
      category ?? null,
      cursorOf(page),
      page.limit + 1,
    ],
  );
}

/**
 * Also one that was deleted. `for update` prevents its deletion, and new holds on it, until the transaction ends; `for no
 * key update` prevents changes alone.
 */
export async function lockTemplate(
  transaction: Connection,
  template: TemplateKey,
  strength: 'for update' | 'for no key update',
): Promise<TemplateRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.id = $2
       ${strength}`,
    ),
    [template.organizationId, template.id],
  );
  return row ?? null;
}

/**
 * Locks those of these names and languages, in the order of their ids, as everybody does who locks more than one. By the
 * index chat_templates_name.
 */
export async function lockNamedTemplates(
  transaction: Connection,
  organizationId: string,
  named: readonly { name: string; language: string }[],
): Promise<TemplateRow[]> {
  return transaction.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from chat_templates t
       where t.organization_id = $1 and t.deleted_at is null and (t.name, t.language) in (
         select name, language
         from unnest($2::text[], $3::text[]) as wanted (name, language)
       )
       order by t.id
       for no key update`,
    ),
    [organizationId, named.map(({ name }) => name), named.map(({ language }) => language)],
  );
}

/** What changes of a template after it was made. */
export type TemplateChange = Pick<
  TemplateRow,
  | 'content'
  | 'status'
  | 'rejection_reason'
  | 'reviewed_at'
  | 'provider_template_id'
  | 'provider_state'
  | 'provider_category'
  | 'quality'
  | 'next_step'
  | 'due_at'
  | 'is_uncertain'
  | 'submitted_at'
  | 'problem'
  | 'edited_content'
  | 'is_edit_uncertain'
  | 'edited_at'
  | 'edit_refusal'
  | 'edits'
  | 'marketing_from'
  | 'missing_since'
  | 'refused_hand_offs'
  | 'refused_reports'
  | 'refusal_words'
  | 'paused_until'
  | 'deleted_at'
>;

/** The row must be locked. `updated_at` is only touched if something changed that the API shows. */
export async function saveTemplate(
  transaction: Connection,
  template: TemplateKey & { change: TemplateChange; at: Date },
): Promise<void> {
  const { change } = template;
  await transaction.rows(
    unpreparedStatement(
      `update chat_templates
       set status = $3, rejection_reason = $4, reviewed_at = $5, provider_template_id = $6, provider_state = $7,
         provider_category = $8, quality = $9, next_step = $10, due_at = $11, is_uncertain = $12, submitted_at = $13,
         problem = $14, deleted_at = $15, content = $17, edited_content = $18, is_edit_uncertain = $19,
         edit_refusal = $20, edits = $21::timestamptz[], marketing_from = $22, missing_since = $23,
         edited_at = $24, refused_hand_offs = $25, refused_reports = $26::text[], refusal_words = $27,
         paused_until = $28,
         updated_at = case
           when (status, rejection_reason, provider_state, provider_category, quality, problem, deleted_at,
             content::text, edited_content::text, edit_refusal, marketing_from, paused_until)
             is distinct from ($3, $4, $7, $8, $9, $14, $15, $17::json::text, $18::json::text, $20, $22, $28) then $16
           else updated_at
         end
       where organization_id = $1 and id = $2`,
    ),
    [
      template.organizationId,
      template.id,
      change.status,
      change.rejection_reason,
      change.reviewed_at,
      change.provider_template_id,
      change.provider_state,
      change.provider_category,
      change.quality,
      change.next_step,
      change.due_at,
      change.is_uncertain,
      change.submitted_at,
      change.problem,
      change.deleted_at,
      template.at,
      JSON.stringify(change.content),
      change.edited_content === null ? null : JSON.stringify(change.edited_content),
      change.is_edit_uncertain,
      change.edit_refusal,
      change.edits,
      change.marketing_from,
      change.missing_since,
      change.edited_at,
      change.refused_hand_offs,
      change.refused_reports,
      change.refusal_words,
      change.paused_until,
    ],
  );
}

/** The ids of those of which messages were reported as refused. By the index chat_templates_refused. */
export async function findRefusedTemplates(
  connection: Connection,
  organizationId: string,
): Promise<Set<string>> {
  const rows = await connection.rows(selectRefused, [organizationId]);
  return new Set(rows.map(({ id }) => id));
}

const selectRefused = statement<{ id: string }>(
  'chat_templates_select_refused',
  `select id
   from chat_templates
   where organization_id = $1 and refused_reports <> '{}' and deleted_at is null`,
);

/** Of all organizations, by the index chat_templates_paused. */
export async function clearEndedPauses(
  connection: Connection,
  at: Date,
  limit: number,
): Promise<TemplateRow[]> {
  return connection.rows(
    unpreparedStatement<TemplateRow>(
      `with over as (
         select organization_id, id
         from chat_templates
         where paused_until <= $1 and ${isNotDeleted('organization_id')}
         limit $2
         for no key update skip locked
       )
       update chat_templates t
       set paused_until = null, updated_at = $1
       from over
       where ${hasKeyOf('t', 'over', ['id'])}
       returning ${templateColumns}`,
    ),
    [at, limit],
  );
}

/** Of all organizations, by the index chat_templates_paused; null where nothing is paused. */
export async function findNextPauseEnd(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ paused_until: Date }>(
      `select paused_until
       from chat_templates
       where paused_until is not null and ${isNotDeleted('organization_id')}
       order by paused_until
       limit 1`,
    ),
  );
  return row?.paused_until ?? null;
}
