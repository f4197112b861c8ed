import { afterAll, beforeAll, expect, test } from 'vitest';
import { rowsOf } from '../../test/support/email-journey.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import { type Log, silentLog } from '../platform/log.ts';
import { startClearing } from './jobs.ts';

let server: TestServer;
/** Of one transaction; there are twice as many of everything, and one more. */
const itemsMax = 2;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

type Owner = { organizationId: string; key: string };

async function make(owner: Owner, path: string, body: object): Promise<string> {
  const headers = { authorization: `Bearer ${owner.key}` };
  const response = await server.request<{ id: string }>('POST', `/v1/${path}`, body, headers);
  expect(response.status).toBe(201);
  return response.body.id;
}

/** A list and a property, five contacts that have both, and four that have the property alone. */
async function populate(owner: Owner): Promise<{ listId: string; propertyId: string }> {
  const listId = await make(owner, 'lists', { name: 'News' });
  const propertyId = await make(owner, 'properties', { key: 'score', name: 'Score', type: 'number' });
  for (let number = 0; number < 2 * itemsMax + 1; number += 1)
    await make(owner, 'contacts', {
      external_id: `c${number}`,
      list_ids: [listId],
      properties: { score: number },
    });
  // Nothing but values is left at last.
  for (const external_id of ['d1', 'd2', 'd3', 'd4'])
    await make(owner, 'contacts', { external_id, properties: { score: 1 } });
  return { listId, propertyId };
}

/** How many members of lists and how many values the organization still has. */
async function leftOf({ organizationId }: Owner) {
  const [row] = await rowsOf(
    server,
    `select (select count(*) from memberships where organization_id = $1) as members,
       (select count(*) from contacts where organization_id = $1 and properties <> '{}') as values,
       (select count(*) from contact_sets where organization_id = $1) as sets,
       (select count(*) from contact_properties where organization_id = $1 and forgotten_at is null) as properties`,
    [organizationId],
  );
  return row;
}

async function deleteAll(owner: Owner, paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    const headers = { authorization: `Bearer ${owner.key}` };
    expect((await server.request('DELETE', `/v1/${path}`, undefined, headers)).status).toBe(200);
  }
}

function startClearingUp(log: Log) {
  const { installation } = server;
  // Whoever began to write values before the deletion is done by then.
  const clock = createManualClock(installation.clock.nowMs() + 61_000);
  const clearing = startClearing({
    ...installation,
    database: { ...installation.database, connectAlone: () => Promise.reject(new Error('nobody notifies')) },
    clock,
    log,
    membersMax: itemsMax,
    contactsMax: itemsMax,
  });
  return { clock, clearing };
}

test('five members and nine values of what was deleted are removed two at a time, and nobody else’s', async () => {
  const [own, other]: Owner[] = [
    await createSender(server.installation, 'own.example'),
    await createSender(server.installation, 'other.example'),
  ];
  const { listId, propertyId } = await populate(own!);
  await populate(other!);
  await deleteAll(own!, [`lists/${listId}`, `properties/${propertyId}`]);
  const { clock, clearing } = startClearingUp(silentLog);
  // It sleeps, and so does its next attempt at listening.
  await clock.whenWaiting(2);
  await clearing.stop();
  expect(await leftOf(own!)).toEqual({ members: 0, values: 0, sets: 0, properties: 0 });
  expect(await leftOf(other!)).toEqual({ members: 5, values: 9, sets: 1, properties: 1 });
});

test('what cannot be cleared up after is put off, and keeps nobody else from their turn', async () => {
  const [broken, other]: Owner[] = [
    await createSender(server.installation, 'broken.example'),
    await createSender(server.installation, 'waiting.example'),
  ];
  for (const owner of [broken!, other!]) {
    const { listId, propertyId } = await populate(owner);
    await deleteAll(owner, [`lists/${listId}`, `properties/${propertyId}`]);
  }
  await rowsOf(
    server,
    `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
  );
  for (const change of ['delete on memberships', 'update on contacts'])
    await rowsOf(
      server,
      `create trigger refusing before ${change} for each row
       when (old.organization_id = '${broken!.organizationId}') execute function refuse()`,
    );
  const logged: object[] = [];
  const { clock, clearing } = startClearingUp({
    ...silentLog,
    error: (fields: object) => void logged.push(fields),
  });
  // It sleeps, and so does its next attempt at listening.
  await clock.whenWaiting(2);
  expect(await leftOf(other!)).toEqual({ members: 0, values: 0, sets: 0, properties: 0 });
  expect(await leftOf(broken!)).toEqual({ members: 5, values: 9, sets: 1, properties: 1 });
  expect(logged).toMatchObject([
    { organization_id: broken!.organizationId, set_id: expect.any(String) as unknown },
    { organization_id: broken!.organizationId, property_id: expect.any(String) as unknown },
  ]);

  await rowsOf(server, 'drop function refuse() cascade');
  // They were put off for as long as they had waited.
  clock.advance(70_000);
  await clock.whenWaiting(2);
  await clearing.stop();
  expect(await leftOf(broken!)).toEqual({ members: 0, values: 0, sets: 0, properties: 0 });
});
