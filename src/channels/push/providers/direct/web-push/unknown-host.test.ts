import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  type DnsRecords,
  startDnsServer,
  type TestDnsServer,
} from '../../../../../../test/support/dns-server.ts';
import { systemClock } from '../../../../../platform/clock.ts';
import { createResolver, type Resolver } from '../../../../../platform/dns/dns.ts';
import { isUnknownHost, wellKnownHosts } from './unknown-host.ts';

const records: DnsRecords = {
  [wellKnownHosts[1]!]: { A: ['203.0.113.1'] },
  'db5.push.example.com': { A: ['203.0.113.2'] },
  'six.push.example.com': { AAAA: ['2001:db8::1'] },
  'moved.push.example.com': { CNAME: 'gone.elsewhere.example' },
};

let dns: TestDnsServer;
let resolver: Resolver;
beforeAll(async () => {
  dns = await startDnsServer();
});
afterAll(() => dns.stop());
beforeEach(() => {
  for (const host of [...wellKnownHosts, 'made-up.push.example.com']) dns.remove(host);
  for (const [name, held] of Object.entries(records)) dns.set(name, held);
  resolver = createResolver({ servers: [dns.address], clock: systemClock, timeoutMs: 200 });
  return () => {
    resolver.close();
  };
});

test.each([
  ['made-up.push.example.com', true],
  ['push.example.org', true],
  ['db5.push.example.com', false],
  ['six.push.example.com', false],
  // It stands above names that there are: it has no address today.
  ['push.example.com', false],
  // An alias that leads nowhere: somebody has the name.
  ['moved.push.example.com', false],
])('whether nobody has %s: %s', async (host, isUnknown) => {
  expect(await isUnknownHost(resolver, host)).toBe(isUnknown);
});

test.each(['SERVFAIL', 'REFUSED', 'silent', 'garbage'] as const)(
  'name servers that fail (%s) have not said that nobody has a host',
  async (failure) => {
    dns.fail('made-up.push.example.com', failure);
    expect(await isUnknownHost(resolver, 'made-up.push.example.com')).toBe(false);
  },
);

test('name servers that deny every service, or fail on all of them, judge no host', async () => {
  for (const host of wellKnownHosts) dns.remove(host);
  expect(await isUnknownHost(resolver, 'made-up.push.example.com')).toBe(false);
  for (const host of wellKnownHosts) dns.fail(host, 'SERVFAIL');
  expect(await isUnknownHost(resolver, 'made-up.push.example.com')).toBe(false);
});

test('what name servers said a while ago counts for nothing', async () => {
  const host = 'made-up.push.example.com';
  expect(await isUnknownHost(resolver, host)).toBe(true);
  dns.set(host, { A: ['203.0.113.3'] });
  expect(await isUnknownHost(resolver, host)).toBe(false);
  dns.remove(host);
  expect(await isUnknownHost(resolver, host)).toBe(true);
  for (const known of wellKnownHosts) dns.remove(known);
  expect(await isUnknownHost(resolver, host)).toBe(false);
});
