import { beforeEach, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import type { Clock } from '../platform/clock.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import { shareApnsToken } from './apns-token.ts';
import { setCredentials } from './credentials.ts';
import { makeSandboxCredentials } from './sandbox-credentials.ts';

let database: Database;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const minuteMs = 60_000;

useTestDatabase({ connectionsMax: 10 }, (opened) => {
  database = opened.database;
});

/** Nodes agree on the time. */
let nowMs: number;
const clock: Clock = { ...systemClock, nowMs: () => nowMs };
let own: { organizationId: string; id: string };
let signed: Date[];

beforeEach(async () => {
  nowMs = Date.parse('2026-11-23T12:00:00.000Z');
  signed = [];
  own = await setUp(newId());
});

async function setUp(organizationId: string) {
  const content = await makeSandboxCredentials('ios');
  const { credentials } = await setCredentials({ database, clock, newId, secrets }, organizationId, content, {
    replacesPair: false,
  });
  return { organizationId, id: credentials.id };
}

const sign = (at: Date) => `token ${signed.push(at)}`;
const share = (credentials = own, refused?: string) =>
  shareApnsToken({ database, clock, secrets }, credentials, sign, refused);

describe('the token of a team', () => {
  test('is shared for 50 minutes, by however many ask at once', async () => {
    const first = await Promise.all(Array.from({ length: 8 }, () => share()));
    expect(new Set(first.map((shared) => shared?.token))).toEqual(new Set(['token 1']));
    expect(signed).toEqual([new Date(nowMs)]);
    nowMs += 50 * minuteMs - 1;
    expect(await share()).toEqual({ token: 'token 1', madeAt: signed[0] });
    nowMs += 1;
    const next = await Promise.all(Array.from({ length: 8 }, () => share()));
    expect(new Set(next.map((shared) => shared?.token))).toEqual(new Set(['token 2']));
    expect(signed[1]).toEqual(new Date(nowMs));
  });

  test('that APNs calls expired is made anew once, and never before it is 20 minutes old', async () => {
    await share();
    nowMs += 20 * minuteMs - 1;
    expect((await share(own, 'token 1'))?.token).toBe('token 1');
    nowMs += 1;
    const shared = await Promise.all(Array.from({ length: 8 }, () => share(own, 'token 1')));
    expect(new Set(shared.map((one) => one?.token))).toEqual(new Set(['token 2']));
    expect(signed).toHaveLength(2);
  });

  test('of the future is made anew when the clock was put back, but not for the differences of clocks', async () => {
    await share();
    nowMs -= minuteMs;
    expect((await share())?.token).toBe('token 1');
    nowMs -= 60 * minuteMs;
    expect((await share())?.token).toBe('token 2');
  });

  test('is sealed at rest, and no other organization’s', async () => {
    const theirs = await setUp(newId());
    expect((await share())?.token).toBe('token 1');
    expect((await share(theirs))?.token).toBe('token 2');
    expect(await share({ organizationId: theirs.organizationId, id: own.id })).toBeNull();
    const stored = await database.rows(
      unpreparedStatement<{ apns_token_sealed: Buffer }>(
        'select apns_token_sealed from push_credentials where organization_id = $1',
      ),
      [own.organizationId],
    );
    expect(stored[0]!.apns_token_sealed.includes('token')).toBe(false);
  });

  test('goes with the credentials that it was made with', async () => {
    await share();
    const replaced = await setUp(own.organizationId);
    expect(await share()).toBeNull();
    expect((await share(replaced))?.token).toBe('token 2');
  });
});
