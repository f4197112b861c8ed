/**
 * One organization has a backlog of more than two batches, and another a single item, which is younger. The item does not
 * wait until the backlog is over: by the order in which triggers see them done, on one node and on two.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { startCampaigns } from '../../src/campaigns/jobs.ts';
import { insertChatAppEvents } from '../../src/chatapp/event-store.ts';
import { startChatAppEvents } from '../../src/chatapp/chatapp.ts';
import { insertDomain, takeDueDomains } from '../../src/domains/store.ts';
import { sealKeyPair } from '../../src/domains/key-pair.ts';
import { insertPendingConversions } from '../../src/events/events.ts';
import { insertProviderEvents } from '../../src/messages/feedback/provider-event-store.ts';
import { startCrediting, startErasing, startProviderEvents } from '../../src/messages/messages.ts';
import { type Transaction } from '../../src/platform/postgres/database.ts';
import { type ChoreName, choreNames } from '../../src/platform/queue/chore.ts';
import { campaignChannels, messageChannels } from '../../src/roles/channels.ts';
import { startSegmentUpkeep } from '../../src/segments/jobs.ts';
import { insertSmsEvents } from '../../src/sms/event-store.ts';
import { startSmsEvents } from '../../src/sms/sms.ts';
import { nextDkimKeyPair } from '../support/dkim-key-pairs.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

type Owner = { organizationId: string; key: string };
type Node = { stop: () => Promise<void> };

type Case = {
  /** Whose rows say by a deletion, or by this change, that something is done, and whose it was. */
  table: string;
  done: 'delete' | `update of ${string}`;
  of?: string;
  /** How many are done in one turn. */
  batch: number;
  /** So many items of an organization, each older than those of the next call. Returns what `of` will say. */
  fill: (owner: Owner, count: number) => Promise<string>;
  start: () => Node;
};

const batch = 4;
let server: TestServer;
const ignore = () => undefined;
const ids = (count: number) => Array.from({ length: count }, () => server.installation.newId());
const nodeOf = (work: (signal: AbortSignal) => Promise<unknown>): Node => {
  const stopping = new AbortController();
  const working = work(stopping.signal);
  return {
    stop: async () => {
      stopping.abort();
      await working;
    },
  };
};
const longAgo = () => new Date(server.installation.clock.nowMs() - 3_600_000);
const withDatabase = (work: (transaction: Transaction) => Promise<void>) =>
  server.installation.database.transaction(work);

let numbers = 0;

const cases: Record<ChoreName, Case | { otherwise: string }> = {
  'applying what providers reported': {
    table: 'provider_events',
    done: 'delete',
    of: 'old.turn_of',
    batch,
    fill: async ({ organizationId }, count) => {
      await insertProviderEvents(
        server.installation.database,
        ids(count).map((id) => ({
          id,
          channel: 'sms',
          provider: 'sandbox',
          // As an account of the installation would report it: of whom it speaks is known by the reference alone.
          organizationId: null,
          report: {
            reference: { organizationId, messageId: id, ordinal: 0 },
            providerMessageId: null,
            status: 'delivered',
            failure: null,
            diagnostic: null,
            to: null,
            senderName: null,
          },
          finding: null,
          attempts: 0,
          dueAt: longAgo(),
        })),
      );
      return organizationId;
    },
    start: () =>
      startProviderEvents({
        ...server.installation,
        channels: messageChannels,
        onCampaignProgress: ignore,
        onContactsChanged: ignore,
        appliedMax: batch,
      }),
  },
  'applying texts that came in': {
    table: 'sms_events',
    done: 'delete',
    of: 'old.sender_name',
    batch,
    fill: async (_owner, count) => {
      const senderName = `1415555${String((numbers += 1)).padStart(4, '0')}`;
      await insertSmsEvents(
        server.installation.database,
        ids(count).map((id) => ({
          id,
          event: { providerMessageId: null, from: '+14155600007', senderName, text: 'Hello' },
        })),
        longAgo(),
      );
      return senderName;
    },
    start: () =>
      startSmsEvents({
        ...server.installation,
        answersKeywords: true,
        onContactsChanged: ignore,
        onQueued: ignore,
        appliedMax: batch,
      }),
  },
  'applying what providers of chat-app messages told': {
    table: 'chat_app_events',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      await insertChatAppEvents(
        server.installation.database,
        ids(count).map((id) => ({
          id,
          attempts: 0,
          dueAt: longAgo(),
          event: {
            kind: 'account',
            organizationId,
            businessAccountId: '1',
            words: 'fine',
            areCampaignsHeld: null,
          },
        })) as never,
      );
      return organizationId;
    },
    start: () => startChatAppEvents({ ...server.installation, onContactsChanged: ignore, appliedMax: batch }),
  },
  'crediting conversions': {
    table: 'pending_conversions',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      await withDatabase((transaction) =>
        insertPendingConversions(
          transaction,
          ids(count).map((id) => ({
            organizationId,
            id,
            contactId: id,
            definitionNumber: 1,
            occurredAt: longAgo(),
            value: null,
            currency: null,
          })),
          longAgo(),
        ),
      );
      return organizationId;
    },
    start: () => startCrediting({ ...server.installation, creditedMax: batch }),
  },
  'counting recipients': {
    table: 'recipient_changes',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      for (const id of ids(count))
        await rowsOf(
          server,
          'insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $2, $3)',
          [organizationId, id, [0]],
        );
      return organizationId;
    },
    start: () =>
      startCampaigns({
        ...server.installation,
        ...{ changesMax: batch },
        channels: campaignChannels,
        onFrozen: ignore,
        onAdmitted: ignore,
      }),
  },
  'checking domains': {
    table: 'domains',
    done: 'update of next_check_at',
    batch,
    fill: async ({ organizationId }, count) => {
      const { installation } = server;
      for (const id of ids(count))
        await insertDomain(installation.database, {
          organizationId,
          id,
          name: `${id}.example`,
          returnPathSubdomain: 'send',
          trackingSubdomain: null,
          openTracking: false,
          clickTracking: false,
          dkim: sealKeyPair(installation, nextDkimKeyPair()),
          nextCheckAt: longAgo(),
          createdAt: longAgo(),
        });
      return organizationId;
    },
    start: () =>
      nodeOf(async (signal) => {
        const at = new Date(server.installation.clock.nowMs());
        const retryAt = new Date(at.getTime() + 60_000);
        const take = () => takeDueDomains(server.installation.database, { at, retryAt, limit: batch });
        while ((await take()).length > 0 && !signal.aborted);
      }),
  },
  'erasing addresses': {
    table: 'erasures',
    done: 'delete',
    batch: 1,
    fill: async ({ organizationId }, count) => {
      for (const id of ids(count))
        await rowsOf(
          server,
          'insert into erasures (organization_id, address, requested_at, due_at) values ($1, $2, $3, $3)',
          [organizationId, `${id}@erased.example`, longAgo()],
        );
      return organizationId;
    },
    start: () => startErasing(server.installation),
  },
  'following changes': {
    table: 'contact_changes',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      for (const id of ids(count))
        await rowsOf(
          server,
          'insert into contact_changes (organization_id, id, contact_ids) values ($1, $2, array[$2::uuid])',
          [organizationId, id],
        );
      return organizationId;
    },
    start: () => startSegmentUpkeep({ ...server.installation, followedMax: batch }),
  },
  'computing segments': {
    table: 'segments',
    done: 'update of status',
    batch: 1,
    fill: async (owner, count) => {
      for (let number = 0; number < count; number += 1) await makeSegment(owner);
      return owner.organizationId;
    },
    start: () => startSegmentUpkeep(server.installation),
  },
  // The four that follow are known to be less fair than the rest. To mend them: `startTurns`, with slices for freezing.
  'clearing up after deletions': {
    otherwise: 'What was deleted first goes first, a piece at a time. Nobody sees what is left of it.',
  },
  'beginning campaigns': {
    otherwise: 'Campaigns take turns, not organizations, and freezing millions of contacts takes seconds.',
  },
  'advancing campaigns': {
    otherwise:
      'Campaigns take turns, not organizations: one with a hundred is served a hundred times as often.',
  },
  'chat-app templates': {
    otherwise: 'Ten organizations at once, those that wait longest, and a few calls for each in a round.',
  },
  'secret keys': { otherwise: 'Reads the keys of the installation, which are no organization’s.' },
};

beforeAll(async () => {
  server = await startTestServer({ databaseConnectionsMax: 8 });
  await rowsOf(server, 'create table done_in_order (n bigserial, owner text)');
  await rowsOf(
    server,
    `create function note_done() returns trigger language plpgsql security definer as $$
     begin
       execute format('insert into done_in_order (owner) select (%s)::text', tg_argv[0]) using old;
       return null;
     end $$`,
  );
});
afterAll(() => server.stop());
beforeEach(() => rowsOf(server, 'truncate done_in_order'));

async function makeSegment(owner: Owner): Promise<string> {
  const name = `S ${(numbers += 1)}`;
  const conditions = { type: 'field', field: 'first_name', operator: 'eq', value: 'Ann' };
  const { body } = await server.request<{ id: string }>(
    'POST',
    '/v1/segments',
    { name, conditions },
    { authorization: `Bearer ${owner.key}` },
  );
  return body.id;
}

const aSender = () => createSender(server.installation, `of-${crypto.randomUUID()}.example`);
const listDone = async () =>
  (await rowsOf<{ owner: string }>(server, 'select owner from done_in_order order by n')).map(
    ({ owner }) => owner,
  );

test.each(choreNames)('whose turn it is has been thought of: %s', (name) => {
  expect(cases[name]).toBeDefined();
});

describe.each([1, 2])('on %i nodes', (nodesCount) => {
  const inTurns = Object.entries(cases).flatMap(([name, turns]) =>
    'otherwise' in turns ? [] : [{ name, ...turns }],
  );
  test.each(inTurns)('$name', async ({ table, done, of = 'old.organization_id', batch, fill, start }) => {
    const [many, one] = [await aSender(), await aSender()];
    const backlog = 5 * batch;
    const [owners, other] = [await fill(many, backlog), await fill(one, 1)];
    await rowsOf(
      server,
      `create trigger note_done after ${done} on ${table}
       for each row execute function note_done('${of.replace('old.', '$1.')}')`,
    );
    const nodes = Array.from({ length: nodesCount }, start);
    try {
      const order = await eventually(listDone, (seen) =>
        seen.includes(other) ? seen.filter((owner) => owner === owners).length >= backlog : false,
      );
      const before = order.slice(0, order.indexOf(other)).filter((owner) => owner === owners);
      expect(before.length).toBeLessThanOrEqual(nodesCount * batch);
    } finally {
      await Promise.all(nodes.map((node) => node.stop()));
      await rowsOf(server, `drop trigger note_done on ${table}`);
      if (table.endsWith('_events')) await rowsOf(server, `truncate ${table}`);
    }
  });
});

test('an organization whose segments cannot be computed within a slice leaves the first place to others', async () => {
  const [slow, other] = [await aSender(), await aSender()];
  const stuck = await makeSegment(slow);
  const statusOf = async (id: string) =>
    (await rowsOf<{ status: string }>(server, 'select status from segments where id = $1', [id]))[0]?.status;
  let upkeep: Node | null = null;
  await server.installation.database
    .transaction(async (transaction) => {
      // Its members are written by somebody else for as long as the test likes.
      await transaction.rows({ text: 'select pg_advisory_xact_lock(hashtextextended($1, 0))' }, [
        `segment members of ${slow.organizationId}`,
      ]);
      upkeep = startSegmentUpkeep({ ...server.installation, computingSlicesMs: [50, null] });
      for (let number = 0; number < 3; number += 1) {
        const id = await makeSegment(other);
        await rowsOf(server, "select pg_notify('postillion_segments', '')");
        await eventually(
          () => statusOf(id),
          (status) => status === 'ready',
        );
      }
      expect(await statusOf(stuck)).toBe('computing');
    })
    .finally(() => upkeep?.stop());
});
