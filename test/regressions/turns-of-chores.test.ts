/**
 * One organization has a backlog of several batches, and another a single item, which is younger. The item does not wait
 * until the backlog is over: by the order in which triggers see them done, on one node and on two, and after a node was
 * killed in the middle of its work. The cases are a total map of all chores and of all steps of housekeeping.
 */
import { once } from 'node:events';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { startClearing } from '../../src/audience/jobs.ts';
import { campaignsUnderWay } from '../../src/campaigns/campaigns.ts';
import { startCampaigns } from '../../src/campaigns/jobs.ts';
import { startTemplateWork } from '../../src/chat-templates/jobs.ts';
import { insertChatAppEvents } from '../../src/chatapp/event-store.ts';
import { startChatAppEvents } from '../../src/chatapp/chatapp.ts';
import { askForCheck, insertDomain, takeAskedDomains, takeDueDomains } from '../../src/domains/store.ts';
import { sealKeyPair } from '../../src/domains/key-pair.ts';
import { createDefinition } from '../../src/events/definitions.ts';
import { deleteOldEvents, insertPendingConversions } from '../../src/events/events.ts';
import { insertProviderEvents } from '../../src/messages/feedback/provider-event-store.ts';
import {
  removeOldMessages,
  startCrediting,
  startErasing,
  startProviderEvents,
} from '../../src/messages/messages.ts';
import { type Transaction, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { type ChoreName, choreNames } from '../../src/platform/queue/chore.ts';
import { campaignChannels, messageChannels } from '../../src/roles/channels.ts';
import { housekeepingSteps } from '../../src/roles/housekeeping.ts';
import { createChatAppProvider } from '../../src/roles/providers/chatapp.ts';
import { startSegmentUpkeep } from '../../src/segments/jobs.ts';
import { insertSmsEvents } from '../../src/sms/event-store.ts';
import { startSmsEvents } from '../../src/sms/sms.ts';
import { nextDkimKeyPair } from '../support/dkim-key-pairs.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startNumbering } from '../../src/webhooks/jobs.ts';

type Owner = { organizationId: string; key: string };
type Node = { stop: () => Promise<void> };

type Case = {
  /** Whose rows say by a deletion, or by this change, that something is done, and whose it was. */
  table: string;
  done: 'delete' | `update of ${string}`;
  of?: string;
  /** How many are done in one turn. */
  batch: number;
  /** How many organizations have a backlog; one if left out. More than are served at once where that is several. */
  organizations?: number;
  /** So many items of an organization, each older than those of the next call. Returns what `of` will say. */
  fill: (owner: Owner, count: number) => Promise<string>;
  start: () => Node;
  /** What a node had in hand when its connection was lost is done only after minutes. */
  isPutOff?: true;
};
type Cases = Case | readonly Case[] | { otherwise: string };

const batch = 4;
let server: TestServer;
const ignore = () => undefined;
const ids = (count: number) => Array.from({ length: count }, () => server.installation.newId());
const nodeOf = (work: (signal: AbortSignal) => Promise<unknown>): Node => {
  const stopping = new AbortController();
  // One that is killed has failed.
  const working = work(stopping.signal).catch(ignore);
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

const insertCampaigns = (columns: string, values: string) => async (owner: Owner, count: number) => {
  for (const id of ids(count))
    await rowsOf(
      server,
      `with message as (
         insert into messages (organization_id, id, channel, class, sender, subject, details, recipient_count, created_at,
           updated_at, campaign_id)
         values ($1, $2, 'email', 'campaign', 'news@postillion.test', 'News', '{}', 0, $3, $3, $2)
       ), content as (
         insert into message_contents (organization_id, message_id, content) values ($1, $2, '{"html": "News"}')
       )
       insert into campaigns (organization_id, id, channel, name, name_key, content, created_at, updated_at, ${columns})
       values ($1, $2, 'email', 'News', 'news', '{}', $3, $3, ${values})`,
      [owner.organizationId, id, longAgo()],
    );
  return owner.organizationId;
};

const startAllCampaigns = (
  more: Partial<Parameters<typeof startCampaigns>[0]> & { changesMax?: number } = {},
) =>
  startCampaigns({
    ...server.installation,
    channels: campaignChannels,
    onFrozen: ignore,
    onAdmitted: ignore,
    ...more,
  });

const insertPendingDomain = (domain: { organizationId: string; id: string; nextCheckAt: Date | null }) =>
  insertDomain(server.installation.database, {
    ...domain,
    name: `${domain.id}.example`,
    returnPathSubdomain: 'send',
    trackingSubdomain: null,
    openTracking: false,
    clickTracking: false,
    dkim: sealKeyPair(server.installation, nextDkimKeyPair()),
    createdAt: longAgo(),
  });

/** Looks none of them up. */
async function takeAllDomains(take: typeof takeDueDomains, signal: AbortSignal): Promise<void> {
  const at = new Date(server.installation.clock.nowMs());
  const wanted = { at, until: new Date(at.getTime() + 60_000), limit: batch, except: [] };
  while ((await take(server.installation.database, wanted)).length > 0 && !signal.aborted);
}

const chores: Record<ChoreName, Cases> = {
  'sending alerts': {
    otherwise:
      'A turn reads a page of the log and sends one email; an organization has ten emails an hour: test/journeys/alerts.test.ts.',
  },
  'telling of quotas': {
    otherwise: 'A turn takes all that an organization has: two thresholds of each channel in a month.',
  },
  'telling webhooks': {
    otherwise: 'A turn begins work, and waits for no endpoint: test/journeys/webhooks.test.ts holds some up.',
  },
  'numbering events': {
    table: 'webhook_outbox',
    done: 'delete',
    batch,
    // Two organizations are numbered at once.
    organizations: 2,
    fill: async ({ organizationId }, count) => {
      for (const id of ids(count))
        await rowsOf(
          server,
          `insert into webhook_outbox (organization_id, type, happened_at, subject_ids, ordinals)
           values ($1, 'email.sent', $2, $3, '{0}')`,
          [organizationId, longAgo(), [id]],
        );
      return organizationId;
    },
    start: () =>
      startNumbering({
        ...server.installation,
        rowsMax: batch,
        atOnceMax: 2,
        onNumbered: ignore,
        onAlerts: ignore,
      }),
  },
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
    start: () => startCrediting({ ...server.installation, channels: messageChannels, creditedMax: batch }),
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
    start: () => startAllCampaigns({ changesMax: batch }),
  },
  'checking domains': [
    {
      table: 'domains',
      done: 'update of checking_until',
      batch: 1,
      fill: async ({ organizationId }, count) => {
        for (const id of ids(count))
          await insertPendingDomain({ organizationId, id, nextCheckAt: longAgo() });
        return organizationId;
      },
      start: () => nodeOf((signal) => takeAllDomains(takeDueDomains, signal)),
    },
    {
      table: 'domains',
      done: 'update of checking_until',
      batch: 1,
      fill: async ({ organizationId }, count) => {
        for (const id of ids(count)) {
          await insertPendingDomain({ organizationId, id, nextCheckAt: null });
          await askForCheck(server.installation.database, { organizationId, id });
        }
        return organizationId;
      },
      start: () => nodeOf((signal) => takeAllDomains(takeAskedDomains, signal)),
    },
  ],
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
    isPutOff: true,
    start: () => startErasing({ ...server.installation, channels: messageChannels }),
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
  'clearing up after deletions': [
    {
      table: 'contact_sets',
      done: 'delete',
      batch: 1,
      fill: async ({ organizationId }, count) => {
        for (const id of ids(count))
          await rowsOf(
            server,
            `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at, deleted_at)
             values ($1, $2, 'list', 'News', 'news', $3, $3, $3)`,
            [organizationId, id, longAgo()],
          );
        return organizationId;
      },
      start: () => startClearing(server.installation),
    },
    {
      table: 'contact_properties',
      done: 'update of forgotten_at',
      batch: 1,
      fill: async ({ organizationId }, count) => {
        for (const id of ids(count))
          await rowsOf(
            server,
            `insert into contact_properties
               (organization_id, id, number, key, name, name_key, type, created_at, updated_at, deleted_at)
             values ($1, $2, $3, 'plan', 'Plan', 'plan', 'string', $4, $4, $4)`,
            [organizationId, id, (numbers += 1), longAgo()],
          );
        return organizationId;
      },
      start: () => startClearing(server.installation),
    },
  ],
  'beginning campaigns': [
    {
      table: 'campaigns',
      done: 'update of status',
      batch,
      // An hour after their time they wait for a person.
      fill: insertCampaigns('status, scheduled_at', "'scheduled', $3::timestamptz - interval '1 hour'"),
      start: () => startAllCampaigns({ campaignsMax: batch }),
    },
    {
      table: 'campaigns',
      done: 'update of frozen_at',
      batch: 1,
      fill: insertCampaigns('status, queued_at, message_id', "'queued', $3, $2"),
      start: () => startAllCampaigns(),
    },
  ],
  'advancing campaigns': {
    table: 'campaigns',
    done: 'update of status',
    batch,
    // All of their recipients were handed off, so that they end.
    fill: insertCampaigns(
      'status, queued_at, message_id, frozen_at, content_bytes, audience, expanded, admitted',
      "'sending', $3, $2, $3, 100, 1, 1, 1",
    ),
    start: () => startAllCampaigns({ campaignsMax: batch }),
  },
  'chat-app templates': {
    table: 'chat_templates',
    done: 'update of submitted_at',
    batch: 5,
    organizations: 11,
    isPutOff: true,
    fill: async ({ organizationId, key }, count) => {
      for (let number = 0; number < count; number += 1) {
        const template = {
          ...{ name: `notice_${(numbers += 1)}`, language: 'en', category: 'utility' },
          components: [{ type: 'body', text: 'It is here.' }],
        };
        const headers = { authorization: `Bearer ${key}` };
        expect((await server.request('POST', '/v1/chatapp/templates', template, headers)).status).toBe(201);
      }
      return organizationId;
    },
    start: () =>
      nodeOf(async (signal) => {
        const provider = await createChatAppProvider(server.installation);
        const working = startTemplateWork({ ...server.installation, provider });
        await once(signal, 'abort');
        await working.stop();
      }),
  },
  'secret keys': { otherwise: 'Reads the keys of the installation, which are no organization’s.' },
};

const ofAllTogether = { otherwise: 'Deletes what is old, of all organizations by the same statements.' };
const ofNobody = { otherwise: 'Looks after partitions, which are no organization’s.' };
const never = { messages: null, content: null };
const dayMs = 86_400_000;
const inTwentyDays = () => {
  const { clock } = server.installation;
  return { ...clock, nowMs: () => clock.nowMs() + 20 * dayMs };
};

const housekeeping: Readonly<Record<string, Cases>> = {
  partitions: ofNobody,
  'bringing forward': {
    otherwise: 'Brings forward what a clock that was ahead put off, of all organizations.',
  },
  'idempotency keys': ofAllTogether,
  suppressions: ofAllTogether,
  'rate windows': ofAllTogether,
  reputation: ofAllTogether,
  'deleted organizations': ofAllTogether,
  "providers' ids": ofAllTogether,
  'reached people': ofAllTogether,
  'mail to the postmaster': ofAllTogether,
  sandbox: ofAllTogether,
  'webhook events': ofAllTogether,
  'request log': ofAllTogether,
  storage: ofAllTogether,
  'smaller partitions': ofNobody,
  messages: {
    table: 'message_contents',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      await updateOrganization(server.installation, organizationId, { contentKeptDays: 5 });
      for (const id of ids(count))
        await rowsOf(
          server,
          `with message as (
             insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at,
               updated_at)
             values ($1, $2, 'email', 'transactional', 'a@example.com', '{}', 1, $3, $3)
           )
           insert into message_contents (organization_id, message_id, content) values ($1, $2, '{"html": "Hello"}')`,
          [organizationId, id, longAgo()],
        );
      return organizationId;
    },
    start: () =>
      nodeOf((signal) => {
        const rooms = { channels: messageChannels, keeper: campaignsUnderWay };
        const limits = { installed: never, batchMax: batch };
        const tools = { ...server.installation, ...rooms, ...limits, clock: inTwentyDays() };
        return removeOldMessages(tools, signal);
      }),
  },
  events: {
    table: 'events',
    done: 'delete',
    batch,
    fill: async ({ organizationId }, count) => {
      const tools = { ...server.installation, findReadFields: () => Promise.resolve([]) };
      await createDefinition(tools, organizationId, { name: 'order' });
      await updateOrganization(server.installation, organizationId, { eventsKeptDays: 10 });
      for (const id of ids(count))
        await rowsOf(
          server,
          `insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
           values ($1, $2, $2, 1, $3, '{}')`,
          [organizationId, id, longAgo()],
        );
      return organizationId;
    },
    start: () =>
      nodeOf((signal) =>
        deleteOldEvents({ ...server.installation, clock: inTwentyDays(), batchMax: batch }, signal),
      ),
  },
};

const inTurns = Object.entries({ ...chores, ...housekeeping }).flatMap(([name, given]) =>
  'otherwise' in given ? [] : [given].flat().map((each) => ({ name, ...each })),
);

beforeAll(async () => {
  server = await startTestServer({ databaseConnectionsMax: 8 });
  await rowsOf(server, 'create sequence failures');
  await rowsOf(
    server,
    `create table done_in_order
       (n bigserial, owner text, failures bigint, began_at timestamptz default now())`,
  );
  await rowsOf(
    server,
    `create function note_done() returns trigger language plpgsql security definer as $$
     begin
       perform pg_advisory_xact_lock_shared(hashtext('note_done'));
       execute format('insert into done_in_order (owner, failures) select (%s)::text, (select last_value from failures)', tg_argv[0]) using old;
       return null;
     end $$`,
  );
  // A sequence goes on although the transaction fails.
  await rowsOf(
    server,
    `create function refuse() returns trigger language plpgsql security definer as $$
     begin
       if old.organization_id::text = any (tg_argv) then
         perform nextval('failures');
         raise exception 'it cannot be done';
       end if;
       return case tg_op when 'DELETE' then old else new end;
     end $$`,
  );
});
afterAll(() => server.stop());
beforeEach(async () => {
  await rowsOf(server, 'truncate done_in_order');
  await rowsOf(server, "select setval('failures', 1)");
});

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
/** In the order in which it was begun: while a node is at it, the other one may have several turns of somebody else. */
const listDone = async () =>
  (await rowsOf<{ owner: string }>(server, 'select owner from done_in_order order by began_at, n')).map(
    ({ owner }) => owner,
  );

test('whose turn it is has been thought of for all chores and all of housekeeping', () => {
  expect(Object.keys(chores).sort()).toEqual([...choreNames].sort());
  const steps = housekeepingSteps({
    ...server.installation,
    config: { keptDays: never, partitionSize: 'month' },
  });
  expect(Object.keys(housekeeping).sort()).toEqual(steps.map(({ name }) => name).sort());
});

/** Notes what is done, and whose it was, until `work` is over. */
async function whileNoting({ table, done, of = 'old.organization_id' }: Case, work: () => Promise<void>) {
  await rowsOf(
    server,
    `create trigger note_done after ${done} on ${table}
     for each row execute function note_done('${of.replace('old.', '$1.')}')`,
  );
  try {
    await work();
  } finally {
    await rowsOf(server, `drop trigger note_done on ${table}`);
    if (table.endsWith('_events')) await rowsOf(server, `truncate ${table}`);
  }
}

/** Whose the items are of which there are too many for a turn, and whose the one is. */
async function fillUp({ batch, organizations = 1, fill }: Case) {
  const backlog = 5 * batch;
  const many = new Set<string>();
  for (let number = 0; number < organizations; number += 1) many.add(await fill(await aSender(), backlog));
  const other = await fill(await aSender(), 1);
  const isAllDone = (seen: readonly string[]) =>
    seen.includes(other) && seen.filter((owner) => many.has(owner)).length >= many.size * backlog;
  return { many, other, isAllDone };
}

describe.each([1, 2])('on %i nodes', (nodesCount) => {
  test.each(inTurns)('$name: $done on $table', async (tested) => {
    const { many, other, isAllDone } = await fillUp(tested);
    await whileNoting(tested, async () => {
      const nodes = Array.from({ length: nodesCount }, tested.start);
      try {
        const order = await eventually(listDone, isAllDone);
        const before = order.slice(0, order.indexOf(other)).filter((owner) => many.has(owner));
        expect(before.length).toBeLessThanOrEqual(nodesCount * many.size * tested.batch);
      } finally {
        await Promise.all(nodes.map((node) => node.stop()));
      }
    });
  });
});

/** Those that go from one organization to the next: of what is taken together the tests of each see to what fails. */
const oneByOne = inTurns.filter(({ name }) =>
  [
    'advancing campaigns',
    'beginning campaigns',
    'chat-app templates',
    'clearing up after deletions',
    'computing segments',
    'erasing addresses',
    'events',
    'following changes',
    'messages',
  ].includes(name),
);

test.each(oneByOne)(
  'an organization of which all fails keeps no other: $name: $done on $table',
  async (tested) => {
    const { many, other } = await fillUp(tested);
    await rowsOf(
      server,
      `create trigger refuse before ${tested.done} on ${tested.table}
       for each row execute function refuse(${[...many].map((owner) => `'${owner}'`).join(', ')})`,
    );
    await whileNoting(tested, async () => {
      const node = tested.start();
      try {
        await eventually(listDone, (seen) => seen.includes(other));
        const [row] = await rowsOf<{ failures: number }>(
          server,
          'select (failures - 1)::integer as failures from done_in_order where owner = $1',
          [other],
        );
        expect(row?.failures).toBeLessThanOrEqual(many.size * tested.batch);
      } finally {
        await node.stop();
        await rowsOf(server, `drop trigger refuse on ${tested.table}`);
        await rowsOf(server, 'delete from events');
      }
    });
  },
);

test.each(oneByOne.filter(({ table }) => ['campaigns', 'contact_sets', 'erasures'].includes(table)))(
  'of 205 organizations each has its turn: $name: $done on $table',
  async (tested) => {
    const owners = new Set<string>();
    for (const organizationId of ids(205)) {
      await rowsOf(
        server,
        `insert into organizations (id, name, created_at, updated_at) values ($1, 'One of many', $2, $2)`,
        [organizationId, longAgo()],
      );
      owners.add(await tested.fill({ organizationId, key: 'none' }, 2));
    }
    await whileNoting(tested, async () => {
      const node = tested.start();
      try {
        const order = await eventually(
          listDone,
          (seen) => seen.filter((owner) => owners.has(owner)).length === 2 * owners.size,
        );
        const first = order.filter((owner) => owners.has(owner)).slice(0, owners.size);
        if (tested.batch === 1) expect(new Set(first)).toEqual(owners);
      } finally {
        await node.stop();
      }
    });
  },
);

test.each(inTurns.filter(({ isPutOff }) => !isPutOff))(
  'a node that is killed in the middle keeps nobody from what is done: $name: $done on $table',
  async (tested) => {
    const { isAllDone } = await fillUp(tested);
    await whileNoting(tested, async () => {
      let killed: Node | null = null;
      await server.installation.database.transaction(async (holder) => {
        await holder.rows(unpreparedStatement('select pg_advisory_xact_lock(hashtext($1))'), ['note_done']);
        killed = tested.start();
        const [waiting] = await eventually(
          () =>
            rowsOf<{ pid: number }>(
              server,
              `select pid from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and not granted`,
            ),
          (rows) => rows.length > 0,
        );
        await rowsOf(server, 'select pg_terminate_backend($1)', [waiting?.pid]);
        expect(await listDone()).toEqual([]);
      });
      await (killed as Node | null)?.stop();
      const next = tested.start();
      try {
        await eventually(listDone, isAllDone);
      } finally {
        await next.stop();
      }
    });
  },
);

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

test('an organization whose audience cannot be frozen within a slice leaves the first place to others', async () => {
  const queued = insertCampaigns('status, queued_at, message_id', "'queued', $3, $2");
  const [slow, other] = [await aSender(), await aSender()];
  const frozenOf = async ({ organizationId }: Owner) => {
    const text = 'select count(*) from campaigns where organization_id = $1 and frozen_at is not null';
    return (await rowsOf<{ count: number }>(server, text, [organizationId]))[0]?.count;
  };
  await queued(slow, 1);
  let campaigns: Node | null = null;
  try {
    await server.installation.database.transaction(async (transaction) => {
      // Somebody holds it for as long as the test likes, and its freezing ends in its row.
      await transaction.rows(
        unpreparedStatement('select from campaigns where organization_id = $1 for update'),
        [slow.organizationId],
      );
      campaigns = startAllCampaigns({ freezingSlicesMs: [50, null] });
      for (let number = 1; number <= 3; number += 1) {
        await queued(other, 1);
        await rowsOf(server, "select pg_notify('postillion_campaigns', '')");
        await eventually(
          () => frozenOf(other),
          (count) => count === number,
        );
      }
      expect(await frozenOf(slow)).toBe(0);
    });
    await eventually(
      () => frozenOf(slow),
      (count) => count === 1,
    );
  } finally {
    await (campaigns as Node | null)?.stop();
  }
});
