/** What providers tell of texts, when there is a lot of it. */
import { afterEach, describe, expect, test } from 'vitest';
import { startSmsEvents } from '../../src/messages/messages.ts';
import { keepProviderIds, uncertainId } from '../../src/messages/provider-ids.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createIntake } from '../../src/roles/sms-provider.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

/** Without a worker, so that a test chooses when anything is applied. */
async function arrange(): Promise<TestServer> {
  const server = await startTestServer();
  endings.push(server.stop);
  await addApprovedSender(server, '+14155550100');
  return server;
}

const delivered = {
  providerMessageId: null,
  reference: null,
  to: null,
  senderName: null,
  status: 'delivered',
  failure: null,
  diagnostic: null,
} as const;

function apply(server: TestServer, { answersKeywords = false } = {}): ReturnType<typeof startSmsEvents> {
  const nothing = () => undefined;
  const chore = startSmsEvents({
    ...server.installation,
    random: Math.random,
    answersKeywords,
    onCampaignProgress: nothing,
    onContactsChanged: nothing,
    onQueued: nothing,
  });
  endings.push(chore.stop);
  return chore;
}

/** A message of a campaign to so many numbers, of which receipts may be told. */
async function insertTexts(server: TestServer, count: number): Promise<string> {
  const { installation, organizationId } = server;
  const messageId = installation.newId();
  await rowsOf(
    server,
    `with message as (
       insert into messages
         (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'sms', 'campaign', '14155550100', '{}', $3, now(), now())
     )
     insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at, handed_off_at)
     select $1, $2, ordinal, 'to', '+1415' || 5600000 + ordinal, '+1415' || 5600000 + ordinal, gen_random_uuid(),
       now(), now()
     from generate_series(0, $3::integer - 1) ordinal`,
    [organizationId, messageId, count],
  );
  return messageId;
}

test('STOP does not wait behind the receipts of a campaign', async () => {
  const server = await arrange();
  const { organizationId } = server;
  const receipts = 1_500;
  const messageId = await insertTexts(server, receipts);
  const intake = createIntake(server.installation);
  await Promise.all(
    Array.from({ length: receipts }, (_, ordinal) =>
      intake.takeReceipt({ ...delivered, reference: { organizationId, messageId, ordinal } }),
    ),
  );
  await intake.takeInbound({
    providerMessageId: null,
    from: '+14155600007',
    senderName: '14155550100',
    text: 'STOP',
  });
  apply(server);
  await eventually(
    () => rowsOf(server, 'select from sms_events'),
    (events) => events.length === 0,
  );
  const [row] = await rowsOf<{ delivered: number; is_first: boolean }>(
    server,
    `select count(*) as delivered,
       min(r.status_at) >= (select created_at from suppressions where organization_id = $1) as is_first
     from recipients r
     where r.organization_id = $1 and r.status = 'delivered'`,
    [server.organizationId],
  );
  expect(row).toEqual({ delivered: receipts, is_first: true });
});

test('STOP that is told to two nodes at once is answered once, and keeps neither from receipts', async () => {
  const server = await arrange();
  const intake = createIntake(server.installation);
  const stop = () =>
    intake.takeInbound({
      providerMessageId: null,
      from: '+14155600007',
      senderName: '14155550100',
      text: 'STOP',
    });
  await stop();
  await server.installation.database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement('lock table messages in share mode'));
    apply(server, { answersKeywords: true });
    await eventually(
      () => rowsOf(server, `select from pg_locks where not granted and relation = 'messages'::regclass`),
      (waiting) => waiting.length === 1,
    );
    await stop();
    await intake.takeReceipt({ ...delivered, providerMessageId: 'unknown' });
    apply(server, { answersKeywords: true });
    await eventually(
      () => rowsOf(server, `select from sms_events where kind = 'receipt' and attempts > 0`),
      (lookedAt) => lookedAt.length === 1,
    );
  });
  await eventually(
    () => rowsOf(server, `select from sms_events where kind = 'inbound'`),
    (events) => events.length === 0,
  );
  const own = [server.organizationId];
  expect(
    await rowsOf(server, `select from recipients where organization_id = $1 and field = 'answer'`, own),
  ).toHaveLength(1);
  expect(await rowsOf(server, 'select used from quota_usage where organization_id = $1', own)).toEqual([
    { used: 1 },
  ]);
});

describe('a receipt under an id that nobody knows', () => {
  const to = '+14155600000';

  /** A text by Acme, of whose hand-off nobody knows whether it took place. */
  async function insertCutOff(server: TestServer, organizationId = server.organizationId): Promise<string> {
    const { database, newId, secrets } = server.installation;
    const messageId = newId();
    await rowsOf(
      server,
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'sms', 'transactional', 'Acme', '{}', 1, now(), now())
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status_at, handed_off_at, uncertain)
       values ($1, $2, 0, 'to', $3, $3, now(), now(), true)`,
      [organizationId, messageId, to],
    );
    await keepProviderIds(
      database,
      [
        {
          job: { organizationId, messageId, ordinal: 0 },
          channel: 'sms',
          providerMessageId: uncertainId(secrets, to),
        },
      ],
      new Date(),
    );
    return messageId;
  }

  /** Of Acme to that number, and old enough to be matched by these. */
  async function takeReceipt(server: TestServer, providerMessageId: string): Promise<void> {
    await createIntake(server.installation).takeReceipt({
      ...delivered,
      providerMessageId,
      to,
      senderName: 'Acme',
    });
    await rowsOf(server, 'update sms_events set attempts = 3');
  }

  const areUncertain = async (server: TestServer, messageIds: readonly string[]) => {
    const rows = await rowsOf<{ message_id: string; uncertain: boolean }>(
      server,
      'select message_id, uncertain from recipients where message_id = any ($1)',
      [messageIds],
    );
    return messageIds.map((id) => rows.find((row) => row.message_id === id)?.uncertain);
  };

  test('settles none of two that were cut off, of two organizations or of one, and the only one', async () => {
    const server = await arrange();
    const { organizationId: other } = await createSender(server.installation, 'namesake.example');
    await addApprovedSender(server, 'Acme');
    await addApprovedSender(server, 'Acme', other);
    const looksAgain = async (attempts: number) => {
      await eventually(
        () => rowsOf<{ attempts: number }>(server, 'select attempts from sms_events'),
        (events) => events.length > 0 && events.every((event) => event.attempts === attempts),
      );
      await rowsOf(server, 'delete from sms_events');
    };
    const [mine, theirs] = [await insertCutOff(server), await insertCutOff(server, other)];
    await takeReceipt(server, 'either-1');
    const chore = apply(server);
    await looksAgain(4);
    expect(await areUncertain(server, [mine, theirs])).toEqual([true, true]);

    await rowsOf(server, 'update recipients set uncertain = false where message_id = $1', [theirs]);
    const again = await insertCutOff(server);
    await takeReceipt(server, 'either-2');
    chore.wake();
    await looksAgain(4);
    expect(await areUncertain(server, [mine, again])).toEqual([true, true]);

    // What was handed off so long ago is told of no more.
    await rowsOf(
      server,
      `update recipients set handed_off_at = now() - interval '9 days' where message_id = $1`,
      [again],
    );
    await takeReceipt(server, 'mine-1');
    chore.wake();
    await eventually(
      () => areUncertain(server, [mine, again]),
      ([isUncertain]) => isUncertain === false,
    );
    expect(await areUncertain(server, [mine, again])).toEqual([false, true]);
  });
});
