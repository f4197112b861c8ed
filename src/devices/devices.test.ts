import { randomBytes } from 'node:crypto';
import { beforeEach, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, type Statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets, sha256 } from '../platform/secrets.ts';
import { makeSandboxCredentials } from './sandbox-credentials.ts';
import { setCredentials } from './credentials.ts';
import {
  correctEnvironments,
  type DeadToken,
  findPushTargets,
  loadDevices,
  type MisplacedToken,
  retireDevices,
} from './devices.ts';
import * as store from './store.ts';
import type { DeviceRow } from './store.ts';

let database: Database;
const newId = createIds(systemClock);
const tools = { clock: systemClock, newId };

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});

let own: string;
let other: string;
beforeEach(() => {
  [own, other] = [newId(), newId()];
});

const registeredAt = new Date('2026-11-01T12:00:00.000Z');

async function insert(
  organizationId: string,
  contactId: string,
  more: Partial<DeviceRow> = {},
): Promise<DeviceRow & { token: string; token_sha256: Buffer }> {
  const id = more.id ?? newId();
  const token = more.token ?? `token of ${id}`;
  const device = {
    id,
    installation_id: `installation ${id}`,
    contact_id: contactId,
    platform: 'android' as const,
    apns_environment: null,
    p256dh_key: null,
    auth_key: null,
    vapid_public_key: null,
    status: 'ACTIVE' as const,
    revoked_by: null,
    opted_out: false,
    enablement_status: null,
    sdk_version: null,
    app_version: null,
    os_version: null,
    device_model: null,
    device_manufacturer: null,
    device_timezone: null,
    device_locale: null,
    secret_sha256: randomBytes(32),
    registered_at: registeredAt,
    created_at: registeredAt,
    updated_at: registeredAt,
    ...more,
    token,
    token_sha256: sha256(token),
  };
  await database.asOrganizationsByIndex([organizationId], (transaction) =>
    store.writeDevices(transaction, organizationId, [device]),
  );
  return device;
}

const revoked = { status: 'REVOKED', revoked_by: 'opt_out', opted_out: true } as const;
const web = { platform: 'web', p256dh_key: 'P', auth_key: 'A', vapid_public_key: 'V' } as const;

async function rowOf(organizationId: string, id: string): Promise<{ status: string; opted_out: boolean }> {
  const [row] = await database.rows(
    unpreparedStatement<{ status: string; opted_out: boolean }>(
      'select status, opted_out from devices where organization_id = $1 and id = $2',
    ),
    [organizationId, id],
  );
  return row!;
}

describe('the targets of a push', () => {
  test('are the active devices of each contact on which notifications may be shown, newest first', async () => {
    const [ann, bob, nobody] = [newId(), newId(), newId()];
    const first = await insert(own, ann);
    const second = await insert(own, ann, { ...web, enablement_status: 'PROVISIONAL' });
    const third = await insert(own, ann, { enablement_status: 'NOT_DETERMINED' });
    for (const enablement_status of ['DENIED', 'UNAUTHORIZED'] as const)
      await insert(own, ann, { enablement_status });
    await insert(own, ann, { status: 'EXPIRED' });
    await insert(own, ann, revoked);
    await insert(own, bob, { status: 'FAILED' });
    await insert(other, ann);
    const find = (organizationId: string, contactIds: string[]) =>
      database.asOrganizationsByIndex([organizationId], (transaction) =>
        findPushTargets(
          transaction,
          contactIds.map((contactId) => ({ organizationId, contactId })),
        ),
      );
    expect(await find(own, [nobody, ann, bob, ann])).toEqual([
      { devices: [], hasDevices: false },
      {
        devices: [
          { id: third.id, account: 'android' },
          { id: second.id, account: expect.stringMatching(/^web /) as string },
          { id: first.id, account: 'android' },
        ],
        hasDevices: true,
      },
      { devices: [], hasDevices: true },
      { devices: expect.objectContaining({ length: 3 }) as unknown, hasDevices: true },
    ]);
    expect((await find(other, [ann])).map(({ devices }) => devices.length)).toEqual([1]);
    expect(await find(own, [])).toEqual([]);
  });

  test('of many contacts are told apart, and of one contact are 200 at most', async () => {
    const contacts = Array.from({ length: 205 }, () => newId());
    for (const contactId of contacts) await insert(own, contactId);
    const crowded = contacts[0]!;
    for (let count = 1; count < 202; count += 1) await insert(own, crowded);
    const targets = await findPushTargets(
      database,
      contacts.map((contactId) => ({ organizationId: own, contactId })),
    );
    expect(targets.map(({ devices }) => devices.length)).toEqual([200, ...contacts.slice(1).map(() => 1)]);
  });
});

describe('devices that are loaded', () => {
  test('say where they are reached, whether they may be, and with what', async () => {
    const [ann, secrets] = [newId(), createSecrets('a secret of the tests, and of nothing else')];
    await setCredentials({ database, secrets, ...tools }, own, await makeSandboxCredentials('ios'), {
      replacesPair: false,
    });
    const plain = await insert(own, ann);
    const phone = await insert(own, ann, {
      platform: 'ios',
      apns_environment: 'sandbox',
      enablement_status: 'DENIED',
    });
    const sdk = await insert(own, ann, { sdk_version: '1.0' });
    const browser = await insert(own, ann, { ...web, ...revoked });
    const foreign = await insert(other, ann);
    const keys = [plain, phone, sdk, browser].map(({ id }) => ({ organizationId: own, id }));
    const loaded = await loadDevices(database, [
      ...keys,
      { organizationId: own, id: newId() },
      { organizationId: own, id: foreign.id },
    ]);
    expect(loaded).toHaveLength(4);
    const found = new Map(loaded.map((device) => [device.id, device]));
    const common = {
      organizationId: own,
      contactId: ann,
      status: 'ACTIVE',
      isEnabled: true,
      credentialsId: null,
    };
    expect(found.get(plain.id)).toEqual({
      ...common,
      id: plain.id,
      target: { platform: 'android', token: plain.token, isInstrumented: false },
      tokenSha256: plain.token_sha256,
    });
    expect(found.get(sdk.id)?.target).toEqual({
      platform: 'android',
      token: sdk.token,
      isInstrumented: true,
    });
    expect(found.get(phone.id)).toMatchObject({
      isEnabled: false,
      credentialsId: expect.any(String) as string,
      target: { platform: 'ios', token: phone.token, environment: 'sandbox' },
    });
    expect(found.get(browser.id)).toMatchObject({
      status: 'REVOKED',
      target: { platform: 'web', endpoint: browser.token, p256dh: 'P', auth: 'A' },
    });
    await store.releaseTokens(database, own, [plain.id]);
    const [released] = await loadDevices(database, [{ organizationId: own, id: plain.id }]);
    expect(released).toMatchObject({ status: 'EXPIRED', target: null, tokenSha256: null });
  });

  test('are found by the digest of their secret, whosever they are', async () => {
    const [mine, theirs] = [await insert(own, newId()), await insert(other, newId())];
    const digests = [randomBytes(32), theirs.secret_sha256, mine.secret_sha256];
    expect(await store.findDevicesBySecret(database, digests)).toEqual([
      null,
      ...[[other, theirs] as const, [own, mine] as const].map(([organizationId, device]) => ({
        organizationId,
        id: device.id,
        installationId: device.installation_id,
        contactId: device.contact_id,
      })),
    ]);
  });
});

describe('a token that a service has refused', () => {
  const told = (
    organizationId: string,
    device: { id: string; platform: DeviceRow['platform']; token_sha256: Buffer },
    more: Partial<DeadToken> = {},
  ): DeadToken => ({
    organizationId,
    id: device.id,
    tokenSha256: device.token_sha256,
    platform: device.platform,
    status: 'EXPIRED',
    reason: 'unregistered',
    toldAt: null,
    ...more,
  });
  const retire = (tokens: readonly DeadToken[]) =>
    database.transactionByIndex((transaction) => retireDevices(tools, transaction, tokens));
  const isDead = async (
    organizationId: string,
    device: { platform: DeviceRow['platform']; token: string },
  ) => {
    const token = { platform: device.platform, tokenSha256: sha256(device.token) };
    return (await store.findDeadTokens(database, organizationId, [token])).length === 1;
  };

  test('retires the device that has it, and no other, and is told to segments', async () => {
    const [ann, bob] = [newId(), newId()];
    const [dead, failed, kept] = [await insert(own, ann), await insert(own, bob), await insert(own, ann)];
    const theirs = await insert(other, ann, { token: dead.token });
    expect(await retire([told(own, dead), told(own, failed, { status: 'FAILED' })])).toBe(true);
    expect((await rowOf(own, dead.id)).status).toBe('EXPIRED');
    expect((await rowOf(own, failed.id)).status).toBe('FAILED');
    expect((await rowOf(own, kept.id)).status).toBe('ACTIVE');
    expect((await rowOf(other, theirs.id)).status).toBe('ACTIVE');
    expect(await isDead(own, dead)).toBe(true);
    expect(await isDead(other, dead)).toBe(false);
    const changes = await database.rows(
      unpreparedStatement<{ organization_id: string; contact_ids: string[] }>(
        'select organization_id, contact_ids from contact_changes where organization_id = any ($1)',
      ),
      [[own, other]],
    );
    expect(changes).toHaveLength(1);
    expect(changes[0]).toMatchObject({ organization_id: own });
    expect(changes[0]!.contact_ids.sort()).toEqual([ann, bob].sort());
  });

  test('does nothing to a device that has another token by now, and is dead all the same', async () => {
    const device = await insert(own, newId());
    const refused = told(own, device, { tokenSha256: sha256('the token before') });
    expect(await retire([refused])).toBe(false);
    expect((await rowOf(own, device.id)).status).toBe('ACTIVE');
    expect(await isDead(own, { platform: 'android', token: 'the token before' })).toBe(true);
  });

  test('is good if the device has registered with it since the service knew', async () => {
    const device = await insert(own, newId());
    const before = new Date(registeredAt.getTime() - 1);
    expect(await retire([told(own, device, { toldAt: before })])).toBe(false);
    expect((await rowOf(own, device.id)).status).toBe('ACTIVE');
    expect(await isDead(own, device)).toBe(false);
    expect(await retire([told(own, device, { toldAt: registeredAt })])).toBe(true);
    expect((await rowOf(own, device.id)).status).toBe('EXPIRED');
  });

  test('leaves a device revoked that is, and is dead for when its opt-out is lifted', async () => {
    const device = await insert(own, newId(), revoked);
    expect(await retire([told(own, device)])).toBe(false);
    expect(await rowOf(own, device.id)).toEqual({ status: 'REVOKED', opted_out: true });
    await store.liftOptOuts(database, {
      organizationId: own,
      contactId: device.contact_id,
      at: registeredAt,
    });
    expect(await rowOf(own, device.id)).toEqual({ status: 'EXPIRED', opted_out: false });
  });

  test('is remembered when its device is gone', async () => {
    const gone = { id: newId(), platform: 'ios' as const, token: 'gone', token_sha256: sha256('gone') };
    expect(await retire([told(own, gone)])).toBe(false);
    expect(await isDead(own, gone)).toBe(true);
  });

  test('is one of many of several organizations, told twice', async () => {
    const devices = await Promise.all(
      Array.from({ length: 205 }, async (_one, index) => {
        const organizationId = index % 2 === 0 ? own : other;
        return { organizationId, device: await insert(organizationId, newId()) };
      }),
    );
    const tokens = devices.map(({ organizationId, device }) => told(organizationId, device));
    expect(await retire([...tokens, ...tokens])).toBe(true);
    expect(await retire(tokens)).toBe(false);
    const statuses = await database.rows(
      unpreparedStatement<{ status: string; count: number }>(
        `select status, count(*)::integer as count from devices where organization_id = any ($1) group by status`,
      ),
      [[own, other]],
    );
    expect(statuses).toEqual([{ status: 'EXPIRED', count: 205 }]);
  });
});

describe('a token that works in the other environment', () => {
  const phone = { platform: 'ios', apns_environment: 'production' } as const;
  const misplaced = (
    organizationId: string,
    device: { id: string; token_sha256: Buffer },
  ): MisplacedToken => ({
    organizationId,
    id: device.id,
    tokenSha256: device.token_sha256,
    environment: 'sandbox',
  });
  const correct = (tokens: readonly MisplacedToken[]) =>
    database.transactionByIndex((transaction) => correctEnvironments(tools, transaction, tokens));
  const environmentsOf = async (...devices: { id: string }[]) => {
    const rows = await database.rows(
      unpreparedStatement<{ id: string; apns_environment: string | null }>(
        'select id, apns_environment from devices where id = any ($1)',
      ),
      [devices.map(({ id }) => id)],
    );
    const found = new Map(rows.map((row) => [row.id, row.apns_environment]));
    return devices.map(({ id }) => found.get(id));
  };

  test('keeps to the device that has it', async () => {
    const [moved, kept] = [await insert(own, newId(), phone), await insert(own, newId(), phone)];
    const theirs = await insert(other, newId(), { ...phone, token: moved.token });
    const registered = await insert(own, newId(), phone);
    const android = await insert(own, newId());
    const gone = { id: newId(), token_sha256: sha256('gone') };
    await correct([
      misplaced(own, moved),
      misplaced(own, { id: registered.id, token_sha256: sha256('the token before') }),
      misplaced(own, android),
      misplaced(own, { id: theirs.id, token_sha256: theirs.token_sha256 }),
      misplaced(own, gone),
    ]);
    expect(await environmentsOf(moved, kept, theirs, registered, android)).toEqual([
      'sandbox',
      'production',
      'production',
      'production',
      null,
    ]);
  });

  test('is corrected for many devices of several organizations, told twice', async () => {
    const devices = await Promise.all(
      Array.from({ length: 205 }, async (_one, index) => {
        const organizationId = index % 2 === 0 ? own : other;
        return { organizationId, device: await insert(organizationId, newId(), phone) };
      }),
    );
    const tokens = devices.map(({ organizationId, device }) => misplaced(organizationId, device));
    await correct([...tokens, ...tokens]);
    const environments = await environmentsOf(...devices.map(({ device }) => device));
    expect(environments).toEqual(devices.map(() => 'sandbox'));
  });

  test('waits for nobody: a device that is registering at the moment is left to that', async () => {
    const [free, held] = [await insert(own, newId(), phone), await insert(own, newId(), phone)];
    await database.asOrganizationsByIndex([own], async (transaction) => {
      const wanted = { installationIds: [held.installation_id], tokens: [] };
      await store.lockConcernedDevices(transaction, own, wanted);
      await correct([misplaced(own, held), misplaced(own, free)]);
    });
    expect(await environmentsOf(free, held)).toEqual(['sandbox', 'production']);
  });
});

/** What a node that starts with an installation plans then, it keeps for as long as its connections live. */
test('what is looked up is looked up in an index by all that is known of it, also while the tables are empty', async () => {
  const statements: Statement<unknown>[] = [];
  const collecting = {
    rows: <Row>(statement: Statement<Row>) => {
      statements.push(statement);
      return Promise.resolve<Row[]>([]);
    },
  };
  const at = registeredAt;
  const token = { platform: 'android' as const, tokenSha256: randomBytes(32) };
  await store.lockConcernedDevices(collecting, own, { installationIds: [], tokens: [token] });
  await store.findDeadTokens(collecting, own, [token]);
  await store.releaseTokens(collecting, own, []);
  await store.findTargets(collecting, []);
  await store.findDevices(collecting, []);
  await store.retireDevices(collecting, [told(own)], at);
  const { organizationId, id, tokenSha256 } = told(own);
  await store.correctEnvironments(
    collecting,
    [{ organizationId, id, tokenSha256, environment: 'sandbox' }],
    at,
  );
  const plans = await database.asOrganizationsByIndex([own], async (transaction) => {
    // Of two forms of a plan, the one that is kept is the one without values.
    const explained: string[] = [];
    for (const { text } of statements) {
      const rows = await transaction.rows(
        unpreparedStatement<{ 'QUERY PLAN': string }>(`explain (generic_plan, costs off) ${text}`),
      );
      explained.push(...rows.map((row) => row['QUERY PLAN'].trim()));
    }
    return explained;
  });
  const scans = plans.filter((line) =>
    /Scan (using|on) .*(devices|dead_device_tokens|push_credentials)/.test(line),
  );
  expect(scans.filter((line) => !/^(->\s+)?Index (Only )?Scan using/.test(line))).toEqual([]);
  const conditions = plans.filter((line) => line.startsWith('Index Cond:'));
  expect(conditions).toHaveLength(scans.length);
  expect(conditions.filter((line) => !line.includes(' AND '))).toEqual([]);
});

function told(organizationId: string): DeadToken {
  return {
    organizationId,
    id: newId(),
    tokenSha256: randomBytes(32),
    platform: 'android',
    status: 'EXPIRED',
    reason: 'unregistered',
    toldAt: null,
  };
}
