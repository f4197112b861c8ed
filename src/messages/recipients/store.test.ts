import { expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { smsChannel } from '../../sms/channel.ts';
import { dateOf, systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { findAddressKeys, findAskedFor } from './store.ts';

const newId = createIds(systemClock);
const organizationId = newId();
const otherId = newId();

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

/** The job of a text to a number, or of what answers one of its texts. */
async function insertJob(
  owner: string,
  messageId: string,
  field: 'to' | 'answer',
  number: string,
): Promise<Job> {
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       values ($1, $2, 0, $3, $4, $4, now())`,
    ),
    [owner, messageId, field, number],
  );
  return {
    organizationId: owner,
    messageId,
    ordinal: 0,
    channel: smsChannel,
    policy: smsChannel.policyOf({ isCampaign: false }),
    isCampaign: false,
    address: number,
    addressKey: number,
    ...untried,
    acceptedAt: dateOf(systemClock.nowMs()),
  };
}

test('those are found that answer a text, and addresses, of the organization that is named', async () => {
  const [first, second] = [newId(), newId()];
  const text = await insertJob(organizationId, first, 'to', '+491');
  const answer = await insertJob(organizationId, second, 'answer', '+492');
  // Under the same ids, and the other way about.
  const othersAnswer = await insertJob(otherId, first, 'answer', '+493');
  const othersText = await insertJob(otherId, second, 'to', '+494');
  const gone = { ...text, messageId: newId() };
  expect(await findAskedFor(database, [], null)).toEqual(new Map());
  expect(await findAskedFor(database, [gone, text, answer], null)).toEqual(new Map([[answer, 'answer']]));
  expect(await findAskedFor(database, [othersText, othersAnswer], null)).toEqual(
    new Map([[othersAnswer, 'answer']]),
  );
  const keys = await findAddressKeys(database, [answer, gone, text]);
  expect(new Map(keys.map(({ messageId, addressKey }) => [messageId, addressKey]))).toEqual(
    new Map([
      [first, '+491'],
      [second, '+492'],
    ]),
  );
});
