/** Devices as apps and browsers register them, over the API, with a second organization that has the same ones. */
import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { BulkRecord, RegistrationRecord } from '../../src/devices/schema.ts';
import { examineCredentials, listCredentials, retireDevices } from '../../src/devices/devices.ts';
import { createFirstOrganization } from '../../src/installation/sandbox-organization.ts';
import type { Database } from '../../src/platform/postgres/database.ts';
import { authorize, rowsOf, type Sender } from '../support/email-journey.ts';
import {
  androidApp,
  aPushContact,
  browser,
  devicesOf,
  iosApp,
  register,
  setUpPush,
  tryToRegister,
  unregister,
} from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { useTestDatabase } from '../support/test-database.ts';

let server: TestServer;
let other: Sender & { organizationId: string };

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'other.example');
  await setUpPush(server);
  await setUpPush(server, other.organizationId);
  for (const id of [server.organizationId, other.organizationId]) {
    await updateOrganization(server.installation, id, { requestsPerWindow: 100_000 });
  }
});
afterAll(() => server.stop());

let fresh: Database;
useTestDatabase({}, (opened) => {
  fresh = opened.database;
});

let made = 0;
const unique = (name: string) => `${name}-${(made += 1)}`;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

/** What a provider says of the token that a device has. */
async function kill(device: { id: string }, status: 'EXPIRED' | 'FAILED' = 'EXPIRED'): Promise<void> {
  const { database } = server.installation;
  const [row] = await rowsOf<{ platform: 'android'; token_sha256: Buffer }>(
    server,
    'select platform, token_sha256 from devices where id = $1',
    [device.id],
  );
  await database.asOrganizationsByIndex([server.organizationId], (transaction) =>
    retireDevices(server.installation, transaction, [
      {
        organizationId: server.organizationId,
        id: device.id,
        tokenSha256: row!.token_sha256,
        platform: row!.platform,
        status,
        reason: 'unregistered',
        toldAt: null,
      },
    ]),
  );
}

test('the first organization of a fresh installation has credentials to begin with', async () => {
  const first = await createFirstOrganization({ ...server.installation, database: fresh });
  if (first === 'exists') throw new Error('there is no organization yet');
  const listed = await listCredentials(fresh, first.organizationId);
  expect(listed.map(({ platform }) => platform)).toEqual(['android', 'ios', 'web']);
  expect(await examineCredentials(fresh, server.installation.secrets, 1)).toMatchObject({
    usable: 3,
    faulty: [],
  });
});

describe('a registration', () => {
  test('creates a device of the contact, and shows its secret that once', async () => {
    const contactId = await aPushContact(server);
    const name = unique('phone');
    const first = await register(server, { contact_id: contactId, ...androidApp(name) });
    expect(first).toEqual({
      id: expect.any(String) as string,
      installation_id: name,
      status: 'ACTIVE',
      contact_id: contactId,
      opted_out: false,
      device_secret: expect.stringMatching(/^pds_[\w-]{43}$/) as string,
    });
    const { device_secret: secret, ...rest } = first;
    expect(await register(server, { contact_id: contactId, ...androidApp(name) })).toEqual(rest);
    const [stored] = await rowsOf<{ secret_sha256: Buffer; found: boolean }>(
      server,
      'select secret_sha256, to_jsonb(d)::text like $2 as found from devices d where id = $1',
      [first.id, `%${secret!}%`],
    );
    expect(stored!.secret_sha256).toEqual(createHash('sha256').update(secret!).digest());
    expect(stored!.found).toBe(false);
  });

  test('says what the installation is now: what is left out is gone, but for whether it may show notifications', async () => {
    const contactId = await aPushContact(server);
    const name = unique('phone');
    await register(server, {
      contact_id: contactId,
      ...iosApp(name, { apns_environment: 'sandbox' }),
      enablement_status: 'DENIED',
      sdk_version: '2.1.0',
      app_version: '',
      os_version: '26.1',
      device_model: 'iPhone18,2',
      device_manufacturer: 'Apple',
      device_timezone: 'Europe/Berlin',
      device_locale: 'de-DE',
    });
    const [device] = await devicesOf(server, contactId);
    const time = expect.stringMatching(/Z$/) as string;
    expect(device).toEqual({
      id: expect.any(String) as string,
      installation_id: name,
      contact_id: contactId,
      platform: 'ios',
      apns_environment: 'sandbox',
      status: 'ACTIVE',
      opted_out: false,
      enablement_status: 'DENIED',
      sdk_version: '2.1.0',
      app_version: null,
      os_version: '26.1',
      device_model: 'iPhone18,2',
      device_manufacturer: 'Apple',
      device_timezone: 'Europe/Berlin',
      device_locale: 'de-DE',
      registered_at: time,
      created_at: time,
      updated_at: time,
    });
    await register(server, { contact_id: contactId, ...iosApp(name) });
    expect(await devicesOf(server, contactId)).toEqual([
      {
        ...device,
        apns_environment: 'production',
        sdk_version: null,
        os_version: null,
        device_model: null,
        device_manufacturer: null,
        device_timezone: null,
        device_locale: null,
        registered_at: time,
        updated_at: time,
      },
    ]);
  });

  test('finds the contact by its id alone, or by external_id, then email, then phone_number', async () => {
    const make = async (contact: object, sender?: Sender) => {
      const made = await server.request<{ id: string }>('POST', '/v1/contacts', contact, authorize(sender));
      expect(made.status).toBe(201);
      return made.body.id;
    };
    const contacts = [
      { external_id: 'ref 1' },
      { email: 'Ref2@example.com' },
      { phone_number: '+4917012345678' },
    ];
    const [first, second, third] = [
      await make(contacts[0]!),
      await make(contacts[1]!),
      await make(contacts[2]!),
    ];
    for (const contact of contacts) await make(contact, other);
    const device = androidApp(unique('phone'));
    for (const [reference, id] of [
      [{ contact_id: second.toUpperCase() }, second],
      [{ external_id: 'ref 1', email: 'ref2@example.com' }, first],
      [{ email: 'REF2@EXAMPLE.COM', phone_number: '+4917012345678' }, second],
      [{ external_id: 'nobody', phone_number: '+4917012345678' }, third],
    ] as const) {
      expect((await register(server, { ...device, ...reference })).contact_id).toBe(id);
    }
  });

  test('is refused without a contact, with two sorts of reference, or for one that is unknown', async () => {
    const contactId = await aPushContact(server);
    const theirs = await aPushContact(server, other);
    const device = androidApp(unique('phone'));
    for (const reference of [{}, { contact_id: contactId, email: 'ann@example.com' }]) {
      expect((await tryToRegister(server, { ...device, ...reference })).status).toBe(400);
    }
    const messages = new Set<string>();
    for (const reference of [
      { contact_id: unknownId },
      { contact_id: 'nonsense' },
      { contact_id: theirs },
      { external_id: 'nobody at all' },
      { email: 'nobody@example.com' },
      { phone_number: '+4917099999999' },
    ]) {
      const { status, body } = await tryToRegister(server, { ...device, ...reference });
      expect([reference, status]).toEqual([reference, 404]);
      messages.add(body.message);
    }
    expect([...messages]).toEqual(['There is no such contact.']);
  });

  test('is refused for a platform without credentials, whatever another organization has', async () => {
    const bare = await createSender(server.installation, 'bare.example');
    const contactId = await aPushContact(server, bare);
    for (const device of [androidApp('a'), iosApp('i'), browser('w')]) {
      const { status, body } = await tryToRegister(server, { contact_id: contactId, ...device }, bare);
      expect([status, body.message]).toEqual([
        400,
        expect.stringContaining(`for ${device.platform as string}`),
      ]);
    }
    expect(await devicesOf(server, contactId, bare)).toEqual([]);
  });

  test('of one organization is nothing to another with the same installation and token', async () => {
    const [mine, theirs] = [await aPushContact(server), await aPushContact(server, other)];
    const device = androidApp(unique('phone'));
    const first = await register(server, { contact_id: mine, ...device });
    await kill(first);
    const second = await register(server, { contact_id: theirs, ...device }, other);
    expect(second.status).toBe('ACTIVE');
    expect(second.id).not.toBe(first.id);
    expect(second.device_secret).toBeDefined();
    expect((await register(server, { contact_id: mine, ...device })).suppressed).toBe(true);
    const listed = await server.request(
      'GET',
      `/v1/push/contacts/${mine}/devices`,
      undefined,
      authorize(other),
    );
    expect(listed.status).toBe(404);
  });

  test('wants of each platform what it is reached by, and nothing of another', async () => {
    const contactId = await aPushContact(server);
    const web = browser(unique('browser'));
    const cases: [object, string][] = [
      [{ ...androidApp('x'), device_token: undefined }, 'device_token is required for android'],
      [{ ...iosApp('x'), device_token: undefined }, 'device_token is required for ios'],
      [{ ...web, endpoint: undefined }, 'endpoint is required for web'],
      [{ ...web, p256dh_key: undefined, auth_key: undefined }, 'p256dh_key is required for web, auth_key is'],
      [{ ...web, device_token: 'x' }, 'device_token must not be given for web'],
      [{ ...androidApp('x'), endpoint: web.endpoint }, 'endpoint must not be given for android'],
      [{ ...androidApp('x'), apns_environment: 'sandbox' }, 'apns_environment must not be given for android'],
      [
        { ...iosApp('x'), device_token: 'fcm:APA91b-x' },
        'device_token must be a token of APNs in hexadecimal',
      ],
      [{ ...iosApp('x'), device_token: 'abc' }, 'device_token must be a token of APNs in hexadecimal'],
      // Each of these characters takes six when it is encoded.
      [
        { ...web, endpoint: `https://fcm.googleapis.com/${'é'.repeat(1_000)}` },
        'endpoint must be an https URL of at most 2048 characters',
      ],
      [
        { ...iosApp('x'), apns_environment: 'staging' },
        'apns_environment must be one of production, sandbox',
      ],
      [{ ...androidApp('x'), platform: 'windows' }, 'platform must be one of android, ios, web'],
      [
        { ...androidApp('x'), installation_id: ' ' },
        'installation_id must be a single line that is not blank',
      ],
      [{ ...androidApp('x'), installation_id: 'x'.repeat(256) }, 'installation_id must be at most 255'],
      [androidApp('x', { device_token: 'x'.repeat(4097) }), 'device_token must be at most 4096 characters'],
      [androidApp('x', { device_token: 'a b' }), 'device_token must be a token as the platform gave it'],
      [androidApp('x', { device_timezone: 'Mars/Base' }), 'device_timezone must be an IANA time zone'],
      [androidApp('x', { device_locale: 'de_DE' }), 'device_locale must be a BCP 47'],
      [androidApp('x', { enablement_status: 'MAYBE' }), 'enablement_status must be one of'],
      [androidApp('x', { status: 'ACTIVE' }), 'status is not a known field'],
      [androidApp('x', { app_version: 7 }), 'app_version must be a string'],
    ];
    for (const [device, issue] of cases) {
      const { status, body } = await tryToRegister(server, { contact_id: contactId, ...device });
      const wanted = issue.includes(' is required for ') ? 400 : 422;
      expect([issue, status, body.message]).toEqual([issue, wanted, expect.stringContaining(issue)]);
    }
    for (const text of ['a\0b', '\ud800']) {
      const raw = JSON.stringify({ contact_id: contactId, ...androidApp('x', { device_model: text }) });
      const { status } = await server.request('POST', '/v1/push/devices', raw);
      expect(status).toBe(422);
    }
    expect(await devicesOf(server, contactId)).toEqual([]);
  });

  test('takes an endpoint at a push service that is allowed, and at no other place', async () => {
    const contactId = await aPushContact(server);
    const names = unique('endpoint');
    for (const endpoint of [
      `https://updates.push.services.mozilla.com/wpush/v2/${names}`,
      `https://wns2-by3p.notify.windows.com/w/?token=${names}%3d`,
      `https://WEB.push.apple.com:443/${names}`,
      `https://jmt17.google.com/fcm/send/${names}`,
    ]) {
      const { status } = await register(server, {
        contact_id: contactId,
        ...browser(unique('browser'), { endpoint }),
      });
      expect(status).toBe('ACTIVE');
    }
    for (const endpoint of [
      `http://fcm.googleapis.com/${names}`,
      'https://127.0.0.1/push',
      'https://[::1]/push',
      'https://169.254.169.254/latest',
      'https://fcm.googleapis.com.evil.example/x',
      'https://evil.example/fcm.googleapis.com',
      'https://evilfcm.googleapis.com/x',
      'https://push.apple.com/x',
      'https://made-up.push.apple.com/x',
      'https://made-up.push.services.mozilla.com/x',
      'https://xjmt17.google.com/fcm/send/x',
      'https://x.jmt17.google.com/fcm/send/x',
      'https://jmt18.google.com/fcm/send/x',
      'https://google.com/fcm/send/x',
      'https://jmt17.google.com.evil.example/fcm/send/x',
      'https://notify.windows.com/x',
      'https://evilnotify.windows.com/x',
      'https://fcm.googleapis.com:8443/x',
      'https://fcm.googleapis.com@evil.example/x',
      'https://user:password@fcm.googleapis.com/x',
      'https://fcm.googleapis.com./x',
      'https://fcm.googleapis.com/x#y',
      'fcm.googleapis.com/x',
      '',
    ]) {
      const device = browser(unique('browser'), { endpoint });
      const { status } = await tryToRegister(server, { contact_id: contactId, ...device });
      expect([endpoint, status]).toEqual([endpoint, 422]);
    }
    const long = `https://fcm.googleapis.com/${'x'.repeat(2_048)}`;
    const device = browser(unique('browser'), { endpoint: long });
    expect((await tryToRegister(server, { contact_id: contactId, ...device })).status).toBe(422);
  });

  test('takes keys of a browser that are on the curve, in either alphabet, and keeps them in one', async () => {
    const contactId = await aPushContact(server);
    const device = browser(unique('browser'));
    const key = Buffer.from(device.p256dh_key as string, 'base64url');
    const auth = Buffer.from(device.auth_key as string, 'base64url');
    const offCurve = Buffer.from(key);
    offCurve[64]! ^= 1;
    const compressed = Buffer.concat([Buffer.from([2 + (key[64]! & 1)]), key.subarray(1, 33)]);
    for (const [p256dh_key, auth_key] of [
      [offCurve, auth],
      [compressed, auth],
      [Buffer.concat([Buffer.from([6 + (key[64]! & 1)]), key.subarray(1)]), auth],
      [key.subarray(0, 64), auth],
      [key, auth.subarray(0, 15)],
      [key, Buffer.concat([auth, auth])],
    ] as const) {
      const given = {
        ...device,
        p256dh_key: p256dh_key.toString('base64url'),
        auth_key: auth_key.toString('base64url'),
      };
      expect((await tryToRegister(server, { contact_id: contactId, ...given })).status).toBe(422);
    }
    const plain = { p256dh_key: key.toString('base64'), auth_key: auth.toString('base64') };
    const { id } = await register(server, { contact_id: contactId, ...device, ...plain });
    const stored = await rowsOf(server, 'select p256dh_key, auth_key from devices where id = $1', [id]);
    expect(stored).toEqual([{ p256dh_key: device.p256dh_key, auth_key: device.auth_key }]);
  });

  test('rebinds an installation to the contact who signs in there, under the same id and secret', async () => {
    const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
    const device = androidApp(unique('shared'));
    const first = await register(server, { contact_id: ann, ...device });
    const second = await register(server, { contact_id: bob, ...device });
    expect(second).toEqual({
      id: first.id,
      installation_id: first.installation_id,
      status: 'ACTIVE',
      contact_id: bob,
      opted_out: false,
    });
    expect(await devicesOf(server, ann)).toEqual([]);
    expect(await devicesOf(server, bob)).toHaveLength(1);
  });

  test('takes its token from another installation of the organization, which then has none', async () => {
    const contactId = await aPushContact(server);
    const [old, young] = [unique('old'), unique('young')];
    await register(server, { contact_id: contactId, ...iosApp(old) });
    const token = (iosApp(old).device_token as string).toUpperCase();
    await register(server, { contact_id: contactId, ...iosApp(young, { device_token: token }) });
    const statuses = async () =>
      Object.fromEntries(
        (await devicesOf(server, contactId)).map((one) => [one.installation_id, one.status]),
      );
    expect(await statuses()).toEqual({ [old]: 'EXPIRED', [young]: 'ACTIVE' });
    await register(server, { contact_id: contactId, ...iosApp(old) });
    expect(await statuses()).toEqual({ [old]: 'ACTIVE', [young]: 'EXPIRED' });
    const held = await rowsOf(
      server,
      'select installation_id from devices where contact_id = $1 and token is not null',
      [contactId],
    );
    expect(held).toEqual([{ installation_id: old }]);
  });

  test('of the same text on two platforms is two devices', async () => {
    const contactId = await aPushContact(server);
    const device_token = 'ab'.repeat(32);
    await register(server, { contact_id: contactId, ...androidApp(unique('phone'), { device_token }) });
    await register(server, { contact_id: contactId, ...iosApp(unique('phone'), { device_token }) });
    expect((await devicesOf(server, contactId)).map(({ status }) => status)).toEqual(['ACTIVE', 'ACTIVE']);
  });

  test('of the same installations and tokens at once, for many contacts, makes each once and leaves none held twice', async () => {
    // Of one contact they would wait for each other.
    const contactIds = await Promise.all(Array.from({ length: 30 }, () => aPushContact(server)));
    const names = Array.from({ length: 5 }, () => unique('crowd'));
    const answers = await Promise.all(
      contactIds.map((contact_id, index) =>
        tryToRegister(server, {
          contact_id,
          ...androidApp(names[index % 5]!, { device_token: `crowd-${index % 3}` }),
        }),
      ),
    );
    expect(answers.filter(({ status }) => status !== 200 && status !== 503)).toEqual([]);
    expect(answers.filter(({ body }) => body.device_secret !== undefined)).toHaveLength(5);
    const devices = await rowsOf<{ token: string | null; status: string }>(
      server,
      'select token, status from devices where organization_id = $1 and installation_id = any ($2)',
      [server.organizationId, names],
    );
    expect(devices).toHaveLength(5);
    const tokens = devices.flatMap(({ token }) => (token === null ? [] : [token]));
    expect(new Set(tokens).size).toBe(tokens.length);
    expect(devices.filter(({ token, status }) => (token === null) === (status === 'ACTIVE'))).toEqual([]);
  });

  test('in bulk, of the same new installations in opposite orders at once, is carried out for both', async () => {
    for (let round = 0; round < 5; round += 1) {
      const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
      const apps = Array.from({ length: 150 }, () => androidApp(unique('opposite')));
      const of = (contact_id: string) => apps.map((app) => ({ contact_id, ...app }));
      const answers = await Promise.all([bulk(of(ann)), bulk(of(bob).reverse())]);
      const results = answers.flatMap(({ body }) => body.data);
      expect(results.map(statusOf)).toEqual(Array<unknown>(300).fill('ACTIVE'));
      expect(results.filter((result) => 'device_secret' in result)).toHaveLength(150);
    }
  });

  test('gives a contact at most 200 active devices, and refreshes those that it has', async () => {
    const contactId = await aPushContact(server);
    const names = Array.from({ length: 200 }, () => unique('many'));
    const devices: Record<string, unknown>[] = names.map((name) => ({
      contact_id: contactId,
      ...androidApp(name),
    }));
    const { body } = await bulk(devices);
    expect(body.data.filter((one) => !('error' in one))).toHaveLength(200);
    // The first was silent longest until it registers again.
    await register(server, devices[0]!);
    await register(server, { contact_id: contactId, ...androidApp(unique('more')) });
    const listed = await server.request<{ data: { installation_id: string; status: string }[] }>(
      'GET',
      `/v1/push/contacts/${contactId}/devices?limit=100`,
    );
    expect(listed.status).toBe(200);
    const statuses = await rowsOf<{ installation_id: string }>(
      server,
      "select installation_id from devices where contact_id = $1 and status = 'EXPIRED'",
      [contactId],
    );
    expect(statuses).toHaveLength(1);
    expect(names.slice(1)).toContain(statuses[0]!.installation_id);
    await register(server, devices[7]!);
    // The token comes from one of the others, which ends by that.
    const device_token = devices[8]!.device_token;
    await register(server, { contact_id: contactId, ...androidApp(unique('more'), { device_token }) });
    await unregister(server, names[9]!, 'opt_out');
    await register(server, { contact_id: contactId, ...androidApp(unique('more')) });
    await register(server, { contact_id: contactId, ...androidApp(unique('more')) });
    const [active] = await rowsOf<{ count: number }>(
      server,
      "select count(*)::integer as count from devices where contact_id = $1 and status = 'ACTIVE'",
      [contactId],
    );
    expect(active).toEqual({ count: 200 });
    const elsewhere = await aPushContact(server);
    await register(server, { contact_id: elsewhere, ...androidApp(unique('more')) });
  });
});

describe('a device that is revoked', () => {
  test('by signing out stays so for the same contact, and not for another who signs in', async () => {
    const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
    const device = androidApp(unique('shared'));
    const { id } = await register(server, { contact_id: ann, ...device });
    const revoked = {
      id,
      installation_id: device.installation_id,
      status: 'REVOKED',
      contact_id: ann,
      opted_out: true,
    };
    expect(await unregister(server, device.installation_id as string, 'logout')).toEqual(revoked);
    expect(await register(server, { contact_id: ann, ...device })).toEqual(revoked);
    const active = { ...revoked, status: 'ACTIVE', contact_id: bob, opted_out: false };
    expect(await register(server, { contact_id: bob, ...device })).toEqual(active);
    expect(await register(server, { contact_id: ann, ...device })).toEqual({ ...active, contact_id: ann });
  });

  test('by an opt-out stays so for any contact who signs in, also under another installation id', async () => {
    const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
    const device = browser(unique('browser'));
    await register(server, { contact_id: ann, ...device });
    const name = device.installation_id as string;
    await unregister(server, name, 'opt_out');
    // Signing out afterwards does not undo the opt-out.
    await unregister(server, name, 'logout');
    const asBob = await register(server, { contact_id: bob, ...device });
    expect(asBob).toMatchObject({ status: 'REVOKED', contact_id: bob, opted_out: true });
    const cleared = { ...device, installation_id: unique('cleared') };
    expect(await register(server, { contact_id: ann, ...cleared })).toMatchObject({
      status: 'REVOKED',
      opted_out: true,
    });
  });

  test('gets pushes again once the contact consents to them through the API, or after that at its next start', async () => {
    const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
    const [tablet, phone, dead] = [unique('tablet'), unique('phone'), unique('dead')];
    const bobs = unique('bobs');
    for (const name of [tablet, phone, dead])
      await register(server, { contact_id: ann, ...androidApp(name) });
    await register(server, { contact_id: bob, ...androidApp(bobs) });
    await unregister(server, tablet, 'opt_out');
    await unregister(server, phone, 'logout');
    await kill(await unregister(server, dead, 'opt_out'), 'FAILED');
    await unregister(server, bobs, 'opt_out');
    const statuses = async () =>
      Object.fromEntries(
        (await devicesOf(server, ann)).map((one) => [one.installation_id, [one.status, one.opted_out]]),
      );
    const revoked = ['REVOKED', true];
    for (const change of [
      { first_name: 'Ann' },
      { consent: { email: 'subscribed' } },
      { consent: { push: 'unsubscribed' } },
    ]) {
      expect((await server.request('PATCH', `/v1/contacts/${ann}`, change)).status).toBe(200);
      expect(await statuses()).toEqual({ [tablet]: revoked, [phone]: revoked, [dead]: revoked });
    }
    await server.request('PATCH', `/v1/contacts/${ann}`, { consent: { push: 'subscribed' } });
    expect(await statuses()).toEqual({
      [tablet]: ['ACTIVE', false],
      [phone]: ['REVOKED', false],
      [dead]: ['FAILED', false],
    });
    await register(server, { contact_id: ann, ...androidApp(phone) });
    expect((await statuses())[phone]).toEqual(['ACTIVE', false]);
    expect(await devicesOf(server, bob)).toMatchObject([{ status: 'REVOKED', opted_out: true }]);
  });

  test('is one that the organization knows, else 404', async () => {
    const theirs = androidApp(unique('theirs'));
    await register(server, { contact_id: await aPushContact(server, other), ...theirs }, other);
    for (const installation_id of [theirs.installation_id, 'nobody has it']) {
      const body = { installation_id, reason: 'logout' };
      expect((await server.request('POST', '/v1/push/devices/unregister', body)).status).toBe(404);
    }
    for (const body of [
      { installation_id: 'x' },
      { installation_id: 'x', reason: 'bored' },
      { reason: 'logout' },
    ]) {
      expect((await server.request('POST', '/v1/push/devices/unregister', body)).status).toBe(422);
    }
  });
});

describe('a token that was refused for good', () => {
  test('keeps its device retired, whatever installation replays it, until there is another token', async () => {
    const contactId = await aPushContact(server);
    const device = androidApp(unique('phone'));
    const first = await register(server, { contact_id: contactId, ...device });
    await kill(first);
    expect(await devicesOf(server, contactId)).toMatchObject([{ status: 'EXPIRED' }]);
    const replayed = await register(server, { contact_id: contactId, ...device });
    expect(replayed).toMatchObject({ id: first.id, status: 'EXPIRED', opted_out: false, suppressed: true });
    const elsewhere = { ...device, installation_id: unique('reinstalled') };
    const created = await register(server, { contact_id: contactId, ...elsewhere });
    expect(created).toMatchObject({ status: 'EXPIRED', suppressed: true });
    expect(created.device_secret).toBeDefined();
    const renewed = { ...device, device_token: unique('token') };
    const active = await register(server, { contact_id: contactId, ...renewed });
    expect(active).toEqual({
      id: first.id,
      installation_id: device.installation_id,
      status: 'ACTIVE',
      contact_id: contactId,
      opted_out: false,
    });
  });

  test('that never could work makes it FAILED', async () => {
    const contactId = await aPushContact(server);
    const device = browser(unique('browser'));
    await kill(await register(server, { contact_id: contactId, ...device }), 'FAILED');
    const replayed = await register(server, { contact_id: contactId, ...device });
    expect(replayed).toMatchObject({ status: 'FAILED', suppressed: true });
  });
});

type BulkResult = BulkRecord['data'][number];

async function bulk(devices: unknown, sender?: Sender) {
  const response = await server.request<BulkRecord>(
    'POST',
    '/v1/push/devices/bulk',
    { devices },
    authorize(sender),
  );
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response;
}

const statusOf = (result: BulkResult) => ('error' in result ? result.error.status_code : result.status);

describe('a bulk registration', () => {
  test('registers each as if it were alone, and says of each what became of it', async () => {
    const contactId = await aPushContact(server);
    const theirs = await aPushContact(server, other);
    const [first, second] = [androidApp(unique('bulk')), iosApp(unique('bulk'))];
    const { body } = await bulk([
      { contact_id: contactId, ...first },
      { contact_id: contactId, ...second, platform: 'windows' },
      { contact_id: theirs, ...second },
      { ...second },
      { contact_id: contactId, ...second, endpoint: 'https://fcm.googleapis.com/x' },
      'nonsense',
      null,
      { contact_id: contactId, installation_id: 7 },
      { contact_id: contactId, ...second },
    ]);
    expect(body.data.map(({ index }) => index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8]);
    expect(body.data.map(statusOf)).toEqual(['ACTIVE', 422, 404, 400, 422, 422, 422, 422, 'ACTIVE']);
    expect(body.data.map(({ installation_id }) => installation_id)).toEqual([
      first.installation_id,
      ...Array<unknown>(4).fill(second.installation_id),
      null,
      null,
      null,
      second.installation_id,
    ]);
    expect(body.data[1]).toEqual({
      index: 1,
      installation_id: second.installation_id,
      error: {
        status_code: 422,
        name: 'validation_error',
        message: 'platform must be one of android, ios, web',
      },
    });
    expect(body.data[8]).toMatchObject({ contact_id: contactId, opted_out: false });
    expect((body.data[8] as RegistrationRecord).device_secret).toBeDefined();
    expect(await devicesOf(server, contactId)).toHaveLength(2);
  });

  test('carries out its devices in their order, also where they speak of the same ones', async () => {
    const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
    const [left, right] = [unique('left'), unique('right')];
    const app = (name: string, token: string, contact_id = ann) => ({
      contact_id,
      ...androidApp(name, { device_token: token }),
    });
    const [one, two] = [unique('one'), unique('two')];
    await bulk([app(left, one), app(right, two)]);
    // They change tokens.
    const { body } = await bulk([
      app(left, two),
      app(right, one),
      app(right, one, bob),
      app(right, one, ann),
    ]);
    expect(body.data.map(statusOf)).toEqual(['ACTIVE', 'ACTIVE', 'ACTIVE', 'ACTIVE']);
    expect(body.data.map((result) => (result as RegistrationRecord).contact_id)).toEqual([
      ann,
      ann,
      bob,
      ann,
    ]);
    expect(body.data.some((result) => 'device_secret' in result)).toBe(false);
    const held = await rowsOf(
      server,
      'select installation_id, token, status from devices where contact_id = $1 order by installation_id',
      [ann],
    );
    expect(held).toEqual([
      { installation_id: left, token: two, status: 'ACTIVE' },
      { installation_id: right, token: one, status: 'ACTIVE' },
    ]);
    // Twice the same that is new: it is created once, and its token goes on to the next.
    const fresh = unique('fresh');
    const again = await bulk([app(fresh, 'fresh'), app(fresh, 'fresh'), app(unique('next'), 'fresh')]);
    expect(again.body.data.map((result) => 'device_secret' in result)).toEqual([true, false, true]);
    expect(await rowsOf(server, `select installation_id from devices where token = 'fresh'`)).toHaveLength(2);
  });

  test('of a thousand large devices is read in the thread for large bodies, each by itself', async () => {
    const owners = await Promise.all(Array.from({ length: 10 }, () => aPushContact(server)));
    const padding = 'x'.repeat(3_000);
    const devices: Record<string, unknown>[] = Array.from({ length: 1_000 }, (_one, index) => ({
      contact_id: owners[index % 10],
      ...androidApp(unique('bulk'), { device_token: `${padding}${index}` }),
    }));
    devices[3] = { ...devices[3], platform: 'windows' };
    devices[999] = { ...devices[999], contact_id: unknownId };
    const { body } = await bulk(devices);
    expect(body.data.map(({ installation_id: name }) => name)).toEqual(
      devices.map(({ installation_id: name }) => name),
    );
    const refused = body.data.filter((result) => 'error' in result);
    expect(refused.map((result) => [result.index, statusOf(result)])).toEqual([
      [3, 422],
      [999, 404],
    ]);
    // All of one contact, who has no more than 200 active ones then.
    const contact_id = await aPushContact(server);
    const again = await bulk(devices.map((device) => ({ ...device, contact_id })));
    const registered = again.body.data.flatMap((result) => ('error' in result ? [] : [result.index]));
    expect(registered).toHaveLength(999);
    expect(
      await rowsOf(server, "select from devices where contact_id = $1 and status = 'ACTIVE'", [contact_id]),
    ).toHaveLength(200);
  });

  test('has 1 to 1000 devices, and at most 10 MB', async () => {
    const post = (body: unknown) => server.request('POST', '/v1/push/devices/bulk', body);
    for (const body of [
      {},
      { devices: [] },
      { devices: {} },
      { devices: Array(1_001).fill({}) },
      { devices: [{}], more: 1 },
    ]) {
      expect((await post(body)).status).toBe(422);
    }
    const large = { devices: [{ padding: 'x'.repeat(10 * 1_048_576) }] };
    expect((await post(large)).status).toBe(413);
    expect((await post({ devices: [{ padding: 'x'.repeat(9 * 1_048_576) }] })).status).toBe(200);
  });
});

describe('the devices of a contact', () => {
  test('are listed newest first, a page at a time, without anything that opens them', async () => {
    const contactId = await aPushContact(server);
    const names = [unique('first'), unique('second'), unique('third')];
    for (const name of names) await register(server, { contact_id: contactId, ...browser(name) });
    const path = `/v1/push/contacts/${contactId}/devices`;
    type Page = { has_more: boolean; data: { id: string; installation_id: string }[] };
    const first = await server.request<Page>('GET', `${path}?limit=2`);
    expect(first.body.data.map((one) => one.installation_id)).toEqual([names[2], names[1]]);
    expect(first.body.has_more).toBe(true);
    const second = await server.request<Page>('GET', `${path}?limit=2&after=${first.body.data[1]!.id}`);
    expect(second.body.data.map((one) => one.installation_id)).toEqual([names[0]]);
    expect(Object.keys(first.body.data[0]!).filter((key) => /token|key|secret|endpoint/.test(key))).toEqual(
      [],
    );
    expect((await server.request('GET', `/v1/push/contacts/${unknownId}/devices`)).status).toBe(404);
    expect((await server.request('GET', '/v1/push/contacts/nonsense/devices')).status).toBe(404);
  });

  test('are gone with the contact, but for the digests of their dead tokens', async () => {
    const contactId = await aPushContact(server);
    const [dead, alive] = [androidApp(unique('phone')), androidApp(unique('phone'))];
    await kill(await register(server, { contact_id: contactId, ...dead }));
    await register(server, { contact_id: contactId, ...alive });
    expect((await server.request('DELETE', `/v1/contacts/${contactId}`)).status).toBe(200);
    const left = await rowsOf(server, 'select installation_id from devices where contact_id = $1', [
      contactId,
    ]);
    expect(left).toEqual([]);
    const heir = await aPushContact(server);
    expect(await register(server, { contact_id: heir, ...dead })).toMatchObject({ suppressed: true });
    expect(await register(server, { contact_id: heir, ...alive })).toMatchObject({ status: 'ACTIVE' });
  });

  test('of many contacts that are deleted together are gone with them', async () => {
    const ids = await Promise.all(Array.from({ length: 205 }, () => aPushContact(server)));
    const kept = await aPushContact(server);
    await bulk([...ids, kept].map((contact_id) => ({ contact_id, ...androidApp(unique('phone')) })));
    const { body } = await server.request('POST', '/v1/contacts/bulk-delete', { contact_ids: ids });
    expect(body).toMatchObject({ deleted_count: 205 });
    const left = await rowsOf(
      server,
      'select contact_id from devices where organization_id = $1 and contact_id = any ($2)',
      [server.organizationId, [...ids, kept]],
    );
    expect(left).toEqual([{ contact_id: kept }]);
  });
});
