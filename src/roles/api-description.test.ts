import { Validator } from '@seriousme/openapi-schema-validator';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import type { ErrorDefinition } from '../platform/http/errors.ts';
import { createValidation } from '../platform/http/validation.ts';
import { listRoutes } from './api.ts';
import { describeApi } from './api-description.ts';
import type { Installation } from './installation.ts';
import { textFormats } from './text-formats.ts';

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
      security: [{ apiKey: [route.scope] }],
    });
  }
});

test('what every route takes can be validated', () => {
  const validation = createValidation(textFormats);
  const schemas = routes.flatMap(({ params, query, body }) => [params, query, body]);
  for (const schema of schemas) {
    if (schema !== null) expect(() => validation.compile(schema)({})).not.toThrow();
  }
});

test('every tag that a route has is described', () => {
  expect(document.tags.filter(({ description }) => description === '')).toEqual([]);
});

test('every error that a module of the program exports is listed in the description', async () => {
  const definitions = await exportedErrors();
  expect(definitions.length).toBeGreaterThan(10);
  const listed = document.components.schemas.Error?.description as string;
  const missing = definitions.filter(
    ({ statusCode, name, when }) => !listed.includes(`- ${statusCode} \`${name}\`: ${when}`),
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
