import { expect, test } from 'vitest';
import { readConfig } from '../config.ts';
import { DatabaseUnavailableError } from '../platform/postgres/database.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { publicUrlOf, sessionAddressOf, whileRestarting } from './opening.ts';

test.each([
  [{}, 'http://127.0.0.1:8025'],
  [{ HOST: '0.0.0.0', PORT: '80' }, 'http://localhost:80'],
  [{ HOST: '::' }, 'http://localhost:8025'],
  [{ HOST: '::1' }, 'http://[::1]:8025'],
  [{ HOST: '0.0.0.0', POSTILLION_PUBLIC_URL: 'https://mail.example.com' }, 'https://mail.example.com'],
])('with the settings %j links lead to %s', (environment, expected) => {
  expect(publicUrlOf(readConfig(environment))).toBe(expected);
});

test.each([
  [
    'postgres://owner:secret@db.internal:5432/postillion?sslmode=require',
    'postgres://api:pass%40word@pooler.internal:6432/postillion',
    'postgres://api:pass%40word@db.internal:5432/postillion?sslmode=require',
  ],
  ['postgresql://owner@/one?host=%2Frun', 'postgres://api@pooler/one', 'postgresql://api@/one?host=%2Frun'],
  ['postgres://db/one', 'postgres://api@pooler/one', 'postgres://api@db/one'],
  ['postgres://owner@db/one', 'postgres://pooler/one', 'postgres://db/one'],
])(
  'past the pooler at %s, requests go as who serves them (%s)',
  (sessionDatabaseUrl, apiDatabaseUrl, url) => {
    expect(sessionAddressOf({ sessionDatabaseUrl, apiDatabaseUrl }, true)).toEqual({ url });
    expect(sessionAddressOf({ sessionDatabaseUrl, apiDatabaseUrl }, false)).toEqual({
      url: sessionDatabaseUrl,
    });
    expect(sessionAddressOf({ sessionDatabaseUrl, apiDatabaseUrl: null }, true)).toEqual({
      url: sessionDatabaseUrl,
    });
    expect(sessionAddressOf({ sessionDatabaseUrl: null, apiDatabaseUrl }, true)).toBeNull();
  },
);

const away = new DatabaseUnavailableError('no connection to PostgreSQL');

/** Each try finds PostgreSQL away until that time; resolves with what came of them, and with when. */
async function startWhileAway(awayMs: number, databaseUrl: string | null): Promise<[unknown, number]> {
  const clock = createManualClock();
  const beganAtMs = clock.monotonicMs();
  const work = () => {
    if (clock.monotonicMs() - beganAtMs < awayMs) throw away;
    return Promise.resolve('started');
  };
  let isOver = false;
  const outcome = whileRestarting({ databaseUrl }, async () => work(), clock)
    .catch((cause: unknown) => cause)
    .finally(() => (isOver = true));
  const over = outcome.then(() => undefined);
  while (!isOver) {
    await Promise.race([over, clock.whenWaiting(1)]);
    if (!isOver) clock.advance(500);
  }
  return [await outcome, clock.monotonicMs() - beganAtMs];
}

test('a start outlasts half a minute in which the embedded PostgreSQL recovers', async () => {
  expect(await startWhileAway(30_000, null)).toEqual(['started', 30_000]);
});

test('a start does not wait for an embedded PostgreSQL that stays away, nor at all for one of the operator', async () => {
  expect(await startWhileAway(Infinity, null)).toEqual([away, 60_000]);
  expect(await startWhileAway(30_000, 'postgres://db.example/postillion')).toEqual([away, 0]);
});
