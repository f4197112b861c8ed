/** Reports of providers on texts, in large numbers. */
import { afterEach, describe, expect, test } from 'vitest';
import type { SmsReceipt } from '../../src/channels/sms/sms.ts';
import { createSmsIntake, startSmsEvents } from '../../src/sms/sms.ts';
import { keepProviderIds, uncertainId } from '../../src/messages/recipients/provider-ids-store.ts';
import { startProviderEvents } from '../../src/messages/messages.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import type { RunningChore } from '../../src/platform/queue/chore.ts';
import { createIntake } from '../../src/roles/providers/sms.ts';
import { messageChannels } from '../support/channels.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createManualClock } from '../support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import type { RecipientKey } from '../../src/messages/keys.ts';

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

type ApplyTools = Parameters<typeof startSmsEvents>[0] & Parameters<typeof startProviderEvents>[0];

/** Texts that came in, and receipts. */
function apply(
  server: TestServer,
  { answersKeywords = false, ...more }: Partial<ApplyTools> = {},
): RunningChore {
  const nothing = () => undefined;
  const tools = {
    ...server.installation,
    channels: messageChannels,
    answersKeywords,
    onCampaignProgress: nothing,
    onContactsChanged: nothing,
    onQueued: nothing,
    ...more,
  };
  const chores = [startSmsEvents(tools), startProviderEvents(tools)];
  const chore = {
    wake: () => {
      for (const { wake } of chores) wake();
    },
    stop: async () => {
      await Promise.all(chores.map(({ stop }) => stop()));
    },
  };
  endings.push(chore.stop);
  return chore;
}

/** Events that were stored and are not applied yet. */
const everythingTold = `
  select 'inbound' as kind, attempts from sms_events
  union all
  select 'receipt', attempts from provider_events`;

/** A message of a campaign to so many numbers, for which receipts may come. */
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
  const { organizationId, installation } = server;
  const receipts = 1_500;
  const messageId = await insertTexts(server, receipts);
  const intake = createIntake(installation);
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
  const countDelivered = async () => {
    const [row] = await rowsOf<{ count: number }>(
      server,
      `select count(*) from recipients where organization_id = $1 and status = 'delivered'`,
      [organizationId],
    );
    return row!.count;
  };
  await installation.database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement('lock table recipients in share mode'));
    apply(server);
    await eventually(
      () => rowsOf(server, 'select from suppressions where organization_id = $1', [organizationId]),
      (suppressions) => suppressions.length === 1,
    );
    expect(await countDelivered()).toBe(0);
  });
  await eventually(
    () => rowsOf(server, everythingTold),
    (events) => events.length === 0,
  );
  expect(await countDelivered()).toBe(receipts);
});

test('seven receipts, one of which cannot be applied, and five texts are applied two at a time, each once', async () => {
  const server = await arrange();
  const { organizationId, installation } = server;
  const itemsMax = 2;
  const other = await createSender(installation, 'other.example');
  await addApprovedSender(server, '+14155550199', other.organizationId);
  // More receipts than texts that come in, so that only receipts are left at last.
  const own = await insertTexts(server, 6);
  const beside = await insertTexts({ ...server, organizationId: other.organizationId }, 1);
  let storedAtOnce = 0;
  const { database } = installation;
  const intake = createSmsIntake({
    ...installation,
    database: {
      ...database,
      rows: (statement, values) => {
        if (statement.name === 'sms_events_insert' || statement.name === 'provider_events_insert')
          storedAtOnce = Math.max(storedAtOnce, (values?.[0] as string[]).length); // The ids.
        return database.rows(statement, values);
      },
    },
    provider: 'sandbox',
    onReported: () => undefined,
    onCameIn: () => undefined,
    storedMax: itemsMax,
  });
  await Promise.all([
    ...[0, 1, 2, 3, 4, 5].map((ordinal) =>
      intake.takeReceipt({ ...delivered, reference: { organizationId, messageId: own, ordinal } }),
    ),
    intake.takeReceipt({
      ...delivered,
      reference: { organizationId: other.organizationId, messageId: beside, ordinal: 0 },
    }),
    ...[0, 1, 2, 3, 4].map((number) =>
      intake.takeInbound({
        providerMessageId: null,
        from: `+1415560000${number}`,
        senderName: number === 4 ? '14155550199' : '14155550100',
        text: 'STOP',
      }),
    ),
  ]);
  expect(storedAtOnce).toBe(itemsMax);
  // As a newer release might have written it: nothing can be made of it, nor of those that are taken with it.
  await rowsOf(
    server,
    `update provider_events set report = '{"reference": {"organizationId": "none"}, "status": "delivered"}'
     where id = (select id from provider_events order by id limit 1)`,
  );
  const clock = createManualClock(installation.clock.nowMs() + 60_000);
  apply(server, {
    clock,
    appliedMax: itemsMax,
    database: { ...database, connectAlone: () => Promise.reject(new Error('nobody notifies')) },
  });
  // Both chores sleep, and so do their next attempts to listen: all events are applied without a notification.
  await clock.whenWaiting(4);
  expect(await rowsOf(server, everythingTold)).toEqual([{ kind: 'receipt', attempts: 1 }]);
  const counted = await rowsOf(
    server,
    `select organization_id, count(*) as delivered from recipients
     where status = 'delivered' and organization_id = any ($1::uuid[]) group by 1 order by 1`,
    [[organizationId, other.organizationId]],
  );
  expect(counted).toEqual([
    { organization_id: organizationId, delivered: 5 },
    { organization_id: other.organizationId, delivered: 1 },
  ]);
  const stopped = await rowsOf(
    server,
    `select organization_id, count(*) as stopped from suppressions
     where channel = 'sms' and organization_id = any ($1::uuid[]) group by 1 order by 1`,
    [[organizationId, other.organizationId]],
  );
  expect(stopped).toEqual([
    { organization_id: organizationId, stopped: 4 },
    { organization_id: other.organizationId, stopped: 1 },
  ]);
});

test('more events than memory is meant for are refused while the database is slow, and taken again after it', async () => {
  const server = await arrange();
  const intake = createSmsIntake({
    ...server.installation,
    provider: 'sandbox',
    onReported: () => undefined,
    onCameIn: () => undefined,
    waitingMax: 2,
  });
  for (let round = 1; round <= 2; round += 1) {
    const takes: Promise<void>[] = [];
    await server.installation.database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement('lock table provider_events in share mode'));
      for (let count = 1; count <= 2; count += 1) takes.push(intake.takeReceipt(delivered));
      await expect(intake.takeReceipt(delivered)).rejects.toThrow('too many events');
    });
    await Promise.all(takes);
  }
  await intake.takeReceipt(delivered);
  expect(await rowsOf(server, 'select count(*) from provider_events')).toEqual([{ count: 5 }]);
});

test('STOP that is reported to two nodes at once is answered once, and keeps neither from receipts', async () => {
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
      () => rowsOf(server, 'select from provider_events where attempts > 0'),
      (lookedAt) => lookedAt.length === 1,
    );
  });
  await eventually(
    () => rowsOf(server, 'select from sms_events'),
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

test('STOP and START that wait together are obeyed in the order in which they came', async () => {
  const server = await arrange();
  const { organizationId: other } = await createSender(server.installation, 'other.example');
  await addApprovedSender(server, '+14155550199', other);
  const intake = createIntake(server.installation);
  const say = (from: string, senderName: string, text: string) =>
    intake.takeInbound({ providerMessageId: null, from, senderName, text });
  const [back, away] = ['+14155600001', '+14155600002'];
  await say(back, '14155550100', 'STOP');
  await say(away, '14155550100', 'START');
  await say(back, '14155550199', 'START');
  await say(back, '14155550100', 'START');
  await say(away, '14155550100', 'STOP');
  await say(back, '14155550199', 'STOP');
  apply(server);
  await eventually(
    () => rowsOf(server, everythingTold),
    (events) => events.length === 0,
  );
  const stopped = await rowsOf(
    server,
    `select organization_id, address from suppressions
     where organization_id = any ($1) order by organization_id`,
    [[server.organizationId, other]],
  );
  expect(stopped).toEqual([
    { organization_id: server.organizationId, address: away },
    { organization_id: other, address: back },
  ]);
});

test('an answer to a keyword wakes the workers, and counts towards the quota', async () => {
  const server = await arrange();
  let told = 0;
  const chore = apply(server, {
    answersKeywords: true,
    onQueued: () => {
      told += 1;
    },
  });
  await createIntake(server.installation).takeInbound({
    providerMessageId: null,
    from: '+14155600007',
    senderName: '14155550100',
    text: 'STOP',
  });
  chore.wake();
  await eventually(
    () => rowsOf(server, everythingTold),
    (events) => events.length === 0,
  );
  // It wakes them after the commit.
  await chore.stop();
  expect(told).toBe(1);
  expect(
    await rowsOf(server, 'select used from quota_usage where organization_id = $1', [server.organizationId]),
  ).toEqual([{ used: 1 }]);
});

/** A text by Acme that was handed off, or whose hand-off was cut off. */
async function insertText(
  { installation, ...server }: TestServer,
  {
    to,
    organizationId = server.organizationId,
    isCutOff = false,
  }: { to: string; organizationId?: string; isCutOff?: boolean },
): Promise<RecipientKey> {
  const messageId = installation.newId();
  await installation.database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'sms', 'transactional', 'Acme', '{}', 1, now(), now())
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status_at, handed_off_at, uncertain)
       values ($1, $2, 0, 'to', $3, $3, now(), now(), $4)`,
    ),
    [organizationId, messageId, to, isCutOff],
  );
  const job = { organizationId, messageId, ordinal: 0 };
  if (isCutOff) await know(installation, job, uncertainId(installation.secrets, to));
  return job;
}

/** Stores the id under which the provider knows a text. */
function know(
  { database }: TestServer['installation'],
  job: RecipientKey,
  providerMessageId: string,
): Promise<void> {
  return keepProviderIds(database, [{ job, channel: 'sms', providerMessageId }], new Date());
}

describe('a receipt', () => {
  const [ann, bob] = ['+14155600001', '+14155600002'];

  /** With another organization that has the same name. */
  async function arrangeTexts() {
    const server = await arrange();
    const { installation } = server;
    const { organizationId: other } = await createSender(installation, 'namesake.example');
    await addApprovedSender(server, 'Acme');
    await addApprovedSender(server, 'Acme', other);
    const intake = createIntake(installation);
    let nowMs = installation.clock.nowMs();
    return {
      server,
      installation,
      other,
      take: (more: Partial<SmsReceipt>) => intake.takeReceipt({ ...delivered, senderName: 'Acme', ...more }),
      /** Everything that is due a minute later is looked at, once; returns the attempts of what is left. */
      look: async () => {
        nowMs += 60_000;
        const clock = createManualClock(nowMs);
        const chore = apply(server, {
          clock,
          database: {
            ...installation.database,
            connectAlone: () => Promise.reject(new Error('nobody notifies')),
          },
        });
        // Both chores sleep, and so do their next attempts to listen.
        await clock.whenWaiting(4);
        await chore.stop();
        const left = await rowsOf<{ attempts: number }>(server, everythingTold);
        return left.map(({ attempts }) => attempts);
      },
      areDelivered: async (...jobs: readonly RecipientKey[]) => {
        const rows = await rowsOf<{ message_id: string }>(
          server,
          `select message_id from recipients where status = 'delivered' and message_id = any ($1)`,
          [jobs.map(({ messageId }) => messageId)],
        );
        return jobs.map(({ messageId }) => rows.some((row) => row.message_id === messageId));
      },
    };
  }

  test('that is faster than the outcome of its text waits for it, and settles no other to the number', async () => {
    const { server, installation, take, look, areDelivered } = await arrangeTexts();
    const cutOff = await insertText(server, { to: ann, isCutOff: true });
    await take({ providerMessageId: 'fast', to: ann });
    expect(await look()).toEqual([1]);
    expect(await areDelivered(cutOff)).toEqual([false]);

    const late = await insertText(server, { to: ann });
    await know(installation, late, 'fast');
    expect(await look()).toEqual([]);
    expect(await areDelivered(cutOff, late)).toEqual([false, true]);
  });

  test('is of the last text with its id, and of none if that went to another number', async () => {
    const { server, installation, other, take, look, areDelivered } = await arrangeTexts();
    const older = await insertText(server, { to: ann });
    const newer = await insertText(server, { to: bob, organizationId: other });
    await know(installation, older, 'again');
    await know(installation, newer, 'again');
    await keepProviderIds(
      installation.database,
      [newer, older].map((job) => ({ job, channel: 'sms', providerMessageId: 'at once' })),
      new Date(),
    );
    for (const providerMessageId of ['again', 'at once']) {
      await take({ providerMessageId, to: ann });
      expect([providerMessageId, await look()]).toEqual([providerMessageId, [1]]);
      expect(await areDelivered(older, newer)).toEqual([false, false]);
      await rowsOf(server, 'delete from provider_events');

      await take({ providerMessageId, to: bob });
      expect([providerMessageId, await look()]).toEqual([providerMessageId, []]);
      expect(await areDelivered(older, newer)).toEqual([false, true]);
      await rowsOf(server, `update recipients set status = 'sent' where message_id = $1`, [newer.messageId]);
    }
  });

  test('that names its text and an id assigns later receipts with that id to the text', async () => {
    const { server, other, take, look, areDelivered } = await arrangeTexts();
    const mine = await insertText(server, { to: ann, isCutOff: true });
    const theirs = await insertText(server, { to: ann, organizationId: other, isCutOff: true });
    await take({ providerMessageId: 'late', reference: mine, status: 'sent', to: ann });
    expect(await look()).toEqual([]);
    await take({ providerMessageId: 'late', to: ann });
    expect(await look()).toEqual([]);
    expect(await areDelivered(mine, theirs)).toEqual([true, false]);
  });
});

describe('a receipt under an unknown id', () => {
  const to = '+14155600000';

  const insertCutOff = async (server: TestServer, organizationId = server.organizationId) =>
    (await insertText(server, { to, organizationId, isCutOff: true })).messageId;

  /** Of Acme to that number, and old enough to be matched by these. */
  async function takeReceipt(server: TestServer, providerMessageId: string): Promise<void> {
    await createIntake(server.installation).takeReceipt({
      ...delivered,
      providerMessageId,
      to,
      senderName: 'Acme',
    });
    await rowsOf(server, 'update provider_events set attempts = 3');
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
        () => rowsOf<{ attempts: number }>(server, 'select attempts from provider_events'),
        (events) => events.length > 0 && events.every((event) => event.attempts === attempts),
      );
      await rowsOf(server, 'delete from provider_events');
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

    // For texts that were handed off so long ago, no receipts come any more.
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
