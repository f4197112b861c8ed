import { isIP } from 'node:net';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { dnsServerText, parseDnsServer } from './server-address.ts';

describe('the address of a DNS server', () => {
  it.each([
    ['127.0.0.1', '127.0.0.1', 53],
    ['127.0.0.1:5300', '127.0.0.1', 5300],
    ['::1', '::1', 53],
    ['[::1]', '::1', 53],
    ['[::1]:5300', '::1', 5300],
    ['fe80::1%eth0', 'fe80::1%eth0', 53],
    ['10.0.0.1:65535', '10.0.0.1', 65_535],
  ])('%s is read', (text, host, port) => {
    expect(parseDnsServer(text)).toEqual({ host, port });
  });

  it.each([
    '',
    'localhost',
    'dns.example.test:53',
    '127.0.0.1:',
    '127.0.0.1:0',
    '127.0.0.1:65536',
    '127.0.0.1:-1',
    '127.0.0.1:53 ',
    ' 127.0.0.1',
    '127.0.0.256',
    '[127.0.0.1]:53',
    '[::1',
    '::1]:53',
    '[::1]53',
    '[]:53',
    '127.0.0.1,127.0.0.2',
    `[${':'.repeat(1_000)}]`,
  ])('%j is none', (text) => {
    expect(parseDnsServer(text)).toBeNull();
  });

  it('is read back from how it is written', () => {
    const address = fc.oneof(fc.ipV4(), fc.ipV6()).filter((text) => isIP(text) !== 0);
    fc.assert(
      fc.property(address, fc.integer({ min: 1, max: 65_535 }), (host, port) => {
        expect(parseDnsServer(dnsServerText({ host, port }))).toEqual({ host, port });
      }),
    );
  });
});
