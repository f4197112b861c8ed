import { chmod, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Invocation, nameOf } from './program-name.ts';

let root: string;
beforeEach(async () => {
  root = await realpath(await mkdtemp(path.join(os.tmpdir(), 'postillion-name-')));
});
afterEach(() => rm(root, { recursive: true, force: true }));

async function place(file: string): Promise<string> {
  const whole = path.join(root, file);
  await mkdir(path.dirname(whole), { recursive: true });
  await writeFile(whole, '#!/usr/bin/env node\n');
  await chmod(whole, 0o755);
  return whole;
}

async function linkTo(file: string, link: string): Promise<string> {
  const whole = path.join(root, link);
  await mkdir(path.dirname(whole), { recursive: true });
  await symlink(file, whole);
  return whole;
}

const started = (script: string, more: Partial<Invocation> = {}) =>
  nameOf({ script, directory: root, environment: { PATH: '/usr/bin' }, ...more });

test('in a checkout it is bin/postillion, and with Node.js in front where that was typed', async () => {
  const script = await place('bin/postillion');
  expect(started(script)).toBe('bin/postillion');
  expect(started(script, { environment: { _: 'bin/postillion' } })).toBe('bin/postillion');
  expect(started(script, { environment: { _: '/usr/bin/node' } })).toBe('node bin/postillion');
  // As npm start leaves it.
  expect(started(script, { environment: { _: '/usr/bin/npm', npm_command: 'start' } })).toBe(
    'bin/postillion',
  );
});

test('from another folder it is the whole path', async () => {
  const script = await place('checkout/bin/postillion');
  const directory = path.join(root, 'elsewhere');
  await mkdir(directory);
  expect(started(script, { directory })).toBe(script);
  expect(started(script, { directory: path.join(root, 'checkout') })).toBe('bin/postillion');
});

test('where npm has installed it, it is npx postillion, and on the PATH its name alone', async () => {
  const file = await place('node_modules/postillion/bin/postillion');
  const link = await linkTo(file, 'node_modules/.bin/postillion');
  expect(started(link)).toBe('npx postillion');
  expect(started(file)).toBe('npx postillion');
  const elsewhere = path.join(root, 'elsewhere');
  await mkdir(elsewhere);
  expect(started(link, { directory: elsewhere })).toBe(file);
  expect(started(link, { directory: elsewhere, environment: { npm_command: 'exec' } })).toBe(
    'npx postillion',
  );

  await linkTo(file, 'global/postillion');
  const environment = { PATH: `/usr/bin:${path.join(root, 'global')}` };
  expect(started(link, { environment })).toBe('postillion');
});

test('what is no such program, such as a test, calls it as the documentation does', () => {
  expect(started('/usr/lib/node_modules/vitest/vitest.mjs')).toBe('bin/postillion');
  expect(nameOf({ script: undefined, directory: '/', environment: {} })).toBe('bin/postillion');
});
