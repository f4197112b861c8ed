/**
 * Every field of a contact goes through everything that knows of fields. What the fields are is read off the table that
 * the program is made from (src/audience/contact-fields.ts): one that some part of the program leaves out fails here.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  type ContactField,
  contactFieldNames,
  contactFields,
  importContacts,
  openExport,
  writeRecord,
} from '../../src/audience/audience.ts';
import { createShiftedClock, eventually, rowsOf } from '../support/email-journey.ts';
import { neighbourId } from '../support/neighbour.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

type Values = Record<ContactField, string>;

/** What a contact has at first: each unlike everything else in the database. */
const first: Values = {
  external_id: 'crm-7781-walker',
  email: 'Wilhelmina.F@example.com',
  phone_number: '+14155550171',
  first_name: 'Wilhelmina',
  last_name: 'Ferncastle',
  locale: 'mi-NZ',
  timezone: 'Pacific/Chatham',
};
const second: Values = {
  external_id: 'crm-7782-walker',
  email: 'Ottoline.H@example.org',
  phone_number: '+14155550172',
  first_name: 'Ottoline',
  last_name: 'Hollowbrook',
  locale: 'gsw-LI',
  timezone: 'Antarctica/Troll',
};

const clock = createShiftedClock();
let server: TestServer;
let id: string;

beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
});
afterAll(() => server.stop());

beforeEach(async () => {
  id = (await ask<{ id: string }>('POST', '/contacts', first, 201)).id;
});
afterEach(async () => {
  await server.request('DELETE', `/v1/contacts/${id}`);
});

async function ask<Body>(method: string, path: string, body?: object, status = 200): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body);
  expect([method, path, response.status, response.text]).toMatchObject([
    method,
    path,
    status,
    expect.any(String),
  ]);
  return response.body;
}

type Contact = Record<ContactField, string | null> & { id: string };

const read = () => ask<Contact>('GET', `/contacts/${id}`);
const patch = (values: object) => ask<Contact>('PATCH', `/contacts/${id}`, values);
const listed = async (query = '') => (await ask<{ data: Contact[] }>('GET', `/contacts${query}`)).data;

/** The fields of a contact of an organization as they stand in the database. */
function stored(organizationId: string): Promise<Record<string, unknown>[]> {
  return rowsOf(
    server,
    `select ${contactFieldNames.join(', ')} from contacts where organization_id = $1 order by id`,
    [organizationId],
  );
}

/** Lines of a CSV file. Created, updated, unchanged and bad rows. */
async function importLines(...lines: string[]): Promise<number[]> {
  async function* source() {
    yield Buffer.from(lines.join('\n'));
  }
  const outcome = await importContacts(server.installation, {
    organizationId: server.organizationId,
    source: source(),
    ...{ lists: [], tags: [], mapped: [], ignored: [], isDryRun: false },
  });
  if (outcome.kind === 'refused') throw new Error(outcome.problem);
  const { created, updated, unchanged, bad } = outcome.counts;
  return [created, updated, unchanged, bad];
}

const inOrder = (values: Values) => contactFieldNames.map((field) => values[field]);

test('the table of contacts has a column for every field, and no others but those listed here', async () => {
  const columns = await rowsOf<{ name: string }>(
    server,
    `select attname as name from pg_attribute where attrelid = 'contacts'::regclass and attnum > 0`,
  );
  expect(columns.map(({ name }) => name).sort()).toEqual(
    [
      ...['organization_id', 'id', 'created_at', 'updated_at', 'properties', 'unsubscribed_channels'],
      ...['email_key', 'name_key', 'last_name_key'],
      ...contactFieldNames,
    ].sort(),
  );
});

test('no property has the name of a field', async () => {
  for (const key of [...contactFieldNames, 'created_at', 'consent']) {
    expect(await ask('POST', '/properties', { key, name: 'Other', type: 'string' }, 422)).toMatchObject({
      message: `key must not be the name of a field of contacts, as ${key} is`,
    });
  }
});

test('a contact has every field that it was created with, in all answers', async () => {
  const [row] = await stored(server.organizationId);
  expect(row).toEqual(first);
  expect(await read()).toMatchObject(first);
  expect(await listed()).toMatchObject([first]);
  expect(await listed(`?search=${first.external_id}`)).toMatchObject([first]);
});

test.each(contactFieldNames.filter((field) => contactFields[field].isIdentifier))(
  'the %s finds its contact, and is nobody else’s',
  async (field) => {
    const query = (value: string) => `?${field}=${encodeURIComponent(value)}`;
    expect(await listed(query(first[field]))).toMatchObject([first]);
    expect(await listed(query(second[field]))).toEqual([]);
    expect(await ask('POST', '/contacts', { [field]: first[field] }, 409)).toMatchObject({
      message: `${field} is in use by the contact ${id}.`,
    });
    expect(await importLines(writeRecord([field]), writeRecord([first[field]]))).toEqual([0, 0, 1, 0]);
  },
);

describe.each(contactFieldNames)('%s', (field) => {
  test('is changed by itself, taken away, and given back', async () => {
    for (const value of [second[field], null, first[field]]) {
      expect(await patch({ [field]: value })).toMatchObject({ ...first, [field]: value });
      expect(await read()).toMatchObject({ ...first, [field]: value });
    }
    expect(await stored(neighbourId)).toContainEqual({ ...first, first_name: 'Neighbour' });
  });

  test('is all that an import changes, and an empty cell leaves it', async () => {
    await patch({ [field]: null });
    // A row is matched by an identifier of higher rank; the one of the highest rank can only be added.
    const [by, values] =
      field === 'external_id'
        ? (['email', [first[field]]] as const)
        : (['external_id', [first[field], second[field]]] as const);
    const importValue = (value: string | null) =>
      importLines(`${by},${field}`, writeRecord([first[by], value]));
    for (const value of values) {
      expect([value, await importValue(value)]).toEqual([value, [0, 1, 0, 0]]);
      expect(await read()).toMatchObject({ ...first, [field]: value });
      expect([value, await importValue(value)]).toEqual([value, [0, 0, 1, 0]]);
    }
    expect(await importValue(null)).toEqual([0, 0, 1, 0]);
    expect(await read()).toMatchObject({ ...first, [field]: values.at(-1) });
    expect(await stored(neighbourId)).toContainEqual({ ...first, first_name: 'Neighbour' });
  });

  test('is asked for by the conditions of segments, as the document says', async () => {
    const row = /^\| `field` .*/m.exec(await readDocument('audience.md'));
    expect(row?.[0]).toContain(`\`${field}\``);
    const count = async (condition: object) => {
      const conditions = { type: 'field', field, ...condition };
      return (await ask<{ contact_count: number }>('POST', '/segments/preview', { conditions }))
        .contact_count;
    };
    expect(await count({ operator: 'eq', value: first[field] })).toBe(1);
    expect(await count({ operator: 'eq', value: second[field] })).toBe(0);
    expect(await count({ operator: 'is_not_set' })).toBe(0);
    await patch({ [field]: null });
    expect(await count({ operator: 'is_not_set' })).toBe(1);
  });

  test('is found in a file by each of its names, which the document has', async () => {
    const document = await readDocument('import.md');
    const names = new RegExp(`^\\| \`${field}\` +\\| (.*?) +\\|`, 'm').exec(document)?.[1]?.split(', ') ?? [];
    const bare = (name: string) => name.replace(/[^a-z]/g, '');
    expect(new Set(names.map(bare))).toEqual(new Set(contactFields[field].csvNames));
    const by = field === 'external_id' ? 'email' : 'external_id';
    for (const name of [field, ...names]) {
      const head = writeRecord([by, name.toUpperCase()]);
      const counts = await importLines(head, writeRecord([first[by], first[field]]));
      expect([name, counts]).toEqual([name, [0, 0, 1, 0]]);
    }
  });
});

test('an import makes a contact with every field, and an export has them all, as an import reads them', async () => {
  await ask('DELETE', `/contacts/${id}`);
  const head = writeRecord(contactFieldNames);
  expect(await importLines(head, writeRecord(inOrder(first)))).toEqual([1, 0, 0, 0]);
  const [contact] = await listed();
  expect(contact).toMatchObject(first);
  id = contact!.id;

  const opened = await openExport(server.installation.database, {
    organizationId: server.organizationId,
    lists: [],
    tags: [],
  });
  if (opened.kind === 'refused') throw new Error(opened.problem);
  const lines: string[] = [];
  for await (const page of opened.pages) lines.push(...page);
  const ofFields = (line: string) => line.split(',').slice(0, contactFieldNames.length).join(',');
  expect([opened.head, ...lines].map(ofFields)).toEqual([head, writeRecord(inOrder(first))]);
  expect(await importLines(opened.head, ...lines)).toEqual([0, 0, 1, 0]);
  await ask('DELETE', `/contacts/${id}`);
  expect(await importLines(opened.head, ...lines)).toEqual([1, 0, 0, 0]);
  const [again] = await listed();
  expect(again).toMatchObject(first);
  id = again!.id;
});

test('every field stands for its placeholder in what is sent to the contact, and nothing of it is left after its deletion', async () => {
  const list = await ask<{ id: string }>('POST', '/lists', { name: 'All' }, 201);
  await ask('POST', `/lists/${list.id}/contacts`, { contact_ids: [id] });
  const written = (valueOf: (field: ContactField) => string) =>
    contactFieldNames.map((field) => `${field} is ${valueOf(field)}.`).join('\n');
  const campaign = await ask<{ id: string }>(
    'POST',
    '/email/campaigns',
    {
      name: 'News',
      from: 'news@postillion.test',
      subject: 'News',
      text: written((field) => `{{${field}}}`),
      list_ids: [list.id],
    },
    201,
  );
  const sample = await ask<{ text: string }>('POST', `/email/campaigns/${campaign.id}/preview`, {});
  const given = written((field) => first[field]);
  expect(sample.text).toContain(given);
  await ask('POST', `/email/campaigns/${campaign.id}/send`, {});
  const [copy] = await eventually(
    () =>
      rowsOf<{ source: Buffer }>(server, 'select source from sandbox_messages where organization_id = $1', [
        server.organizationId,
      ]),
    (copies) => copies.length > 0,
  );
  expect(decodeQuotedPrintable(copy!.source.toString())).toContain(given);
  await eventually(
    () => rowsOf(server, 'select from delivery_queue union all select from delivery_slices'),
    (jobs) => jobs.length === 0,
  );

  const before = await tracesOf(first);
  for (const field of contactFieldNames) {
    expect(before).toEqual(expect.arrayContaining([`${field} in contacts`, `${field} in recipients`]));
  }
  await ask('DELETE', `/contacts/${id}`);
  await eventually(
    () => {
      clock.putForward(61_000);
      return rowsOf(server, 'select from erasures');
    },
    (erasures) => erasures.length === 0,
  );
  expect(await tracesOf(first)).toEqual([]);
  expect(await stored(neighbourId)).toContainEqual({ ...first, first_name: 'Neighbour' });
});

function readDocument(name: string): Promise<string> {
  return readFile(path.resolve(import.meta.dirname, '../../docs', name), 'utf8');
}

function decodeQuotedPrintable(source: string): string {
  return source
    .replace(/=\r\n/g, '')
    .replace(/=([0-9A-F]{2})/g, (_whole, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)))
    .replaceAll('\r\n', '\n');
}

/** Which values can be read in rows of the organization: `email in recipients`, for instance. */
async function tracesOf(values: Values): Promise<string[]> {
  const tables = await rowsOf<{ name: string }>(
    server,
    `select c.relname as name
     from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id'
     where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace
     order by c.relname`,
  );
  const searches = tables.map(
    ({ name }) =>
      `select field || ' in ${name}' as trace
       from unnest($2::text[], $3::text[]) as wanted (field, wanted_value)
       where exists (
         select
         from ${name} t
         where t.organization_id = $1
           and (strpos(lower(t::text), lower(wanted_value)) > 0
             or strpos(t::text, encode(convert_to(wanted_value, 'UTF8'), 'hex')) > 0)
       )`,
  );
  const traces = await rowsOf<{ trace: string }>(server, searches.join(' union all '), [
    server.organizationId,
    contactFieldNames,
    inOrder(values),
  ]);
  return traces.map(({ trace }) => trace);
}
