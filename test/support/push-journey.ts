/** What journeys with devices share: an organization that has push set up, and installations that register. */
import { createECDH, randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import { makeSandboxCredentials, platforms, setCredentials } from '../../src/devices/devices.ts';
import type { DeviceRecord, RegistrationRecord } from '../../src/devices/schema.ts';
import type { List } from '../../src/platform/http/pagination.ts';
import { authorize, type Sender } from './email-journey.ts';
import type { TestResponse, TestServer } from './server.ts';

/** Made once: an RSA key takes longer than most tests. */
const credentials = Promise.all(platforms.map(makeSandboxCredentials));

/** Gives the organization of the test, or another one, credentials for all platforms. */
export async function setUpPush(server: TestServer, organizationId = server.organizationId): Promise<void> {
  for (const content of await credentials) {
    await setCredentials(server.installation, organizationId, content, { replacesPair: true });
  }
}

let made = 0;

/** A contact by its external id alone. */
export async function aPushContact(server: TestServer, sender?: Sender): Promise<string> {
  made += 1;
  const contact = { external_id: `owner ${made}` };
  const response = await server.request<{ id: string }>('POST', '/v1/contacts', contact, authorize(sender));
  expect(response.status).toBe(201);
  return response.body.id;
}

/** What an Android app says; `more` replaces parts of it. */
export function androidApp(name: string, more: object = {}): Record<string, unknown> {
  return { installation_id: name, platform: 'android', device_token: `token-of-${name}`, ...more };
}

export function iosApp(name: string, more: object = {}): Record<string, unknown> {
  const token = Buffer.from(name.padEnd(32, '.')).toString('hex');
  return { installation_id: name, platform: 'ios', device_token: token, ...more };
}

/** Of a browser that nobody has: its keys are real, and new. */
export function browser(name: string, more: object = {}): Record<string, unknown> {
  return {
    installation_id: name,
    platform: 'web',
    endpoint: `https://fcm.googleapis.com/fcm/send/${name}`,
    p256dh_key: createECDH('prime256v1').generateKeys('base64url'),
    auth_key: randomBytes(16).toString('base64url'),
    ...more,
  };
}

export async function register(
  server: TestServer,
  device: Record<string, unknown>,
  sender?: Sender,
): Promise<RegistrationRecord> {
  const response = await tryToRegister(server, device, sender);
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response.body;
}

export function tryToRegister(
  server: TestServer,
  device: Record<string, unknown>,
  sender?: Sender,
): Promise<TestResponse<RegistrationRecord & { message: string }>> {
  return server.request('POST', '/v1/push/devices', device, authorize(sender));
}

export async function unregister(
  server: TestServer,
  installationId: string,
  reason: 'logout' | 'opt_out',
): Promise<RegistrationRecord> {
  const response = await server.request<RegistrationRecord>('POST', '/v1/push/devices/unregister', {
    installation_id: installationId,
    reason,
  });
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response.body;
}

export async function devicesOf(
  server: TestServer,
  contactId: string,
  sender?: Sender,
): Promise<DeviceRecord[]> {
  const path = `/v1/push/contacts/${contactId}/devices?limit=100`;
  const response = await server.request<List<DeviceRecord>>('GET', path, undefined, authorize(sender));
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
  return response.body.data;
}
