import { beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { dateOf, now } from '../clock.ts';
import { createIds } from '../ids.ts';
import { type Connection, type Database, unpreparedStatement } from '../postgres/database.ts';
import { createSecrets, sha256 } from '../secrets.ts';
import { PublicError } from './errors.ts';
import {
  claimKeys,
  deleteExpiredKeys,
  fingerprintOf,
  keepResponses,
  keyConflict,
  type KeyState,
  readIdempotencyKey,
  retentionMs,
  type ScopedKey,
} from './idempotency.ts';

let database: Database;
let clock: ManualClock;
let key: ScopedKey;

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});

beforeEach(() => {
  clock = createManualClock();
  key = {
    organizationId: createIds(clock)(),
    endpoint: 'POST /things',
    key: 'order 17',
    fingerprint: sha256('the body'),
  };
});

const response = { statusCode: 202, text: '{ "id" : "1" }', headers: { 'x-told': 'a, b' } };

function claim(transaction: Connection, keys: readonly ScopedKey[] = [key]): Promise<KeyState[]> {
  return claimKeys(transaction, keys, { expiredBefore: dateOf(clock.nowMs() - retentionMs) });
}

function keep(transaction: Connection, text = response.text): Promise<void> {
  return keepResponses(transaction, [{ key, response: { ...response, text } }], {
    at: now(clock),
    expiredBefore: dateOf(clock.nowMs() - retentionMs),
  });
}

async function carryOut(text = response.text): Promise<void> {
  await database.transaction(async (transaction) => {
    expect(await claim(transaction)).toEqual([{ kind: 'free' }]);
    await keep(transaction, text);
  });
}

/** A state that is asked for in a transaction of its own. */
async function stateOf(...keys: ScopedKey[]): Promise<KeyState[]> {
  return database.transaction((transaction) => claim(transaction, keys.length > 0 ? keys : [key]));
}

test('a key that was carried out replays its response byte for byte, and refuses a different request', async () => {
  await carryOut();
  const different = { ...key, fingerprint: sha256('another body') };
  expect(await stateOf(key, different)).toEqual([
    { kind: 'replay', response },
    { kind: 'different_request' },
  ]);
});

test('what a request was cannot be guessed by its digest, nor by that of another installation', () => {
  const digest = sha256('a code of six digits');
  const secrets = createSecrets('a secret of the tests, and of nothing else');
  const kept = fingerprintOf(secrets, digest);
  expect(fingerprintOf(secrets, digest)).toEqual(kept);
  expect(kept.equals(digest)).toBe(false);
  expect(kept.equals(fingerprintOf(secrets, sha256('another one')))).toBe(false);
  const elsewhere = createSecrets('another secret of the tests, and of nothing');
  expect(kept.equals(fingerprintOf(elsewhere, digest))).toBe(false);
});

test('the same text is another key in another organization and at another endpoint', async () => {
  await carryOut();
  const elsewhere = { ...key, organizationId: createIds(clock)() };
  const atOther = { ...key, endpoint: 'POST /others' };
  const other = { ...key, key: 'order 18' };
  expect(await stateOf(elsewhere, atOther, other)).toEqual([
    { kind: 'free' },
    { kind: 'free' },
    { kind: 'free' },
  ]);
});

test('while one transaction holds a key another finds it taken, and replays as soon as it is committed', async () => {
  await database.transaction(async (transaction) => {
    expect(await claim(transaction)).toEqual([{ kind: 'free' }]);
    await keep(transaction);
    expect(await stateOf()).toEqual([{ kind: 'concurrent' }]);
  });
  expect(await stateOf()).toEqual([{ kind: 'replay', response }]);
});

test('of many that claim one key at the same time exactly one is let in', async () => {
  let holding = 0;
  let release: () => void = () => undefined;
  const decided = new Promise<void>((resolve) => (release = resolve));
  const kinds = await Promise.all(
    Array.from({ length: 4 }, () =>
      database.transaction(async (transaction) => {
        const [state] = await claim(transaction);
        holding += 1;
        if (holding === 4) release();
        await decided;
        return state!.kind;
      }),
    ),
  );
  expect(kinds.sort()).toEqual(['concurrent', 'concurrent', 'concurrent', 'free']);
});

test('a request that is refused leaves the key free', async () => {
  const refused = database.transaction(async (transaction) => {
    await claim(transaction);
    await keep(transaction);
    throw new Error('refused');
  });
  await expect(refused).rejects.toThrow('refused');
  expect(await stateOf()).toEqual([{ kind: 'free' }]);
});

test('a process that dies with a key in its hands leaves it free at once', async () => {
  const client = await database.connectAlone('dying process');
  const rows: Connection['rows'] = async (given, values) =>
    (await client.query(given.text, values as unknown[])).rows as never;
  await client.query('begin');
  expect(await claim({ rows })).toEqual([{ kind: 'free' }]);
  await keep({ rows });
  expect(await stateOf()).toEqual([{ kind: 'concurrent' }]);
  // The second argument waits until it is gone.
  const [ended] = await database.rows(
    unpreparedStatement<{ is_gone: boolean }>(
      "select pg_terminate_backend(pid, 10000) as is_gone from pg_stat_activity where application_name = 'dying process'",
    ),
  );
  expect(ended).toEqual({ is_gone: true });
  expect(await stateOf()).toEqual([{ kind: 'free' }]);
});

test('after a day a key is free again and takes a new response; before that it is kept', async () => {
  await carryOut();
  clock.advance(retentionMs - 1);
  expect(await stateOf()).toEqual([{ kind: 'replay', response }]);
  clock.advance(1);
  expect(await stateOf()).toEqual([{ kind: 'free' }]);
  await carryOut('{"id":"2"}');
  expect(await stateOf()).toEqual([{ kind: 'replay', response: { ...response, text: '{"id":"2"}' } }]);
});

test('housekeeping removes keys of more than a day ago, and no others', async () => {
  await carryOut();
  const countKeys = async () => {
    const rows = await database.rows(
      unpreparedStatement('select from idempotency_keys where organization_id = $1'),
      [key.organizationId],
    );
    return rows.length;
  };
  clock.advance(retentionMs - 1);
  await deleteExpiredKeys(database, dateOf(clock.nowMs() - retentionMs));
  expect(await countKeys()).toBe(1);
  clock.advance(1);
  await deleteExpiredKeys(database, dateOf(clock.nowMs() - retentionMs));
  expect(await countKeys()).toBe(0);
});

test('the states of many keys come in the order in which they were asked for', async () => {
  await carryOut();
  const others = Array.from({ length: 20 }, (_, index) => ({ ...key, key: `other ${index}` }));
  const asked = [...others.slice(0, 10), key, ...others.slice(10)];
  const kinds = (await stateOf(...asked)).map(({ kind }) => kind);
  expect(kinds).toEqual(asked.map((each) => (each === key ? 'replay' : 'free')));
});

test('a header is a key of 1 to 256 characters, or refused', () => {
  expect(readIdempotencyKey(undefined)).toBeNull();
  expect(readIdempotencyKey('x')).toBe('x');
  expect(readIdempotencyKey('x'.repeat(256))).toBe('x'.repeat(256));
  for (const header of ['', ' ', '\t ', 'x'.repeat(257)]) {
    expect(() => readIdempotencyKey(header), JSON.stringify(header)).toThrow(PublicError);
  }
});

test('the error for a key in the way says what to do about it', () => {
  expect(keyConflict('concurrent')).toMatchObject({
    definition: { statusCode: 503, name: 'concurrent_idempotent_requests' },
    headers: { 'retry-after': '1' },
  });
  expect(keyConflict('different_request')).toMatchObject({
    definition: { statusCode: 409, name: 'invalid_idempotent_request' },
  });
});
