/** Events out of files, as an operator imports them: the built program, as processes of their own. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { createDefinition } from '../../src/events/definitions.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
let database: Database;
let folder: string;
let org: string;
/** Has an event of the same name, of which the fields have other types. */
let otherOrg: string;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  address = opened.address;
  database = opened.database;
});
const programs = usePrograms();

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-events-'));
});
beforeEach(async () => {
  org = await createOrg('number');
  otherOrg = await createOrg('string');
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const tools = () => ({ database, clock: systemClock, newId: createIds(systemClock) });

async function createOrg(type: 'number' | 'string'): Promise<string> {
  const { id } = await createOrganization(tools(), 'Acme');
  await define(id, 'order', [
    { name: 'total', type, required: true },
    { name: 'is_gift', type: type === 'number' ? 'boolean' : 'string' },
    { name: 'placed_on', type: type === 'number' ? 'date' : 'string' },
  ]);
  return id;
}

type Field = { name: string; type: 'number' | 'string' | 'boolean' | 'date'; required?: boolean };

async function define(organizationId: string, name: string, fields: Field[] = []): Promise<void> {
  const findReadFields = () => Promise.resolve([]);
  const body = { name, schema: { fields } };
  expect((await createDefinition({ ...tools(), findReadFields }, organizationId, body)).kind).toBe('done');
}

function start(words: readonly string[], input = '') {
  const settings = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  };
  return programs.start(settings, ['events', 'import', '--org', org, ...words], { input });
}

/** What the import says as JSON, with its exit code. */
async function run(...words: string[]): Promise<Record<string, unknown>> {
  const { exitCode, output } = await start([...words, '--json']).ended;
  return { ...(JSON.parse(output) as object), exitCode };
}

async function write(name: string, content: string): Promise<string> {
  const file = path.join(folder, name);
  await writeFile(file, content);
  return file;
}

function rowsOf<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** Of the organization, in the order of the file. */
function storedEvents(): Promise<Record<string, unknown>[]> {
  return rowsOf(
    `select d.name as event, c.external_id, c.email, c.phone_number, e.occurred_at, e.payload
     from events e
     join contacts c on c.organization_id = e.organization_id and c.id = e.contact_id
     join event_definitions d on d.organization_id = e.organization_id and d.number = e.definition_number
     where e.organization_id = $1
     order by e.id`,
    [org],
  );
}

async function countEvents(): Promise<number> {
  const [row] = await rowsOf<{ count: number }>(
    'select count(*)::integer as count from events where organization_id = any ($1)',
    [[org, otherOrg]],
  );
  return row?.count ?? 0;
}

test('a CSV file of years ago becomes events, its cells as their schema says, and importing it again stores nothing', async () => {
  const file = await write(
    'orders.csv',
    [
      'Event;External ID;Email;Phone number;occurred_at;total;is_gift;placed_on;payload.Shop;payload',
      'order;c-1;Ada@Example.com;;2019-03-04;49.90;yes;2019-03-04T01:00:00+02:00;Bonn;',
      'order;;ada@example.com;;2019-03-05T10:00:00Z;7;;;;"{""items"": [1, 2]}"',
      "order;;;+49 151 123-45678;;0;no;;'=1+1;",
    ].join('\n'),
  );
  const before = Date.now();
  expect(await run(file)).toMatchObject({
    exitCode: 0,
    rows: 3,
    stored: 3,
    stored_before: 0,
    bad: 0,
    last_row: 4,
  });
  const stored = await storedEvents();
  const ada = { event: 'order', external_id: 'c-1', email: 'Ada@Example.com', phone_number: null };
  expect(stored).toEqual([
    {
      ...ada,
      occurred_at: new Date('2019-03-04T00:00:00Z'),
      payload: { total: 49.9, is_gift: true, placed_on: '2019-03-03T23:00:00.000Z', Shop: 'Bonn' },
    },
    { ...ada, occurred_at: new Date('2019-03-05T10:00:00Z'), payload: { total: 7, items: [1, 2] } },
    {
      ...{ event: 'order', external_id: null, email: null, phone_number: '+4915112345678' },
      occurred_at: expect.any(Date) as Date,
      payload: { total: 0, is_gift: false, Shop: '=1+1' },
    },
  ]);
  expect((stored[2]!.occurred_at as Date).getTime()).toBeGreaterThanOrEqual(before);
  expect(await run(file)).toMatchObject({ exitCode: 0, rows: 3, stored: 0, stored_before: 3, bad: 0 });
  expect(await countEvents()).toBe(3);
});

test('numbers that would be written with hundreds of digits are told by their column', async () => {
  const file = await write(
    'long-numbers.csv',
    [
      'event,external_id,total,payload',
      'order,c-1,1e308,',
      'order,c-2,1,"{""deep"":[1e-300]}"',
      'order,c-3,-9e29,"{""deep"":[1e-20]}"',
    ].join('\n'),
  );
  const report = path.join(folder, 'long-numbers-bad.csv');
  expect(await run(file, '--report', report)).toMatchObject({ exitCode: 2, rows: 3, stored: 1, bad: 2 });
  expect((await readFile(report, 'utf8')).split('\n')).toEqual([
    'row,column,reason',
    '2,total,"payload.total must be 0, or in size at least 1e-20 and below 1e+30"',
    '3,payload,"payload: deep[0] must be 0, or in size at least 1e-20 and below 1e+30"',
    '',
  ]);
  expect(await storedEvents()).toMatchObject([{ payload: { total: -9e29, deep: [1e-20] } }]);
});

test('bad rows are told, keep no other from being stored, and alone are tried when the file is imported again', async () => {
  const file = await write(
    'mixed.ndjson',
    [
      { event: 'order', external_id: 'c-1', payload: { total: 1 }, occurred_at: '2001-01-01T00:00:00Z' },
      { event: 'signup', external_id: 'c-2' },
      { event: 'order', external_id: 'c-3', payload: { total: 'much' } },
      { event: 'order', payload: { total: 1 } },
      { event: 'order', external_id: 'c-5', payload: { total: 1 }, occurred_at: '2999-01-01T00:00:00Z' },
      { event: 'order', external_id: 'c-6', payload: { total: 1, text: '\0' } },
      { event: 'order', contact_id: otherOrg, payload: { total: 1 } },
    ]
      .map((event) => JSON.stringify(event))
      .concat('{"event":', '', '[]')
      .join('\r\n'),
  );
  const report = path.join(folder, 'bad.csv');
  expect(await run(file, '--report', report)).toMatchObject({
    exitCode: 2,
    rows: 9,
    stored: 1,
    bad: 8,
    last_row: 10,
  });
  expect((await readFile(report, 'utf8')).split('\n')).toEqual([
    'row,column,reason',
    '2,,There is no event of the name signup. Define it first.',
    '3,,payload.total must be a number',
    expect.stringMatching(/^4,,.*Name the contact/),
    '5,,occurred_at must be at most 5 minutes ahead',
    '6,,payload.text must not contain NUL or unpaired surrogates',
    '7,,There is no contact with that contact_id.',
    '8,,the row is not valid JSON',
    expect.stringMatching(/^10,,/),
    '',
  ]);
  await define(org, 'signup');
  expect(await run(file)).toMatchObject({ exitCode: 2, rows: 9, stored: 1, stored_before: 1, bad: 7 });
  expect(await run(file)).toMatchObject({ exitCode: 2, rows: 9, stored: 0, stored_before: 2, bad: 7 });
  expect((await storedEvents()).map(({ event, external_id: id }) => [event, id])).toEqual([
    ['order', 'c-1'],
    ['signup', 'c-2'],
  ]);
});

test('of a file of which the import was killed, each row is stored once when it is imported again', async () => {
  const rowsCount = 6_000;
  const lines = Array.from({ length: rowsCount }, (_none, index) => `order,c-${index % 900},${index}`);
  const file = await write('many.csv', ['event,external_id,total', ...lines].join('\n'));
  const { child, ended } = start([file]);
  await vi.waitFor(async () => {
    expect(await countEvents()).toBeGreaterThan(0);
  }, 20_000);
  child.kill('SIGKILL');
  await ended;
  const before = await countEvents();
  expect(before).toBeLessThan(rowsCount);
  const again = await Promise.all([run(file), run(file)]);
  expect(again.map(({ bad, exitCode }) => [bad, exitCode])).toEqual([
    [0, 0],
    [0, 0],
  ]);
  const totals = (await storedEvents()).map(({ payload }) => (payload as { total: number }).total);
  expect(totals.sort((first, second) => first - second)).toEqual([...lines.keys()]);
  expect(await rowsOf('select from contacts where organization_id = $1', [org])).toHaveLength(900);
});

test('what cannot be imported is refused before anything is stored, and a dry run stores nothing', async () => {
  const refusals: [string, RegExp][] = [
    ['', /empty/],
    ['event,external_id,shoe\norder,c-1,7', /Unknown column: "shoe".*--ignore "shoe"/],
    ['external_id,total\nc-1,7', /No column is the event/],
    ['event,total\norder,7', /one of these is needed to identify contacts/],
    ['event,email,Email\norder,a@example.com,', /Two columns would both be email/],
    ['event,email\norder,"a@example.com', /never closed/],
  ];
  for (const [index, [content, problem]] of refusals.entries()) {
    const { exitCode, error } = await run(await write(`refused-${index}.csv`, content));
    expect([content, exitCode, error]).toEqual([content, 1, expect.stringMatching(problem)]);
  }
  const file = await write('mapped.csv', 'Was,Wer,Preis,Notiz\norder,c-1,7,x\nnothing,c-2,7,x');
  const words = [
    '--map',
    'Was=event',
    '--map',
    'Wer=external_id',
    '--map',
    'Preis=total',
    '--ignore',
    'Notiz',
    file,
  ];
  expect(await run('--dry-run', ...words)).toMatchObject({ dry_run: true, stored: 1, bad: 1 });
  expect(await countEvents()).toBe(0);
  expect(await rowsOf('select from contacts where organization_id = $1', [org])).toEqual([]);
  expect(await run(...words)).toMatchObject({ stored: 1, stored_before: 0, bad: 1 });
  expect(await countEvents()).toBe(1);
});
