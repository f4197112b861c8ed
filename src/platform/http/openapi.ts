import type { TObject, TSchema } from 'typebox';
import {
  badRequest,
  conflict,
  type ErrorDefinition,
  forbidden,
  internalServerError,
  notFound,
  payloadTooLarge,
  rateLimitExceeded,
  serviceUnavailable,
  unauthorized,
  validationError,
} from './errors.ts';
import { idempotencyErrors } from './idempotency.ts';
import { pageSizeMax } from './pagination.ts';
import { type Route, routeKey } from './route.ts';

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
  /** By `routeKey`: what a client sends, under a title. Only for routes that have a body. */
  examples: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
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
};

export type OpenApiOperation = {
  operationId: string;
  tags: string[];
  summary: string;
  description?: string;
  security: { apiKey: string[] }[];
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
  security: { apiKey: string[] }[];
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
    paths: describePaths(routes, info),
    components: {
      securitySchemes: {
        apiKey: {
          type: 'http',
          scheme: 'bearer',
          description: 'An API key, as `Authorization: Bearer <key>`.',
        },
      },
      headers: sharedHeaders,
      schemas: { Error: errorSchema(listErrors(routes)) },
      responses: Object.fromEntries(
        sharedErrors.map((error) => [error.name, errorResponse(error.statusCode, [error])]),
      ),
    },
  };
}

/** What a route may answer instead of success, sorted by status; the first of a status is the general one. */
export function listRouteErrors(route: Route): ErrorDefinition[] {
  const errors = new Set<ErrorDefinition>(universalErrors);
  if (route.params !== null) errors.add(notFound);
  if (route.query !== null || route.body !== null) errors.add(validationError);
  if (route.body !== null) errors.add(badRequest).add(payloadTooLarge);
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

function describePaths(routes: readonly Route[], info: ApiInfo): OpenApiDocument['paths'] {
  const paths: OpenApiDocument['paths'] = {};
  for (const route of routes) {
    const path = `/v1${route.path.replaceAll(/:(\w+)/g, '{$1}')}`;
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: describeOperation(route, info) };
  }
  return paths;
}

function describeOperation(route: Route, info: ApiInfo): OpenApiOperation {
  const parameters = describeParameters(route);
  return {
    operationId: operationIdOf(route),
    tags: [route.tag],
    summary: route.summary,
    ...(route.description !== undefined && { description: route.description }),
    security: [{ apiKey: [route.scope] }],
    ...(parameters.length > 0 && { parameters }),
    ...(route.body !== null && {
      requestBody: {
        required: !route.isBodyOptional,
        content: {
          'application/json': {
            schema: toPortableSchema(route.body),
            ...describeExamples(info.examples[routeKey(route)]),
          },
        },
      },
    }),
    responses: describeResponses(route),
  };
}

/** `POST /email/send` as `postEmailSend`, `GET /email/:id` as `getEmailById`: unique because routes are. */
function operationIdOf(route: Route): string {
  const words = route.path
    .split('/')
    .filter((part) => part !== '')
    .flatMap((part) => (part.startsWith(':') ? ['by', ...part.slice(1).split('_')] : part.split(/[-_]/)));
  return (
    route.method.toLowerCase() + words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('')
  );
}

function describeExamples(examples: Readonly<Record<string, unknown>> | undefined) {
  if (examples === undefined) return {};
  return {
    examples: Object.fromEntries(
      Object.entries(examples).map(([summary, value], index) => [`example${index + 1}`, { summary, value }]),
    ),
  };
}

function describeParameters(route: Route): OpenApiParameter[] {
  return [
    ...parametersOf(route.params, 'path'),
    ...parametersOf(route.query, 'query'),
    ...(route.isIdempotent
      ? [
          {
            name: 'Idempotency-Key',
            in: 'header' as const,
            required: false,
            description:
              'Any unique text. Whoever repeats the request with the same key within 24 hours gets the first answer again, and nothing is done twice.',
            schema: { type: 'string', minLength: 1, maxLength: 256 },
          },
        ]
      : []),
  ];
}

function parametersOf(schema: TObject | null, place: 'path' | 'query'): OpenApiParameter[] {
  if (schema === null) return [];
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties).map(([name, property]) => {
    const { description, ...rest } = toPortableSchema(property);
    return {
      name,
      in: place,
      required: place === 'path' || required.has(name),
      ...(typeof description === 'string' && { description }),
      schema: rest,
    };
  });
}

function describeResponses(route: Route): OpenApiOperation['responses'] {
  const responses: OpenApiOperation['responses'] = {
    [route.success.statusCode]: {
      description: route.success.when,
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
      content: { 'application/json': { schema: toPortableSchema(route.success.schema) } },
    },
  };
  const byStatus = new Map<number, ErrorDefinition[]>();
  for (const error of listRouteErrors(route)) {
    byStatus.set(error.statusCode, [...(byStatus.get(error.statusCode) ?? []), error]);
  }
  for (const [statusCode, errors] of byStatus) {
    const [first] = errors;
    responses[statusCode] =
      errors.length === 1 && first !== undefined && sharedErrors.includes(first)
        ? { $ref: `#/components/responses/${first.name}` }
        : errorResponse(statusCode, errors);
  }
  return responses;
}

/** The names are an open set, so that they are told in words and examples, and not as an `enum`. */
function errorResponse(statusCode: number, errors: readonly ErrorDefinition[]): OpenApiResponse {
  const hasRetryAfter = statusCode === 429 || statusCode === 503;
  return {
    description: errors.map(({ name, when }) => `\`${name}\`: ${when}`).join('\n\n'),
    headers: headerReferences(
      'x-request-id',
      // Who is not known has no limit that could be shown.
      ...(statusCode === 401 ? [] : rateHeaders),
      ...(hasRetryAfter ? (['retry-after'] as const) : []),
    ),
    content: {
      'application/json': {
        schema: { $ref: '#/components/schemas/Error' },
        examples: Object.fromEntries(
          errors.map(({ name, when }) => [name, { value: { status_code: statusCode, name, message: when } }]),
        ),
      },
    },
  };
}

function errorSchema(errors: readonly ErrorDefinition[]): Schema {
  return {
    type: 'object',
    required: ['status_code', 'name', 'message'],
    properties: {
      status_code: { type: 'integer', description: 'The HTTP status.' },
      name: {
        type: 'string',
        description: 'What programs go by. New names may come: fall back to `status_code`.',
      },
      message: {
        type: 'string',
        description: 'What people read. For 422 it lists every issue, separated by commas.',
      },
    },
    description: `Every error has this form. The names are:\n\n${errors
      .map(({ statusCode, name, when }) => `- ${statusCode} \`${name}\`: ${when}`)
      .join('\n')}`,
  };
}

const sharedHeaders = {
  'x-request-id': {
    description: 'Names this request in the log of the server.',
    schema: { type: 'string' },
  },
  'ratelimit-limit': {
    description: 'Requests that the organization may make in a window of 60 seconds.',
    schema: { type: 'integer' },
  },
  'ratelimit-remaining': { description: 'What is left of them.', schema: { type: 'integer' } },
  'ratelimit-reset': {
    description: 'Seconds until the window ends.',
    schema: { type: 'integer' },
  },
  'retry-after': {
    description: 'Seconds to wait before another attempt; not sent where waiting does not help.',
    schema: { type: 'integer' },
  },
  'Idempotent-Replayed': {
    description: '`true` where this is the stored answer to an earlier request with the same key.',
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
  'not-blank': { type: 'string', pattern: '\\S' },
};

/** Plain JSON: what TypeBox keeps beside the schema is dropped, and formats are translated. */
function toPortableSchema(schema: TSchema): Schema {
  return JSON.parse(JSON.stringify(schema), (_key, value: unknown) => {
    if (!isRecord(value) || typeof value.format !== 'string') return value;
    const portable = portableFormats[value.format];
    if (portable === undefined) return value;
    const { format: _format, ...rest } = value;
    return { ...rest, ...portable };
  }) as Schema; // A schema's JSON is an object, and stays one.
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
