/**
 * A deletion that was killed leaves rows that are due and that nobody will do. When the next of a kind is due, they are not
 * asked: each chore would find them overdue, and look again ten times a second until the deletion goes on.
 */
import { expect, test } from 'vitest';
import { findNextDeletedAt } from '../../src/audience/property-store.ts';
import { findNextErasureAt } from '../../src/audience/erasure-store.ts';
import { findNextScheduledAt } from '../../src/campaigns/engine-store.ts';
import { findNextDueAt as findNextTemplateAt } from '../../src/chat-templates/work-store.ts';
import { findNextChatAppEventAt } from '../../src/chatapp/event-store.ts';
import { findNextCheckAt, findNextTakeoverAt } from '../../src/domains/store.ts';
import { findNextConversionAt } from '../../src/events/events.ts';
import { findNextProviderEventAt } from '../../src/messages/feedback/provider-event-store.ts';
import { type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { findNextDueAt } from '../../src/segments/store.ts';
import { acme, fillTables, listTables, rival } from '../support/filled-tables.ts';
import { useTestDatabase } from '../support/test-database.ts';

let database: Database;
useTestDatabase({}, (opened) => {
  ({ database } = opened);
});

const run = (text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement(text), values);

/** Before all that is due. */
const begin = new Date(0);

/** The tables that are looked at, the column that says when, and what else a row needs to be seen. */
const lookUps: Record<string, { column: string; more?: string; find: () => Promise<Date | null> }> = {
  'segments compute_at': { column: 'compute_at', find: () => findNextDueAt(database, 'compute_at', begin) },
  'segments windows_due_at': {
    column: 'windows_due_at',
    find: () => findNextDueAt(database, 'windows_due_at', begin),
  },
  'domains next_check_at': {
    column: 'next_check_at',
    find: () => findNextCheckAt(database, { at: new Date('2026-02-01T00:00:00Z'), except: [] }),
  },
  'domains checking_until': {
    column: 'checking_until',
    more: ', checks_answered = 0, checks_asked = 1',
    find: () => findNextTakeoverAt(database, { at: begin, except: [] }),
  },
  pending_conversions: { column: 'due_at', find: () => findNextConversionAt(database) },
  chat_app_events: { column: 'due_at', find: () => findNextChatAppEventAt(database) },
  chat_templates: { column: 'due_at', find: () => findNextTemplateAt(database, begin) },
  erasures: { column: 'due_at', find: () => findNextErasureAt(database, begin) },
  contact_erasures: { column: 'due_at', find: () => findNextErasureAt(database, begin) },
  campaigns: {
    column: 'scheduled_at',
    more: `, status = 'scheduled', deleted_at = null`,
    find: () => findNextScheduledAt(database, begin),
  },
  contact_properties: {
    column: 'deleted_at',
    more: ', forgotten_at = null',
    find: () => findNextDeletedAt(database, begin),
  },
  provider_events: {
    column: 'due_at',
    more: `, channel = 'sms'`,
    find: () => findNextProviderEventAt(database, ['sms']),
  },
};

test('what is overdue of an organization that is being deleted is not what is due next', async () => {
  const names = Object.keys(lookUps).map((name) => name.split(' ')[0]!);
  const tables = (await listTables(database)).filter(({ name }) => names.includes(name));
  await fillTables(database, tables, 3);
  const overdue = new Date('2026-01-01T00:00:00Z');
  const later = new Date('2026-01-02T00:00:00Z');
  for (const [name, { column, more = '' }] of Object.entries(lookUps)) {
    const [table = ''] = name.split(' ');
    const of = table === 'provider_events' ? 'turn_of' : 'organization_id';
    if (table === 'provider_events')
      await run(
        `update provider_events set turn_of = case when get_byte(uuid_send(id), 15) = 1 then $1::uuid else $2 end`,
        [acme, rival],
      );
    await run(`update ${table} set ${column} = case ${of} when $1 then $2::timestamptz else $3 end${more}`, [
      acme,
      overdue,
      later,
    ]);
  }
  const findAll = async () => {
    const found: Record<string, Date | null> = {};
    for (const [name, { find }] of Object.entries(lookUps)) found[name] = await find();
    return found;
  };
  const each = (at: Date) => Object.fromEntries(Object.keys(lookUps).map((name) => [name, at]));
  expect(await findAll()).toEqual(each(overdue));
  await run(`update organizations set deletion = 'requested' where id = $1`, [acme]);
  expect(await findAll()).toEqual(each(later));
});
