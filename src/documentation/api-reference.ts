import type {
  ApiInfo,
  Example,
  OpenApiDocument,
  OpenApiOperation,
  Reference,
  Schema,
} from '../platform/http/openapi.ts';

/** The description of the API by resources, of which each has a page. */

/** `examples` are the requests that were recorded, with their answers. */
export type PlacedOperation = OpenApiOperation & {
  method: string;
  path: string;
  examples: readonly Example[];
};

/** What one tag of the description holds together. */
export type Resource = {
  /** Its page is `/docs/<slug>`. */
  slug: string;
  name: string;
  description: string;
  operations: readonly PlacedOperation[];
};

export type ApiReference = {
  document: OpenApiDocument;
  resources: readonly Resource[];
  /** What a reference stands for, or the value itself. Throws if there is no such component. */
  resolve: <Value extends object>(value: Value | Reference) => Value;
  /** The slug of the page that describes a named schema: the one resource that uses it, or else `schemas`. */
  homeOf: (schemaName: string) => string;
};

/** The page of the schemas that several resources have in common. */
export const commonSchemas = 'schemas';

/** The page of the errors, and of the schema that all of them have. */
export const errorsPage = 'errors';

/** Of the responses, the one that holds the errors of every operation, which `default` stands for. */
export const anyOperation = 'any_operation';

/** `examples` are the requests that were recorded, by the id of their operation, with their answers. */
export function readApiReference(document: OpenApiDocument, examples: ApiInfo['examples']): ApiReference {
  const placed = listOperations(document, examples);
  const resources = document.tags.map(({ name, description }) => ({
    slug: slugOf(name),
    name,
    description,
    operations: placed.filter(({ tags }) => tags.includes(name)),
  }));
  const homes = findHomes(document, resources);
  return {
    document,
    resources,
    resolve: (value) => resolveIn(document, value),
    homeOf: (schemaName) => homes.get(schemaName) ?? commonSchemas,
  };
}

/** `Email campaigns` becomes `email-campaigns`. */
export function slugOf(name: string): string {
  return name.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
}

/** What `#/components/schemas/Contact` refers to. */
export function schemaNameOf({ $ref }: Schema): string | null {
  const prefix = '#/components/schemas/';
  return typeof $ref === 'string' && $ref.startsWith(prefix) ? $ref.slice(prefix.length) : null;
}

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

function resolveIn<Value extends object>(document: OpenApiDocument, value: Value | Reference): Value {
  if (!('$ref' in value) || typeof value.$ref !== 'string') return value as Value; // No reference, then.
  const found = componentOf(document, value.$ref);
  if (found === undefined) throw new Error(`${value.$ref} is not in the description of the API`);
  return found as Value; // The kinds of components are named as what refers to them.
}

/** Of `#/components/<kind>/<name>`. */
function componentOf({ components }: OpenApiDocument, reference: string): unknown {
  const [, , kind = '', name = ''] = reference.split('/');
  return (components as Record<string, Record<string, unknown> | undefined>)[kind]?.[name];
}

/** A schema that one resource uses alone is described where it is used, and found there by its readers. */
function findHomes(document: OpenApiDocument, resources: readonly Resource[]): Map<string, string> {
  const homes = new Map<string, string>();
  for (const { slug, operations } of resources) {
    for (const reference of findReferences(document, operations)) {
      const name = schemaNameOf({ $ref: reference });
      if (name !== null) homes.set(name, homes.has(name) ? commonSchemas : slug);
    }
  }
  homes.set('Error', errorsPage);
  return homes;
}

/** Those within a value, and within what they refer to. Ends since each is followed once. */
function findReferences(document: OpenApiDocument, within: unknown): Set<string> {
  const found = new Set<string>();
  const waiting = [within];
  while (waiting.length > 0) {
    const value = waiting.pop();
    if (typeof value !== 'object' || value === null) continue;
    for (const [name, member] of Object.entries(value)) {
      if (name !== '$ref' || typeof member !== 'string') waiting.push(member);
      else if (!found.has(member)) {
        found.add(member);
        waiting.push(componentOf(document, member));
      }
    }
  }
  return found;
}
