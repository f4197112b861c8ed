import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import type {
  ApiInfo,
  Example,
  OpenApiDocument,
  OpenApiOperation,
  OpenApiParameter,
  OpenApiResponse,
  Reference,
  Schema,
} from '../platform/http/openapi.ts';
import { baseStyle } from '../platform/http/page-response.ts';

/**
 * The documentation as one page that needs no font and no other file, so that it can be read offline and under a
 * strict policy. All of it is there without its script, which adds searching, copying, and a mark at the place where
 * the reader is. Of the ready-made viewers redoc 3 and Scalar need Node.js 22; swagger-ui-dist is 1.7 MB of script with
 * an eval in it, rapidoc 0.9 MB with another and with styles of its own making.
 */

/** What a Content-Security-Policy calls the page's own style sheet and script: `sha256-…`. */
export type RenderedDocumentation = { html: string; styleHash: string; scriptHash: string };

/** `examples` are the requests that were recorded, by the id of their operation, with their answers. */
export function renderDocumentation(
  document: OpenApiDocument,
  examples: ApiInfo['examples'],
): RenderedDocumentation {
  const operations = listOperations(document, examples);
  const { title, version, description } = document.info;
  const script = readFileSync(path.join(import.meta.dirname, 'page-script.js'), 'utf8');
  const schemas = Object.entries(document.components.schemas).filter(([name]) => name !== 'Error');
  const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escapeHtml(title)} API</title>
<style>${styleSheet}</style>
</head>
<body>
<nav aria-label="Contents">
<p class="places"><a href="./">Start</a> <a href="sandbox">Sandbox</a> <a href="gallery">Gallery</a></p>
<p class="brand"><a href="#top">${escapeHtml(title)}</a> <small>${escapeHtml(version)}</small></p>
<button type="button" id="menu" aria-expanded="true" aria-controls="contents" hidden>Contents</button>
<div id="contents">
<label for="search" class="search" hidden>Search <input id="search" type="search" autocomplete="off" placeholder="A path, a field, a word"></label>
<p id="found" role="status"></p>
${document.tags.map(({ name }) => renderContents(name, operations)).join('\n')}
<div><h2><a href="#errors">Errors</a></h2></div>
<div><h2><a href="#schemas">Schemas</a></h2>
<ul>
${schemas.map(([name]) => `<li><a href="#${schemaAnchorOf(name)}">${escapeHtml(name)}</a></li>`).join('\n')}
</ul></div>
<p><a href="openapi.json">openapi.json</a></p>
</div>
</nav>
<main id="top">
<h1>${escapeHtml(title)} API</h1>
${renderProse(description)}
<p>In the examples <code>$URL</code> is the address of this installation and <code>$KEY</code> an API key. What is answered was recorded from a running server.</p>
${document.tags.map((tag) => renderTag(tag, operations, document)).join('\n')}
<section id="errors">
<h2>Errors</h2>
${renderProse(stringOf(document.components.schemas.Error?.description))}
${renderFields(document.components.schemas.Error ?? {})}
${Object.entries(document.components.responses)
  .map(
    ([name, response]) =>
      `<h3>${escapeHtml(name.replaceAll('_', ' '))}</h3>\n${renderProse(response.description)}`,
  )
  .join('\n')}
</section>
<section id="schemas">
<h2>Schemas</h2>
${schemas.map(([name, schema]) => renderSchema(name, schema)).join('\n')}
</section>
</main>
<script>${script}</script>
</body>
</html>
`;
  return { html, styleHash: hashOf(styleSheet), scriptHash: hashOf(script) };
}

function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}

function schemaAnchorOf(name: string): string {
  return `schema-${escapeHtml(name)}`;
}

function renderSchema(name: string, schema: Schema): string {
  const variants = alternativesOf(schema);
  const values = Array.isArray(schema.enum) || variants.length > 0 ? `<p>${describeType(schema)}</p>` : '';
  const forms = variants.filter((variant) => recordOf(variant.properties) !== null).map(renderFields);
  return `<article id="${schemaAnchorOf(name)}">
<h3>${escapeHtml(name)}</h3>
${renderProse(stringOf(schema.description))}
${forms.length > 0 ? `<p>One of these forms:</p>\n${forms.join('\n')}` : values || renderFields(schema)}
</article>`;
}

type PlacedOperation = OpenApiOperation & { method: string; path: string; examples: readonly Example[] };

function listOperations(document: OpenApiDocument, examples: ApiInfo['examples']): PlacedOperation[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      ...operation,
      method: method.toUpperCase(),
      path,
      examples: examples[operation.operationId] ?? [],
    })),
  );
}

function renderContents(tag: string, operations: readonly PlacedOperation[]): string {
  const items = operations
    .filter(({ tags }) => tags.includes(tag))
    .map(
      ({ operationId, summary }) =>
        `<li><a href="#${escapeHtml(operationId)}">${escapeHtml(summary)}</a></li>`,
    );
  return `<div><h2><a href="#${anchorOf(tag)}">${escapeHtml(tag)}</a></h2>\n<ul>\n${items.join('\n')}\n</ul></div>`;
}

function renderTag(
  tag: { name: string; description: string },
  operations: readonly PlacedOperation[],
  document: OpenApiDocument,
): string {
  return `<section id="${anchorOf(tag.name)}">
<h2>${escapeHtml(tag.name)}</h2>
${renderProse(tag.description)}
${operations
  .filter(({ tags }) => tags.includes(tag.name))
  .map((operation) => renderOperation(operation, document))
  .join('\n')}
</section>`;
}

function anchorOf(tag: string): string {
  return `tag-${tag.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}`;
}

function renderSecurity({ security: [security] }: OpenApiOperation): string {
  if (security === undefined || 'deviceSecret' in security)
    return 'Opened by the <code>device_secret</code> of a device, and by no API key';
  return `Scope: ${security.apiKey.map((scope) => `<code>${escapeHtml(scope)}</code>`).join(', ')}`;
}

function renderOperation(operation: PlacedOperation, document: OpenApiDocument): string {
  const { operationId, method, path, summary, description = '', parameters = [], requestBody } = operation;
  return `<article id="${escapeHtml(operationId)}">
<h3>${escapeHtml(summary)}</h3>
<p class="endpoint"><span class="method ${method.toLowerCase()}">${method}</span> <code>${escapeHtml(path)}</code></p>
${renderProse(description)}
<p class="scope">${renderSecurity(operation)}</p>
${renderParameters(parameters.map((parameter) => resolveParameter(parameter, document)))}
${requestBody === undefined ? '' : `<h4>Body</h4>\n${renderBody(requestBody.content['application/json'].schema, document)}`}
<h4>Example</h4>
${renderCode(renderCurl(operation, document))}
<h4>Answers</h4>
${renderResponses(operation, document)}
</article>`;
}

/** The fields of a named schema, and where it is described by itself. */
function renderBody(schema: Schema, document: OpenApiDocument): string {
  const name = schemaNameOf(schema);
  const named = name === null ? undefined : document.components.schemas[name];
  return named === undefined
    ? renderFields(schema)
    : `<p>${describeType(schema)}</p>\n${renderFields(named)}`;
}

function renderCode(text: string): string {
  return `<div class="code"><button type="button" class="copy" hidden>Copy</button><pre tabindex="0"><code>${escapeHtml(text)}</code></pre></div>`;
}

function renderExample(title: string, value: unknown): string {
  return `<details><summary>${escapeHtml(title)}</summary>\n${renderCode(JSON.stringify(value, null, 2))}\n</details>`;
}

function renderParameters(parameters: readonly OpenApiParameter[]): string {
  if (parameters.length === 0) return '';
  const rows = parameters.map((parameter) =>
    renderRow(
      parameter.name,
      `${parameter.in}, ${describeType(parameter.schema)}`,
      parameter.required,
      [parameter.description ?? '', describeLimits(parameter.schema)].filter((part) => part !== '').join(' '),
    ),
  );
  return `<h4>Parameters</h4>\n${renderTable(rows)}`;
}

function renderResponses(operation: PlacedOperation, document: OpenApiDocument): string {
  const statuses = Object.keys(operation.responses);
  const statusOf = ({ status }: Example) => (statuses.includes(String(status)) ? String(status) : 'default');
  return Object.entries(operation.responses)
    .map(([status, given]) => {
      const about = renderMeaning(status, operation, resolveResponse(given, document));
      const examples = operation.examples
        .filter((example) => statusOf(example) === status)
        .map(({ title, answer }) => renderExample(title, answer));
      const [shown, mark] = status.startsWith('2')
        ? [status, 'good']
        : [status.replace('default', 'others'), 'bad'];
      return `<div class="answer"><p class="status ${mark}">${shown}</p><div>${[about, ...examples].join('\n')}</div></div>`;
    })
    .join('\n');
}

/** What an answer with this status means: of errors those that the operation names. */
function renderMeaning(status: string, operation: OpenApiOperation, response: OpenApiResponse): string {
  if (status === 'default') return '<p><a href="#errors">Those of any operation</a></p>';
  if (status.startsWith('2')) {
    const type = describeType(response.content['application/json'].schema);
    return `${renderProse(response.description)}<p>${type}</p>`;
  }
  const names = operation['x-errors'] ?? [];
  const meanings = response.description
    .split('\n\n')
    .filter((meaning) => names.some((name) => meaning.startsWith(`\`${name}\`: `)));
  return renderProse(meanings.join('\n\n'));
}

function resolveResponse(given: OpenApiResponse | Reference, document: OpenApiDocument): OpenApiResponse {
  if (!('$ref' in given)) return given;
  const response = document.components.responses[given.$ref.replace('#/components/responses/', '')];
  if (response === undefined) throw new Error(`${given.$ref} is not in the description of the API`);
  return response;
}

function resolveParameter(given: OpenApiParameter | Reference, document: OpenApiDocument): OpenApiParameter {
  if (!('$ref' in given)) return given;
  const parameter = document.components.parameters[given.$ref.replace('#/components/parameters/', '')];
  if (parameter === undefined) throw new Error(`${given.$ref} is not in the description of the API`);
  return parameter;
}

const unknownId = '0199c0de-0000-7000-8000-000000000000';

/** The first example that the description has, or a request without a body. */
function renderCurl(
  { method, path, security, parameters: given = [], requestBody }: PlacedOperation,
  document: OpenApiDocument,
): string {
  const parameters = given.map((parameter) => resolveParameter(parameter, document));
  const exampleOf = (place: string) =>
    parameters.flatMap(({ name, in: where, example }) =>
      where === place && example !== undefined ? [[name, String(example)] as [string, string]] : [],
    );
  const values = new Map(exampleOf('path'));
  const query = new URLSearchParams(exampleOf('query')).toString();
  const filled =
    path.replaceAll(/\{(\w+)\}/g, (_, name: string) => values.get(name) ?? unknownId) +
    (query === '' ? '' : `?${query}`);
  const lines = [
    method === 'GET' ? `curl "$URL${filled}"` : `curl -X ${method} "$URL${filled}"`,
    `  -H "Authorization: Bearer ${security.some((one) => 'deviceSecret' in one) ? '$DEVICE_SECRET' : '$KEY'}"`,
  ];
  if (parameters.some(({ name }) => name === 'Idempotency-Key'))
    lines.push(`  -H "Idempotency-Key: any-unique-text"`);
  const [example] = Object.values(requestBody?.content['application/json'].examples ?? {});
  if (requestBody !== undefined) {
    lines.push(`  -H "Content-Type: application/json"`);
    // A quote inside of single quotes would end them in a shell.
    const json = JSON.stringify(example?.value ?? {}, null, 2).replaceAll("'", '\\u0027');
    lines.push(`  -d '${json}'`);
  }
  return lines.join(' \\\n');
}

/** Deeper than any body of ours; a schema cannot make the page endless. */
const depthMax = 6;

/** The fields of an object with those inside of it, one row each, named by their path. */
function renderFields(schema: Schema): string {
  const rows = listFields(schema, '', 0);
  return rows.length === 0 ? '<p>No fields.</p>' : renderTable(rows);
}

function listFields(schema: Schema, prefix: string, depth: number): string[] {
  if (depth > depthMax) return [];
  const inner = withoutNull(schema);
  const items = recordOf(inner.items);
  if (items !== null) return listFields(items, `${prefix}[]`, depth + 1);
  const required = new Set(Array.isArray(inner.required) ? inner.required : []);
  return Object.entries(recordOf(inner.properties) ?? {}).flatMap(([name, value]) => {
    const property = recordOf(value) ?? {};
    const path = prefix === '' ? name : `${prefix}.${name}`;
    const description = stringOf(property.description) || stringOf(recordOf(property.items)?.description);
    const about = [description, describeLimits(property)].filter((part) => part !== '');
    return [
      renderRow(path, describeType(property), required.has(name), about.join(' ')),
      ...listFields(property, path, depth + 1),
    ];
  });
}

function renderTable(rows: readonly string[]): string {
  return `<div class="table"><table>
<thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">About</th></tr></thead>
<tbody>
${rows.join('\n')}
</tbody>
</table></div>`;
}

function renderRow(name: string, type: string, isRequired: boolean, about: string): string {
  const mark = isRequired ? ' <span class="required">required</span>' : '';
  return `<tr><td><code>${escapeHtml(name)}</code>${mark}</td><td>${type}</td><td>${renderSpans(about)}</td></tr>`;
}

/** As HTML, with links to the named schemas. */
function describeType(schema: Schema): string {
  const name = schemaNameOf(schema);
  if (name !== null) return `<a href="#${schemaAnchorOf(name)}">${escapeHtml(name)}</a>`;
  const variants = alternativesOf(schema);
  if (variants.length > 0) return variants.map(describeType).join(' or ');
  if ('const' in schema) return escapeHtml(JSON.stringify(schema.const));
  if (Array.isArray(schema.enum))
    return schema.enum.map((value) => escapeHtml(JSON.stringify(value))).join(' or ');
  const types = Array.isArray(schema.type) ? schema.type : [schema.type];
  return types.map((type) => describeSingleType(stringOf(type), schema)).join(' or ');
}

function describeSingleType(type: string, schema: Schema): string {
  if (type === 'array') {
    const [items] = (Array.isArray(schema.prefixItems) ? schema.prefixItems : [schema.items]) as unknown[]; // Of any JSON.
    return `list of ${describeType(recordOf(items) ?? {})}`;
  }
  const values = recordOf(schema.additionalProperties);
  if (type === 'object' && values !== null) return `object of ${describeType(values)}`;
  const format = stringOf(schema.format) || (schema.contentEncoding === undefined ? '' : 'Base64');
  return escapeHtml(format === '' || type !== 'string' ? type : `${type} (${format})`);
}

/** What `#/components/schemas/Contact` refers to. */
function schemaNameOf(schema: Schema): string | null {
  const prefix = '#/components/schemas/';
  const reference = stringOf(schema.$ref);
  return reference.startsWith(prefix) ? reference.slice(prefix.length) : null;
}

function alternativesOf({ anyOf, oneOf }: Schema): Schema[] {
  const given: unknown[] = Array.isArray(oneOf) ? oneOf : Array.isArray(anyOf) ? anyOf : [];
  return given.map(recordOf).filter((variant) => variant !== null);
}

const limitWords: readonly [keyword: string, describe: (value: string) => string][] = [
  ['minLength', (value) => (value === '1' ? 'at least one character' : `at least ${value} characters`)],
  ['maxLength', (value) => `at most ${value} characters`],
  ['minItems', (value) => `at least ${value} items`],
  ['maxItems', (value) => `at most ${value} items`],
  ['maxProperties', (value) => `at most ${value} fields`],
  ['minimum', (value) => `at least ${value}`],
  ['maximum', (value) => `at most ${value}`],
  ['default', (value) => `${value} when omitted`],
];

function describeLimits(schema: Schema): string {
  const inner = withoutNull(schema);
  const limits = limitWords.flatMap(([keyword, describe]) =>
    inner[keyword] === undefined ? [] : [describe(String(inner[keyword] as number | string | boolean))],
  );
  return limits.length > 0 ? `${limits.join(', ').replace(/^a/, 'A')}.` : '';
}

/** `X` of `X or null`; any other schema as it is. */
function withoutNull(schema: Schema): Schema {
  const variants = Array.isArray(schema.anyOf) ? schema.anyOf.map(recordOf) : [];
  const others = variants.filter((variant) => variant?.type !== 'null');
  return variants.length === 2 && others.length === 1 ? (others[0] ?? schema) : schema;
}

function recordOf(value: unknown): Schema | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Schema) : null;
}

function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

/** Paragraphs, lists of `- ` lines, and code between backticks: what our descriptions use. */
function renderProse(text: string): string {
  return text
    .split(/\n{2,}/)
    .filter((block) => block.trim() !== '')
    .map((block) => {
      const lines = block.split('\n');
      return lines.every((line) => line.startsWith('- '))
        ? `<ul>${lines.map((line) => `<li>${renderSpans(line.slice(2))}</li>`).join('\n')}</ul>`
        : `<p>${renderSpans(block)}</p>`;
    })
    .join('\n');
}

function renderSpans(text: string): string {
  return text
    .split('`')
    .map((part, index) => (index % 2 === 1 ? `<code>${escapeHtml(part)}</code>` : escapeHtml(part)))
    .join('');
}

function escapeHtml(text: string): string {
  return text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
    .replaceAll("'", '&#39;');
}

const styleSheet = `${baseStyle}
html { scroll-behavior: smooth; scroll-padding-top: 1rem; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { display: grid; grid-template-columns: 17rem minmax(0, 1fr); background: var(--surface); font-size: 16px; line-height: 1.55; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 1.5rem; border-right: 1px solid var(--line); background: var(--raised); font-size: 0.9rem; }
nav .places { display: flex; gap: 0.75rem; margin: 0 0 0.75rem; }
nav .brand { margin: 0; font-size: 1.1rem; font-weight: 700; }
nav h2 { margin: 1.25rem 0 0.25rem; font-size: 0.95rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav li { padding: 0.15rem 0; }
nav a[aria-current] { color: var(--ink); font-weight: 700; }
nav input { width: 100%; padding: 0.4rem 0.5rem; border: 1px solid var(--line); border-radius: 6px; background: var(--surface); }
nav button, .copy { padding: 0.2rem 0.6rem; border: 1px solid var(--line); border-radius: 6px; background: var(--surface); font-size: 0.8rem; }
#menu { display: none; }
.code { position: relative; margin: 0.5rem 0; }
.copy { position: absolute; top: 0.5rem; right: 0.5rem; }
small, .scope, th { color: var(--ink-soft); }
main { padding: 2rem clamp(1rem, 4vw, 3.5rem) 6rem; max-width: 62rem; width: 100%; }
h1 { margin: 0 0 1rem; font-size: 2rem; line-height: 1.2; }
h2 { margin: 3rem 0 0.5rem; font-size: 1.5rem; }
h3 { margin: 0; font-size: 1.2rem; }
h4 { margin: 1.5rem 0 0.5rem; font-size: 0.95rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
article { margin: 1.5rem 0; padding: 1.5rem 0 0; border-top: 1px solid var(--line); }
code, pre { font-size: 0.875em; line-height: 1.5; }
code { overflow-wrap: anywhere; }
:not(pre) > code { padding: 0.1em 0.3em; border-radius: 4px; background: var(--raised); }
pre { margin: 0; padding: 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--raised); }
pre code { overflow-wrap: normal; }
.method { display: inline-block; min-width: 4rem; padding: 0.1rem 0.5rem; border: 1px solid currentColor; border-radius: 6px; font-size: 0.8rem; font-weight: 700; text-align: center; color: var(--accent); }
.method.post { color: var(--good); }
.method.delete { color: var(--bad); }
.required { color: var(--bad); font-size: 0.8rem; white-space: nowrap; }
.table { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 0.92rem; }
th, td { padding: 0.45rem 0.75rem 0.45rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td:first-child { min-width: 9rem; }
td:nth-child(2) { min-width: 7rem; }
.answer { display: grid; grid-template-columns: 3.5rem minmax(0, 1fr); padding: 0.25rem 0; border-bottom: 1px solid var(--line); }
.answer p { margin: 0.2rem 0; }
.status { font-weight: 700; }
.good { color: var(--good); }
.bad { color: var(--bad); }
summary { cursor: pointer; color: var(--accent); }
@media (max-width: 52rem) {
  body { display: block; }
  nav { position: sticky; z-index: 1; height: auto; max-height: 100vh; padding: 0.6rem 1rem; border-right: 0; border-bottom: 1px solid var(--line); }
  nav .brand { display: inline-block; margin-right: 1rem; }
  html { scroll-padding-top: 4rem; }
  #menu:not([hidden]) { display: inline-block; }
  h1 { font-size: 1.6rem; }
  thead { position: absolute; clip-path: inset(50%); }
  tr { display: block; padding: 0.5rem 0; border-bottom: 1px solid var(--line); }
  td { display: block; padding: 0; border: 0; }
  td:nth-child(2) { color: var(--ink-soft); }
}
`;
