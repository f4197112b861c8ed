import { expect, test } from 'vitest';
import { isLoopbackHost } from './loopback.ts';

test.each([
  ['localhost', true],
  ['127.0.0.1', true],
  ['127.8.8.8', true],
  ['::1', true],
  ['::ffff:127.0.0.1', true],
  ['127.example.test', false],
  ['10.0.0.1', false],
  ['', false],
])('whether %j is this machine is %s', (host, expected) => {
  expect(isLoopbackHost(host)).toBe(expected);
});
