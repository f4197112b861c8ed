/** Segments that ask what became of texts. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { authorize, type Sender } from '../support/email-journey.ts';
import { addApprovedSender, postSms, smsWithStatus } from '../support/sms-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ worker: true });
});
afterAll(() => server.stop());

/** Of the simulator. */
const numbers = { delivered: '+15005550006', undelivered: '+15005550010' };

async function addContacts(sender?: Sender): Promise<void> {
  for (const phone_number of [...Object.values(numbers), '+14155550199']) {
    const contact = { phone_number, email: `a${phone_number.slice(1)}@example.com` };
    const response = await server.request('POST', '/v1/contacts', contact, authorize(sender));
    expect(response.status).toBe(201);
  }
}

async function membersOf(conditions: object): Promise<string[]> {
  const response = await server.request<{ contact_count: number; sample: { phone_number: string }[] }>(
    'POST',
    '/v1/segments/preview',
    { conditions },
  );
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response.body.sample.map(({ phone_number }) => phone_number);
}

test('who got a text, and to whom none could be delivered, is found by phone number', async () => {
  const other = await createSender(server.installation, 'other.example');
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, 'Acme', other.organizationId);
  await addContacts();
  await addContacts(other);
  // The other organization's contacts got all of them.
  for (const to of Object.values(numbers))
    await postSms(server, { from: 'Acme', to, body: 'Hello' }, authorize(other));
  const sms = (action: string, more: object = {}) => ({ type: 'message', channel: 'sms', action, ...more });
  expect(await membersOf(sms('delivered'))).toEqual([]);
  for (const [status, to] of Object.entries(numbers)) {
    const { body } = await postSms(server, { from: 'Acme', to, body: 'Hello' });
    await smsWithStatus(server, body.id, status);
  }
  const within = { value: 1, unit: 'day' };
  expect(await membersOf(sms('delivered'))).toEqual([numbers.delivered]);
  expect(await membersOf(sms('delivered', { within }))).toEqual([numbers.delivered]);
  expect(await membersOf(sms('bounced'))).toEqual([numbers.undelivered]);
  expect(await membersOf({ ...sms('delivered'), channel: 'email' })).toEqual([]);
});

test('texts are neither opened nor clicked', async () => {
  const conditions = { type: 'message', channel: 'sms', action: 'opened' };
  const response = await server.request<{ message: string }>('POST', '/v1/segments/preview', { conditions });
  expect([response.status, response.body.message]).toEqual([
    422,
    'conditions.action must be one of delivered, bounced',
  ]);
});
