import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  canonicalJson,
  defaultJsonLimits,
  isStorableNumber,
  isStorableText,
  readJson,
  showKey,
} from './json-text.ts';

function read(text: string, limits = defaultJsonLimits) {
  return readJson(Buffer.from(text), text, limits);
}

function issuesOf(text: string): string[] {
  const reading = read(text);
  if (reading.kind === 'malformed') throw new Error(reading.problem);
  return reading.issues;
}

test('every JSON text within the limits gives the value that JSON.parse gives', () => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 6, stringUnit: 'binary' }), fc.boolean(), (json, isIndented) => {
      const text = isIndented ? JSON.stringify(JSON.parse(json), null, 2) : json;
      const reading = read(text);
      expect(reading.kind).toBe('json');
      expect(reading).toMatchObject({ value: JSON.parse(text) as unknown });
    }),
  );
});

test('structure counts wherever it stands, and brackets inside of strings never do', () => {
  const limits = { depthMax: 3, valuesMax: 4 };
  expect(read('[[[1]]]', limits).kind).toBe('json');
  expect(read('[[[[1]]]]', limits)).toEqual({
    kind: 'malformed',
    problem: 'the body is nested deeper than 3 levels',
  });
  expect(read('[1,2,3,4]', limits).kind).toBe('json');
  expect(read('[1,2,3,4,5]', limits)).toEqual({
    kind: 'malformed',
    problem: 'the body has more than 4 values',
  });
  for (const value of ['[[[[', ',,,,,,', '"[[[[', '\\', '\\"[[[[', '\\\\"', '"\\"}]']) {
    expect(read(JSON.stringify({ [value]: value }), limits), value).toMatchObject({
      value: { [value]: value },
    });
  }
});

test('the structure of any value is counted as it is, whatever its strings hold', () => {
  const text = fc.string({ unit: fc.constantFrom('"', '\\', '[', '{', ',', ']', '}', 'a', '\n') });
  fc.assert(
    fc.property(fc.array(fc.dictionary(text, text, { maxKeys: 5 }), { maxLength: 5 }), (value) => {
      // Brackets and commas: one bracket for each container, one comma between two members.
      const members = value.map((object) => Math.max(0, Object.keys(object).length - 1));
      const commas = Math.max(0, value.length - 1) + members.reduce((sum, count) => sum + count, 0);
      const values = 1 + value.length + commas;
      const json = JSON.stringify(value);
      expect(read(json, { depthMax: 2, valuesMax: values }).kind).toBe('json');
      expect(read(json, { depthMax: 2, valuesMax: values - 1 }).kind).toBe('malformed');
    }),
  );
});

test.each([
  ['twenty thousand arrays in each other', '['.repeat(20_000) + ']'.repeat(20_000)],
  ['twenty thousand objects in each other', '{"a":'.repeat(20_000) + '1' + '}'.repeat(20_000)],
  ['a million keys', `{${Array.from({ length: 1_000_000 }, (_, index) => `"${index}":0`).join()}}`],
  ['a million opened brackets', '['.repeat(1_000_000)],
  ['a million commas', ','.repeat(1_000_000)],
])('%s are refused before they are parsed', (_name, text) => {
  expect(read(text)).toEqual({
    kind: 'malformed',
    problem: expect.stringMatching(/nested deeper than 32 levels|more than 50000 values/),
  });
});

test.each([
  '',
  ' ',
  '{',
  '{"a":1',
  '"open',
  '"\\',
  '{a:1}',
  "{'a':1}",
  '[1,]',
  'NaN',
  '01',
  '"\u0001"',
  '\ufeff{}',
])('%j is not valid JSON, and nothing of the parser shows', (text) => {
  expect(read(text)).toEqual({ kind: 'malformed', problem: 'the body is not valid JSON' });
});

test.each([
  ['{"__proto__":{"admin":true}}', ['__proto__ is not allowed']],
  ['{"a":[{"__proto__":1}]}', ['a[0].__proto__ is not allowed']],
  ['{"\\u005f_proto__":1}', ['__proto__ is not allowed']],
  ['{"constructor":{"prototype":{"admin":true}}}', ['constructor is not allowed']],
  ['{"variables":{"constructo\\u0072":{"prototype":1}}}', ['variables.constructor is not allowed']],
  ['{"constructor":"the builder"}', []],
  ['{"a":"__proto__ and constructor.prototype"}', []],
])('%s reaches no prototype', (text, issues) => {
  expect(issuesOf(text)).toEqual(issues);
  expect(({} as { admin?: boolean }).admin).toBeUndefined();
});

test.each([
  ['"\\u0000"', ['the body must not contain NUL or unpaired surrogates']],
  ['{"to":["a","b\\u0000"]}', ['to[1] must not contain NUL or unpaired surrogates']],
  ['{"subject":"\\ud800"}', ['subject must not contain NUL or unpaired surrogates']],
  ['{"subject":"\\udc00\\ud800"}', ['subject must not contain NUL or unpaired surrogates']],
  ['{"a\\u0000b":1}', ['a?b must not contain NUL or unpaired surrogates in its name']],
  ['{"\\ud800":1}', ['? must not contain NUL or unpaired surrogates in its name']],
  ['{"subject":"\\ud83d\\ude00 \\u00e9"}', []],
  ['{"subject":"\\\\u0000"}', []],
])('%s is refused only where PostgreSQL could not store it', (text, issues) => {
  expect(issuesOf(text)).toEqual(issues);
});

test('a body of nothing but offences is answered with fifty of them', () => {
  const text = JSON.stringify({ to: Array.from({ length: 1_000 }, () => '\0') });
  expect(issuesOf(text)).toHaveLength(50);
});

test('text is storable unless it has NUL or half a pair', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      const isIntact = Buffer.from(text, 'utf8').toString('utf8') === text;
      expect(isStorableText(text)).toBe(isIntact && !text.includes('\0'));
    }),
  );
});

test('a key in a message is short and has no control characters', () => {
  expect(showKey('subject')).toBe('subject');
  expect(showKey('a\r\nset-cookie: x\u202e\u001b[31m')).toBe('a??set-cookie: x??[31m');
  expect(showKey('k'.repeat(1_000))).toBe(`${'k'.repeat(60)}…`);
});

/** The same value with the keys of each object in another order. */
function reorder(value: unknown, random: fc.Random): unknown {
  if (Array.isArray(value)) return value.map((item) => reorder(item, random));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([key, item]) => [key, reorder(item, random)] as const);
  for (let end = entries.length - 1; end > 0; end -= 1) {
    const other = random.nextInt(0, end);
    [entries[end], entries[other]] = [entries[other]!, entries[end]!];
  }
  return Object.fromEntries(entries);
}

test('canonical JSON is the same whatever the order of keys, and says the same as the value', () => {
  fc.assert(
    fc.property(fc.jsonValue({ stringUnit: 'binary' }), fc.infiniteStream(fc.nat()), (value, numbers) => {
      const random = {
        nextInt: (min: number, max: number) => min + ((numbers.next().value as number) % (max - min + 1)),
      } as fc.Random;
      const canonical = canonicalJson(value);
      expect(canonicalJson(reorder(value, random))).toBe(canonical);
      expect(JSON.parse(canonical)).toEqual(JSON.parse(JSON.stringify(value)));
    }),
  );
});

test('canonical JSON tells different values apart', () => {
  const texts = [
    [1, 2],
    [2, 1],
    [12],
    ['1', 2],
    { a: 1 },
    { a: '1' },
    { a: [1] },
    { b: 1 },
    null,
    [null],
    {},
    [],
  ];
  expect(new Set(texts.map(canonicalJson)).size).toBe(texts.length);
});

/** Without an exponent, as `jsonb` writes it. */
const written = new Intl.NumberFormat('en', {
  useGrouping: false,
  maximumFractionDigits: 100,
  maximumSignificantDigits: 17,
});

test('a number is refused if JSON without exponents would have more than forty characters, and says where', () => {
  const anyDouble = fc.double({ noNaN: true, noDefaultInfinity: true });
  const closeToLimits = fc
    .tuple(fc.double({ min: -10, max: 10, noNaN: true }), fc.integer({ min: -24, max: 34 }))
    .map(([factor, exponent]) => factor * 10 ** exponent);
  fc.assert(
    fc.property(fc.oneof(anyDouble, closeToLimits), (value) => {
      const { length } = written.format(value);
      // What is refused has more characters than any number that JavaScript writes without an exponent.
      if (isStorableNumber(value)) expect(length).toBeLessThanOrEqual(40);
      else expect(length).toBeGreaterThan(21);
      const issues = isStorableNumber(value)
        ? []
        : ['list[1].at must be 0, or in size at least 1e-20 and below 1e+30'];
      expect(issuesOf(`{"list":[0,{"at":${JSON.stringify(value)}}]}`)).toEqual(issues);
      expect(issuesOf(`{"list":[0,{"at":${JSON.stringify(value).toUpperCase()}}]}`)).toEqual(issues);
    }),
  );
});

test.each([
  ['1e30', false],
  ['1E+0030', false],
  ['9.99e29', true],
  ['-1e30', false],
  ['1e-20', true],
  ['-9.9e-21', false],
  ['5e-324', false],
  ['1e400', false],
  ['-1e400', false],
  ['0', true],
  ['-0', true],
  ['0e999', true],
  [`1${'0'.repeat(29)}`, true],
  [`1${'0'.repeat(30)}`, false],
  [`0.${'0'.repeat(19)}1`, true],
  [`0.${'0'.repeat(20)}1`, false],
  [`0.5${'0'.repeat(400)}`, true],
  ['"1e308"', true],
  ['"1e308\\\\"', true],
])('%s is read: %s', (json, isRead) => {
  for (const text of [json, `[${json}]`, `{"a":${json},"b":true}`, `[false,[${json}]]`])
    expect(issuesOf(text).length, text).toBe(isRead ? 0 : 1);
});
