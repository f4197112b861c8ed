import { createECDH, generateKeyPairSync } from 'node:crypto';
import { beforeEach, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets, sha256 } from '../platform/secrets.ts';
import {
  type CredentialsContent,
  examineCredentials,
  listCredentials,
  loadPushCredentials,
  makeVapidPair,
  parseCredentials,
  setCredentials,
} from './credentials.ts';
import { makeSandboxCredentials } from './sandbox-credentials.ts';
import type { Platform } from './schema.ts';

let database: Database;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const otherSecrets = createSecrets('another secret of the tests, and of no more');

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

let own: string;
let other: string;
beforeEach(() => {
  [own, other] = [newId(), newId()];
});

const tools = () => ({ database, clock: systemClock, newId, secrets });
const set = (organizationId: string, content: CredentialsContent, replacesPair = false) =>
  setCredentials(tools(), organizationId, content, { replacesPair });
const load = (organizationId: string, platform: Platform, opener = secrets) =>
  loadPushCredentials({ secrets: opener }, database, [{ organizationId, platform }]);

const pem = { type: 'pkcs8', format: 'pem' } as const;
const rsa = (modulusLength: number) =>
  generateKeyPairSync('rsa', { modulusLength }).privateKey.export(pem).toString();
const ec = (namedCurve: string) =>
  generateKeyPairSync('ec', { namedCurve }).privateKey.export(pem).toString();

const serviceAccount = {
  type: 'service_account',
  project_id: 'my-app',
  private_key_id: 'abc',
  private_key: rsa(2048),
  client_email: 'push@my-app.iam.gserviceaccount.com',
  client_id: '1',
  token_uri: 'https://evil.example/token',
};
const apnsKey = { key: ec('P-256'), key_id: 'ABCDE12345', team_id: 'TEAM123456', topic: 'com.example.app' };

describe('the file of an operator', () => {
  test('is read as the console of each platform gives it, and only what is needed of it', () => {
    expect(parseCredentials('android', JSON.stringify(serviceAccount))).toEqual({
      kind: 'parsed',
      content: {
        platform: 'android',
        projectId: 'my-app',
        clientEmail: serviceAccount.client_email,
        privateKeyId: 'abc',
        privateKey: serviceAccount.private_key,
      },
    });
    expect(parseCredentials('ios', JSON.stringify(apnsKey))).toEqual({
      kind: 'parsed',
      content: {
        platform: 'ios',
        keyId: 'ABCDE12345',
        teamId: 'TEAM123456',
        topic: 'com.example.app',
        privateKey: apnsKey.key,
      },
    });
    const { publicKey, privateKey } = makeVapidPair();
    expect(parseCredentials('web', JSON.stringify({ publicKey, privateKey }))).toEqual({
      kind: 'parsed',
      content: { platform: 'web', publicKey, privateKey },
    });
  });

  test('is refused with what is wrong, and without any of what it holds', () => {
    const stranger = createECDH('prime256v1').generateKeys('base64url');
    const cases: [Platform, unknown, string][] = [
      ['android', { ...serviceAccount, type: 'authorized_user' }, 'type'],
      ['android', { ...serviceAccount, project_id: '../x' }, 'project_id must match'],
      ['android', { ...serviceAccount, private_key: undefined }, 'private_key is required'],
      ['android', { ...serviceAccount, private_key: apnsKey.key }, 'private_key is not an RSA key in PEM'],
      ['android', { ...serviceAccount, private_key: rsa(1024) }, 'private_key must have at least 2048 bits'],
      ['android', { ...serviceAccount, private_key: 7 }, 'private_key must be a string'],
      ['ios', { ...apnsKey, key: serviceAccount.private_key }, 'key is not a P-256 key in PEM'],
      ['ios', { ...apnsKey, key: ec('P-384') }, 'key is not a P-256 key in PEM'],
      ['ios', { ...apnsKey, key: 'SECRET' }, 'key is not a P-256 key in PEM'],
      ['ios', { ...apnsKey, key_id: 'short' }, 'key_id must match'],
      ['ios', { ...apnsKey, topic: 'a b' }, 'topic must match'],
      ['web', { ...makeVapidPair(), publicKey: stranger }, 'publicKey and privateKey are not a pair'],
    ];
    for (const [platform, file, problem] of cases) {
      const parsed = parseCredentials(platform, JSON.stringify(file));
      expect(parsed).toEqual({ kind: 'refused', problem: expect.stringContaining(problem) as string });
      expect(JSON.stringify(parsed)).not.toMatch(/PRIVATE KEY|SECRET/);
    }
    for (const text of ['{', '', ' ', '\ufeff', '\ufeff\ufeff{}'])
      expect(parseCredentials('ios', text)).toEqual({ kind: 'refused', problem: 'it is not JSON' });
    for (const text of ['[]', 'null', '7', '"{}"'])
      expect(parseCredentials('ios', text)).toEqual({ kind: 'refused', problem: 'it is not a JSON object' });
    const alone = parseCredentials('ios', apnsKey.key);
    expect(alone).toEqual({ kind: 'refused', problem: 'it is a key alone, and not JSON' });
  });

  test('may be of a program of Windows, which writes a byte order mark and CR LF', () => {
    const file = { ...apnsKey, key: apnsKey.key.replaceAll('\n', '\r\n') };
    const text = `\ufeff${JSON.stringify(file, null, 2).replaceAll('\n', '\r\n')}`;
    expect(parseCredentials('ios', text)).toMatchObject({
      kind: 'parsed',
      content: { privateKey: file.key },
    });
  });
});

describe('credentials', () => {
  test('are sealed at rest, opened for a delivery, and their own organization’s alone', async () => {
    const parsed = parseCredentials('ios', JSON.stringify(apnsKey));
    if (parsed.kind !== 'parsed') throw new Error(parsed.problem);
    const outcome = await set(own, parsed.content);
    expect(outcome).toMatchObject({
      kind: 'set',
      credentials: {
        organizationId: own,
        platform: 'ios',
        publicPart: { key_id: 'ABCDE12345', team_id: 'TEAM123456', topic: 'com.example.app' },
      },
    });
    const [loaded, ...more] = await load(own, 'ios');
    expect(loaded).toEqual({
      organizationId: own,
      platform: 'ios',
      id: outcome.credentials.id,
      content: parsed.content,
      isKeyUnknown: false,
    });
    expect(more).toEqual([]);
    expect(await load(own, 'android')).toEqual([]);
    expect(await load(other, 'ios')).toEqual([]);
    expect(await load(own, 'ios', otherSecrets)).toMatchObject([
      { content: 'unreadable', isKeyUnknown: false },
    ]);
    const [stored] = await database.rows(
      unpreparedStatement<{ content_sealed: Buffer; text: string }>(
        'select content_sealed, to_jsonb(c)::text as text from push_credentials c where organization_id = $1',
      ),
      [own],
    );
    expect(stored!.content_sealed.includes('PRIVATE')).toBe(false);
    expect(stored!.text).not.toContain('PRIVATE');
  });

  test('that replace others have another id, under which nothing of the others is kept', async () => {
    const first = await set(own, await makeSandboxCredentials('android'));
    const theirs = await set(other, await makeSandboxCredentials('android'));
    const second = await set(own, await makeSandboxCredentials('android'));
    expect(second.credentials.id).not.toBe(first.credentials.id);
    expect(await load(own, 'android')).toMatchObject([{ id: second.credentials.id }]);
    expect(await load(other, 'android')).toMatchObject([{ id: theirs.credentials.id }]);
    expect(await listCredentials(database, own)).toHaveLength(1);
  });

  test('for another project or app let tokens try again that never could work with those before', async () => {
    const content = await makeSandboxCredentials('android');
    if (content.platform !== 'android') throw new Error('they are of another platform');
    const die = (organizationId: string, platform: Platform, token: string, status: string) =>
      database.rows(
        unpreparedStatement(
          `insert into dead_device_tokens (organization_id, platform, token_sha256, status, reason, created_at)
           values ($1, $2, $3, $4, 'test', now())`,
        ),
        [organizationId, platform, sha256(token), status],
      );
    const deadOf = async (organizationId: string) =>
      (
        await database.rows(
          unpreparedStatement<{ platform: string; status: string }>(
            'select platform, status from dead_device_tokens where organization_id = $1 order by 1, 2',
          ),
          [organizationId],
        )
      ).map(({ platform, status }) => `${platform} ${status}`);
    await set(own, content);
    for (const organizationId of [own, other]) {
      await die(organizationId, 'android', 'never', 'FAILED');
      await die(organizationId, 'android', 'gone', 'EXPIRED');
      await die(organizationId, 'ios', 'never', 'FAILED');
    }
    const all = ['android EXPIRED', 'android FAILED', 'ios FAILED'];
    await set(own, { ...content, privateKeyId: 'rotated' });
    expect(await deadOf(own)).toEqual(all);
    await set(own, { ...content, projectId: 'another' });
    expect(await deadOf(own)).toEqual(['android EXPIRED', 'ios FAILED']);
    expect(await deadOf(other)).toEqual(all);
  });

  test('are examined: those that cannot be opened, whose keys are none, or that are not what is shown', async () => {
    await database.rows(unpreparedStatement('delete from push_credentials'));
    const organizations = [newId(), newId(), newId(), newId()];
    const [good, sealedElsewhere, broken, swapped] = organizations as [string, string, string, string];
    await set(good, makeVapidPair());
    await setCredentials({ ...tools(), secrets: otherSecrets }, sealedElsewhere, makeVapidPair(), {
      replacesPair: false,
    });
    await set(broken, { platform: 'ios', keyId: 'K', teamId: 'T', topic: 'x', privateKey: 'none' });
    await set(swapped, makeVapidPair());
    await database.rows(
      unpreparedStatement(
        `update push_credentials set public_part = '{"public_key": "another"}' where organization_id = $1`,
      ),
      [swapped],
    );
    expect(await examineCredentials(database, secrets, 10)).toEqual({
      usable: 1,
      faulty: [
        {
          organizationId: sealedElsewhere,
          platform: 'web',
          problem: 'they were sealed under another secret, or are damaged',
        },
        { organizationId: broken, platform: 'ios', problem: 'key is not a P-256 key in PEM' },
        { organizationId: swapped, platform: 'web', problem: 'what is shown of them is not theirs' },
      ],
      isWhole: true,
    });
    expect((await examineCredentials(database, secrets, 0)).isWhole).toBe(false);
  });
});

describe('a VAPID pair', () => {
  /** Browsers that are subscribed, a contact each; the first of them has opted out. */
  async function subscribe(organizationId: string, publicKey: string, count: number): Promise<void> {
    await database.rows(
      unpreparedStatement(
        `insert into devices (organization_id, id, installation_id, contact_id, platform, token, token_sha256,
           p256dh_key, auth_key, vapid_public_key, status, revoked_by, opted_out, secret_sha256, registered_at,
           created_at, updated_at)
         select $1::uuid, gen_random_uuid(), 'browser ' || n, gen_random_uuid(), 'web', 'endpoint ' || n,
           sha256(('endpoint ' || n)::bytea), 'P', 'A', $2, case n when 1 then 'REVOKED' else 'ACTIVE' end,
           case n when 1 then 'opt_out' end, n = 1, sha256(($1::uuid::text || n)::bytea), now(), now(), now()
         from generate_series(1, $3) as n`,
      ),
      [organizationId, publicKey, count],
    );
  }
  const statusesOf = (organizationId: string) =>
    database.rows(
      unpreparedStatement<{ status: string; count: number; with_token: number }>(
        `select status, count(*)::integer as count, count(token)::integer as with_token
         from devices where organization_id = $1 group by status order by status`,
      ),
      [organizationId],
    );

  test('is replaced only if that is said, and then every browser is retired', async () => {
    const count = 2_300;
    const [mine, theirs] = [makeVapidPair(), makeVapidPair()];
    await set(own, mine);
    await set(other, theirs);
    await subscribe(own, mine.publicKey, count);
    await subscribe(other, theirs.publicKey, 3);
    const next = makeVapidPair();
    expect(await set(own, next)).toMatchObject({
      kind: 'held',
      credentials: { publicPart: { public_key: mine.publicKey } },
      devices: count - 1,
    });
    expect(await load(own, 'web')).toMatchObject([{ content: mine }]);
    // The same pair again is no other.
    expect(await set(own, mine)).toMatchObject({ kind: 'set', retiredDevices: 0 });

    expect(await set(own, next, true)).toMatchObject({ kind: 'set', retiredDevices: count - 1 });
    expect(await load(own, 'web')).toMatchObject([{ content: next }]);
    expect(await statusesOf(own)).toEqual([
      { status: 'EXPIRED', count: count - 1, with_token: 0 },
      { status: 'REVOKED', count: 1, with_token: 0 },
    ]);
    expect(await statusesOf(other)).toEqual([
      { status: 'ACTIVE', count: 2, with_token: 2 },
      { status: 'REVOKED', count: 1, with_token: 1 },
    ]);
    const [told] = await database.rows(
      unpreparedStatement<{ dead: number; contacts: number; most: number }>(
        `select (select count(*)::integer from dead_device_tokens where organization_id = $1) as dead,
           sum(cardinality(contact_ids))::integer as contacts, max(cardinality(contact_ids)) as most
         from contact_changes where organization_id = $1`,
      ),
      [own],
    );
    expect(told).toEqual({ dead: count, contacts: count - 1, most: expect.any(Number) as number });
    expect(told!.most).toBeLessThanOrEqual(1_000);
  });
});
