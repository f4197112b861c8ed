import fc from 'fast-check';
import { type TSchema, Type } from 'typebox';
import { expect, test } from 'vitest';
import { createValidation, defineRule, type FieldRule, isUnstorable, type Validator } from './validation.ts';

const validation = createValidation({
  email: { test: (text) => text.includes('@'), mustBe: 'an email address' },
});

function check(schema: TSchema, value: unknown): string[] {
  return validation.compile(schema)(value);
}

const letter = Type.Object(
  {
    to: Type.Array(Type.String({ format: 'email' }), { minItems: 1, maxItems: 3 }),
    subject: Type.Optional(Type.String({ maxLength: 998 })),
    lines: Type.Optional(
      Type.Array(Type.Object({ quantity: Type.Integer() }, { additionalProperties: false })),
    ),
  },
  { additionalProperties: false },
);

test('all that is wrong is listed, each with the path of its field', () => {
  const issues = check(letter, { to: ['a@example.com', 'nobody'], subject: 'x'.repeat(999) });
  expect(issues.join(', ')).toBe('to[1] must be an email address, subject must be at most 998 characters');
});

const field = (schema: TSchema) => Type.Object({ field: schema }, { additionalProperties: false });

test.each<[string, TSchema, unknown, string]>([
  ['required', field(Type.String()), {}, 'field is required'],
  ['additionalProperties', letter, { to: ['@'], organization_id: 1 }, 'organization_id is not a known field'],
  ['below', letter, { to: ['@'], lines: [{}] }, 'lines[0].quantity is required'],
  ['below', letter, { to: ['@'], lines: [{ quantity: 1, x: 1 }] }, 'lines[0].x is not a known field'],
  [
    'additionalProperties',
    letter,
    { to: ['@'], Subjet: '' },
    'Subjet is not a known field (did you mean subject?)',
  ],
  [
    'below',
    letter,
    { to: ['@'], lines: [{ quantity: 1, qantity: 1 }] },
    'lines[0].qantity is not a known field (did you mean quantity?)',
  ],
  ['type', field(Type.String()), { field: 1 }, 'field must be a string'],
  ['type', field(Type.Integer()), { field: '5' }, 'field must be an integer'],
  ['type', field(Type.Integer()), { field: true }, 'field must be an integer'],
  ['type', field(Type.Integer()), { field: 1.5 }, 'field must be an integer'],
  ['type', field(Type.Number()), { field: true }, 'field must be a number'],
  ['type', field(Type.Boolean()), { field: 0 }, 'field must be a boolean'],
  ['type', field(Type.Boolean()), { field: 'true' }, 'field must be a boolean'],
  ['type', field(Type.Object({})), { field: null }, 'field must be an object'],
  ['type', field(Type.Array(Type.Null())), { field: {} }, 'field must be an array'],
  ['type', field(Type.String()), [], 'the body must be an object'],
  [
    'type',
    field(Type.Unsafe({ type: ['string', 'number'] })),
    { field: {} },
    'field must be a string or a number',
  ],
  ['format', field(Type.String({ format: 'email' })), { field: 'x' }, 'field must be an email address'],
  ['format', field(Type.String({ format: 'uuid' })), { field: 'x' }, 'field must be a UUID'],
  [
    'format',
    field(Type.String({ format: 'date-time' })),
    { field: '2026-11-21T10:00:00' },
    'field must be an ISO 8601 time with an offset or Z',
  ],
  ['format', field(Type.String({ format: 'single-line' })), { field: 'a\rb' }, 'field must be a single line'],
  [
    'format',
    field(Type.String({ format: 'not-blank' })),
    { field: ' \t' },
    'field must be a text that is not blank',
  ],
  [
    'contentEncoding',
    field(Type.String({ contentEncoding: 'base64' })),
    { field: '*' },
    'field must be Base64',
  ],
  ['minLength', field(Type.String({ minLength: 1 })), { field: '' }, 'field must not be empty'],
  ['minLength', field(Type.String({ minLength: 2 })), { field: 'a' }, 'field must be at least 2 characters'],
  ['maxLength', field(Type.String({ maxLength: 2 })), { field: 'abc' }, 'field must be at most 2 characters'],
  ['minItems', letter, { to: [] }, 'to must have at least 1 item'],
  ['maxItems', letter, { to: ['@', '@', '@', '@'] }, 'to must have at most 3 items'],
  [
    'maxProperties',
    field(Type.Object({}, { maxProperties: 1 })),
    { field: { a: 1, b: 2 } },
    'field must have at most 1 field',
  ],
  ['minimum', field(Type.Integer({ minimum: 60 })), { field: 59 }, 'field must be at least 60'],
  ['maximum', field(Type.Integer({ maximum: 60 })), { field: 61 }, 'field must be at most 60'],
  [
    'enum',
    field(Type.String({ enum: ['high', 'normal'] })),
    { field: 'low' },
    'field must be one of high, normal',
  ],
  ['pattern', field(Type.String({ pattern: '^[a-z]$' })), { field: 'A' }, 'field must match ^[a-z]$'],
  [
    'anyOf',
    field(Type.Union([Type.String(), Type.Integer(), Type.Null()])),
    { field: [] },
    'field must be a string or an integer',
  ],
])('%s has words of its own', (_keyword, schema, value, issue) => {
  expect(check(schema, value)).toContain(issue);
});

test('characters are counted as people count them, so that an emoji is one', () => {
  const schema = field(Type.String({ maxLength: 2 }));
  expect(check(schema, { field: '😀😀' })).toEqual([]);
  expect(check(schema, { field: '😀😀😀' })).toEqual(['field must be at most 2 characters']);
});

test('a name that is not allowed is reported, with the field that it stands in', () => {
  const schema = field(
    Type.Record(Type.String({ pattern: '^[a-z]+$' }), Type.String(), { additionalProperties: false }),
  );
  expect(check(schema, { field: { 'A B': 'x' } })).toEqual([
    'field.A B is not an allowed name: names must match ^[a-z]+$',
  ]);
  const names = field(Type.Unsafe({ type: 'object', propertyNames: { pattern: '^[a-z]+$' } }));
  expect(check(names, { field: { 'A B': 'x' } })).toEqual([
    'field.A B is not an allowed name: names must match ^[a-z]+$',
  ]);
});

test('names that a client invents stand in the message without control characters, and not at length', () => {
  const issues = check(letter, { to: ['@'], ['a\r\nb\u001b']: 1, ['k'.repeat(5_000)]: 1, 'a/b~c': 1 });
  expect(issues).toEqual([
    'a??b? is not a known field',
    `${'k'.repeat(60)}… is not a known field`,
    'a/b~c is not a known field',
  ]);
});

test('no list of issues is longer than fifty, however much is wrong', () => {
  const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, index) => [`field${index}`, 1]));
  expect(check(letter, { to: ['@'], ...many })).toHaveLength(50);
  const numbers = Array.from({ length: 10_000 }, () => ({ quantity: '1' }));
  expect(check(letter, { to: ['@'], lines: numbers })).toHaveLength(50);
});

test('keys that every object inherits are unknown fields like any other', () => {
  for (const name of ['constructor', 'toString', 'hasOwnProperty', 'valueOf']) {
    expect(check(letter, { to: ['@'], [name]: 1 })).toEqual([`${name} is not a known field`]);
  }
});

test('a default fills in what is missing, and nothing else is changed', () => {
  const schema = Type.Object({ limit: Type.Optional(Type.String({ default: '20' })) });
  const value = {};
  expect(check(schema, value)).toEqual([]);
  expect(value).toEqual({ limit: '20' });
  const extra = { to: ['@'], other: 1 };
  check(letter, extra);
  expect(extra).toEqual({ to: ['@'], other: 1 });
});

const file = validation.compile(
  Type.Object({ content: Type.String({ contentEncoding: 'base64' }) }),
) satisfies Validator;

function decode(content: string): Buffer | null {
  const value: { content: unknown } = { content };
  if (file(value).length > 0) {
    expect(value.content).toBe(content);
    return null;
  }
  expect(value.content).toBeInstanceOf(Uint8Array);
  return Buffer.from(value.content as Uint8Array);
}

test('every file comes out of Base64 as it was, with padding or without, in lines or in one', () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: 300 }),
      fc.boolean(),
      fc.boolean(),
      (bytes, isPadded, isInLines) => {
        const text = Buffer.from(bytes).toString('base64');
        const padded = isPadded ? text : text.replace(/=+$/, '');
        const lines = isInLines ? padded.replace(/.{76}/g, '$&\r\n') : padded;
        expect(decode(lines)).toEqual(Buffer.from(bytes));
      },
    ),
  );
});

test('text is decoded exactly when it is Base64 (RFC 4648 §4), blanks aside', () => {
  const text = fc.string({
    unit: fc.constantFrom('A', 'z', '9', '+', '/', '=', '-', '_', ' ', '\n', '.', 'é'),
  });
  fc.assert(
    fc.property(text, (content) => {
      const compact = content.replace(/\s/g, '');
      const isBase64 =
        /^[A-Za-z0-9+/]*={0,2}$/.test(compact) &&
        compact.replace(/=/g, '').length % 4 !== 1 &&
        (!compact.includes('=') || compact.length % 4 === 0);
      expect(decode(content) !== null).toBe(isBase64);
    }),
    { numRuns: 2_000 },
  );
});

test.each(['A', 'AAAAA', '=', 'AA=', 'AAA==', 'A===', 'AA=A', 'data:;base64,AAAA', 'AA-_', 'AAA\0'])(
  '%j is not Base64',
  (content) => {
    expect(decode(content)).toBeNull();
  },
);

test('values that PostgreSQL could not store are distinguished from others', () => {
  expect(['a\0', '\ud800', 'fine', '', 5, null, undefined].map(isUnstorable)).toEqual([
    true,
    true,
    false,
    false,
    false,
    false,
    false,
  ]);
});

const facts = { at: new Date(0), settings: { hosts: ['a.example'] } };

function checkWith(rules: Record<string, FieldRule>, schema: TSchema, value: unknown): string[] {
  return createValidation({}, rules).compile(schema)(value, facts);
}

const team = Type.Object(
  {
    name: Type.String({ maxLength: 5 }),
    members: Type.Optional(
      Type.Array(
        Type.Object(
          { name: Type.String(), age: Type.Optional(Type.Integer()) },
          { additionalProperties: false, rules: ['member'] },
        ),
        { maxItems: 2 },
      ),
    ),
  },
  { additionalProperties: false, rules: ['team', 'later'] },
);

type Team = { name: string; members: { name: string; age?: number }[] };

const seen: unknown[] = [];
const rules = {
  team: defineRule<Team>((fields, isGiven, { settings }) => {
    seen.push([Object.keys(fields), isGiven('members'), settings.hosts]);
    return fields.name === 'bad' ? ['name must not be bad', 'members must be good'] : [];
  }),
  member: defineRule<Team['members'][number]>(({ name, age }) =>
    name === 'Ann' && age === undefined ? ['age is required for Ann'] : [],
  ),
  later: defineRule<Team>((_fields, isGiven) => (isGiven('members') ? [] : ['one member is required']), {
    isLeftToRoute: true,
  }),
};

test('a rule sees no field that its schema has found wrong, and hears that it is there', () => {
  seen.length = 0;
  expect(checkWith(rules, team, { name: 'team', members: [{ name: 7 }] })).toEqual([
    'members[0].name must be a string',
  ]);
  expect(seen).toEqual([[['name'], true, ['a.example']]]);
});

test('what rules find stands after what the schema finds, and names no field again', () => {
  expect(checkWith(rules, team, { name: 'bad', members: [{ name: 'Ann' }, { name: 7 }], x: 1 })).toEqual([
    'x is not a known field',
    'members[1].name must be a string',
    'members[0].age is required for Ann',
    'name must not be bad',
    'members must be good',
  ]);
  expect(checkWith(rules, team, { name: 'bad', members: 7 })).toEqual([
    'members must be an array',
    'name must not be bad',
  ]);
});

test('what is left to the route is named beside other issues, and refuses nothing by itself', () => {
  expect(checkWith(rules, team, { name: 'fine' })).toEqual([]);
  expect(checkWith(rules, team, { name: 'bad', members: null })).toContain('one member is required');
  expect(checkWith(rules, team, {})).toEqual(['name is required', 'one member is required']);
});

test('a list that is far too long is refused as fast as any other, and by no more than fifty issues', () => {
  const members = Array.from({ length: 100_000 }, () => ({ name: 'Ann' }));
  const issues = checkWith(rules, team, { name: 'fine', members });
  expect(issues[0]).toBe('members must have at most 2 items');
  expect(issues.length).toBeLessThanOrEqual(50);
});

test('a schema that names a rule that is not there, or is checked without facts, is a fault of ours', () => {
  const unknown = Type.Object({}, { rules: ['nothing'] });
  expect(() => checkWith(rules, unknown, {})).toThrow('there is no rule nothing');
  expect(() => createValidation({}, rules).compile(team)({ name: 'a' })).toThrow('without the facts');
});

test('a field of which several things are wrong is named once, with all of them', () => {
  const schema = field(Type.String({ maxLength: 3, format: 'single-line', pattern: '^[a-z]*$' }));
  expect(check(schema, { field: 'A\nBCD' })).toEqual([
    'field must be at most 3 characters and must match ^[a-z]*$ and must be a single line',
  ]);
  expect(check(field(Type.String({ enum: ['a', 'b'] })), { field: 7 })).toEqual([
    'field must be one of a, b',
  ]);
  expect(check(field(Type.String({ minLength: 1, format: 'uuid' })), { field: '' })).toEqual([
    'field must not be empty',
  ]);
  expect(check(field(Type.Literal('text')), { field: 'html' })).toEqual(['field must be text']);
});
