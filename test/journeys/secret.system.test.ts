/** The program with another secret than that of its database, and what it takes to replace a secret. */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createApiKey, createOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { addSender, approveSender } from '../../src/senders/senders.ts';
import { eventually } from '../support/email-journey.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { type Ended, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { testSecret } from '../support/taken-up-secret.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const own = testSecret;
const another = 'another secret, as somebody might set by mistake';
const number = '+4915112345678';

let address: DatabaseAddress;
let database: Database;
let directory: string;

useTestDatabase({ connectionsMax: 2, isForEachTest: true }, (opened) => {
  address = opened.address;
  database = opened.database;
});
beforeEach(async () => {
  directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-secret-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(directory, 0o711);
});
afterEach(() => rm(directory, { recursive: true, force: true }));
const { start, run } = usePrograms();

async function end(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM');
  await once(child, 'exit');
}

const withSecret = (secret: string, more: Settings = {}): Settings => ({
  DATABASE_URL: databaseUrlOf(address),
  POSTILLION_DATA_DIR: directory,
  POSTILLION_SECRET: secret,
  ...more,
});

async function runJson(settings: Settings, ...words: string[]): Promise<Record<string, unknown>> {
  const { exitCode, output, errors } = await run(settings, ...words, '--json');
  if (exitCode !== 0) throw new Error(`${words.join(' ')}: ${output}${errors}`);
  return JSON.parse(output) as Record<string, unknown>;
}

/** Until it is ready, or has ended. */
async function serve(
  settings: Settings,
  role = 'all',
): Promise<{ child: ChildProcess; url: string | undefined; key: string | undefined } & Ended> {
  const { child, said, untilSaid } = start({ PORT: '0', ...settings }, ['serve', '--role', role]);
  const isServing = (await untilSaid('errors', /"msg":"ready"/)) !== null;
  if (isServing && role !== 'worker') await untilSaid('output', servedUrl);
  return {
    child,
    url: servedUrl.exec(said.output)?.[1],
    key: /API key: +(\S+)/.exec(said.output)?.[1],
    exitCode: child.exitCode,
    ...said,
  };
}

/** What is for a person to read, without the lines of the log. */
function sentencesIn(errors: string): string[] {
  return errors.split('\n').filter((line) => line !== '' && !line.startsWith('{'));
}

/** An organization with a key, whose number has opted out. */
async function createOptedOut(): Promise<{ org: string; key: string }> {
  const tools = { database, clock: systemClock, newId: createIds(systemClock), secrets: createSecrets(own) };
  const { id: organizationId } = await createOrganization(tools, 'Acme');
  const scopes = ['full_access'];
  const { key } = await createApiKey(tools, { organizationId, name: 'K', scopes, expiresAt: null });
  const added = await addSender(tools, { organizationId, name: 'Acme', type: null });
  if (added.kind !== 'added') throw new Error(`the sender is ${added.kind}`);
  await approveSender(tools, added.sender.id);
  const addresses = [{ organizationId, address: number, reason: 'unsubscribe' as const }];
  await addSuppressions(database, tools, 'sms', addresses);
  return { org: organizationId, key };
}

const suppression = (settings: Settings, what: 'add' | 'show', org: string) =>
  runJson(settings, 'suppression', what, '--org', org, '--channel', 'sms', '--address', number);

/** What became of a text: its status, and the code of its error. */
async function text(url: string, key: string, from = 'Acme'): Promise<unknown> {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ from, to: number, body: 'Hello' });
  const sent = await fetch(`${url}/v1/sms/send`, { method: 'POST', headers, body });
  const { id } = (await sent.json()) as { id: string };
  type Sms = { status: string; error: { code: string } | null };
  const { status, error } = await eventually(
    async () => (await (await fetch(`${url}/v1/sms/${id}`, { headers })).json()) as Sms,
    (sms) => !['queued', 'sent'].includes(sms.status),
  );
  return [status, error?.code];
}

const optedOut = ['failed', 'opted_out'];

test('beside another secret nothing starts and nothing is sent, in whatever role, and doctor says so', async () => {
  const { org, key } = await createOptedOut();
  const right = await serve(withSecret(own));
  expect(await text(right.url!, key)).toEqual(optedOut);

  const wrong = withSecret(another);
  for (const refused of await Promise.all(['all', 'api', 'worker'].map((role) => serve(wrong, role)))) {
    expect(refused).toMatchObject({ exitCode: 1, output: '' });
    expect(sentencesIn(refused.errors)).toEqual([
      expect.stringMatching(/^POSTILLION_SECRET is not the secret of this database: set it to the one/),
    ]);
  }
  const commands = [
    ['suppression', 'show', '--org', org, '--channel', 'sms', '--address', number],
    ['domain', 'verify', org, 'mail.example.com'],
    ['contacts', 'export', '--org', org, path.join(directory, 'contacts.csv')],
    ['secret', 'rotate'],
  ];
  for (const refused of await Promise.all(commands.map((words) => run(wrong, ...words)))) {
    expect(refused).toMatchObject({ exitCode: 1, output: '' });
    expect(refused.errors).toMatch(/^POSTILLION_SECRET is not the secret of this database.*\n$/);
  }
  const [doctor, migration] = await Promise.all([run(wrong, 'doctor'), run(wrong, 'migrate')]);
  expect(doctor.exitCode).toBe(1);
  expect(doctor.output).toMatch(/^problem +secret +POSTILLION_SECRET is not the secret of this database/m);
  expect(migration.exitCode, 'which needs no secret').toBe(0);
});

test('of two nodes that start on a fresh database with different secrets one serves, and the other refuses', async () => {
  await database.rows(unpreparedStatement('truncate secret_keys'));
  const started = await Promise.all([serve(withSecret(own), 'api'), serve(withSecret(another), 'api')]);
  expect(started.map(({ exitCode }) => exitCode).sort()).toEqual([1, null]);
  const refused = started.find(({ exitCode }) => exitCode === 1)!;
  expect(sentencesIn(refused.errors)).toEqual([
    expect.stringContaining('is not the secret of this database') as string,
  ]);
});

test('a rotation: the old secret fits until it is retired, whatever the order in which nodes get the new one', async () => {
  const { org, key } = await createOptedOut();
  const old = await serve(withSecret(own));

  const { id, retiring, secret } = await runJson(withSecret(own), 'secret', 'rotate');
  expect([id, retiring]).toEqual([2, 1]);
  const next = secret as string;
  expect(next).toMatch(/^[0-9a-f]{64}$/);
  const refused = await run(withSecret(own), 'secret', 'rotate');
  expect(refused).toMatchObject({ exitCode: 1, output: '' });
  expect(refused.errors).toContain('A rotation is under way');
  expect((await run(withSecret(own), 'doctor')).output).toMatch(
    /^warning +secret +number 1.*being replaced/m,
  );

  // With the old one, the new one, and both.
  const both = withSecret(own, { POSTILLION_NEXT_SECRET: next });
  for (const settings of [withSecret(own), withSecret(next), both]) {
    expect(await suppression(settings, 'show', org)).toMatchObject({ suppressed: true });
  }
  const renewed = await serve(withSecret(next));
  for (const { url } of [old, renewed]) expect(await text(url!, key)).toEqual(optedOut);

  expect((await run(withSecret(own), 'secret', 'retire', '1')).errors).toContain('is the one that was given');
  expect(await runJson(withSecret(next), 'secret', 'retire', '1')).toEqual({ id: 1, retired: true });
  expect((await serve(withSecret(own))).exitCode).toBe(1);
  for (const settings of [withSecret(next), both]) {
    expect(await suppression(settings, 'show', org)).toMatchObject({ suppressed: true });
  }
  expect(await text(old.url!, key), 'a node that runs goes on').toEqual(optedOut);
  expect(await runJson(withSecret(next), 'secret', 'list')).toMatchObject({
    data: [{ id: 2, is_given: true, keys: [{ id: 1 }, { id: 2 }] }],
  });
});

test('a rotation to a secret of the operator, and one that is taken back', async () => {
  const { org } = await createOptedOut();
  const both = withSecret(own, { POSTILLION_NEXT_SECRET: another });
  expect(await runJson(both, 'secret', 'rotate')).toEqual({ id: 2, retiring: 1 });
  expect(await suppression(withSecret(another), 'show', org)).toMatchObject({ suppressed: true });
  expect(await runJson(withSecret(own), 'secret', 'retire', '2')).toEqual({ id: 2, retired: true });
  await expect(suppression(withSecret(another), 'show', org)).rejects.toThrow(
    'is not the secret of this database',
  );
  expect(await suppression(withSecret(own), 'show', org)).toMatchObject({ suppressed: true });
});

test('with the embedded database: a lost file, another file, and a rotation beside the server', async () => {
  const settings: Settings = { POSTILLION_DATA_DIR: directory };
  const file = path.join(directory, 'secret');
  const aside = path.join(directory, 'aside');
  const first = await serve(settings);
  expect(first.key, 'shown wherever the output goes').toMatch(/^pst_/);
  const key = first.key!;
  await suppression(settings, 'add', /Organization: +(\S+)/.exec(first.output)![1]!);
  expect(await text(first.url!, key, 'Postillion')).toEqual(optedOut);

  const before = await readFile(file, 'utf8');
  expect(await runJson(settings, 'secret', 'rotate')).toEqual({ id: 2, file });
  expect(await readFile(file, 'utf8')).not.toBe(before);
  expect((await readdir(directory)).filter((name) => name.startsWith('secret'))).toEqual(['secret']);
  expect(await text(first.url!, key, 'Postillion')).toEqual(optedOut);
  await end(first.child);

  await rename(file, aside);
  const lost = await serve(settings);
  expect(lost.exitCode).toBe(1);
  expect(sentencesIn(lost.errors)).toEqual([
    expect.stringMatching(/secret is missing, which holds the secret of this database: put it back/),
  ]);
  const doctor = await run(settings, 'doctor');
  expect(doctor.exitCode).toBe(1);
  expect(doctor.output).toMatch(/^problem +secret +\S+ is missing/m);
  expect((await run(settings, 'org', 'list')).exitCode).toBe(1);
  expect(existsSync(file), 'none is made').toBe(false);

  await writeFile(file, before);
  const outdated = await serve(settings);
  expect(outdated.exitCode).toBe(1);
  expect(sentencesIn(outdated.errors)[0]).toMatch(/^The secret in \S+ is not that of this database/);

  await rename(aside, file);
  const again = await serve(settings);
  expect(again.key).toBeUndefined();
  expect(await text(again.url!, key, 'Postillion')).toEqual(optedOut);
  await end(again.child);
});
