import path from 'node:path';
import { expect, test } from 'vitest';
import { findChromium } from './browser.ts';

test('a path that is given is used, and nothing instead of it', () => {
  expect(findChromium({ CHROMIUM_PATH: process.execPath, PATH: '' })).toBe(process.execPath);
  expect(findChromium({ CHROMIUM_PATH: '/nowhere/chromium', PATH: process.env.PATH })).toBeNull();
  expect(findChromium({ CHROMIUM_PATH: path.dirname(process.execPath) })).toBeNull();
});
