/** A report of a device on one node, and at each of its statements in turn something else that concerns its push. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { PushProvider } from '../../src/channels/push/provider.ts';
import type { Job } from '../../src/messages/channel.ts';
import { claimDueJobs } from '../../src/messages/delivery/claim-store.ts';
import { settleOutcome } from '../../src/messages/delivery/settlement.ts';
import { writeUntilSettled } from '../../src/messages/delivery/settlement-writer.ts';
import { dateOf } from '../../src/platform/clock.ts';
import { type Database, type DatabaseAddress, openDatabase } from '../../src/platform/postgres/database.ts';
import { recordPushEngagements } from '../../src/push/engagements.ts';
import { createPushDelivery, pushChannel } from '../../src/push/push.ts';
import type { EngagementEvent, PushRecord } from '../../src/push/schema.ts';
import { messageChannels } from '../support/channels.ts';
import { rowsOf as rowsOfServer } from '../support/email-journey.ts';
import { meetAtEachStatement } from '../support/interleaving.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type StatementProxy, startStatementProxy } from '../support/statement-proxy.ts';
import { useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
let server: TestServer;
let proxy: StatementProxy;
/** Of the node whose statements are counted. */
let proxied: Database;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  server = await startTestServer({ database: address, madeByHand: ['leases'] });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  await setUpPush(server);
  proxy = await startStatementProxy(address);
  proxied = openDatabase({ address: proxy.address, connectionsMax: 2 });
  await rowsOf(`insert into workers (epoch, host, pid, started_at) values (1, 'one', 1, now())`);
});
afterAll(async () => {
  await proxied.close();
  await proxy.stop();
  await server.stop();
});
beforeEach(() => rowsOf('truncate delivery_queue'));

function rowsOf<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return rowsOfServer<Row>(server, text, values);
}

let made = 0;

/** A push to one device, claimed for its hand-off. */
async function aPush() {
  const installationId = `reporting-${(made += 1)}`;
  const contactId = await aPushContact(server);
  const { id } = await register(server, androidApp(installationId, { contact_id: contactId }));
  const sent = await server.request<{ id: string }>('POST', '/v1/push/send', {
    ...{ contact_id: contactId, title: 'Hello', body: 'Hello' },
  });
  expect(sent.status).toBe(202);
  const { jobs } = await claimDueJobs(server.installation.database, {
    epoch: 1,
    claimNumber: made,
    at: dateOf(server.installation.clock.nowMs() + 1_000),
    channel: pushChannel,
    lane: 0,
    itemsMax: 100,
    afterOrganizationId: '00000000-0000-0000-0000-000000000000',
  });
  return { device: { id, installationId, contactId }, id: sent.body.id, jobs };
}

type Push = Awaited<ReturnType<typeof aPush>>;

function anEvent({ id }: Push, type: EngagementEvent['type']): EngagementEvent {
  const occurredAt = dateOf(server.installation.clock.nowMs()).toISOString();
  return { event_id: randomUUID(), message_id: id, type, occurred_at: occurredAt };
}

function report(database: Database, { device }: Push, events: readonly EngagementEvent[]) {
  const tools = {
    ...server.installation,
    database,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
  };
  return recordPushEngagements(tools, server.organizationId, device, events);
}

/** Handed off, as the worker of epoch 1 writes it. */
async function settle(database: Database, jobs: readonly Job[]): Promise<void> {
  const { clock } = server.installation;
  await writeUntilSettled(
    {
      ...server.installation,
      channels: messageChannels,
      deliveries: [
        createPushDelivery({
          ...server.installation,
          pushProvider: { concurrency: 1 } as PushProvider,
          webPushHosts: [],
        }),
      ],
      database,
      random: () => 0.5,
      onCampaignProgress: () => undefined,
      onContactsChanged: () => undefined,
    },
    { epoch: 1, signal: new AbortController().signal, release: () => Promise.resolve() },
    jobs.map((job) => ({
      settlement: settleOutcome(
        job,
        { kind: 'accepted', providerMessageId: '', reply: null },
        { atMs: clock.nowMs(), random: 0.5, dateOf },
      ),
      message: { isShared: false, hasAttachments: false },
    })),
  );
}

async function standing(push: Push): Promise<unknown> {
  const { body } = await server.request<PushRecord>('GET', `/v1/push/${push.id}`);
  return {
    status: body.status,
    devices: body.devices.map(({ status, uncertain }) => ({ status, uncertain })),
  };
}

const displayed = { status: 'sent', devices: [{ status: 'displayed', uncertain: false }] };

test('a hand-off that is settled while the device reports keeps what both say', async () => {
  const statements = await meetAtEachStatement(async () => {
    const push = await aPush();
    return {
      ...{ proxy, onlooker: server.installation.database },
      first: () => settle(proxied, push.jobs),
      second: () => report(server.installation.database, push, [anEvent(push, 'displayed')]),
      check: async ([, counts], number) => {
        expect([number, counts]).toEqual([number, { accepted: 1, duplicate: 0, rejected: 0 }]);
        expect([number, await standing(push)]).toEqual([number, displayed]);
        expect(await rowsOf('select from delivery_queue')).toEqual([]);
      },
    };
  });
  expect(statements).toBeGreaterThan(4);
});

test('two reports of a device at once both count, and what both bring counts once', async () => {
  const statements = await meetAtEachStatement(async () => {
    const push = await aPush();
    await settle(server.installation.database, push.jobs);
    const shared = anEvent(push, 'displayed');
    return {
      ...{ proxy, onlooker: server.installation.database },
      first: () => report(proxied, push, [shared, anEvent(push, 'delivered')]),
      second: () => report(server.installation.database, push, [shared, anEvent(push, 'displayed')]),
      check: async ([one, other], number) => {
        expect([number, one.accepted + other.accepted, one.duplicate + other.duplicate]).toEqual([
          number,
          3,
          1,
        ]);
        const kept = await rowsOf(
          'select cardinality(event_ids) as events from push_engagements where message_id = $1',
          [push.id],
        );
        expect([number, kept]).toEqual([number, [{ events: 3 }]]);
        expect([number, await standing(push)]).toEqual([number, displayed]);
      },
    };
  });
  expect(statements).toBeGreaterThan(6);
});
