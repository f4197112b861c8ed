/**
 * A browser says at which endpoint it is reached. Some services have hosts without number, so that all names below one
 * are allowed: a name that somebody made up is no reason to alarm the operator, nor to keep its device.
 */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createHttpClient } from '../../src/channels/http2/client.ts';
import { createDirectPushProvider } from '../../src/channels/push/providers/direct/direct.ts';
import { type Delivery, listOpenBreakers, startDelivery } from '../../src/messages/messages.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createResolver } from '../../src/platform/dns/dns.ts';
import { createPushDelivery } from '../../src/push/push.ts';
import { messageChannels } from '../support/channels.ts';
import { type DnsServerQuery, startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { eventually, rowsOf } from '../support/email-journey.ts';
import { type Http2Peer, startHttp2Peer } from '../support/http2-peer.ts';
import { aPushContact, browser, devicesOf, register, setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const webPushHosts = ['push.example.org', '*.push.example.com'];
/** One more than failures after which an account is left alone. */
const deviceCount = 6;

let server: TestServer;
let dns: TestDnsServer;
let peer: Http2Peer;
let delivery: Delivery;
/** Ends what the delivery has. */
let stop: () => Promise<void>;

beforeEach(async () => {
  [server, dns, peer] = await Promise.all([
    startTestServer({ webPushHosts }),
    startDnsServer({ 'web.push.apple.com': { A: ['203.0.113.1'] } }),
    startHttp2Peer(),
  ]);
  peer.answerBy(() => ({ status: 201 }));
  await setUpPush(server);
  const resolver = createResolver({ servers: [dns.address], clock: systemClock });
  const pushProvider = createDirectPushProvider({
    clock: systemClock,
    random: () => 0,
    resolver,
    shareApnsToken: () => Promise.reject(new Error('no phone is asked')),
    vapidSubject: 'https://push.example.com',
    hosts: webPushHosts,
    // Real hosts are the peer; what is made up is looked up.
    connect: ({ origin, lookup, ...options }) =>
      origin.includes('made-up')
        ? createHttpClient({ ...options, origin, ...(lookup && { lookup }) })
        : createHttpClient({ ...options, origin: peer.origin, authorities: peer.certificate }),
  });
  delivery = startDelivery({
    ...server.installation,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    channels: messageChannels,
    deliveries: [createPushDelivery({ ...server.installation, pushProvider, webPushHosts })],
  });
  stop = async () => {
    await delivery.stop();
    await pushProvider.close();
    resolver.close();
  };
});
afterEach(async () => {
  await stop();
  await Promise.all([server.stop(), dns.stop(), peer.stop()]);
});

/** A contact with a browser at each of the hosts. */
async function aContactAt(hosts: readonly string[]): Promise<string> {
  const contactId = await aPushContact(server);
  for (const [index, host] of hosts.entries())
    await register(server, {
      contact_id: contactId,
      ...browser(`${contactId} ${index}`, { endpoint: `https://${host}/of-${contactId}-${index}` }),
    });
  return contactId;
}

const hostsNamed = (name: string) =>
  Array.from({ length: deviceCount }, (_each, index) => `${name}-${index}.push.example.com`);

async function sendTo(contactId: string): Promise<string> {
  const { status, body } = await server.request<{ id: string }>('POST', '/v1/push/send', {
    contact_id: contactId,
    title: 'Hello',
    body: 'It is here.',
  });
  expect(status).toBe(202);
  return body.id;
}

async function recordOf(id: string) {
  type Devices = { devices: { status: string; error: { code: string; message: string } | null }[] };
  return (await server.request<{ status: string } & Devices>('GET', `/v1/push/${id}`)).body;
}

const openBreakers = () => listOpenBreakers(server.installation.database);

/** Waits until a first attempt of each job is over, and what became of it is written. */
function whenPutOff(count: number): Promise<unknown> {
  return eventually(
    () =>
      rowsOf(
        server,
        "select from delivery_queue where claimed_by is null and due_at > accepted_at + interval '30 seconds'",
      ),
    (jobs) => jobs.length === count,
  );
}

test('a host that does not exist is the end of its device, and of nothing else', async () => {
  const contactId = await aContactAt([...hostsNamed('made-up'), 'db5.push.example.com', 'push.example.org']);
  const id = await sendTo(contactId);
  await eventually(
    () => rowsOf(server, 'select from delivery_queue'),
    (jobs) => jobs.length === 0,
  );
  const devices = await devicesOf(server, contactId);
  expect(devices.map(({ status }) => status).toSorted()).toEqual([
    'ACTIVE',
    'ACTIVE',
    ...Array<string>(deviceCount).fill('FAILED'),
  ]);
  const { status, devices: recipients } = await recordOf(id);
  expect(status).toBe('sent');
  const errors = recipients.flatMap(({ error }) => error ?? []);
  expect(errors).toHaveLength(deviceCount);
  for (const { code, message } of errors)
    expect([code, message]).toEqual([
      'invalid_token',
      expect.stringMatching(/The host of its endpoint does not exist: made-up-\d\.push\.example\.com/),
    ]);
  expect(peer.requests).toHaveLength(2);
  expect(await openBreakers()).toEqual([]);
});

test.each([
  [
    'fail',
    () => {
      for (const host of hostsNamed('made-up')) dns.fail(host, 'SERVFAIL');
    },
  ],
  [
    'deny every name of the world',
    () => {
      dns.remove('web.push.apple.com');
    },
  ],
] as const)('name servers that %s end no device, and no browser alarms the operator', async (_how, begin) => {
  begin();
  const contactId = await aContactAt(hostsNamed('made-up'));
  await sendTo(contactId);
  await whenPutOff(deviceCount);
  // What is sent meanwhile to a host that there is, goes out at once.
  await sendTo(await aContactAt(['db5.push.example.com']));
  await eventually(
    () => rowsOf(server, 'select from delivery_queue'),
    (jobs) => jobs.length === deviceCount,
  );
  expect(peer.requests).toHaveLength(1);
  for (const { status } of await devicesOf(server, contactId)) expect(status).toBe('ACTIVE');
  await stop();
  expect(await rowsOf(server, 'select from open_breakers')).toEqual([]);
  const asked = new Set(dns.queries.map(({ name }: DnsServerQuery) => name));
  for (const host of hostsNamed('made-up')) expect(asked).toContain(host);
});

test('a service that is away is one account, by however many of its hosts', async () => {
  peer.answerBy(() => ({ status: 503 }));
  await sendTo(await aContactAt(hostsNamed('db')));
  const breakers = await eventually(openBreakers, (open) => open.length > 0);
  expect(breakers).toMatchObject([{ channel: 'push', provider: 'direct', accounts: 1 }]);
  await eventually(
    () =>
      rowsOf(
        server,
        "select from delivery_queue where claimed_by is null and due_at > accepted_at + interval '1 second'",
      ),
    (jobs) => jobs.length === deviceCount,
  );
  // By hosts, each would have been tried five times.
  expect(peer.requests.length).toBeLessThan(5 * deviceCount);
});
