/** A backup that is made while messages are accepted has all of them that were accepted before it, and can be restored. */
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { anEmail, eventually } from '../support/email-journey.ts';
import { hasPostgresPrograms, postgresPrograms, useOwnPostgres } from '../support/postgres-programs.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const secret = 'a secret of the tests, and of nothing else';

let directory: string;
let address: DatabaseAddress;

useTestDatabase({}, (opened) => {
  address = opened.address;
});
beforeEach(async () => {
  directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-backup-'));
  await chmod(directory, 0o711);
});
afterEach(() => rm(directory, { recursive: true, force: true }));
const programs = usePrograms();

const hasPrograms = await hasPostgresPrograms('no dump is made or restored');

/** The embedded PostgreSQL in a data directory of its own. */
const embedded = (name: string): Settings => ({ POSTILLION_DATA_DIR: path.join(directory, name) });

/** An installation with an organization, which no test changes, and a backup of it. To make one takes seconds. */
let given: { folder: string; settings: Settings; secret: string; file: string };

beforeAll(async () => {
  const folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-backup-given-'));
  await chmod(folder, 0o711);
  const settings = { POSTILLION_DATA_DIR: path.join(folder, 'data') };
  const file = path.join(folder, 'backup.tar.gz');
  await command(settings, 'org', 'create', '--name', 'One');
  expect((await command(settings, 'backup', file)).exitCode).toBe(0);
  given = { folder, settings, secret: await readFile(path.join(folder, 'data/secret'), 'utf8'), file };
});
afterAll(() => rm(given.folder, { recursive: true, force: true }));

async function command<Result = Record<string, unknown>>(
  settings: Settings,
  ...words: string[]
): Promise<{ exitCode: number | null; result: Result }> {
  const { exitCode, output, errors } = await programs.run(settings, ...words, '--json');
  if (output === '') throw new Error(errors);
  return { exitCode, result: JSON.parse(output) as Result };
}

/** An installation with an API and a worker. */
async function serve(settings: Settings): Promise<{ program: Program; url: string }> {
  const program = programs.start(
    {
      ...settings,
      PORT: '0',
      POSTILLION_DRAIN_SECONDS: '1',
      LOG_LEVEL: 'info',
      POSTILLION_ADDRESS_CHECKS: 'off',
    },
    ['serve'],
  );
  const served = await program.untilSaid('output', servedUrl);
  if (served === null) throw new Error(program.said.errors);
  await program.untilSaid('errors', /"msg":"ready"/);
  return { program, url: served[1]! };
}

async function end({ program }: { program: Program }): Promise<void> {
  program.child.kill('SIGTERM');
  expect((await program.ended).exitCode).toBe(0);
}

async function writePassphrase(passphrase: string): Promise<string> {
  const file = path.join(directory, `passphrase-${passphrase.length}`);
  await writeFile(file, passphrase);
  return file;
}

type Organization = { id: string; key: string; domain: string };

async function makeOrganization(settings: Settings, name: string): Promise<Organization> {
  const { id } = (await command<{ id: string }>(settings, 'org', 'create', '--name', name)).result;
  const { key } = (await command<{ key: string }>(settings, 'key', 'create', '--org', id)).result;
  const domain = `${name.toLowerCase()}.example`;
  await command(settings, 'domain', 'verify', '--org', id, domain);
  await command(settings, 'org', 'update', '--org', id, '--requests-per-window', '100000');
  return { id, key, domain };
}

async function send(url: string, { key, domain }: Organization, to: string) {
  const response = await fetch(`${url}/v1/email/send`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'idempotency-key': to },
    body: JSON.stringify(anEmail({ from: `hello@${domain}`, to: [to] })),
  });
  return { status: response.status, id: ((await response.json()) as { id: string }).id };
}

/** Without a pause there would be thousands by the time the backup is made, and nothing else would have the machine. */
const thinkMs = 25;

type Sent = { organization: Organization; to: string; id: string };

/** Both organizations send to the same addresses, under the same idempotency keys, until it is stopped. */
function startLoad(url: string, organizations: readonly Organization[]) {
  const sent: Sent[] = [];
  let isStopping = false;
  const clients = organizations.flatMap((organization) =>
    [1, 2].map(async (client) => {
      for (let number = 1; !isStopping; number += 1) {
        const to = `reader${client}-${number}@example.com`;
        const { status, id } = await send(url, organization, to);
        expect(status).toBe(202);
        sent.push({ organization, to, id });
        await delay(thinkMs);
      }
    }),
  );
  return {
    sent,
    untilMore: (count: number) => {
      const wanted = sent.length + count;
      return eventually(
        () => sent.length,
        (length) => length >= wanted,
      );
    },
    stop: async () => {
      isStopping = true;
      await Promise.all(clients);
    },
  };
}

/** A message that was accepted before is there, for its organization alone, and its request is known again. */
async function expectThere(url: string, { organization, to, id }: Sent, other: Organization): Promise<void> {
  const read = (key: string) =>
    fetch(`${url}/v1/email/${id}`, { headers: { authorization: `Bearer ${key}` } });
  const response = await read(organization.key);
  expect(response.status).toBe(200);
  expect((await response.json()) as { to: unknown[] }).toMatchObject({ to: [{ email: to }] });
  expect((await read(other.key)).status).toBe(404);
  expect(await send(url, organization, to)).toEqual({ status: 202, id });
}

/**
 * Backs one installation up under load, restores it into another place, and compares. `source` and `target` are
 * installations, of which the second is empty.
 */
async function backUpAndRestore(source: Settings, target: Settings, file: string): Promise<void> {
  expect((await command(source, 'org', 'create', '--name', 'Zero')).exitCode).toBe(0);
  const serving = await serve(source);
  const organizations = [await makeOrganization(source, 'One'), await makeOrganization(source, 'Other')];
  const optedOut = 'opted-out@example.com';
  await command(
    source,
    ...['suppression', 'add', '--org', organizations[0]!.id, '--channel', 'email', '--address', optedOut],
  );
  const load = startLoad(serving.url, organizations);
  await load.untilMore(250);
  const before = [...load.sent];
  const backup = await command(source, 'backup', file);
  expect(backup).toMatchObject({ exitCode: 0, result: { file } });
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  await load.untilMore(50);
  await load.stop();
  await end(serving);
  expect((await readdir(path.dirname(file))).filter((name) => name.endsWith('.part'))).toEqual([]);

  const restored = await command<{ secret_fits: boolean; queued: number }>(target, 'restore', file);
  expect(restored).toMatchObject({ exitCode: 0, result: { secret_fits: true } });
  const again = await serve(target);
  const ready = await fetch(`${again.url}/readyz`);
  expect(ready.status).toBe(200);
  const doctor = await command<{ findings: { level: string; subject: string }[] }>(target, 'doctor');
  // The servers of these tests may lose what they have, and one that is not embedded has a single user.
  const expected = ['durability', 'requests'];
  expect(
    doctor.result.findings.filter(({ level, subject }) => level !== 'ok' && !expected.includes(subject)),
  ).toEqual([]);
  for (const each of before)
    await expectThere(
      again.url,
      each,
      organizations.find(({ id }) => id !== each.organization.id)!,
    );

  // The opt-out is known to one organization alone, as before.
  const outcomes = await Promise.all(
    organizations.map(async (organization) => {
      const { id } = await send(again.url, organization, optedOut);
      const { to } = await eventually(
        async () => {
          const response = await fetch(`${again.url}/v1/email/${id}`, {
            headers: { authorization: `Bearer ${organization.key}` },
          });
          return (await response.json()) as { to: { status: string; dropped: boolean }[] };
        },
        ({ to: [recipient] }) => recipient!.dropped || recipient!.status === 'delivered',
      );
      return to[0]!.dropped ? 'dropped' : to[0]!.status;
    }),
  );
  expect(outcomes).toEqual(['dropped', 'delivered']);
  await end(again);
}

describe('of the embedded PostgreSQL', () => {
  test('it is made under load, and restored into a new data directory', async () => {
    const file = path.join(directory, 'backup.tar.gz');
    await backUpAndRestore(embedded('source'), embedded('target'), file);
    const own = await command<{ error: string }>(embedded('source'), 'restore', file);
    expect(own.exitCode).toBe(1);
    expect(own.result.error).toContain('There is a database in');
    const secrets = ['source', 'target'].map((name) =>
      readFile(path.join(directory, name, 'secret'), 'utf8'),
    );
    expect(await secrets[1]).toBe(await secrets[0]);
  });

  test('a file that is cut off, damaged or something else is refused, and leaves nothing', async () => {
    const whole = await readFile(given.file);
    const damaged = Buffer.from(whole);
    damaged[Math.trunc(whole.length / 2)]! ^= 0xff;
    // Of the checksum of the whole.
    const altered = Buffer.from(whole);
    altered[whole.length - 8]! ^= 0xff;
    const unchanged = 'cannot be restored, and nothing was changed: ';
    const cutOff = /nothing was changed: the backup of 20\S+Z is cut off, and has to be copied again/;
    const files: [name: string, content: Buffer, said: string | RegExp][] = [
      ['cut off', whole.subarray(0, -1), cutOff],
      ['half', whole.subarray(0, whole.length / 2), cutOff],
      ['head', whole.subarray(0, 30), `${unchanged}it is cut off, and has to be copied again`],
      ['damaged', damaged, unchanged],
      ['altered', altered, /nothing was changed: the backup of 20\S+Z is damaged, and has to be/],
      ['empty', Buffer.alloc(0), 'is no backup'],
      ['something else', Buffer.from('-- a script of SQL'), 'is no backup'],
    ];
    for (const [name, content, said] of files) {
      const spoiled = path.join(directory, name);
      await writeFile(spoiled, content);
      const { exitCode, result } = await command<{ error: string }>(embedded('target'), 'restore', spoiled);
      expect(exitCode, name).toBe(1);
      expect(result.error, name).toMatch(said);
    }
    await expect(stat(path.join(directory, 'target'))).rejects.toThrow('ENOENT');
    expect((await command(embedded('target'), 'restore', given.file)).exitCode).toBe(0);
  });

  test('it replaces no file', async () => {
    const folder = path.join(directory, 'backups');
    await mkdir(folder);
    const taken = path.join(folder, 'taken');
    await writeFile(taken, 'what was there');
    const { exitCode, result } = await command<{ error: string }>(given.settings, 'backup', taken);
    expect({ exitCode, ...result }).toEqual({
      exitCode: 1,
      error: `${taken} is there already: name a new file, or remove it.`,
    });
    expect(await readFile(taken, 'utf8')).toBe('what was there');
    expect(await readdir(folder)).toEqual(['taken']);
  });

  test('without its secret it opens nothing, and says so, until the secret is back', async () => {
    const file = path.join(directory, 'backup.tar.gz');
    const backup = await command(given.settings, 'backup', file, '--without-secret');
    expect(backup.result).toMatchObject({ has_secret: false });
    const restored = await command(embedded('target'), 'restore', file);
    expect(restored).toMatchObject({ exitCode: 1, result: { secret_fits: false } });
    const refused = await command<{ error: string }>(embedded('target'), 'org', 'list');
    expect(refused.result.error).toContain(
      'which holds the secret of this database: put it back from a backup',
    );
    await writeFile(path.join(directory, 'target/secret'), given.secret);
    expect((await command(embedded('target'), 'org', 'list')).exitCode).toBe(0);
  });

  test('under a passphrase nothing of it can be read, it is restored with that one alone, and only if it is whole', async () => {
    const file = path.join(directory, 'backup.age');
    const passphraseFile = await writePassphrase('correct horse battery\n');
    const encrypted = ['--passphrase-file', passphraseFile];
    const backup = await command(given.settings, 'backup', file, ...encrypted);
    expect(backup).toMatchObject({ exitCode: 0, result: { has_secret: true, is_encrypted: true } });
    const content = await readFile(file);
    expect(content.toString('latin1', 0, 21)).toBe('age-encryption.org/v1');
    expect(content.includes('PG_VERSION')).toBe(false);
    // Written before the database, so that it stands whole in the first piece of another file.
    expect(content.includes(given.secret.slice(0, 20))).toBe(false);

    const refusal = async (wrongFile: string, ...words: string[]) => {
      const { exitCode, result } = await command<{ error: string }>(
        embedded('target'),
        ...['restore', wrongFile, ...words],
      );
      expect(exitCode).toBe(1);
      return result.error;
    };
    expect(await refusal(file)).toContain('is encrypted: name the file with its passphrase');
    expect(await refusal(given.file, ...encrypted)).toContain('is not encrypted');
    const other = await writePassphrase('wrong horse battery');
    expect(await refusal(file, '--passphrase-file', other)).toContain('its passphrase is another one');
    const short = await writePassphrase('too short!!');
    expect(await refusal(file, '--passphrase-file', short)).toContain('at least 12 characters');
    const cutOff = path.join(directory, 'cut-off.age');
    // The last piece is missing as a whole, and with it nothing but the mark that it is the last.
    await writeFile(cutOff, content.subarray(0, 65_536 * Math.trunc(content.length / 65_536)));
    expect(await refusal(cutOff, ...encrypted)).toContain('cannot be restored, and nothing was changed');
    const altered = path.join(directory, 'altered.age');
    content[Math.trunc(content.length / 2)]! ^= 1;
    await writeFile(altered, content);
    expect(await refusal(altered, ...encrypted)).toContain('cannot be restored, and nothing was changed');
    await expect(stat(path.join(directory, 'target'))).rejects.toThrow('ENOENT');

    expect(await command(embedded('target'), 'restore', file, ...encrypted)).toMatchObject({
      exitCode: 0,
      result: { secret_fits: true },
    });
    expect(await readFile(path.join(directory, 'target/secret'), 'utf8')).toBe(given.secret);
  });

  test('another secret in the data directory is not replaced', async () => {
    await mkdir(path.join(directory, 'target'));
    const other = path.join(directory, 'target/secret');
    await writeFile(other, 'another secret'.padEnd(40, '.'));
    const { exitCode, result } = await command<{ error: string }>(embedded('target'), 'restore', given.file);
    expect(exitCode).toBe(1);
    expect(result.error).toContain(`${other} is another secret`);
    expect(await readFile(other, 'utf8')).toContain('another secret');
  });
});

test('without a pg_dump that is as new as the server nothing is backed up', async () => {
  const own = { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: secret };
  const file = path.join(directory, 'backup');
  const missing = await command<{ error: string }>(own, 'backup', file, '--programs', directory);
  expect(missing.exitCode).toBe(1);
  expect(missing.result.error).toContain(
    `There is no pg_dump in ${directory}. Install the client programs of`,
  );
  // What calls itself an older pg_dump, as Debian's is beside a newer server.
  await writeFile(path.join(directory, 'pg_dump'), '#!/bin/sh\necho "pg_dump (PostgreSQL) 14.9"\n', {
    mode: 0o755,
  });
  const old = await command<{ error: string }>(own, 'backup', file, '--programs', directory);
  expect(old.exitCode).toBe(1);
  expect(old.result.error).toContain('is of version 14, and the server of version');
  await expect(stat(file)).rejects.toThrow('ENOENT');
});

test('one that is interrupted leaves no file', async () => {
  const own = { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: secret };
  const folder = path.join(directory, 'backups');
  await mkdir(folder);
  // It never ends by itself.
  const script = '#!/bin/sh\n[ "$1" = --version ] && echo "pg_dump (PostgreSQL) 99.0" || exec sleep 1000\n';
  await writeFile(path.join(directory, 'pg_dump'), script, { mode: 0o755 });
  const words = ['backup', path.join(folder, 'interrupted'), '--programs', directory];
  const { child, ended } = programs.start(own, words);
  await eventually(
    () => readdir(folder),
    (names) => names.length === 1,
  );
  child.kill('SIGINT');
  const { exitCode, errors } = await ended;
  expect({ exitCode, errors }).toEqual({
    exitCode: 130,
    errors: 'The backup was interrupted, and no file was made.\n',
  });
  expect(await readdir(folder)).toEqual([]);
});

describe.skipIf(!hasPrograms)('of a PostgreSQL of one’s own, by pg_dump', () => {
  const startPostgres = useOwnPostgres();
  const installation = async (): Promise<Settings> => ({
    DATABASE_URL: databaseUrlOf(await startPostgres()),
    POSTILLION_SECRET: secret,
  });

  test('it is made under load, and restored into an empty database of another server', async () => {
    const [source, target] = [await installation(), await installation()];
    const file = path.join(directory, 'backup.dump');
    await backUpAndRestore(source, target, file);

    const full = await command<{ error: string }>(target, 'restore', file);
    expect(full.exitCode).toBe(1);
    expect(full.result.error).toContain('is not empty, and nothing in it is replaced');

    const third = await installation();
    const whole = await readFile(file);
    const damaged = Buffer.from(whole);
    damaged.fill(0xff, whole.length - 5_000, whole.length - 1_000);
    for (const [name, content] of Object.entries({
      'cut off': whole.subarray(0, -200),
      half: whole.subarray(0, whole.length / 2),
      damaged,
    })) {
      const spoiled = path.join(directory, name);
      await writeFile(spoiled, content);
      const { exitCode, result } = await command<{ error: string }>(third, 'restore', spoiled);
      expect(exitCode, name).toBe(1);
      expect(result.error, name).toContain('cannot be restored, and the database is as empty as before.');
    }
    // Into one that is not empty it would be refused.
    expect((await command(third, 'restore', file)).exitCode).toBe(0);
    const wrong = { ...third, POSTILLION_SECRET: 'another secret'.padEnd(40, '.') };
    const refused = await command<{ error: string }>(wrong, 'org', 'list');
    expect(refused.result.error).toContain('is not the secret of this database');
  });

  test('a dump under a passphrase is restored as a whole, or not at all', async () => {
    const [source, target] = [await installation(), await installation()];
    const file = path.join(directory, 'backup.age');
    const encrypted = ['--passphrase-file', await writePassphrase('correct horse battery')];
    const { result: made } = await command<{ id: string }>(source, 'org', 'create', '--name', 'One');
    const backup = await command(source, 'backup', file, ...encrypted, '--programs', postgresPrograms);
    expect(backup).toMatchObject({ exitCode: 0, result: { kind: 'dump', is_encrypted: true } });
    const content = await readFile(file);
    expect(content.includes('PGDMP')).toBe(false);

    const restore = (name: string) =>
      command<{ error: string }>(target, 'restore', name, ...encrypted, '--programs', postgresPrograms);
    const cutOff = path.join(directory, 'cut-off');
    await writeFile(cutOff, content.subarray(0, -1));
    const refused = await restore(cutOff);
    expect(refused.exitCode).toBe(1);
    expect(refused.result.error).toContain('cannot be restored, and the database is as empty as before.');

    expect(await restore(file)).toMatchObject({ exitCode: 0, result: { secret_fits: true } });
    const { result } = await command<{ data: { id: string }[] }>(target, 'org', 'list');
    expect(result.data.map(({ id }) => id)).toEqual([made.id]);
  });

  test('a dump is not restored into the embedded PostgreSQL, nor its files into another', async () => {
    const own = await installation();
    const dump = path.join(directory, 'backup.dump');
    await command(own, 'org', 'create', '--name', 'One');
    await command(own, 'backup', dump, '--programs', postgresPrograms);
    const intoEmbedded = await command<{ error: string }>(embedded('target'), 'restore', dump);
    expect(intoEmbedded.result.error).toContain('name an empty one in DATABASE_URL');
    const intoOwn = await command<{ error: string }>(own, 'restore', given.file);
    expect(intoOwn.result.error).toContain('which cannot be put into the one that DATABASE_URL names');
  });
});
