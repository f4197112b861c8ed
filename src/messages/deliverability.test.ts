import { afterAll, beforeAll, expect, test } from 'vitest';
import { startDnsServer, type TestDnsServer } from '../../test/support/dns-server.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { systemClock } from '../platform/clock.ts';
import { createResolver, type Resolver } from '../platform/dns/dns.ts';
import { createDeliverability } from './deliverability.ts';

let dns: TestDnsServer;
let resolver: Resolver;

beforeAll(async () => {
  dns = await startDnsServer({
    'good.test': { MX: [[10, 'mx.good.test']] },
    'mx.good.test': { A: ['192.0.2.1'] },
    'six.test': { MX: [[10, 'mx.six.test']] },
    'mx.six.test': { AAAA: ['2001:db8::1'] },
    'implicit.test': { A: ['192.0.2.2'] },
    'web.test': { TXT: ['no mail here'] },
    'none.test': { MX: [[0, '']] },
    'hollow.test': {
      MX: [
        [10, 'mx1.hollow.test'],
        [20, 'nowhere.test'],
      ],
    },
    'mx1.hollow.test': { TXT: ['no address'] },
    'half.test': {
      MX: [
        [10, 'nowhere.test'],
        [20, 'mx.good.test'],
      ],
    },
    'broken.test': {},
  });
  dns.fail('broken.test', 'SERVFAIL');
  dns.fail('refused.test', 'REFUSED');
  resolver = createResolver({ servers: [dns.address], clock: systemClock });
});
afterAll(async () => {
  resolver.close();
  await dns.stop();
});

const ask = (domain: string, areDomainsLookedUp = true) =>
  createDeliverability({ resolver, clock: systemClock, areDomainsLookedUp }).findFault(domain);

test.each([
  ['good.test', null],
  ['six.test', null],
  ['implicit.test', null],
  ['half.test', null],
  ['nowhere.test', 'invalid_domain'],
  ['web.test', 'no_mx'],
  ['none.test', 'null_mx'],
  ['hollow.test', 'unreachable'],
  ['broken.test', null],
  ['refused.test', null],
])('the fault of %s is %s', async (domain, fault) => {
  expect(await ask(domain)).toBe(fault);
});

test('a provider of throw-away addresses is known without the DNS, and so is what lies below it', async () => {
  expect(await ask('mailinator.com', false)).toBe('disposable');
  expect(await ask('anything.mailinator.com', false)).toBe('disposable');
  expect(await ask('mailinator.com.example.org', false)).toBeNull();
});

test('where domains are not looked up, nobody is dropped for the DNS', async () => {
  expect(await ask('nowhere.test', false)).toBeNull();
});

test('a check that takes too long drops nobody', async () => {
  dns.fail('silent.test', 'silent');
  const clock = createManualClock();
  const checked = createDeliverability({ resolver, clock, areDomainsLookedUp: true }).findFault(
    'silent.test',
  );
  clock.advance(3_001);
  expect(await checked).toBeNull();
});

test('name servers that say nothing at all hold nobody up for long', async () => {
  const silent = Array.from({ length: 21 }, (_, at) => `silent${at}.test`);
  for (const domain of silent) dns.fail(domain, 'silent');
  const clock = createManualClock();
  const { findFault } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  const checks = silent.slice(0, 20).map(findFault);
  clock.advance(3_001);
  expect(await Promise.all(checks)).toEqual(Array.from({ length: 20 }, () => null));
  // The clock stands still: nobody could be waited for.
  expect(await findFault('silent20.test')).toBeNull();
  expect(await findFault('nowhere.test')).toBeNull();
  clock.advance(30_000);
  expect(await findFault('nowhere.test')).toBe('invalid_domain');
});
