/** What providers tell of texts, when there is a lot of it. */
import { afterEach, expect, test } from 'vitest';
import { startSmsEvents } from '../../src/messages/messages.ts';
import { createIntake } from '../../src/roles/sms-provider.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
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

function apply(server: TestServer): void {
  const nothing = () => undefined;
  const chore = startSmsEvents({
    ...server.installation,
    random: Math.random,
    answersKeywords: false,
    onCampaignProgress: nothing,
    onContactsChanged: nothing,
    onQueued: nothing,
  });
  endings.push(chore.stop);
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
      intake.takeReceipt({
        providerMessageId: null,
        reference: { organizationId, messageId, ordinal },
        to: null,
        senderName: null,
        status: 'delivered',
        failure: null,
        diagnostic: null,
      }),
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
    `select count(*) as delivered, min(r.status_at) >= (select created_at from suppressions) as is_first
     from recipients r
     where r.status = 'delivered'`,
  );
  expect(row).toEqual({ delivered: receipts, is_first: true });
});
