import { expect, test } from 'vitest';
import { createNetworkMatch, networkOf, parseNetwork, siteOf } from './network.ts';

test('all of a /64 is one network, and each IPv4 address is one', () => {
  expect(networkOf('2001:db8:1:2::1')).toBe(networkOf('2001:db8:1:2:ffff:ffff:ffff:ffff'));
  expect(networkOf('2001:db8:1:2::1')).not.toBe(networkOf('2001:db8:1:3::1'));
  expect(networkOf('192.0.2.1')).not.toBe(networkOf('192.0.2.2'));
  expect(networkOf('fe80::1%eth0')).toBe(networkOf('fe80::2%eth1'));
});

test('all of a /48, or of a /24 of IPv4, is one site', () => {
  expect(siteOf('2001:db8:1:2::1')).toBe(siteOf('2001:db8:1:ffff::1'));
  expect(siteOf('2001:db8:1:2::1')).not.toBe(siteOf('2001:db8:2:2::1'));
  expect(siteOf('192.0.2.1')).toBe(siteOf('192.0.2.255'));
  expect(siteOf('192.0.2.1')).not.toBe(siteOf('192.0.3.1'));
});

test('an IPv4 address that is mapped into IPv6 is an IPv4 address, however it is written', () => {
  for (const mapped of ['::ffff:192.0.2.1', '::FFFF:c000:201', '0:0:0:0:0:ffff:192.0.2.1']) {
    expect(networkOf(mapped)).toBe(networkOf('192.0.2.1'));
    expect(siteOf(mapped)).toBe(siteOf('192.0.2.1'));
  }
  expect(networkOf('::ffff:192.0.2.1')).not.toBe(networkOf('::ffff:192.0.2.2'));
});

test('text that is no address is returned unchanged', () => {
  for (const text of ['', 'localhost', '192.0.2.256', '2001:db8::1::']) {
    expect(networkOf(text)).toBe(text);
    expect(siteOf(text)).toBe(text);
  }
});

test.each([
  ['203.0.113.7', '203.0.113.7/32'],
  ['203.0.113.7/24', '203.0.113.0/24'],
  ['0.0.0.0/0', '0.0.0.0/0'],
  ['::ffff:203.0.113.7', '203.0.113.7/32'],
  ['2001:DB8::1', '2001:db8::1/128'],
  ['2001:db8::1/32', '2001:db8::/32'],
])('%s is the range %s', (text, range) => {
  expect(parseNetwork(text)).toBe(range);
});

test.each([
  '',
  '10',
  '10.1',
  '010.0.0.1',
  '0x0a000001',
  '203.0.113.7/33',
  '203.0.113.7/-1',
  '2001:db8::/129',
])('%j is no range', (text) => {
  expect(parseNetwork(text)).toBeNull();
});

test.each([
  ['203.0.113.255', true],
  ['203.0.114.0', false],
  ['::ffff:203.0.113.1', true],
  ['2001:db8:ffff::1', true],
  ['2001:db8::1%eth0', true],
  ['2001:db9::1', false],
  ['203.0.113.7.example', false],
  ['', false],
])('whether %s is in one of two ranges: %s', (address, isIn) => {
  expect(createNetworkMatch(['203.0.113.0/24', '2001:db8::/32'])(address)).toBe(isIn);
});
