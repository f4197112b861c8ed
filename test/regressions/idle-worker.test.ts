/** Workers that have no work, or fail at it, must be quiet, and still notice what comes meanwhile. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { startDelivery } from '../../src/messages/messages.ts';
import { createDeliverability, createEmailDelivery } from '../../src/email/email.ts';
import type { EmailProvider } from '../../src/channels/email/email.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';
import { silentLog } from '../../src/platform/log.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  type Statement,
} from '../../src/platform/postgres/database.ts';
import { startChore } from '../../src/platform/queue/chore.ts';
import { createEmailProvider } from '../../src/roles/providers/email.ts';
import { createIds } from '../../src/platform/ids.ts';
import { startSegmentUpkeep } from '../../src/segments/jobs.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { eventually, queueOf, rowsOf, send } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { signHere } from '../support/sign-here.ts';
import { messageChannels } from '../support/channels.ts';
import { notificationChannelOf } from '../../src/platform/queue/wake.ts';

/** More than two claims of 200 cover. */
const organizations = 450;
const hourMs = 3_600_000;

let server: TestServer;
let sandbox: EmailProvider;
let stops: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  sandbox = await createEmailProvider(server.installation);
});
afterAll(() => server.stop());
afterEach(async () => {
  await Promise.all(stops.map((stop) => stop()));
  stops = [];
  await rowsOf(server, 'truncate delivery_queue, hand_offs, contact_changes');
});

/** An organization's job each, due in an hour; these ids come after those of every organization made today. */
async function deferForMany(): Promise<void> {
  await rowsOf(
    server,
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
     select id, id, 0, 'email', 0, now() + interval '1 hour', now(), 100
     from generate_series(1, $1) as n, cast('ffffffff' || lpad(to_hex(n), 24, '0') as uuid) as id`,
    [organizations],
  );
}

type Watcher = {
  onStatement: (text: string, values: readonly unknown[]) => void | Promise<void>;
  onNotified?: () => void;
};

/** The same database, which reports every statement before it runs, and every notification that listeners get. */
function watched({ onStatement, onNotified }: Watcher): Database {
  const { database } = server.installation;
  const watch = (connection: Connection): Connection => ({
    rows: async <Row>(given: Statement<Row>, values: readonly unknown[] = []): Promise<Row[]> => {
      await onStatement(given.text, values);
      return connection.rows(given, values);
    },
  });
  return {
    ...database,
    ...watch(database),
    transaction: (work) => database.transaction((own) => work({ ...own, ...watch(own) })),
    transactionByIndex: (work) => database.transactionByIndex((own) => work({ ...own, ...watch(own) })),
    together: async (organizationIds, statements) => {
      for (const { statement, values } of statements) await onStatement(statement.text, values);
      return database.together(organizationIds, statements);
    },
    connectAlone: async (name) => {
      const client = await database.connectAlone(name);
      if (name === 'postillion-listener' && onNotified !== undefined) client.on('notification', onNotified);
      return client;
    },
  };
}

function deliver(database: Database, clock: ManualClock, emailProvider = sandbox): void {
  const tools = { ...server.installation, database, clock };
  const delivery = startDelivery({
    ...tools,
    random: () => 0.5,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    channels: messageChannels,
    deliveries: [
      createEmailDelivery({
        ...tools,
        emailProvider,
        deliverability: createDeliverability({ ...server.installation, areDomainsLookedUp: false }),
        signText: signHere,
        areBouncesRead: false,
        publicUrl: 'http://127.0.0.1:8025',
      }),
    ],
  });
  stops.push(delivery.stop);
}

const isClaim = (text: string) => text.startsWith('with recursive claimant');
/** A minute ahead, so that what is accepted during a test is due. */
const startClock = () => createManualClock(server.installation.clock.nowMs() + 60_000);

/** Notifies until a listener that may still be connecting has received it. */
async function notifyUntil(hasHeard: () => boolean): Promise<void> {
  await eventually(
    () => rowsOf(server, 'select pg_notify($1, $2)', [notificationChannelOf('deliveries'), '']),
    hasHeard,
  );
}

test('a worker rests when what many organizations have is not due yet', async () => {
  await deferForMany();
  let claims = 0;
  let notifications = 0;
  const clock = startClock();
  const database = watched({
    onStatement: (text) => {
      if (isClaim(text)) claims += 1;
    },
    onNotified: () => {
      notifications += 1;
    },
  });
  deliver(database, clock);
  // A scan is three claims of transactional mail and one of campaigns. One at the beginning, one as listening begins.
  await clock.whenWaiting(1);
  expect(claims).toBeLessThanOrEqual(2 * (3 + 1));
  // After a notification it rests again.
  await notifyUntil(() => notifications > 0);
  await clock.whenWaiting(1);
  const before = claims;
  clock.advance(5_001);
  await clock.whenWaiting(1);
  expect(claims - before).toBeGreaterThan(0);
  expect(claims - before).toBeLessThanOrEqual(2 * (3 + 1));
});

test('what is accepted while a scan is under way is claimed, though its organization was passed', async () => {
  await deferForMany();
  let messageId: string | null = null;
  let notifications = 0;
  const database = watched({
    onStatement: async (text, [, afterOrganizationId]) => {
      const isLaterPart = isClaim(text) && String(afterOrganizationId).startsWith('ffffffff');
      if (!isLaterPart || messageId !== null) return;
      messageId = '';
      messageId = await send(server);
      await notifyUntil(() => notifications > 0);
    },
    onNotified: () => {
      notifications += 1;
    },
  });
  const clock = startClock();
  deliver(database, clock);
  // The clock stands still: the job can be found only by the notification.
  const isFound = ([job]: readonly { claimed_by: number | null }[]) => job?.claimed_by !== null;
  const ask = async () =>
    messageId === null || messageId === '' ? [{ claimed_by: null }] : queueOf(server, messageId);
  await eventually(ask, isFound);
  // Writes that are collected wait for the clock.
  await eventually(
    () => {
      clock.advance(50);
      return ask();
    },
    (jobs) => jobs.length === 0,
  );
});

test('a claim that always fails is tried again after pauses that grow, whatever is accepted meanwhile', async () => {
  let notifications = 0;
  const pauses: number[] = [];
  const manual = startClock();
  const clock: ManualClock = {
    ...manual,
    after: (delayMs, callback) => {
      // Not the time that a worker gives to hand-offs under way when it stops.
      if (delayMs < 60_000) pauses.push(delayMs);
      return manual.after(delayMs, callback);
    },
  };
  const database = watched({
    onStatement: (text) => {
      if (isClaim(text)) throw new DatabaseUnavailableError('the claim fails');
    },
    onNotified: () => {
      notifications += 1;
    },
  });
  deliver(database, clock);
  const untilFailed = (times: number) =>
    eventually(
      () => pauses.length,
      (count) => count === times,
    );
  for (let failures = 1; failures <= 6; failures += 1) {
    await untilFailed(failures);
    const before = notifications;
    await notifyUntil(() => notifications > before);
    expect(pauses).toHaveLength(failures);
    clock.advance(pauses.at(-1) ?? 0);
  }
  await untilFailed(7);
  expect(pauses).toEqual([500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
});

test('a chore that fails is not tried again by a wake, and what is overdue for others is not asked for without pause', async () => {
  const clock = startClock();
  let works = 0;
  const chore = startChore(
    { database: server.installation.database, clock, log: silentLog },
    {
      name: 'checking domains',
      topic: 'sms_events',
      work: () => {
        works += 1;
        if (works === 1) return Promise.reject(new Error('it fails'));
        return Promise.resolve(works === 2 ? new Date(clock.nowMs() - hourMs) : null);
      },
    },
  );
  stops.push(chore.stop);
  await clock.whenWaiting(1);
  chore.wake();
  clock.advance(4_999);
  expect(works).toBe(1);
  clock.advance(1);
  // The wake was remembered; the pause after it is that of what is overdue.
  await eventually(
    () => works,
    (count) => count >= 2,
  );
});

const stepMs = 100;

test('five jobs of a suspended campaign are looked at once in ten seconds, keep no other waiting, and go on when it is lifted', async () => {
  const { installation } = server;
  const other = await createSender(installation, 'other.example');
  const clock = startClock();
  const suspend = (channels: string) =>
    rowsOf(server, 'update organizations set suspended_channels = $2 where id = $1', [
      server.organizationId,
      channels,
    ]);
  /** As a campaign that admits its recipients. */
  const queue = async (organizationId: string, names: readonly string[]) => {
    const contacts = names.map((name) => ({ id: installation.newId(), email: `${name}@example.com` }));
    await rowsOf(
      server,
      `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       select $1, id, email, email, now(), now() from unnest($2::uuid[], $3::text[]) contact (id, email)`,
      [organizationId, contacts.map(({ id }) => id), contacts.map(({ email }) => email)],
    );
    const { messageId } = await insertSentCampaign(installation, {
      organizationId,
      contacts,
      sender: organizationId === other.organizationId ? 'a@other.example' : 'a@postillion.test',
    });
    await rowsOf(
      server,
      `update recipients set status = 'sent', handed_off_at = null where message_id = $1`,
      [messageId],
    );
    await rowsOf(
      server,
      `insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select organization_id, message_id, ordinal, 'email', 1, $2, $2, 100 from recipients where message_id = $1`,
      [messageId, new Date(clock.nowMs())],
    );
    return messageId;
  };
  const handedOff = async (messageId: string) =>
    (
      await rowsOf(server, 'select from recipients where message_id = $1 and handed_off_at is not null', [
        messageId,
      ])
    ).length;
  await suspend('{email}');
  const suspended = await queue(server.organizationId, ['a', 'b', 'c', 'd', 'e']);
  const beside = await queue(other.organizationId, ['a']);
  let claims = 0;
  deliver(
    watched({
      onStatement: (text) => {
        if (isClaim(text)) claims += 1;
      },
    }),
    clock,
  );
  let passedMs = 0;
  /** A little for each look: what is handed off waits for its marker by the same clock, and so do outcomes. */
  const goOnUntil = <Value>(look: () => Value | Promise<Value>, isReached: (value: Value) => boolean) =>
    eventually(async () => {
      clock.advance(stepMs);
      passedMs += stepMs;
      return look();
    }, isReached);
  await goOnUntil(
    () => handedOff(beside),
    (count) => count === 1,
  );
  const [before, since] = [claims, passedMs];
  const more = 10;
  await goOnUntil(
    () => claims - before,
    (count) => count >= more,
  );
  // Two lanes are looked at every five seconds, and due jobs every ten in two claims: fewer than one claim a second.
  // Without rest it would be one for each step.
  expect(passedMs - since).toBeGreaterThanOrEqual(more * 500);
  expect(await handedOff(suspended)).toBe(0);
  await suspend('{}');
  await goOnUntil(
    () => handedOff(suspended),
    (count) => count === 5,
  );
  await goOnUntil(
    () => rowsOf(server, 'select from delivery_queue where message_id = $1', [suspended]),
    (jobs) => jobs.length === 0,
  );
});

test('while its provider is away a worker takes one job a pause, and all of them once it is back', async () => {
  const clock = startClock();
  let isAway = true;
  let tries = 0;
  const claims: number[] = [];
  const database = watched({
    onStatement: (text, values) => {
      if (isClaim(text)) claims.push(Number(values[3]));
    },
  });
  const unavailable: SendOutcome = {
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { code: null, enhancedCode: null, diagnostic: 'Not there', remote: null },
  };
  const ids: string[] = [];
  for (let sending = 1; sending <= 8; sending += 1) ids.push(await send(server));
  deliver(database, clock, {
    ...sandbox,
    concurrency: 4,
    handOff: (handOff) => {
      if (!isAway) return sandbox.handOff(handOff);
      tries += 1;
      return Promise.resolve(unavailable);
    },
  });
  const goOnUntil = (isReached: () => boolean | Promise<boolean>) =>
    eventually(
      async () => {
        clock.advance(250);
        passedMs += 250;
        return isReached();
      },
      (isIt) => isIt,
    );
  let passedMs = 0;
  await goOnUntil(() => tries >= 5);
  // Those that were under way are written, and the first pauses are over.
  await goOnUntil(() => tries >= 8 && claims.at(-1) === 1);
  const [since, before] = [passedMs, claims.length];
  await goOnUntil(() => passedMs - since >= 10_000);
  const later = claims.slice(before);
  // Pauses double, and each is followed by a claim of each lane at most; without them it would be one for each step.
  expect(later.length).toBeLessThanOrEqual(2 * 4);
  expect(later.every((itemsMax) => itemsMax === 1)).toBe(true);
  isAway = false;
  const isDelivered = async () =>
    (
      await rowsOf(
        server,
        'select from recipients where handed_off_at is not null and message_id = any ($1)',
        [ids],
      )
    ).length === ids.length;
  await goOnUntil(isDelivered);
  await goOnUntil(async () => (await rowsOf(server, 'select from delivery_queue')).length === 0);
});

test('segments of many organizations that cannot be followed at present are left alone for a while', async () => {
  await rowsOf(
    server,
    `insert into contact_changes (organization_id, id, contact_ids)
     select gen_random_uuid(), gen_random_uuid(), array[gen_random_uuid()] from generate_series(1, 250)`,
  );
  let looks = 0;
  const clock = startClock();
  const database = watched({
    onStatement: (text) => {
      if (text.startsWith('with recursive changed')) looks += 1;
    },
  });
  const failing: Database = {
    ...database,
    asOrganizations: () => Promise.reject(new Error('it cannot be followed')),
  };
  const upkeep = startSegmentUpkeep({ database: failing, clock, newId: createIds(clock), log: silentLog });
  stops.push(upkeep.stop);
  // Following and computing both wait.
  await clock.whenWaiting(2);
  // Three looks see 250 organizations; listening begins once more.
  expect(looks).toBeLessThanOrEqual(2 * 3);
});
