/** Segments that ask for devices follow them: registrations, opt-outs, dead tokens. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { retireDevices } from '../../src/devices/devices.ts';
import type { SegmentRecord } from '../../src/segments/schema.ts';
import { sha256 } from '../../src/platform/secrets.ts';
import { authorize, eventually, type Sender } from '../support/email-journey.ts';
import {
  androidApp,
  aPushContact,
  browser,
  register,
  setUpPush,
  unregister,
} from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'other.example');
  await setUpPush(server);
  await setUpPush(server, other.organizationId);
});
afterAll(() => server.stop());

async function addSegment(conditions: object, sender?: Sender): Promise<string> {
  const body = { name: JSON.stringify(conditions), conditions };
  const made = await server.request<SegmentRecord>('POST', '/v1/segments', body, authorize(sender));
  expect(made.status).toBe(201);
  await eventually(
    () => server.request<SegmentRecord>('GET', `/v1/segments/${made.body.id}`, undefined, authorize(sender)),
    ({ body: { status } }) => status === 'ready',
  );
  return made.body.id;
}

/** Once they are so. */
async function hasMembers(segmentId: string, members: readonly string[], sender?: Sender): Promise<void> {
  const path = `/v1/contacts?segment_id=${segmentId}&limit=100`;
  await eventually(
    () => server.request<{ data: { id: string }[] }>('GET', path, undefined, authorize(sender)),
    ({ body }) =>
      JSON.stringify(body.data.map(({ id }) => id).sort()) === JSON.stringify([...members].sort()),
  );
}

test('a contact joins and leaves with its devices, and those of another organization change nothing', async () => {
  const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
  const theirs = await aPushContact(server, other);
  const any = await addSegment({ type: 'device', operator: 'has_active' });
  const android = await addSegment({ type: 'device', operator: 'has_active', platform: 'android' });
  const noAndroid = await addSegment({ type: 'device', operator: 'has_none', platform: 'android' });
  const foreign = await addSegment({ type: 'device', operator: 'has_active' }, other);
  await hasMembers(noAndroid, [ann, bob]);

  await register(server, { contact_id: theirs, ...androidApp('tablet') }, other);
  await hasMembers(foreign, [theirs], other);
  await register(server, { contact_id: ann, ...browser('laptop') });
  await hasMembers(any, [ann]);
  const tablet = await register(server, { contact_id: ann, ...androidApp('tablet') });
  await hasMembers(android, [ann]);
  await hasMembers(noAndroid, [bob]);

  // Bob signs in on it.
  await register(server, { contact_id: bob, ...androidApp('tablet') });
  await hasMembers(android, [bob]);
  await hasMembers(any, [ann, bob]);
  await hasMembers(noAndroid, [ann]);

  await unregister(server, 'tablet', 'opt_out');
  await hasMembers(android, []);
  await server.request('PATCH', `/v1/contacts/${bob}`, { consent: { push: 'subscribed' } });
  await hasMembers(android, [bob]);

  const { installation, organizationId } = server;
  const dead = {
    organizationId,
    id: tablet.id,
    tokenSha256: sha256(androidApp('tablet').device_token as string),
    platform: 'android' as const,
    status: 'EXPIRED' as const,
    reason: 'unregistered',
    toldAt: null,
  };
  const isTold = await installation.database.asOrganizationsByIndex([organizationId], (transaction) =>
    retireDevices(installation, transaction, [dead]),
  );
  expect(isTold).toBe(true);
  await installation.database.rows({ text: `select pg_notify('postillion_segments', '')` });
  await hasMembers(android, []);
  await hasMembers(noAndroid, [ann, bob]);
  await hasMembers(foreign, [theirs], other);
});

test('which of its conditions hold for a contact is explained', async () => {
  const contactId = await aPushContact(server);
  await register(server, { contact_id: contactId, ...androidApp('phone') });
  const segment = await addSegment({
    type: 'group',
    match: 'all',
    conditions: [
      { type: 'device', operator: 'has_active', platform: 'android' },
      { type: 'device', operator: 'has_active', platform: 'ios' },
    ],
  });
  const { body } = await server.request('GET', `/v1/segments/${segment}/contacts/${contactId}`);
  expect(body).toMatchObject({
    is_member: false,
    holds: false,
    conditions: {
      conditions: [
        { type: 'device', platform: 'android', holds: true },
        { type: 'device', platform: 'ios', holds: false },
      ],
    },
  });
});
