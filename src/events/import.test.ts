/** Events out of files: what is stored of them, once, wherever an import ends. */
import { beforeEach, expect, test } from 'vitest';
import { refuseInserts } from '../../test/support/refused-inserts.ts';
import { startStatementProxy } from '../../test/support/statement-proxy.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization } from '../accounts/accounts.ts';
import type { RowIssue } from '../audience/audience.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { computeNext, followChanges } from '../segments/membership.ts';
import { createSegment } from '../segments/segments.ts';
import { createDefinition } from './definitions.ts';
import { createSecrets } from '../platform/secrets.ts';
import { type EventImportOutcome, importEvents } from './import.ts';

let address: DatabaseAddress;
let database: Database;
let organizationId: string;
/** How often segments were told that contacts changed. */
let told = 0;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
  database = opened.database;
});
beforeEach(async () => {
  organizationId = (await createOrganization(tools(), 'Acme')).id;
  await define('order');
});

const tools = (through = database) => ({
  database: through,
  // A PostgreSQL that was away is back as soon as it is asked again.
  clock: {
    ...systemClock,
    after: (_delayMs: number, callback: () => void) => systemClock.after(0, callback),
  },
  newId: createIds(systemClock),
  secrets: createSecrets('a secret of the tests, and of nothing else'),
  onContactsChanged: () => {
    told += 1;
  },
});

async function define(name: string): Promise<void> {
  const findReadFields = () => Promise.resolve([]);
  const schema = { fields: [{ name: 'total', type: 'integer' as const }] };
  await createDefinition({ ...tools(), findReadFields }, organizationId, { name, schema });
}

/** The outcome, with the reasons of bad rows. The file comes in small parts, which are not those in which it is stored. */
async function run(
  text: string,
  { through = database, partBytes = 1_000 } = {},
): Promise<EventImportOutcome & { reasons: string[] }> {
  const issues: RowIssue[] = [];
  const source = async function* (): AsyncGenerator<Buffer, void, undefined> {
    const bytes = Buffer.from(text);
    for (let at = 0; at < bytes.length; at += partBytes)
      yield await Promise.resolve(bytes.subarray(at, at + partBytes));
  };
  const outcome = await importEvents(tools(through), {
    organizationId,
    source: source(),
    mapped: [],
    ignored: [],
    isDryRun: false,
    onIssues: (found) => {
      issues.push(...found);
      return Promise.resolve();
    },
  });
  return { ...outcome, reasons: issues.map(({ line, reason }) => `${line} ${reason}`) };
}

/** What is stored: the total of each event. */
async function totals(): Promise<number[]> {
  const rows = await database.rows(
    unpreparedStatement<{ total: number }>(
      `select (payload ->> 'total')::integer as total from events where organization_id = $1 order by 1`,
    ),
    [organizationId],
  );
  return rows.map(({ total }) => total);
}

const linesOf = (count: number) =>
  Array.from({ length: count }, (_none, index) => `order,c-${index % 300},${index},1999-12-31`);
const fileOf = (count: number) => ['event,external_id,total,occurred_at', ...linesOf(count)].join('\n');
const jsonOf = (count: number) =>
  Array.from({ length: count }, (_none, index) => {
    const event = { event: 'order', external_id: `c-${index % 300}`, payload: { total: index } };
    return `${JSON.stringify(event)}\n`;
  }).join('');

test('segments that ask about what a file tells are told of its contacts, known ones too', async () => {
  await run(['event,external_id,total', 'other,c-1,1'].join('\n'));
  await define('other');
  const conditions = { type: 'event', event: 'order', count: { operator: 'gte', value: 2 } };
  const made = await createSegment(tools(), organizationId, { name: 'Regulars', conditions });
  if (made.kind !== 'done') throw new Error(made.kind);
  const segmentTools = { ...tools(), log: silentLog };
  await computeNext(segmentTools, organizationId, new AbortController().signal);
  const follow = async () => {
    while (await followChanges(segmentTools, organizationId)) {
      // Until there are none.
    }
  };
  const members = async () =>
    (
      await database.rows(
        unpreparedStatement<{ external_id: string }>(
          `select c.external_id
           from memberships m
           join contacts c on c.organization_id = m.organization_id and c.id = m.contact_id
           where m.organization_id = $1 and m.set_id = $2
           order by 1`,
        ),
        [organizationId, made.segment.id],
      )
    ).map(({ external_id: externalId }) => externalId);
  await run(
    ['event,external_id', 'order,c-1', 'order,c-2', 'order,c-2', 'other,c-3', 'other,c-3'].join('\n'),
  );
  await follow();
  expect(await members()).toEqual(['c-2']);
  told = 0;
  // Of somebody who is there already, so that the contact itself does not change.
  await run(['event,external_id', 'order,c-1'].join('\n'));
  expect(told).toBe(1);
  await follow();
  expect(await members()).toEqual(['c-1', 'c-2']);
});

test.each([
  ['CSV', fileOf(1_201), 1_202],
  ['JSON', jsonOf(1_201), 1_201],
])(
  'a file of several parts in %s is stored whole, and importing it again stores nothing, however it arrives',
  async (_format, file, lastLine) => {
    const counts = { rows: 1_201, bad: 0 };
    expect(await run(file)).toMatchObject({
      counts: { ...counts, stored: 1_201, storedBefore: 0 },
      lastLine,
    });
    for (const partBytes of [1_000, file.length])
      expect(await run(file, { partBytes })).toMatchObject({
        counts: { ...counts, stored: 0, storedBefore: 1_201 },
        lastLine,
      });
    expect(await totals()).toEqual([...Array(1_201).keys()]);
  },
);

test('rows that are alike are each an event, also where a part is like the one before', async () => {
  const file = ['event,external_id,total', ...Array.from({ length: 1_000 }, () => 'order,c-1,7')].join('\n');
  expect(await run(file)).toMatchObject({ counts: { stored: 1_000, storedBefore: 0 } });
  expect(await run(file)).toMatchObject({ counts: { stored: 0, storedBefore: 1_000 } });
  expect(await totals()).toEqual(Array.from({ length: 1_000 }, () => 7));
});

test('a day is its midnight in UTC, whatever the zone of the machine', async () => {
  expect(new Date('1999-12-31T00:00:00').getTime()).not.toBe(Date.parse('1999-12-31T00:00:00Z'));
  await run(fileOf(1));
  const occurred = database.rows(
    unpreparedStatement('select occurred_at from events where organization_id = $1'),
    [organizationId],
  );
  expect(await occurred).toEqual([{ occurred_at: new Date('1999-12-31T00:00:00Z') }]);
});

test.each([
  ['event,external_id,email,External ID', 'external_id'],
  ['total,event,external_id,payload.total', 'payload.total'],
])('a file is refused of which two columns mean the same, wherever they stand: %s', async (head, meant) => {
  expect(await run(`${head}\n`)).toEqual({
    kind: 'refused',
    problem: `Two columns would both be ${meant}. Skip one of them with --ignore, or give it another name.`,
    reasons: [],
  });
});

test('an import that is in the way of other transactions is tried again, and given up after twenty times', async () => {
  const refuse = (times: number) =>
    refuseInserts(database, { table: 'event_imports', times, condition: 'serialization_failure' });
  const allowAll = await refuse(20);
  await expect(run(fileOf(3))).rejects.toThrow(
    'The import broke off before its first rows were written; what was written is kept',
  );
  await allowAll();
  expect(await totals()).toEqual([]);
  const allowRest = await refuse(19);
  expect(await run(fileOf(3))).toMatchObject({ counts: { stored: 3, bad: 0 } });
  await allowRest();
  expect(await totals()).toEqual([0, 1, 2]);
});

test('bad rows keep no other from being stored, and alone are tried when the file is imported again', async () => {
  const file = [
    { event: 'order', external_id: 'c-1', payload: { total: 1 } },
    { event: 'order', external_id: 'c-2', payload: { total: 2, text: 'a\0b' } },
    { event: 'later', external_id: 'c-3', payload: { total: 3 } },
  ]
    .map((event) => JSON.stringify(event))
    .join('\n');
  const nul = '2 payload.text must not contain NUL or unpaired surrogates';
  const unknown = '3 There is no event of the name later. Define it first.';
  expect(await run(file)).toMatchObject({ counts: { stored: 1, bad: 2 }, reasons: [nul, unknown] });
  await define('later');
  expect(await run(file)).toMatchObject({ counts: { stored: 1, storedBefore: 1, bad: 1 }, reasons: [nul] });
  expect(await run(file)).toMatchObject({ counts: { stored: 0, storedBefore: 2, bad: 1 }, reasons: [nul] });
  expect(await totals()).toEqual([1, 3]);
});

test('rows that were bad are stored once they are not, and never again', async () => {
  const file = ['event,external_id,total', 'order,c-1,1', 'later,c-2,2'].join('\n');
  expect(await run(file)).toMatchObject({ counts: { stored: 1, bad: 1 } });
  await define('later');
  expect(await run(file)).toMatchObject({ counts: { stored: 1, storedBefore: 1, bad: 0 } });
  expect(await run(file)).toMatchObject({ counts: { stored: 0, storedBefore: 2, bad: 0 } });
  expect(await totals()).toEqual([1, 2]);
});

test('a row of JSON without an end is refused long before the end of its file', async () => {
  const part = Buffer.alloc(65_536, 'x');
  let read = 0;
  const source = async function* (): AsyncGenerator<Buffer, void, undefined> {
    yield Buffer.from('{');
    for (read = 1; read < 100; read += 1) yield await Promise.resolve(part);
  };
  const outcome = await importEvents(tools(), {
    organizationId,
    source: source(),
    mapped: [],
    ignored: [],
    isDryRun: false,
  });
  expect(outcome).toEqual({ kind: 'refused', problem: 'Row 1 is longer than 1048576 bytes.' });
  expect(read).toBeLessThan(20);
});

test('an import goes on where the connection broke, before or after any statement, and stores each row once', async () => {
  const proxy = await startStatementProxy(address);
  const through = openDatabase({ address: proxy.address, connectionsMax: 1 });
  try {
    let imported = 0;
    for (const kind of ['cut_before', 'cut_after'] as const) {
      for (let number = 1; ; number += 1) {
        expect(number).toBeLessThan(60);
        organizationId = (await createOrganization(tools(), 'Acme')).id;
        await define('order');
        // The schemas are read before, with nothing to lose.
        const stop = proxy.stopAt(number + schemaStatements, kind);
        expect(await run(fileOf(501), { through })).toMatchObject({
          kind: 'ended',
          counts: { rows: 501, bad: 0 },
        });
        stop.release();
        expect([kind, number, await totals()]).toEqual([kind, number, [...Array(501).keys()]]);
        imported += 1;
        if (!stop.isReached()) break;
      }
    }
    expect(imported).toBeGreaterThan(20);
  } finally {
    await through.close();
    await proxy.stop();
  }
});

/** A transaction, its role, one statement and its end. */
const schemaStatements = 4;
