/**
 * What a newcomer met in the first hour: a database of one's own that starts empty, folders that cannot be written, URLs
 * with a slip, and messages that name a command that is not there.
 */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { explainDataDirectory } from '../../src/installation/installation.ts';
import { type DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { eventually } from '../support/email-journey.ts';
import { program, servedUrl, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const run = promisify(execFile);
const isRoot = process.getuid?.() === 0;

let address: DatabaseAddress;
useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
});
let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-first-use-'));
  await chmod(folder, 0o711);
});
afterEach(() => rm(folder, { recursive: true, force: true }));
const programs = usePrograms();

const ownDatabase = () => ({
  DATABASE_URL: databaseUrlOf(address),
  POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
});

type Made = { id: string; key: string };

test('with an empty PostgreSQL of its own a start names the command that makes all that sending needs', async () => {
  const settings = { ...ownDatabase(), PORT: '0' };
  const { untilSaid, said } = programs.start(settings, ['serve']);
  const url = (await untilSaid('output', servedUrl))![1]!;
  await untilSaid('output', /key create/);
  expect(said.output).toContain('\nbin/postillion org create --name NAME --sandbox\n');

  const port = new URL(url).port;
  const made = await programs.run(
    { ...settings, PORT: port },
    'org',
    'create',
    '--name',
    'Acme',
    '--sandbox',
  );
  expect(made).toMatchObject({ exitCode: 0, errors: '' });
  // What it prints is pasted as it stands.
  const request = made.output.slice(made.output.indexOf('KEY='));
  const { stdout } = await run('sh', ['-c', request]);
  expect(JSON.parse(stdout)).toEqual({ id: expect.any(String) });

  const key = /^KEY=(\S+)$/m.exec(made.output)![1]!;
  const ask = async (where: string, body: unknown) => {
    const response = await fetch(`${url}/v1/${where}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    return response.status;
  };
  expect(await ask('sms/send', { from: 'Postillion', to: '+14155550123', body: 'It works.' })).toBe(202);
  expect(await ask('contacts', { external_id: 'ann' })).toBe(201);
  for (const platform of ['android', 'ios'])
    expect(
      await ask('push/devices', {
        external_id: 'ann',
        installation_id: `a ${platform} phone`,
        platform,
        device_token: platform === 'ios' ? 'ab'.repeat(32) : 'token-of-the-phone',
      }),
    ).toBeLessThan(300);
  expect(await ask('push/send', { external_id: 'ann', title: 'It works', body: 'It works.' })).toBe(202);
});

test('a second organization with the domain of the sandbox is refused whole, and gets none by another way', async () => {
  const settings = ownDatabase();
  const create = (name: string, ...more: string[]) =>
    programs.run(settings, 'org', 'create', '--name', name, '--json', ...more);
  const first = JSON.parse((await create('Acme', '--sandbox')).output) as Made;
  expect(first).toEqual({
    id: expect.any(String),
    name: 'Acme',
    key: expect.stringMatching(/^pst_/),
    domain: 'postillion.test',
    sender: 'Postillion',
  });
  const second = await create('Rival', '--sandbox');
  expect(second.exitCode).toBe(1);
  expect(JSON.parse(second.output)).toEqual({
    error: expect.stringMatching(/^Another organization has postillion\.test, which only one can have: /),
  });
  const listed = await programs.run(settings, 'org', 'list', '--json');
  expect((JSON.parse(listed.output) as { data: Made[] }).data.map(({ id }) => id)).toEqual([first.id]);
});

test('where there is one organization it need not be named, and where there are none or several it is asked for', async () => {
  const settings = ownDatabase();
  await programs.run(settings, 'migrate');
  const createKey = () => programs.run(settings, 'key', 'create', '--json');
  const errorOf = ({ output }: { output: string }) => (JSON.parse(output) as { error?: string }).error;
  expect(errorOf(await createKey())).toBe(
    'There is no organization yet. "bin/postillion org create --name NAME" makes one.',
  );
  await programs.run(settings, 'org', 'create', '--name', 'Acme');
  expect(JSON.parse((await createKey()).output)).toMatchObject({ key: expect.stringMatching(/^pst_/) });
  await programs.run(settings, 'org', 'create', '--name', 'Rival');
  expect(errorOf(await createKey())).toBe(
    'There are several organizations: name one with --org. "bin/postillion org list" shows their ids.',
  );
});

const slips = [
  [
    { POSTILLION_SMTP_URL: 'mail.example.com:587' },
    'POSTILLION_SMTP_URL must begin with smtp:// or smtps://',
  ],
  [
    { POSTILLION_SMPP_URL: 'smpp://id@[::1' },
    'POSTILLION_SMPP_URL cannot be read. Write it as smpp://SYSTEM_ID:PASSWORD@host:2775',
  ],
] as const;
const starts = [
  ['all', '1'],
  ['api', '1'],
  ['api', '2'],
  ['worker', '1'],
  ['worker', '2'],
] as const;

test.each(
  slips.flatMap(([slip, words]) => starts.map(([role, processes]) => ({ slip, words, role, processes }))),
)(
  'a start of role $role in $processes processes says "$words", and nothing else',
  async ({ slip, words, role, processes }) => {
    const settings = { ...ownDatabase(), PORT: '0', POSTILLION_PROCESSES: processes, ...slip };
    const ended = await programs.run(settings, 'serve', '--role', role);
    expect(ended).toEqual({ exitCode: 1, output: '', errors: `${words}\n` });
  },
);

test.each(slips)('the doctor finds %o', async (slip, words) => {
  const { output, exitCode } = await programs.run({ ...ownDatabase(), ...slip }, 'doctor', '--json');
  expect(exitCode).toBe(1);
  expect((JSON.parse(output) as { findings: unknown[] }).findings).toContainEqual({
    level: 'problem',
    subject: 'settings',
    found: words,
    advice: expect.any(String),
  });
});

test('in a folder without an installation the doctor says so, and makes none', async () => {
  const { output, exitCode } = await programs.run(
    { POSTILLION_DATA_DIR: path.join(folder, 'here', 'data') },
    'doctor',
  );
  expect(exitCode).toBe(0);
  expect(output).toMatch(/^warning +database +there is no installation in .*\/here\/data yet$/m);
  expect(output).toMatch(/^ +→ .*"bin\/postillion serve"\.$/m);
  expect(await readdir(folder)).toEqual([]);
});

test('a file where the data directory should be is a sentence for each command', async () => {
  await writeFile(path.join(folder, 'file'), '');
  for (const words of [['serve'], ['org', 'create', '--name', 'Acme']]) {
    const settings = {
      POSTILLION_DATA_DIR: path.join(folder, 'file', 'data'),
      PORT: '0',
      LOG_LEVEL: 'silent',
    };
    const { exitCode, errors } = await programs.run(settings, ...words);
    expect(exitCode).toBe(1);
    expect(errors).toMatch(
      /^The data directory .*\/file\/data cannot be made, since a file is in its place \(ENOTDIR\): remove that, or set POSTILLION_DATA_DIR to .*\.\n$/,
    );
  }
});

/** Those of a file system that is mounted for it, which takes root, or of a folder without the right to write. */
async function makeReadOnly(directory: string): Promise<() => Promise<void>> {
  await mkdir(directory);
  if (!isRoot) {
    await chmod(directory, 0o500);
    return () => chmod(directory, 0o700);
  }
  await run('mount', ['-t', 'tmpfs', '-o', 'ro,size=1m', 'tmpfs', directory]);
  return async () => void (await run('umount', [directory]));
}

const canMount = !isRoot || (await tryToMount());

async function tryToMount(): Promise<boolean> {
  const directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-mount-'));
  try {
    await (
      await makeReadOnly(path.join(directory, 'mounted'))
    )();
    return true;
  } catch {
    return false;
  } finally {
    await rm(directory, { recursive: true });
  }
}

test.runIf(canMount)(
  'a data directory that cannot be written is a sentence, to the doctor as well',
  async () => {
    const closed = path.join(folder, 'closed');
    const open = await makeReadOnly(closed);
    try {
      const settings = { POSTILLION_DATA_DIR: closed, PORT: '0', LOG_LEVEL: 'silent' };
      const { exitCode, errors } = await programs.run(settings, 'serve');
      expect(exitCode).toBe(1);
      expect(errors).toMatch(/^The data directory \S+\/closed [^\n]*set POSTILLION_DATA_DIR to [^\n]*\.\n$/);
      const examined = await programs.run(settings, 'doctor');
      expect(examined.exitCode).toBe(1);
      expect(examined.output).toMatch(/^problem +disk +The data directory \S+\/closed /m);
    } finally {
      await open();
    }
  },
);

test.each([
  ['EROFS', 'open', /is read-only \(EROFS\)/],
  ['EACCES', 'mkdir', /cannot be written by this user \(EACCES\)/],
  ['ENOSPC', 'write', /^The disk of the data directory \/data is full \(ENOSPC\)/],
  ['EDQUOT', 'write', /is full \(EDQUOT\)/],
  ['EEXIST', 'mkdir', /a file is in its place \(EEXIST\)/],
  ['ENOENT', 'mkdir', /cannot be made \(ENOENT\)/],
  // Of a program that is not there, for instance.
  ['ENOENT', 'spawn initdb', null],
  ['EMFILE', 'open', null],
])('%s of %s is explained, or left as it is', (code, syscall, words) => {
  const sentence = explainDataDirectory(Object.assign(new Error(code), { code, syscall }), '/data');
  if (words === null) expect(sentence).toBeNull();
  else expect(sentence).toMatch(words);
});

test('messages name the program as it was started', async () => {
  const settings = { ...ownDatabase() };
  const refused = async (entry: string, directory: string, more: Readonly<Record<string, string>> = {}) => {
    const { ended } = programs.start({ ...settings, ...more }, ['key', 'create'], { entry, directory });
    return (await ended).errors;
  };
  await mkdir(path.join(folder, 'node_modules', '.bin'), { recursive: true });
  const link = path.join(folder, 'node_modules', '.bin', 'postillion');
  await symlink(program, link);
  expect(await refused(link, folder)).toContain('"npx postillion org create');
  expect(await refused(program, path.dirname(path.dirname(program)))).toContain('"bin/postillion org create');
  expect(await refused(program, folder)).toContain(`"npx postillion org create`);
  const elsewhere = path.join(folder, 'elsewhere');
  await mkdir(elsewhere);
  expect(await refused(program, elsewhere)).toContain(`"${program} org create`);
  const onPath = { PATH: `${process.env.PATH}:${path.dirname(link)}` };
  expect(await refused(link, elsewhere, onPath)).toContain('"postillion org create');
});

/** Below a folder that no other user may enter, as /root is. */
test.runIf(isRoot)(
  'as root, files that lie elsewhere are named by the greeting and by the doctor',
  async () => {
    await chmod(folder, 0o700);
    const dataDirectory = path.join(folder, 'data');
    const settings = { POSTILLION_DATA_DIR: dataDirectory, PORT: '0', LOG_LEVEL: 'silent' };
    const { child, untilSaid, ended } = programs.start(settings, ['serve']);
    const [, files = ''] =
      (await untilSaid(
        'output',
        /^Database: +(\/var\/lib\/postillion\/\S+), since PostgreSQL does not run as root/m,
      )) ?? [];
    try {
      expect(await readdir(files)).toContain('cluster');
      const { output } = await programs.run(settings, 'doctor');
      expect(output).toContain(`the files of the database are in ${files}: PostgreSQL does not run as root`);
      child.kill('SIGTERM');
      await ended;
    } finally {
      if (files.startsWith('/var/lib/postillion/')) await rm(files, { recursive: true });
    }
    // Nothing else was left there by it.
    await eventually(
      () => readdir('/var/lib/postillion').catch((): string[] => []),
      (names) => !names.includes(path.basename(files)),
    );
  },
);
