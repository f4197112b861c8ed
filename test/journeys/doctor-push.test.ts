/** What the doctor says where pushes leave for the services of the platforms, none of which this machine reaches. */
import dns from 'node:dns';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { examine } from '../../src/doctor/doctor.ts';
import { silentLog } from '../../src/platform/log.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let databaseUrl: string;
useTestDatabase({}, (opened) => {
  databaseUrl = databaseUrlOf(opened.address);
});

/** Names that were looked up. */
let names: Set<string>;

beforeEach(() => {
  names = new Set();
  const lookup = (name: string, ...rest: unknown[]) => {
    names.add(name);
    const callback = rest.at(-1) as (error: Error) => void; // As node:dns has it.
    callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${name}`), { code: 'ENOTFOUND' }));
  };
  vi.spyOn(dns, 'lookup').mockImplementation(lookup);
});
afterEach(() => {
  vi.restoreAllMocks();
});

async function examinePush(settings: Readonly<Record<string, string>> = {}, about = 'push') {
  const findings = await examine(
    {
      DATABASE_URL: databaseUrl,
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_ADDRESS_CHECKS: 'off',
      POSTILLION_PUSH_PROVIDER: 'direct',
      // Nothing listens there, and no name is looked up for it.
      POSTILLION_WEB_PUSH_HOSTS: '127.0.0.1:1',
      ...settings,
    },
    silentLog,
  );
  return findings.filter(({ subject }) => subject === about).map(({ level, found }) => `${level}: ${found}`);
}

test('each service is named that cannot be reached, with the host that was asked', async () => {
  const unreachable =
    'problem: direct cannot be used: FCM: fcm.googleapis.com: ENOTFOUND; APNs: api.push.apple.com: ENOTFOUND; ' +
    'Web Push: 127.0.0.1:1: ECONNREFUSED';
  expect(await examinePush({ POSTILLION_VAPID_SUBJECT: 'mailto:push@example.com' })).toEqual([unreachable]);
  expect([...names].toSorted()).toEqual([
    'api.push.apple.com',
    'api.sandbox.push.apple.com',
    'fcm.googleapis.com',
  ]);
  expect(await examinePush()).toEqual([
    unreachable,
    'warning: Safari gets no pushes, since Apple wants to know who sends them',
  ]);
  expect(await examinePush({ POSTILLION_PUBLIC_URL: 'https://push.example.com' })).toEqual([unreachable]);
});

test('a subject that Apple refuses is a problem, and nobody is asked', async () => {
  expect(await examinePush({ POSTILLION_VAPID_SUBJECT: 'mailto: <push@example.com>' }, 'settings')).toEqual([
    expect.stringMatching(/^problem: POSTILLION_VAPID_SUBJECT must be like mailto:/),
  ]);
  expect([...names]).toEqual([]);
});

test('in the sandbox there is nothing to be reached', async () => {
  expect(await examinePush({ POSTILLION_PUSH_PROVIDER: 'sandbox' })).toEqual([
    'ok: the sandbox keeps them: nothing leaves this machine',
  ]);
  expect([...names]).toEqual([]);
});
