/** The senders of texts, as the organizations that may use them see them. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addSender, approveSender, rejectSender, sandboxSender } from '../../src/senders/senders.ts';
import { createFirstOrganization } from '../../src/installation/sandbox-organization.ts';
import { useTestDatabase } from '../support/test-database.ts';
import type { Database } from '../../src/platform/postgres/database.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import type { ErrorBody } from '../support/email-journey.ts';

const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

type Senders = { object: string; has_more: boolean; data: { id: string; name: string }[] };

async function add(name: string, organizationId = server.organizationId): Promise<string> {
  const outcome = await addSender(server.installation, { organizationId, name, type: null });
  if (outcome.kind !== 'added') throw new Error(`${name} is ${outcome.kind}`);
  return outcome.sender.id;
}

const list = async (query = '') => (await server.request<Senders>('GET', `/v1/sms/senders${query}`)).body;
const namesOf = ({ data }: Senders) => data.map(({ name }) => name);

test('only approved ones are listed, of the own organization, newest first and page by page', async () => {
  expect(await list()).toEqual({ object: 'list', has_more: false, data: [] });
  const other = await createSender(server.installation, 'elsewhere.example');
  const ids = [
    await add('One'),
    await add('Two'),
    await add('+14155550123'),
    await add('Theirs', other.organizationId),
  ];
  const rejected = await add('Rejected');
  await add('Pending');
  for (const id of [...ids, rejected]) await approveSender(server.installation, id);
  await rejectSender(server.installation, rejected);

  const all = await list();
  expect(namesOf(all)).toEqual(['14155550123', 'Two', 'One']);
  expect(all.data[0]).toEqual({
    id: ids[2],
    name: '14155550123',
    type: 'long_code',
    status: 'approved',
    created_at: expect.stringMatching(/Z$/) as string,
    approved_at: expect.stringMatching(/Z$/) as string,
  });
  const first = await list('?limit=2');
  expect([namesOf(first), first.has_more]).toEqual([['14155550123', 'Two'], true]);
  const second = await list(`?limit=2&after=${first.data[1]!.id}`);
  expect([namesOf(second), second.has_more]).toEqual([['One'], false]);
  const back = await list(`?limit=1&before=${second.data[0]!.id}`);
  expect([namesOf(back), back.has_more]).toEqual([['Two'], true]);
});

test.each([
  ['?limit=0', 422],
  ['?limit=101', 422],
  ['?after=x', 422],
  [`?after=${unknownId}&before=${unknownId}`, 400],
  ['?search=One', 422],
])('a list that is asked for with %s is refused', async (query, status) => {
  const response = await server.request<ErrorBody>('GET', `/v1/sms/senders${query}`);
  expect([response.status, response.body.status_code]).toEqual([status, status]);
});

let fresh: Database;
useTestDatabase({}, (opened) => {
  fresh = opened.database;
});

test('the first organization of a fresh installation has one to begin with', async () => {
  const first = await createFirstOrganization({ ...server.installation, database: fresh });
  if (first === 'exists') throw new Error('there is no organization yet');
  expect(first.sender).toBe(sandboxSender);
  const rows = await fresh.rows<object>({
    text: 'select organization_id, name, type, status from senders',
  });
  expect(rows).toEqual([
    {
      organization_id: first.organizationId,
      name: 'Postillion',
      type: 'alphanumeric',
      status: 'approved',
    },
  ]);
  expect(await createFirstOrganization({ ...server.installation, database: fresh })).toBe('exists');
});
