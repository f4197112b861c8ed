import fc from 'fast-check';
import { beforeEach, expect, test } from 'vitest';
import { startStatementProxy, type Stop } from '../../../test/support/statement-proxy.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type Clock, systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import {
  type Database,
  openDatabase,
  unpreparedStatement,
  type DatabaseAddress,
} from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { createContact, deleteContacts } from '../contacts.ts';
import { openExport } from './export.ts';
import { importContacts, type ImportOptions, type ImportOutcome, type ImportTools } from './import.ts';
import type { RowIssue } from './import-row.ts';
import { createProperty, deleteProperty } from '../properties.ts';
import type { PropertyType } from '../schema.ts';
import { createSet, deleteSet } from '../sets.ts';

let address: DatabaseAddress;
let database: Database;
let organizationId: string;
const newId = createIds(systemClock);
const tools = () => ({
  database,
  clock: systemClock,
  newId,
  secrets: createSecrets('a secret of the tests, and of nothing else'),
});

useTestDatabase({ connectionsMax: 6 }, (opened) => {
  database = opened.database;
  address = opened.address;
});

beforeEach(() => {
  organizationId = newId();
});

const rows = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), [organizationId, ...values]);

async function define(key: string, type: PropertyType): Promise<string> {
  const created = await createProperty(tools(), organizationId, { key, name: key, type });
  if (created.kind !== 'created') throw new Error('the property was not created');
  return created.property.id;
}

type Ended = Extract<ImportOutcome, { kind: 'ended' }>;

async function run(
  file: string | AsyncIterable<Buffer>,
  options: Partial<ImportOptions> = {},
  by: ImportTools = tools(),
): Promise<{ outcome: ImportOutcome; issues: RowIssue[] }> {
  async function* source() {
    yield Buffer.from(file as string);
  }
  const issues: RowIssue[] = [];
  const outcome = await importContacts(by, {
    organizationId,
    source: typeof file === 'string' ? source() : file,
    lists: [],
    tags: [],
    mapped: [],
    ignored: [],
    isDryRun: false,
    onIssues: async (found) => {
      issues.push(...found);
    },
    ...options,
  });
  return { outcome, issues };
}

async function importFile(...given: Parameters<typeof run>): Promise<Ended & { issues: RowIssue[] }> {
  const { outcome, issues } = await run(...given);
  if (outcome.kind === 'refused') throw new Error(outcome.problem);
  return { ...outcome, issues };
}

const countsOf = ({ counts: { created, updated, unchanged, bad } }: Ended) => [
  created,
  updated,
  unchanged,
  bad,
];

const contacts = () =>
  rows<Record<string, unknown>>(
    `select external_id, email, email_key, phone_number, first_name, last_name, name_key, last_name_key, locale,
       timezone, properties, unsubscribed_channels
     from contacts where organization_id = $1 order by id`,
  );

const memberNames = () =>
  rows<{ kind: string; name: string; email: string }>(
    `select s.kind, s.name, c.email
     from memberships m
     join contact_sets s on s.organization_id = m.organization_id and s.id = m.set_id
     join contacts c on c.organization_id = m.organization_id and c.id = m.contact_id
     where m.organization_id = $1 order by s.kind, s.name, c.email`,
  );

test('a row becomes a contact, each value as the API would have stored it', async () => {
  const [age, isVip, since, color] = [
    await define('age', 'number'),
    await define('is_vip', 'boolean'),
    await define('since', 'date'),
    await define('color', 'string'),
  ];
  expect([age, isVip, since, color].every((id) => id.length === 36)).toBe(true);
  const ended = await importFile(
    [
      'External ID;E-mail;Phone;First name;Last name;Locale;Timezone;SMS consent;age;is vip;since;color',
      'crm-1;Ada@Example.COM;+1 (415) 555-0123;Ada;Lovelace;en-GB;Europe/London;Unsubscribed;36.5;yes;2026-11-21T10:00:00+01:00;" red "',
    ].join('\n'),
  );
  expect(countsOf(ended)).toEqual([1, 0, 0, 0]);
  expect(await contacts()).toEqual([
    {
      external_id: 'crm-1',
      email: 'Ada@Example.COM',
      email_key: 'ada@example.com',
      phone_number: '+14155550123',
      first_name: 'Ada',
      last_name: 'Lovelace',
      name_key: 'ada lovelace',
      last_name_key: 'lovelace',
      locale: 'en-GB',
      timezone: 'Europe/London',
      properties: { 1: 36.5, 2: true, 3: '2026-11-21T09:00:00.000Z', 4: ' red ' },
      unsubscribed_channels: ['sms'],
    },
  ]);
});

test('a number that would be written with hundreds of digits is no value, and one at the edge is', async () => {
  await define('age', 'number');
  const ended = await importFile(
    'email,age\na@b.test,1e308\nb@b.test,-1e-21\nc@b.test,1e30\nd@b.test,-9e29\n',
  );
  expect(countsOf(ended)).toEqual([1, 0, 0, 3]);
  expect(ended.issues).toEqual(
    [2, 3, 4].map((line) => ({
      line,
      column: 'age',
      reason: 'properties.age must be 0, or in size at least 1e-20 and below 1e+30',
    })),
  );
  expect(await contacts()).toMatchObject([{ email: 'd@b.test', properties: { 1: -9e29 } }]);
});

test('texts that PostgreSQL writes arrays with arrive as they are', async () => {
  await define('note', 'string');
  const note = '{"a": \'\\\\\', null}, \\"';
  const cell = `"${note.replaceAll('"', '""')}"`;
  const ended = await importFile(
    `email,first_name,last_name,note\na@b.test,NULL,${cell},${cell}\nb@b.test,a\\b,\\,\n`,
  );
  expect(countsOf(ended)).toEqual([2, 0, 0, 0]);
  expect(await contacts()).toMatchObject([
    { first_name: 'NULL', last_name: note, properties: { 1: note } },
    { first_name: 'a\\b', last_name: '\\' },
  ]);
});

test('a contact is found by external_id, by its address in any case, and by its number', async () => {
  const head = 'external_id,email,phone_number,first_name\n';
  await importFile(`${head}x1,one@b.test,,One\n,two@b.test,,Two\n,,+4915112345678,Three\n`);
  const ended = await importFile(
    `${head}x1,new@b.test,,One!\nx2,TWO@b.test,,Two!\n,three@b.test,+4915112345678,Three!\n`,
  );
  expect(countsOf(ended)).toEqual([0, 3, 0, 0]);
  expect(await contacts()).toMatchObject([
    { external_id: 'x1', email: 'new@b.test', first_name: 'One!' },
    { external_id: 'x2', email_key: 'two@b.test', first_name: 'Two!' },
    { external_id: null, email: 'three@b.test', phone_number: '+4915112345678', first_name: 'Three!' },
  ]);
});

test('a row whose identifiers belong to others is refused, and says by which field', async () => {
  const head = 'external_id,email,phone_number\n';
  await importFile(`${head}x1,one@b.test,+4915100000001\nx2,two@b.test,+4915100000002\n`);
  const before = await contacts();
  const ended = await importFile(
    [
      'External ID,E-mail,Phone',
      'x1,two@b.test,',
      'x1,one@b.test,+4915100000002',
      'x3,one@b.test,',
      'x3,no address,',
      ',other@b.test,+4915100000001',
      'x3,new@b.test,+4915100000002',
    ].join('\n'),
  );
  expect(countsOf(ended)).toEqual([0, 0, 0, 6]);
  expect(ended.issues).toEqual([
    { line: 2, column: 'E-mail', reason: 'email is in use by another contact' },
    { line: 3, column: 'Phone', reason: 'phone_number is in use by another contact' },
    { line: 4, column: 'E-mail', reason: 'email is in use by another contact' },
    { line: 5, column: 'E-mail', reason: 'email must be an email address' },
    { line: 6, column: 'Phone', reason: 'phone_number is in use by another contact' },
    { line: 7, column: 'Phone', reason: 'phone_number is in use by another contact' },
  ]);
  expect(await contacts()).toEqual(before);
});

test('of two rows for one contact the later one counts, also for what became free between them', async () => {
  const ended = await importFile(
    [
      'external_id,email,first_name',
      'x1,one@b.test,First',
      'x1,moved@b.test,Second',
      'x2,one@b.test,Third',
      ',moved@b.test,Fourth',
    ].join('\n'),
  );
  expect(countsOf(ended)).toEqual([2, 2, 0, 0]);
  // Once more, with contacts that are there: each takes what the one before gave up.
  const chain = await importFile('external_id,email\nx1,free@b.test\nx2,moved@b.test\nx3,one@b.test\n');
  expect(countsOf(chain)).toEqual([1, 2, 0, 0]);
  expect(await contacts()).toMatchObject([
    { external_id: 'x1', email: 'free@b.test', first_name: 'Fourth' },
    { external_id: 'x2', email: 'moved@b.test', first_name: 'Third' },
    { external_id: 'x3', email: 'one@b.test', first_name: null },
  ]);
  // The other way round: what is updated first, in the order of ids, takes what is given up last.
  const back = await importFile('external_id,email\nx3,gone@b.test\nx2,one@b.test\nx1,moved@b.test\n');
  expect(countsOf(back)).toEqual([0, 3, 0, 0]);
  expect((await contacts()).map(({ email }) => email)).toEqual(['moved@b.test', 'one@b.test', 'gone@b.test']);
});

test('an empty cell leaves what is there, and a row that changes nothing writes nothing', async () => {
  await define('plan', 'string');
  const file = 'email,first_name,plan,tags\na@b.test,Ada,pro,VIP\n';
  await importFile(file, { lists: ['News'] });
  const versions = () => rows('select xmin, ctid from contacts where organization_id = $1');
  const before = await versions();
  const changes = () => rows('select id from contact_changes where organization_id = $1');
  expect(await changes()).toHaveLength(1);
  for (const again of [file, 'email,first_name,plan,tags\nA@B.test,,,\n'.replace('A@B', 'a@b')]) {
    expect(countsOf(await importFile(again, { lists: ['news'] }))).toEqual([0, 0, 1, 0]);
  }
  expect(await versions()).toEqual(before);
  expect(await changes()).toHaveLength(1);
  expect(countsOf(await importFile('email,plan\na@b.test,free\n'))).toEqual([0, 1, 0, 0]);
  expect(await contacts()).toMatchObject([{ first_name: 'Ada', properties: { 1: 'free' } }]);
});

test('a value of a property is added to those that a contact has, and none of these is lost', async () => {
  await define('plan', 'string');
  await define('seats', 'number');
  await importFile('email,plan\na@b.test,pro\n');
  expect(countsOf(await importFile('email,seats\na@b.test,5\n'))).toEqual([0, 1, 0, 0]);
  expect(await contacts()).toMatchObject([{ properties: { 1: 'pro', 2: 5 } }]);
});

test('lists and tags are made where they are missing, counted, and nobody leaves them', async () => {
  const first = await importFile('email,tags\na@b.test,VIP; new\nb@b.test,vip\n', { lists: ['News'] });
  expect(first).toMatchObject({ createdLists: ['News'], createdTags: ['new', 'VIP'] });
  const second = await importFile('email,tags\na@b.test,other\n', { tags: ['VIP'] });
  expect(second).toMatchObject({ createdLists: [], createdTags: ['other'] });
  expect(countsOf(second)).toEqual([0, 1, 0, 0]);
  expect((await memberNames()).map(({ kind, name, email }) => `${kind} ${name} ${email}`)).toEqual([
    'list News a@b.test',
    'list News b@b.test',
    'tag VIP a@b.test',
    'tag VIP b@b.test',
    'tag new a@b.test',
    'tag other a@b.test',
  ]);
  expect(
    await rows(
      `select s.name, sum(n.contacts) as contacts
       from membership_counts n
       join contact_sets s on s.organization_id = n.organization_id and s.id = n.set_id
       where n.organization_id = $1 group by s.name order by s.name collate "C"`,
    ),
  ).toEqual([
    { name: 'News', contacts: 2 },
    { name: 'VIP', contacts: 2 },
    { name: 'new', contacts: 1 },
    { name: 'other', contacts: 1 },
  ]);
});

test('a list and a tag of one name are two, which a file means by its options and columns', async () => {
  for (const email of ['a@b.test', 'b@b.test'])
    await importFile(`email,tags\n${email},Same\n`, { lists: ['Same'] });
  await importFile('email\nc@b.test\n', { lists: ['Same'] });
  expect((await memberNames()).map(({ kind, name, email }) => `${kind} ${name} ${email}`)).toEqual([
    'list Same a@b.test',
    'list Same b@b.test',
    'list Same c@b.test',
    'tag Same a@b.test',
    'tag Same b@b.test',
  ]);
});

test('a list is taken by its id; one that is not there, or is a tag, is refused', async () => {
  const made = await createSet(tools(), { organizationId, kind: 'tag', name: 'T', description: null });
  const tag = made === 'taken' ? '' : made.id;
  const file = 'email\na@b.test\n';
  expect((await run(file, { lists: [tag] })).outcome).toEqual({
    kind: 'refused',
    problem: `There is no list ${tag}.`,
  });
  expect((await run(file, { tags: ['x'.repeat(101)] })).outcome).toMatchObject({ kind: 'refused' });
  expect(countsOf(await importFile(file, { tags: [tag.toUpperCase()] }))).toEqual([1, 0, 0, 0]);
  expect(await memberNames()).toEqual([{ kind: 'tag', name: 'T', email: 'a@b.test' }]);
});

test('contacts that are new, changed or in a new list are noted once a batch, others are not', async () => {
  await importFile('email\nsame@b.test\njoins@b.test\nchanges@b.test\n');
  await rows('delete from contact_changes where organization_id = $1');
  await importFile(
    'email,first_name,tags\nsame@b.test,,\njoins@b.test,,T\nchanges@b.test,New,\nnew@b.test,,\nbad,,\n',
  );
  const noted = await rows<{ email: string }>(
    `select c.email
     from contact_changes n
     cross join unnest(n.contact_ids) changed (id)
     join contacts c on c.organization_id = n.organization_id and c.id = changed.id
     where n.organization_id = $1 order by c.email`,
  );
  expect(noted.map(({ email }) => email)).toEqual(['changes@b.test', 'joins@b.test', 'new@b.test']);
  expect(await rows('select id from contact_changes where organization_id = $1')).toHaveLength(1);
});

test('a bad row says what is wrong in which column, and stops nothing', async () => {
  await define('age', 'number');
  const ended = await importFile(
    [
      'E-mail,First,age,Mail,SMS consent,tags,',
      'good@b.test,Ada,1,,,,',
      'not an address,Ada,old,,maybe,,',
      ',Ada,,,,,',
      'too@few.test,Ada',
      `long@b.test,${'x'.repeat(129)},,,,,`,
      'nul@b.test,a\0b,,,,,',
      'late@b.test,,,,,,x',
      `names@b.test,,,,,"${'y'.repeat(101)};""broken",`,
      '"lines@b.test","a\nb",,,,,',
      'last@b.test,Ada,,,,,',
    ].join('\n'),
    { mapped: [{ column: 'First', field: 'first_name' }], ignored: ['Mail'] },
  );
  expect(countsOf(ended)).toEqual([2, 0, 0, 8]);
  expect(ended.issues.map(({ line, column, reason }) => `${line} ${column ?? '-'}: ${reason}`)).toEqual([
    '3 E-mail: email must be an email address',
    '3 SMS consent: consent.sms must be one of subscribed, unsubscribed',
    '3 age: properties.age must be a number',
    '4 -: one of external_id, email and phone_number is required',
    '5 -: the row has 2 cells, and the header has 7',
    '6 First: first_name must be at most 128 characters',
    '7 First: First must not contain NUL',
    '8 -: column 7 has a value, but no name in the header',
    '9 tags: tags must be names separated by semicolons',
    '10 First: first_name must be a single line',
  ]);
  expect(ended.lastLine).toBe(12);
});

test('somebody who has unsubscribed stays so, whatever a file says, and whoever has the address then', async () => {
  await importFile('email,email_consent\na@b.test,unsubscribed\n');
  const old = 'email,email_consent,first_name\na@b.test,subscribed,Ada\n';
  const kept = await importFile(old);
  expect(kept.counts).toMatchObject({ updated: 1, keptUnsubscribed: 1 });
  expect(await contacts()).toMatchObject([{ first_name: 'Ada', unsubscribed_channels: ['email'] }]);
  await rows('delete from contacts where organization_id = $1');
  expect((await importFile(`${old}b@b.test,subscribed,Bob\n`)).counts).toMatchObject({ created: 2 });
  expect(await contacts()).toMatchObject([
    { first_name: 'Ada', unsubscribed_channels: ['email'] },
    { first_name: 'Bob', unsubscribed_channels: [] },
  ]);
});

test('a dry run says what would happen, and writes nothing at all', async () => {
  await importFile('email,first_name\nthere@b.test,Ada\n');
  const tables = ['contacts', 'contact_sets', 'memberships', 'membership_counts', 'contact_changes'];
  const all = () =>
    Promise.all(tables.map((table) => rows(`select xmin, * from ${table} where organization_id = $1`)));
  const before = await all();
  const ended = await importFile(
    'email,first_name,tags\nthere@b.test,New,T\nnew@b.test,,T\nnew@b.test,,\nbad,,\n',
    { isDryRun: true, lists: ['L'] },
  );
  expect(countsOf(ended)).toEqual([1, 1, 1, 1]);
  expect(ended).toMatchObject({ createdLists: ['L'], createdTags: ['T'] });
  expect(await all()).toEqual(before);
});

/** Many enough for several batches. */
const manyRows = 5_000;
const manyFile = (first = 1, last = manyRows) =>
  `external_id,email,tags\n${Array.from({ length: last - first + 1 }, (_none, index) => `x${first + index},m${first + index}@b.test,t${index % 3}\n`).join('')}`;

const countContacts = async () => {
  const [row] = await rows<{ contacts: number; members: number }>(
    `select count(*) as contacts,
       (select count(*) from memberships m where m.organization_id = $1) as members
     from contacts where organization_id = $1`,
  );
  return row;
};

test('PostgreSQL knows of thousands that are new while more come, and of all as soon as they are there', async () => {
  const known = () =>
    rows(
      `select max(xmin::text::bigint) from pg_statistic where starelid = 'memberships'::regclass and $1 <> ''`,
    );
  const before = await known();
  let meanwhile = before;
  async function* source() {
    yield Buffer.from(manyFile(1, 3 * manyRows));
    meanwhile = await known();
    yield Buffer.from('last,last@b.test,t0\n');
  }
  await importFile(source());
  expect(meanwhile).not.toEqual(before);
  expect(await known()).not.toEqual(meanwhile);
});

test('an import ends well while somebody else looks after its tables', async () => {
  await database.transaction(async (transaction) => {
    // What vacuum and the making of an index without locks hold.
    await transaction.rows(
      unpreparedStatement('lock table contacts, memberships in share update exclusive mode'),
    );
    expect((await importFile(manyFile())).counts.created).toBe(manyRows);
  });
});

test('two imports of one file at once make everything once, and neither fails', async () => {
  const ended = await Promise.all([importFile(manyFile()), importFile(manyFile())]);
  const total = (field: 'created' | 'unchanged' | 'updated' | 'bad') =>
    ended.reduce((sum, { counts }) => sum + counts[field], 0);
  expect([total('created'), total('updated'), total('unchanged'), total('bad')]).toEqual([
    manyRows,
    0,
    manyRows,
    0,
  ]);
  expect(await countContacts()).toEqual({ contacts: manyRows, members: manyRows });
});

test('what the API creates, changes and deletes meanwhile is neither lost nor made twice', async () => {
  await importFile('external_id,email,first_name\nx10,m10@b.test,Kept\nx11,m11@b.test,Kept\n');
  const find = async (externalId: string) =>
    (
      await rows<{ id: string }>('select id from contacts where organization_id = $1 and external_id = $2', [
        externalId,
      ])
    )[0]!.id;
  let meddled = 0;
  // Between what an import has read and what it writes, somebody else commits.
  const meddling: Database = {
    ...database,
    asOrganizations: (ids, work) =>
      database.asOrganizations(ids, (transaction) =>
        work({
          ...transaction,
          rows: async (statement, values) => {
            const found = await transaction.rows(statement, values);
            if (statement.text.includes('with found as') && meddled < 3) {
              meddled += 1;
              if (meddled === 1) {
                await createContact(tools(), organizationId, { email: 'm20@b.test', first_name: 'Other' });
              } else if (meddled === 2) {
                await rows(
                  "update contacts set last_name = 'Changed' where organization_id = $1 and external_id = 'x10'",
                );
              } else {
                await deleteContacts(tools(), organizationId, [await find('x11')]);
              }
            }
            return found;
          },
        }),
      ),
  };
  const ended = await importFile(manyFile(1, 50), {}, { ...tools(), database: meddling });
  expect(meddled).toBe(3);
  expect(countsOf(ended)).toEqual([48, 2, 0, 0]);
  expect(await countContacts()).toEqual({ contacts: 50, members: 50 });
  const named = await rows(
    `select external_id, first_name, last_name from contacts
     where organization_id = $1 and external_id in ('x10', 'x11', 'x20') order by external_id`,
  );
  expect(named).toEqual([
    { external_id: 'x10', first_name: 'Kept', last_name: 'Changed' },
    { external_id: 'x11', first_name: null, last_name: null },
    { external_id: 'x20', first_name: 'Other', last_name: null },
  ]);
});

test.each(['cut_before', 'cut_after'] as const)(
  'an import goes on where the connection to PostgreSQL broke, at whatever statement (%s)',
  async (kind) => {
    const proxy = await startStatementProxy(address);
    const proxied = openDatabase({ address: proxy.address, connectionsMax: 1 });
    // PostgreSQL is back as soon as it is asked again.
    const clock: Clock = { ...systemClock, after: (_delayMs, callback) => systemClock.after(0, callback) };
    try {
      let isReached = true;
      // Ends after the last statement of an import of four rows.
      for (let number = 1; isReached; number += 1) {
        let stop: Stop | null = null;
        const name = `At ${number}`;
        // From the second batch on, with a tag that is yet to be made.
        const file = `external_id,first_name,lists,tags\nc0,${name},News,\nc1,${name},News,\nc2,${name},News,${name}\nc3,${name},News,${name}\n`;
        const { counts, stop: reason } = await importFile(
          file,
          { batchRowsMax: 2, onProgress: () => (stop ??= proxy.stopAt(number, kind)) },
          { ...tools(), database: proxied, clock },
        );
        isReached = (stop as Stop | null)?.isReached() ?? false; // Assigned by the callback.
        const names = (await contacts()).map((contact) => contact.first_name);
        expect({ number, rows: counts.rows, bad: counts.bad, reason, names }).toEqual({
          number,
          rows: 4,
          bad: 0,
          reason: null,
          names: [name, name, name, name],
        });
        expect(await countContacts()).toEqual({ contacts: 4, members: 4 + 2 * number });
      }
    } finally {
      await proxied.close();
      await proxy.stop();
    }
  },
);

test('contacts that turn up after a batch of new ones are found all the same', async () => {
  await importFile('external_id,email,first_name\nx4500,m4500@b.test,Ada\n');
  const ended = await importFile(manyFile());
  expect(countsOf(ended)).toEqual([manyRows - 1, 1, 0, 0]);
  expect(await countContacts()).toEqual({ contacts: manyRows, members: manyRows });
  expect(
    await rows("select first_name from contacts where organization_id = $1 and external_id = 'x4500'"),
  ).toEqual([{ first_name: 'Ada' }]);
});

test('an interrupted import keeps whole batches, says where it stood, and goes on when it is run again', async () => {
  const interruption = new AbortController();
  const first = await importFile(manyFile(), {
    signal: interruption.signal,
    onProgress: () => {
      interruption.abort();
    },
  });
  expect(first.stop).toEqual({ kind: 'interrupted' });
  const { created } = first.counts;
  expect(created).toBeGreaterThan(0);
  expect(created).toBeLessThan(manyRows);
  expect(first.lastLine).toBe(created + 1);
  expect(await countContacts()).toEqual({ contacts: created, members: created });
  expect(countsOf(await importFile(manyFile()))).toEqual([manyRows - created, 0, created, 0]);
  expect(await countContacts()).toEqual({ contacts: manyRows, members: manyRows });
});

test('a file that cannot be read to its end is imported as far as it can be', async () => {
  const ended = await importFile(`${manyFile(1, 100)}x101,"m101@b.test,t1\nx102,m102@b.test,t1\n`);
  expect(ended.stop).toEqual({
    kind: 'unreadable',
    problem: 'In row 102 a quote is opened that is never closed.',
  });
  expect(countsOf(ended)).toEqual([100, 0, 0, 0]);
  expect((await run('email,"x\n')).outcome).toMatchObject({ kind: 'refused' });
  expect((await run('')).outcome).toEqual({ kind: 'refused', problem: 'The file is empty.' });
});

test('when a tag or a property that it needs is deleted, an import ends and says so', async () => {
  const id = await define('plan', 'string');
  const meanwhile = (work: () => Promise<unknown>) => {
    let isDone = false;
    async function* source() {
      yield Buffer.from(manyFile().replace('tags', 'plan'));
      if (isDone) return;
      isDone = true;
      await work();
    }
    return source();
  };
  await expect(run(meanwhile(() => deleteProperty(tools(), { organizationId, id })))).rejects.toThrow(
    /^The import broke off .*can be run again/,
  );
  const made = await createSet(tools(), { organizationId, kind: 'list', name: 'L', description: null });
  const list = made === 'taken' ? '' : made.id;
  await expect(
    run(
      (async function* () {
        yield Buffer.from(manyFile());
        await deleteSet(tools(), { organizationId, kind: 'list', id: list });
      })(),
      { lists: [list] },
    ),
  ).rejects.toMatchObject({ cause: expect.objectContaining({ name: 'TargetDeletedError' }) as Error });
});

test('a column of notes does not become a tag of every note', async () => {
  const file = `email,tags\n${Array.from({ length: 1_002 }, (_none, index) => `m${index}@b.test,note ${index}\n`).join('')}`;
  const ended = await importFile(file);
  expect(countsOf(ended)).toEqual([1_000, 0, 0, 2]);
  expect(ended.issues[0]).toEqual({
    line: 1_002,
    column: 'tags',
    reason: 'tags: an import creates at most 1000 new ones',
  });
});

test('another organization is neither found nor changed', async () => {
  await importFile('email,first_name\na@b.test,Other\n');
  const before = await contacts();
  const other = organizationId;
  organizationId = newId();
  expect(countsOf(await importFile('email,first_name\na@b.test,Own\n'))).toEqual([1, 0, 0, 0]);
  organizationId = other;
  expect(await contacts()).toEqual(before);
});

async function exportFile(
  options: { lists?: string[]; tags?: string[]; pageRowsMax?: number } = {},
): Promise<string> {
  const opened = await openExport(database, { organizationId, lists: [], tags: [], ...options });
  if (opened.kind === 'refused') throw new Error(opened.problem);
  const lines = [opened.head];
  for await (const page of opened.pages) lines.push(...page);
  return `${lines.join('\n')}\n`;
}

test('what is exported is imported into another organization as it was, and changes nothing in its own', async () => {
  const storable = (maxLength: number) =>
    fc
      .oneof(fc.string({ unit: 'binary', maxLength }), fc.stringMatching(/^['=+@;," \t-]{0,5}[a-z]?$/))
      .filter((text) => text !== '' && !text.includes('\0') && !/[\r\n]/.test(text) && text.isWellFormed());
  // As the API stores them.
  const composed = (maxLength: number) => storable(maxLength).map((text) => text.normalize('NFC'));
  const contact = fc.record(
    {
      external_id: storable(20),
      phone_number: fc.integer({ min: 1_000_000, max: 9_999_999 }).map((number) => `+49${number}`),
      first_name: composed(20),
      last_name: composed(20),
      timezone: fc.constantFrom('Europe/Berlin', 'America/New_York'),
      note: composed(30),
      e_mail: fc.integer({ min: -1e9, max: 1e9 }),
      is_vip: fc.boolean(),
      since: fc.constantFrom('2026-11-21', '2026-11-21T10:00:00.000Z'),
      unsubscribed: fc.subarray(['email', 'sms', 'push', 'chatapp'] as const),
      sets: fc.array(
        composed(10).filter((name) => name.trim() !== ''),
        { maxLength: 3 },
      ),
    },
    { requiredKeys: ['external_id', 'unsubscribed', 'sets'] },
  );
  await fc.assert(
    fc.asyncProperty(
      fc.uniqueArray(contact, { selector: (each) => each.external_id, maxLength: 5 }),
      async (people) => {
        const [own, copy] = [newId(), newId()];
        const setUp = async (id: string) => {
          organizationId = id;
          for (const [key, type] of [
            ['note', 'string'],
            // As a column it would be the field.
            ['e_mail', 'number'],
            ['is_vip', 'boolean'],
            ['since', 'date'],
          ] as const) {
            await define(key, type);
          }
        };
        await setUp(own);
        const numbers = new Set<string>();
        for (const { note, e_mail, is_vip: isVip, since, unsubscribed, sets, ...fields } of people) {
          if (fields.phone_number !== undefined && numbers.has(fields.phone_number))
            delete fields.phone_number;
          if (fields.phone_number !== undefined) numbers.add(fields.phone_number);
          const ids: string[] = [];
          for (const name of sets) {
            const made = await createSet(tools(), { organizationId, kind: 'tag', name, description: null });
            if (made !== 'taken') ids.push(made.id);
          }
          const created = await createContact(tools(), organizationId, {
            ...Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)),
            properties: Object.fromEntries(
              Object.entries({ note, e_mail, is_vip: isVip, since }).filter(
                ([, value]) => value !== undefined,
              ),
            ) as Record<string, string>,
            consent: Object.fromEntries(unsubscribed.map((channel) => [channel, 'unsubscribed'])),
            tag_ids: ids,
          });
          expect(created.kind).toBe('created');
        }
        const file = await exportFile();
        const again = await importFile(file);
        expect(countsOf(again)).toEqual([0, 0, people.length, 0]);
        const before = await contacts();
        await setUp(copy);
        expect(countsOf(await importFile(file))).toEqual([people.length, 0, 0, 0]);
        expect(await contacts()).toEqual(before);
        expect(await exportFile()).toBe(file);
      },
    ),
    { numRuns: 25 },
  );
});

test('an export holds those of a list, or of a list and a tag, page after page', async () => {
  await importFile(manyFile(1, 2_500), { lists: ['L'] });
  await importFile('email\nalone@b.test\n');
  const lines = async (options: Parameters<typeof exportFile>[0]) =>
    (await exportFile(options)).trim().split('\n');
  expect(await lines({})).toHaveLength(2_502);
  expect(await lines({ lists: ['l'] })).toHaveLength(2_501);
  const both = await lines({ lists: ['L'], tags: ['t1'] });
  expect(both).toHaveLength(834);
  expect(both[1]).toBe('x2,m2@b.test,,,,,,subscribed,subscribed,subscribed,subscribed,L,t1');
  await expect(exportFile({ tags: ['nothing'] })).rejects.toThrow('There is no tag nothing.');
});

test('five rows, one of them bad, are imported two at a time, and five contacts exported so, each once', async () => {
  const own = organizationId;
  organizationId = newId();
  await importFile('email\nm1@b.test\n');
  const [beside, other] = [await contacts(), organizationId];
  organizationId = own;
  const progress: number[] = [];
  const file = 'email\nm1@b.test\nm2@b.test\nno address\nm3@b.test\nm4@b.test\n';
  const options = { batchRowsMax: 2, onProgress: ({ rows }: { rows: number }) => progress.push(rows) };
  const ended = await importFile(file, { ...options, lists: ['L'] });
  expect(progress).toEqual([2, 4, 5]);
  expect(countsOf(ended)).toEqual([4, 0, 0, 1]);
  expect(ended.issues.map(({ line }) => line)).toEqual([4]);
  expect(countsOf(await importFile(file, options))).toEqual([0, 0, 4, 1]);
  await importFile('email\nm5@b.test\n', { lists: ['L'] });
  for (const lists of [[], ['L']]) {
    const exported = await exportFile({ lists, pageRowsMax: 2 });
    expect(exported.match(/m\d@b/g)).toEqual(['m1@b', 'm2@b', 'm3@b', 'm4@b', 'm5@b']);
  }
  organizationId = other;
  expect(await contacts()).toEqual(beside);
});

test('five rows are imported two at a time where so many have the bytes of a batch, each once', async () => {
  const progress: unknown[] = [];
  const file = 'email\nm1@b.test\nm2@b.test\nm3@b.test\nm4@b.test\nm5@b.test\n';
  // A row has ten.
  const ended = await importFile(file, { batchBytesMax: 20, onProgress: ({ rows }) => progress.push(rows) });
  expect(progress).toEqual([2, 4, 5]);
  expect(countsOf(ended)).toEqual([5, 0, 0, 0]);
  expect((await contacts()).map(({ email }) => email)).toEqual([1, 2, 3, 4, 5].map((n) => `m${n}@b.test`));
});

test('contacts whose ids are in another order than they are imported, changed and exported each once', async () => {
  const [own, other] = [organizationId, newId()];
  const shuffled = { ...tools(), newId: createShuffledIds(systemClock) };
  const names = [1, 2, 3, 4, 5, 6, 7].map((number) => `m${number}@b.test`);
  const file = `email\n${names.join('\n')}\n`;
  const options = { batchRowsMax: 2, lists: ['L'] };
  await importFile(file, { ...options, organizationId: other }, shuffled);
  expect(countsOf(await importFile(file, options, shuffled))).toEqual([7, 0, 0, 0]);
  expect(countsOf(await importFile(file, options, shuffled))).toEqual([0, 0, 7, 0]);
  const changed = `email,first_name\n${names.map((name) => `${name},Ann`).join('\n')}\n`;
  expect(countsOf(await importFile(changed, options, shuffled))).toEqual([0, 7, 0, 0]);
  const stored = (await contacts()).map(({ email }) => email);
  expect(stored).not.toEqual(names);
  for (const lists of [[], ['L']]) {
    const exported = await exportFile({ lists, pageRowsMax: 2 });
    expect(exported.match(/m\d@b\.test,[^,]*,Ann/g)?.map((row) => row.split(',')[0])).toEqual(stored);
  }
  organizationId = other;
  expect((await contacts()).map(({ first_name }) => first_name)).toEqual(names.map(() => null));
  organizationId = own;
});

test('imports of one organization take turns, and those of another one wait for none of them', async () => {
  const [own, other] = [organizationId, newId()];
  const importInto = (into: string, file: string) => importFile(file, { organizationId: into });
  await importInto(own, 'external_id,email\nx1,a@b.test\n');
  const imports: Promise<unknown>[] = [];
  let isBesideOver = false;
  const wasBesideOver = await database.transaction(async (transaction) => {
    await transaction.rows(
      unpreparedStatement('select from contacts where organization_id = $1 for update'),
      [own],
    );
    imports.push(importInto(own, 'external_id,email\nx1,b@b.test\n'));
    while ((await countWaiting()) < 1);
    // In the way of the first one alone, with which it shares no row.
    imports.push(importInto(own, 'external_id,email\nx2,c@b.test\n'));
    while ((await countWaiting()) < 2);
    const beside = importInto(other, 'external_id,email\nx1,a@b.test\n').finally(() => {
      isBesideOver = true;
    });
    imports.push(beside);
    while (!isBesideOver && (await countWaiting()) < 3);
    return isBesideOver;
  });
  await Promise.all(imports);
  expect(wasBesideOver).toBe(true);
  expect((await contacts()).map(({ email }) => email)).toEqual(['b@b.test', 'c@b.test']);
});

/** Sessions that wait for somebody's lock. */
async function countWaiting(): Promise<number> {
  const waiting = await database.rows(
    unpreparedStatement(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    ),
  );
  return waiting.length;
}

test('contacts are exported in the order in which they were made', async () => {
  await importFile('email\nb@b.test\na@b.test\n');
  expect((await exportFile()).match(/[ab]@b/g)).toEqual(['b@b', 'a@b']);
});
