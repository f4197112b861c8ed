import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import { findReturnPathOwner, loadSendingDomains, loadVerifiedDomains, verifyByOperator } from './domains.ts';

let database: Database;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const [own, other] = [newId(), newId()];

useTestDatabase({ connectionsMax: 10 }, (opened) => {
  database = opened.database;
});

const verify = (name: string, organizationId = own) =>
  verifyByOperator({ database, clock: systemClock, newId, secrets }, { organizationId, name });

async function isVerified(name: string, organizationId = own): Promise<boolean> {
  const domains = await loadVerifiedDomains(database, [{ organizationId, name }]);
  return domains.has({ organizationId, name });
}

test('a domain is verified for the organization that asked, by itself, and for nobody else', async () => {
  expect(await verify('alone.example')).toMatchObject({ kind: 'verified', name: 'alone.example' });
  expect(await isVerified('alone.example')).toBe(true);
  expect(await isVerified('mail.alone.example')).toBe(false);
  expect(await isVerified('example')).toBe(false);
  expect(await isVerified('alone.example', other)).toBe(false);
});

test('verified twice, it stays the same domain', async () => {
  const first = await verify('twice.example');
  expect(await verify('TWICE.example')).toEqual(first);
});

test('names are kept as lower-case A-labels', async () => {
  expect(await verify('BÜCHER.Example')).toMatchObject({ kind: 'verified', name: 'xn--bcher-kva.example' });
});

test.each([
  '',
  'example',
  '.example.com',
  'example.com.',
  'a..example.com',
  '-a.example.com',
  'a-.example.com',
  'a_b.example.com',
  'a b.example.com',
  'ann@example.com',
  'https://example.com',
  'example.com/path',
  'example.com:25',
  '127.0.0.1',
  '127.1',
  '[::1]',
  '*.example.com',
  'exa%6dple.com',
  `${'a'.repeat(64)}.example.com`,
  `${'a.'.repeat(125)}example.com`,
  'a\0.example.com',
])('%j is no domain', async (name) => {
  expect(await verify(name)).toEqual({ kind: 'invalid_name' });
});

test("what another organization holds is taken, and so is everything above and below it, on labels' bounds", async () => {
  await verify('mail.held.example');
  const taken = { kind: 'taken', by: 'mail.held.example' };
  for (const name of ['mail.held.example', 'held.example', 'deep.mail.held.example']) {
    expect(await verify(name, other)).toEqual(taken);
  }
  for (const name of ['xmail.held.example', 'il.held.example', 'web.held.example', 'mail.xheld.example']) {
    expect(await verify(name, other)).toMatchObject({ kind: 'verified' });
  }
  expect(await verify('deep.mail.held.example')).toMatchObject({ kind: 'verified' });
});

test('of many organizations that verify a domain, or its parent, at once exactly one wins', async () => {
  const names = ['race.example', 'a.race.example'];
  const outcomes = await Promise.all(
    Array.from({ length: 20 }, (_, index) => verify(names[index % 2]!, newId())),
  );
  expect(outcomes.filter(({ kind }) => kind === 'verified').length).toBe(
    // Of two names side by side both could be had, but here one is above the other.
    1,
  );
});

test('bounces are for whoever has verified the domain, and not for who has only registered it', async () => {
  await database.rows(
    unpreparedStatement(
      `insert into domains (organization_id, id, name, status, return_path_subdomain, created_at, updated_at)
       values ($1, $2, 'returned.example', 'pending', 'send', now(), now())`,
    ),
    [other, newId()],
  );
  expect(await findReturnPathOwner(database, 'send.returned.example')).toBeNull();
  await verify('returned.example');
  expect(await findReturnPathOwner(database, 'send.returned.example')).toBe(own);
  expect(await findReturnPathOwner(database, 'mail.returned.example')).toBeNull();
});

test('links lead to the tracking host once its record was found, and not before', async () => {
  await verify('tracked.example');
  const set = (findings: unknown) =>
    database.rows(
      unpreparedStatement(
        `update domains set tracking_subdomain = 'click', findings = $2 where organization_id = $1 and name = 'tracked.example'`,
      ),
      [own, JSON.stringify(findings)],
    );
  const trackingHost = async () =>
    (await loadSendingDomains({ secrets }, database, [{ organizationId: own, name: 'tracked.example' }]))[0]!
      .trackingHost;
  await set({ tracking: { status: 'missing' } });
  expect(await trackingHost()).toBeNull();
  await set({ tracking: { status: 'verified' } });
  expect(await trackingHost()).toBe('click.tracked.example');
});
