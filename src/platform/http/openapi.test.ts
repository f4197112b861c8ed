import { Validator } from '@seriousme/openapi-schema-validator';
import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { conflict, defineError, notFound } from './errors.ts';
import { type ApiInfo, describeRoutes, listRouteErrors } from './openapi.ts';
import { paginationParameters } from './pagination.ts';
import { defineRoute, json } from './route.ts';

const handle = () => Promise.resolve(json({}));
const kettle = Type.Object({ id: Type.String() }, { title: 'Kettle' });
const success = { statusCode: 200, schema: kettle, when: 'Done.' } as const;
const kettleTooHot = defineError(409, 'kettle_too_hot', 'The kettle must cool down first.');

const routes = [
  defineRoute({
    method: 'GET',
    path: '/kettles',
    operationId: 'listKettles',
    scope: 'kettles:read',
    tag: 'Kettles',
    summary: 'List kettles',
    query: Type.Object({ ...paginationParameters, color: Type.String({ format: 'not-blank' }) }),
    success,
    handle,
  }),
  defineRoute({
    method: 'PATCH',
    path: '/kettles/:id/lid-of/:pot_id',
    operationId: 'updateLid',
    scope: 'kettles:write',
    tag: 'Kettles',
    summary: 'Change a lid',
    params: Type.Object({ id: Type.String({ format: 'uuid' }), pot_id: Type.String() }),
    body: Type.Object({ name: Type.Optional(Type.String({ format: 'single-line' })) }),
    isBodyOptional: true,
    isIdempotent: true,
    success,
    errors: [kettleTooHot, conflict],
    handle,
  }),
];

const info: ApiInfo = {
  title: 'Kettles',
  version: '1.2.3',
  description: 'About kettles.',
  tags: [
    { name: 'Pots', description: 'Nobody has any.' },
    { name: 'Kettles', description: 'For tea.' },
  ],
  examples: {
    updateLid: [
      {
        title: 'A new name',
        path: '/v1/kettles/k1/lid-of/p1',
        body: { name: 'Whistle' },
        status: 200,
        answer: { id: 'k1' },
      },
      {
        title: 'A kettle on the fire',
        path: '/v1/kettles/k2/lid-of/p1',
        body: { name: 'Whistle' },
        status: 409,
        answer: { status_code: 409, name: 'kettle_too_hot', message: 'Wait for a minute.' },
      },
    ],
  },
  schemas: {},
  webhooks: [],
};

const document = describeRoutes(routes, info);
const list = document.paths['/v1/kettles']!.get!;
const patch = document.paths['/v1/kettles/{id}/lid-of/{pot_id}']!.patch!;

test('the description is valid OpenAPI 3.1, and plain JSON', async () => {
  const text = JSON.stringify(document);
  expect(JSON.parse(text)).toEqual(document);
  expect(await new Validator().validate(JSON.parse(text) as Record<string, unknown>)).toMatchObject({
    valid: true,
  });
});

test('the same routes give the same text', () => {
  expect(JSON.stringify(describeRoutes(routes, info))).toBe(JSON.stringify(document));
});

test('every parameter is described where it is sent, with formats that other tools know', () => {
  expect(list.parameters).toEqual([
    { $ref: '#/components/parameters/limit' },
    { $ref: '#/components/parameters/after' },
    { $ref: '#/components/parameters/before' },
    { name: 'color', in: 'query', required: true, schema: { type: 'string', pattern: '\\S' } },
  ]);
  expect(patch.parameters).toEqual([
    { name: 'id', in: 'path', required: true, schema: { type: 'string', format: 'uuid' }, example: 'k1' },
    { name: 'pot_id', in: 'path', required: true, schema: { type: 'string' }, example: 'p1' },
    { $ref: '#/components/parameters/Idempotency-Key' },
  ]);
  expect(document.components.parameters).toEqual({
    limit: {
      name: 'limit',
      in: 'query',
      required: false,
      description: 'Items on a page, 1 to 100.',
      schema: { type: 'integer', minimum: 1, maximum: 100, default: 20 },
    },
    after: expect.objectContaining({ name: 'after', schema: { type: 'string', format: 'uuid' } }) as unknown,
    before: expect.objectContaining({
      name: 'before',
      schema: { type: 'string', format: 'uuid' },
    }) as unknown,
    'Idempotency-Key': expect.objectContaining({ in: 'header', required: false }) as unknown,
  });
});

test('a body is described with its examples, and is required unless the route can do without', () => {
  expect(list.requestBody).toBeUndefined();
  expect(patch.requestBody).toMatchObject({
    required: false,
    content: {
      'application/json': {
        schema: { properties: { name: { type: 'string', pattern: '^[^\\r\\n]*$' } } },
        examples: { example1: { summary: 'A new name', value: { name: 'Whistle' } } },
      },
    },
  });
});

test('a route answers what every route can, what its inputs bring about, and its own errors', () => {
  const names = (index: number) => listRouteErrors(routes[index]!).map(({ name }) => name);
  expect(names(0)).toEqual([
    'unauthorized',
    'forbidden',
    'validation_error',
    'rate_limit_exceeded',
    'internal_server_error',
    'service_unavailable',
  ]);
  expect(names(1)).toEqual([
    'bad_request',
    'invalid_idempotency_key',
    'unauthorized',
    'forbidden',
    notFound.name,
    'request_timeout',
    'conflict',
    'invalid_idempotent_request',
    'kettle_too_hot',
    'payload_too_large',
    'validation_error',
    'rate_limit_exceeded',
    'internal_server_error',
    'service_unavailable',
    'concurrent_idempotent_requests',
  ]);
});

test('an operation lists the statuses of its own errors and names them; the others are said once', () => {
  expect([Object.keys(list.responses), list['x-errors']]).toEqual([['200', 'default'], undefined]);
  expect(Object.keys(patch.responses)).toEqual(['200', '400', '404', '409', '503', 'default']);
  expect(patch['x-errors']).toEqual([
    'bad_request',
    'invalid_idempotency_key',
    notFound.name,
    'conflict',
    'invalid_idempotent_request',
    'kettle_too_hot',
    'service_unavailable',
    'concurrent_idempotent_requests',
  ]);
  expect(patch.responses[409]).toEqual({ $ref: '#/components/responses/conflict' });
  expect(patch.responses.default).toEqual({ $ref: '#/components/responses/any_operation' });
});

test('the errors of a status are one answer, which says what each of them means and shows it', () => {
  const { any_operation: others, conflict: conflicts } = document.components.responses;
  expect(conflicts).toMatchObject({
    description: expect.stringContaining(`\`conflict\`: ${conflict.when}\n\n`) as string,
    content: {
      'application/json': {
        schema: {
          allOf: [{ $ref: '#/components/schemas/Error' }, { properties: { status_code: { const: 409 } } }],
        },
        examples: {
          conflict: { value: { status_code: 409, name: 'conflict', message: conflict.when } },
          kettle_too_hot: {
            value: { status_code: 409, name: 'kettle_too_hot', message: 'Wait for a minute.' },
          },
        },
      },
    },
  });
  expect(Object.keys(others!.content['application/json'].examples!)).toEqual([
    'bad_request',
    'unauthorized',
    'forbidden',
    'request_timeout',
    'payload_too_large',
    'validation_error',
    'rate_limit_exceeded',
    'internal_server_error',
    'service_unavailable',
  ]);
  const referred = JSON.stringify(document.paths).match(/(?<=#\/components\/responses\/)\w+/g);
  expect(new Set(Object.keys(document.components.responses))).toEqual(new Set(referred));
});

test('headers are described where they are sent, and those of limits once', () => {
  const answer = patch.responses[200] as { headers: Record<string, unknown> };
  expect(Object.keys(answer.headers)).toEqual(['Idempotent-Replayed']);
  expect(list.responses[200]).not.toHaveProperty('headers');
  expect(Object.keys(document.components.responses.any_operation!.headers ?? {})).toEqual([
    'x-request-id',
    'ratelimit-limit',
    'ratelimit-remaining',
    'ratelimit-reset',
    'retry-after',
  ]);
});

test('an answer is shown where its schema is met first, and a page of records nowhere', () => {
  const answered = (title: string, path: string) => ({ title, path, status: 200, answer: { id: title } });
  const page = { ...success, schema: Type.Object({ data: Type.Array(kettle) }) };
  const [route] = routes;
  const { paths } = describeRoutes(
    [
      { ...route!, path: '/cups', operationId: 'listCups' },
      { ...route!, path: '/pots', operationId: 'listPots' },
      { ...route!, path: '/pages', operationId: 'listPages', success: page },
    ],
    {
      ...info,
      examples: {
        listCups: [answered('kettle-1', '/v1/cups'), answered('kettle-2', '/v1/cups')],
        listPots: [answered('kettle-3', '/v1/pots')],
        listPages: [answered('kettle-4', '/v1/pages')],
      },
    },
  );
  const shown = Object.values(paths).map(({ get }) => [
    ...new Set(JSON.stringify(get!.responses).match(/kettle-\d/g)),
  ]);
  expect(shown).toEqual([['kettle-1', 'kettle-2'], [], []]);
});

test('the scope of a route is the role that its security asks for, and its operation has a name', () => {
  expect(patch.security).toEqual([{ apiKey: ['kettles:write'] }]);
  expect([list.operationId, patch.operationId]).toEqual(['listKettles', 'updateLid']);
});

test('a schema with a title is described once, and referred to', () => {
  const reference = { $ref: '#/components/schemas/Kettle' };
  for (const { responses } of [list, patch]) {
    expect(responses[200]).toMatchObject({ content: { 'application/json': { schema: reference } } });
  }
  expect(document.components.schemas.Kettle).toEqual({
    type: 'object',
    required: ['id'],
    properties: { id: { type: 'string' } },
  });
});

test('a schema may be described by more than requests are validated against, and refer to itself', () => {
  const tree = Type.Object({ leaves: Type.Unsafe({ type: 'object', title: 'Tree' }) });
  const route = { ...routes[0]!, success: { ...success, schema: tree } };
  const { components } = describeRoutes([route], {
    ...info,
    schemas: {
      Tree: {
        oneOf: [
          { title: 'Leaf', type: 'string' },
          { type: 'array', items: { $ref: '#/components/schemas/Tree' } },
        ],
      },
    },
  });
  expect(components.schemas).toMatchObject({
    Tree: {
      oneOf: [{ $ref: '#/components/schemas/Leaf' }, { items: { $ref: '#/components/schemas/Tree' } }],
    },
    Leaf: { type: 'string' },
  });
});

test('two schemas that differ cannot have the same name', () => {
  const other = Type.Object({ size: Type.Integer() }, { title: 'Kettle' });
  const route = { ...routes[0]!, success: { ...success, schema: other } };
  expect(() => describeRoutes([...routes, route], info)).toThrow('two schemas that differ are called Kettle');
});

test('an example of a request to another route is refused', () => {
  const [example] = info.examples.updateLid!;
  const examples = { listKettles: [{ ...example!, path: '/v1/pots' }] };
  expect(() => describeRoutes(routes, { ...info, examples })).toThrow(
    '/v1/pots is no request of listKettles',
  );
});

test('only tags that a route has are listed', () => {
  expect(document.tags).toEqual([{ name: 'Kettles', description: 'For tea.' }]);
});
