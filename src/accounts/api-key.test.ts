import { expect, test } from 'vitest';
import { generateApiKey, hasFormOfApiKey } from './api-key.ts';

const characters = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

test('a key has the form of one, and no other has the same', () => {
  const keys = Array.from({ length: 1_000 }, generateApiKey);
  for (const key of keys) {
    expect(key).toMatch(/^pst_[0-9A-Za-z]{49}$/);
    expect(hasFormOfApiKey(key)).toBe(true);
  }
  expect(new Set(keys).size).toBe(1_000);
});

test('the checksum is the CRC-32 of what stands before it, in base62', () => {
  // Computed by another implementation (zlib of Python).
  expect(hasFormOfApiKey(`pst_${'0'.repeat(43)}0O7J8C`)).toBe(true);
  expect(hasFormOfApiKey(`pst_${'A'.repeat(43)}1mYifh`)).toBe(true);
});

test('a key with any one character changed is none', () => {
  const key = generateApiKey();
  for (let index = 0; index < key.length; index += 1) {
    for (const character of characters) {
      if (character === key[index]) continue;
      expect(hasFormOfApiKey(key.slice(0, index) + character + key.slice(index + 1))).toBe(false);
    }
  }
});

test('a key of another length is none, also one without its checksum', () => {
  const key = generateApiKey();
  expect(hasFormOfApiKey(`${key}0`)).toBe(false);
  for (let length = 0; length < key.length; length += 1)
    expect(hasFormOfApiKey(key.slice(0, length))).toBe(false);
});
