import fc from 'fast-check';
import { afterEach, expect, test } from 'vitest';
import { startDnsServer } from '../../../test/support/dns-server.ts';
import type { DnsFailure, DnsNameRecords, DnsRecords } from '../../../test/support/dns-server.ts';
import { systemClock } from '../../platform/clock.ts';
import { createResolver } from '../../platform/dns/dns.ts';
import { findMxRoute } from './mx-route.ts';
import type { MxRoute } from './mx-route.ts';

const open: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

async function arrange(records: DnsRecords) {
  const dns = await startDnsServer(records);
  open.push(dns.stop);
  const resolver = createResolver({ servers: [dns.address], clock: systemClock });
  open.push(resolver.close);
  return { dns, resolver };
}

const never = () => 0;

function route(...hosts: [name: string, preference: number][]): MxRoute {
  return { kind: 'route', hosts: hosts.map(([name, preference]) => ({ name, preference })) };
}

const cases: [what: string, records: DnsNameRecords | null, expected: MxRoute][] = [
  ['no such domain', null, { kind: 'no_such_domain' }],
  ['one mail host', { MX: [[10, 'mx1.host.test']] }, route(['mx1.host.test', 10])],
  [
    'mail hosts in disorder, and an address that does not count',
    {
      MX: [
        [20, 'mx2.host.test'],
        [5, 'mx1.host.test'],
        [30, 'mx3.host.test'],
      ],
      A: ['127.0.0.1'],
    },
    route(['mx1.host.test', 5], ['mx2.host.test', 20], ['mx3.host.test', 30]),
  ],
  [
    'one mail host twice, in different letters',
    {
      MX: [
        [20, 'MX1.host.test'],
        [10, 'mx1.host.test'],
      ],
    },
    route(['mx1.host.test', 10]),
  ],
  ['null MX', { MX: [[0, '']], A: ['127.0.0.1'] }, { kind: 'null_mx' }],
  ['null MX of another preference', { MX: [[10, '']] }, { kind: 'null_mx' }],
  [
    'null MX beside a mail host',
    {
      MX: [
        [0, ''],
        [10, 'mx1.host.test'],
      ],
    },
    route(['mx1.host.test', 10]),
  ],
  ['an address as a mail host', { MX: [[10, '127.0.0.1']], A: ['127.0.0.1'] }, { kind: 'no_mail_host' }],
  [
    'a mail host of a name that no host has',
    {
      MX: [
        [10, 'mx1,mx2.host.test'],
        [20, 'mx2.host.test'],
      ],
    },
    route(['mx2.host.test', 20]),
  ],
  ['no MX, but IPv4', { A: ['127.0.0.1'] }, route(['example.test', 0])],
  ['no MX, but IPv6', { AAAA: ['::1'] }, route(['example.test', 0])],
  ['neither MX nor address', { TXT: ['v=spf1 -all'] }, { kind: 'no_mail_host' }],
  ['an alias', { CNAME: 'alias.test' }, route(['mx1.alias.test', 10])],
];

test.each(cases)('%s', async (_what, records, expected) => {
  const { resolver } = await arrange({
    ...(records === null ? {} : { 'example.test': records }),
    'alias.test': { MX: [[10, 'mx1.alias.test']] },
  });
  expect(await findMxRoute(resolver, 'Example.test', never)).toEqual(expected);
});

test.each<DnsFailure>(['SERVFAIL', 'REFUSED', 'garbage'])(
  '%s is no statement about the domain',
  async (how) => {
    const { dns, resolver } = await arrange({ 'example.test': { A: ['127.0.0.1'] } });
    dns.fail('example.test', how);
    expect(await findMxRoute(resolver, 'example.test', never)).toMatchObject({ kind: 'failed' });
  },
);

test('a domain that has an address is not its own mail host where the look-up of its MX records failed', async () => {
  const { dns, resolver } = await arrange({ 'example.test': { A: ['127.0.0.1'] }, 'slow.test': {} });
  dns.fail('slow.test', 'SERVFAIL');
  const halfKnown = { ...resolver, mx: () => resolver.mx('slow.test') };
  expect(await findMxRoute(halfKnown, 'example.test', never)).toMatchObject({ kind: 'failed' });
});

test('hosts of equal preference take turns, and never before one that is preferred', async () => {
  const { resolver } = await arrange({
    'example.test': {
      MX: [
        [10, 'a.test'],
        [10, 'b.test'],
        [10, 'c.test'],
        [20, 'd.test'],
        [20, 'e.test'],
      ],
    },
  });
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), { minLength: 5, maxLength: 5 }),
      async (turns) => {
        let at = 0;
        const found = await findMxRoute(resolver, 'example.test', () => turns[at++]!);
        const names = found.kind === 'route' ? found.hosts.map(({ name }) => name) : [];
        expect(names.slice(0, 3).sort()).toEqual(['a.test', 'b.test', 'c.test']);
        expect(names.slice(3).sort()).toEqual(['d.test', 'e.test']);
      },
    ),
    { numRuns: 50 },
  );
  const orders = [
    [0.1, 0.2, 0.3, 0.4, 0.5],
    [0.3, 0.2, 0.1, 0.5, 0.4],
  ].map(async (turns) => {
    let at = 0;
    const found = await findMxRoute(resolver, 'example.test', () => turns[at++]!);
    return found.kind === 'route' ? found.hosts.map(({ name }) => name[0]).join('') : '';
  });
  expect(await Promise.all(orders)).toEqual(['abcde', 'cbaed']);
});

test('of very many hosts the preferred ones are kept', async () => {
  const { resolver } = await arrange({
    'example.test': {
      MX: Array.from({ length: 60 }, (_, at): [number, string] => [60 - at, `mx${60 - at}.test`]),
    },
  });
  const found = await findMxRoute(resolver, 'example.test', never);
  expect(found.kind === 'route' && found.hosts.map(({ preference }) => preference)).toEqual(
    Array.from({ length: 16 }, (_, at) => at + 1),
  );
});
