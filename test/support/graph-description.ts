import { readFileSync } from 'node:fs';
import { Ajv, type ValidateFunction } from 'ajv';
import { parse } from 'yaml';

/**
 * Meta's published description of the API (github.com/facebook/openapi, business-messaging-api_v23.0.yaml), which is no
 * part of this repository: `META_OPENAPI` names the file. Whatever the stand-in gets and says is checked by it as well,
 * in every test.
 */

type Schema = Record<string, unknown>;
type Description = { components: { schemas: Record<string, Schema> }; paths: Record<string, PathItem> };
type PathItem = { post?: { requestBody: { content: { 'application/json': { schema: Schema } } } } };

export type Described = {
  isMessage: ValidateFunction;
  isTemplate: ValidateFunction;
  isTemplateEdit: ValidateFunction;
  isWebhook: ValidateFunction;
};

/** Null where no file is named. */
export function readDescription(file = process.env.META_OPENAPI): Described | null {
  if (file === undefined || file === '') return null;
  // Indentation and examples have grown by hand, and are not all valid.
  const description = parse(readFileSync(file, 'utf8'), { strict: false, uniqueKeys: false }) as Description;
  const { schemas } = description.components;
  const ajv = new Ajv({ strict: false, validateFormats: false });
  ajv.addSchema(
    { components: { schemas: mapValues(schemas, (schema) => toJsonSchema(schema, schemas)) } },
    'meta',
  );
  const compileBody = (path: string) => {
    const schema = description.paths[path]?.post?.requestBody.content['application/json'].schema;
    if (schema === undefined) throw new Error(`Meta describes no POST ${path}`);
    return ajv.compile(toJsonSchema(schema, schemas) as Schema);
  };
  return {
    isMessage: ajv.compile({ $ref: 'meta#/components/schemas/TemplateMessage' }),
    isTemplate: compileBody('/{Version}/{WABA-ID}/message_templates'),
    isTemplateEdit: compileBody('/{Version}/{TEMPLATE_ID}'),
    isWebhook: ajv.compile({ $ref: 'meta#/components/schemas/WebhookPayload' }),
  };
}

/** A class of single characters, meant as numbers: it allows no button at place 0, which the description's own examples have. */
const misspelledPattern = '^[2-6, 11-14]$';

/** The description is older than people without a number, who have an id instead. */
const numberOfPerson = 'recipient_id';

/** OpenAPI's `discriminator` as one of the schemas that it maps to, and its `nullable` as the type that it means. */
function toJsonSchema(value: unknown, schemas: Record<string, Schema>, isPart = false): unknown {
  if (Array.isArray(value)) return value.map((item: unknown) => toJsonSchema(item, schemas, isPart));
  if (typeof value !== 'object' || value === null) return value;
  const schema = value as Schema;
  if (typeof schema.$ref === 'string') {
    const name = schema.$ref.split('/').at(-1) ?? '';
    const { mapping } = (schemas[name]?.discriminator ?? {}) as { mapping?: Record<string, string> };
    if (mapping === undefined || isPart) return { $ref: `meta${schema.$ref}` };
    return { anyOf: [...new Set(Object.values(mapping))].map(($ref) => ({ $ref: `meta${$ref}` })) };
  }
  const { discriminator: _mapped, example: _example, examples: _examples, ...rest } = schema;
  if (rest.pattern === misspelledPattern) delete rest.pattern;
  if (Array.isArray(rest.required)) rest.required = rest.required.filter((name) => name !== numberOfPerson);
  return Object.fromEntries(
    Object.entries(rest).map(([key, inner]) => [key, toJsonSchema(inner, schemas, key === 'allOf')]),
  );
}

function mapValues(record: Record<string, Schema>, map: (value: Schema) => unknown): Record<string, unknown> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(value)]));
}
