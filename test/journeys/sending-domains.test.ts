/** A domain from its registration to its deletion, against a real DNS server. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { verifyByOperator } from '../../src/domains/domains.ts';
import { startDomainChecks } from '../../src/domains/jobs.ts';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import {
  anEmail,
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  post,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createManualClock } from '../support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let dns: TestDnsServer;
let clock: ShiftedClock;
let other: { organizationId: string; key: string };
/** A worker's. */
let checks: ReturnType<typeof startDomainChecks>;
const bounceHost = 'mail.host.test';

beforeAll(async () => {
  dns = await startDnsServer();
  clock = createShiftedClock();
  server = await startTestServer({
    clock,
    dnsServers: [dns.address],
    bounceHost,
    publicUrl: 'https://app.host.test',
  });
  other = await createSender(server.installation, 'elsewhere.example');
  checks = startDomainChecks(server.installation);
});
afterAll(async () => {
  await checks.stop();
  await server.stop();
  await dns.stop();
});
beforeEach(async () => {
  for (const id of [server.organizationId, other.organizationId]) {
    await updateOrganization(server.installation, id, { limits: { domains: null } });
  }
});

const register = (body: unknown, sender?: Sender) =>
  server.request<DomainRecord>('POST', '/v1/email/domains', body, authorize(sender));
const readDomain = (id: string, sender?: Sender) =>
  server.request<DomainRecord>('GET', `/v1/email/domains/${id}`, undefined, authorize(sender));
const verify = (id: string, sender?: Sender) =>
  server.request<DomainRecord>('POST', `/v1/email/domains/${id}/verify`, undefined, authorize(sender));
const remove = (id: string, sender?: Sender) =>
  server.request('DELETE', `/v1/email/domains/${id}`, undefined, authorize(sender));

/** Publishes what the domain asks for, but for the kinds left out. */
function publish({ records }: DomainRecord, ...leftOut: string[]): void {
  const byName = new Map<string, Parameters<TestDnsServer['set']>[1]>();
  for (const { record, type, name, value, priority } of records) {
    if (leftOut.includes(record)) continue;
    const published =
      type === 'MX' ? { MX: [[priority!, value]] } : type === 'CNAME' ? { CNAME: value } : { TXT: [value] };
    byName.set(name, { ...byName.get(name), ...published } as Parameters<TestDnsServer['set']>[1]);
  }
  for (const [name, published] of byName) dns.set(name, published);
}

const statusesOf = ({ records }: DomainRecord) =>
  Object.fromEntries(records.map(({ record, status }) => [record, status]));

async function registered(name: string, sender?: Sender): Promise<DomainRecord> {
  const { status, body, text } = await register({ name }, sender);
  expect([status, text.slice(0, 300)]).toMatchObject([200, expect.stringContaining('"id"')]);
  return body;
}

test('a domain is registered with its records, published, verified, sent from, and deleted', async () => {
  const { status, body: domain } = await register({
    name: 'MÜNCHEN.Example',
    tracking_subdomain: 'click',
    open_tracking: true,
  });
  expect(status).toBe(200);
  const name = 'xn--mnchen-3ya.example';
  expect(domain).toMatchObject({
    name,
    status: 'pending',
    return_path_subdomain: 'send',
    tracking_subdomain: 'click',
    open_tracking: true,
    click_tracking: false,
    health: { state: 'ok', since: null, issues: [] },
    last_checked_at: null,
    verified_at: null,
  });
  expect(
    domain.records.map(({ record, type, name: at, priority, required, status: state, found }) => [
      record,
      type,
      at.replace(/^pst\w+\._/, '<selector>._'),
      priority,
      required,
      state,
      found,
    ]),
  ).toEqual([
    ['dkim', 'TXT', `<selector>._domainkey.${name}`, null, true, 'pending', []],
    ['return_path_mx', 'MX', `send.${name}`, 10, true, 'pending', []],
    ['return_path_spf', 'TXT', `send.${name}`, null, true, 'pending', []],
    ['dmarc', 'TXT', `_dmarc.${name}`, null, false, 'pending', []],
    ['tracking', 'CNAME', `click.${name}`, null, true, 'pending', []],
  ]);

  const mail = anEmail({ from: `hello@${name}` });
  expect(await post<ErrorBody>(server, mail)).toMatchObject({ status: 400, body: { name: 'bad_request' } });

  publish(domain, 'return_path_mx', 'dmarc');
  const half = await verify(domain.id);
  expect(half).toMatchObject({ status: 200, body: { status: 'pending' } });
  expect(statusesOf(half.body)).toEqual({
    dkim: 'verified',
    return_path_mx: 'pending',
    return_path_spf: 'verified',
    dmarc: 'pending',
    tracking: 'verified',
  });
  expect(half.body.last_checked_at).not.toBeNull();

  publish(domain, 'dmarc');
  const whole = await verify(domain.id);
  expect(whole.body).toMatchObject({ status: 'verified', verified_at: expect.any(String) });
  expect((await readDomain(domain.id)).body).toEqual(whole.body);
  expect(await post(server, mail)).toMatchObject({ status: 202 });
  expect(await post(server, { ...mail, from: `hello@mail.${name}` })).toMatchObject({ status: 400 });

  expect(await remove(domain.id)).toMatchObject({
    status: 200,
    body: { object: 'domain', id: domain.id, deleted: true },
  });
  expect(await remove(domain.id)).toMatchObject({ status: 404 });
  expect(await readDomain(domain.id)).toMatchObject({ status: 404 });
  expect(await verify(domain.id)).toMatchObject({ status: 404 });
  expect(await post(server, mail)).toMatchObject({ status: 400 });
});

test('the private key is nowhere in the clear, and a domain that comes back has a new key and selector', async () => {
  const first = await registered('keys.example');
  const [row] = await rowsOf<{ sealed: Buffer }>(
    server,
    'select dkim_private_key_sealed as sealed from domains where id = $1',
    [first.id],
  );
  // DER of PKCS #8 begins with a SEQUENCE that holds the version 0.
  expect(row!.sealed.includes(Buffer.from([0x02, 0x01, 0x00, 0x30]))).toBe(false);
  await remove(first.id);
  const second = await registered('keys.example', other);
  const [oldKey, newKey] = [first, second].map(({ records }) => records[0]!);
  expect(newKey!.name).not.toBe(oldKey!.name);
  expect(newKey!.value).not.toBe(oldKey!.value);
});

test('a domain that is held already is returned as it is, before the limit is looked at', async () => {
  const first = await registered('held.example');
  const { body: list } = await server.request<{ data: unknown[] }>('GET', '/v1/email/domains?limit=100');
  await updateOrganization(server.installation, server.organizationId, {
    limits: { domains: list.data.length },
  });
  expect(await register({ name: 'HELD.example', return_path_subdomain: 'other' })).toMatchObject({
    status: 200,
    body: first,
  });
  expect(await register({ name: 'one-too-many.example' })).toMatchObject({
    status: 400,
    body: { name: 'domain_limit_reached' },
  });
  await updateOrganization(server.installation, server.organizationId, { limits: { domains: 0 } });
  expect(await register({ name: 'none-at-all.example' })).toMatchObject({
    status: 400,
    body: { name: 'domain_limit_reached' },
  });
});

test.each([
  'com',
  'co.uk',
  'github.io',
  'example',
  '127.0.0.1',
  '[::1]',
  'https://example.com',
  'ann@example.com',
  'example.com.',
  'a_b.example.com',
  'exa mple.com',
  '*.example.com',
  '',
  `${'a.'.repeat(130)}example.com`,
  'a\r\nb.example.com',
])('%j cannot be registered', async (name) => {
  expect(await register({ name })).toMatchObject({ status: 422, body: { name: 'validation_error' } });
});

test.each([
  [{ return_path_subdomain: 'a b' }, 'return_path_subdomain'],
  [{ return_path_subdomain: '' }, 'return_path_subdomain'],
  [{ return_path_subdomain: 'UPPER' }, 'return_path_subdomain'],
  [{ tracking_subdomain: 'a..b' }, 'tracking_subdomain'],
  [{ open_tracking: 'true' }, 'open_tracking'],
  [{ status: 'verified' }, 'status'],
  [{ organization_id: '01934c1e-9f3a-7cc0-8b1a-0123456789ab' }, 'organization_id'],
])('%j is refused, naming the field', async (more, field) => {
  const { status, body } = await server.request<ErrorBody>('POST', '/v1/email/domains', {
    name: 'fields.example',
    ...more,
  });
  expect([status, body.name]).toEqual([422, 'validation_error']);
  expect(body.message).toContain(field);
});

test.each([{ return_path_subdomain: 'mail', tracking_subdomain: 'mail' }, { tracking_subdomain: 'send' }])(
  '%j is refused: two records of one name would hide each other',
  async (more) => {
    const { status, body } = await server.request<ErrorBody>('POST', '/v1/email/domains', {
      name: 'twice.example',
      ...more,
    });
    expect([status, body.message]).toEqual([
      422,
      'tracking_subdomain must not be the same as return_path_subdomain, which is send when omitted',
    ]);
  },
);

test('a name that leaves no room for the return path before it cannot be registered', async () => {
  const long = `${'a'.repeat(60)}.${'b'.repeat(60)}.${'c'.repeat(58)}.example`;
  expect(await register({ name: long })).toMatchObject({ status: 200 });
  for (const more of [
    { return_path_subdomain: 'sender' },
    { tracking_subdomain: `${'d'.repeat(50)}.${'e'.repeat(49)}` },
  ]) {
    expect(await register({ name: `x${long}`.replace('aa', 'a'), ...more })).toMatchObject({
      status: 422,
      body: { name: 'validation_error' },
    });
  }
});

test('the hosts of the installation itself cannot be registered', async () => {
  for (const name of [bounceHost, `deep.${bounceHost}`, 'app.host.test']) {
    expect(await register({ name })).toMatchObject({ status: 422, body: { name: 'validation_error' } });
  }
  expect(await register({ name: 'host.test' })).toMatchObject({ status: 200 });
});

describe('what another organization has verified', () => {
  test('is unavailable, with all that lies above and below it; what it only registered is not', async () => {
    const pending = await registered('contested.example', other);
    const own = await registered('contested.example');
    publish(pending);
    expect((await verify(pending.id, other)).body.status).toBe('verified');
    for (const name of ['contested.example', 'sub.contested.example']) {
      if (name !== 'contested.example') {
        expect(await register({ name })).toMatchObject({ status: 400, body: { name: 'domain_unavailable' } });
      }
    }
    expect(await register({ name: 'xcontested.example' })).toMatchObject({ status: 200 });
    // Whether or not its own records are there: they bear other keys under the same names.
    expect(await verify(own.id)).toMatchObject({ status: 400, body: { name: 'domain_unavailable' } });
    publish(own);
    expect(await verify(own.id)).toMatchObject({ status: 400, body: { name: 'domain_unavailable' } });
    expect((await readDomain(own.id)).body.status).toBe('pending');
  });

  test('may be had again once it is deleted', async () => {
    const first = await registered('passed-on.example', other);
    publish(first);
    await verify(first.id, other);
    expect(await register({ name: 'passed-on.example' })).toMatchObject({ status: 400 });
    await remove(first.id, other);
    const second = await registered('passed-on.example');
    publish(second);
    expect((await verify(second.id)).body.status).toBe('verified');
  });

  test('at the same moment is verified for exactly one', async () => {
    const parent = await registered('race.example');
    const child = await registered('mail.race.example', other);
    publish(parent);
    publish(child);
    const answers = await Promise.all([verify(parent.id), verify(child.id, other)]);
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 400]);
  });
});

test('of many registrations at once one goes through, and the others are told to wait their turn', async () => {
  const answers = await Promise.all(
    Array.from({ length: 6 }, (_, index) => register({ name: `many-${index}.example` })),
  );
  const statuses = answers.map(({ status }) => status);
  expect(statuses).toContain(200);
  expect(statuses.filter((status) => status !== 200)).toEqual(
    answers.filter(({ status }) => status !== 200).map(() => 409),
  );
  expect(answers.find(({ status }) => status === 409)!.body).toMatchObject({ name: 'conflict' });
  const names = await rowsOf(
    server,
    "select name from domains where organization_id = $1 and name like 'many-%'",
    [server.organizationId],
  );
  expect(names).toHaveLength(statuses.filter((status) => status === 200).length);
});

test('a server that fails says nothing about a record, in either direction', async () => {
  const domain = await registered('silent.example');
  const [dkim] = domain.records;
  dns.fail(dkim!.name, 'SERVFAIL');
  publish(domain, 'dkim');
  const first = await verify(domain.id);
  expect(first.body.records[0]).toMatchObject({ status: 'pending', found: [], last_checked_at: null });
  publish(domain);
  const second = await verify(domain.id);
  expect(second.body.status).toBe('verified');
});

test('what is really there is shown: a doubled SPF record, another key, another exchange', async () => {
  const domain = await registered('muddled.example');
  publish(domain);
  const at = (kind: string) => domain.records.find(({ record }) => record === kind)!;
  dns.set('send.muddled.example', {
    MX: [[5, 'mx.provider.example']],
    TXT: [at('return_path_spf').value, 'v=spf1 -all'],
  });
  const { body } = await verify(domain.id);
  const found = Object.fromEntries(
    body.records.map(({ record, status, found: there }) => [record, [status, there]]),
  );
  expect(found.return_path_spf).toEqual(['failed', [at('return_path_spf').value, 'v=spf1 -all']]);
  expect(found.return_path_mx).toEqual(['failed', ['5 mx.provider.example']]);
  expect(found.dkim![0]).toBe('verified');
});

test('the list is paginated, newest first, and holds nothing of others', async () => {
  const mine = await registered('listed.example');
  await registered('not-listed.example', other);
  const { body } = await server.request<{ object: string; has_more: boolean; data: DomainRecord[] }>(
    'GET',
    '/v1/email/domains?limit=1',
  );
  expect(body).toMatchObject({ object: 'list', has_more: true });
  expect(body.data.map(({ id }) => id)).toEqual([mine.id]);
  const rest = await server.request<{ data: DomainRecord[] }>(
    'GET',
    `/v1/email/domains?limit=100&after=${mine.id}`,
  );
  expect(rest.body.data.map(({ name }) => name)).not.toContain('not-listed.example');
});

describe('the periodic check', () => {
  beforeAll(() => checks.stop());
  afterAll(() => {
    checks = startDomainChecks(server.installation);
  });

  test('verifies a domain by itself, and tells of records that vanish', async () => {
    const domain = await registered('periodic.example');
    const periodic = startDomainChecks(server.installation);
    try {
      publish(domain);
      clock.putForward(60_001);
      const verified = await eventually(
        async () => (await readDomain(domain.id)).body,
        ({ status }) => status === 'verified',
      );
      expect(verified.health).toEqual({ state: 'ok', since: null, issues: [] });

      dns.remove('send.periodic.example');
      clock.putForward(60_001);
      const degraded = await eventually(
        async () => (await readDomain(domain.id)).body,
        ({ health }) => health.state === 'degraded',
      );
      expect(degraded).toMatchObject({
        status: 'verified',
        health: {
          since: expect.any(String),
          issues: [
            'The MX record of send.periodic.example is missing.',
            'The TXT record of send.periodic.example is missing.',
          ],
        },
      });
      expect(await post(server, anEmail({ from: 'a@periodic.example' }))).toMatchObject({ status: 202 });

      // It stays so since then, however often it is looked at.
      clock.putForward(60_001);
      const again = await eventually(
        async () => (await readDomain(domain.id)).body,
        ({ last_checked_at: at }) => at !== degraded.last_checked_at,
      );
      expect(again.health.since).toBe(degraded.health.since);

      publish(domain);
      clock.putForward(60_001);
      await eventually(
        async () => (await readDomain(domain.id)).body,
        ({ health }) => health.state === 'ok',
      );
    } finally {
      await periodic.stop();
    }
  });

  test('checks five domains of two organizations two at a time, one after the other without a rest', async () => {
    const names = ['one.five.example', 'two.five.example', 'three.five.example'];
    for (const name of names) await registered(name);
    for (const name of ['one.six.example', 'two.six.example']) await registered(name, other);
    const isOfTest = `name like '%.five.example' or name like '%.six.example'`;
    await rowsOf(server, `update domains set next_check_at = null where not (${isOfTest})`);
    const { database } = server.installation;
    let underWay = 0;
    let most = 0;
    const periodic = startDomainChecks({
      ...server.installation,
      // It stands still: whoever rests once does not wake.
      clock: createManualClock(clock.nowMs() + 60_001),
      checksMax: 2,
      database: {
        ...database,
        connectAlone: () => Promise.reject(new Error('no notifications')),
        rows: async (statement, values) => {
          const rows = await database.rows(statement, values);
          if (statement.name === 'domains_take_due') underWay += rows.length;
          most = Math.max(most, underWay);
          return rows;
        },
        transaction: async (work) => {
          const result = await database.transaction(work);
          underWay -= 1;
          return result;
        },
      },
    });
    try {
      await eventually(
        () =>
          rowsOf(
            server,
            `select name from domains where organization_id = any ($1::uuid[]) and (${isOfTest}) and last_checked_at is null`,
            [[server.organizationId, other.organizationId]],
          ),
        (unchecked) => unchecked.length === 0,
      );
    } finally {
      await periodic.stop();
    }
    expect(most).toBe(2);
  });

  test('leaves a domain alone that is verified by the operator alone', async () => {
    const outcome = await verifyByOperator(server.installation, {
      organizationId: server.organizationId,
      name: 'by-word.example',
    });
    if (outcome.kind !== 'verified') throw new Error(outcome.kind);
    const [row] = await rowsOf(server, 'select next_check_at from domains where id = $1', [outcome.id]);
    expect(row).toEqual({ next_check_at: null });
    expect((await readDomain(outcome.id)).body).toMatchObject({
      status: 'verified',
      health: { state: 'ok' },
    });
  });
});

test('verifying takes no body or an empty object, and nothing else', async () => {
  const { body: domain } = await register({ name: 'bodiless.example' });
  const path = `/v1/email/domains/${domain.id}/verify`;
  expect((await server.request('POST', path, {})).status).toBe(200);
  for (const [body, status] of [
    ['{', 400],
    ['[]', 422],
    ['{"a":1}', 422],
  ] as const)
    expect((await server.request('POST', path, body)).status, body).toBe(status);
});
