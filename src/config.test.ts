import { expect, test } from 'vitest';
import { ConfigError, readConfig } from './config.ts';

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

const account = `https://AC${'0'.repeat(32)}:token@api.twilio.com`;
const smsc = 'smpp://id:secret@smsc.example.com';
const reached = { POSTILLION_PUBLIC_URL: 'https://post.example.com' };

test.each([
  ['nothing', {}, 'sandbox', 'sandbox'],
  ['a relay', { POSTILLION_SMTP_URL: relay }, 'smtp', 'sandbox'],
  [
    'a relay that is not to be used',
    { POSTILLION_SMTP_URL: relay, POSTILLION_EMAIL_PROVIDER: 'sandbox' },
    'sandbox',
    'sandbox',
  ],
  ['an account', { POSTILLION_TWILIO_URL: account, ...reached }, 'sandbox', 'twilio'],
  [
    'an account and a message centre',
    { POSTILLION_TWILIO_URL: account, POSTILLION_SMPP_URL: smsc },
    'sandbox',
    'smpp',
  ],
])('with %s each channel has the provider that is meant', (_settings, environment, email, sms) => {
  expect(readConfig(environment)).toMatchObject({ emailProvider: email, smsProvider: sms });
});

test.each([
  [
    { POSTILLION_EMAIL_PROVIDER: 'smtp' },
    'POSTILLION_SMTP_URL is required with POSTILLION_EMAIL_PROVIDER=smtp',
  ],
  [
    { POSTILLION_EMAIL_PROVIDER: 'constructor' },
    'POSTILLION_EMAIL_PROVIDER must be one of sandbox, smtp, mx',
  ],
  [{ POSTILLION_SMS_PROVIDER: 'smpp' }, 'POSTILLION_SMPP_URL is required with POSTILLION_SMS_PROVIDER=smpp'],
  [
    { POSTILLION_SMS_PROVIDER: 'twilio' },
    'POSTILLION_TWILIO_URL is required with POSTILLION_SMS_PROVIDER=twilio\n' +
      'POSTILLION_PUBLIC_URL is required with POSTILLION_SMS_PROVIDER=twilio, for its reports',
  ],
  [
    { POSTILLION_TWILIO_URL: account },
    'POSTILLION_PUBLIC_URL is required with POSTILLION_SMS_PROVIDER=twilio, for its reports',
  ],
  [{ POSTILLION_MX_PORT: 'smtp' }, 'POSTILLION_MX_PORT must be a port number, 0 to 65535'],
])('what a provider lacks is said: %j', (environment, problems) => {
  expect(() => readConfig(environment)).toThrow(new ConfigError(problems));
});

test.each([
  ['POSTILLION_SMTP_URL', 'mail.example.com:587', /^POSTILLION_SMTP_URL must begin with smtp:\/\//],
  [
    'POSTILLION_SMTP_URL',
    'smtp://user:p@ss/word@mail.example.com',
    /^POSTILLION_SMTP_URL has something after/,
  ],
  ['POSTILLION_SMPP_URL', 'smpp://id@[::1', /^POSTILLION_SMPP_URL cannot be read/],
  [
    'POSTILLION_TWILIO_URL',
    'https://account:token@api.twilio.com',
    /^POSTILLION_TWILIO_URL needs the account SID/,
  ],
  [
    'POSTILLION_VAPID_SUBJECT',
    'me',
    /^POSTILLION_VAPID_SUBJECT must be like/,
    'POSTILLION_PUSH_PROVIDER=direct',
  ],
  [
    'POSTILLION_WHATSAPP_URL',
    'http://graph.example.com',
    /^POSTILLION_WHATSAPP_URL must begin with https/,
    'POSTILLION_CHATAPP_PROVIDER=whatsapp',
  ],
  [
    'POSTILLION_PUBLIC_URL',
    'https://post.example.com:port',
    /^POSTILLION_PUBLIC_URL must be an http or https URL/,
  ],
])('a %s like %s is one problem with the settings', (name, value, problem, choice = '=') => {
  const [chosen = '', provider = ''] = choice.split('=');
  const read = () => readConfig({ ...reached, [chosen]: provider, [name]: value });
  expect(read).toThrow(ConfigError);
  expect(read).toThrow(problem);
  // Without a full stop, as all of them, and one line.
  expect(read).not.toThrow(/[.\n]$|\n/);
});

test('what only another provider would read is not read', () => {
  expect(readConfig({ POSTILLION_EMAIL_PROVIDER: 'sandbox', POSTILLION_SMTP_URL: 'nonsense' })).toMatchObject(
    {
      emailProvider: 'sandbox',
    },
  );
});

test('what no provider asks for is said beside what one lacks, in one go', () => {
  expect(() => readConfig({ POSTILLION_SMS_PROVIDER: 'twilio', PORT: 'x' })).toThrow(
    /POSTILLION_TWILIO_URL is required.*\n.*\nPORT must be a port number/,
  );
});

test('what is kept is kept for ever unless days say otherwise, and nothing else is taken for days', () => {
  expect(readConfig({})).toMatchObject({
    keptDays: { messages: null, content: null },
    partitionSize: 'month',
  });
  const set = (messages: string, content: string, partitions = 'day') =>
    readConfig({
      POSTILLION_MESSAGES_KEPT_DAYS: messages,
      POSTILLION_CONTENT_KEPT_DAYS: content,
      POSTILLION_PARTITIONS: partitions,
    });
  expect(set('7', '1')).toMatchObject({ keptDays: { messages: 7, content: 1 }, partitionSize: 'day' });
  expect(set('3650', 'unlimited', 'week')).toMatchObject({
    keptDays: { messages: 3650, content: null },
    partitionSize: 'week',
  });
  for (const wrong of ['6', '0', '-7', '3651', '30d', 'for ever'])
    expect(() => set(wrong, '1')).toThrow(
      'POSTILLION_MESSAGES_KEPT_DAYS must be a number of days from 7 to 3650',
    );
  expect(() => set('7', '0')).toThrow('POSTILLION_CONTENT_KEPT_DAYS must be a number of days from 1 to 3650');
  expect(() => set('7', '1', 'year')).toThrow('POSTILLION_PARTITIONS must be one of month, week, day');
});

const ownMachine = ['localhost', '127.0.0.0/8', '::1'];

test.each([
  ['nothing else is set', {}, ownMachine],
  ['it listens on every address', { HOST: '0.0.0.0' }, []],
  ['it is known to others', reached, []],
  [
    'its database serves others as well',
    { DATABASE_URL: 'postgres://localhost/postillion', POSTILLION_SECRET: 'a'.repeat(32) },
    [],
  ],
  ['a proxy stands before it', { POSTILLION_TRUSTED_PROXIES: '127.0.0.1' }, []],
  [
    'the operator says where',
    { POSTILLION_WEBHOOK_ALLOW_HOSTS: 'Hooks.Internal, *.svc.cluster.local, 10.0.0.0/8, fd00::1' },
    ['hooks.internal', '*.svc.cluster.local', '10.0.0.0/8', 'fd00::1'],
  ],
])('webhooks go to this machine or inside it only where that is meant: %s', (_, environment, allowed) => {
  expect(readConfig(environment).webhookAllowedHosts).toEqual(allowed);
});

test.each(['10.0.0.0/33', '010.0.0.1', 'https://hooks.internal', 'hooks.internal:8080', '*', 'a b', '10.0'])(
  'webhooks cannot be allowed to go to %s',
  (entry) => {
    expect(() => readConfig({ POSTILLION_WEBHOOK_ALLOW_HOSTS: entry })).toThrow(
      `POSTILLION_WEBHOOK_ALLOW_HOSTS must hold host names, addresses and CIDR ranges, such as *.internal or 10.0.0.0/8: ${entry}`,
    );
  },
);
