import { type TSchema, Type } from 'typebox';
import { describe, expect, test } from 'vitest';
import { maskText, redact, redactedBytesMax } from './redaction.ts';

const shown = (schema: TSchema, value: unknown): unknown => JSON.parse(redact(schema, value) ?? 'null');

const secret = Type.String({ sensitive: true });
const letter = Type.Object({
  to: Type.Array(Type.String({ format: 'idn-email' })),
  phone: Type.Optional(Type.String({ format: 'phone-number' })),
  name: Type.Optional(Type.String()),
  count: Type.Optional(Type.Integer()),
  isUrgent: Type.Optional(Type.Boolean()),
  code: Type.Optional(secret),
  values: Type.Optional(Type.Record(Type.String(), secret)),
  file: Type.Optional(
    Type.Unsafe<Uint8Array>({ type: 'string', contentEncoding: 'base64', sensitive: true }),
  ),
  free: Type.Optional(Type.Unsafe<object>({ type: 'object' })),
  anything: Type.Optional(Type.Array(Type.Unsafe<unknown>({}))),
  choice: Type.Optional(Type.Union([Type.Object({ inner: Type.String(), code: secret }), Type.Null()])),
});

describe('what is shown of a field', () => {
  test.each<[string, Record<string, unknown>, Record<string, unknown>]>([
    ['a text', { name: 'Ann' }, { name: 'Ann' }],
    ['a number', { count: 5 }, { count: 5 }],
    ['a switch', { isUrgent: false }, { isUrgent: false }],
    ['a null', { name: null, code: null }, { name: null, code: null }],
    [
      'an address',
      { to: ['ann.b@example.com', 'Ann <a@bücher.example>'] },
      { to: ['…@example.com', '…@bücher.example'] },
    ],
    ['what was to be an address', { to: ['ann', 5, {}] }, { to: ['[3 characters]', '[number]', '[object]'] }],
    ['a number of a phone', { phone: '+4915112345678' }, { phone: '+49…' }],
    ['what was to be one', { phone: 4915112345678 }, { phone: '[number]' }],
    ['another one', { phone: '0151 12345678' }, { phone: '[13 characters]' }],
    ['a secret', { code: '123456' }, { code: '[6 characters]' }],
    ['a secret of another type', { code: { a: ['123456'] } }, { code: '[object]' }],
    ['a secret as a number', { code: 123456 }, { code: '[number]' }],
    [
      'secrets by name',
      { values: { code: '123456', b: 'c' } },
      { values: { code: '[6 characters]', b: '[1 character]' } },
    ],
    ['a file', { file: new Uint8Array(5) }, { file: '[5 bytes]' }],
    ['an object that no schema describes', { free: { a: 1 } }, { free: '[object]' }],
    [
      'items that no schema describes',
      { anything: [1, 'b', ['c']] },
      { anything: ['[number]', '[1 character]', '[1 item]'] },
    ],
    [
      'one of several forms',
      { choice: { inner: 'b', code: 'c', d: 'e' } },
      { choice: { inner: 'b', code: '[1 character]' } },
    ],
    ['an unknown field', { other: 'anything', name: 'Ann' }, { name: 'Ann' }],
    [
      'an address within a text',
      { name: 'of ann@example.com, +4915112345678' },
      { name: 'of …@example.com, +49…' },
    ],
    ['a key within a text', { name: 'pst_abcdefghijklmnop' }, { name: 'pst_…' }],
    ['a text with NUL and half a pair', { name: 'a\0b\ud800' }, { name: 'a\ufffdb\ufffd' }],
    ['a long text', { name: 'a'.repeat(300) }, { name: `${'a'.repeat(200)}… [300 characters]` }],
  ])('%s', (_what, value, expected) => {
    expect(shown(letter, value)).toEqual(expected);
  });

  test('a body that is no object, or nothing', () => {
    expect(redact(letter, undefined)).toBeNull();
    expect(redact(letter, {})).toBeNull();
    expect(redact(letter, { unknown: 1 })).toBeNull();
    expect(shown(letter, ['a secret'])).toBe('[1 item]');
    expect(shown(letter, 'a secret')).toBe('[8 characters]');
  });

  test('of lists and of free names only the first', () => {
    const { values, to } = shown(letter, {
      values: Object.fromEntries(Array.from({ length: 100_000 }, (_none, index) => [`name${index}`, 'x'])),
      to: Array.from({ length: 100_000 }, () => 'a@example.com'),
    }) as { values: Record<string, string>; to: string[] };
    expect(Object.keys(values)).toHaveLength(20);
    expect(to).toHaveLength(21);
    expect(to.at(-1)).toBe('[99980 more]');
  });
});

test('names that every object has are fields like others', () => {
  const own = JSON.parse('{"__proto__":{"name":"a"},"constructor":"b","name":"c","toString":"d"}') as unknown;
  expect(shown(letter, own)).toEqual({ name: 'c' });
  expect(shown(Type.Record(Type.String(), Type.String()), own)).toMatchObject({
    constructor: 'b',
    toString: 'd',
  });
});

/** A generator of numbers from 0 up to 1 (mulberry32), the same for each seed. */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

test('whatever is sent, it is valid JSON that fits, and of 8 kB at most', () => {
  const anything = Type.Unsafe<unknown>({
    type: ['string', 'number', 'object', 'array'],
  });
  // Recursive, as no schema of ours is.
  Reflect.set(anything, 'additionalProperties', anything);
  Reflect.set(anything, 'items', anything);
  const random = createRandom(7);
  const pick = (texts: readonly string[]) => texts[Math.floor(random() * texts.length)]!;
  const text = () =>
    pick(['a', '"', '\\', '\u0001', 'é', '😀', '\ud83d', '\u2028', 'ann@x.example ']).repeat(
      Math.floor(random() * 400),
    );
  const make = (depth: number): unknown => {
    const kind = random();
    if (depth === 0 || kind < 0.3) return text();
    const size = Math.floor(random() * 25);
    if (kind < 0.6) return Array.from({ length: size }, () => make(depth - 1));
    return Object.fromEntries(Array.from({ length: size }, () => [text(), make(depth - 1)]));
  };
  let largest = 0;
  for (let run = 0; run < 100; run += 1) {
    const written = redact(anything, make(1 + (run % 4))) ?? 'null';
    expect(() => JSON.parse(written) as unknown).not.toThrow();
    expect(written).not.toContain('ann@');
    largest = Math.max(largest, Buffer.byteLength(written));
  }
  expect(largest).toBeLessThanOrEqual(redactedBytesMax);
  expect(largest).toBeGreaterThan(redactedBytesMax * 0.9);
});

test('a text is masked whatever its length, and as often as there is something to mask', () => {
  expect(maskText('a@b.example and c@d.example')).toBe('…@b.example and …@d.example');
  expect(maskText('@')).toBe('@');
  expect(maskText(`${'a'.repeat(100_000)}@b.example`).endsWith('…@b.example')).toBe(true);
  expect(maskText('a'.repeat(100_000))).toHaveLength(100_000);
});
