import { describe, expect, it } from 'vitest';
import { parseSmppUrl } from './url.ts';

describe('parseSmppUrl', () => {
  it('fills in what most providers want', () => {
    expect(parseSmppUrl('smpp://user:secret@smsc.example.com')).toEqual({
      host: 'smsc.example.com',
      port: 2775,
      tls: null,
      systemId: 'user',
      password: 'secret',
      systemType: '',
      bind: 'transceiver',
      window: 100,
      connections: 1,
      perSecondMax: null,
      country: null,
      validityMinutes: null,
      senderPlans: {
        alphanumeric: { ton: 5, npi: 0 },
        long_code: { ton: 1, npi: 1 },
        toll_free: { ton: 1, npi: 1 },
        short_code: { ton: 3, npi: 0 },
      },
      destinationPlan: { ton: 1, npi: 1 },
    });
  });

  it('reads everything that can be said', () => {
    const url =
      'smpps://us%40er:s%2Fe%25t@[::1]:3333/?system_type=VMA&window=10&connections=2&validity_minutes=60' +
      '&bind=separate&rate=30&country=44&insecure=1&alphanumeric=5/1&long_code=0/1&short_code=6/14&destination=0/0';
    expect(parseSmppUrl(url)).toEqual({
      host: '::1',
      port: 3333,
      tls: { isVerified: false },
      systemId: 'us@er',
      password: 's/e%t',
      systemType: 'VMA',
      bind: 'separate',
      window: 10,
      connections: 2,
      perSecondMax: 30,
      country: '44',
      validityMinutes: 60,
      senderPlans: {
        alphanumeric: { ton: 5, npi: 1 },
        long_code: { ton: 0, npi: 1 },
        toll_free: { ton: 0, npi: 1 },
        short_code: { ton: 6, npi: 14 },
      },
      destinationPlan: { ton: 0, npi: 0 },
    });
  });

  it('checks certificates on the port of SMPP over TLS', () => {
    expect(parseSmppUrl('smpps://u:hush@h')).toMatchObject({ port: 3550, tls: { isVerified: true } });
  });

  it.each([
    ['smpp://', 'cannot be read|no host|needs a system ID'],
    ['hush', 'cannot be read'],
    ['smtp://u:hush@h', 'must begin with smpp://'],
    ['smpp://h', 'needs a system ID and a password'],
    ['smpp://u@h', 'needs a system ID and a password'],
    ['smpp://u:hush@h/path', 'something after its host'],
    ['smpp://u:hu#sh@h', '.'],
    ['smpp://u:hush%@h', 'write % itself as %25'],
    ['smpp://u:hush@h:0', 'from 1 to 65535'],
    ['smpp://u:hush@-h', 'no host name'],
    ['smpp://u:hush@h?tls=1', 'unknown parameter'],
    ['smpp://u:hush@h?bind=receiver', 'must be transceiver or separate'],
    ['smpp://u:hush@h?rate=0', 'from 1 to 10000'],
    ['smpp://u:hush@h?country=%2B44', 'a dialling code without its plus'],
    ['smpp://u:hush@h?country=0044', 'a dialling code without its plus'],
    ['smpp://u:hush@h?window=0', 'from 1 to 1000'],
    ['smpp://u:hush@h?window=1e2', 'from 1 to 1000'],
    ['smpp://u:hush@h?connections=17', 'from 1 to 16'],
    ['smpp://u:hush@h?validity_minutes=40321', 'from 1 to 40320'],
    ['smpp://u:hush@h?insecure=1', 'smpps:// only'],
    ['smpps://u:hush@h?insecure=yes', 'must be 1 or 0'],
    ['smpp://u:hush@h?long_code=7/1', 'TON/NPI, for example 1/1'],
    ['smpp://u:hush@h?destination=1', 'TON/NPI, for example 1/1'],
    ['smpp://abcdefghijklmnop:hush@h', 'at most 15 characters'],
    [`smpp://u:hush${'x'.repeat(61)}@h`, 'at most 64 characters'],
    ['smpp://u:hush%00@h', 'all of them ASCII'],
    ['smpp://u:hush@h?system_type=abcdefghijklm', 'at most 12 characters'],
  ])('refuses %s in words that keep the password', (url, expected) => {
    let message = '';
    try {
      parseSmppUrl(url);
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).toMatch(new RegExp(expected, 'i'));
    expect(message).not.toMatch(/hush|hu#sh/);
  });
});
