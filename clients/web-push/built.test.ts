import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Script } from 'node:vm';
import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';

const read = (name: string) =>
  readFileSync(path.resolve(import.meta.dirname, '../../dist/web-push', name), 'utf8');

test('both files together are less than 6 kB, as they are sent', () => {
  const sizes = ['sdk.js', 'sw.js'].map((name) => gzipSync(read(name)).length);
  expect(sizes.reduce((sum, size) => sum + size)).toBeLessThan(6_000);
});

test('the worker is a classic script, or no worker of another origin could import it', () => {
  expect(() => new Script(read('sw.js'))).not.toThrow();
});
