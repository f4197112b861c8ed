import { Validator } from '@seriousme/openapi-schema-validator';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import type { ErrorDefinition } from '../platform/http/errors.ts';
import { scopeOfDevices } from '../platform/http/route.ts';
import { createValidation } from '../platform/http/validation.ts';
import { listRoutes } from './api.ts';
import { describeApi } from './api-description.ts';
import type { Installation } from '../installation/opening.ts';
import { fieldRules } from './field-rules.ts';
import { textFormats } from './text-formats.ts';
import { eventTypes } from '../webhooks/webhooks.ts';

const document = describeApi();
const routes = listRoutes({} as Installation);

test('the description of the API is valid OpenAPI 3.1', async () => {
  const result = await new Validator().validate(
    JSON.parse(JSON.stringify(document)) as Record<string, unknown>,
  );
  expect(result).toMatchObject({ valid: true });
});

test('every route is described once, under a name and a scope of its own', () => {
  const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
  expect(operations.map(({ summary }) => summary)).toHaveLength(routes.length);
  expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(routes.length);
  for (const route of routes) {
    const methods = document.paths[`/v1${route.path.replace(/:(\w+)/g, '{$1}')}`];
    expect(methods?.[route.method.toLowerCase()]).toMatchObject({
      summary: route.summary,
      security: [route.scope === scopeOfDevices ? { deviceSecret: [] } : { apiKey: [route.scope] }],
    });
  }
});

test('whatever a POST or a PUT creates is refused where storage is full, but for what changes, stops or shows something', () => {
  const others = routes.filter(({ method, addsStorage }) => ['POST', 'PUT'].includes(method) !== addsStorage);
  expect(others.map(({ operationId }) => operationId).sort()).toEqual(
    [
      ...['ChatApp', 'Email', 'Push', 'Sms'].flatMap((channel) =>
        ['cancel', 'preview', 'resume'].map((verb) => `${verb}${channel}Campaign`),
      ),
      ...['ChatApp', 'Email', 'Push', 'Sms'].map((channel) => `cancel${channel}`),
      'bulkDeleteContacts',
      'bulkDeleteSuppressions',
      'bulkRegisterDevices',
      'checkSuppressions',
      'createSuppression',
      'enableWebhook',
      'pauseWebhook',
      'previewSegment',
      'registerDevice',
      'renderTemplate',
      'replayWebhook',
      'reportEngagements',
      'retryWebhookDelivery',
      'rotateWebhookSecret',
      'searchContacts',
      'testWebhook',
      'unregisterDevice',
      'verifyDomain',
    ].sort(),
  );
  for (const { errors, addsStorage } of routes)
    expect(errors.some(({ name }) => name === 'storage_limit_reached')).toBe(addsStorage);
});

test('operations are called by a verb and its object', () => {
  const verbs =
    /^(add|bulkCreate|bulkDelete|bulkRegister|bulkUpsert|cancel|check|copy|create|delete|enable|explain|get|list|pause|preview|register|remove|render|replay|report|reschedule|resend|resume|retry|rotate|search|send|test|unregister|update|upsert|verify)[A-Z][A-Za-z]+$/;
  expect(routes.map(({ operationId }) => operationId).filter((id) => !verbs.test(id))).toEqual([]);
});

test('every body and every answer is a named schema', () => {
  const schemas = Object.values(document.paths).flatMap((methods) =>
    Object.values(methods).flatMap(({ requestBody, responses }) => [
      ...(requestBody === undefined ? [] : [requestBody.content['application/json'].schema]),
      ...Object.entries(responses).flatMap(([status, response]) =>
        status.startsWith('2') && 'content' in response ? [response.content['application/json'].schema] : [],
      ),
    ]),
  );
  expect(schemas.length).toBeGreaterThan(routes.length);
  expect(schemas.filter((schema) => !('$ref' in schema))).toEqual([]);
});

test('every value has a type, and every reference leads somewhere', () => {
  const text = JSON.stringify(document);
  const referred = [...text.matchAll(/"#\/components\/(\w+)\/([\w-]+)"/g)];
  expect(referred.length).toBeGreaterThan(100);
  for (const [, kind, name] of referred) expect(document.components).toHaveProperty([kind!, name!]);

  const untyped: string[] = [];
  for (const [name, schema] of Object.entries(document.components.schemas))
    collectUntyped(schema, name, untyped);
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const { parameters = [] } of Object.values(methods)) {
      for (const parameter of [...parameters, ...Object.values(document.components.parameters)]) {
        if ('schema' in parameter) collectUntyped(parameter.schema, `${path} ${parameter.name}`, untyped);
      }
    }
  }
  // What an event is told with is stored as it comes, whatever it is; and what was sent may be anything.
  expect(untyped).toEqual(['EventPayload{}', 'ContactEvent.payload', 'LoggedRequest.request_body']);
});

/** Objects without a word of what is in them are as untyped as values that may be anything. */
function collectUntyped(schema: unknown, place: string, untyped: string[]): void {
  if (typeof schema !== 'object' || schema === null) return;
  const { $ref, type, properties, items, prefixItems, anyOf, oneOf, allOf, additionalProperties } =
    schema as Record<string, unknown>; // Each of them is looked at before it is used.
  const alternatives = [anyOf, oneOf, allOf].filter(Array.isArray).flat() as unknown[];
  const isObject = type === 'object' || (Array.isArray(type) && type.includes('object'));
  const isArray = type === 'array' || (Array.isArray(type) && type.includes('array'));
  if ($ref === undefined && type === undefined && alternatives.length === 0) untyped.push(place);
  if (
    isObject &&
    alternatives.length === 0 &&
    properties === undefined &&
    typeof additionalProperties !== 'object'
  ) {
    untyped.push(place);
  }
  if (isArray && typeof items !== 'object' && !Array.isArray(prefixItems)) untyped.push(`${place}[]`);
  for (const [index, inner] of alternatives.entries()) collectUntyped(inner, `${place}|${index}`, untyped);
  for (const [name, inner] of Object.entries(properties ?? {}))
    collectUntyped(inner, `${place}.${name}`, untyped);
  collectUntyped(items, `${place}[]`, untyped);
  collectUntyped(additionalProperties, `${place}{}`, untyped);
}

test('what every route takes can be validated', () => {
  const validation = createValidation(textFormats, fieldRules);
  const schemas = routes.flatMap(({ params, query, body }) => [params, query, body]);
  for (const schema of schemas) {
    if (schema !== null)
      expect(() => validation.compile(schema)({}, { at: new Date(0), settings: {} })).not.toThrow();
  }
});

test('every type of event is a webhook, with the schema of events of its kind', () => {
  expect(Object.keys(document.webhooks)).toEqual([...eventTypes]);
  const { schemas } = document.components;
  const titles = Object.entries(document.webhooks).map(([type, { post }]) => {
    const title = String(post.requestBody.content['application/json'].schema.$ref).split('/').at(-1)!;
    const { properties } = schemas[title] as { properties: { type: { enum: string[] } } };
    expect(properties.type.enum).toContain(type);
    return title;
  });
  // Whoever reads the log gets one of them, and each type is of one alone.
  const { oneOf } = schemas.WebhookEvent as { oneOf: { $ref: string }[] };
  expect(oneOf.map(({ $ref }) => $ref.split('/').at(-1))).toEqual([...new Set(titles)]);
});

test('every tag that a route has is described', () => {
  expect(document.tags.filter(({ description }) => description === '')).toEqual([]);
});

test('every error that a module of the program exports is listed in the description', async () => {
  const definitions = await exportedErrors();
  expect(definitions.length).toBeGreaterThan(10);
  const listed = Object.values(document.components.responses).flatMap(({ description, content }) =>
    Object.entries(content['application/json'].examples ?? {}).map(([name, { value }]) => ({
      statusCode: (value as { status_code: number }).status_code,
      isDescribed: (when: string) => description.includes(`\`${name}\`: ${when}`),
      name,
    })),
  );
  const missing = definitions.filter(
    ({ statusCode, name, when }) =>
      !listed.some((one) => one.statusCode === statusCode && one.name === name && one.isDescribed(when)),
  );
  expect(missing).toEqual([]);
});

/** Modules that run something when they are imported. */
const entries = ['main.ts', 'roles/body-thread.ts', 'roles/signing-thread.ts'];

async function exportedErrors(): Promise<ErrorDefinition[]> {
  const source = path.resolve(import.meta.dirname, '..');
  const files = (await readdir(source, { recursive: true })).filter(
    (file) => file.endsWith('.ts') && !file.endsWith('.test.ts') && !entries.includes(file),
  );
  const modules = await Promise.all(
    files.map(async (file) => (await import(path.join(source, file))) as Record<string, unknown>),
  );
  const values = modules.flatMap((module) =>
    Object.values(module).flatMap((value) => (Array.isArray(value) ? (value as unknown[]) : [value])),
  );
  return [...new Set(values.filter(isErrorDefinition))];
}

function isErrorDefinition(value: unknown): value is ErrorDefinition {
  return (
    typeof value === 'object' && value !== null && 'statusCode' in value && 'name' in value && 'when' in value
  );
}
