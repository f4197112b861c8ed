/**
 * The container image, the composition and the unit of systemd, as far as they can be tried without an engine for
 * containers and without systemd as process 1.
 */
import { execFile, spawnSync } from 'node:child_process';
import { chmod, cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { settings } from '../../src/config.ts';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../../src/platform/postgres/embedded.ts';
import { program, servedUrl, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const run = promisify(execFile);
const checkout = path.resolve(import.meta.dirname, '../..');
const readHere = (name: string) => readFile(path.join(checkout, name), 'utf8');

let address: DatabaseAddress;
let folder: string;
useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
});
beforeEach(async () => {
  folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-packaging-'));
  await chmod(folder, 0o711);
});
afterEach(() => rm(folder, { recursive: true, force: true }));
const programs = usePrograms();

type Instruction = { word: string; rest: string };

/** Of the few kinds that ours has. */
function parseDockerfile(text: string): Instruction[] {
  return text
    .replaceAll(/\\\n/g, '')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => {
      const [, word = '', rest = ''] = /^([A-Z]+) +(.*)$/.exec(line) ?? [];
      return { word, rest };
    });
}

type Image = {
  /** Where the files of the last stage are; what it calls `/` is `<root>/stage`. */
  directory: string;
  environment: Record<string, string>;
  user: string;
  entry: string[];
  words: string[];
  healthCheck: string[];
};

/** What is in `.dockerignore`, a list of all that is not ignored, is the context. */
async function copyContext(to: string): Promise<void> {
  const [first, ...kept] = (await readHere('.dockerignore')).trim().split('\n');
  expect(first).toBe('*');
  for (const line of kept) {
    expect(line).toMatch(/^!/);
    await cp(path.join(checkout, line.slice(1)), path.join(to, line.slice(1)), { recursive: true });
  }
}

/** Follows the steps of a Dockerfile below a folder. `npm ci` is this checkout's own: nothing is fetched. */
async function followDockerfile(text: string, root: string): Promise<Image> {
  const context = path.join(root, 'context');
  await copyContext(context);
  const stages = new Map<string, string>();
  let stage = '';
  let directory = '';
  const image: Omit<Image, 'directory'> = {
    environment: {},
    user: 'root',
    entry: [],
    words: [],
    healthCheck: [],
  };
  for (const { word, rest } of parseDockerfile(text)) {
    switch (word) {
      case 'FROM': {
        stage = path.join(root, `stage-${stages.size}`);
        stages.set(/ AS (\w+)$/.exec(rest)?.[1] ?? '', stage);
        continue;
      }
      case 'WORKDIR':
        directory = path.join(stage, rest);
        await mkdir(directory, { recursive: true });
        continue;
      case 'ENV':
        for (const pair of rest.split(' ')) image.environment[pair.split('=')[0]!] = pair.split('=')[1]!;
        continue;
      case 'COPY': {
        const [, from, what = ''] = /^(?:--from=(\w+) )?(.*)$/.exec(rest) ?? [];
        const names = what.split(' ');
        const target = path.join(directory, names.pop()!);
        const base = from === undefined ? context : stages.get(from)!;
        for (const name of names) {
          const isFolder = name === '.' || from !== undefined;
          await cp(path.join(base, name), isFolder ? target : path.join(target, name), { recursive: true });
        }
        continue;
      }
      case 'RUN':
        if (rest.startsWith('npm ci ')) {
          await symlink(path.join(checkout, 'node_modules'), path.join(directory, 'node_modules'));
          continue;
        }
        await run('sh', ['-c', rest], { cwd: directory });
        continue;
      case 'USER':
        image.user = rest;
        continue;
      case 'EXPOSE':
        continue;
      case 'HEALTHCHECK':
        image.healthCheck = JSON.parse(/CMD (\[.*\])$/.exec(rest)![1]!) as string[];
        continue;
      case 'ENTRYPOINT':
        image.entry = JSON.parse(rest) as string[];
        continue;
      case 'CMD':
        image.words = JSON.parse(rest) as string[];
        continue;
      default:
        throw new Error(`this test does not know ${word}`);
    }
  }
  return { directory, ...image };
}

test('what the Dockerfile makes serves, is found healthy, writes nothing beside itself, and ends by SIGTERM', async () => {
  const image = await followDockerfile(await readHere('Dockerfile'), folder);
  expect(image.user).not.toBe('root');
  // No packages: what is needed is bundled.
  const before = await readdir(image.directory, { recursive: true });
  expect(before.filter((name) => /node_modules|\.env$|\.test\.ts/.test(name))).toEqual([]);
  const environment = {
    ...image.environment,
    HOST: '127.0.0.1',
    PORT: '0',
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    LOG_LEVEL: 'silent',
  };
  const [node, entry = ''] = image.entry;
  expect(node).toBe('node');
  const { child, untilSaid, ended } = programs.start(environment, image.words, {
    entry: path.join(image.directory, entry),
    directory: image.directory,
  });
  const url = (await untilSaid('output', servedUrl))![1]!;
  const check = (port: string) =>
    spawnSync(process.execPath, image.healthCheck.slice(1), {
      env: { PATH: process.env.PATH, PORT: port },
    }).status;
  expect(image.healthCheck[0]).toBe('node');
  expect(check(new URL(url).port)).toBe(0);
  child.kill('SIGTERM');
  expect(await ended).toMatchObject({ exitCode: 0, errors: '' });
  expect(check(new URL(url).port)).toBe(1);
  expect(await readdir(image.directory, { recursive: true })).toEqual(before);
});

test('the image has a Node.js that the program is tested on', async () => {
  const images = parseDockerfile(await readHere('Dockerfile'))
    .filter(({ word }) => word === 'FROM')
    .map(({ rest }) => rest.split(' ')[0]!);
  expect(new Set(images.map((image) => image.split('@')[0]))).toEqual(new Set(['node:22-bookworm-slim']));
  expect(await readHere('tools/node-versions.mjs')).toMatch(/versions = \[.*'22\./);
});

test('the unit goes on trying however long the database is away', async () => {
  const unit = await readHere('packaging/postillion.service');
  // In the section where systemd looks for it: in another one it is ignored, with a line in the journal.
  const [, head = ''] = /^\[Unit\]\n([^[]*)/m.exec(unit) ?? [];
  expect(head).toMatch(/^StartLimitIntervalSec=0$/m);
  expect(unit).toMatch(/^Restart=always$/m);
});

test('every image is named by a digest, the same one wherever it is used', async () => {
  const text = (await readHere('Dockerfile')) + (await readHere('compose.yaml'));
  const named = [...text.matchAll(/^(?:FROM| +image:) +(\S+)/gm)].map(([, image]) => image!);
  // The composition's own.
  const foreign = named.filter((image) => image !== 'postillion');
  expect(foreign.length).toBeGreaterThanOrEqual(3);
  for (const image of foreign) expect(image).toMatch(/^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$/);
  expect(new Set(foreign).size).toBe(new Set(foreign.map((image) => image.split(':')[0])).size);
});

test('every setting that the image, the composition and the unit name is one', async () => {
  const compose = await readHere('compose.yaml');
  const unit = await readHere('packaging/postillion.service');
  const { environment } = await followEnvironment();
  const named = [
    ...Object.keys(environment),
    ...[...compose.matchAll(/^ +([A-Z][A-Z_]+): /gm)].map(([, name]) => name!),
    ...[...compose.matchAll(/\$\{([A-Z_]+)/g)].map(([, name]) => name!),
    ...[...unit.matchAll(/^Environment=([A-Z_]+)=/gm)].map(([, name]) => name!),
  ];
  const ofPostgres = ['POSTGRES_DB', 'POSTGRES_PASSWORD', 'DATABASE_OWNER_PASSWORD', 'DATABASE_API_PASSWORD'];
  const foreign = ['NODE_ENV', ...ofPostgres];
  expect(named).toContain('POSTILLION_SECRET');
  expect(named.filter((name) => !foreign.includes(name) && !(name in settings))).toEqual([]);
});

/** Of the last stage, without making it. */
async function followEnvironment(): Promise<Pick<Image, 'environment'>> {
  const pairs = parseDockerfile(await readHere('Dockerfile'))
    .filter(({ word }) => word === 'ENV')
    .flatMap(({ rest }) => rest.split(' '));
  return { environment: Object.fromEntries(pairs.map((pair) => pair.split('=') as [string, string])) };
}

test('the composition has no secret in it, and waits as long for hand-offs as the unit does', async () => {
  const compose = await readHere('compose.yaml');
  for (const [, name, value] of compose.matchAll(/(PASSWORD|SECRET): (.*)$/gm))
    expect([name, value]).toEqual([name, expect.stringMatching(/^\$\{[A-Z_]+:\?\}$/)]);
  expect(compose).toContain('stop_grace_period: 2m');
  expect(await readHere('packaging/postillion.service')).toContain('\nTimeoutStopSec=120\n');
});

test('in the composition the API logs in as a user that owns nothing, and knows no other password', async () => {
  const compose = await readHere('compose.yaml');
  const [, api = ''] = /^  api:\n((?:    .*\n)*)/m.exec(compose) ?? [];
  expect(api).toContain('//postillion_api:${DATABASE_API_PASSWORD:?}@');
  expect(api).not.toContain('OWNER');
  // What all containers have in common names no database.
  const [, common = ''] = /^x-postillion: &postillion\n((?:  .*\n)*)/m.exec(compose) ?? [];
  expect(common).not.toContain('DATABASE');
  expect(compose).toContain('//postillion_owner:${DATABASE_OWNER_PASSWORD:?}@');

  const postgres = await startEmbeddedPostgres({
    dataDirectory: folder,
    settings: { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' },
  });
  try {
    const { host } = postgres.connection;
    await runRoles(postgres.connection);
    const urlOf = (user: string) => `postgres://${user}@/postillion?host=${encodeURIComponent(host)}`;
    const settingsOf = (user: string) => ({
      DATABASE_URL: urlOf(user),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_PROCESSES: '1',
      POSTILLION_METRICS_PORT: '0',
      LOG_LEVEL: 'info',
      PORT: '0',
    });
    const [api, owner] = [settingsOf('postillion_api'), settingsOf('postillion_owner')];
    const early = await programs.run(api, 'serve', '--role', 'api');
    expect([early.exitCode, early.errors]).toEqual([1, expect.stringContaining('postillion_api')]);
    const migrated = await programs.run(owner, 'migrate');
    expect(migrated.exitCode, migrated.errors).toBe(0);
    const worker = await programs.run(api, 'serve', '--role', 'worker');
    expect([worker.exitCode, worker.errors]).toEqual([1, expect.stringContaining('may only serve requests')]);

    const serving = programs.start(api, ['serve', '--role', 'api']);
    const url = (await serving.untilSaid('output', servedUrl))?.[1];
    expect(url, serving.said.errors).toBeDefined();
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    const metrics = (await serving.untilSaid('errors', /"url":"([^"]+)","msg":"metrics are served"/))?.[1];
    expect(await (await fetch(`${metrics}/metrics`)).text()).toMatch(/^postillion_database_up 1$/m);
    expect((await programs.run(api, 'doctor', '--json')).output).toContain(
      'a database user that owns nothing',
    );
    const made = await programs.run(owner, 'org', 'create', '--name', 'One', '--sandbox');
    expect(made.exitCode, made.errors).toBe(0);
    serving.child.kill('SIGTERM');
    expect((await serving.ended).exitCode).toBe(0);
  } finally {
    await postgres.stop();
  }
});

/** As psql runs it, which fills in what it finds in its environment. */
async function runRoles(connection: pg.ClientConfig): Promise<void> {
  const text = (await readHere('packaging/compose/roles.sql'))
    .replaceAll(/^\\getenv .*$/gm, '')
    .replaceAll(/:'\w+'/g, "'a password'");
  const client = new pg.Client({ ...connection, port: 5432, ssl: false });
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}

const hasSystemd = spawnSync('systemd-analyze', ['--version']).status === 0;
if (!hasSystemd) console.warn('the unit of systemd is not checked: there is no systemd-analyze');

test.skipIf(!hasSystemd)('systemd finds no fault with the unit, and it is open to little', async () => {
  const unit = (await readHere('packaging/postillion.service'))
    .replace(/^(Documentation=).*$/m, '$1https://example.com')
    // The programs have to be there.
    .replace('/usr/bin/node /opt/postillion/node_modules/postillion/bin/postillion', program);
  const file = path.join(folder, 'postillion.service');
  await writeFile(file, unit);
  const verified = spawnSync('systemd-analyze', ['verify', file], { encoding: 'utf8' });
  expect([verified.status, verified.stderr]).toEqual([0, '']);
  // In tenths; needs systemd 250.
  const judged = spawnSync('systemd-analyze', ['security', '--offline=true', '--threshold=15', file]);
  expect(judged.status).toBe(0);
});
