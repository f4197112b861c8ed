import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { conflict } from '../../src/platform/http/errors.ts';
import { defineRoute, json } from '../../src/platform/http/route.ts';
import { createErrorCheck } from './listed-errors.ts';

const route = (path: string, errors = [conflict]) =>
  defineRoute({
    method: 'GET',
    path,
    operationId: 'getThing',
    scope: 'things:read',
    tag: 'Things',
    summary: 'Get a thing',
    success: { statusCode: 200, schema: Type.Object({}), when: 'The thing.' },
    errors,
    handle: () => Promise.resolve(json({})),
  });

const check = createErrorCheck([route('/things/:id'), route('/things/special', [])]);
const conflicting = { status: 409, body: { name: 'conflict' } };

test('an error that a route does not list is reported, and one that it lists is not', () => {
  const ask = (path: string, answer: { status: number; body: unknown }) => () => {
    check({ method: 'GET', path, ...answer });
  };
  expect(ask('/v1/things/1?x=2', conflicting)).not.toThrow();
  expect(ask('/v1/things/special', conflicting)).toThrow('GET /things/special answers 409 conflict');
  expect(ask('/v1/things/1', { status: 400, body: { name: 'conflict' } })).toThrow('does not list');
  expect(ask('/v1/things/1', { status: 403, body: { name: 'sending_suspended' } })).toThrow('does not list');
  expect(ask('/v1/things/1', { status: 401, body: { name: 'unauthorized' } })).not.toThrow();
  expect(ask('/v1/other', conflicting)).not.toThrow();
});
