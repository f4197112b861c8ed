import { execFile } from 'node:child_process';
import { appendFile, mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';

const generator = path.resolve(import.meta.dirname, 'generate.mjs');
let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-generated-'));
  expect(await generate()).toEqual({ exitCode: 0, errors: '' });
});

afterAll(() => rm(directory, { recursive: true, force: true }));

function generate(...options: string[]): Promise<{ exitCode: number; errors: string }> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['--import', 'tsx', generator, '--directory', directory, ...options],
      (error, _output, errors) => {
        resolve({ exitCode: error === null ? 0 : Number(error.code), errors });
      },
    );
  });
}

test('a file that was changed by hand is named, and left as it is', async () => {
  await appendFile(path.join(directory, '.env.example'), 'PORT=1\n');
  const { exitCode, errors } = await generate('--check');
  expect(exitCode).toBe(1);
  // And no other one.
  expect(errors).toMatch(/^Not up to date: \.env\.example\./);
  expect(await readFile(path.join(directory, '.env.example'), 'utf8')).toContain('PORT=1\n');
});

test('every setting of the documentation can be copied from the example', async () => {
  const page = await readFile(path.join(directory, 'docs/settings.md'), 'utf8');
  const example = await readFile(path.join(directory, '.env.example'), 'utf8');
  const documented = [...page.matchAll(/^\| `([A-Z_]+)`/gm)].map(([, name]) => name);
  const copied = [...example.matchAll(/^#([A-Z_]+)=/gm)].map(([, name]) => name);
  expect(documented.length).toBeGreaterThan(10);
  expect(copied).toEqual(documented);
});
