/** A relay's user, and a bounce host that comes and goes between the starts of one installation. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sandboxDomain } from '../../src/domains/domains.ts';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { findDomain } from '../../src/domains/store.ts';
import { checkDomain } from '../../src/domains/verification.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  send,
  type Sender,
  settled,
} from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let dns: TestDnsServer;
let relay: SmtpSink;
let database: TestDatabase;
const clock = createShiftedClock();

beforeAll(async () => {
  dns = await startDnsServer();
  relay = await startSmtpSink();
  database = await createTestDatabase();
});
afterAll(async () => {
  await Promise.all([dns.stop(), relay.close()]);
  await database.drop();
});

/** The installation from one start to the next. */
async function during(bounceHost: string | null, work: (server: TestServer) => Promise<void>): Promise<void> {
  const server = await startTestServer({
    worker: true,
    clock,
    database: database.address,
    smtpUrl: `smtp://127.0.0.1:${relay.port}`,
    dnsServers: [dns.address],
    areDomainsLookedUp: false,
    publicUrl: 'https://app.host.example',
    bounceHost,
  });
  try {
    await work(server);
    // The next server wants this domain for an organization of its own.
    await rowsOf(server, `delete from domains where name = '${sandboxDomain}'`);
  } finally {
    await server.stop();
  }
}

test('what is asked for and where bounces go follow the settings, for a domain that is verified too', async () => {
  let owner: Sender | undefined;
  let organizationId = '';
  let id = '';
  const domainAt = async (server: TestServer) =>
    (await server.request<DomainRecord>('GET', `/v1/email/domains/${id}`, undefined, authorize(owner))).body;
  /** The periodic one: a request changes nothing of a domain that is verified. */
  const check = async (server: TestServer) => {
    const row = await findDomain(server.installation.database, { organizationId, id });
    await checkDomain(server.installation, row!);
    // Otherwise the next start would begin with a check.
    await rowsOf(server, 'update domains set next_check_at = null where id = $1', [id]);
    // Workers keep what they know of a domain for a moment.
    clock.putForward(120_000);
    return domainAt(server);
  };
  const publish = ({ records }: DomainRecord) => {
    for (const { record, type, name, value, priority } of records) {
      if (type === 'MX') dns.set(name, { MX: [[priority!, value]], TXT: [`v=spf1 include:${value} ~all`] });
      else if (record !== 'return_path_spf') dns.set(name, { TXT: [value] });
    }
  };
  const kindsOf = ({ records }: DomainRecord) => records.map(({ record }) => record);
  const returnPathOf = async (server: TestServer) => {
    const before = relay.messages.length;
    await settled(server, await send(server, { from: 'us@shop.example' }, owner), owner);
    return relay.messages[before]!.envelopeFrom;
  };
  const withReturnPath = ['dkim', 'return_path_mx', 'return_path_spf', 'dmarc'];

  await during(null, async (server) => {
    owner = { key: server.key };
    organizationId = server.organizationId;
    const { body } = await server.request<DomainRecord>('POST', '/v1/email/domains', {
      name: 'shop.example',
    });
    id = body.id;
    expect(kindsOf(body)).toEqual(['dkim', 'dmarc']);
    await eventually(
      () => domainAt(server),
      ({ last_checked_at }) => last_checked_at !== null,
    );
    publish(body);
    expect(await check(server)).toMatchObject({ status: 'verified', health: { state: 'ok' } });
    expect(await returnPathOf(server)).toBe('us@shop.example');
  });

  await during('bounces.host.example', async (server) => {
    const unchecked = await domainAt(server);
    expect(kindsOf(unchecked)).toEqual(withReturnPath);
    expect(unchecked).toMatchObject({ status: 'verified', health: { state: 'ok' } });
    expect(await returnPathOf(server), 'before anybody has looked').toBe('us@shop.example');

    expect((await check(server)).health).toEqual({
      state: 'degraded',
      since: expect.any(String),
      issues: [
        'The MX record of send.shop.example is missing.',
        'The TXT record of send.shop.example is missing.',
      ],
    });
    expect(await returnPathOf(server), 'while the records are missing').toBe('us@shop.example');

    publish(unchecked);
    expect((await check(server)).health).toEqual({ state: 'ok', since: null, issues: [] });
    expect(await returnPathOf(server)).toMatch(/^bounce-.*@send\.shop\.example$/);

    dns.remove('send.shop.example');
    expect((await check(server)).health.state).toBe('degraded');
  });

  await during(null, async (server) => {
    const unchecked = await domainAt(server);
    expect(kindsOf(unchecked)).toEqual(['dkim', 'dmarc']);
    expect(unchecked.health).toEqual({ state: 'ok', since: null, issues: [] });
    expect(await returnPathOf(server)).toBe('us@shop.example');
    expect((await check(server)).health).toEqual({ state: 'ok', since: null, issues: [] });
  });

  await during('bounces.host.example', async (server) => {
    expect(await domainAt(server)).toMatchObject({ status: 'verified', health: { state: 'ok' } });
    publish(await domainAt(server));
    expect((await check(server)).health.state).toBe('ok');
  });
  // The record is taken out of the DNS while nobody asks for it.
  await during(null, async (server) => {
    dns.remove('send.shop.example');
    await check(server);
  });
  await during('bounces.host.example', async (server) => {
    expect(await returnPathOf(server), 'by what was found long ago').toBe('us@shop.example');
  });
});
