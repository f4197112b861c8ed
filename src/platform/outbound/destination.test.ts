import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { startDnsServer, type TestDnsServer } from '../../../test/support/dns-server.ts';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { createResolver, type Resolver } from '../dns/dns.ts';
import { createAllowedHosts } from './allowed-hosts.ts';
import { type Destination, findDestinationAddresses, readDestination } from './destination.ts';

const nothingInside = createAllowedHosts([]);
const ownMachine = createAllowedHosts(['localhost', '127.0.0.0/8', '::1']);

test.each([
  [
    'https://example.com/hooks',
    { url: 'https://example.com/hooks', isTls: true, host: 'example.com', port: 443, path: '/hooks' },
  ],
  ['HTTPS://Example.COM', { url: 'https://example.com/', host: 'example.com', path: '/' }],
  ['https://example.com:8443/a?b=c', { port: 8_443, path: '/a?b=c' }],
  ['https://example.com:80/', { port: 80, origin: 'https://example.com:80' }],
  ['https://example.com:1024/', { port: 1_024 }],
  ['https://example.com./', { host: 'example.com', origin: 'https://example.com' }],
  ['https://bücher.example/', { host: 'xn--bcher-kva.example' }],
  ['https://ｅｘａｍｐｌｅ.com/', { host: 'example.com' }],
  ['https://8.8.8.8/', { host: '8.8.8.8' }],
  [
    'https://[2a00:1450::1]:8443/',
    { host: '2a00:1450::1', port: 8_443, origin: 'https://[2a00:1450::1]:8443' },
  ],
])('%s is taken, and read as what asks for it would', (text, expected) => {
  expect(readDestination(text, nothingInside)).toMatchObject(expected);
});

const noUrl = { problem: 'must be a URL such as https://example.com/hooks, of at most 2048 characters' };
const notPublic = { problem: 'must have a host on the public Internet' };
const noPort = { problem: 'must have port 80, 443, or one from 1024 on' };

test.each([
  ['', noUrl],
  ['example.com', noUrl],
  ['//example.com', noUrl],
  ['ftp://example.com', noUrl],
  ['file:///etc/passwd', noUrl],
  ['gopher://example.com', noUrl],
  ['https:example.com', noUrl],
  ['https:///example.com', noUrl],
  ['https:\\\\example.com', noUrl],
  ['https://example.com\\@127.0.0.1/', noUrl],
  ['https://exa\tmple.com/', noUrl],
  ['https://example.com/\r\nHost: a', noUrl],
  [' https://example.com', noUrl],
  ['https://exa mple.com', noUrl],
  ['https://[fe80::1%25eth0]/', noUrl],
  ['https://256.1.1.1/', noUrl],
  [`https://example.com/${'a'.repeat(2_048)}`, noUrl],
  // Three characters each, once they are encoded.
  [`https://example.com/${'é'.repeat(700)}`, noUrl],
  ['https://user:password@example.com/', { problem: 'must have no user name or password' }],
  ['https://127.0.0.1@example.com/', { problem: 'must have no user name or password' }],
  ['https://example.com/#part', { problem: 'must have no fragment' }],
  ['https://example..com/', { problem: 'must have a host name or an address' }],
  ['http://example.com/', { problem: 'must be an https URL' }],
  ['http://localhost:3000/', { problem: 'must be an https URL' }],
  ['https://example.com:22/', noPort],
  ['https://example.com:25/', noPort],
  ['https://example.com:1023/', noPort],
  ['https://example.com:0/', noPort],
])('%j is refused, with what is wrong with it', (text, expected) => {
  expect(readDestination(text, nothingInside)).toEqual(expected);
});

test.each([
  ...['localhost', 'localhost.', 'LOCALHOST', 'a.localhost', 'metadata.google.internal', 'metadata'],
  ...['postgres', 'kubernetes.default.svc.cluster.local', 'router.lan', 'nas.home.arpa', 'x.onion'],
  ...['127.0.0.1', '127.0.0.1.', '2130706433', '0x7f000001', '0x7f.1', '0177.0.0.1', '017700000001', '127.1'],
  ...['１２７.0.0.1', '①②⑦.0.0.1', '0', '0.0.0.0', '127。0。0。1', '%31%32%37.0.0.1'],
  ...['10.0.0.1', '169.254.169.254', '2852039166', '0xa9fea9fe', '0251.0376.0251.0376', '168.63.129.16'],
  ...['[::1]', '[::]', '[0:0:0:0:0:0:0:1]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '[::127.0.0.1]'],
  ...['[64:ff9b::7f00:1]', '[2002:7f00:1::]', '[fd00:ec2::254]', '[fe80::1]', '[2001:0:1::1]'],
])('https://%s/ leads inside, and is refused', (host) => {
  expect(readDestination(`https://${host}/`, nothingInside)).toEqual(notPublic);
});

test('this machine is called without TLS where the operator allows it, and nothing else is', () => {
  for (const url of [
    'http://localhost:3000/hooks',
    'http://127.0.0.1:3000/',
    'http://127.8.8.8/',
    'http://[::1]:3000/',
  ])
    expect(readDestination(url, ownMachine)).toMatchObject({ url, isTls: false });
  expect(readDestination('https://localhost:3000/', ownMachine)).toMatchObject({
    isTls: true,
    host: 'localhost',
  });
  for (const url of ['http://example.com/', 'http://10.0.0.1/', 'http://8.8.8.8/', 'http://[::ffff:7f00:1]/'])
    expect(readDestination(url, ownMachine)).toEqual({ problem: 'must be an https URL' });
  expect(readDestination('https://10.0.0.1/', ownMachine)).toEqual(notPublic);
  expect(readDestination('https://postgres/', ownMachine)).toEqual(notPublic);
  // Inside, and not this machine: TLS it is.
  const inside = createAllowedHosts(['hooks.internal', '10.0.0.0/8']);
  expect(readDestination('http://hooks.internal/', inside)).toEqual({ problem: 'must be an https URL' });
  expect(readDestination('http://10.0.0.1/', inside)).toEqual({ problem: 'must be an https URL' });
});

test('the operator opens hosts by name, names below one, and ranges', () => {
  const inside = createAllowedHosts(['hooks.internal', '*.svc.cluster.local', '10.1.0.0/16', 'fd00::7']);
  const isTaken = (host: string) => 'url' in readDestination(`https://${host}/`, inside);
  for (const host of [
    'hooks.internal',
    'HOOKS.internal.',
    'a.svc.cluster.local',
    '10.1.2.3',
    '[fd00::7]',
    'example.com',
  ])
    expect([host, isTaken(host)]).toEqual([host, true]);
  for (const host of [
    'x.hooks.internal',
    'svc.cluster.local',
    'evilsvc.cluster.local',
    '10.2.0.1',
    '[fd00::8]',
  ])
    expect([host, isTaken(host)]).toEqual([host, false]);
});

test.each([
  // A named host may be anywhere inside, and any other in the ranges alone.
  ['hooks.internal', '10.0.0.1', true],
  ['hooks.internal', 'fd12::1', true],
  ['hooks.internal', '127.0.0.1', true],
  ['hooks.internal', '8.8.8.8', true],
  ['hooks.internal', '0.0.0.0', false],
  ['hooks.internal', '224.0.0.1', false],
  ['example.com', '10.0.0.1', false],
  ['example.com', '192.168.7.7', true],
  ['example.com', '::ffff:192.168.7.7', true],
  // Neither opens what a cloud tells its machines.
  ['hooks.internal', '169.254.169.254', false],
  ['hooks.internal', 'fd00:ec2::254', false],
  ['example.com', '169.254.169.254', false],
  ['example.com', '100.100.100.200', false],
])('%s may be called at %s: %s', (host, address, expected) => {
  const allowed = createAllowedHosts(['hooks.internal', '192.168.7.0/24', '169.254.0.0/16', '100.64.0.0/10']);
  expect(allowed.mayUse(host, address)).toBe(expected);
});

let dns: TestDnsServer;
let clock: ManualClock;
let resolver: Resolver;
beforeAll(async () => {
  dns = await startDnsServer();
});
afterAll(() => dns.stop());
beforeEach(() => {
  clock = createManualClock();
  resolver = createResolver({ servers: [dns.address], clock });
  return () => {
    resolver.close();
  };
});

function at(host: string, allowed = nothingInside) {
  const destination = readDestination(`https://${host}/`, allowed);
  if ('problem' in destination) throw new Error(destination.problem);
  return findDestinationAddresses({ resolver, allowed }, destination);
}

test('a name is called at its public addresses, whatever else stands in its zone', async () => {
  dns.set('mixed.example.com', {
    A: ['10.0.0.1', '8.8.8.8', '127.0.0.1'],
    AAAA: ['::1', '2a00::1', '::ffff:10.0.0.1'],
  });
  expect(await at('mixed.example.com')).toEqual(['2a00::1', '8.8.8.8']);
});

test('a name inside, one without addresses and one that nobody has are told in the same words', async () => {
  dns.set('inside.example.com', { A: ['10.0.0.1'] });
  dns.set('empty.example.com', { TXT: ['nothing'] });
  for (const host of ['inside.example.com', 'empty.example.com', 'nobody.example.com'])
    expect(await at(host)).toEqual({ reason: `No public address was found for ${host}.` });
});

test('name servers that fail are told, and not which ones were asked', async () => {
  dns.fail('broken.example.com', 'SERVFAIL');
  expect(await at('broken.example.com')).toEqual({
    reason: 'The name servers of broken.example.com did not answer.',
  });
});

test('a name that moves inside between two requests is refused at the second', async () => {
  dns.ttlSeconds = 0;
  dns.set('rebinding.example.com', { A: ['8.8.8.8'] });
  expect(await at('rebinding.example.com')).toEqual(['8.8.8.8']);
  dns.set('rebinding.example.com', { A: ['169.254.169.254'] });
  clock.advance(1_000);
  expect(await at('rebinding.example.com')).toEqual({
    reason: 'No public address was found for rebinding.example.com.',
  });
});

test('an alias leads to a name that is judged by its addresses', async () => {
  dns.set('alias.example.com', { CNAME: 'metadata.google.internal' });
  dns.set('metadata.google.internal', { A: ['169.254.169.254'] });
  expect(await at('alias.example.com')).toEqual({
    reason: 'No public address was found for alias.example.com.',
  });
});

test('nobody is asked for an address, or for localhost', async () => {
  dns.queries.length = 0;
  expect(await at('8.8.8.8')).toEqual(['8.8.8.8']);
  expect(await at('localhost', ownMachine)).toEqual(['127.0.0.1', '::1']);
  expect(await at('localhost', createAllowedHosts(['localhost']))).toEqual(['127.0.0.1', '::1']);
  const literal = { host: '10.0.0.1' } as Destination;
  expect(await findDestinationAddresses({ resolver, allowed: nothingInside }, literal)).toEqual({
    reason: 'No public address was found for 10.0.0.1.',
  });
  expect(dns.queries).toEqual([]);
});
