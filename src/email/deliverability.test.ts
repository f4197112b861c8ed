import { afterAll, beforeAll, expect, test } from 'vitest';
import { type DnsNameRecords, startDnsServer, type TestDnsServer } from '../../test/support/dns-server.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { systemClock } from '../platform/clock.ts';
import { createResolver, type Resolver } from '../platform/dns/dns.ts';
import { wellKnownDomains } from './control-lookup.ts';
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
    'gmail.com': { MX: [[10, 'mx.good.test']] },
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

/** What is not waited for on the clock, or by the name servers. */
async function answerAtOnce<Answer>(asked: Promise<Answer>): Promise<Answer | 'waits'> {
  let answer: Answer | 'waits' = 'waits';
  void asked.then((given) => (answer = given));
  for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  return answer;
}

test('a check that takes too long drops nobody, and the next one of the domain does not wait', async () => {
  dns.fail('silent.test', 'silent');
  const clock = createManualClock();
  const { findFault, prepare } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  const checked = findFault('silent.test');
  clock.advance(3_001);
  expect(await checked).toBeNull();
  expect(await answerAtOnce(findFault('silent.test'))).toBeNull();

  dns.fail('prepared.test', 'silent');
  prepare('prepared.test');
  clock.advance(3_001);
  expect(await answerAtOnce(findFault('prepared.test'))).toBeNull();
  // Others are waited for, and so is what answered late.
  expect(await findFault('nowhere.test')).toBe('invalid_domain');
  dns.set('silent.test', { TXT: ['no mail here'] });
  await resolver.mx('silent.test', { isFresh: true });
  await resolver.a('silent.test', { isFresh: true });
  await resolver.aaaa('silent.test', { isFresh: true });
  expect(await findFault('silent.test')).toBe('no_mx');
});

/** Domains whose own name servers say nothing. */
function nameDeadDomains(label: string, count: number): string[] {
  const domains = Array.from({ length: count }, (_, at) => `${label}${at}.test`);
  for (const domain of domains) dns.fail(domain, 'silent');
  return domains;
}

/** Resolves once what was asked about the name servers is answered, or was not to be answered in time. */
async function settleQuestion(isAnswered: boolean, clock: ManualClock): Promise<void> {
  // Lookups of the same name share one question: this one is the last to hear of it.
  const asAsked = { isFresh: true, isUrgent: true };
  if (isAnswered) await Promise.all(wellKnownDomains.map((domain) => resolver.mx(domain, asAsked)));
  else clock.advance(3_001);
  await new Promise((resolve) => setImmediate(resolve));
}

test('domains whose own name servers are dead let nobody else go unchecked, however many they are', async () => {
  for (const domain of wellKnownDomains) dns.set(domain, { MX: [[10, 'mx.good.test']] });
  const clock = createManualClock();
  const { findFault } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  for (const round of ['first', 'second']) {
    const checks = nameDeadDomains(`dead-${round}`, 41).map(findFault);
    clock.advance(3_001);
    expect(await Promise.all(checks)).toEqual(Array.from({ length: 41 }, () => null));
    await settleQuestion(true, clock);
    expect(await findFault(`nowhere-${round}.test`)).toBe('invalid_domain');
    // They have answered: it takes as many again until they are asked once more.
    dns.queries.length = 0;
    const more = nameDeadDomains(`more-${round}`, 1).map(findFault);
    clock.advance(3_001);
    await Promise.all(more);
    await findFault(`nowhere-else-${round}.test`);
    expect(dns.queries.filter(({ name }) => wellKnownDomains.includes(name))).toEqual([]);
  }
});

test('one of the domains that everybody writes to is enough to show that the name servers answer', async () => {
  const [first, ...others] = wellKnownDomains;
  dns.set(first!, { MX: [[10, 'mx.good.test']] });
  for (const domain of others) dns.fail(domain, 'SERVFAIL');
  const clock = createManualClock();
  const { findFault } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  const checks = nameDeadDomains('lame', 20).map(findFault);
  clock.advance(3_001);
  await Promise.all(checks);
  await settleQuestion(true, clock);
  expect(await findFault('nowhere.test')).toBe('invalid_domain');
});

test('one dead domain counts once, whoever writes to it', async () => {
  for (const domain of wellKnownDomains) dns.fail(domain, 'silent');
  const clock = createManualClock();
  const { findFault } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  const [domain] = nameDeadDomains('alone', 1);
  const checks = Array.from({ length: 40 }, () => findFault(domain!));
  clock.advance(3_001);
  await Promise.all(checks);
  await settleQuestion(false, clock);
  answerForWellKnown();
  expect(await findFault('nowhere.test')).toBe('invalid_domain');
});

function answerForWellKnown(): void {
  for (const domain of wellKnownDomains) dns.set(domain, { MX: [[10, 'mx.good.test']] });
}

test('name servers that say nothing at all hold nobody up for long', async () => {
  const silent = [...nameDeadDomains('silent', 21), ...wellKnownDomains];
  for (const domain of silent) dns.fail(domain, 'silent');
  const clock = createManualClock();
  const { findFault } = createDeliverability({ resolver, clock, areDomainsLookedUp: true });
  const checks = silent.slice(0, 20).map(findFault);
  clock.advance(3_001);
  expect(await Promise.all(checks)).toEqual(Array.from({ length: 20 }, () => null));
  // The name servers are asked for domains that everybody writes to.
  await clock.whenWaiting(1);
  await settleQuestion(false, clock);
  // The clock stands still: nobody could be waited for.
  expect(await findFault('silent20.test')).toBeNull();
  expect(await findFault('nowhere.test')).toBeNull();
  answerForWellKnown();
  clock.advance(30_000);
  expect(await findFault('nowhere.test')).toBe('invalid_domain');
});

const denials: Record<string, DnsNameRecords | null> = {
  'do not exist': null,
  'take no mail': { TXT: ['a page of ours'] },
  'have servers without an address': { MX: [[10, 'nowhere.test']] },
};

test.each(Object.entries(denials))(
  'name servers by whose word even large domains %s have nobody dropped, until they know one of them',
  async (_, records) => {
    for (const domain of wellKnownDomains) {
      if (records === null) dns.remove(domain);
      else dns.set(domain, records);
    }
    // Each by a resolver of its own, which remembers nothing.
    const fresh = createResolver({ servers: [dns.address], clock: systemClock });
    const clock = createManualClock();
    const { findFault } = createDeliverability({ resolver: fresh, clock, areDomainsLookedUp: true });
    for (const domain of ['nowhere.test', 'web.test', 'none.test', 'hollow.test', ...wellKnownDomains])
      expect(await findFault(domain)).toBeNull();
    expect(await findFault('mailinator.com')).toBe('disposable');
    // Nobody is looked up meanwhile.
    dns.queries.length = 0;
    expect(await findFault('elsewhere.test')).toBeNull();
    expect(dns.queries).toEqual([]);
    clock.advance(30_001);
    expect(await findFault('elsewhere.test')).toBeNull();

    dns.set(wellKnownDomains[2]!, { MX: [[10, 'mx.good.test']] });
    expect(await findFault('elsewhere.test')).toBeNull();
    clock.advance(30_001);
    expect(await findFault('elsewhere.test')).toBe('invalid_domain');
    fresh.close();
  },
);

test('name servers that do not answer for large domains have nobody dropped', async () => {
  for (const domain of wellKnownDomains) dns.fail(domain, 'SERVFAIL');
  const { findFault } = createDeliverability({
    resolver,
    clock: createManualClock(),
    areDomainsLookedUp: true,
  });
  expect(await findFault('nowhere.test')).toBeNull();
});

test('many drops at once ask once for the large domains', async () => {
  answerForWellKnown();
  const { findFault } = createDeliverability({
    resolver,
    clock: createManualClock(),
    areDomainsLookedUp: true,
  });
  dns.queries.length = 0;
  const faults = await Promise.all(Array.from({ length: 100 }, (_, at) => findFault(`gone${at}.test`)));
  expect(new Set(faults)).toEqual(new Set(['invalid_domain']));
  expect(dns.queries.filter(({ name, type }) => name === 'outlook.com' && type === 'MX')).toHaveLength(1);
});
