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
import { pageSizeMax, paginationParameters } from './pagination.ts';
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
  /** What the service itself asks of the programs of its users, in the order in which it is shown. */
  webhooks: readonly DescribedWebhook[];
};

/** A request that tells of an event. `body` has a title: many events may have one. */
export type DescribedWebhook = { type: string; tag: string; summary: string; body: Schema };

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
  headers?: Record<string, OpenApiHeader | Reference>;
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
  parameters?: (OpenApiParameter | Reference)[];
  requestBody?: { required: boolean; content: { 'application/json': OpenApiMedia } };
  responses: Record<string, OpenApiResponse | Reference>;
  /** The names of the errors with the statuses that it lists; any other is one of `default`. */
  'x-errors'?: string[];
};

/** What is asked of a program: any answer with a status of success is one. */
export type OpenApiWebhook = {
  tags: string[];
  summary: string;
  security: [];
  parameters: Reference[];
  requestBody: { required: true; content: { 'application/json': OpenApiMedia } };
  responses: Record<string, { description: string }>;
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
  webhooks: Record<string, { post: OpenApiWebhook }>;
  components: {
    securitySchemes: Record<string, Schema>;
    headers: Record<string, OpenApiHeader>;
    parameters: Record<string, OpenApiParameter>;
    schemas: Record<string, Schema>;
    responses: Record<string, OpenApiResponse>;
  };
};

/** Every answer of the API can be one of these, */
const universalErrors: readonly ErrorDefinition[] = [
  unauthorized,
  forbidden,
  // A parameter that the route does not have.
  validationError,
  rateLimitExceeded,
  internalServerError,
  serviceUnavailable,
];
/** and one of these where a body is sent. */
const bodyErrors: readonly ErrorDefinition[] = [badRequest, requestTimeout, payloadTooLarge];
/** What `default` describes, and no operation lists. */
const unlistedErrors = sortErrors([...universalErrors, ...bodyErrors]);

/** The general error of each status, after which the answer with this status is called. */
const generalErrors: readonly ErrorDefinition[] = [
  badRequest,
  unauthorized,
  forbidden,
  notFound,
  requestTimeout,
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
  const webhooks = describeWebhooks(info.webhooks, schemas.place);
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
    webhooks,
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
      parameters: {
        ...sharedParameters(schemas.place),
        ...(info.webhooks.length > 0 &&
          Object.fromEntries(webhookParameters.map((parameter) => [parameter.name, parameter]))),
      },
      schemas: { Error: errorSchema(listErrors(routes)), ...schemas.list() },
      responses: describeErrors(routes, Object.values(info.examples).flat()),
    },
  };
}

/** What a route may answer instead of success, sorted by status; the first of a status is the general one. */
export function listRouteErrors(route: Route): ErrorDefinition[] {
  const errors = new Set<ErrorDefinition>(universalErrors);
  if (route.scope === scopeOfDevices) errors.delete(forbidden);
  if (route.params !== null) errors.add(notFound);
  if (route.body !== null) for (const error of bodyErrors) errors.add(error);
  if (route.isIdempotent) for (const error of idempotencyErrors) errors.add(error);
  for (const error of route.errors) errors.add(error);
  return sortErrors(errors);
}

/** Every error that any of the routes may answer, and those that mean the same everywhere. */
function listErrors(routes: readonly Route[]): ErrorDefinition[] {
  return sortErrors(new Set([...generalErrors, ...idempotencyErrors, ...routes.flatMap(listRouteErrors)]));
}

function sortErrors(errors: Iterable<ErrorDefinition>): ErrorDefinition[] {
  const rank = (error: ErrorDefinition) => (generalErrors.includes(error) ? 0 : 1);
  return [...errors].sort(
    (one, other) =>
      one.statusCode - other.statusCode || rank(one) - rank(other) || (one.name < other.name ? -1 : 1),
  );
}

/** Gives the schema as other tools read it, with references to the named ones in it. */
type PlaceSchema = (schema: TSchema | Schema) => Schema;

/** Where a description is made: `shown` are the schemas of which an answer has been shown already. */
type Place = { placeSchema: PlaceSchema; shown: Set<string> };

function describePaths(
  routes: readonly Route[],
  info: ApiInfo,
  placeSchema: PlaceSchema,
): OpenApiDocument['paths'] {
  const paths: OpenApiDocument['paths'] = {};
  const place = { placeSchema, shown: new Set<string>() };
  for (const route of routes) {
    const path = pathOf(route);
    const operation = describeOperation(route, info.examples[route.operationId] ?? [], place);
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operation };
  }
  return paths;
}

function describeWebhooks(
  webhooks: readonly DescribedWebhook[],
  placeSchema: PlaceSchema,
): OpenApiDocument['webhooks'] {
  return Object.fromEntries(
    webhooks.map(({ type, tag, summary, body }) => [
      type,
      {
        post: {
          tags: [tag],
          summary,
          security: [],
          parameters: webhookParameters.map(({ name }) => parameterReference(name)),
          requestBody: { required: true, content: { 'application/json': { schema: placeSchema(body) } } },
          responses: {
            '2XX': { description: 'It was taken, within 15 seconds.' },
            410: { description: 'The webhook is disabled.' },
            default: { description: 'It is tried again.' },
          },
        },
      },
    ]),
  );
}

/** Of Standard Webhooks 1.0. */
const webhookParameters: readonly OpenApiParameter[] = [
  {
    name: 'webhook-id',
    in: 'header',
    required: true,
    description: 'The `id` of the event, the same at every attempt: whoever has had it may leave it out.',
    schema: { type: 'string', format: 'uuid' },
  },
  {
    name: 'webhook-timestamp',
    in: 'header',
    required: true,
    description:
      'Of the attempt, in seconds since 1970. Refuse what is more than five minutes away from your clock.',
    schema: { type: 'string', pattern: '^[0-9]+$' },
  },
  {
    name: 'webhook-signature',
    in: 'header',
    required: true,
    description:
      'One or more, with blanks in between: `v1,` and the base64 of HMAC-SHA256 over `webhook-id`, a dot, `webhook-timestamp`, a dot and the body, with the octets of the secret. One that is right is enough.',
    schema: { type: 'string' },
  },
];

function pathOf(route: Route): string {
  return `/v1${route.path.replaceAll(/:(\w+)/g, '{$1}')}`;
}

function describeOperation(route: Route, examples: readonly Example[], place: Place): OpenApiOperation {
  const { placeSchema } = place;
  const successes = examples.filter(({ status }) => status < 400);
  const errors = withStatusOfTheirOwn(listRouteErrors(route));
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
    responses: { ...describeSuccess(route, successes, place), ...referToErrors(errors) },
    ...(errors.length > 0 && { 'x-errors': errors.map(({ name }) => name) }),
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
): (OpenApiParameter | Reference)[] {
  const given = example === undefined ? {} : readParameters(route, example.path);
  const parametersOf = (schema: TObject | null, place: 'path' | 'query') => {
    if (schema === null) return [];
    const required = new Set(schema.required ?? []);
    return Object.entries(schema.properties).map(([name, property]) => {
      if (Object.values<TSchema>(paginationParameters).includes(property)) return parameterReference(name);
      const isRequired = place === 'path' || required.has(name);
      return describeParameter(name, place, isRequired, placeSchema(property), given[name]);
    });
  };
  return [
    ...parametersOf(route.params, 'path'),
    ...parametersOf(route.query, 'query'),
    ...(route.isIdempotent ? [parameterReference(idempotencyParameter.name)] : []),
  ];
}

function describeParameter(
  name: string,
  place: 'path' | 'query',
  required: boolean,
  { description, ...schema }: Schema,
  example?: string,
): OpenApiParameter {
  return {
    name,
    in: place,
    required,
    ...(typeof description === 'string' && { description }),
    schema,
    ...(example !== undefined && { example: schema.type === 'integer' ? Number(example) : example }),
  };
}

/** Those that many operations have. */
function sharedParameters(placeSchema: PlaceSchema): OpenApiDocument['components']['parameters'] {
  const ofPages = Object.entries(paginationParameters).map(([name, schema]) =>
    describeParameter(name, 'query', false, placeSchema(schema)),
  );
  return Object.fromEntries(
    [...ofPages, idempotencyParameter].map((parameter) => [parameter.name, parameter]),
  );
}

function parameterReference(name: string): Reference {
  return { $ref: `#/components/parameters/${name}` };
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

function describeSuccess(
  { success, isIdempotent }: Route,
  examples: readonly Example[],
  { placeSchema, shown }: Place,
): OpenApiOperation['responses'] {
  const schema = placeSchema(success.schema);
  const isShown = isPage(success.schema) || shown.has(JSON.stringify(schema));
  shown.add(JSON.stringify(schema));
  const headers = {
    ...(isIdempotent && headerReferences('Idempotent-Replayed')),
    ...Object.fromEntries(
      Object.entries(success.headers ?? {}).map(([name, description]) => [
        name,
        { description, schema: { type: 'string' } },
      ]),
    ),
  };
  return {
    [success.statusCode]: {
      description: success.when,
      ...(Object.keys(headers).length > 0 && { headers }),
      content: {
        'application/json': {
          schema,
          ...(!isShown && describeExamples(examples, ({ answer }) => answer)),
        },
      },
    },
    ...(success.whenThere !== undefined && {
      200: { description: success.whenThere, content: { 'application/json': { schema } } },
    }),
  };
}

/** Whether it is a page of records, which are shown where they are answered one by one. */
function isPage(schema: TSchema): boolean {
  return 'properties' in schema && isRecord(schema.properties) && 'data' in schema.properties;
}

/** Those whose status at least one has that `default` does not describe. */
function withStatusOfTheirOwn(errors: readonly ErrorDefinition[]): ErrorDefinition[] {
  const statuses = new Set(
    errors.filter((error) => !unlistedErrors.includes(error)).map(({ statusCode }) => statusCode),
  );
  return errors.filter(({ statusCode }) => statuses.has(statusCode));
}

/** One answer for each status of these errors, and the one of those that every operation may answer. */
function referToErrors(errors: readonly ErrorDefinition[]): Record<string, Reference> {
  const refer = (name: string) => ({ $ref: `#/components/responses/${name}` });
  return {
    ...Object.fromEntries(errors.map(({ statusCode }) => [statusCode, refer(responseName(statusCode))])),
    default: refer(universalResponse),
  };
}

const universalResponse = 'any_operation';

function responseName(statusCode: number): string {
  const general = generalErrors.find((error) => error.statusCode === statusCode);
  if (general === undefined) throw new Error(`no error is the general one of the status ${statusCode}`);
  return general.name;
}

/**
 * The answers that operations refer to. What an error looks like is told by the first request that was answered so, in
 * `recorded`, and otherwise by what it means.
 */
function describeErrors(
  routes: readonly Route[],
  recorded: readonly Example[],
): OpenApiDocument['components']['responses'] {
  const answers = new Map<string, Example>();
  for (const example of recorded) {
    const { answer, status } = example;
    if (status >= 400 && isRecord(answer) && !answers.has(String(answer.name))) {
      answers.set(String(answer.name), example);
    }
  }
  const errors = withStatusOfTheirOwn(listErrors(routes));
  const statuses = [...new Set(errors.map(({ statusCode }) => statusCode))];
  return {
    [universalResponse]: errorResponse(unlistedErrors, answers),
    ...Object.fromEntries(
      statuses.map((status) => [
        responseName(status),
        errorResponse(
          errors.filter(({ statusCode }) => statusCode === status),
          answers,
        ),
      ]),
    ),
  };
}

function errorResponse(
  errors: readonly ErrorDefinition[],
  answers: ReadonlyMap<string, Example>,
): OpenApiResponse {
  const statuses = [...new Set(errors.map(({ statusCode }) => statusCode))];
  const [status] = statuses;
  const hasRetryAfter = statuses.some((statusCode) => statusCode === 429 || statusCode === 503);
  return {
    description: errors.map(({ name, when }) => `\`${name}\`: ${when}`).join('\n\n'),
    headers: headerReferences(
      'x-request-id',
      // A caller that is not known has no limit that could be shown.
      ...(status === 401 && statuses.length === 1 ? [] : rateHeaders),
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
                ...(statuses.length === 1 && { status_code: { type: 'integer', const: status } }),
                name: openEnum(errors.map(({ name }) => name)),
              },
            },
          ],
        },
        examples: Object.fromEntries(
          errors.map(({ statusCode, name, when }) => [
            name,
            { value: answers.get(name)?.answer ?? { status_code: statusCode, name, message: when } },
          ]),
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
    description: 'Every error has this form.',
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
    place: (schema: TSchema | Schema): Schema => place(JSON.parse(JSON.stringify(schema)) as Schema),
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
    sensitive: _sensitive,
    mayBeOne,
    ...described
  } = schema;
  const rest = mayBeOne === true ? orOne(described) : described;
  const patterns = isRecord(patternProperties) ? Object.entries(patternProperties) : [];
  const portableFormat = typeof format === 'string' ? portableFormats[format] : undefined;
  const [pattern, values] = patterns[0] ?? [];
  if (
    patterns.length > 1 ||
    (pattern !== undefined && pattern !== anyName && rest.additionalProperties !== false)
  ) {
    throw new Error('only names of one pattern can be described');
  }
  const nullable = asNullable(rest);
  return {
    ...nullable,
    ...(portableFormat ?? (format !== undefined && { format })),
    ...(pattern !== undefined && {
      // Few tools read `patternProperties`.
      additionalProperties: values,
      ...(pattern !== anyName && { propertyNames: { type: 'string', pattern } }),
    }),
  };
}

/** A list that may be given as the one that it would hold. */
function orOne({ description, ...list }: Schema): Schema {
  return { ...(description !== undefined && { description }), anyOf: [list.items, list] };
}

/** A value of one simple type, or null, as one schema with two types. */
function asNullable(schema: Schema): Schema {
  const { anyOf, ...rest } = schema;
  if (!Array.isArray(anyOf) || anyOf.length !== 2) return schema;
  const [value, none] = anyOf as unknown[];
  if (!isRecord(value) || !isRecord(none) || none.type !== 'null') return schema;
  if (typeof value.type !== 'string' || 'enum' in value || 'const' in value) return schema;
  return { ...value, ...rest, type: [value.type, 'null'] };
}

/** The pattern of a record that takes every name. */
const anyName = '^.*$';

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
