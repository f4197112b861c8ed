import { expect, test } from 'vitest';
import type { DnsAnswer, Resolver } from '../dns/dns.ts';
import { findHostAddresses, lookupPublicAddresses } from './host-addresses.ts';
import { isPublicAddress } from './public-address.ts';

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
  expect(await findHostAddresses({ resolver, mayUseAddress: isPublicAddress }, 'mx.test')).toEqual({
    addresses: ['2a00::1', '8.8.8.8', '8.8.4.4'],
    refused: ['::1', '10.0.0.1'],
    failure: null,
  });
  const all = await findHostAddresses({ resolver, mayUseAddress: () => true }, 'mx.test');
  expect(all.addresses).toEqual(['2a00::1', '8.8.8.8', '::1', '10.0.0.1', '8.8.4.4']);
});

test('one family is enough, and the failure of the other is reported', async () => {
  const resolver = resolverOf(
    { kind: 'found', records: ['8.8.8.8'] },
    { kind: 'failed', reason: 'server_failure', detail: '192.0.2.53 answered SERVFAIL' },
  );
  expect(await findHostAddresses({ resolver, mayUseAddress: isPublicAddress }, 'mx.test')).toEqual({
    addresses: ['8.8.8.8'],
    refused: [],
    failure: 'AAAA lookup: server failure (192.0.2.53 answered SERVFAIL)',
  });
});

test('a zone of a thousand addresses is not tried a thousand times', async () => {
  const records = Array.from({ length: 100 }, (_, at) => `8.8.8.${at}`);
  const resolver = resolverOf({ kind: 'found', records }, { kind: 'absent', reason: 'no_such_record' });
  const found = await findHostAddresses({ resolver, mayUseAddress: isPublicAddress }, 'mx.test');
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
