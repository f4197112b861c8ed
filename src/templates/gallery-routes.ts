import { type Static, Type } from 'typebox';
import { badRequest, notFound, resourceNotFound } from '../platform/http/errors.ts';
import { type Page, paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, instant, listOf, nameText, referenceOf } from '../platform/http/shapes.ts';
import {
  type FilterName,
  filterNames,
  type Gallery,
  type GalleryTemplate,
  matchesFilter,
} from './gallery.ts';
import { templateNameLengthMax } from './schema.ts';
import { createTemplate, type TemplateTools } from './templates.ts';

const category = Type.Object(
  { id: Type.String({ format: 'uuid' }), name: Type.String() },
  { title: 'GalleryCategory' },
);

const filterFields = <Schema>(schema: Schema) =>
  Object.fromEntries(filterNames.map((name) => [name, schema])) as Record<FilterName, Schema>;

const categoriesRecord = Type.Object(filterFields(Type.Array(category)), { title: 'GalleryCategories' });

const listedFields = {
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  description: Type.String(),
  thumbnail_url: Type.String({ description: 'An image, 480 pixels wide.' }),
  ...filterFields(Type.Array(category)),
  created_at: instant,
  updated_at: instant,
};

const listedRecord = Type.Object(listedFields, { title: 'ListedGalleryTemplate' });

const galleryTemplateRecord = Type.Object(
  {
    ...listedFields,
    subject: Type.String(),
    preview_text: Type.String(),
    html: Type.String(),
    text: Type.String(),
    variables: Type.Array(Type.String(), { description: 'The names of its placeholders.' }),
    sample_variables: Type.Record(Type.String(), Type.String(), {
      description: 'Sample values for its placeholders.',
    }),
  },
  { title: 'GalleryTemplate' },
);

const idsFilter = (what: string) =>
  Type.Optional(
    Type.String({
      format: 'template-ids',
      description: `Ids of ${what}, separated by commas; any of them matches.`,
    }),
  );

const filterParameters = {
  template_types: idsFilter('types'),
  template_seasons: idsFilter('seasons'),
  template_features: idsFilter('features'),
  template_industries: idsFilter('industries'),
};

/** Body of the copy, which may be left out. */
const copyBody = Type.Object(
  {
    name: Type.Optional(
      nameText(templateNameLengthMax, { description: "The gallery template's own when omitted." }),
    ),
  },
  { title: 'CopyGalleryTemplateRequest', additionalProperties: false },
);

export type GalleryRouteTools = TemplateTools & {
  loadGallery: () => Promise<Gallery>;
  /** Where browsers find this installation, without a final slash. */
  publicUrl: () => string;
};

export function galleryRoutes(tools: GalleryRouteTools): Route[] {
  const tag = 'Template gallery';
  const showListed = (template: GalleryTemplate): Static<typeof listedRecord> => ({
    id: template.id,
    name: template.name,
    description: template.description,
    thumbnail_url: `${tools.publicUrl()}/gallery/thumbnails/${template.slug}`,
    ...showCategories(template.categories),
    created_at: template.createdAt,
    updated_at: template.updatedAt,
  });
  const findTemplate = async (id: string) => {
    const { templates } = await tools.loadGallery();
    const template = templates.find((candidate) => candidate.id === id.toLowerCase());
    if (template === undefined) throw resourceNotFound();
    return template;
  };
  return [
    defineRoute({
      method: 'GET',
      path: '/templates/gallery',
      operationId: 'listGalleryTemplates',
      scope: 'templates:read',
      tag,
      summary: 'Browse the gallery',
      description:
        'Within one filter, any id matches. Several filters together select the templates that match all of them.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 100, description: 'Part of the name, ignoring case.' }),
          ),
          ...filterParameters,
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(listedRecord), when: 'A page of gallery templates.' },
      errors: [badRequest],
      handle: async ({ query }) => {
        const page = readPage(query);
        const { search } = query;
        const { templates } = await tools.loadGallery();
        const found = templates.filter((template) =>
          matchesFilter(template, {
            ...(search !== undefined && { search }),
            categories: {
              ...splitIds('types', query.template_types),
              ...splitIds('seasons', query.template_seasons),
              ...splitIds('features', query.template_features),
              ...splitIds('industries', query.template_industries),
            },
          }),
        );
        return json(toList(takePage(found, page), page, showListed));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/templates/gallery/categories',
      operationId: 'listGalleryCategories',
      scope: 'templates:read',
      tag,
      summary: 'List the values that the gallery can be filtered by',
      success: { statusCode: 200, schema: categoriesRecord, when: 'The values of each filter.' },
      handle: async () => json(showCategories((await tools.loadGallery()).categories)),
    }),
    defineRoute({
      method: 'GET',
      path: '/templates/gallery/:id',
      operationId: 'getGalleryTemplate',
      scope: 'templates:read',
      tag,
      summary: 'Read a gallery template',
      params: idParameter,
      success: { statusCode: 200, schema: galleryTemplateRecord, when: 'The template with its HTML.' },
      errors: [notFound],
      handle: async ({ params: { id } }) => {
        const template = await findTemplate(id);
        return json({
          ...showListed(template),
          subject: template.subject,
          preview_text: template.previewText,
          html: template.html,
          text: template.text,
          variables: Object.keys(template.variables),
          sample_variables: template.variables,
        } satisfies Static<typeof galleryTemplateRecord>);
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/templates/gallery/:id/copy',
      operationId: 'copyGalleryTemplate',
      scope: 'templates:write',
      tag,
      summary: 'Copy a gallery template into your own',
      params: idParameter,
      body: copyBody,
      isBodyOptional: true,
      success: {
        statusCode: 201,
        schema: referenceOf('TemplateReference'),
        when: 'The id of the new template.',
      },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const { name, subject, html, text, previewText, id: sourceId } = await findTemplate(id);
        const copy = { name: body.name ?? name, subject, html, text, preview_text: previewText };
        const saved = await createTemplate(tools, organizationId, copy, sourceId);
        if (saved.kind !== 'saved') throw new Error(`the gallery template ${sourceId} cannot be saved`);
        return json({ id: saved.template.id });
      },
    }),
  ];
}

function showCategories(categories: Gallery['categories']): Static<typeof categoriesRecord> {
  const show = (name: FilterName) => categories[name].map(({ id, name: shown }) => ({ id, name: shown }));
  return {
    types: show('types'),
    seasons: show('seasons'),
    features: show('features'),
    industries: show('industries'),
  };
}

function splitIds(name: FilterName, ids: string | undefined): Partial<Record<FilterName, string[]>> {
  return ids === undefined ? {} : { [name]: ids.toLowerCase().split(',') };
}

/** What a store's statement would return with `pageClause`: one more than the page holds, nearest to the cursor first. */
function takePage(templates: readonly GalleryTemplate[], page: Page): GalleryTemplate[] {
  const { before, after, limit } = page;
  if (before !== null) {
    const newer = templates.filter(({ id }) => id > before.toLowerCase());
    return newer.reverse().slice(0, limit + 1);
  }
  const older = after === null ? templates : templates.filter(({ id }) => id < after.toLowerCase());
  return older.slice(0, limit + 1);
}
