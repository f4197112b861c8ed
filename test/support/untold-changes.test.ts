import { beforeEach, expect, test } from 'vitest';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type Transaction,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { useTestDatabase } from './test-database.ts';
import { findUntoldChanges } from './untold-changes.ts';

let database: Database;
useTestDatabase({ connectionsMax: 2, hasNeighbour: true, isForEachTest: true }, (opened) => {
  database = opened.database;
});

const newId = createIds(systemClock);
const organizationId = newId();
const contactId = newId();
const listId = newId();

const insertContact = `insert into contacts (organization_id, id, external_id, created_at, updated_at)
   values ('${organizationId}', '${contactId}', 'ada', now(), now())`;
const say = (id = contactId) =>
  `insert into contact_changes (organization_id, id, contact_ids) values ('${organizationId}', '${newId()}', '{${id}}')`;
const insertList = `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
   values ('${organizationId}', '${listId}', 'list', 'News', 'news', now(), now())`;
const join = `insert into memberships values ('${organizationId}', '${listId}', '${contactId}')`;

const runAll = async (transaction: Pick<Transaction, 'rows'>, texts: readonly string[]) => {
  for (const text of texts) await transaction.rows(unpreparedStatement(text));
};
/** As the program writes: in the role of the organization. */
const write = (...texts: string[]) =>
  database.asOrganizations([organizationId], (transaction) => runAll(transaction, texts));

beforeEach(() => write(insertContact, say(), insertList));

test.each([
  { what: 'a changed contact', texts: ["update contacts set locale = 'de'"] },
  { what: 'a changed contact', texts: ["update contacts set unsubscribed_channels = '{sms}'", say(newId())] },
  { what: 'a member of a list', texts: [join] },
  { what: 'a new contact', texts: ['delete from contacts', insertContact] },
])('$what of which nothing is said in its transaction is found', async ({ what, texts }) => {
  await write(...texts);
  await write(say());
  expect(await findUntoldChanges(database)).toEqual([
    expect.stringContaining(`not told of ${what}, ${contactId}`),
  ]);
});

test('a member that leaves a list in silence is found', async () => {
  await write(join, say());
  await write('delete from memberships');
  expect(await findUntoldChanges(database)).toEqual([
    expect.stringContaining('not told of a member of a list'),
  ]);
});

test.each([
  { what: 'that is said', texts: ["update contacts set locale = 'de'", say(newId()), say()] },
  { what: 'of a time alone', texts: ['update contacts set updated_at = now()'] },
  { what: 'of a contact that is gone', texts: ["update contacts set locale = 'de'", 'delete from contacts'] },
  { what: 'by a list that goes', texts: [join, 'update contact_sets set deleted_at = now()'] },
])('a change $what is none to be found', async ({ texts }) => {
  await write(...texts.flatMap((text) => (text === join ? [text, say()] : [text])));
  await write('delete from memberships');
  expect(await findUntoldChanges(database)).toEqual([]);
});

test('what a test writes by itself is not looked at', async () => {
  await database.transaction((transaction) => runAll(transaction, ["update contacts set locale = 'de'"]));
  expect(await findUntoldChanges(database)).toEqual([]);
});
