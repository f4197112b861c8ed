import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { planNullRemoval } from './absent-nulls.ts';

const inner = Type.Object({ kept: Type.String(), left: Type.Optional(Type.String()) });
const schema = Type.Object({
  required: Type.String(),
  optional: Type.Optional(Type.String()),
  nullable: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  anything: Type.Optional(Type.Unknown()),
  refusing: Type.Optional(Type.String({ nullIsRefused: true })),
  object: Type.Optional(inner),
  list: Type.Optional(Type.Array(inner)),
  either: Type.Optional(Type.Union([Type.String(), inner, Type.Array(inner)])),
  free: Type.Optional(Type.Record(Type.String(), Type.String())),
});
const nulls = Object.fromEntries(Object.keys(schema.properties).map((name) => [name, null]));
/** A new one each time: what is taken out of one place stays in the others. */
const aPart = () => ({ kept: null, left: null });

function removeFrom(value: unknown, isChange = false): unknown {
  const copy = structuredClone(value);
  planNullRemoval(schema, { isChange })?.(copy);
  return copy;
}

test('null goes where a field is optional and has no meaning for it', () => {
  expect(removeFrom(nulls)).toEqual({ required: null, nullable: null, anything: null, refusing: null });
});

test('null within an object goes by the same rule, in lists and in either of several forms as well', () => {
  const given = { object: aPart(), list: [aPart(), null, aPart()], either: aPart() };
  const left = { kept: null };
  expect(removeFrom(given)).toEqual({ object: left, list: [left, null, left], either: left });
  expect(removeFrom({ either: [aPart()] })).toEqual({ either: [left] });
});

test('names that are free keep their nulls', () => {
  expect(removeFrom({ free: { a: null } })).toEqual({ free: { a: null } });
});

test('a change keeps its nulls, but not those within what stands in a list, which is new', () => {
  expect(removeFrom(nulls, true)).toEqual(nulls);
  expect(removeFrom({ object: aPart(), list: [aPart()] }, true)).toEqual({
    object: aPart(),
    list: [{ kept: null }],
  });
});

test('what is of another shape than the schema stays as it is', () => {
  for (const value of [null, 7, 'text', [aPart()], { object: [aPart()], list: aPart(), either: 7 }]) {
    expect(removeFrom(value)).toEqual(value);
  }
  expect(planNullRemoval(Type.String(), { isChange: false })).toBeNull();
});
