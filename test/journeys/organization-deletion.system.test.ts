/** The deletion of an organization, by the command, while it is served and has mail to leave. */
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { json } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { startWorker } from '../../src/roles/worker.ts';
import { insertSentCampaign, queueCampaign } from '../support/campaign-fixture.ts';
import { authorize, eventually, rowsOf, send, type Sender, settled } from '../support/email-journey.ts';
import { usePrograms } from '../support/programs.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createTestDatabase, databaseUrlOf, type TestDatabase } from '../support/test-database.ts';

let testDatabase: TestDatabase;
let server: TestServer;
let rival: Sender & { organizationId: string };
beforeEach(async () => {
  testDatabase = await createTestDatabase({ hasNeighbour: true });
  server = await startTestServer({ database: testDatabase.address });
  rival = await createSender(server.installation, 'rival.test');
});
/** What would keep the server from stopping if the test fails. */
const opened: { end: () => unknown }[] = [];
afterEach(async () => {
  for (const each of opened.splice(0)) await each.end();
  await server.stop();
  await testDatabase.drop();
});
const programs = usePrograms();

const settings = () => ({
  DATABASE_URL: databaseUrlOf(testDatabase.address),
  POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
});
const command = (...words: string[]) => programs.start(settings(), [...words, '--json']);

async function run<Result>(...words: string[]): Promise<Result & { error?: string }> {
  const { output } = await programs.run(settings(), ...words, '--json');
  return JSON.parse(output) as Result & { error?: string };
}

const deletionOf = async (id: string) => {
  const [row] = await rowsOf<{ deletion: string | null }>(
    server,
    'select deletion from organizations where id = $1',
    [id],
  );
  return row?.deletion;
};

/** A campaign to one contact, as the API takes it. */
async function sendCampaign(sender?: Sender, from = 'hello@postillion.test'): Promise<string> {
  const create = async (path: string, body: object) => {
    const response = await server.request<{ id: string }>('POST', path, body, authorize(sender));
    expect(response.status, response.text).toBe(201);
    return response.body.id;
  };
  const listId = await create('/v1/lists', { name: 'Readers' });
  await create('/v1/contacts', { email: 'reader@example.com', list_ids: [listId] });
  const content = { from, subject: 'News', text: 'News. {{unsubscribe_url}}', list_ids: [listId] };
  const id = await create('/v1/email/campaigns', { name: 'News', ...content });
  await server.request('POST', `/v1/email/campaigns/${id}/send`, {}, authorize(sender));
  return id;
}

async function statusOf(campaignId: string): Promise<string | undefined> {
  const [row] = await rowsOf<{ status: string }>(server, 'select status from campaigns where id = $1', [
    campaignId,
  ]);
  return row?.status;
}

/** Keeps the deletion from its end until it is let go. By a session without a transaction, for which it would wait. */
async function holdDeletionOfContacts(): Promise<() => Promise<void>> {
  await rowsOf(
    server,
    `create function wait_until_let_go() returns trigger language plpgsql as $$
     begin
       perform pg_advisory_xact_lock_shared(740523);
       return null;
     end $$`,
  );
  await rowsOf(
    server,
    'create trigger wait_until_let_go before delete on contacts execute function wait_until_let_go()',
  );
  const client = await server.installation.database.connectAlone('test');
  opened.push({ end: () => client.end() });
  await client.query('select pg_advisory_lock(740523)');
  return async () => {
    await client.query('select pg_advisory_unlock(740523)');
  };
}

/** A request whose key is looked at now, and whose body ends when `finish` is called. */
async function beginTemplate(): Promise<{ finish: () => Promise<{ status?: number; message: string }> }> {
  const late = request(`${server.url}/v1/templates`, {
    method: 'POST',
    headers: { authorization: `Bearer ${server.key}`, 'content-type': 'application/json' },
  });
  late.on('error', () => undefined);
  opened.push({ end: () => late.destroy() });
  // What has not arrived is given the time that this much takes on a slow line: a minute and a half.
  await new Promise<void>((resolve) => {
    late.write(`{"name": "Late", "subject": "Late", "text": "Late"${' '.repeat(2_900_000)}`, () => {
      resolve();
    });
  });
  return {
    finish: async () => {
      late.end('}');
      const [response] = (await once(late, 'response')) as [IncomingMessage];
      const { message } = (await json(response)) as { message: string };
      return { status: response.statusCode!, message };
    },
  };
}

/** How many rows of an organization each table has that has any. */
async function countAll(organizationId: string): Promise<Record<string, number>> {
  const tables = await rowsOf<{ name: string }>(
    server,
    `select c.relname as name
     from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id'
     where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace
     order by name`,
  );
  const counts: Record<string, number> = {};
  for (const { name } of tables) {
    const [row] = await rowsOf<{ rows: number }>(
      server,
      `select count(*)::integer as rows from ${name} where organization_id = $1`,
      [organizationId],
    );
    if (row!.rows > 0) counts[name] = row!.rows;
  }
  return counts;
}

test('an organization is refused, silent and unknown from its deletion on, which a second run ends after a kill', async () => {
  const { organizationId } = server;
  await setUpPush(server);
  const phone = await register(server, androidApp('phone', { contact_id: await aPushContact(server) }));
  const ann = await server.request<{ id: string }>('POST', '/v1/contacts', { email: 'ann@example.com' });
  await server.request('POST', '/v1/contacts', { email: 'ann@example.com' }, authorize(rival));
  // Two campaigns under way: one with jobs in the queue, and one that a worker has to begin.
  const { tokens, messageId } = await insertSentCampaign(server.installation, {
    organizationId,
    contacts: [{ id: ann.body.id, email: 'ann@example.com' }],
    listIds: [],
  });
  await queueCampaign(server.installation, messageId);
  const begun = { own: await sendCampaign(), of: await sendCampaign(rival, 'hello@rival.test') };
  const unsubscribePage = async () => {
    const response = await fetch(`${server.url}/u/${tokens[0]!.unsubscribe}`);
    return { status: response.status, text: await response.text() };
  };
  const reportOf = () =>
    server.request(
      'POST',
      '/v1/push/engagements',
      { events: [] },
      { authorization: `Bearer ${phone.device_secret!}` },
    );
  const keyStatus = async () => (await server.request('GET', '/v1/contacts')).status;
  expect((await unsubscribePage()).status).toBe(200);
  expect((await reportOf()).status).toBe(422);
  await send(server);
  await send(server);

  const letGo = await holdDeletionOfContacts();
  const late = await beginTemplate();

  const refused = await run('org', 'delete', '--org', organizationId);
  expect(refused.error).toMatch(/^Nothing was deleted\. Test organization would go with 3 contacts;/);
  expect((await run('org', 'delete', '--org', organizationId, '--confirm', 'Test')).error).toBe(
    'Nothing was deleted: the organization is called Test organization, and not Test.',
  );
  expect(await keyStatus()).toBe(200);

  const first = command('org', 'delete', '--org', organizationId, '--confirm', 'Test organization');
  await eventually(
    () => deletionOf(organizationId),
    (deletion) => deletion === 'requested',
  );
  // A worker that begins now finds mail of both, and hands off that of one.
  const worker = await startWorker(server.installation);
  const delivered = await send(server, { from: 'hello@rival.test' }, rival);
  await settled(server, delivered, rival);
  await eventually(
    () => statusOf(begun.of),
    (status) => status === 'sent',
  );
  expect(await statusOf(begun.own)).toBe('queued');
  await eventually(keyStatus, (status) => status === 401);
  expect((await reportOf()).status).toBe(401);
  await eventually(
    () => deletionOf(organizationId),
    (deletion) => deletion === 'under_way',
  );
  expect(await unsubscribePage()).toMatchObject({ status: 404 });
  expect((await run('org', 'update', '--org', organizationId, '--suspend', 'email')).error).toMatch(
    /^The organization Test organization is being deleted\./,
  );
  const { data } = await run<{ data: { id: string; deletion: string | null }[] }>('org', 'list');
  expect(data).toContainEqual(expect.objectContaining({ id: organizationId, deletion: 'under_way' }));
  // As small as the contacts, and before them by its name.
  await eventually(
    () => countAll(organizationId),
    ({ api_keys: keys }) => keys === undefined,
  );
  first.child.kill('SIGKILL');
  await first.ended;
  expect(await countAll(organizationId)).toMatchObject({ contacts: 3 });
  await letGo();
  const doctor = await run<{ findings: { subject: string; found: string }[] }>('doctor');
  expect(doctor.findings).toContainEqual(
    expect.objectContaining({ subject: 'organizations', found: 'Test organization is being deleted' }),
  );

  const ofRival = await countAll(rival.organizationId);
  expect(await run('org', 'delete', '--org', organizationId, '--confirm', 'Test organization')).toMatchObject(
    { id: organizationId, deleted: true },
  );
  expect(await countAll(organizationId)).toEqual({});
  expect(await deletionOf(organizationId)).toBe('gone');
  expect(await late.finish()).toEqual({
    status: 401,
    message: 'The organization of this API key is being deleted.',
  });
  expect(await countAll(organizationId)).toEqual({});
  const after = await run<{ data: { id: string }[] }>('org', 'list');
  expect(after.data.map(({ id }) => id)).not.toContain(organizationId);
  expect((await run('org', 'delete', '--org', organizationId)).error).toMatch(/^There is no organization /);
  expect(await countAll(rival.organizationId)).toEqual(ofRival);
  expect((await unsubscribePage()).status).toBe(404);
  const handedOff = await rowsOf<{ sender: string }>(server, 'select sender from sandbox_messages');
  // The mail and the campaign of the other.
  expect(handedOff).toHaveLength(2);
  await settled(server, await send(server, { from: 'hello@rival.test' }, rival), rival);
  await worker.stop();
});
