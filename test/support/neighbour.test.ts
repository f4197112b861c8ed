import { afterAll, beforeAll, expect, test } from 'vitest';
import { rowsOf } from './email-journey.ts';
import { neighbourId } from './neighbour.ts';
import { startTestServer, type TestServer } from './server.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

async function create(path: string, body: object): Promise<string> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

test('the neighbour has the same people, who say the contrary', async () => {
  await create('/properties', { key: 'score', name: 'Score', type: 'number' });
  const list = await create('/lists', { name: 'Customers' });
  const email = 'ann@example.com';
  const contact = await create('/contacts', { email, properties: { score: 5 }, list_ids: [list] });
  const twins = await rowsOf<{ id: string }>(
    server,
    `select c.id, c.email, c.properties, c.unsubscribed_channels, p.type, s.name, s.id <> $2 as is_other_list,
       exists (select from suppressions where organization_id = $1 and address = c.email_key) as is_suppressed,
       (select sum(contacts) from membership_counts n where n.organization_id = $1 and n.set_id = s.id) as contacts
     from contacts c
     join contact_properties p on p.organization_id = $1 and p.key = 'score'
     join memberships m on m.organization_id = $1 and m.contact_id = c.id
     join contact_sets s on s.organization_id = $1 and s.id = m.set_id
     where c.organization_id = $1`,
    [neighbourId, list],
  );
  expect(twins).toEqual([
    {
      id: expect.not.stringContaining(contact),
      email,
      properties: { 1: 'of the neighbour' },
      unsubscribed_channels: expect.arrayContaining(['email', 'sms', 'push', 'chatapp']),
      type: 'string',
      name: 'Customers',
      is_other_list: true,
      is_suppressed: true,
      contacts: 1,
    },
  ]);
});
