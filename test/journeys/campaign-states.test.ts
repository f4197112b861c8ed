/** What may be done to a campaign in each of its states: generated, every status with every trigger. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { campaignStatuses, type CampaignStatus, type Trigger, triggers } from '../../src/campaigns/states.ts';
import { type ErrorBody, rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let listId: string;

beforeAll(async () => {
  server = await startTestServer();
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  listId = (await server.request<{ id: string }>('POST', '/v1/lists', { name: 'Everybody' })).body.id;
});
afterAll(() => server.stop());

const soon = new Date(Date.now() + 3_600_000).toISOString();

const pull: Readonly<Record<Trigger, { method: string; path: string; body?: object }>> = {
  update: { method: 'PATCH', path: '', body: { subject: 'Other' } },
  send: { method: 'POST', path: '/send', body: {} },
  schedule: { method: 'POST', path: '/send', body: { scheduled_at: soon } },
  cancel: { method: 'POST', path: '/cancel' },
  resume: { method: 'POST', path: '/resume' },
  delete: { method: 'DELETE', path: '' },
};

/** Where each trigger leads, or with what it is refused, in the order of `triggers`. Written out once more on purpose. */
const outcomes: Readonly<Record<CampaignStatus, readonly (CampaignStatus | 'deleted' | 400 | 409)[]>> = {
  draft: ['draft', 'queued', 'scheduled', 400, 400, 'deleted'],
  scheduled: ['scheduled', 'queued', 'scheduled', 'cancelled', 400, 'deleted'],
  queued: [400, 400, 400, 'cancelled', 400, 409],
  sending: [400, 400, 400, 'cancelled', 400, 409],
  sent: [400, 400, 400, 400, 400, 'deleted'],
  paused: [400, 400, 400, 400, 400, 'deleted'],
  failed: [400, 400, 400, 400, 400, 'deleted'],
  cancelled: [400, 400, 400, 400, 400, 'deleted'],
};

/** What a row has in each state besides its status. */
const columns: Partial<Record<CampaignStatus, string>> = {
  scheduled: 'scheduled_at = now()',
  queued: 'message_id = $2',
  sending: 'message_id = $2',
  sent: 'message_id = $2',
  paused: "message_id = $2, pause_reason = 'quota_exceeded'",
};

/** Ready to be sent, and put into a state by SQL. */
async function makeCampaign(status: CampaignStatus, more = columns[status]): Promise<string> {
  const { body } = await server.request<{ id: string }>('POST', '/v1/email/campaigns', {
    name: status,
    from: 'a@postillion.test',
    subject: 'Hello',
    text: 'Hello',
    list_ids: [listId],
  });
  await rowsOf(
    server,
    `update campaigns set status = $3 ${more === undefined ? '' : `, ${more}`}
     where id = $1 and ($2::uuid is not null)`,
    [body.id, randomUUID(), status],
  );
  return body.id;
}

type Row = { status: CampaignStatus; deleted_at: Date | null; content: object };

async function rowOf(id: string): Promise<Row> {
  const [row] = await rowsOf<Row>(server, 'select * from campaigns where id = $1', [id]);
  return row!;
}

function pullTrigger(trigger: Trigger, id: string) {
  const { method, path, body } = pull[trigger];
  return server.request<ErrorBody>(method, `/v1/email/campaigns/${id}${path}`, body);
}

test.each(
  campaignStatuses.flatMap((status) =>
    triggers.map((trigger, index) => [status, trigger, outcomes[status][index]!] as const),
  ),
)('%s + %s = %s', async (status, trigger, outcome) => {
  const id = await makeCampaign(status);
  const before = await rowOf(id);
  const response = await pullTrigger(trigger, id);
  const after = await rowOf(id);
  if (typeof outcome === 'number') {
    expect([response.status, response.body]).toEqual([
      outcome,
      {
        status_code: outcome,
        name: outcome === 409 ? 'conflict' : 'bad_request',
        message: expect.stringContaining(status),
      },
    ]);
    expect(after).toEqual(before);
    return;
  }
  expect([response.status, response.body]).toEqual([
    200,
    trigger === 'delete' ? { object: 'email_campaign', id, deleted: true } : { id },
  ]);
  expect(after.status).toBe(outcome === 'deleted' ? status : outcome);
  expect(after.deleted_at !== null).toBe(outcome === 'deleted');
  expect('subject' in after.content && after.content.subject).toBe(trigger === 'update' ? 'Other' : 'Hello');
});

test('a request to send that has lost its body sends nothing: it may have named a time', async () => {
  const id = await makeCampaign('draft');
  const response = await server.request<ErrorBody>('POST', `/v1/email/campaigns/${id}/send`);
  expect([response.status, response.body.name]).toEqual([400, 'bad_request']);
  expect(await rowOf(id)).toMatchObject({ status: 'draft' });
});

test('only one that missed its schedule is resumed, and is queued then', async () => {
  const missed = await makeCampaign('paused', "pause_reason = 'schedule_missed', scheduled_at = now()");
  expect((await pullTrigger('resume', missed)).body).toEqual({ id: missed });
  expect(await rowOf(missed)).toMatchObject({
    status: 'queued',
    pause_reason: null,
    message_id: expect.any(String),
    scheduled_at: expect.any(Date),
  });
  expect((await pullTrigger('resume', missed)).status).toBe(400);
});

test.each(campaignStatuses)('one that was deleted while %s is not there any more', async (status) => {
  const id = await makeCampaign(status);
  await rowsOf(server, 'update campaigns set deleted_at = now() where id = $1', [id]);
  for (const trigger of triggers) {
    expect([trigger, (await pullTrigger(trigger, id)).status]).toEqual([trigger, 404]);
  }
  expect((await server.request('GET', `/v1/email/campaigns/${id}`)).status).toBe(404);
});
