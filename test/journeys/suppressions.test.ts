/** Suppressions over the API: what an organization adds, finds and deletes, and what is sent to whom because of it. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey } from '../../src/accounts/accounts.ts';
import { addSuppressions, optOut } from '../../src/audience/audience.ts';
import type {
  BulkRecord,
  CheckRecord,
  SuppressionRecord,
  SuppressionsDeletion,
} from '../../src/audience/suppression-schema.ts';
import { emailChannel } from '../../src/email/email.ts';
import { applyReports } from '../../src/messages/messages.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const dayMs = 86_400_000;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

let server: TestServer;
let clock: ShiftedClock;
/** With the same addresses, beside every test. */
let other: { organizationId: string; key: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'elsewhere.example');
  await rowsOf(server, 'update organizations set requests_per_window = 10000');
});
afterAll(() => server.stop());

type Page = { object: 'list'; has_more: boolean; data: SuppressionRecord[] };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: { key: string }) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

async function answered<Body>(
  status: number,
  method: string,
  path: string,
  body?: unknown,
  sender?: { key: string },
): Promise<Body> {
  const response = await ask<Body>(method, path, body, sender);
  expect([path, response.status, response.text]).toEqual([path, status, response.text]);
  return response.body;
}

const suppress = (more: object, sender?: { key: string }) =>
  answered<SuppressionRecord>(201, 'POST', '/suppressions', { channel: 'email', ...more }, sender);
const list = async (query: string, sender?: { key: string }) =>
  (await answered<Page>(200, 'GET', `/suppressions?${query}`, undefined, sender)).data;
const check = async (address: string, sender?: { key: string }) => {
  const body = { channel: 'email', addresses: [address] };
  const { data } = await answered<CheckRecord>(200, 'POST', '/suppressions/check', body, sender);
  return data[0]!;
};

let made = 0;
const anAddress = (what = 'somebody') => `${what}-${(made += 1)}@example.com`;

/** What the service itself finds out of an address, or hears from its owner. */
const find = async (
  address: string,
  reason: Parameters<typeof addSuppressions>[3][number]['reason'],
  organizationId = server.organizationId,
) => {
  const { database } = server.installation;
  await addSuppressions(database, server.installation, 'email', [{ organizationId, address, reason }]);
  const rows = await rowsOf<{ id: string }>(
    server,
    'select id from suppressions where organization_id = $1 and address = $2 and reason = $3',
    [organizationId, address, reason],
  );
  return rows[0]!.id;
};

const fromElsewhere = { from: 'hello@elsewhere.example' };
const dropReasonOf = async (address: string, sender?: { key: string }) => {
  const more = sender === undefined ? {} : fromElsewhere;
  const record = await settled(server, await send(server, { ...more, to: [address] }, sender), sender);
  return record.to[0]!.drop_reason;
};

describe('an address that an organization suppresses', () => {
  test('gets nothing more of it, is found by whatever way, and is written to again once that is deleted', async () => {
    const address = anAddress();
    const record = await suppress({ address: address.toUpperCase(), note: 'Asked on the phone.' });
    expect(record).toEqual({
      id: expect.any(String) as string,
      channel: 'email',
      address,
      reason: 'manual',
      scope: 'all',
      note: 'Asked on the phone.',
      source: { type: 'api_key', id: expect.any(String) as string },
      created_at: expect.any(String) as string,
      expires_at: null,
    });
    expect(await answered(200, 'GET', `/suppressions/${record.id}`)).toEqual(record);
    expect(await list(`search=${address}`)).toEqual([record]);
    expect(await list(`search=${address.slice(0, -8).toUpperCase()}`)).toEqual([record]);
    expect(await check(address)).toEqual({ address, suppressed: true, suppressions: [record] });
    expect(await dropReasonOf(address)).toBe('suppressed');
    expect(await check(address, other)).toEqual({ address, suppressed: false, suppressions: [] });
    expect(await dropReasonOf(address, other)).toBeNull();

    expect(await answered(200, 'DELETE', `/suppressions/${record.id.toUpperCase()}`)).toEqual({
      object: 'suppression',
      id: record.id,
      deleted: true,
    });
    expect(await dropReasonOf(address)).toBeNull();
    for (const method of ['GET', 'DELETE']) await answered(404, method, `/suppressions/${record.id}`);
  });

  test('stays as it was first, and can be suppressed for campaigns as well', async () => {
    const address = anAddress();
    const first = await suppress({ address, note: 'first', expires_at: '2090-01-01T00:00:00+02:00' });
    expect(first.expires_at).toBe('2089-12-31T22:00:00.000Z');
    const again = { channel: 'email', address, note: 'again' };
    expect(await answered(200, 'POST', '/suppressions', again)).toEqual(first);
    const marketing = await suppress({ address, scope: 'marketing' });
    expect((await check(address)).suppressions).toEqual([first, marketing]);
  });

  test.each([
    [{ channel: 'email', address: 'nobody' }, 'address must be an email address'],
    [{ channel: 'sms', address: 'ann@example.com' }, 'address must be a phone number in E.164'],
    [{ channel: 'chatapp', address: '004915112345678' }, 'address must be a phone number in E.164'],
    [{ channel: 'push', address: 'installation' }, 'channel must be'],
    [{ channel: 'email', address: 'ann@example.com', reason: 'complaint' }, 'reason must be'],
    [{ channel: 'email', address: 'ann@example.com', note: 'x'.repeat(256) }, 'note must be'],
    [{ channel: 'email', address: 'ann@example.com', scope: 'everything' }, 'scope must be'],
    [
      { channel: 'email', address: 'ann@example.com', expires_at: '2020-01-01T00:00:00Z' },
      'expires_at must be in the future',
    ],
    [
      { channel: 'email', address: 'ann@example.com', expires_at: '9999-12-31T23:59:59-23:59' },
      'expires_at must be at most 100 years ahead',
    ],
    [{ channel: 'email', address: 'ann@example.com', expires: null }, 'expires'],
  ])('is refused with what is wrong with it: %j', async (body, problem) => {
    expect((await answered<ErrorBody>(422, 'POST', '/suppressions', body)).message).toContain(problem);
    const bulk = { suppressions: [body, { channel: 'sms', address: '+4915112345678' }] };
    const { data } = await answered<BulkRecord>(200, 'POST', '/suppressions/bulk', bulk);
    expect(data).toMatchObject([
      { index: 0, error: { name: 'validation_error', message: expect.stringContaining(problem) as string } },
      { index: 1, address: '+4915112345678' },
    ]);
  });

  test('until an instant can be written to from then on, everywhere that is looked at', async () => {
    const [address, marketed] = [anAddress(), anAddress()];
    const until = { expires_at: new Date(clock.nowMs() + dayMs).toISOString() };
    const record = await suppress({ address, ...until });
    const marketing = await suppress({ address: marketed, scope: 'marketing', ...until });
    const theirs = await suppress({ address, expires_at: '2090-01-01T00:00:00Z' }, other);
    const { id: listId } = await answered<{ id: string }>(201, 'POST', '/lists', { name: 'Until' });
    const contacts: string[] = [];
    for (const email of [address, marketed])
      contacts.push(
        (await answered<{ id: string }>(201, 'POST', '/contacts', { email, list_ids: [listId] })).id,
      );
    const { id: campaign } = await answered<{ id: string }>(201, 'POST', '/email/campaigns', {
      name: 'Until',
      subject: 'Hello',
      text: 'Hello.',
      from: 'hello@postillion.test',
      list_ids: [listId],
    });
    const audience = async () => {
      const { audience: contacts, excluded } = await answered<{ audience: number; excluded: object }>(
        200,
        'POST',
        `/email/campaigns/${campaign}/preview`,
        {},
      );
      return { audience: contacts, excluded };
    };
    const explain = (contact: string) =>
      answered<{ outcome: string; reason: string }>(
        200,
        'GET',
        `/email/campaigns/${campaign}/recipients/${contact}`,
      );
    expect(await audience()).toMatchObject({ audience: 0, excluded: { suppressed: 2, unsubscribed: 0 } });
    for (const contact of contacts)
      expect((await explain(contact)).reason).toContain('it was suppressed by a request');
    expect([await dropReasonOf(address), await dropReasonOf(marketed)]).toEqual(['suppressed', null]);

    clock.putForward(dayMs);
    expect(await audience()).toMatchObject({ audience: 2, excluded: { suppressed: 0, unsubscribed: 0 } });
    for (const contact of contacts) expect((await explain(contact)).outcome).toBe('pending');
    expect(await dropReasonOf(address)).toBeNull();
    expect(await dropReasonOf(address, other)).toBe('suppressed');
    expect(await check(address)).toEqual({ address, suppressed: false, suppressions: [] });
    expect(await list(`search=${address}`)).toEqual([]);
    for (const method of ['GET', 'DELETE']) await answered(404, method, `/suppressions/${record.id}`);
    const anew = await suppress({ address });
    expect(anew).toMatchObject({ expires_at: null });
    expect(anew.id).not.toBe(record.id);
    expect(await list(`search=${address}`, other)).toEqual([theirs]);
    await answered(404, 'GET', `/suppressions/${marketing.id}`);
  });

  test('for campaigns alone is left out of them, by those that wait as well, and gets all else', async () => {
    const address = anAddress();
    const { id: listId } = await answered<{ id: string }>(201, 'POST', '/lists', { name: 'Marketing' });
    const { id: contact } = await answered<{ id: string }>(201, 'POST', '/contacts', {
      email: address,
      list_ids: [listId],
    });
    await suppress({ address, scope: 'marketing' });
    expect(await dropReasonOf(address)).toBeNull();
    const { id } = await answered<{ id: string }>(201, 'POST', '/email/campaigns', {
      name: 'To nobody',
      subject: 'Hello',
      text: 'Hello.',
      from: 'hello@postillion.test',
      list_ids: [listId],
    });
    await answered(200, 'POST', `/email/campaigns/${id}/send`, {});
    const campaign = await eventually(
      async () =>
        answered<{ status: string; stats: { excluded: object } }>(200, 'GET', `/email/campaigns/${id}`),
      ({ status }) => status !== 'queued' && status !== 'scheduled',
    );
    expect(campaign).toMatchObject({ status: 'failed', stats: { excluded: { suppressed: 1 } } });
    const shown = await answered<{ consent: object }>(200, 'GET', `/contacts/${contact}`);
    expect(shown.consent).toMatchObject({ email: 'subscribed' });
  });
});

describe('what may be deleted', () => {
  test.each([
    ['hard_bounce', 200, 200],
    ['soft_bounces', 200, 200],
    ['unreachable', 200, 200],
    ['complaint', 409, 200],
    ['operator', 403, 403],
    ['unsubscribe', 409, 409],
  ] as const)('of %s', async (reason, status, confirmedStatus) => {
    const address = anAddress(reason);
    const id = await find(address, reason);
    const theirs = await find(address, reason, other.organizationId);
    await answered(404, 'DELETE', `/suppressions/${theirs}?confirm=complaint`);
    await answered(404, 'GET', `/suppressions/${theirs}`);
    const plain = await answered<ErrorBody>(status, 'DELETE', `/suppressions/${id}`);
    if (reason === 'complaint') expect(plain.message).toContain('confirm=complaint');
    if (status !== 200) await answered(confirmedStatus, 'DELETE', `/suppressions/${id}?confirm=complaint`);
    expect((await check(address)).suppressed).toBe(confirmedStatus !== 200);
    expect((await check(address, other)).suppressed).toBe(true);
  });

  test('a bounced address gets one more try, and is suppressed anew by the next bounce', async () => {
    const address = anAddress('bounced');
    const { installation, organizationId } = server;
    const bounce = async () => {
      const messageId = await send(server, { to: [address] });
      await settled(server, messageId);
      const failure = {
        type: 'hard',
        class: 'mailbox_not_found',
        smtpCode: 550,
        enhancedCode: '5.1.1',
        diagnostic: 'No such user',
        remote: 'mx.example.com',
      } as const;
      await applyReports(
        {
          ...installation,
          random: Math.random,
          onCampaignProgress: () => undefined,
          onContactsChanged: () => undefined,
        },
        emailChannel,
        [{ job: { organizationId, messageId, ordinal: 0 }, status: 'bounced', failure }],
      );
      return messageId;
    };
    const first = await bounce();
    const [bounced] = (await check(address)).suppressions;
    expect(bounced).toMatchObject({ reason: 'hard_bounce', source: { type: 'message', id: first } });
    expect(await dropReasonOf(address)).toBe('suppressed');
    await answered(200, 'DELETE', `/suppressions/${bounced!.id}`);
    const second = await bounce();
    expect((await check(address)).suppressions).toMatchObject([
      { reason: 'hard_bounce', source: { type: 'message', id: second } },
    ]);
  });

  test('no opt-out ends by what is added and deleted beside it, and none has an end', async () => {
    const address = anAddress('stop');
    const { database } = server.installation;
    await database.asOrganizations([server.organizationId], (transaction) =>
      optOut(
        transaction,
        server.installation,
        'email',
        { organizationId: server.organizationId, address },
        { scope: 'all', source: { type: 'reply', id: null } },
      ),
    );
    const manual = await suppress({ address, expires_at: new Date(clock.nowMs() + dayMs).toISOString() });
    clock.putForward(dayMs);
    expect((await check(address)).suppressions.map(({ reason }) => reason)).toEqual(['unsubscribe']);
    await suppress({ address });
    for (const { id } of await list(`search=${address}&reason=manual`))
      await answered(200, 'DELETE', `/suppressions/${id}`);
    await answered(404, 'DELETE', `/suppressions/${manual.id}`);
    expect(await dropReasonOf(address)).toBe('suppressed');
    await expect(
      rowsOf(
        server,
        `update suppressions set expires_at = now() where reason = 'unsubscribe' and address = $1`,
        [address],
      ),
    ).rejects.toThrow('suppressions_expiry_check');
  });

  test('many are deleted at once, each as if alone', async () => {
    const ids = {
      manual: (await suppress({ address: anAddress() })).id,
      complaint: await find(anAddress(), 'complaint'),
      operator: await find(anAddress(), 'operator'),
      unsubscribe: await find(anAddress(), 'unsubscribe'),
      theirs: await find(anAddress(), 'hard_bounce', other.organizationId),
    };
    const remove = (wanted: string[], more: object = {}) =>
      answered<SuppressionsDeletion>(200, 'POST', '/suppressions/bulk-delete', { ids: wanted, ...more });
    const all = [...Object.values(ids), unknownId, ids.manual.toUpperCase()];
    expect(await remove(all)).toEqual({
      object: 'bulk_delete',
      deleted_count: 1,
      not_found_ids: [ids.theirs, unknownId],
      refused: [
        {
          id: ids.complaint,
          error: expect.objectContaining({ status_code: 409, name: 'conflict' }) as object,
        },
        {
          id: ids.operator,
          error: expect.objectContaining({ status_code: 403, name: 'forbidden' }) as object,
        },
        { id: ids.unsubscribe, error: expect.objectContaining({ status_code: 409 }) as object },
      ],
    });
    expect(await remove(all, { confirm: 'complaint' })).toMatchObject({ deleted_count: 1 });
    await answered(200, 'GET', `/suppressions/${ids.theirs}`, undefined, other);
    for (const wrong of [[], Array<string>(1_001).fill(unknownId)])
      await answered(422, 'POST', '/suppressions/bulk-delete', { ids: wrong });
  });
});

describe('many at once', () => {
  const bodies = (addresses: readonly string[], more: object = {}) => ({
    suppressions: addresses.map((address) => ({ channel: 'email', address, ...more })),
  });

  test('each has its own result, the second of the same as one that is there', async () => {
    const [one, two] = [anAddress(), anAddress()];
    const there = await suppress({ address: two, note: 'before' });
    const { data } = await answered<BulkRecord>(200, 'POST', '/suppressions/bulk', {
      suppressions: [
        { channel: 'email', address: one, note: 'first' },
        { channel: 'email', address: two },
        { channel: 'email', address: one.toUpperCase(), note: 'second' },
        { channel: 'email', address: one, scope: 'marketing' },
        'nothing',
      ],
    });
    expect(data).toMatchObject([
      { index: 0, created: true, address: one, note: 'first' },
      { index: 1, created: false, id: there.id, note: 'before' },
      { index: 2, created: false, address: one, note: 'first' },
      { index: 3, created: true, scope: 'marketing' },
      { index: 4, address: null, error: { status_code: 422 } },
    ]);
    for (const wrong of [[], Array<object>(1_001).fill({ channel: 'email', address: one })])
      await answered(422, 'POST', '/suppressions/bulk', { suppressions: wrong });
  });

  test('thousands in opposite orders, added, deleted and found out at once, never deadlock', async () => {
    const { database } = server.installation;
    const deadlocks = async () => {
      const [row] = await rowsOf<{ deadlocks: number }>(
        server,
        'select deadlocks from pg_stat_database where datname = current_database()',
      );
      return row!.deadlocks;
    };
    const before = await deadlocks();
    const addresses = Array.from({ length: 1_000 }, (_none, index) => `clash-${index}@example.com`);
    const add = async (of: readonly string[]) => {
      const { data } = await answered<BulkRecord>(200, 'POST', '/suppressions/bulk', bodies(of));
      return data.map((one) => ('error' in one ? '' : one.id));
    };
    const findAll = (of: readonly string[]) =>
      addSuppressions(
        database,
        server.installation,
        'email',
        of.map((address) => ({
          organizationId: server.organizationId,
          address,
          reason: 'hard_bounce' as const,
        })),
      );
    const removeAll = (ids: readonly string[]) => answered(200, 'POST', '/suppressions/bulk-delete', { ids });
    for (let round = 0; round < 3; round += 1) {
      const backwards = addresses.toReversed();
      const [ids = []] = await Promise.all([
        add(addresses),
        add(backwards),
        findAll(addresses),
        findAll(backwards),
      ]);
      expect(new Set(ids).size).toBe(1_000);
      await Promise.all([
        removeAll(ids),
        removeAll(ids.toReversed()),
        add(addresses),
        findAll(backwards),
        add(backwards),
      ]);
    }
    expect(await deadlocks()).toBe(before);
    const checked = await answered<CheckRecord>(200, 'POST', '/suppressions/check', {
      channel: 'email',
      addresses,
    });
    expect(checked.data.map(({ address }) => address)).toEqual(addresses);
    expect(checked.data.every(({ suppressed }) => suppressed)).toBe(true);
  });
});

describe('a list', () => {
  test('has by every filter, page by page, what all of them together say', async () => {
    const mine = await createSender(server.installation, 'lists.example');
    const { database } = server.installation;
    const reasons = ['hard_bounce', 'complaint', 'operator', 'unsubscribe'] as const;
    const middle = new Date(clock.nowMs() + dayMs / 2);
    for (const half of ['old', 'new']) {
      for (const [index, reason] of reasons.entries())
        for (const channel of ['email', 'sms'] as const)
          await addSuppressions(
            database,
            server.installation,
            channel,
            Array.from({ length: index === 0 ? 60 : 5 }, (_none, number) => ({
              organizationId: mine.organizationId,
              address:
                channel === 'email'
                  ? `${number % 2 === 0 ? 'even' : 'odd'}-${half}-${number}@example.com`
                  : `+49${half === 'old' ? 30 : 40}1234${100 + number}`,
              reason,
            })),
          );
      clock.putForward(dayMs);
    }
    const walk = async (filter: string, limit: number) => {
      const found: SuppressionRecord[] = [];
      let after = '';
      for (;;) {
        const page = await answered<Page>(
          200,
          'GET',
          `/suppressions?limit=${limit}${filter}${after}`,
          undefined,
          mine,
        );
        found.push(...page.data);
        if (!page.has_more) return found;
        after = `&after=${page.data.at(-1)!.id}`;
      }
    };
    const all = await walk('', 100);
    expect(all).toHaveLength(2 * 2 * (60 + 3 * 5));
    expect(all.map(({ id }) => id)).toEqual(
      all
        .map(({ id }) => id)
        .sort()
        .reverse(),
    );
    const cases: [string, (record: SuppressionRecord) => boolean][] = [
      ['&channel=email', ({ channel }) => channel === 'email'],
      ['&channel=push', () => false],
      ['&reason=hard_bounce', ({ reason }) => reason === 'hard_bounce'],
      ['&reason=manual', () => false],
      ['&channel=sms&reason=complaint', ({ channel, reason }) => channel === 'sms' && reason === 'complaint'],
      ['&search=EVEN-', ({ address }) => address!.startsWith('even-')],
      ['&search=%2B4930', ({ address }) => address!.startsWith('+4930')],
      ['&search=odd-old-1%40example.com', ({ address }) => address === 'odd-old-1@example.com'],
      [
        '&search=odd&reason=operator&channel=email',
        ({ address, reason }) => address!.startsWith('odd') && reason === 'operator',
      ],
      [
        `&created_after=${encodeURIComponent(middle.toISOString())}`,
        ({ created_at }) => created_at > middle.toISOString(),
      ],
      [
        `&created_after=${encodeURIComponent(middle.toISOString())}&reason=hard_bounce&search=even`,
        ({ created_at, reason, address }) =>
          created_at > middle.toISOString() && reason === 'hard_bounce' && address!.startsWith('even'),
      ],
      ['&created_after=0000-01-01T00:00:00Z', () => true],
      ['&created_after=9999-12-31T23:59:59Z', () => false],
    ];
    for (const [filter, isMeant] of cases)
      for (const limit of [7, 100])
        expect([filter, await walk(filter, limit)]).toEqual([filter, all.filter(isMeant)]);
    const before = await list(`limit=3&before=${all[10]!.id}&channel=${all[10]!.channel}`, mine);
    const newer = all.slice(0, 10).filter(({ channel }) => channel === all[10]!.channel);
    expect(before).toEqual(newer.slice(-3));
  });

  test('finds a whole address after its erasure, and no beginning of it', async () => {
    const email = anAddress('erased');
    const { id } = await answered<{ id: string }>(201, 'POST', '/contacts', { email });
    const record = await suppress({ address: email, note: 'Her name is Ann.' });
    const theirs = await suppress({ address: email, note: 'Theirs.' }, other);
    await answered(200, 'DELETE', `/contacts/${id}`);
    const erased = { ...record, address: null, note: null };
    expect(await list(`search=${email}`)).toEqual([erased]);
    expect(await list(`search=${email.slice(0, -1)}`)).toEqual([]);
    expect(await check(email)).toEqual({ address: email, suppressed: true, suppressions: [erased] });
    expect(await dropReasonOf(email)).toBe('suppressed');
    expect(await list(`search=${email}`, other)).toEqual([theirs]);
  });
});

test('keys without the scopes are refused', async () => {
  const keyWith = async (...scopes: string[]) => {
    const { key } = await createApiKey(server.installation, {
      organizationId: server.organizationId,
      name: 'Some',
      scopes: scopes,
      expiresAt: null,
    });
    return { key };
  };
  const contacts = await keyWith('contacts:read', 'contacts:write');
  const reader = await keyWith('suppressions:read');
  const body = { channel: 'email', address: 'ann@example.com' };
  await answered(403, 'GET', '/suppressions', undefined, contacts);
  await answered(403, 'POST', '/suppressions', body, contacts);
  await answered(200, 'GET', '/suppressions', undefined, reader);
  const addresses = ['ann@example.com'];
  await answered(200, 'POST', '/suppressions/check', { channel: 'email', addresses }, reader);
  await answered(403, 'POST', '/suppressions', body, reader);
  await answered(403, 'DELETE', `/suppressions/${unknownId}`, undefined, reader);
});
