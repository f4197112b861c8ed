import { request } from 'node:http';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { startApi } from '../../src/roles/api.ts';
import {
  anEmail,
  authorize,
  countOf,
  createShiftedClock,
  type ErrorBody,
  post,
  rowsOf,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let clock: ShiftedClock;
/** A second node on the same database. */
let otherNode: Awaited<ReturnType<typeof startApi>>;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ clock });
  otherNode = await startApi(server.installation, { drainMs: 0 });
});
afterAll(async () => {
  await otherNode.stop();
  await server.stop();
});

let keys = 0;
function newKey(): string {
  keys += 1;
  return `key ${keys}`;
}

const withKey = (key: string) => ({ 'idempotency-key': key });

async function usedQuota(organizationId: string): Promise<number> {
  const [row] = await rowsOf<{ used: number | null }>(
    server,
    'select sum(used) as used from quota_usage where organization_id = $1',
    [organizationId],
  );
  return row?.used ?? 0;
}

test('a repeated request gets the same octets, is marked as a replay, and does nothing', async () => {
  const headers = withKey(newKey());
  const [before, used] = [await countOf(server, 'recipients'), await usedQuota(server.organizationId)];
  const body = anEmail({ to: ['a@example.com', 'b@example.com'] });
  const first = await post(server, body, headers);
  expect([first.status, first.headers.get('idempotent-replayed')]).toEqual([202, null]);
  for (let repetition = 1; repetition <= 3; repetition += 1) {
    const replay = await post(server, body, headers);
    expect([replay.status, replay.text]).toEqual([202, first.text]);
    expect(replay.headers.get('idempotent-replayed')).toBe('true');
    expect(replay.headers.get('content-type')).toBe(first.headers.get('content-type'));
  }
  expect(await countOf(server, 'recipients')).toBe(before + 2);
  expect(await usedQuota(server.organizationId)).toBe(used + 2);
});

test('without a key two equal requests are two emails', async () => {
  const [first, second] = [await post(server, anEmail()), await post(server, anEmail())];
  expect(first.body.id).not.toBe(second.body.id);
});

test('neither the order of fields nor white space makes another request', async () => {
  const headers = withKey(newKey());
  const variables = { a: 1, b: 2 };
  const first = await post(server, anEmail({ variables }), headers);
  const turned = JSON.stringify(
    Object.fromEntries(Object.entries(anEmail({ variables: { b: 2, a: 1 } })).reverse()),
    null,
    2,
  );
  expect((await post(server, turned, headers)).text).toBe(first.text);
});

test.each([
  ['a value', { subject: 'Other' }],
  ['the order of a list', { to: ['b@example.com', 'a@example.com'] }],
  ['one field more', { category: 'x' }],
  ['a number instead of a text', { variables: { a: 1 } }],
])('%s makes another request: 409', async (_difference, more) => {
  const headers = withKey(newKey());
  const base = { to: ['a@example.com', 'b@example.com'], variables: { a: '1' } };
  await post(server, anEmail(base), headers);
  const before = await countOf(server, 'messages');
  const response = await post<ErrorBody>(server, anEmail({ ...base, ...more }), headers);
  expect(response).toMatchObject({
    status: 409,
    body: { status_code: 409, name: 'invalid_idempotent_request' },
  });
  expect(await countOf(server, 'messages')).toBe(before);
});

describe('the header', () => {
  test.each(['', ' ', '\t', 'k'.repeat(257)])('%j is refused with 400', async (key) => {
    const response = await post<ErrorBody>(server, anEmail(), withKey(key));
    expect(response).toMatchObject({
      status: 400,
      body: { status_code: 400, name: 'invalid_idempotency_key' },
    });
  });

  test('256 characters are accepted, and all of them count', async () => {
    const [one, other] = [`${'k'.repeat(255)}1`, `${'k'.repeat(255)}2`];
    const first = await post(server, anEmail(), withKey(one));
    expect(first.status).toBe(202);
    expect((await post(server, anEmail(), withKey(one))).text).toBe(first.text);
    expect((await post(server, anEmail(), withKey(other))).body.id).not.toBe(first.body.id);
  });

  test('it is looked at before the fields of the body, and after its form', async () => {
    expect((await post<ErrorBody>(server, {}, withKey(''))).body.name).toBe('invalid_idempotency_key');
    expect((await post<ErrorBody>(server, {}, withKey('k'))).body.name).toBe('validation_error');
  });

  test('two of them are one key, and not the first', async () => {
    const statuses: number[] = [];
    for (const names of [
      ['x', 'y'],
      ['x', 'z'],
      ['x', 'y'],
    ]) {
      statuses.push(await postWithKeys(names, anEmail({ subject: names.join() })));
    }
    expect(statuses).toEqual([202, 202, 202]);
  });
});

function postWithKeys(values: string[], body: unknown): Promise<number> {
  return new Promise((resolve, reject) => {
    const sent = request(`${server.url}/v1/email/send`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${server.key}`,
        'content-type': 'application/json',
        'idempotency-key': values,
      },
    });
    sent.on('error', reject);
    sent.on('response', (response) => {
      response.resume();
      response.on('end', () => {
        resolve(response.statusCode ?? 0);
      });
    });
    sent.end(JSON.stringify(body));
  });
}

test('a refused request leaves its key free: by schema, by rule, by sender, by quota', async () => {
  const { organizationId, key } = await createSender(server.installation, 'free.example');
  const headers = { ...withKey(newKey()), ...authorize({ key }) };
  const from = 'hello@free.example';
  await updateOrganization(server.installation, organizationId, { quotas: { email: 0 } });
  const refused = [
    [{ subject: 1 }, 422],
    [{ to: [] }, 400],
    [{ from: 'a@nobody.example' }, 400],
    [{}, 429],
  ] as const;
  for (const [more, status] of refused) {
    expect((await post(server, anEmail({ from, ...more }), headers)).status).toBe(status);
  }
  await updateOrganization(server.installation, organizationId, { quotas: { email: 1 } });
  const accepted = await post(server, anEmail({ from }), headers);
  expect([accepted.status, accepted.headers.get('idempotent-replayed')]).toEqual([202, null]);
  // Once the request was carried out, a replay is answered before any rule of the account is checked.
  await updateOrganization(server.installation, organizationId, { suspend: ['email'] });
  const replay = await post(server, anEmail({ from }), headers);
  expect([replay.status, replay.text]).toEqual([202, accepted.text]);
});

test('a different body is refused with 409 before the rules are looked at', async () => {
  const headers = withKey(newKey());
  await post(server, anEmail(), headers);
  expect((await post(server, anEmail({ from: 'a@nobody.example' }), headers)).status).toBe(409);
  expect((await post(server, anEmail({ to: [] }), headers)).status).toBe(409);
});

test('one key is another in each organization', async () => {
  const headers = withKey(newKey());
  const other = await createSender(server.installation, 'other.example');
  const own = await post(server, anEmail(), headers);
  const theirs = await post(server, anEmail({ from: 'hello@other.example' }), {
    ...headers,
    ...authorize(other),
  });
  expect([theirs.status, theirs.headers.get('idempotent-replayed')]).toEqual([202, null]);
  expect(theirs.body.id).not.toBe(own.body.id);
});

test('of fifty at once on two nodes one is carried out, and the others wait or get its answer', async () => {
  for (let round = 1; round <= 5; round += 1) {
    const headers = withKey(newKey());
    const before = await countOf(server, 'messages');
    const responses = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        post<{ id: string } | ErrorBody>(
          index % 2 === 0 ? server : asNode(otherNode.url),
          anEmail(),
          headers,
        ),
      ),
    );
    expect(await countOf(server, 'messages')).toBe(before + 1);
    const originals = responses.filter(
      ({ status, headers: given }) => status === 202 && !given.has('idempotent-replayed'),
    );
    expect(originals).toHaveLength(1);
    for (const response of responses) {
      if (response.status === 202) expect(response.text).toBe(originals[0]!.text);
      else {
        expect(response.status).toBe(503);
        expect(response.body).toMatchObject({ status_code: 503, name: 'concurrent_idempotent_requests' });
        expect(response.headers.get('retry-after')).toBe('1');
      }
    }
    expect((await post(asNode(otherNode.url), anEmail(), headers)).text).toBe(originals[0]!.text);
  }
});

/** The same installation by another of its addresses. */
function asNode(url: string): TestServer {
  return {
    ...server,
    request: async (method, path, body, headers = {}) => {
      const response = await fetch(`${url}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${server.key}`,
          'content-type': 'application/json',
          ...headers,
        },
        body: JSON.stringify(body),
      });
      const text = await response.text();
      return { status: response.status, headers: response.headers, body: JSON.parse(text), text };
    },
  };
}

test('while a key is held by another node, a request with it is refused with a time to come back', async () => {
  const key = newKey();
  const { database } = server.installation;
  await database.transaction(async (transaction) => {
    await transaction.rows(
      {
        text: "select pg_advisory_xact_lock(hashtextextended(concat_ws(' ', $1::uuid, $2::text, $3::text), 0))",
      },
      [server.organizationId, 'POST /email/send', key],
    );
    const response = await post<ErrorBody>(server, anEmail(), withKey(key));
    expect([response.status, response.body.name]).toEqual([503, 'concurrent_idempotent_requests']);
  });
  expect((await post(server, anEmail(), withKey(key))).status).toBe(202);
});

test('a key is kept for 24 hours, and is free afterwards', async () => {
  const headers = withKey(newKey());
  const first = await post(server, anEmail(), headers);
  clock.putForward(24 * 3_600_000 - 60_000);
  expect((await post(server, anEmail(), headers)).text).toBe(first.text);
  clock.putForward(60_001);
  const later = await post(server, anEmail({ subject: 'Other' }), headers);
  expect([later.status, later.headers.get('idempotent-replayed')]).toEqual([202, null]);
  expect(later.body.id).not.toBe(first.body.id);
  expect((await post(server, anEmail({ subject: 'Other' }), headers)).text).toBe(later.text);
});
