import { expect, test } from 'vitest';
import { isInsideAddress, isMetadataAddress, isPublicAddress, isSelfAddress } from './public-address.ts';

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
  '192.88.99.1',
  '100.100.100.200',
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
  '2001:1::1',
  '2001:0:53aa:64c:0:fbff:a9fe:a9fe',
  '2001:20::1',
  '5f00::1',
  'fd20:ce::254',
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
  // Azure's host, plain and wrapped.
  '168.63.129.16',
  '::ffff:168.63.129.16',
  '64:ff9b::a83f:8110',
  // Spellings that systems read, and nobody writes.
  '2130706433',
  '0x7f.1',
  '0177.0.0.1',
  '127.1',
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

test.each([
  ['10.0.0.1', true],
  ['192.168.1.1', true],
  ['100.64.0.1', true],
  ['127.0.0.1', true],
  ['::1', true],
  ['fd00::1', true],
  ['::ffff:10.0.0.1', true],
  ['8.8.8.8', false],
  ['0.0.0.0', false],
  ['::', false],
  ['224.0.0.1', false],
  ['ff02::1', false],
  ['240.0.0.1', false],
  ['169.254.169.254', false],
  ['100.100.100.200', false],
  ['fd00:ec2::254', false],
  ['::127.0.0.1', false],
  ['localhost', false],
])('%s is of a network of one’s own: %s', (address, expected) => {
  expect(isInsideAddress(address)).toBe(expected);
});

test.each([
  ['169.254.169.254', true],
  ['169.254.170.2', true],
  ['::ffff:169.254.169.254', true],
  ['64:ff9b::a9fe:a9fe', true],
  ['2002:a9fe:a9fe::1', true],
  ['fe80::1', true],
  ['fd00:ec2::254', true],
  ['fd20:ce::254', true],
  ['100.100.100.200', true],
  ['168.63.129.16', true],
  ['168.63.129.17', false],
  ['10.0.0.1', false],
  ['metadata.google.internal', false],
])('%s tells the secrets of a machine: %s', (address, expected) => {
  expect(isMetadataAddress(address)).toBe(expected);
});
