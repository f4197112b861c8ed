import { expect, test } from 'vitest';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { type Database, type Transaction, unpreparedStatement } from '../../platform/postgres/database.ts';
import { emailChannel } from '../../email/channel.ts';
import { textOfKey } from '../keys.ts';
import { changeRecipients } from './recipients.ts';
import type { ChangedRecipient } from './store.ts';

const newId = createShuffledIds(systemClock);
let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

/** An email to so many, of which nothing is known yet. */
async function insertMessage(count: number): Promise<ChangedRecipient[]> {
  const key = { organizationId: newId(), messageId: newId() };
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'transactional', 'a@postillion.test', '{}', $3, now(), now())
       )
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       select $1, $2, ordinal, 'to', 'a@example.com', 'a@example.com', now()
       from generate_series(0, $3::integer - 1) ordinal`,
    ),
    [key.organizationId, key.messageId, count],
  );
  return Array.from({ length: count }, (_, ordinal) => ({
    ...key,
    ordinal,
    contactId: null,
    addressKey: 'a@example.com',
    happened: [],
  }));
}

const at = new Date();

function deliver(
  recipients: readonly ChangedRecipient[],
  alongside: (changed: ReadonlySet<string>, transaction: Transaction) => Promise<unknown>[],
) {
  return database.transactionByIndex((transaction) =>
    changeRecipients(
      transaction,
      { newId },
      {
        at,
        write: {
          kind: 'reports',
          reports: recipients.map((job) => ({ job, status: 'delivered', failure: null })),
        },
        channelOf: () => emailChannel,
        told: { recipients: [] },
        alongside: (changed) => alongside(changed, transaction),
        isLast: true,
      },
    ),
  );
}

async function statusOf({ messageId }: ChangedRecipient): Promise<unknown> {
  const rows = await database.rows(unpreparedStatement('select status from messages where id = $1'), [
    messageId,
  ]);
  return rows;
}

test('what is sent alongside is told what was changed, once, and nothing of what was as it should be', async () => {
  const recipients = await insertMessage(2);
  const told: string[][] = [];
  const alongside = (changed: ReadonlySet<string>) => {
    told.push([...changed]);
    return [];
  };
  await deliver(recipients.slice(0, 1), alongside);
  await deliver(recipients, alongside);
  await deliver(recipients, alongside);
  expect(told).toEqual([[textOfKey(recipients[0]!)], [textOfKey(recipients[1]!)], []]);
  expect(await statusOf(recipients[0]!)).toEqual([{ status: 'delivered' }]);
});

test('if a statement that is sent alongside fails, nothing happens, although the commit was sent with it', async () => {
  const recipients = await insertMessage(1);
  const failing = deliver(recipients, (_changed, transaction) => [
    transaction.rows(unpreparedStatement('select 1 / 0')),
  ]);
  await expect(failing).rejects.toThrow('division by zero');
  expect(await statusOf(recipients[0]!)).toEqual([{ status: 'queued' }]);
});
