import { beforeAll, beforeEach, expect, test } from 'vitest';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { addSuppressions } from '../../audience/audience.ts';
import { systemClock } from '../../platform/clock.ts';
import type { PageRequest } from '../../platform/http/route.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { engagementPages } from './engagement-pages.ts';
import { linkPaths } from './personal-copy.ts';
import { countChangedRecipients } from '../../messages/recipients/counts.ts';
import { sumRecipientCounts } from '../../messages/recipients/counts-store.ts';
import { writeRecipientTokens } from '../../messages/recipients/token.ts';
import { choose, readSubscription, type UnsubscribingTools } from './unsubscribing.ts';
import type { RecipientKey } from '../../messages/keys.ts';

let database: Database;
let tools: UnsubscribingTools;
const newId = createShuffledIds(systemClock);
let organizationId: string;
const oldAddress = 'old@example.com';

useTestDatabase({ connectionsMax: 2, hasNeighbour: true }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  const secrets = createSecrets('a secret of the tests, and of nothing else');
  tools = { database, clock: systemClock, newId, secrets };
});
beforeEach(() => {
  organizationId = newId();
});

function run<Row>(text: string, values: readonly unknown[]): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

async function insertContact(email: string, listId: string | null = null): Promise<string> {
  const id = newId();
  await run(
    `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
     values ($1, $2, $3, $3, now(), now())`,
    [organizationId, id, email],
  );
  if (listId !== null) {
    await run('insert into memberships (organization_id, set_id, contact_id) values ($1, $2, $3)', [
      organizationId,
      listId,
      id,
    ]);
  }
  return id;
}

async function insertList(): Promise<string> {
  const id = newId();
  await run(
    `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
     values ($1, $2, 'list', 'News', 'news', now(), now())`,
    [organizationId, id],
  );
  return id;
}

async function moveContact(id: string, email: string): Promise<void> {
  await run('update contacts set email = $2, email_key = $2 where id = $1', [id, email]);
}

/** A contact got a campaign at the old address, and has another one since. */
async function insertMoved(listId: string | null = null): Promise<{ key: RecipientKey; contactId: string }> {
  const contactId = await insertContact(oldAddress, listId);
  const key = { organizationId, messageId: newId(), ordinal: 0 };
  await run(
    `with message as (
       insert into messages
         (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'email', 'campaign', 'news@postillion.test', $5, 1, now(), now())
     )
     insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, contact_id, status, status_at, handed_off_at)
     values ($1, $2, 0, 'to', $4, $4, $3, 'delivered', now(), now())`,
    [
      organizationId,
      key.messageId,
      contactId,
      oldAddress,
      JSON.stringify({ fromName: null, replyTo: null, attachments: [], listIds: listId ? [listId] : [] }),
    ],
  );
  await moveContact(contactId, 'new@example.com');
  return { key, contactId };
}

async function unsubscribedContacts(): Promise<string[]> {
  const rows = await run<{ id: string }>(
    `select id from contacts where organization_id = $1 and 'email' = any (unsubscribed_channels)`,
    [organizationId],
  );
  return rows.map(({ id }) => id);
}

function suppressions(): Promise<{ address: string; reason: string }[]> {
  return run('select address, reason from suppressions where organization_id = $1', [organizationId]);
}

test('whoever reads the mail of an address that is nobody’s any more speaks for the address alone', async () => {
  const { key } = await insertMoved();
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    isUnsubscribed: false,
    mayResubscribe: false,
  });

  const left = await choose(tools, { recipient: key, contactId: null }, { kind: 'unsubscribe' });
  expect(left?.subscription).toMatchObject({ isUnsubscribed: true, mayResubscribe: true });
  expect(await unsubscribedContacts()).toEqual([]);
  expect(await suppressions()).toEqual([{ address: oldAddress, reason: 'unsubscribe' }]);

  const back = await choose(tools, { recipient: key, contactId: null }, { kind: 'resubscribe' });
  expect(back?.subscription).toMatchObject({ isUnsubscribed: false });
  expect(await suppressions()).toEqual([]);
});

test('whoever has the address by now is unsubscribed, and subscribed again, in place of the one who moved', async () => {
  const { key, contactId } = await insertMoved();
  const holder = await insertContact(oldAddress);

  await choose(tools, { recipient: key, contactId: null }, { kind: 'unsubscribe' });
  expect(await unsubscribedContacts()).toEqual([holder]);
  expect(await suppressions()).toEqual([{ address: oldAddress, reason: 'unsubscribe' }]);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    isUnsubscribed: true,
  });

  // What the one who moved has said of the new address is not taken back.
  await run(`update contacts set unsubscribed_channels = '{email}' where id = $1`, [contactId]);
  await choose(tools, { recipient: key, contactId: null }, { kind: 'resubscribe' });
  expect(await unsubscribedContacts()).toEqual([contactId]);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    isUnsubscribed: false,
  });
});

test('what was said while an address was nobody’s holds for whoever gets it, and can still be taken back', async () => {
  const { key, contactId } = await insertMoved();
  await choose(tools, { recipient: key, contactId: null }, { kind: 'unsubscribe' });
  await moveContact(contactId, oldAddress);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    isUnsubscribed: true,
    mayResubscribe: true,
  });

  await choose(tools, { recipient: key, contactId: null }, { kind: 'resubscribe' });
  expect(await suppressions()).toEqual([]);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    isUnsubscribed: false,
  });
});

test('the lists of the one who moved are neither shown nor left', async () => {
  const listId = await insertList();
  const { key, contactId } = await insertMoved(listId);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({ lists: [] });
  await choose(tools, { recipient: key, contactId: null }, { kind: 'leave_list', listId });
  expect(await run('select contact_id from memberships where set_id = $1', [listId])).toEqual([
    { contact_id: contactId },
  ]);

  await insertContact(oldAddress, listId);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toMatchObject({
    lists: [{ id: listId, name: 'News' }],
  });
  await choose(tools, { recipient: key, contactId: null }, { kind: 'leave_list', listId });
  expect(await run('select contact_id from memberships where set_id = $1', [listId])).toEqual([
    { contact_id: contactId },
  ]);
});

/** A contact that still has the address that a campaign went to. */
async function insertStanding(
  listId: string | null = null,
): Promise<{ key: RecipientKey; contactId: string }> {
  const moved = await insertMoved(listId);
  await moveContact(moved.contactId, oldAddress);
  return moved;
}

test('a link takes back what was said by a link in its own mail, and nothing that was said elsewhere', async () => {
  const { key, contactId } = await insertStanding();
  await run(`update contacts set unsubscribed_channels = '{email}' where id = $1`, [contactId]);
  const address = { organizationId, address: oldAddress };
  await addSuppressions(database, tools, 'email', [{ ...address, reason: 'unsubscribe' }]);

  const asked = await choose(tools, { recipient: key, contactId: null }, { kind: 'resubscribe' });
  expect(asked?.subscription).toMatchObject({ isUnsubscribed: true, mayResubscribe: false });
  expect(await unsubscribedContacts()).toEqual([contactId]);
  expect(await suppressions()).toEqual([{ address: oldAddress, reason: 'unsubscribe' }]);
});

test('whoever unsubscribes counts as that in the statistics of the campaign', async () => {
  const { key } = await insertStanding();
  await choose(tools, { recipient: key, contactId: null }, { kind: 'unsubscribe' });
  await countChangedRecipients(tools);
  const sums = await sumRecipientCounts(database, organizationId, [key.messageId]);
  expect(sums.get(key.messageId)).toMatchObject({ unsubscribed: 1 });
});

test('a link is that of a recipient of a campaign, and of no other message', async () => {
  const { key } = await insertStanding();
  await run('update recipients set contact_id = null where organization_id = $1 and message_id = $2', [
    organizationId,
    key.messageId,
  ]);
  expect(await readSubscription(tools, { recipient: key, contactId: null })).toBeNull();
  expect(await choose(tools, { recipient: key, contactId: null }, { kind: 'unsubscribe' })).toBeNull();
  expect(await unsubscribedContacts()).toEqual([]);
  expect(await suppressions()).toEqual([]);
});

test('whoever leaves a list by a link is looked at again by the segments of the list', async () => {
  const listId = await insertList();
  const { key, contactId } = await insertStanding(listId);
  await choose(tools, { recipient: key, contactId: null }, { kind: 'leave_list', listId });
  expect(
    await run('select contact_ids from contact_changes where organization_id = $1', [organizationId]),
  ).toEqual([{ contact_ids: [contactId] }]);

  // There is nothing new about somebody who leaves it again.
  await choose(tools, { recipient: key, contactId: null }, { kind: 'leave_list', listId });
  expect(await run('select from contact_changes where organization_id = $1', [organizationId])).toHaveLength(
    1,
  );
});

test('of three visits at once to pages for two the third is put off, and all come to their turn', async () => {
  const { key } = await insertStanding();
  const visited = engagementPages({
    ...tools,
    unsubscribesMax: 2,
    recorder: { note: () => undefined, stop: () => Promise.resolve() },
    onContactsChanged: () => undefined,
  }).find(({ method, path }) => method === undefined && path.startsWith(linkPaths.unsubscribe));
  const { unsubscribe: token } = writeRecipientTokens(tools.secrets, key);
  const visit = async () => {
    const request: Partial<PageRequest> = { params: { token }, query: {} };
    return (await visited!.handle(request as PageRequest)).statusCode; // It reads nothing else.
  };
  // Each of those before has given its place back.
  for (const round of [1, 2, 3])
    expect([round, ...(await Promise.all([visit(), visit(), visit()]))]).toEqual([round, 200, 200, 503]);
});
