import { expect, test } from 'vitest';
import {
  type Database,
  type Transaction,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { findTraces } from './erased-contacts.ts';
import { useTestDatabase } from './test-database.ts';

let database: Database;
useTestDatabase({ connectionsMax: 2, hasNeighbour: true }, (opened) => {
  database = opened.database;
});

const organization = '01a00000-0000-7000-8000-00000000000a';
const contact = '01a00000-0000-7000-8000-000000000001';
const message = '01a00000-0000-7000-8000-000000000002';
const laterMessage = '01b00000-0000-7000-8000-000000000002';

/** Of when `message` is not later, and `laterMessage` is. */
const requestedAt = "to_timestamp(x'01a100000000'::bigint / 1000.0)";

const insertContact = (id = contact) =>
  `insert into contacts (organization_id, id, email, email_key, phone_number, first_name, last_name, name_key, created_at, updated_at)
   values ('${organization}', '${id}', ${id === contact ? "'Ada@Example.com', 'ada@example.com'" : "'ben@example.com', 'ben@example.com'"},
     ${id === contact ? "'+4915112345678'" : 'null'}, 'Augusta', 'King', 'augusta king', now(), now())`;
const insertErasure = (address: string) =>
  `insert into erasures values ('${organization}', '${address}', ${requestedAt}, now())`;
const erase = [
  insertContact(),
  `delete from contacts where organization_id = '${organization}'`,
  insertErasure('ada@example.com'),
  insertErasure('+4915112345678'),
  'delete from erasures',
  'delete from contact_erasures',
];
/** To the contact, from a campaign; `insertRecipient` writes to the address alone. */
const insertOwn = (address: string, variables = 'null') =>
  `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, contact_id, variables, status, status_at)
   values ('${organization}', '${message}', 0, 'to', '${address}', '${address}', '${contact}', ${variables}, 'delivered', now())`;
const moveContact = [
  insertContact(),
  `update contacts set email = 'new@example.com', email_key = 'new@example.com' where organization_id = '${organization}'`,
  ...['delete from contacts', 'delete from contact_erasures'].map(
    (text) => `${text} where organization_id = '${organization}'`,
  ),
];
const insertMessage = (subject: string, id = message) =>
  `insert into messages (organization_id, id, channel, class, sender, subject, details, recipient_count, created_at, updated_at)
   values ('${organization}', '${id}', 'email', 'transactional', 'a@b.test', '${subject}', '{}', 1, now(), now())`;
const insertRecipient = (address: string, more = '', values = '') =>
  `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status, status_at${more})
   values ('${organization}', '${message}', 0, 'to', '${address}', '${address}', 'delivered', now()${values})`;
const eraseRecipient = `update recipients set address = '', address_key = 'x'`;
const keep = (recipient: string, source: string, id = message) =>
  `insert into sandbox_messages (organization_id, id, channel, message_id, ordinal, recipient, sender, outcome, source, created_at)
   values ('${organization}', '${contact}', 'email', '${id}', 0, '${recipient}', 'a@b.test', 'delivered', '${source}', now())`;

/** What is planted, and the places where something is found. */
const planted: readonly { what: string; rows: string[]; found: string[] }[] = [
  { what: 'nothing else', rows: erase, found: [] },
  {
    what: 'a recipient with the address',
    rows: [...erase, insertRecipient('ada@example.com')],
    found: ['recipients.address', 'recipients.address_key'],
  },
  {
    what: 'a recipient with the number',
    rows: [...erase, insertRecipient('+4915112345678')],
    found: ['recipients.address', 'recipients.address_key'],
  },
  {
    what: 'a diagnostic',
    rows: [...erase, insertRecipient('', ', diagnostic', ", '550 <ADA@example.com> unknown'")],
    found: ['recipients.diagnostic'],
  },
  {
    what: 'values in JSON',
    rows: [...erase, insertRecipient('', ', variables', `, '{"first_name": "Augusta"}'`)],
    found: ['recipients.variables'],
  },
  {
    what: 'bytes',
    rows: [...erase, keep('', 'To: Ada@Example.com')],
    found: ['sandbox_messages.source'],
  },
  {
    what: 'digits of the number',
    rows: [
      ...erase,
      `insert into sms_events (id, event, due_at) values ('${message}', '{"from": "4915112345678"}', now())`,
    ],
    found: ['sms_events.event'],
  },
  {
    what: 'a report',
    rows: [
      ...erase,
      `insert into provider_events (id, channel, provider, report, due_at) values ('${message}', 'email', 'sandbox', '{"to": "ada@example.com"}', now())`,
    ],
    found: ['provider_events.report'],
  },
  { what: 'a longer number', rows: [...erase, insertRecipient('+49151123456789')], found: [] },
  { what: 'a longer address', rows: [...erase, insertRecipient('xada@example.com')], found: [] },
  {
    what: 'a name within a word',
    rows: [...erase, insertRecipient('', ', diagnostic', ", 'breaking'")],
    found: [],
  },
  {
    what: 'mail after the deletion',
    rows: [...erase, keep('ada@example.com', 'To: ada@example.com', laterMessage)],
    found: [],
  },
  {
    what: 'what is not erased yet',
    rows: [...erase, insertErasure('ada@example.com'), insertRecipient('ada@example.com')],
    found: [],
  },
  {
    what: 'a subject of what was sent to it',
    rows: [...erase, insertMessage('Dear Augusta'), insertRecipient('ben@example.com'), eraseRecipient],
    found: ['messages.subject'],
  },
  {
    what: 'a subject of what was sent to others',
    rows: [...erase, insertMessage('News of Augusta'), insertRecipient('ben@example.com')],
    found: [],
  },
  {
    what: 'what a campaign sent to a former address',
    rows: [...moveContact, insertOwn('ada@example.com')],
    found: ['recipients.address'],
  },
  {
    what: 'what a campaign sent to a former address, not erased yet',
    rows: [
      ...moveContact,
      insertOwn('ada@example.com'),
      `insert into contact_erasures values ('${organization}', '${contact}')`,
    ],
    found: [],
  },
  {
    what: 'former values',
    rows: [...moveContact, insertOwn('', `'{"first_name": "Ada"}'`)],
    found: ['recipients.variables'],
  },
  {
    what: 'a copy at a former address',
    rows: [...moveContact, insertOwn(''), keep('Ada@example.com', 'Hello')],
    found: ['sandbox_messages.recipient'],
  },
  {
    what: 'mail to a former address, which another contact may have now',
    rows: [...moveContact, insertRecipient('ada@example.com'), keep('ada@example.com', 'Hello')],
    found: [],
  },
  {
    what: 'a name that another contact has',
    rows: [...erase, insertContact(laterMessage), insertRecipient('', ', diagnostic', ", 'Augusta'")],
    found: [],
  },
];

class RolledBack extends Error {
  override readonly name = 'RolledBack';
}

test.each(planted)('beside an erased contact, $what: $found', async ({ rows, found }) => {
  let sentences: string[] = [];
  const rolledBack = database.transaction(async (transaction: Transaction) => {
    for (const text of rows) await transaction.rows(unpreparedStatement(text));
    sentences = await findTraces(transaction);
    throw new RolledBack();
  });
  await expect(rolledBack).rejects.toThrow(RolledBack);
  const places = sentences.map((sentence) => / is readable in ([\w.]+): /.exec(sentence)?.[1]);
  expect([...new Set(places)].sort()).toEqual(found);
});
