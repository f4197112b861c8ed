import { expect, test } from 'vitest';
import { readConfig } from './config.ts';

const relay = 'smtp://relay.example.com';

test.each([
  ['smtp', { POSTILLION_SMTP_URL: relay }, true],
  [
    'smtp with name servers of its own',
    { POSTILLION_SMTP_URL: relay, POSTILLION_DNS_SERVERS: '192.0.2.1' },
    true,
  ],
  ['smtp where it is off', { POSTILLION_SMTP_URL: relay, POSTILLION_ADDRESS_CHECKS: 'off' }, false],
  ['mx', { POSTILLION_EMAIL_PROVIDER: 'mx' }, true],
  ['mx where it is off', { POSTILLION_EMAIL_PROVIDER: 'mx', POSTILLION_ADDRESS_CHECKS: 'off' }, false],
  ['the sandbox', {}, false],
  ['the sandbox with name servers', { POSTILLION_DNS_SERVERS: '192.0.2.1' }, false],
  ['the sandbox where it is on', { POSTILLION_ADDRESS_CHECKS: 'on' }, true],
])('with %s the domains of recipients are looked up or not', (_provider, environment, areLookedUp) => {
  expect(readConfig(environment).areDomainsLookedUp).toBe(areLookedUp);
});
