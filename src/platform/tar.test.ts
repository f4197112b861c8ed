import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readTar, tarFile } from './tar.ts';

const run = promisify(execFile);
const at = new Date('2026-11-26T12:00:00Z');
const files = {
  'empty.txt': '',
  'some.json': '{}',
  'whole-block': 'x'.repeat(512),
  large: 'y'.repeat(70_001),
};
const archive = Buffer.concat([
  ...Object.entries(files).map(([name, text]) => tarFile(name, Buffer.from(text), at)),
  Buffer.alloc(1_024),
]);

let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'postillion-tar-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** In pieces that end anywhere. */
async function* inPieces(bytes: Buffer, sizeBytes: number): AsyncGenerator<Buffer> {
  for (let start = 0; start < bytes.length; start += sizeBytes)
    yield await Promise.resolve(bytes.subarray(start, start + sizeBytes));
}

async function readAll(source: AsyncIterable<Buffer>, skipped?: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for await (const { name, kind, content } of readTar(source)) {
    if (name === skipped) continue;
    const pieces: Buffer[] = [];
    for await (const piece of content) pieces.push(piece);
    found[kind === 'file' ? name : `${kind} ${name}`] = Buffer.concat(pieces).toString();
  }
  return found;
}

test.each([1, 511, 512, 513, 100_000])(
  'what is written is read again, in pieces of %i bytes',
  async (size) => {
    expect(await readAll(inPieces(archive, size))).toEqual(files);
  },
);

test('what is not read of an entry is skipped', async () => {
  expect(await readAll(inPieces(archive, 700), 'whole-block')).toEqual({
    'empty.txt': files['empty.txt'],
    'some.json': files['some.json'],
    large: files.large,
  });
});

test('the program of that name reads what is written, and what it writes is read', async () => {
  const file = path.join(directory, 'ours.tar');
  await writeFile(file, archive);
  const { stdout } = await run('tar', ['-tvf', file], { env: { ...process.env, TZ: 'UTC', LC_ALL: 'C' } });
  expect(stdout.trim().split('\n')).toHaveLength(4);
  expect(stdout).toMatch(/-rw------- .* 70001 .* large/);

  await writeFile(path.join(directory, 'one'), 'one');
  await run('tar', ['--format=ustar', '-cf', 'theirs.tar', '--transform', 's,^,a/,', 'one', 'ours.tar'], {
    cwd: directory,
  });
  const { stdout: bytes } = await run('cat', ['theirs.tar'], {
    cwd: directory,
    encoding: 'buffer',
    maxBuffer: 1e7,
  });
  const found = await readAll(inPieces(bytes, 10_000));
  expect(Object.keys(found)).toEqual(['a/one', 'a/ours.tar']);
  expect(found['a/one']).toBe('one');
});

test.each([0, 100, 512, 2_000, archive.length - 1_025])(
  'one that ends after %i bytes is no whole one',
  async (bytes) => {
    await expect(readAll(inPieces(archive.subarray(0, bytes), 300))).rejects.toThrow(
      'the archive is cut off',
    );
  },
);

test('a header with a changed byte is none', async () => {
  const damaged = Buffer.from(archive);
  damaged[130] = damaged[130] === 0x31 ? 0x30 : 0x31;
  await expect(readAll(inPieces(damaged, 512))).rejects.toThrow('a damaged one');
});
