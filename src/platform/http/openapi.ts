import type { TObject, TSchema } from 'typebox';
import {
  badRequest,
  conflict,
  type ErrorDefinition,
  forbidden,
  internalServerError,
  notFound,
  payloadTooLarge,
  requestTimeout,
  rateLimitExceeded,
  serviceUnavailable,
  unauthorized,
  validationError,
} from './errors.ts';
import { idempotencyErrors } from './idempotency.ts';
import { pageSizeMax } from './pagination.ts';
import { emptyBody, type Route, scopeOfDevices } from './route.ts';

/**
 * The description of the API in the form of OpenAPI 3.1.1, made from the very table that the server serves: the
 * checks of a request, its errors and its documentation cannot drift apart. The same routes give the same text.
 */

/** What the routes do not say by themselves. */
export type ApiInfo = {
  title: string;
  version: string;
  description: string;
  /** In the order in which a reader meets them; a tag that no route has is left out. */
  tags: readonly { name: string; description: string }[];
  /** By the id of the operation, in the order in which they are shown: those that succeed and those that do not. */
  examples: Readonly<Record<string, readonly Example[]>>;
  /**
   * By title, schemas that say more than those that requests are validated against: they are described in their place.
   * Within them, what has a title becomes a named schema of its own.
   */
  schemas: Readonly<Record<string, Schema>>;
};

/** A request as it was made, and what was answered. */
export type Example = {
  title: string;
  /** With its query: `/v1/contacts?limit=2`. */
  path: string;
  /** Undefined where nothing was sent. */
  body?: unknown;
  status: number;
  answer: unknown;
};

/** JSON Schema 2020-12, or a reference to a component. */
export type Schema = Readonly<Record<string, unknown>>;

export type Reference = { $ref: string };

export type OpenApiMedia = {
  schema: Schema;
  examples?: Record<string, { summary?: string; value: unknown }>;
};

export type OpenApiHeader = { description: string; schema: Schema };

export type OpenApiResponse = {
  description: string;
  headers: Record<string, OpenApiHeader | Reference>;
  content: { 'application/json': OpenApiMedia };
};

export type OpenApiParameter = {
  name: string;
  in: 'path' | 'query' | 'header';
  required: boolean;
  description?: string;
  schema: Schema;
  example?: string | number;
};

/** What opens an operation: an API key with these scopes, or the secret of a device. */
export type Security = { apiKey: string[] } | { deviceSecret: [] };

export type OpenApiOperation = {
  operationId: string;
  tags: string[];
  summary: string;
  description?: string;
  security: Security[];
  parameters?: OpenApiParameter[];
  requestBody?: { required: boolean; content: { 'application/json': OpenApiMedia } };
  responses: Record<string, OpenApiResponse | Reference>;
};

export type OpenApiDocument = {
  openapi: '3.1.1';
  info: {
    title: string;
    version: string;
    description: string;
    license: { name: string; identifier: string };
  };
  servers: { url: string }[];
  security: Security[];
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, OpenApiOperation>>;
  components: {
    securitySchemes: Record<string, Schema>;
    headers: Record<string, OpenApiHeader>;
    schemas: Record<string, Schema>;
    responses: Record<string, OpenApiResponse>;
  };
};

/** Every answer of the API can be one of these. */
const universalErrors: readonly ErrorDefinition[] = [
  unauthorized,
  forbidden,
  // A parameter that the route does not have.
  validationError,
  rateLimitExceeded,
  internalServerError,
  serviceUnavailable,
];

/** Errors that mean the same on every route: each is one shared component. */
const sharedErrors: readonly ErrorDefinition[] = [
  badRequest,
  unauthorized,
  forbidden,
  notFound,
  conflict,
  payloadTooLarge,
  validationError,
  rateLimitExceeded,
  internalServerError,
  serviceUnavailable,
];

export function describeRoutes(routes: readonly Route[], info: ApiInfo): OpenApiDocument {
  const used = new Set(routes.map(({ tag }) => tag));
  const unnamed = [...used].filter((tag) => !info.tags.some(({ name }) => name === tag)).sort();
  const schemas = createNamedSchemas(info.schemas);
  const paths = describePaths(routes, info, schemas.place);
  return {
    openapi: '3.1.1',
    info: {
      title: info.title,
      version: info.version,
      description: info.description,
      license: { name: 'MIT', identifier: 'MIT' },
    },
    servers: [{ url: '/' }],
    security: [{ apiKey: [] }],
    tags: [
      ...info.tags
        .filter(({ name }) => used.has(name))
        .map(({ name, description }) => ({ name, description })),
      ...unnamed.map((name) => ({ name, description: '' })),
    ],
    paths,
    components: {
      securitySchemes: {
        apiKey: {
          type: 'http',
          scheme: 'bearer',
          description: 'An API key, as `Authorization: Bearer <key>`.',
        },
        ...(routes.some(({ scope }) => scope === scopeOfDevices) && {
          deviceSecret: {
            type: 'http',
            scheme: 'bearer',
            description:
              'The `device_secret` that the first registration of a device returned, as `Authorization: Bearer <secret>`.',
          },
        }),
      },
      headers: sharedHeaders,
      schemas: { Error: errorSchema(listErrors(routes)), ...schemas.list() },
      responses: Object.fromEntries(
        sharedErrors.map((error) => [error.name, errorResponse(error.statusCode, [error], [])]),
      ),
    },
  };
}

/** What a route may answer instead of success, sorted by status; the first of a status is the general one. */
export function listRouteErrors(route: Route): ErrorDefinition[] {
  const errors = new Set<ErrorDefinition>(universalErrors);
  if (route.scope === scopeOfDevices) errors.delete(forbidden);
  if (route.params !== null) errors.add(notFound);
  if (route.body !== null) errors.add(badRequest).add(requestTimeout).add(payloadTooLarge);
  if (route.isIdempotent) for (const error of idempotencyErrors) errors.add(error);
  for (const error of route.errors) errors.add(error);
  return sortErrors(errors);
}

/** Every error that any of the routes may answer, and those that mean the same everywhere. */
function listErrors(routes: readonly Route[]): ErrorDefinition[] {
  return sortErrors(new Set([...sharedErrors, ...idempotencyErrors, ...routes.flatMap(listRouteErrors)]));
}

function sortErrors(errors: Iterable<ErrorDefinition>): ErrorDefinition[] {
  const rank = (error: ErrorDefinition) => (sharedErrors.includes(error) ? 0 : 1);
  return [...errors].sort(
    (one, other) =>
      one.statusCode - other.statusCode || rank(one) - rank(other) || (one.name < other.name ? -1 : 1),
  );
}

/** Gives the schema as other tools read it, with references to the named ones in it. */
type PlaceSchema = (schema: TSchema) => Schema;

function describePaths(
  routes: readonly Route[],
  info: ApiInfo,
  placeSchema: PlaceSchema,
): OpenApiDocument['paths'] {
  const paths: OpenApiDocument['paths'] = {};
  for (const route of routes) {
    const path = pathOf(route);
    const operation = describeOperation(route, info.examples[route.operationId] ?? [], placeSchema);
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operation };
  }
  return paths;
}

function pathOf(route: Route): string {
  return `/v1${route.path.replaceAll(/:(\w+)/g, '{$1}')}`;
}

function describeOperation(
  route: Route,
  examples: readonly Example[],
  placeSchema: PlaceSchema,
): OpenApiOperation {
  const successes = examples.filter(({ status }) => status < 400);
  const parameters = describeParameters(route, successes[0], placeSchema);
  return {
    operationId: route.operationId,
    tags: [route.tag],
    summary: route.summary,
    ...(route.description !== undefined && { description: route.description }),
    security: [route.scope === scopeOfDevices ? { deviceSecret: [] } : { apiKey: [route.scope] }],
    ...(parameters.length > 0 && { parameters }),
    ...(route.body !== null &&
      route.body !== emptyBody && {
        requestBody: {
          required: !route.isBodyOptional,
          content: {
            'application/json': {
              schema: placeSchema(route.body),
              ...describeExamples(successes, ({ body }) => body),
            },
          },
        },
      }),
    responses: describeResponses(route, examples, placeSchema),
  };
}

/** The request and the answer of one example have the same key. */
function describeExamples(examples: readonly Example[], pick: (example: Example) => unknown) {
  const described = examples.flatMap((example, index) => {
    const value = pick(example);
    return value === undefined ? [] : [[`example${index + 1}`, { summary: example.title, value }] as const];
  });
  return described.length === 0 ? {} : { examples: Object.fromEntries(described) };
}

function describeParameters(
  route: Route,
  example: Example | undefined,
  placeSchema: PlaceSchema,
): OpenApiParameter[] {
  const given = example === undefined ? {} : readParameters(route, example.path);
  const parametersOf = (schema: TObject | null, place: 'path' | 'query'): OpenApiParameter[] => {
    if (schema === null) return [];
    const required = new Set(schema.required ?? []);
    return Object.entries(schema.properties).map(([name, property]) => {
      const { description, ...rest } = placeSchema(property);
      const value = given[name];
      return {
        name,
        in: place,
        required: place === 'path' || required.has(name),
        ...(typeof description === 'string' && { description }),
        schema: rest,
        ...(value !== undefined && { example: rest.type === 'integer' ? Number(value) : value }),
      };
    });
  };
  return [
    ...parametersOf(route.params, 'path'),
    ...parametersOf(route.query, 'query'),
    ...(route.isIdempotent ? [idempotencyParameter] : []),
  ];
}

const idempotencyParameter: OpenApiParameter = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'Any unique text. A request that is repeated with the same key within 24 hours gets the first response again, and nothing is done twice.',
  schema: { type: 'string', minLength: 1, maxLength: 256 },
  example: 'order-1042-confirmation',
};

/** What stands in the path and in the query of a request, by the names of the parameters. */
function readParameters(route: Route, requested: string): Record<string, string | undefined> {
  const [pathname = '', query = ''] = requested.split('?');
  const names = [...route.path.matchAll(/:(\w+)/g)].map(([, name = '']) => name);
  const values = new RegExp(`^${pathOf(route).replaceAll(/\{\w+\}/g, '([^/]+)')}$`).exec(pathname);
  if (values === null) throw new Error(`${requested} is no request of ${route.operationId}`);
  return {
    ...Object.fromEntries(names.map((name, index) => [name, values[index + 1]])),
    ...Object.fromEntries(new URLSearchParams(query)),
  };
}

function describeResponses(
  route: Route,
  examples: readonly Example[],
  placeSchema: PlaceSchema,
): OpenApiOperation['responses'] {
  const { success } = route;
  const responses: OpenApiOperation['responses'] = {
    [success.statusCode]: {
      description: success.when,
      headers: {
        ...headerReferences('x-request-id', ...rateHeaders),
        ...(route.isIdempotent && headerReferences('Idempotent-Replayed')),
        ...Object.fromEntries(
          Object.entries(route.success.headers ?? {}).map(([name, description]) => [
            name,
            { description, schema: { type: 'string' } },
          ]),
        ),
      },
      content: {
        'application/json': {
          schema: placeSchema(success.schema),
          ...describeExamples(
            examples.filter(({ status }) => status === success.statusCode),
            ({ answer }) => answer,
          ),
        },
      },
    },
  };
  const byStatus = new Map<number, ErrorDefinition[]>();
  for (const error of listRouteErrors(route)) {
    byStatus.set(error.statusCode, [...(byStatus.get(error.statusCode) ?? []), error]);
  }
  for (const [statusCode, errors] of byStatus) {
    const [first] = errors;
    const recorded = examples.filter(({ status }) => status === statusCode);
    responses[statusCode] =
      errors.length === 1 && first !== undefined && sharedErrors.includes(first) && recorded.length === 0
        ? { $ref: `#/components/responses/${first.name}` }
        : errorResponse(statusCode, errors, recorded);
  }
  return responses;
}

/** `recorded` are requests that were answered so; of the other errors the example says what they mean. */
function errorResponse(
  statusCode: number,
  errors: readonly ErrorDefinition[],
  recorded: readonly Example[],
): OpenApiResponse {
  const hasRetryAfter = statusCode === 429 || statusCode === 503;
  return {
    description: errors.map(({ name, when }) => `\`${name}\`: ${when}`).join('\n\n'),
    headers: headerReferences(
      'x-request-id',
      // A caller that is not known has no limit that could be shown.
      ...(statusCode === 401 ? [] : rateHeaders),
      ...(hasRetryAfter ? (['retry-after'] as const) : []),
    ),
    content: {
      'application/json': {
        schema: {
          allOf: [
            { $ref: '#/components/schemas/Error' },
            {
              type: 'object',
              properties: {
                status_code: { type: 'integer', const: statusCode },
                name: openEnum(errors.map(({ name }) => name)),
              },
            },
          ],
        },
        examples: Object.fromEntries(
          errors.flatMap(({ name, when }): [string, { summary?: string; value: unknown }][] => {
            const examples = recorded.filter(({ answer }) => isRecord(answer) && answer.name === name);
            return examples.length === 0
              ? [[name, { value: { status_code: statusCode, name, message: when } }]]
              : examples.map(({ title, answer }, index) => [
                  index === 0 ? name : `${name}_${index + 1}`,
                  { summary: title, value: answer },
                ]);
          }),
        ),
      },
    },
  };
}

/** Known texts of a set that may grow: a client that checks answers must not fail on a new one. */
function openEnum(values: readonly string[]): Schema {
  return { anyOf: [{ type: 'string', enum: [...new Set(values)] }, { type: 'string' }] };
}

function errorSchema(errors: readonly ErrorDefinition[]): Schema {
  return {
    type: 'object',
    required: ['status_code', 'name', 'message'],
    properties: {
      status_code: { type: 'integer', description: 'The HTTP status.' },
      name: {
        ...openEnum(errors.map(({ name }) => name).sort()),
        description: 'For programs. New names may be added: fall back to `status_code`.',
      },
      message: {
        type: 'string',
        description: 'For people. For 422 it lists every issue, separated by commas.',
      },
    },
    description: `Every error has this form. The names are:\n\n${errors
      .map(({ statusCode, name, when }) => `- ${statusCode} \`${name}\`: ${when}`)
      .join('\n')}`,
  };
}

const sharedHeaders = {
  'x-request-id': {
    description: 'Identifies the request in the log of the server.',
    schema: { type: 'string' },
  },
  'ratelimit-limit': {
    description: 'Requests that the organization may make in a window of 60 seconds.',
    schema: { type: 'integer' },
  },
  'ratelimit-remaining': {
    description: 'Requests that are left in the window.',
    schema: { type: 'integer' },
  },
  'ratelimit-reset': {
    description: 'Seconds until the window ends.',
    schema: { type: 'integer' },
  },
  'retry-after': {
    description: 'Seconds to wait before another attempt; absent if waiting does not help.',
    schema: { type: 'integer' },
  },
  'Idempotent-Replayed': {
    description: '`true` if this is the stored response to an earlier request with the same key.',
    schema: { type: 'string', const: 'true' },
  },
} as const satisfies Record<string, OpenApiHeader>;

const rateHeaders = ['ratelimit-limit', 'ratelimit-remaining', 'ratelimit-reset'] as const;

function headerReferences(...names: readonly (keyof typeof sharedHeaders)[]): Record<string, Reference> {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

/** Our own text formats that mean nothing to other tools, in words that they know. */
const portableFormats: Readonly<Record<string, Schema>> = {
  'page-size': { type: 'integer', minimum: 1, maximum: pageSizeMax, default: 20 },
  'single-line': { type: 'string', pattern: '^[^\\r\\n]*$' },
  'filled-line': { type: 'string', pattern: '^[^\\r\\n]*\\S[^\\r\\n]*$' },
  'not-blank': { type: 'string', pattern: '\\S' },
};

/** Keywords with a schema in them, with a list of schemas, and with schemas by name. */
const schemaKeywords = ['items', 'additionalProperties', 'propertyNames'];
const schemaListKeywords = ['anyOf', 'oneOf', 'allOf', 'prefixItems'];
const schemaMapKeywords = ['properties', 'patternProperties'];

/** Takes schemas with a `title` out of where they stand, each once, and leaves references to them. */
function createNamedSchemas(definitions: Readonly<Record<string, Schema>>) {
  const named = new Map<string, { source: string; schema: Schema }>();

  const place = (schema: Schema): Schema => {
    const { title, ...untitled } = schema;
    if (typeof title !== 'string') return placeInside(schema);
    const source = JSON.stringify(untitled);
    const known = named.get(title);
    if (known === undefined) {
      // Entered before what it consists of: a reader meets the whole first.
      const entry = { source, schema: {} };
      named.set(title, entry);
      entry.schema = placeInside(definitions[title] ?? untitled);
    } else if (known.source !== source) {
      throw new Error(`two schemas that differ are called ${title}`);
    }
    return { $ref: `#/components/schemas/${title}` };
  };

  const placeInside = (schema: Schema): Schema =>
    toPortable(
      Object.fromEntries(
        Object.entries(schema).map(([keyword, value]) => [keyword, placeKeyword(keyword, value)]),
      ),
    );

  const placeKeyword = (keyword: string, value: unknown): unknown => {
    if (schemaKeywords.includes(keyword)) return isRecord(value) ? place(value) : value;
    if (schemaListKeywords.includes(keyword) && Array.isArray(value))
      return value.filter(isRecord).map(place);
    if (schemaMapKeywords.includes(keyword) && isRecord(value)) {
      return Object.fromEntries(
        Object.entries(value).map(([name, inner]) => [name, isRecord(inner) ? place(inner) : inner]),
      );
    }
    return value;
  };

  return {
    // Plain JSON: what TypeBox keeps beside the schema is dropped.
    place: (schema: TSchema): Schema => place(JSON.parse(JSON.stringify(schema)) as Schema),
    list: () => Object.fromEntries([...named].map(([title, { schema }]) => [title, schema])),
  };
}

/** One level of a schema in words that other tools know. */
function toPortable(schema: Schema): Schema {
  const {
    format,
    patternProperties,
    rules: _rules,
    composed: _composed,
    nullIsRefused: _nullIsRefused,
    ...rest
  } = schema;
  const patterns = isRecord(patternProperties) ? Object.entries(patternProperties) : [];
  const portableFormat = typeof format === 'string' ? portableFormats[format] : undefined;
  const [pattern, values] = patterns[0] ?? [];
  if (
    patterns.length > 1 ||
    (pattern !== undefined && pattern !== anyName && rest.additionalProperties !== false)
  ) {
    throw new Error('only names of one pattern can be described');
  }
  return {
    ...rest,
    ...(portableFormat ?? (format !== undefined && { format })),
    ...(pattern !== undefined && {
      // Few tools read `patternProperties`.
      additionalProperties: values,
      ...(pattern !== anyName && { propertyNames: { type: 'string', pattern } }),
    }),
  };
}

/** The pattern of a record that takes every name. */
const anyName = '^.*$';

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
