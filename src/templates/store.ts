import { toSearchKey } from '../platform/characters.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import {
  type Bound,
  type Connection,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';

export type TemplateKey = { organizationId: string; id: string };

/** What a template says, as it is stored. */
export type TemplateContent = {
  subject: string | null;
  html: string | null;
  text: string | null;
  previewText: string | null;
};

export type ListedTemplateRow = {
  id: string;
  name: string;
  subject: string | null;
  preview_text: string | null;
  variables: string[];
  source_gallery_template_id: string | null;
  created_at: Date;
  updated_at: Date;
};

export type TemplateRow = ListedTemplateRow & { html: string | null; text: string | null };

/** Bodies are stored apart from the row, and read only where they are named. */
const listedColumns =
  'id, name, subject, preview_text, variables, source_gallery_template_id, created_at, updated_at';
const templateColumns = `${listedColumns}, html, text`;

export type StoredTemplate = TemplateKey &
  TemplateContent & { name: string; textOfHtml: string | null; variables: readonly string[]; at: Date };

export async function insertTemplate(
  connection: Connection,
  template: StoredTemplate & { sourceGalleryTemplateId: string | null },
): Promise<TemplateRow> {
  const [row] = await connection.rows(
    unpreparedStatement<TemplateRow>(
      `insert into templates
         (organization_id, id, name, name_key, subject, html, text, text_of_html, preview_text, variables, created_at,
         updated_at, source_gallery_template_id)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12)
       returning ${templateColumns}`,
    ),
    [...parametersOf(template), template.sourceGalleryTemplateId],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

export async function updateTemplate(
  connection: Connection,
  template: StoredTemplate,
): Promise<TemplateRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<TemplateRow>(
      `update templates
       set name = $3, name_key = $4, subject = $5, html = $6, text = $7, text_of_html = $8, preview_text = $9,
         variables = $10, updated_at = $11
       where organization_id = $1 and id = $2
       returning ${templateColumns}`,
    ),
    parametersOf(template),
  );
  return row ?? null;
}

function parametersOf(template: StoredTemplate): unknown[] {
  return [
    template.organizationId,
    template.id,
    template.name,
    toSearchKey(template.name),
    template.subject,
    template.html,
    template.text,
    template.textOfHtml,
    template.previewText,
    template.variables,
    template.at,
  ];
}

export async function findTemplate(
  connection: Connection,
  template: TemplateKey,
  options: { isLocked: boolean } = { isLocked: false },
): Promise<TemplateRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<TemplateRow>(
      `select ${templateColumns}
       from templates
       where organization_id = $1 and id = $2
       ${options.isLocked ? 'for update' : ''}`,
    ),
    [template.organizationId, template.id],
  );
  return row ?? null;
}

type ContentRow = {
  subject: string | null;
  html: string | null;
  text: string | null;
  preview_text: string | null;
  version: string;
};

/** The version is the transaction that wrote the row, which no clock can set back. */
const selectKeptContent = unpreparedStatement<ContentRow>(
  `select subject, html, coalesce(text, text_of_html) as text, preview_text, xmin::text as version
  from templates
   where organization_id = $1 and id = $2
   for key share`,
);

export type FoundContentRow = ContentRow & { organization_id: string; id: string };

const selectContents = statement<FoundContentRow>(
  'templates_select_contents',
  `select wanted.organization_id, wanted.id, t.subject, t.html, coalesce(t.text, t.text_of_html) as text, t.preview_text,
     t.xmin::text as version
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   -- The limit makes each a search by its own key.
   cross join lateral (
     select xmin, * from templates where ${hasKeyOf('templates', 'wanted', ['id'])} limit 1
   ) t`,
);

/** Which content was read: every change of the template gives it another version. */
export type KeptVersion = TemplateKey & { version: string };

/** SQL over a row `kept` with `organization_id`, `id` and `version`: whether the template still has this version. */
export const isTemplateUnchanged = toPredicate(
  `select t.xmin::text = kept.version
   from templates t
   where ${hasKeyOf('t', 'kept', ['id'])}
   limit 1`,
);

/** What was read, and of which version it is. */
export type VersionedContent = TemplateContent & { version: string };

/** By the primary key. Each template once. */
export function findContents(templates: readonly TemplateKey[]): Bound<FoundContentRow> {
  return {
    statement: selectContents,
    values: [templates.map(({ organizationId }) => organizationId), templates.map(({ id }) => id)],
  };
}

export function keyOfContent({ organization_id: organizationId, id }: FoundContentRow): TemplateKey {
  return { organizationId, id };
}

/** Of one template, which is kept from being deleted until the transaction ends. */
export async function keepContent(
  connection: Connection,
  template: TemplateKey,
): Promise<TemplateContent | null> {
  const [row] = await connection.rows(selectKeptContent, [template.organizationId, template.id]);
  return row === undefined ? null : contentOf(row);
}

/** With the text that was made of the HTML, where there is no other. */
export function contentOf({
  subject,
  html,
  text,
  preview_text: previewText,
  version,
}: ContentRow): VersionedContent {
  return { subject, html, text, previewText, version };
}

/**
 * One row more than the page holds, read off the primary key. `search` is looked for anywhere in the name, which no
 * index helps with: people have hundreds of templates, not millions.
 */
export async function listTemplates(
  connection: Connection,
  wanted: { organizationId: string; search?: string; page: Page },
): Promise<ListedTemplateRow[]> {
  const { organizationId, search, page } = wanted;
  return connection.rows(
    unpreparedStatement<ListedTemplateRow>(
      `select ${listedColumns}
       from templates
       where organization_id = $1
         and ($2::text is null or strpos(name_key, $2) > 0)
         ${pageClause(page, 'id', '$3')}
       limit $4`,
    ),
    [organizationId, search === undefined ? null : toSearchKey(search), cursorOf(page), page.limit + 1],
  );
}

/** Prevents its deletion, and new holds on it, until the transaction ends. */
export async function lockTemplate(connection: Connection, template: TemplateKey): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement('select from templates where organization_id = $1 and id = $2 for update'),
    [template.organizationId, template.id],
  );
  return rows.length === 1;
}

export async function deleteTemplate(connection: Connection, template: TemplateKey): Promise<void> {
  await connection.rows(unpreparedStatement('delete from templates where organization_id = $1 and id = $2'), [
    template.organizationId,
    template.id,
  ]);
}
