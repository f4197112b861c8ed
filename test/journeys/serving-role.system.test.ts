/** As who the API asks the database, in each way to start it: what its connections are, and not what it says. */
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { eventually } from '../support/email-journey.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import {
  addressOfRequests,
  clientConfigOf,
  databaseUrlOf,
  useTestDatabase,
} from '../support/test-database.ts';

let address: DatabaseAddress;
let folder: string;
let observer: pg.Client | undefined;

useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
});
beforeEach(async () => {
  folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-serving-'));
  await chmod(folder, 0o711);
});
afterEach(async () => {
  await observer?.end();
  observer = undefined;
});
const programs = usePrograms();
afterEach(() => rm(folder, { recursive: true, force: true, maxRetries: 3 }));

const secret = 'a secret of the tests, and of nothing else';

async function start(settings: Settings, role: string): Promise<{ program: Program; url: string }> {
  const program = programs.start({ PORT: '0', LOG_LEVEL: 'info', POSTILLION_PROCESSES: '1', ...settings }, [
    'serve',
    '--role',
    role,
  ]);
  expect(await program.untilSaid('errors', /"msg":"ready"/), program.said.errors).not.toBeNull();
  const url = (await program.untilSaid('output', servedUrl))?.[1];
  return { program, url: url! };
}

/** Users and names of the connections that a program has. */
async function listConnections(of: DatabaseAddress): Promise<string[]> {
  if (observer === undefined) {
    observer = new pg.Client({ ...clientConfigOf(of), application_name: 'observer' });
    // The embedded PostgreSQL ends with its program.
    observer.on('error', () => undefined);
    await observer.connect();
  }
  const { rows } = await observer.query<{ name: string }>(
    `select distinct usename || ' as ' || application_name as name
     from pg_stat_activity
     where datname = current_database() and application_name <> 'observer'
     order by 1`,
  );
  return rows.map(({ name }) => name);
}

function withUser(url: string, name: string): string {
  return Object.assign(new URL(url), { username: name, password: name }).href;
}

const isApi = (name: string) => name.startsWith('postillion_api as ');

test('of the embedded PostgreSQL the API uses no connection of its superuser', async () => {
  const { program, url } = await start({ POSTILLION_DATA_DIR: folder }, 'api');
  // The first organization was made as the owner.
  const key = /API key: +(\S+)/.exec(program.said.output)?.[1];
  const asked = await fetch(`${url}/v1/contacts`, { headers: { authorization: `Bearer ${key}` } });
  expect(asked.status).toBe(200);
  expect((await fetch(`${url}/readyz`)).status).toBe(200);
  const socket = {
    host: path.join(folder, 'postgres/sockets/run'),
    user: 'postillion',
    database: 'postillion',
  };
  const others = await eventually(
    async () => (await listConnections(socket)).filter((name) => !isApi(name)),
    (names) => names.length <= 1,
  );
  // Which watches over PostgreSQL, and is given to nothing that serves.
  expect(others).toEqual(['postillion as postillion-supervisor']);
  program.child.kill('SIGTERM');
  expect((await program.ended).exitCode).toBe(0);
});

test('beside a worker the API has connections of its own, and of its own user', async () => {
  const settings = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_API_DATABASE_URL: databaseUrlOf(addressOfRequests(address)),
    POSTILLION_SECRET: secret,
  };
  const { program, url } = await start(settings, 'all');
  expect(program.said.errors).not.toContain('as the owner of the database');
  expect((await fetch(`${url}/readyz`)).status).toBe(200);
  const names = await listConnections(address);
  expect(names.filter(isApi)).not.toEqual([]);
  const { output } = await programs.run(settings, 'doctor', '--json');
  expect(JSON.parse(output)).toMatchObject({
    findings: expect.arrayContaining([expect.objectContaining({ subject: 'requests', level: 'ok' })]),
  });
});

test.skipIf(process.platform !== 'linux')(
  'the processes of a supervisor that serve requests alone inherit no password of the owner',
  async () => {
    const { program } = await start(
      {
        DATABASE_URL: databaseUrlOf(address),
        POSTILLION_API_DATABASE_URL: databaseUrlOf(addressOfRequests(address)),
        POSTILLION_SESSION_DATABASE_URL: databaseUrlOf(address),
        POSTILLION_SECRET: secret,
        POSTILLION_PROCESSES: '2',
      },
      'api',
    );
    expect(await program.untilSaid('errors', /all processes are ready/)).not.toBeNull();
    const { pid } = program.child;
    const children = (await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')).trim().split(' ');
    expect(children).toHaveLength(2);
    for (const child of children) {
      const names = (await readFile(`/proc/${child}/environ`, 'utf8'))
        .split('\0')
        .map((line) => line.split('=')[0]);
      expect(names.filter((name) => name?.endsWith('DATABASE_URL'))).toEqual(['POSTILLION_API_DATABASE_URL']);
    }
  },
);

test('with a single user it serves, warns, and doctor says how to mend it', async () => {
  const settings = { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: secret };
  const { program, url } = await start(settings, 'api');
  expect(program.said.errors).toContain('requests are served as the owner of the database');
  expect((await fetch(`${url}/readyz`)).status).toBe(200);
  const { output } = await programs.run(settings, 'doctor', '--json');
  expect(output).toContain('in role postillion_serving');
});

test('a user that may not serve is told as such, by the start and by doctor', async () => {
  observer = new pg.Client(clientConfigOf(address));
  await observer.connect();
  const name = `stranger_${process.pid}`;
  await observer.query(`create role ${name} login password '${name}'`);
  try {
    const asStranger = 'url' in address ? { url: withUser(address.url, name) } : { ...address, user: name };
    const url = databaseUrlOf(asStranger);
    const settings = {
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_API_DATABASE_URL: url,
      POSTILLION_SECRET: secret,
    };
    const { exitCode, errors } = await programs.run(settings, 'serve', '--role', 'api');
    expect([exitCode, errors]).toEqual([1, expect.stringContaining('not a member of postillion_serving')]);
    expect((await programs.run(settings, 'doctor', '--json')).output).toContain('is not a member of');
  } finally {
    await observer.query(`drop role ${name}`);
  }
});
