/** How an operator sets push up, by the program, and what the doctor says of it. */
import { execFile } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import { type Database, openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createTestDatabase, databaseUrlOf, type TestDatabase } from '../support/test-database.ts';

const root = path.resolve(import.meta.dirname, '../..');
const program = path.join(root, 'bin/postillion');
const secret = 'a secret of the tests, and of nothing else';

let testDatabase: TestDatabase;
let database: Database;
let folder: string;
let acme: string;

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-push-'));
  testDatabase = await createTestDatabase();
  database = openDatabase({ address: testDatabase.address, connectionsMax: 2 });
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  acme = (await createOrganization(tools, 'Acme')).id;
  await createOrganization(tools, 'Other');
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
  await rm(folder, { recursive: true });
});

function run(...words: string[]): Promise<{ exitCode: number; output: string; errors: string }> {
  return new Promise((resolve) => {
    const env = {
      PATH: process.env.PATH,
      DATABASE_URL: databaseUrlOf(testDatabase.address),
      POSTILLION_SECRET: secret,
    };
    execFile(process.execPath, [program, ...words], { env, timeout: 60_000 }, (error, output, errors) => {
      resolve({ exitCode: error === null ? 0 : Number(error.code), output, errors });
    });
  });
}

const setUp = (platform: string, ...more: string[]) =>
  run('push', 'credentials', '--org', 'Acme', '--platform', platform, ...more);

async function aFile(name: string, content: unknown): Promise<string> {
  const file = path.join(folder, name);
  await writeFile(file, typeof content === 'string' ? content : JSON.stringify(content));
  return file;
}

const key = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  .privateKey.export({ type: 'pkcs8', format: 'pem' })
  .toString();
const apns = { key, key_id: 'ABCDE12345', team_id: 'TEAM123456', topic: 'com.example.app' };

test('credentials are set from a file, made for browsers, and shown without their keys', async () => {
  const ios = await setUp('ios', '--file', await aFile('apns.json', apns));
  expect([ios.exitCode, ios.errors]).toEqual([0, '']);
  expect(ios.output).toContain('key id ABCDE12345, team id TEAM123456, topic com.example.app');
  const android = await setUp('android', '--sandbox', '--json');
  expect(JSON.parse(android.output)).toMatchObject({ platform: 'android', project_id: 'postillion-sandbox' });
  const web = await setUp('web', '--json');
  const { public_key: publicKey } = JSON.parse(web.output) as { public_key: string };
  expect(publicKey).toMatch(/^[\w-]{87}$/);

  const again = await setUp('web');
  expect(again.exitCode).toBe(1);
  expect(again.errors).toContain(publicKey);
  expect(again.errors).toContain('--replace');
  const shown = await run('push', 'show', '--org', acme);
  expect(shown.output).toMatch(/^android .*\nios .*topic com\.example\.app\nweb .*public key/m);
  expect(shown.output).toContain(publicKey);
  for (const { output, errors } of [ios, android, web, again, shown]) {
    expect(`${output}${errors}`).not.toContain('PRIVATE');
  }
  const others = await run('push', 'show', '--org', 'Other', '--json');
  expect(JSON.parse(others.output)).toEqual({ data: [] });

  const replaced = await setUp('web', '--replace', '--json');
  const next = JSON.parse(replaced.output) as { public_key: string; retired_devices: number };
  expect(next.retired_devices).toBe(0);
  expect(next.public_key).not.toBe(publicKey);
});

test('what cannot be credentials is refused, and nothing of the file is shown', async () => {
  const cases: [string[], string][] = [
    [['ios'], 'Give the credentials of ios with --file'],
    [['ios', '--sandbox', '--file', 'x'], 'either --file or --sandbox'],
    [['ios', '--replace'], '--replace is of use for web only'],
    [['ios', '--file', path.join(folder, 'none.json')], 'cannot be read'],
    [
      ['ios', '--file', await aFile('text.txt', 'SECRET')],
      'it is not JSON. "bin/postillion push credentials --help" says what it must hold.',
    ],
    [['ios', '--file', await aFile('broken.json', { ...apns, key: 'SECRET' })], 'key is not a P-256 key'],
    [['ios', '--file', await aFile('large.json', 'x'.repeat(70_000))], 'more than 65536 bytes'],
  ];
  for (const [words, problem] of cases) {
    const [platform, ...more] = words as [string, ...string[]];
    const { exitCode, errors, output } = await setUp(platform, ...more);
    expect([exitCode, output]).toEqual([1, '']);
    expect(errors).toContain(problem);
    expect(errors).not.toContain('SECRET');
  }
});

test('the doctor says which credentials cannot be used', async () => {
  const good = await run('doctor');
  expect(good.output).toMatch(/^ok +push keys +3 sets of credentials can be used$/m);
  await database.rows(
    unpreparedStatement(`update push_credentials set content_sealed = '\\x00' where platform = 'ios'`),
  );
  const { exitCode, output } = await run('doctor');
  expect(exitCode).toBe(1);
  expect(output).toMatch(
    new RegExp(`^problem +push keys +the credentials of ${acme} for ios cannot be used: they`, 'm'),
  );
});
