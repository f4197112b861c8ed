import { type ApiReference, commonSchemas, errorsPage, type Resource } from './api-reference.ts';
import { type Place, renderFields, schemaAnchorOf, stringOf } from './fields.ts';
import { guideGroups, guidesAbout, renderGuide } from './guides.ts';
import { renderOperation, renderSchema } from './operations.ts';
import { type DocumentationPage, rootOf } from './page.ts';
import { escapeHtml, renderProse, renderSpans } from './prose.ts';

/** All pages of the documentation, by their slugs: each is made when it is asked for. */

export type PageMaker = () => Promise<DocumentationPage>;

export function listDocumentation(reference: ApiReference): Map<string, PageMaker> {
  const makers: [string, PageMaker][] = [
    ['', async () => makeOverview(reference)],
    ...reference.resources.map((resource): [string, PageMaker] => [
      resource.slug,
      async () => makeResourcePage(resource, reference),
    ]),
    [errorsPage, async () => makeErrorsPage(reference)],
    [commonSchemas, async () => makeSchemasPage(reference)],
    ...guideGroups
      .flatMap(({ guides }) => guides)
      .map((guide): [string, PageMaker] => [
        `guides/${guide.slug}`,
        async () => {
          const { html, headings } = await renderGuide(guide);
          return { slug: `guides/${guide.slug}`, title: guide.title, main: html, contents: headings };
        },
      ]),
  ];
  return new Map(makers);
}

function placeOf(slug: string, reference: ApiReference): Place {
  return { slug, root: rootOf(slug), reference };
}

function makeOverview({ document, resources }: ApiReference): DocumentationPage {
  const { title, description } = document.info;
  const main = `<h1>${escapeHtml(title)} API</h1>
${renderProse(description)}
<h2 id="examples">Examples</h2>
<p>Every operation has an example in curl, TypeScript and Python. In each, the variables <code>URL</code> and <code>KEY</code> of the environment are the address of this installation and an API key. Those in TypeScript run in Node.js and in everything else that has <code>fetch</code>, those in Python with its standard library alone. What is answered was recorded from a running server.</p>
<h2 id="resources">Resources</h2>
<ul class="cards">
${resources.map(({ slug, name, description: about }) => renderCard(`docs/${slug}`, name, about)).join('\n')}
${renderCard(`docs/${errorsPage}`, 'Errors', 'The form that all of them have, and what each name means.')}
</ul>
${guideGroups
  .map(
    (group) => `<h2 id="${group.title.toLowerCase()}">${group.title}</h2>
<ul class="cards">
${group.guides.map(({ slug, title: name }) => renderCard(`docs/guides/${slug}`, name, '')).join('\n')}
</ul>`,
  )
  .join('\n')}`;
  const contents = ['Examples', 'Resources', ...guideGroups.map((group) => group.title)];
  return {
    slug: '',
    title: 'Overview',
    main,
    contents: contents.map((text) => ({ id: text.toLowerCase(), text })),
  };
}

function renderCard(href: string, name: string, about: string): string {
  const words = about === '' ? '' : `<p>${renderSpans(about)}</p>`;
  return `<li><a href="${escapeHtml(href)}">${escapeHtml(name)}</a>${words}</li>`;
}

function makeResourcePage(resource: Resource, reference: ApiReference): DocumentationPage {
  const { slug, name, description, operations } = resource;
  const place = placeOf(slug, reference);
  const schemas = schemasOf(slug, reference);
  const guides = guidesAbout(slug).map(
    (guide) => `<a href="${place.root}docs/guides/${guide.slug}">${escapeHtml(guide.title)}</a>`,
  );
  const main = `<h1>${escapeHtml(name)}</h1>
${renderProse(description)}
${guides.length === 0 ? '' : `<p>${guides.length === 1 ? 'Guide' : 'Guides'}: ${guides.join(', ')}</p>`}
<ul class="operations">
${operations
  .map(
    ({ operationId, method, path, summary }) =>
      `<li><a href="#${escapeHtml(operationId)}">${escapeHtml(summary)}</a> <code>${method} ${escapeHtml(path)}</code></li>`,
  )
  .join('\n')}
</ul>
${operations.map((operation) => renderOperation(operation, place)).join('\n')}
${schemas.map((schema) => renderSchema(schema, reference.document.components.schemas[schema] ?? {}, place)).join('\n')}`;
  return {
    slug,
    title: name,
    main,
    contents: [
      ...operations.map(({ operationId, summary }) => ({ id: operationId, text: escapeHtml(summary) })),
      ...contentsOf(schemas),
    ],
  };
}

function makeErrorsPage(reference: ApiReference): DocumentationPage {
  const { responses, schemas } = reference.document.components;
  const { Error: schema = {} } = schemas;
  const toWords = (name: string) => escapeHtml(name.replaceAll('_', ' '));
  const main = `<h1>Errors</h1>
<article id="${schemaAnchorOf('Error')}">
${renderProse(stringOf(schema.description))}
${renderFields(schema, placeOf(errorsPage, reference))}
</article>
${Object.entries(responses)
  .map(
    ([name, { description }]) => `<article id="${escapeHtml(name)}">
<h2>${toWords(name)}</h2>
${renderProse(description)}
</article>`,
  )
  .join('\n')}`;
  const contents = Object.keys(responses).map((name) => ({ id: name, text: toWords(name) }));
  return { slug: errorsPage, title: 'Errors', main, contents };
}

function makeSchemasPage(reference: ApiReference): DocumentationPage {
  const place = placeOf(commonSchemas, reference);
  const schemas = schemasOf(commonSchemas, reference);
  const main = `<h1>Common schemas</h1>
<p>Those that several resources have. All others are described with their resource.</p>
${schemas.map((name) => renderSchema(name, reference.document.components.schemas[name] ?? {}, place)).join('\n')}`;
  return { slug: commonSchemas, title: 'Common schemas', main, contents: contentsOf(schemas) };
}

function schemasOf(slug: string, { document, homeOf }: ApiReference): string[] {
  return Object.keys(document.components.schemas).filter((name) => homeOf(name) === slug);
}

function contentsOf(schemas: readonly string[]) {
  return schemas.map((name) => ({ id: schemaAnchorOf(name), text: escapeHtml(name) }));
}
