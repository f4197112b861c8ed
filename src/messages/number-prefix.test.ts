import { expect, test } from 'vitest';
import { readNumberPrefix } from './number-prefix.ts';

test.each(['+14155550100', '14155550100', ' 14155550100', '+1 415 555 0100', ' +1\t4155550100 '])(
  'the number %j is known by its digits',
  (search) => {
    expect(readNumberPrefix(search)).toBe('+14155550100');
  },
);

test('a plus, one digit and as many digits as a number can have are beginnings of numbers', () => {
  const longest = '9'.repeat(15);
  expect(['+', '1', '+1', longest].map(readNumberPrefix)).toEqual(['+', '+1', '+1', `+${longest}`]);
});

test.each([
  ...['reader.1', 'acme', '1st', '24 7', '++1', '1+', '+a', '', '  ', '0', '+0', '１', '9'.repeat(16)],
])('no number begins with %j', (search) => {
  expect(readNumberPrefix(search)).toBeNull();
});
