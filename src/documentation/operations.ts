import type { Example, OpenApiOperation, OpenApiResponse, Schema } from '../platform/http/openapi.ts';
import { anyOperation, errorsPage, type PlacedOperation, schemaNameOf } from './api-reference.ts';
import {
  alternativesOf,
  describeLimits,
  describeType,
  linkTo,
  type Place,
  recordOf,
  renderFields,
  renderRow,
  renderTable,
  schemaAnchorOf,
  stringOf,
} from './fields.ts';
import { escapeHtml, renderProse } from './prose.ts';
import { exampleOf, languages } from './request-examples.ts';

/** An operation, or a named schema, as an article of a page. */

export function renderOperation(operation: PlacedOperation, place: Place): string {
  const { operationId, method, path, summary, description = '', requestBody } = operation;
  const body = requestBody?.content['application/json'].schema;
  return `<article id="${escapeHtml(operationId)}">
<h2>${escapeHtml(summary)} <a class="anchor" href="#${escapeHtml(operationId)}" aria-label="Link to ${escapeHtml(summary)}">#</a></h2>
<p class="endpoint"><span class="method ${method.toLowerCase()}">${method}</span> <code>${escapeHtml(path)}</code></p>
${renderProse(description)}
<p class="scope">${renderSecurity(operation)}</p>
${renderParameters(operation, place)}
${body === undefined ? '' : `<h3>Body</h3>\n${renderBody(body, place)}`}
<h3>Example</h3>
${renderRequest(operation, place)}
<h3>Answers</h3>
${renderResponses(operation, place)}
</article>`;
}

export function renderSchema(name: string, schema: Schema, place: Place): string {
  const variants = alternativesOf(schema);
  const isOfValues = Array.isArray(schema.enum) || variants.length > 0;
  const values = isOfValues ? `<p>${describeType(schema, place)}</p>` : '';
  const forms = variants
    .filter((variant) => recordOf(variant.properties) !== null)
    .map((variant) => renderFields(variant, place));
  return `<article id="${escapeHtml(schemaAnchorOf(name))}">
<h2>${escapeHtml(name)}</h2>
${renderProse(stringOf(schema.description))}
${forms.length > 0 ? `<p>One of these forms:</p>\n${forms.join('\n')}` : values || renderFields(schema, place)}
</article>`;
}

/** A request in every language. The page's script leaves the one that the reader wants, and offers the others. */
function renderRequest(operation: PlacedOperation, { reference }: Place): string {
  const request = exampleOf(operation, reference);
  const choices = languages.map(
    ({ name, title }) => `<button type="button" data-choice="${name}">${title}</button>`,
  );
  const codes = languages.map(
    ({ name, title, write }) =>
      `<div data-in="${name}"><p class="language">${title}</p>${renderCode(write(request))}</div>`,
  );
  return `<div class="request">
<div class="languages" role="group" aria-label="Language of the examples">${choices.join('')}</div>
${codes.join('\n')}
</div>`;
}

export function renderCode(text: string): string {
  return `<div class="code"><button type="button" class="copy" hidden>Copy</button><pre tabindex="0"><code>${escapeHtml(text)}</code></pre></div>`;
}

function renderSecurity({ security: [security] }: OpenApiOperation): string {
  if (security === undefined || 'deviceSecret' in security)
    return 'Opened by the <code>device_secret</code> of a device, and by no API key';
  return `Scope: ${security.apiKey.map((scope) => `<code>${escapeHtml(scope)}</code>`).join(', ')}`;
}

/** The fields of a named schema, and where it is described by itself. */
function renderBody(schema: Schema, place: Place): string {
  if (schemaNameOf(schema) === null) return renderFields(schema, place);
  return `<p>${describeType(schema, place)}</p>\n${renderFields(place.reference.resolve(schema), place)}`;
}

function renderParameters({ parameters = [] }: PlacedOperation, place: Place): string {
  if (parameters.length === 0) return '';
  const rows = parameters.map((given) => {
    const { name, in: where, schema, required, description = '' } = place.reference.resolve(given);
    const about = [description, describeLimits(schema)].filter((part) => part !== '');
    return renderRow(name, `${where}, ${describeType(schema, place)}`, required, about.join(' '));
  });
  return `<h3>Parameters</h3>\n${renderTable(rows)}`;
}

function renderResponses(operation: PlacedOperation, place: Place): string {
  const statuses = Object.keys(operation.responses);
  const statusOf = ({ status }: Example) => (statuses.includes(String(status)) ? String(status) : 'default');
  return Object.entries(operation.responses)
    .map(([status, given]) => {
      const about = renderMeaning(status, operation, place.reference.resolve(given), place);
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
function renderMeaning(
  status: string,
  operation: OpenApiOperation,
  response: OpenApiResponse,
  place: Place,
): string {
  if (status === 'default')
    return `<p><a href="${linkTo(place, errorsPage, anyOperation)}">Those of any operation</a></p>`;
  if (status.startsWith('2')) {
    const type = describeType(response.content['application/json'].schema, place);
    return `${renderProse(response.description)}<p>${type}</p>`;
  }
  const names = operation['x-errors'] ?? [];
  const meanings = response.description
    .split('\n\n')
    .filter((meaning) => names.some((name) => meaning.startsWith(`\`${name}\`: `)));
  return renderProse(meanings.join('\n\n'));
}

function renderExample(title: string, value: unknown): string {
  return `<details><summary>${escapeHtml(title)}</summary>\n${renderCode(JSON.stringify(value, null, 2))}\n</details>`;
}
