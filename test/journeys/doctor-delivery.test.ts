/** What the doctor says of direct delivery, with a world of its own around it. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { createResolver } from '../../src/platform/dns/dns.ts';
import { examineAddressChecks, examineBounces, examineDirectDelivery } from '../../src/doctor/delivery.ts';
import { type DnsNameRecords, startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { instanceHostsOf } from '../../src/installation/opening.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const host = 'mail.host.example';

let dns: TestDnsServer;
let sink: SmtpSink;
let server: TestServer;

const world: Record<string, DnsNameRecords> = {
  'gmail.com': { MX: [[10, 'mx.gmail.example']] },
  'mx.gmail.example': { A: ['127.0.0.2'] },
  [host]: { A: ['127.0.0.1'], TXT: [`v=spf1 a:${host} -all`] },
  '1.0.0.127.in-addr.arpa': { PTR: [host] },
};

beforeAll(async () => {
  sink = await startSmtpSink({ address: '127.0.0.2' });
  dns = await startDnsServer();
  dns.ttlSeconds = 1;
  server = await startTestServer({
    emailProvider: 'mx',
    providerSettings: { POSTILLION_MX_PORT: `${sink.port}` },
    dnsServers: [dns.address],
    mailHost: host,
    bounceHost: host,
    bounceListener: { host: '127.0.0.1', port: 25 },
  });
});
afterAll(async () => {
  await server.stop();
  await sink.close();
  await dns.stop();
});
beforeEach(() => {
  for (const [name, records] of Object.entries(world)) dns.set(name, records);
});

/** Examines with an empty cache, and leaves out time servers, which this world does not have. */
async function examine(more: Partial<TestServer['installation']['config']> = {}) {
  const { installation } = server;
  const resolver = createResolver({ servers: [dns.address], clock: installation.clock });
  try {
    const config = { ...installation.config, ...more };
    const examined = { ...installation, config, hosts: instanceHostsOf(config), resolver };
    const findings = [...(await examineDirectDelivery(examined)), ...(await examineBounces(examined))];
    return findings
      .filter(({ subject }) => subject !== 'time')
      .map(({ level, subject, found }) => [level, subject, found] as const);
  } finally {
    resolver.close();
  }
}

const levelsOf = (findings: Awaited<ReturnType<typeof examine>>) =>
  Object.fromEntries(findings.map(([level, subject]) => [subject, level]));

test('where all is in order it says so', async () => {
  expect(levelsOf(await examine())).toEqual({
    port: 'ok',
    PTR: 'ok',
    bounces: 'ok',
    SPF: 'ok',
    DKIM: 'ok',
  });
});

test('a port that is closed', async () => {
  dns.set('mx.gmail.example', { A: ['127.0.2.9'] });
  const port = (await examine()).find(([, subject]) => subject === 'port')!;
  expect(port[0]).toBe('problem');
  expect(port[2]).toMatch(/mx\.gmail\.example: .*ECONNREFUSED/);
});

test('a DNS without the probed domains leaves it uncertain whether the port is open', async () => {
  dns.remove('gmail.com');
  expect(levelsOf(await examine()).port).toBe('warning');
});

test('an address that points back to another name, or to nothing', async () => {
  dns.set('1.0.0.127.in-addr.arpa', { PTR: ['dynamic.provider.example'] });
  const [, , other] = (await examine()).find(([, subject]) => subject === 'PTR')!;
  expect(other).toContain('127.0.0.1 to dynamic.provider.example');
  dns.remove('1.0.0.127.in-addr.arpa');
  const [level, , none] = (await examine()).find(([, subject]) => subject === 'PTR')!;
  expect([level, none]).toEqual(['problem', expect.stringContaining('127.0.0.1 to nothing')]);
});

test('a name without an address, with no SPF record or with two', async () => {
  dns.set(host, { TXT: ['v=spf1 -all', 'v=spf1 ~all'] });
  expect(levelsOf(await examine())).toMatchObject({ PTR: 'problem', SPF: 'problem' });
  dns.set(host, { A: ['127.0.0.1'] });
  expect(levelsOf(await examine())).toMatchObject({ PTR: 'ok', SPF: 'problem' });
});

test('bounces that no listener takes, or that arrive at another port', async () => {
  expect(levelsOf(await examine({ bounceListener: null })).bounces).toBe('warning');
  expect(levelsOf(await examine({ bounceListener: { host: '0.0.0.0', port: 2525 } })).bounces).toBe(
    'warning',
  );
});

test.each(['mx', 'smtp'] as const)('bounces that nobody reads, through %s', async (emailProvider) => {
  const findings = await examine({ emailProvider, bounceHost: null, bounceListener: null });
  expect(findings.filter(([, subject]) => subject === 'bounces')).toEqual([
    ['warning', 'bounces', 'bounces are not read: they go to the sender of each email'],
  ]);
  expect(levelsOf(findings).SPF).toBeUndefined();
});

test('a listener without a name of its own is found under that of the installation', async () => {
  const [, , found] = (await examine({ bounceHost: null, publicUrl: `https://${host}` })).find(
    ([, subject]) => subject === 'bounces',
  )!;
  expect(found).toBe(`${host} has an address`);
});

test('the sandbox has no bounces to read', async () => {
  expect(levelsOf(await examine({ emailProvider: 'sandbox' })).bounces).toBeUndefined();
});

test('a sending domain whose records are not in the DNS', async () => {
  await createSender(server.installation, 'unpublished.example');
  const [level, , found] = (await examine()).find(([, subject]) => subject === 'DKIM')!;
  expect(level).toBe('problem');
  expect(found).toMatch(
    /^unpublished\.example: The TXT record of pst\w+\._domainkey\.unpublished\.example is missing\./,
  );
});

test('a name server that fails is no answer', async () => {
  dns.fail(host, 'SERVFAIL');
  expect(levelsOf(await examine())).toMatchObject({ PTR: 'warning', bounces: 'warning' });
});

/** What is said of the recipients' domains; `null` where nothing is. */
async function examineRecipients(areDomainsLookedUp = true) {
  const { installation } = server;
  const resolver = createResolver({ servers: [dns.address], clock: installation.clock });
  try {
    const config = { ...installation.config, areDomainsLookedUp };
    const findings = await examineAddressChecks({ ...installation, config, resolver });
    return findings.map(({ level, found }) => ({ level, found }))[0] ?? null;
  } finally {
    resolver.close();
  }
}

test('name servers that know one of the domains that everybody writes to are fit for address checks', async () => {
  expect(await examineRecipients()).toMatchObject({ level: 'ok' });
});

test('name servers that know the names of one network only are a problem', async () => {
  dns.remove('gmail.com');
  expect(await examineRecipients()).toEqual({
    level: 'problem',
    found:
      'the name servers deny that mail can be delivered to gmail.com, outlook.com, yahoo.com, ' +
      "so that no recipient's domain is checked",
  });
  expect(await examineRecipients(false), 'where nothing is looked up').toBeNull();
});

test('a domain that is denied counts where the other lookups fail, and lookups that fail alone are no denial', async () => {
  dns.fail('outlook.com', 'SERVFAIL');
  dns.fail('yahoo.com', 'SERVFAIL');
  try {
    dns.remove('gmail.com');
    expect(await examineRecipients()).toMatchObject({ level: 'problem' });
    dns.fail('gmail.com', 'SERVFAIL');
    expect(await examineRecipients()).toEqual({
      level: 'warning',
      found: 'the DNS does not answer for gmail.com, outlook.com, yahoo.com',
    });
  } finally {
    dns.remove('outlook.com');
    dns.remove('yahoo.com');
  }
});
