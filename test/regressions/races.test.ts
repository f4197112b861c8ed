/**
 * Two operations on the same rows, on two nodes: the second begins at each statement of the first in turn, and waits
 * for its locks there.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { optOutContact } from '../../src/audience/consents.ts';
import { changeMembers, deleteSet } from '../../src/audience/sets.ts';
import { importContacts, type ImportTools } from '../../src/audience/files/import.ts';
import { campaignChannels } from '../../src/roles/channels.ts';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { createPauses } from '../../src/platform/queue/pauses.ts';
import { advanceCampaign, freezeCampaign, type RunningTools } from '../../src/campaigns/running.ts';
import { countChangedRecipients } from '../../src/messages/messages.ts';
import type { Job } from '../../src/messages/channel.ts';
import { eraseNext } from '../../src/messages/erasure/erasure.ts';
import { messageChannels } from '../support/channels.ts';
import { settleCrash, settleOutcome } from '../../src/messages/delivery/settlement.ts';
import { returnClaims } from '../../src/messages/delivery/claim-recovery.ts';
import {
  type Settled,
  writeSettlements,
  type WriterTools,
  writeUntilSettled,
} from '../../src/messages/delivery/settlement-writer.ts';
import { claimDueSlices } from '../../src/messages/delivery/slice-store.ts';
import { writeTaken } from '../../src/messages/delivery/taken.ts';
import { spreadSlices } from '../support/delivery-slices.ts';
import { findObjections } from '../../src/messages/delivery/unwanted.ts';
import { dateOf } from '../../src/platform/clock.ts';
import { type Database, type DatabaseAddress, openDatabase } from '../../src/platform/postgres/database.ts';
import { startApi } from '../../src/roles/api.ts';
import { computeNext, followChanges } from '../../src/segments/membership.ts';
import { updateTemplate } from '../../src/templates/templates.ts';
import { rowsOf as rowsOfServer, send } from '../support/email-journey.ts';
import { meetAtEachStatement } from '../support/interleaving.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type StatementProxy, startStatementProxy } from '../support/statement-proxy.ts';
import { useTestDatabase } from '../support/test-database.ts';
import { claimDueJobs } from '../../src/messages/delivery/claim-store.ts';

let address: DatabaseAddress;
let server: TestServer;
let proxy: StatementProxy;
/** Of the first of two, whose statements are counted. */
let proxied: Database;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  server = await startTestServer({ database: address, madeByHand: ['leases'] });
  // Some of these meet at dozens of statements, with requests before each.
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  proxy = await startStatementProxy(address);
  proxied = openDatabase({ address: proxy.address, connectionsMax: 2 });
  await rowsOf(
    `insert into workers (epoch, host, pid, started_at) values (1, 'one', 1, now()), (2, 'two', 2, now())`,
  );
});
afterAll(async () => {
  await proxied.close();
  await proxy.stop();
  await server.stop();
});
beforeEach(() => rowsOf('truncate delivery_queue, delivery_slices, recipient_changes'));

function rowsOf<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return rowsOfServer<Row>(server, text, values);
}

async function create(path: string, body: object): Promise<string> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body);
  if (response.status !== 201) throw new Error(response.text);
  return response.body.id;
}

let names = 0;
const newName = () => `n${(names += 1)}`;

const both = () => ({ proxy, onlooker: server.installation.database });

type CampaignRow = {
  organization_id: string;
  id: string;
  status: string;
  message_id: string | null;
  audience: number | null;
  sent_at: Date | null;
};

async function campaignRow(id: string): Promise<CampaignRow> {
  const [row] = await rowsOf<CampaignRow>('select * from campaigns where organization_id = $1 and id = $2', [
    server.organizationId,
    id,
  ]);
  return row!;
}

function createCampaign(listId: string): Promise<string> {
  return create('/email/campaigns', {
    name: 'News',
    from: 'hello@postillion.test',
    from_name: 'Postillion',
    subject: 'News',
    html: '<p>News</p>',
    list_ids: [listId],
  });
}

async function sendCampaign(id: string): Promise<void> {
  expect((await server.request('POST', `/v1/email/campaigns/${id}/send`, {})).status).toBe(200);
}

/** As a worker looks after it. */
function runningTools(database: Database): RunningTools {
  return {
    ...server.installation,
    database,
    channels: campaignChannels,
    admissionPauses: createPauses(server.installation.clock),
    progressPauses: createPauses(server.installation.clock),
    onAdmitted: () => undefined,
  };
}

/** From freezing to the queue, unless the campaign is stopped. */
async function runCampaign(database: Database, id: string): Promise<void> {
  const campaign = { organizationId: server.organizationId, id };
  await freezeCampaign(runningTools(database), campaign);
  await advanceCampaign(runningTools(database), campaign);
}

describe('a campaign that is frozen', () => {
  let listId: string;
  beforeAll(async () => {
    listId = await create('/lists', { name: newName() });
    await create('/contacts', { email: 'stays@example.com', list_ids: [listId] });
  });

  async function queued(): Promise<string> {
    const id = await createCampaign(listId);
    await sendCampaign(id);
    return id;
  }

  test('and cancelled is cancelled, and no recipient is left to be written to', async () => {
    const statements = await meetAtEachStatement(async () => {
      const id = await queued();
      return {
        ...both(),
        first: () => runCampaign(proxied, id),
        second: () => server.request('POST', `/v1/email/campaigns/${id}/cancel`),
        check: async ([, { status }], number) => {
          await runCampaign(server.installation.database, id);
          const { status: standing, message_id: messageId } = await campaignRow(id);
          const [left] = await rowsOf(
            `select (select count(*)::integer from delivery_queue where message_id = $2)
                 + (select count(*)::integer from delivery_slices where message_id = $2) as queued,
               (select count(*)::integer from campaign_slices where campaign_id = $1) as slices,
               (select count(*)::integer from holds where holder_id = $1) as holds`,
            [id, messageId],
          );
          expect({ number, status, standing, left }).toEqual({
            number,
            status: 200,
            standing: 'cancelled',
            left: { queued: 0, slices: 0, holds: 0 },
          });
        },
      };
    });
    expect(statements).toBeGreaterThan(10);
  });

  test('while a contact is deleted goes to everybody else, and never to the contact', async () => {
    await meetAtEachStatement(async () => {
      const name = newName();
      const goes = await create('/contacts', { email: `${name}@example.com`, list_ids: [listId] });
      const id = await queued();
      return {
        ...both(),
        first: () => runCampaign(proxied, id),
        second: () => server.request('DELETE', `/v1/contacts/${goes}`),
        check: async ([, { status }], number) => {
          await runCampaign(server.installation.database, id);
          const { message_id: messageId, audience } = await campaignRow(id);
          const recipients = await rowsOf('select from recipients where message_id = $1', [messageId]);
          const { jobs } = await claimSlices(server.installation.database, 1);
          const objections = await findObjections(server.installation, jobs);
          const told = jobs
            .filter((job) => job.messageId === messageId && !objections.has(job))
            .map(({ addressKey }) => addressKey);
          expect({ number, status, told, recipients: recipients.length }).toEqual({
            number,
            status: 200,
            told: ['stays@example.com'],
            recipients: audience,
          });
          await rowsOf('truncate delivery_slices');
        },
      };
    });
  });
});

let claims = 0;

function claim(database: Database, epoch: number, channel: 'email' | 'sms', lane: 0 | 1 = 0) {
  claims += 1;
  return claimDueJobs(database, {
    epoch,
    claimNumber: claims,
    at: dateOf(server.installation.clock.nowMs() + 1_000),
    channel: messageChannels[channel],
    lane,
    itemsMax: 100,
    afterOrganizationId: '00000000-0000-0000-0000-000000000000',
  });
}

test('two workers that claim at once claim each job once', async () => {
  const other = await createSender(server.installation, 'claims.example');
  await meetAtEachStatement(async () => {
    await rowsOf('truncate delivery_queue');
    for (let count = 1; count <= 3; count += 1) {
      await send(server);
      await send(server, { from: 'hello@claims.example' }, other);
    }
    return {
      ...both(),
      first: () => claim(proxied, 1, 'email'),
      second: () => claim(server.installation.database, 2, 'email'),
      check: async (taken, number) => {
        const told = taken.flatMap(({ jobs }, index) =>
          jobs.map(({ messageId }) => `${messageId} by ${index + 1}`),
        );
        const kept = await rowsOf<{ claim: string }>(
          `select message_id || ' by ' || claimed_by as claim from delivery_queue where claimed_by is not null`,
        );
        expect([number, told.sort()]).toEqual([number, kept.map((row) => row.claim).sort()]);
        expect(kept).toHaveLength(6);
      },
    };
  });
});

function claimSlices(database: Database, epoch: number) {
  claims += 1;
  return claimDueSlices(database, {
    epoch,
    claimNumber: claims,
    channel: messageChannels.email,
    slicesMax: 10,
    afterOrganizationId: '00000000-0000-0000-0000-000000000000',
  });
}

const writerTools = (database: Database): WriterTools => ({
  ...server.installation,
  channels: messageChannels,
  deliveries: [],
  database,
  random: () => 0.5,
  onCampaignProgress: () => undefined,
  onContactsChanged: () => undefined,
});

const listTaken = (jobs: readonly Job[]): Settled[] =>
  jobs.map((job) => ({
    settlement: settleOutcome(
      job,
      { kind: 'accepted', providerMessageId: '', reply: null },
      { atMs: server.installation.clock.nowMs(), random: 0.5, dateOf },
    ),
    message: null,
  }));

/** Handed off, as the worker of epoch 1 writes it. */
async function settle(database: Database, jobs: readonly Job[]): Promise<void> {
  const lease = { epoch: 1, signal: new AbortController().signal, release: () => Promise.resolve() };
  await writeUntilSettled(writerTools(database), lease, listTaken(jobs));
}

describe('a slice of a campaign', () => {
  let listId: string;
  beforeAll(async () => {
    listId = await create('/lists', { name: newName() });
    for (const name of ['ann', 'bob', 'cat'])
      await create('/contacts', { email: `${name}.${newName()}@example.com`, list_ids: [listId] });
  });

  async function admitted(): Promise<void> {
    await rowsOf('truncate delivery_queue, delivery_slices');
    const id = await createCampaign(listId);
    await sendCampaign(id);
    await runCampaign(server.installation.database, id);
  }

  test('that two workers claim at once goes to one of them', async () => {
    await meetAtEachStatement(async () => {
      await admitted();
      return {
        ...both(),
        first: () => claimSlices(proxied, 1),
        second: () => claimSlices(server.installation.database, 2),
        check: (claimed, number) => {
          const told = claimed.map(({ jobs }) => jobs.length).sort();
          expect([number, ...told]).toEqual([number, 0, 3]);
          return Promise.resolve();
        },
      };
    });
  });

  const outcomes = `
    select r.address, r.status, r.ambiguities,
      (select count(*)::integer from delivery_queue q where q.message_id = r.message_id and q.ordinal = r.ordinal) as queued
    from recipients r
    where r.message_id = $1
    order by r.ordinal`;

  test.each([
    ['as usual', writeTaken],
    ['that segments must hear of', writeSettlements],
  ])(
    'that is returned while an outcome is written, %s, has each recipient either handed off or queued',
    async (_how, write) => {
      await meetAtEachStatement(async () => {
        await admitted();
        const { jobs } = await claimSlices(server.installation.database, 1);
        const [ann] = jobs;
        return {
          ...both(),
          first: () => write(writerTools(proxied), 1, listTaken([ann!])),
          second: () => returnClaims(writerTools(server.installation.database), 1, settleCrash),
          check: async (_results, number) => {
            const rows = await rowsOf<{ status: string; queued: number }>(outcomes, [ann!.messageId]);
            const [first, ...others] = rows;
            expect(others).toMatchObject([
              { status: 'sent', queued: 1 },
              { status: 'sent', queued: 1 },
            ]);
            expect([number, (first!.status === 'delivered') === (first!.queued === 0)]).toEqual([
              number,
              true,
            ]);
            expect(await rowsOf('select from delivery_slices')).toEqual([]);
            await countChangedRecipients(server.installation);
          },
        };
      });
    },
  );

  test('that two workers return at once has each recipient queued once', async () => {
    await meetAtEachStatement(async () => {
      await admitted();
      const { jobs } = await claimSlices(server.installation.database, 1);
      return {
        ...both(),
        first: () => returnClaims(writerTools(proxied), 1, settleCrash),
        second: () => returnClaims(writerTools(server.installation.database), 1, settleCrash),
        check: async (_results, number) => {
          const rows = await rowsOf<{ queued: number }>(outcomes, [jobs[0]!.messageId]);
          expect([number, ...rows.map(({ queued }) => queued)]).toEqual([number, 1, 1, 1]);
          const [{ crashes } = { crashes: 0 }] = await rowsOf<{ crashes: number }>(
            'select max(crashes)::integer as crashes from delivery_queue',
          );
          expect(crashes).toBe(1);
        },
      };
    });
  });
});

describe('the last two recipients, settled at once,', () => {
  test('of an email leave it delivered', async () => {
    await meetAtEachStatement(async () => {
      const id = await send(server, { to: ['ann@example.com', 'bob@example.com'] });
      const { jobs } = await claim(server.installation.database, 1, 'email');
      const [ann, bob] = jobs.filter(({ messageId }) => messageId === id);
      return {
        ...both(),
        first: () => settle(proxied, [ann!]),
        second: () => settle(server.installation.database, [bob!]),
        check: async (_results, number) => {
          const [message] = await rowsOf<{ status: string }>('select status from messages where id = $1', [
            id,
          ]);
          expect([number, message?.status]).toEqual([number, 'delivered']);
        },
      };
    });
  });

  test('of a campaign leave it sent, once, and both counted', async () => {
    const listId = await create('/lists', { name: newName() });
    for (const name of ['ann', 'bob'])
      await create('/contacts', { email: `${name}.${listId}@example.com`, list_ids: [listId] });
    await rowsOf('create table status_moves (campaign_id uuid, status text)');
    await rowsOf(`create function note_status_move() returns trigger language plpgsql security definer as $$
      begin
        insert into status_moves values (new.id, new.status);
        return null;
      end $$`);
    await rowsOf(
      `create trigger note_status_move after update of status on campaigns for each row execute function note_status_move()`,
    );
    const finish = async (database: Database, job: Job, id: string) => {
      await settle(database, [job]);
      await countChangedRecipients({ database });
      await advanceCampaign(runningTools(database), { organizationId: server.organizationId, id });
    };
    await meetAtEachStatement(async () => {
      const id = await createCampaign(listId);
      await sendCampaign(id);
      await runCampaign(server.installation.database, id);
      // Given back, so that any two workers may have them.
      await spreadSlices(server.installation.database);
      const { jobs } = await claim(server.installation.database, 1, 'email', 1);
      expect(jobs).toHaveLength(2);
      return {
        ...both(),
        first: () => finish(proxied, jobs[0]!, id),
        second: () => finish(server.installation.database, jobs[1]!, id),
        check: async (_results, number) => {
          // A change wakes the chores that count and advance.
          await countChangedRecipients(server.installation);
          await runCampaign(server.installation.database, id);
          const moves = await rowsOf<{ status: string }>(
            `select status from status_moves where campaign_id = $1 and status = 'sent'`,
            [id],
          );
          const { body } = await server.request<{ status: string; stats: { sent: number; pending: number } }>(
            'GET',
            `/v1/email/campaigns/${id}`,
          );
          expect({ number, moves: moves.length, ...body, stats: { ...body.stats } }).toMatchObject({
            number,
            moves: 1,
            status: 'sent',
            stats: { sent: 2, pending: 0, delivered: 2 },
          });
        },
      };
    });
  });
});

test('two imports of the same contact leave one, with what both say', async () => {
  const importFile = (database: Database, text: string) => {
    async function* source() {
      yield await Promise.resolve(Buffer.from(text));
    }
    const tools: ImportTools = { ...server.installation, database };
    return importContacts(tools, {
      organizationId: server.organizationId,
      source: source(),
      lists: [],
      tags: [],
      mapped: [],
      ignored: [],
      isDryRun: false,
    });
  };
  await meetAtEachStatement(async () => {
    const name = newName();
    return {
      ...both(),
      first: () => importFile(proxied, `email,first_name,tags\n${name}@example.com,${name},one\n`),
      second: () =>
        importFile(server.installation.database, `email,last_name,tags\n${name}@example.com,Other,two\n`),
      check: async (outcomes, number) => {
        const contacts = await rowsOf(
          `select c.first_name, c.last_name,
             (select array_agg(s.name order by s.name)
              from memberships m join contact_sets s using (organization_id)
              where m.organization_id = c.organization_id and m.contact_id = c.id and s.id = m.set_id) as tags
           from contacts c where c.organization_id = $1 and c.email_key = $2`,
          [server.organizationId, `${name}@example.com`],
        );
        expect([number, contacts]).toEqual([
          number,
          [{ first_name: name, last_name: 'Other', tags: ['one', 'two'] }],
        ]);
        const created = outcomes.map((outcome) => outcome.kind === 'ended' && outcome.counts.created);
        expect(created.toSorted()).toEqual([0, 1]);
      },
    };
  });
});

test('one key on two nodes sends a campaign once', async () => {
  const listId = await create('/lists', { name: newName() });
  await create('/contacts', { email: `${listId}@example.com`, list_ids: [listId] });
  const node = await startApi({ ...server.installation, database: proxied }, { drainMs: 0 });
  const requestTo = async (url: string, id: string) => {
    const response = await fetch(`${url}/v1/email/campaigns/${id}/send`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${server.key}`,
        'content-type': 'application/json',
        'idempotency-key': `send ${id}`,
      },
      body: '{}',
    });
    return { status: response.status, isReplay: response.headers.has('idempotent-replayed') };
  };
  try {
    await meetAtEachStatement(async () => {
      const id = await createCampaign(listId);
      return {
        ...both(),
        first: () => requestTo(node.url, id),
        second: () => requestTo(server.url, id),
        check: async (responses, number) => {
          const messages = await rowsOf(
            'select from messages where campaign_id = $1 and organization_id = $2',
            [id, server.organizationId],
          );
          expect({ number, responses, messages: messages.length }).toMatchObject({ messages: 1 });
          expect(responses.filter(({ status, isReplay }) => status === 200 && !isReplay)).toHaveLength(1);
          expect([200, 503]).toEqual(expect.arrayContaining(responses.map(({ status }) => status)));
        },
      };
    });
  } finally {
    await node.stop();
  }
});

test('two changes of one template leave both', async () => {
  await meetAtEachStatement(async () => {
    const id = await create('/templates', { name: newName(), subject: 'Old', html: '<p>Old</p>' });
    const template = { organizationId: server.organizationId, id };
    return {
      ...both(),
      first: () =>
        updateTemplate({ ...server.installation, database: proxied }, template, { subject: 'New' }),
      second: () => updateTemplate(server.installation, template, { html: '<p>New</p>' }),
      check: async (_results, number) => {
        const { body } = await server.request<object>('GET', `/v1/templates/${id}`);
        expect({ number, ...body }).toMatchObject({ number, subject: 'New', html: '<p>New</p>' });
      },
    };
  });
});

test('a segment that one node computes while another follows changes has whom its conditions hold for', async () => {
  const { signal: never } = new AbortController();
  const aContact = (first: string) => create('/contacts', { external_id: newName(), first_name: first });
  const rename = async (id: string, to: string) => {
    expect((await server.request('PATCH', `/v1/contacts/${id}`, { first_name: to })).status).toBe(200);
  };
  const compute = async (database: Database) => {
    while (await computeNext({ ...server.installation, database }, server.organizationId, never));
  };
  /** Until nothing is left of the changes, or another node is at it. */
  const follow = async () => {
    while (await followChanges(server.installation, server.organizationId));
  };
  await meetAtEachStatement(async () => {
    const name = newName();
    const [comes, goes] = [await aContact('Other'), await aContact(name)];
    const segmentId = await create('/segments', {
      name,
      conditions: { type: 'field', field: 'first_name', operator: 'eq', value: name },
    });
    return {
      ...both(),
      first: () => compute(proxied),
      second: async () => {
        await rename(comes, name);
        await rename(goes, 'Other');
        await follow();
      },
      check: async (_results, number) => {
        await compute(server.installation.database);
        await follow();
        const members = await rowsOf('select contact_id as id from memberships where set_id = $1', [
          segmentId,
        ]);
        expect([number, members]).toEqual([number, [{ id: comes }]]);
      },
    };
  });
});

test('a contact who unsubscribes by a link while their consent to texts is taken back has neither', async () => {
  const { organizationId } = server;
  await meetAtEachStatement(async () => {
    const contactId = await create('/contacts', { email: `${newName()}@example.com` });
    return {
      ...both(),
      first: () =>
        proxied.asOrganizations([organizationId], (transaction) =>
          optOutContact(transaction, server.installation, 'email', { organizationId, id: contactId }),
        ),
      second: () =>
        server.request('PATCH', `/v1/contacts/${contactId}`, { consent: { sms: 'unsubscribed' } }),
      check: async ([outcome, { status }], number) => {
        const [contact] = await rowsOf<{ unsubscribed_channels: string[] }>(
          'select unsubscribed_channels from contacts where organization_id = $1 and id = $2',
          [organizationId, contactId],
        );
        expect([number, outcome, status]).toEqual([number, 'changed', 200]);
        expect(contact?.unsubscribed_channels.toSorted()).toEqual(['email', 'sms']);
      },
    };
  });
});

describe('a list that is deleted', () => {
  const key = (id: string) => ({ organizationId: server.organizationId, kind: 'list' as const, id });

  test('while a contact joins it is joined before, or not there', async () => {
    const contactId = await create('/contacts', { external_id: newName() });
    await meetAtEachStatement(async () => {
      const id = await create('/lists', { name: newName() });
      return {
        ...both(),
        first: () =>
          changeMembers(
            { ...server.installation, database: proxied },
            { ...key(id), contactIds: [contactId], change: 'join' },
          ),
        second: async () => {
          const outcome = await deleteSet(server.installation, key(id));
          const members = await rowsOf('select from memberships where set_id = $1', [id]);
          return [outcome, members.length];
        },
        check: async ([joined, [deleted, membersThen]], number) => {
          const members = await rowsOf('select from memberships where set_id = $1', [id]);
          const isJoined = membersThen === 1;
          expect([number, deleted, members.length]).toEqual([number, 'deleted', membersThen]);
          expect([number, joined]).toEqual([
            number,
            isJoined ? { changed: 1, unchanged: 0, notFoundIds: [] } : 'not_found',
          ]);
        },
      };
    });
  });

  test('while a campaign begins to use it stays, or the campaign is refused', async () => {
    const first = await create('/lists', { name: newName() });
    await meetAtEachStatement(async () => {
      const id = await create('/lists', { name: newName() });
      const campaignId = await createCampaign(first);
      const path = `/v1/email/campaigns/${campaignId}`;
      expect((await server.request('PATCH', path, { list_ids: [id] })).status).toBe(200);
      return {
        ...both(),
        first: () => deleteSet({ ...server.installation, database: proxied }, key(id)),
        second: () => server.request('POST', `${path}/send`, {}),
        check: async ([outcome, { status, text }], number) => {
          const holder = { organizationId: server.organizationId, kind: 'campaign', id: campaignId };
          expect([number, outcome, text]).toEqual([
            number,
            status === 200 ? holder : 'deleted',
            expect.anything(),
          ]);
          expect([200, 400]).toContain(status);
        },
      };
    });
  });
});

test('two nodes that erase at once erase two addresses', async () => {
  const at = dateOf(server.installation.clock.nowMs() + 600_000);
  const erase = (database: Database) =>
    eraseNext({ ...server.installation, channels: messageChannels, database }, at);
  await meetAtEachStatement(async () => {
    // What other tests have left.
    while (await erase(server.installation.database));
    for (let count = 1; count <= 2; count += 1) {
      const id = await create('/contacts', { email: `${newName()}@example.com` });
      expect((await server.request('DELETE', `/v1/contacts/${id}`)).status).toBe(200);
    }
    return {
      ...both(),
      first: () => erase(proxied),
      second: () => erase(server.installation.database),
      check: async (outcomes, number) => {
        const left = await rowsOf('select from erasures where due_at <= $1', [at]);
        expect([number, ...outcomes, left.length]).toEqual([number, true, true, 0]);
      },
    };
  });
});
