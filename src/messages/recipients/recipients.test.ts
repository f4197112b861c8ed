import { expect, test } from 'vitest';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { emailChannel } from '../../email/channel.ts';
import { changeRecipients } from './recipients.ts';
import { type ChangedRecipient, raiseStatuses } from './store.ts';

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
  }));
}

const at = new Date();

function deliver(recipients: readonly ChangedRecipient[], outbox: (changed: unknown) => Promise<void>) {
  return database.transactionByIndex((transaction) =>
    changeRecipients(
      transaction,
      { newId, outbox: (_transaction, changed) => outbox(changed) },
      {
        at,
        write: () =>
          raiseStatuses(
            transaction,
            recipients.map((job) => ({ job, status: 'delivered', failure: null })),
            { at },
          ),
        channelOf: () => emailChannel,
        told: { recipients: [] },
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

test('the outbox is handed what was changed, once, and nothing of what was as it should be', async () => {
  const recipients = await insertMessage(2);
  const told: unknown[] = [];
  const outbox = (changed: unknown) => {
    told.push(changed);
    return Promise.resolve();
  };
  await deliver(recipients.slice(0, 1), outbox);
  await deliver(recipients, outbox);
  await deliver(recipients, outbox);
  expect(told).toEqual([[recipients[0]], [recipients[1]]]);
  expect(await statusOf(recipients[0]!)).toEqual([{ status: 'delivered' }]);
});

test('what the outbox cannot take does not happen', async () => {
  const recipients = await insertMessage(1);
  const failing = deliver(recipients, () => Promise.reject(new Error('the outbox is full')));
  await expect(failing).rejects.toThrow('the outbox is full');
  expect(await statusOf(recipients[0]!)).toEqual([{ status: 'queued' }]);
});
