import { expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Connection, type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { stepBytesMax } from '../../platform/steps.ts';
import { loadDeliverableMessages, loadSealedAttachments } from './content-store.ts';

const newId = createIds(systemClock);
const organizationId = newId();
const otherId = newId();

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** `content` null: it was erased. */
async function insertMessage(
  owner: string,
  messageId: string,
  {
    content = '{"text": "Hello"}',
    isCampaign = false,
  }: { content?: string | null; isCampaign?: boolean } = {},
): Promise<void> {
  await run(
    `insert into messages
       (organization_id, id, channel, class, sender, subject, category, details, recipient_count, created_at, updated_at)
     values ($1, $2, 'email', $3, 'a@postillion.test', 'News', 'weekly', '{"fromName": "A"}', 2, now(), now())`,
    [owner, messageId, isCampaign ? 'campaign' : 'transactional'],
  );
  if (content !== null)
    await run('insert into message_contents (organization_id, message_id, content) values ($1, $2, $3)', [
      owner,
      messageId,
      content,
    ]);
}

async function insertAttachments(owner: string, messageId: string, sealed: readonly Buffer[]): Promise<void> {
  await run(
    `insert into attachment_contents (organization_id, message_id, ordinal, sealed)
     select $1, $2, position - 1, sealed from unnest($3::bytea[]) with ordinality as given (sealed, position)`,
    [owner, messageId, sealed],
  );
}

test('a message is loaded with its content and without a word of a message that has its id elsewhere', async () => {
  const [single, campaign, erased] = [newId(), newId(), newId()];
  await insertMessage(organizationId, single);
  await insertMessage(organizationId, campaign, { isCampaign: true });
  await insertMessage(organizationId, erased, { content: null });
  await insertMessage(otherId, single, { content: '{"text": "Of the other"}' });
  const wanted = [single, campaign, erased, newId()].map((messageId) => ({ organizationId, messageId }));
  const loaded = await loadDeliverableMessages(database, wanted);
  const others = await loadDeliverableMessages(database, [{ organizationId: otherId, messageId: single }]);
  expect(others).toMatchObject([{ organizationId: otherId, content: { text: 'Of the other' } }]);
  const message = {
    organizationId,
    messageId: single,
    sender: 'a@postillion.test',
    subject: 'News',
    category: 'weekly',
    details: { fromName: 'A' },
    content: { text: 'Hello' },
    recipientCount: 2,
    isPersonalised: false,
    createdAt: expect.any(Date) as Date,
  };
  expect(loaded.toSorted((a, b) => (a.messageId < b.messageId ? -1 : 1))).toEqual([
    message,
    { ...message, messageId: campaign, isPersonalised: true },
  ]);
});

/** Of bytes that tell their place. */
function filled(length: number): Buffer {
  return Buffer.from(Uint8Array.from({ length }, (_, index) => (index * 31 + (index >> 8)) % 251));
}

test('attachments are loaded in their order and to the byte, however many parts they are read in', async () => {
  const messageId = newId();
  const sealed = [2 * stepBytesMax + 1, 0, stepBytesMax, 10, stepBytesMax + 1].map(filled);
  await insertAttachments(organizationId, messageId, sealed);
  await insertAttachments(otherId, messageId, [Buffer.from('of the other')]);
  const loaded = await loadSealedAttachments(database, { organizationId, messageId });
  expect(loaded.map(({ length }) => length)).toEqual(sealed.map(({ length }) => length));
  expect(loaded.every((attachment, index) => attachment.equals(sealed[index]!))).toBe(true);
});

test('of attachments that are deleted while they are read, what was whole before is returned', async () => {
  const messageId = newId();
  const sealed = [filled(10), filled(2 * stepBytesMax), filled(10)];
  await insertAttachments(organizationId, messageId, sealed);
  let asked = 0;
  const deleting: Connection = {
    ...database,
    rows: async (statement, values) => {
      asked += 1;
      // The beginnings of all have been read.
      if (asked === 2) await run('delete from attachment_contents where message_id = $1', [messageId]);
      return database.rows(statement, values);
    },
  };
  expect(await loadSealedAttachments(deleting, { organizationId, messageId })).toEqual([sealed[0]]);
});
