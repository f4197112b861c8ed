/** Contacts out of a CSV file and into one, as an operator does it: the built program, as processes of their own. */
import { lstat, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { type Program, usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
let database: Database;
let folder: string;
let org: string;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  address = opened.address;
  database = opened.database;
});
const programs = usePrograms();

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-contacts-'));
});

beforeEach(async () => {
  org = await createOrg();
});

afterAll(() => rm(folder, { recursive: true, force: true }));

async function createOrg(): Promise<string> {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  return (await createOrganization(tools, 'Acme')).id;
}

function start(words: readonly string[], input = ''): Program {
  const settings = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  };
  return programs.start(settings, ['contacts', ...words], { input });
}

const run = (...words: string[]) => start(words).ended;

async function write(name: string, content: string): Promise<string> {
  const file = path.join(folder, name);
  await writeFile(file, content);
  return file;
}

async function countContacts(): Promise<number> {
  const [row] = await database.rows(
    unpreparedStatement<{ contacts: number }>(
      'select count(*) as contacts from contacts where organization_id = $1',
    ),
    [org],
  );
  return row?.contacts ?? 0;
}

const manyRows = 40_000;
const manyFile = () =>
  `external_id,email,first_name,tags\n${Array.from({ length: manyRows }, (_none, index) => `x${index},m${index}@b.test,Ada,t${index % 5}\n`).join('')}`;

test('an import that is killed in the middle is run again, and makes nothing twice', async () => {
  const file = await write('many.csv', manyFile());
  const words = ['import', '--org', org, '--list', 'Everybody', '--json', file];
  const { child, ended } = start(words);
  await vi.waitFor(async () => {
    expect(await countContacts()).toBeGreaterThan(0);
  }, 60_000);
  child.kill('SIGKILL');
  expect(await ended).toMatchObject({ exitCode: null, output: '' });
  const kept = await vi.waitFor(async () => {
    const [row] = await database.rows(
      unpreparedStatement<{ others: number }>(
        "select count(*) as others from pg_stat_activity where datname = current_database() and application_name = 'postillion' and pid <> pg_backend_pid() and state <> 'idle'",
      ),
    );
    expect(row?.others).toBe(0);
    return countContacts();
  }, 60_000);
  expect(kept).toBeLessThan(manyRows);

  const again = await run(...words);
  expect(again).toMatchObject({ exitCode: 0, errors: '' });
  expect(JSON.parse(again.output)).toMatchObject({
    rows: manyRows,
    created: manyRows - kept,
    updated: 0,
    unchanged: kept,
    bad: 0,
    interrupted: false,
    last_row: manyRows + 1,
  });
  expect(await countContacts()).toBe(manyRows);
  const sets = await database.rows(
    unpreparedStatement(
      `select s.name, sum(n.contacts) as counted,
         (select count(*) from memberships m where m.organization_id = $1 and m.set_id = s.id) as members
       from contact_sets s
       join membership_counts n on n.organization_id = s.organization_id and n.set_id = s.id
       where s.organization_id = $1 group by s.id, s.name order by s.name`,
    ),
    [org],
  );
  expect(sets).toEqual([
    { name: 'Everybody', counted: manyRows, members: manyRows },
    ...[0, 1, 2, 3, 4].map((tag) => ({ name: `t${tag}`, counted: manyRows / 5, members: manyRows / 5 })),
  ]);
});

test('Ctrl-C ends an import after the batch at hand, and it says where it stood', async () => {
  const file = await write('many.csv', manyFile());
  const { child, ended } = start(['import', '--org', org, '--json', file]);
  await vi.waitFor(async () => {
    expect(await countContacts()).toBeGreaterThan(0);
  }, 60_000);
  child.kill('SIGINT');
  const { exitCode, output } = await ended;
  const report = JSON.parse(output) as { created: number; last_row: number; interrupted: boolean };
  expect(exitCode).toBe(130);
  expect(report).toMatchObject({ interrupted: true, last_row: report.created + 1 });
  expect(await countContacts()).toBe(report.created);
});

test('bad rows are told apart from an import that could not run', async () => {
  const file = await write('bad.csv', 'E-mail;First name\na@b.test;Ada\nnone;=1+1\n;Bo\n');
  const report = path.join(folder, 'report.csv');
  const some = await run('import', '--org', org, '--report', report, file);
  expect(some).toEqual({
    exitCode: 2,
    output: '3 rows: 1 created, 0 updated, 0 unchanged, 2 bad.\n',
    errors:
      'Row 3, column "E-mail": email must be an email address\nRow 4: one of external_id, email and phone_number is required\n',
  });
  expect(await readFile(report, 'utf8')).toBe(
    'row,column,reason\n3,E-mail,email must be an email address\n4,,"one of external_id, email and phone_number is required"\n',
  );
  const json = await run('import', '--org', org, '--dry-run', '--json', file);
  expect(json).toMatchObject({ exitCode: 2, errors: '' });
  expect(JSON.parse(json.output)).toMatchObject({
    unchanged: 1,
    bad: 2,
    dry_run: true,
    bad_rows: [
      { row: 3, column: 'E-mail' },
      { row: 4, column: null },
    ],
  });

  const refusals: [string[], RegExp][] = [
    [['--org', org, path.join(folder, 'nothing.csv')], /nothing.csv cannot be read: .*ENOENT/],
    [['--org', org, folder], /cannot be read: it is a folder/],
    [['--org', '0199c0de-0000-7000-8000-000000000000', file], /There is no organization/],
    [
      ['--org', org, await write('x.csv', 'email,Unknown\n')],
      /Unknown column: "Unknown".*--map "Unknown=FIELD"/,
    ],
    [['--org', org, '--map', 'First', file], /must be COLUMN=FIELD/],
    [['--org', org, await write('x.xlsx', 'PK\x03\x04')], /Save it as CSV/],
  ];
  const ended = await Promise.all(refusals.map(([words]) => run('import', ...words, '--json')));
  for (const [index, { exitCode, output }] of ended.entries()) {
    expect((JSON.parse(output) as { error: string }).error).toMatch(refusals[index]![1]);
    expect(exitCode).toBe(1);
  }
});

test('what is exported comes back through standard input as it was', async () => {
  const file = await write(
    'people.csv',
    'external_id,email,phone,first_name,tags\nx1,a@b.test,+4915112345678,"=1+1, Ada",VIP;new\n',
  );
  expect(await run('import', '--org', org, file)).toMatchObject({ exitCode: 0, errors: '' });
  const exported = await run('export', '--org', org);
  expect(exported).toMatchObject({ exitCode: 0, errors: '' });
  expect(exported.output).toBe(
    [
      'external_id,email,phone_number,first_name,last_name,locale,timezone,email_consent,sms_consent,push_consent,chatapp_consent,lists,tags',
      `x1,a@b.test,'+4915112345678,"'=1+1, Ada",,,,subscribed,subscribed,subscribed,subscribed,,"new;VIP"`,
      '',
    ].join('\n'),
  );
  const target = path.join(folder, 'exported.csv');
  const toFile = await run('export', '--org', org, '--tag', 'vip', '--json', target);
  expect(JSON.parse(toFile.output)).toEqual({ exported: 1, file: target });
  expect(await readFile(target, 'utf8')).toBe(exported.output);

  const other = await createOrg();
  const imported = await start(['import', '--org', other, '--json', '-'], exported.output).ended;
  expect(imported).toMatchObject({ exitCode: 0, errors: '' });
  expect(JSON.parse(imported.output)).toMatchObject({ created: 1, created_tags: ['new', 'VIP'] });
  expect((await run('export', '--org', other)).output).toBe(exported.output);
  expect((await run('export', '--org', org, '-')).output).toBe(exported.output);
  expect(await run('export', '--org', org, '--json')).toMatchObject({ exitCode: 1 });
});

test('the ids of the lists that all contacts were added to are printed, whether they were made or found', async () => {
  const file = path.resolve(import.meta.dirname, '../../examples/customers.csv');
  const first = await run('import', '--org', org, '--list', 'Customers', '--tag', 'imported', file);
  expect(first).toMatchObject({ exitCode: 0, errors: '' });
  const [list] = await database.rows(
    unpreparedStatement<{ id: string; contact_count: number }>(
      `select id from contact_sets where organization_id = $1 and kind = 'list' and name = 'Customers'`,
    ),
    [org],
  );
  expect(first.output).toContain(`List Customers: ${list!.id}\n`);
  expect(first.output).toMatch(/^5 rows: 5 created, .*\nList Customers: .*\nTag imported: /);
  const again = await run('import', '--org', org, '--list', list!.id, '--list', 'customers', '--json', file);
  expect(JSON.parse(again.output)).toMatchObject({
    unchanged: 5,
    lists: [{ id: list!.id, name: 'Customers' }],
    tags: [],
    created_lists: [],
  });
  const dry = await run('import', '--org', org, '--list', 'None yet', '--dry-run', '--json', file);
  expect(JSON.parse(dry.output)).toMatchObject({ lists: [], created_lists: ['None yet'] });
});

describe('an export to a file', () => {
  let place: string;

  beforeEach(async () => {
    place = await mkdtemp(path.join(folder, 'export-'));
    const rows = Array.from({ length: 2_500 }, (_none, index) => `x${index},m${index}@b.test\n`).join('');
    expect(
      (await run('import', '--org', org, await write('these.csv', `external_id,email\n${rows}`))).exitCode,
    ).toBe(0);
  });

  test('that is interrupted leaves what was there, and nothing beside it', async () => {
    const target = path.join(place, 'people.csv');
    await writeFile(target, 'what was there');
    const holder = openDatabase({ address, connectionsMax: 1 });
    const ended = await holder.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement('lock table contacts in access exclusive mode'));
      const { child, ended: end } = start(['export', '--org', org, target]);
      await vi.waitFor(async () => {
        expect(await readdir(place)).toHaveLength(2);
      }, 60_000);
      child.kill('SIGINT');
      return { end };
    });
    await holder.close();
    expect(await ended.end).toMatchObject({
      exitCode: 130,
      output: '',
      errors: expect.stringMatching(
        /^The export was interrupted after \S+ contacts, and .* was not changed\.\n$/,
      ) as string,
    });
    expect(await readdir(place)).toEqual(['people.csv']);
    expect(await readFile(target, 'utf8')).toBe('what was there');
  });

  test('that cannot be finished leaves what was there, and nothing beside it', async () => {
    const target = path.join(place, 'people.csv');
    await writeFile(target, 'what was there');
    const { child, ended } = start(['export', '--org', org, target]);
    await vi.waitFor(async () => {
      expect(await readdir(place)).not.toEqual(['people.csv']);
    }, 60_000);
    await database.rows(
      unpreparedStatement(
        'select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()',
      ),
    );
    // Either it was done by then, or it has failed: never half.
    const { exitCode } = await ended;
    expect(await readdir(place)).toEqual(['people.csv']);
    const lines = (await readFile(target, 'utf8')).trimEnd().split('\n').length;
    expect([exitCode, lines]).toEqual(exitCode === 0 ? [0, 2_501] : [1, 1]);
    expect(child.exitCode).toBe(exitCode);
  });

  test('replaces the file that a link leads to, and is written into a device as it stands', async () => {
    const target = path.join(place, 'people.csv');
    await writeFile(target, 'what was there', { mode: 0o644 });
    await symlink(target, path.join(place, 'link.csv'));
    const linked = await run('export', '--org', org, path.join(place, 'link.csv'));
    expect(linked).toMatchObject({
      exitCode: 0,
      output: expect.stringContaining('2,500 contacts') as string,
    });
    expect((await lstat(path.join(place, 'link.csv'))).isSymbolicLink()).toBe(true);
    expect((await readFile(target, 'utf8')).split('\n')).toHaveLength(2_502);
    expect((await stat(target)).mode & 0o777).toBe(0o600);
    expect((await readdir(place)).sort()).toEqual(['link.csv', 'people.csv']);
    expect(await run('export', '--org', org, '/dev/null')).toMatchObject({ exitCode: 0 });
    expect((await stat('/dev/null')).isCharacterDevice()).toBe(true);
    for (const [wrong, problem] of [
      [place, 'it is a folder'],
      [path.join(place, 'no/such/folder.csv'), 'ENOENT'],
    ] as const) {
      const refused = await run('export', '--org', org, wrong);
      expect([refused.exitCode, refused.errors]).toEqual([1, expect.stringContaining(problem)]);
    }
  });
});
