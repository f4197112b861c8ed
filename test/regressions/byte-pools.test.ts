/**
 * 45 strangers, each with a body that was declared with three megabytes and of which one octet came, kept all mail above
 * 64 kB out. Whatever takes a body is filled up here, by the table of routes and pages, and each pool has room for others.
 */
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createApiKey, updateOrganization } from '../../src/accounts/accounts.ts';
import { chatAppProviders } from '../../src/channels/chatapp/providers/registry.ts';
import { emailProviders } from '../../src/channels/email/providers/registry.ts';
import { smsProviders } from '../../src/channels/sms/providers/registry.ts';
import { writeReportToken } from '../../src/messages/messages.ts';
import { type BodyPoolName, bodyPoolNames } from '../../src/platform/http/body-pool.ts';
import { type Route, scopeOfDevices } from '../../src/platform/http/route.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { eventually, type Sender } from '../support/email-journey.ts';
import { listPagesOf } from '../support/page-table.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

/** `body` has at most so many octets. */
type Target = { name: string; pool: BodyPoolName; head: readonly string[]; bytesMax: number };

const attackersCount = 45;
const declaredBytes = 3_000_000;
/** Enough for a share of the bytes. */
const largeBytes = 70_000;
const limits = {
  arrivingMax: 400,
  callbacksArrivingMax: 400,
  largeBodyBytesMax: 16_000_000,
  callbackBytesMax: 16_000_000,
};

let server: TestServer;
let other: Sender;
let targets: Target[];
let sites = 0;

/** All of one customer's network; and as many customers as there are addresses. */
const networks: Readonly<Record<string, () => (index: number) => string>> = {
  'addresses of one /48': () => {
    const site = (sites += 1).toString(16);
    return (index) => `2001:db8:${site}:${index.toString(16)}::1`;
  },
  'IPv4 addresses': () => {
    const first = (sites += attackersCount);
    return (index) => `10.${(first + index) >> 8}.${(first + index) & 255}.1`;
  },
};
const anotherSite = () => `198.18.${(sites += 1) & 255}.1`;

const isReporting = (providers: object) =>
  Object.entries(providers).flatMap(([name, provider]) =>
    'callbacks' in (provider as object) ? [name] : [],
  );

beforeAll(async () => {
  server = await startTestServer({
    trustedProxies: ['127.0.0.1'],
    publicUrl: 'https://post.example',
    smsProvider: 'twilio',
    chatAppProvider: 'whatsapp',
    providerSettings: { POSTILLION_TWILIO_URL: `https://AC${'1'.repeat(32)}:token@127.0.0.1` },
    limits,
  });
  const { installation, organizationId } = server;
  other = await createSender(installation, 'other.example');
  await updateOrganization(installation, organizationId, {
    requestsPerWindow: 1_000_000,
    eventsPerWindow: 1_000_000,
  });
  const { key } = await createApiKey(installation, {
    ...{ organizationId, name: 'Second', scopes: ['full_access'], expiresAt: null },
  });
  const device = await registerDevice();
  const id = installation.newId();
  const token = writeReportToken(installation.secrets, { organizationId, messageId: id, ordinal: 0 });
  const routes = listRoutes(installation);
  const pages = await listPagesOf(installation, routes);
  const toTarget = ({ method, path }: Pick<Route, 'method' | 'path'>) => {
    const line = `${method} ${path.replace(':token', token).replaceAll(/:\w+/g, id)}`;
    return { name: `${method} ${path}`, head: [`${line} HTTP/1.1`, 'host: x'] };
  };
  targets = [
    ...routes
      .filter(({ body }) => body !== null)
      .map((route): Target => {
        const { name, head } = toTarget({ ...route, path: `/v1${route.path}` });
        const bearer = route.scope === scopeOfDevices ? device : key;
        const authorized = [...head, `authorization: Bearer ${bearer}`, 'content-type: application/json'];
        return { name, head: authorized, pool: 'routes', bytesMax: route.bodyBytesMax };
      }),
    ...pages
      .filter(({ method = 'GET' }) => method !== 'GET')
      .map(({ method = 'GET', path, isCallback, rawBytesMax, formBytesMax = 4_096 }): Target => {
        const pool = isCallback === true ? 'callbacks' : 'pages';
        return { ...toTarget({ method, path }), pool, bytesMax: rawBytesMax ?? formBytesMax };
      }),
  ];
});

afterAll(() => server.stop());

async function registerDevice(): Promise<string> {
  const post = async <Body>(path: string, body: object) =>
    (await server.request<Body>('POST', `/v1${path}`, body)).body;
  const contact = await post<{ id: string }>('/contacts', { external_id: 'of the device' });
  const device = {
    contact_id: contact.id,
    platform: 'ios',
    app_id: 'com.example',
    device_token: 'ab'.repeat(32),
  };
  return (await post<{ device_secret: string }>('/devices', device)).device_secret;
}

type Client = { socket: Socket; isAnswered: () => boolean };

function begin({ head, bytesMax }: Target, address: string, sentBytes: number): Client {
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  let isAnswered = false;
  socket.on('error', () => undefined).once('data', () => (isAnswered = true));
  const lines = [
    ...head,
    `x-forwarded-for: ${address}`,
    `content-length: ${Math.min(declaredBytes, bytesMax)}`,
  ];
  socket.write(`${lines.join('\r\n')}\r\n\r\n${'{'.repeat(Math.min(sentBytes, bytesMax - 1))}`);
  return { socket, isAnswered: () => isAnswered };
}

const postFrom = (address: string, path: string, body: string) =>
  fetch(`${server.url}${path}`, { method: 'POST', headers: { 'x-forwarded-for': address }, body });

/** One request a pool, none of them of somebody who has anything there already. */
const others: Readonly<Record<BodyPoolName, () => Promise<number>>> = {
  routes: async () => {
    const { status } = await server.request(
      'POST',
      '/v1/email/send',
      {
        ...{ from: 'hello@other.example', from_name: 'Hello', to: ['ann@example.com'], subject: 'Hello' },
        text: 'x'.repeat(100_000),
      },
      { authorization: `Bearer ${other.key}` },
    );
    return status;
  },
  // Read as a whole, and then found to be signed by nobody.
  callbacks: async () => (await postFrom(anotherSite(), '/callbacks/whatsapp', 'x'.repeat(100_000))).status,
  pages: async () => (await postFrom(anotherSite(), '/u/x', 'List-Unsubscribe=One-Click')).status,
};
const statusesOfOthers = { routes: 202, callbacks: 403, pages: 404 };

test('every provider that reports by requests is one of those whose pages are filled up here', () => {
  const { smsProvider, chatAppProvider } = server.installation.config;
  expect([emailProviders, smsProviders, chatAppProviders].flatMap(isReporting)).toEqual([
    smsProvider,
    chatAppProvider,
  ]);
});

test.each(
  bodyPoolNames.flatMap((pool) =>
    Object.keys(networks).flatMap((network) =>
      [1, largeBytes].map((sentBytes) => ({ pool, network, sentBytes })),
    ),
  ),
)(
  '45 bodies from $network, of which $sentBytes octets come, leave room for others: $pool',
  async ({ pool, network, sentBytes }) => {
    const ofPool = targets.filter((target) => target.pool === pool);
    expect(ofPool.length).toBeGreaterThan(2);
    let heldMax = 0;
    for (const target of ofPool) {
      const addressOf = networks[network]!();
      const clients = Array.from({ length: attackersCount }, (_, index) =>
        begin(target, addressOf(index), sentBytes),
      );
      await eventually(
        () => server.held()[`${pool}Arriving`] + clients.filter((client) => client.isAnswered()).length,
        (count) => count === attackersCount,
      );
      if (sentBytes === 1) expect(server.held(), target.name).toMatchObject({ [`${pool}Bytes`]: 0 });
      heldMax = Math.max(heldMax, server.held()[`${pool}Arriving`]);
      const statuses = Object.fromEntries(
        await Promise.all(bodyPoolNames.map(async (name) => [name, await others[name]()] as const)),
      );
      expect({ target: target.name, statuses }).toEqual({ target: target.name, statuses: statusesOfOthers });
      for (const { socket } of clients) socket.destroy();
      await eventually(
        () => server.held(),
        (held) => held[`${pool}Arriving`] + held[`${pool}Bytes`] === 0,
      );
    }
    expect(heldMax).toBe(attackersCount);
  },
);
