import { expect, test } from 'vitest';
import type { DnsAnswer, Resolver } from '../platform/dns/dns.ts';
import {
  findHostAddresses,
  isPublicAddress,
  isSelfAddress,
  lookupPublicAddresses,
} from './host-addresses.ts';

test.each([
  '8.8.8.8',
  '193.0.6.139',
  '2001:503:ba3e::2:30',
  '2a00:1450:4001:82a::1a',
  // The same by other ways: IPv4-mapped, NAT64 and 6to4.
  '::ffff:8.8.8.8',
  '64:ff9b::808:808',
  '2002:808:808::1',
])('%s is public', (address) => {
  expect(isPublicAddress(address)).toBe(true);
});

test.each([
  '0.0.0.0',
  '0.1.2.3',
  '10.0.0.1',
  '100.64.0.1',
  '127.0.0.1',
  '127.255.255.254',
  '169.254.169.254',
  '172.16.0.1',
  '192.0.0.170',
  '192.0.2.1',
  '192.168.1.1',
  '198.18.0.1',
  '198.51.100.1',
  '203.0.113.1',
  '224.0.0.1',
  '240.0.0.1',
  '255.255.255.255',
  '::',
  '::1',
  '::ffff:127.0.0.1',
  '::ffff:10.0.0.1',
  '::ffff:169.254.169.254',
  '::127.0.0.1',
  '::8.8.8.8',
  '::ffff:0:808:808',
  '64:ff9b::7f00:1',
  '64:ff9b::a9fe:a9fe',
  '64:ff9b:1::808:808',
  '2002:7f00:1::1',
  '2002:c0a8:101::1',
  '100::1',
  '1::1',
  '2001::1',
  '2001:db8::1',
  '2001:2::1',
  '3fff::1',
  '4000::1',
  'fc00::1',
  'fd00:ec2::254',
  'fe80::1',
  'fec0::1',
  'ff02::1',
  '',
  'localhost',
  '8.8.8.8.8',
])('%s is not public', (address) => {
  expect(isPublicAddress(address)).toBe(false);
});

test.each([
  ['127.0.0.1', true],
  ['0.0.0.0', true],
  ['::1', true],
  ['::', true],
  ['::ffff:127.0.0.1', true],
  ['10.0.0.1', false],
  ['8.8.8.8', false],
  ['fe80::1', false],
])('%s is only ever the caller itself: %s', (address, expected) => {
  expect(isSelfAddress(address)).toBe(expected);
});

/** Answers that a DNS server would not give to order. */
function resolverOf(a: DnsAnswer<string>, aaaa: DnsAnswer<string>): Resolver {
  const unasked = () => Promise.reject(new Error('not asked for'));
  return {
    a: () => Promise.resolve(a),
    aaaa: () => Promise.resolve(aaaa),
    mx: unasked,
    txt: unasked,
    cname: unasked,
    ptr: unasked,
    close: () => undefined,
  };
}

test('both families take turns, and only public addresses are left', async () => {
  const resolver = resolverOf(
    { kind: 'found', records: ['8.8.8.8', '10.0.0.1', '8.8.4.4'] },
    { kind: 'found', records: ['2a00::1', '::1'] },
  );
  expect(await findHostAddresses({ resolver, mayUsePrivateAddresses: false }, 'mx.test')).toEqual({
    addresses: ['2a00::1', '8.8.8.8', '8.8.4.4'],
    refused: ['::1', '10.0.0.1'],
    failure: null,
  });
  const all = await findHostAddresses({ resolver, mayUsePrivateAddresses: true }, 'mx.test');
  expect(all.addresses).toEqual(['2a00::1', '8.8.8.8', '::1', '10.0.0.1', '8.8.4.4']);
});

test('one family is enough, and the failure of the other is reported', async () => {
  const resolver = resolverOf(
    { kind: 'found', records: ['8.8.8.8'] },
    { kind: 'failed', reason: 'server_failure', detail: '192.0.2.53 answered SERVFAIL' },
  );
  expect(await findHostAddresses({ resolver, mayUsePrivateAddresses: false }, 'mx.test')).toEqual({
    addresses: ['8.8.8.8'],
    refused: [],
    failure: 'AAAA lookup: server failure (192.0.2.53 answered SERVFAIL)',
  });
});

test('a zone of a thousand addresses is not tried a thousand times', async () => {
  const records = Array.from({ length: 100 }, (_, at) => `8.8.8.${at}`);
  const resolver = resolverOf({ kind: 'found', records }, { kind: 'absent', reason: 'no_such_record' });
  const found = await findHostAddresses({ resolver, mayUsePrivateAddresses: false }, 'mx.test');
  expect(found.addresses).toHaveLength(8);
});

test.each([
  ['an address alone', {}, ['8.8.8.8', 4]],
  [
    'all of them',
    { all: true },
    [
      [
        { address: '2a00::1', family: 6 },
        { address: '8.8.8.8', family: 4 },
      ],
    ],
  ],
] as const)('a connection that asks for %s gets public ones only', async (_name, options, given) => {
  const lookup = lookupPublicAddresses(
    resolverOf(
      { kind: 'found', records: ['10.0.0.1', '8.8.8.8'] },
      'all' in options
        ? { kind: 'found', records: ['2a00::1', '::1'] }
        : { kind: 'absent', reason: 'no_such_record' },
    ),
  );
  const answer = await new Promise<unknown[]>((resolve) => {
    lookup('push.test', options, (error, ...rest) => {
      resolve([error, ...rest]);
    });
  });
  expect(answer).toEqual([null, ...given]);
});

test.each([
  [['127.0.0.1', '169.254.169.254'], 'the host has private addresses only'],
  [[], 'the host has no address'],
])('a connection to a host at %j is not made', async (records, reason) => {
  const absent = { kind: 'absent', reason: 'no_such_record' } as const;
  const lookup = lookupPublicAddresses(
    resolverOf(records.length === 0 ? absent : { kind: 'found', records }, absent),
  );
  const error = await new Promise((resolve) => {
    lookup('push.test', { all: true }, resolve);
  });
  expect(error).toEqual(new Error(reason));
});
