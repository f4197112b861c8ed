import { expect, test } from 'vitest';
import { findHeaderProblem } from './custom-headers.ts';

test.each([
  ['Authorization', 'Bearer abc'],
  ['X-Token', 'a'],
  ['x_y', 'two words, and = "more"'],
  ['Cookie', 'a=b'],
  ['x', 'v'.repeat(1_000)],
])('%s: %s may be added', (name, value) => {
  expect(findHeaderProblem(name, value)).toBeNull();
});

const noName = 'is no name of a header, of at most 100 characters';
const ours = 'is a header that we set ourselves';
const noValue = 'must have a value of 1 to 1000 visible characters of ASCII, with blanks between them';

test.each([
  ['', 'a', noName],
  ['a b', 'a', noName],
  ['a:', 'a', noName],
  ['é', 'a', noName],
  ['a\r\nHost', 'a', noName],
  ['x'.repeat(101), 'a', noName],
  ['Host', 'a', ours],
  ['CONTENT-LENGTH', '0', ours],
  ['Transfer-Encoding', 'chunked', ours],
  ['Expect', '100-continue', ours],
  ['Webhook-Signature', 'v1,x', ours],
  ['proxy-authorization', 'a', ours],
  ['x', '', noValue],
  ['x', ' a', noValue],
  ['x', 'a ', noValue],
  ['x', 'a\r\nHost: b', noValue],
  ['x', 'a\0', noValue],
  ['x', 'é', noValue],
  ['x', 'v'.repeat(1_001), noValue],
])('%j: %j may not', (name, value, problem) => {
  expect(findHeaderProblem(name, value)).toBe(problem);
});

test('the names that every object has are names of headers', () => {
  expect(findHeaderProblem('__proto__', 'a')).toBeNull();
  expect(findHeaderProblem('constructor', 'a')).toBeNull();
});
