import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { readSmallFile } from './small-file.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-file-'));
});
afterEach(() => rm(directory, { recursive: true }));

const read = async (content: string) => {
  const file = path.join(directory, 'file');
  await writeFile(file, content);
  return readSmallFile(file);
};

test.each(['', 'ü', 'x'.repeat(65_536)])('a file is read as it stands', async (content) => {
  expect(await read(content)).toEqual({ kind: 'read', text: content });
});

test('one octet too many is refused', async () => {
  expect(await read('x'.repeat(65_537))).toEqual({
    kind: 'unreadable',
    problem: 'it has more than 65536 bytes',
  });
});

test('what says that it has no size, and never ends, is refused', async () => {
  expect(await readSmallFile('/dev/zero')).toMatchObject({ kind: 'unreadable' });
});

test('a file that is not there, and a folder, are a sentence', async () => {
  expect(await readSmallFile(path.join(directory, 'none'))).toMatchObject({ kind: 'unreadable' });
  expect(await readSmallFile(directory)).toMatchObject({ kind: 'unreadable' });
});
