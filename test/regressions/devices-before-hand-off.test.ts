/** What is looked up of devices shortly before their hand-offs, where a database is slow or a connection is waited for. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { PushHandOff, PushProvider } from '../../src/channels/push/provider.ts';
import type { Attempt, DeliverySession, Job } from '../../src/messages/channel.ts';
import { claimDueJobs } from '../../src/messages/delivery/claim-store.ts';
import { dateOf } from '../../src/platform/clock.ts';
import type { Database } from '../../src/platform/postgres/database.ts';
import { createPushDelivery, pushChannel } from '../../src/push/push.ts';
import { rowsOf } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import {
  androidApp,
  aPushContact,
  iosApp,
  register,
  setUpPush,
  unregister,
} from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let clock: ManualClock;
/** How long each transaction that looks something up takes from now on, the next first. */
let takesMs: number[];
let lookUps: number;
/** Runs when the provider has a connection. */
let onConnected: () => Promise<void> | void;
let sent: PushHandOff[];

beforeAll(async () => {
  server = await startTestServer({ madeByHand: ['leases'] });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  await setUpPush(server);
  await rowsOf(server, `insert into workers (epoch, host, pid, started_at) values (1, 'one', 1, now())`);
});
afterAll(() => server.stop());
beforeEach(async () => {
  clock = createManualClock(server.installation.clock.nowMs());
  takesMs = [];
  lookUps = 0;
  onConnected = () => undefined;
  sent = [];
  await rowsOf(server, 'truncate delivery_queue');
});

const pushProvider: PushProvider = {
  name: 'that takes its time to connect',
  concurrency: 1_000,
  handOff: async (handOff) => {
    await onConnected();
    await handOff.confirm();
    sent.push(handOff);
    return { kind: 'accepted', providerMessageId: handOff.notificationId, reply: null };
  },
  probe: () => Promise.resolve(null),
  close: () => Promise.resolve(),
};

function openSession(): DeliverySession {
  const { database } = server.installation;
  const slow: Database = {
    ...database,
    asOrganizationsByIndex: async (organizationIds, work) => {
      const result = await database.asOrganizationsByIndex(organizationIds, work);
      lookUps += 1;
      clock.advance(takesMs.shift() ?? 0);
      return result;
    },
  };
  return createPushDelivery({
    ...server.installation,
    database: slow,
    clock,
    pushProvider,
    webPushHosts: [],
  }).begin();
}

function handOff(session: DeliverySession, job: Job): Promise<Attempt> {
  return session.handOff(job, {
    confirm: () => Promise.resolve(),
    signal: new AbortController().signal,
  });
}

type App = (name: string, more: object) => Record<string, unknown>;

let made = 0;

/** Pushes to a device each, claimed for their hand-offs. */
async function claimPushes(...apps: readonly App[]): Promise<{ installationIds: string[]; jobs: Job[] }> {
  const installationIds: string[] = [];
  for (const app of apps) {
    const name = `installation-${(made += 1)}`;
    const contactId = await aPushContact(server);
    await register(server, app(name, { contact_id: contactId }));
    const { status } = await server.request('POST', '/v1/push/send', {
      ...{ contact_id: contactId, title: 'Hello', body: 'Hello' },
    });
    expect(status).toBe(202);
    installationIds.push(name);
  }
  const { jobs } = await claimDueJobs(server.installation.database, {
    epoch: 1,
    claimNumber: made,
    at: dateOf(server.installation.clock.nowMs() + 1_000),
    channel: pushChannel,
    lane: 0,
    itemsMax: 1_000,
    afterOrganizationId: '00000000-0000-0000-0000-000000000000',
  });
  expect(jobs).toHaveLength(apps.length);
  return { installationIds, jobs: jobs.toSorted((one, other) => (one.messageId < other.messageId ? -1 : 1)) };
}

test('250 hand-offs that begin at once share their look-ups, which count for less than two seconds', async () => {
  const { installationIds, jobs } = await claimPushes(...Array<App>(250).fill(androidApp));
  const session = openSession();
  expect(await Promise.all(jobs.map((job) => handOff(session, job)))).toMatchObject(
    jobs.map(() => ({ kind: 'outcome', outcome: { kind: 'accepted' } })),
  );
  const asked = lookUps;
  expect(asked).toBeLessThanOrEqual(4);
  await unregister(server, installationIds[0]!, 'logout');
  clock.advance(1_999);
  expect(await handOff(session, jobs[0]!)).toMatchObject({ outcome: { kind: 'accepted' } });
  expect(lookUps).toBe(asked);
  clock.advance(2);
  expect(await handOff(session, jobs[0]!)).toMatchObject({ kind: 'objected', objection: 'no_address' });
  expect([lookUps, sent.length]).toEqual([asked + 1, 251]);
});

test('a push whose device could not be looked up in time comes back, and is not dropped', async () => {
  const {
    jobs: [job],
  } = await claimPushes(androidApp);
  const session = openSession();
  // That of devices, and that of credentials.
  takesMs = [0, 2_001];
  expect(await handOff(session, job!)).toMatchObject({ outcome: { kind: 'postponed' } });
  expect(sent).toEqual([]);
  expect(await handOff(session, job!)).toMatchObject({ outcome: { kind: 'accepted' } });
});

test('credentials that grow old while those of another platform are looked up are good for what was on its way', async () => {
  const { jobs } = await claimPushes(androidApp, iosApp);
  const [toAndroid, toPhone] = jobs;
  const session = openSession();
  await handOff(session, toAndroid!);
  clock.advance(59_900);
  takesMs = [0, 200];
  const both = await Promise.all([handOff(session, toPhone!), handOff(session, toAndroid!)]);
  expect(both).toMatchObject([{ outcome: { kind: 'accepted' } }, { outcome: { kind: 'accepted' } }]);
});

test('credentials that were taken away are used for a minute, and no longer', async () => {
  const {
    jobs: [job],
  } = await claimPushes(androidApp);
  const session = openSession();
  await handOff(session, job!);
  const taken = await rowsOf<{ content_sealed: Buffer }>(
    server,
    `delete from push_credentials where organization_id = $1 and platform = 'android' returning content_sealed`,
    [server.organizationId],
  );
  expect(taken).toHaveLength(1);
  clock.advance(59_000);
  expect(await handOff(session, job!)).toMatchObject({ outcome: { kind: 'accepted' } });
  clock.advance(1_001);
  expect(await handOff(session, job!)).toMatchObject({ kind: 'failed', reason: 'credentials' });
  await setUpPush(server);
  expect(await handOff(session, job!)).toMatchObject({ outcome: { kind: 'accepted' } });
});

test('whoever signs in on a device while its push waits for a connection does not get it', async () => {
  const { installationIds, jobs } = await claimPushes(androidApp, androidApp);
  const session = openSession();
  onConnected = async () => {
    const newcomer = await aPushContact(server);
    await register(server, androidApp(installationIds[0]!, { contact_id: newcomer }));
    clock.advance(2_001);
  };
  expect(await handOff(session, jobs[0]!)).toMatchObject({ kind: 'objected', objection: 'no_address' });
  expect(sent).toEqual([]);
  expect(await handOff(session, jobs[1]!)).toMatchObject({ outcome: { kind: 'accepted' } });
});

test('a push whose device cannot be looked up again in time before it leaves comes back', async () => {
  const {
    jobs: [job],
  } = await claimPushes(androidApp);
  const session = openSession();
  onConnected = () => {
    clock.advance(61_000);
    takesMs = [0, 2_001];
  };
  expect(await handOff(session, job!)).toMatchObject({ outcome: { kind: 'postponed' } });
  expect(sent).toEqual([]);
});
