import type { Schema } from '../platform/http/openapi.ts';
import { type ApiReference, schemaNameOf } from './api-reference.ts';
import { escapeHtml, renderSpans } from './prose.ts';

/** Schemas as tables of their fields. */

/** What a part of a page must know: what the description says, and where things are as seen from the page. */
export type Place = {
  reference: ApiReference;
  /** The slug of the page itself. */
  slug: string;
  /** What leads from the page to the root of the installation: empty, or `../` for each folder. */
  root: string;
};

export function schemaAnchorOf(name: string): string {
  return `schema-${name}`;
}

/** To a place on another page, or on this one. */
export function linkTo({ slug, root }: Place, page: string, anchor: string): string {
  return escapeHtml(page === slug ? `#${anchor}` : `${root}docs/${page}#${anchor}`);
}

/** Deeper than any body of ours; a schema cannot make the page endless. */
const depthMax = 6;

/** The fields of an object with those inside of it, one row each, named by their path. */
export function renderFields(schema: Schema, place: Place): string {
  const rows = listFields(schema, place, '', 0);
  return rows.length === 0 ? '<p>No fields.</p>' : renderTable(rows);
}

function listFields(schema: Schema, place: Place, prefix: string, depth: number): string[] {
  if (depth > depthMax) return [];
  const inner = withoutNull(schema);
  const items = recordOf(inner.items);
  if (items !== null) return listFields(items, place, `${prefix}[]`, depth + 1);
  const required = new Set(Array.isArray(inner.required) ? inner.required : []);
  return Object.entries(recordOf(inner.properties) ?? {}).flatMap(([name, value]) => {
    const property = recordOf(value) ?? {};
    const path = prefix === '' ? name : `${prefix}.${name}`;
    const description = stringOf(property.description) || stringOf(recordOf(property.items)?.description);
    const about = [description, describeLimits(property)].filter((part) => part !== '');
    return [
      renderRow(path, describeType(property, place), required.has(name), about.join(' ')),
      ...listFields(property, place, path, depth + 1),
    ];
  });
}

export function renderTable(rows: readonly string[]): string {
  return `<div class="table"><table>
<thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">About</th></tr></thead>
<tbody>
${rows.join('\n')}
</tbody>
</table></div>`;
}

export function renderRow(name: string, type: string, isRequired: boolean, about: string): string {
  const mark = isRequired ? ' <span class="required">required</span>' : '';
  return `<tr><td><code>${escapeHtml(name)}</code>${mark}</td><td>${type}</td><td>${renderSpans(about)}</td></tr>`;
}

/** As HTML, with links to the named schemas. */
export function describeType(schema: Schema, place: Place): string {
  const name = schemaNameOf(schema);
  if (name !== null) {
    const href = linkTo(place, place.reference.homeOf(name), schemaAnchorOf(name));
    return `<a href="${href}">${escapeHtml(name)}</a>`;
  }
  const variants = alternativesOf(schema);
  if (variants.length > 0) return variants.map((variant) => describeType(variant, place)).join(' or ');
  if ('const' in schema) return escapeHtml(JSON.stringify(schema.const));
  if (Array.isArray(schema.enum))
    return schema.enum.map((value) => escapeHtml(JSON.stringify(value))).join(' or ');
  const types = Array.isArray(schema.type) ? schema.type : [schema.type];
  return types.map((type) => describeSingleType(stringOf(type), schema, place)).join(' or ');
}

function describeSingleType(type: string, schema: Schema, place: Place): string {
  if (type === 'array') {
    const [items] = (Array.isArray(schema.prefixItems) ? schema.prefixItems : [schema.items]) as unknown[]; // Of any JSON.
    return `list of ${describeType(recordOf(items) ?? {}, place)}`;
  }
  const values = recordOf(schema.additionalProperties);
  if (type === 'object' && values !== null) return `object of ${describeType(values, place)}`;
  const format = stringOf(schema.format) || (schema.contentEncoding === undefined ? '' : 'Base64');
  return escapeHtml(format === '' || type !== 'string' ? type : `${type} (${format})`);
}

export function alternativesOf({ anyOf, oneOf }: Schema): Schema[] {
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

export function describeLimits(schema: Schema): string {
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

export function recordOf(value: unknown): Schema | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Schema) : null;
}

export function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
