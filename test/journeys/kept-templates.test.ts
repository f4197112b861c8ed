/**
 * Mail of a saved template on two nodes: what a node keeps in memory is never sent once a change of it was answered,
 * whichever node made it; nor is anything accepted that an account may not send any more.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { sandboxDomain } from '../../src/domains/domains.ts';
import { type Database, openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { startApi } from '../../src/roles/api.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let testDatabase: TestDatabase;
let node: TestServer;
/** The second node has nothing in common with the first but the database. */
let other: Awaited<ReturnType<typeof startApi>>;
let database: Database;

beforeAll(async () => {
  testDatabase = await createTestDatabase({ hasNeighbour: true });
  node = await startTestServer({ database: testDatabase.address });
  database = openDatabase({ address: testDatabase.address, connectionsMax: 2 });
  other = await startApi({ ...node.installation, database }, { drainMs: 0 });
});
afterAll(async () => {
  await other.stop();
  await database.close();
  await node.stop();
  await testDatabase.drop();
});

type Sender = { organizationId: string; key: string; domain: string };

let senders = 0;
/** With a domain of its own, so that no test disturbs another. */
async function aSender(): Promise<Sender> {
  senders += 1;
  const domain = `kept${senders}.example`;
  return { ...(await createSender(node.installation, domain)), domain };
}

async function ask<Body>(
  { url }: { url: string },
  sender: Sender,
  method: string,
  path: string,
  body?: unknown,
): Promise<{ status: number; body: Body; text: string }> {
  const response = await fetch(`${url}/v1${path}`, {
    method,
    headers: {
      authorization: `Bearer ${sender.key}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, text, body: (text === '' ? null : JSON.parse(text)) as Body };
}

async function aTemplate(sender: Sender, more: object = {}): Promise<string> {
  const { body } = await ask<{ id: string }>(other, sender, 'POST', '/templates', {
    name: 'Kept',
    subject: 'First of {{name}}',
    text: 'The first, {{name}}',
    ...more,
  });
  return body.id;
}

const send = (sender: Sender, templateId: string, more: object = {}) =>
  ask<{ id: string; name: string }>(node, sender, 'POST', '/email/send', {
    from: `hello@${sender.domain}`,
    from_name: 'Sender',
    to: ['ann@example.com'],
    template_id: templateId,
    variables: { name: 'Ann' },
    ...more,
  });

/** Subject and text of what was accepted, or the name of the error. */
async function sendAndRead(sender: Sender, templateId: string, more: object = {}): Promise<string> {
  const { status, body } = await send(sender, templateId, more);
  return status === 202 ? readStored(sender, body.id) : body.name;
}

async function readStored({ organizationId }: Sender, id: string): Promise<string> {
  const [row] = await database.rows(
    unpreparedStatement<{ subject: string; text: string }>(
      `select m.subject, c.content ->> 'text' as text
       from messages m
       join message_contents c on c.organization_id = m.organization_id and c.message_id = m.id
       where m.organization_id = $1 and m.id = $2`,
    ),
    [organizationId, id],
  );
  return `${row?.subject}: ${row?.text}`;
}

const change = (sender: Sender, templateId: string, patch: object) =>
  ask(other, sender, 'PATCH', `/templates/${templateId}`, patch);

describe('a template that another node has changed', () => {
  test('is sent as it is now, by the first request after the change and by many at once', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    expect(await sendAndRead(sender, id)).toBe('First of Ann: The first, Ann');
    expect(await sendAndRead(sender, id)).toBe('First of Ann: The first, Ann');
    for (const [round, text] of ['The second, {{name}}', 'The third, {{name}}'].entries()) {
      expect((await change(sender, id, { text })).status).toBe(200);
      const sent = await Promise.all(Array.from({ length: 1 + 50 * round }, () => sendAndRead(sender, id)));
      expect([...new Set(sent)]).toEqual([`First of Ann: ${text.replace('{{name}}', 'Ann')}`]);
    }
  });

  test('is sent as it is now under an idempotency key as well, and beside requests that are refused', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    await sendAndRead(sender, id);
    await change(sender, id, { text: 'Changed' });
    const keyed = (key: string) =>
      node.request<{ id: string }>(
        'POST',
        '/v1/email/send',
        { from: `hello@${sender.domain}`, from_name: 'Sender', to: ['ann@example.com'], template_id: id },
        { authorization: `Bearer ${sender.key}`, 'idempotency-key': key },
      );
    const [first, refused] = await Promise.all([
      keyed('one'),
      send(sender, id, { from: 'hello@nobody.example' }),
    ]);
    expect([first.status, refused.status]).toEqual([202, 400]);
    expect(await readStored(sender, first.body.id)).toBe('First of {{name}}: Changed');
    expect((await keyed('one')).body).toEqual(first.body);
  });

  test('gives a subject to requests that had none to take', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender, { subject: undefined });
    expect(await sendAndRead(sender, id, { subject: 'Own' })).toBe('Own: The first, Ann');
    expect(await sendAndRead(sender, id)).toBe('validation_error');
    await change(sender, id, { subject: 'Now there is one' });
    expect(await sendAndRead(sender, id)).toBe('Now there is one: The first, Ann');
  });

  test('counts as it was committed: a change that is not yet, or never, is not sent and delays nothing', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    await sendAndRead(sender, id);
    const undone = database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement("update templates set text = 'Never' where id = $1"), [id]);
      expect(await sendAndRead(sender, id)).toBe('First of Ann: The first, Ann');
      throw new Error('undone');
    });
    await expect(undone).rejects.toThrow('undone');
    expect(await sendAndRead(sender, id)).toBe('First of Ann: The first, Ann');
  });

  test('is sent as it is now even if the change has the time of the one before', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    await sendAndRead(sender, id);
    await database.rows(unpreparedStatement("update templates set text = 'At the same time' where id = $1"), [
      id,
    ]);
    expect(await sendAndRead(sender, id)).toBe('First of Ann: At the same time');
  });

  test('while a request waits for its quota, is sent as it is then', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    await updateOrganization(node.installation, sender.organizationId, { quotas: { email: 100 } });
    // The first finds out that there is a quota, the second is the first that holds it at once.
    for (const _time of [1, 2]) await sendAndRead(sender, id);
    const sending = await database.transaction(async (transaction) => {
      await transaction.rows(
        unpreparedStatement('select from quota_usage where organization_id = $1 for update'),
        [sender.organizationId],
      );
      const waiting = sendAndRead(sender, id);
      const waits = unpreparedStatement("select from pg_stat_activity where wait_event_type = 'Lock'");
      while ((await database.rows(waits)).length === 0);
      await change(sender, id, { text: 'Changed meanwhile' });
      return { waiting };
    });
    expect(await sending.waiting).toBe('First of Ann: Changed meanwhile');
  });

  test('is gone when it was deleted', async () => {
    const sender = await aSender();
    const id = await aTemplate(sender);
    await sendAndRead(sender, id);
    await ask(other, sender, 'DELETE', `/templates/${id}`);
    expect(await sendAndRead(sender, id)).toBe('not_found');
  });
});

test('a template that one organization has sent is unknown to another, in any letters', async () => {
  const [sender, stranger] = [await aSender(), await aSender()];
  const id = await aTemplate(sender);
  expect(await sendAndRead(sender, id.toUpperCase())).toBe('First of Ann: The first, Ann');
  expect(await sendAndRead(sender, id)).toBe('First of Ann: The first, Ann');
  const unknown = await send(stranger, '01934c1e-9f3a-7cc0-8b1a-0123456789ab');
  const foreign = await send(stranger, id);
  expect([foreign.status, foreign.body]).toEqual([
    unknown.status,
    JSON.parse(unknown.text.replace('01934c1e-9f3a-7cc0-8b1a-0123456789ab', id)),
  ]);
});

describe('an account that was changed on another node', () => {
  const sendPlainly = async (sender: Sender, count = 1) => {
    const { status, body } = await ask<{ name?: string }>(node, sender, 'POST', '/email/send', {
      from: `hello@${sender.domain}`,
      from_name: 'Sender',
      to: Array.from({ length: count }, (_none, index) => `r${index}@example.com`),
      subject: 'Subject',
      text: 'Text',
    });
    return body.name ?? status;
  };

  test('is suspended, limited and freed from the next request on', async () => {
    const sender = await aSender();
    const update = (plan: Parameters<typeof updateOrganization>[2]) =>
      updateOrganization(node.installation, sender.organizationId, plan);
    expect(await sendPlainly(sender)).toBe(202);
    await update({ suspend: ['email'] });
    expect(await sendPlainly(sender)).toBe('sending_suspended');
    await update({ resume: ['email'], quotas: { email: 3 } });
    expect(await sendPlainly(sender)).toBe(202);
    expect(await sendPlainly(sender, 2)).toBe('monthly_quota_exceeded');
    expect(await sendPlainly(sender)).toBe(202);
    expect(await sendPlainly(sender)).toBe('monthly_quota_exceeded');
    await update({ quotas: { email: null } });
    expect(await sendPlainly(sender, 5)).toBe(202);
    await update({ quotas: { email: 9 } });
    expect(await sendPlainly(sender)).toBe(202);
    expect(await sendPlainly(sender)).toBe('monthly_quota_exceeded');
  });

  test('sends no more from a domain that was deleted, and is now that of another organization', async () => {
    const [sender, heir] = [await aSender(), await aSender()];
    expect(await sendPlainly(sender)).toBe(202);
    const { body } = await ask<{ data: { id: string }[] }>(other, sender, 'GET', '/email/domains');
    expect((await ask(other, sender, 'DELETE', `/email/domains/${body.data[0]!.id}`)).status).toBeLessThan(
      300,
    );
    expect(await sendPlainly(sender)).toBe('bad_request');
    await database.rows(unpreparedStatement('update domains set name = $2 where organization_id = $1'), [
      heir.organizationId,
      sender.domain,
    ]);
    expect(await sendPlainly(sender)).toBe('bad_request');
    expect(await sendPlainly({ ...heir, domain: sender.domain })).toBe(202);
    expect(await sendPlainly({ ...heir, domain: sandboxDomain })).toBe('bad_request');
  });
});
