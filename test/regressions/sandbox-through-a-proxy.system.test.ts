/**
 * What strangers see of the sandbox through a reverse proxy on the same machine. Each of its requests comes from
 * 127.0.0.1, and nginx by default adds no header that would show it: a sandbox that went by the address was open to
 * the Internet.
 */
import http from 'node:http';
import { once } from 'node:events';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readConfig } from '../../src/config.ts';
import { keepMessage, sandboxToken } from '../../src/sandbox/sandbox.ts';
import { describeWithNginx, hasOwnUser } from '../support/nginx.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { startTcpForwarder } from '../support/tcp-forwarder.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
  await keepMessage(server.installation, {
    organizationId: server.organizationId,
    channel: 'email',
    messageId: server.installation.newId(),
    ordinal: 0,
    recipient: 'ada@example.com',
    sender: 'shop@postillion.test',
    outcome: 'delivered',
    source: Buffer.from('Subject: Reset your password\r\n\r\nSecret\r\n'),
  });
});

afterAll(() => server.stop());

const paths = ['/sandbox', '/sandbox/page.js', '/sandbox/messages', '/sandbox/messages?to=ada@example.com'];

test('a program on this machine needs no token', async () => {
  const { status, body } = await server.request('GET', '/sandbox/messages');
  expect(status).toBe(200);
  expect(body).toMatchObject({ data: [{ to: 'ada@example.com' }] });
});

test.each([
  [{}, 'loopback'],
  [{ POSTILLION_PUBLIC_URL: 'https://mail.example.com' }, 'token'],
  [{ POSTILLION_TRUSTED_PROXIES: '127.0.0.1' }, 'token'],
  [{ POSTILLION_PUBLIC_URL: 'https://mail.example.com', POSTILLION_SANDBOX_ACCESS: 'loopback' }, 'loopback'],
  [{ POSTILLION_TRUSTED_PROXIES: '10.0.0.0/8', POSTILLION_SANDBOX_ACCESS: 'any' }, 'any'],
  [{ POSTILLION_SANDBOX_ACCESS: 'token' }, 'token'],
])('with the settings %o the sandbox is for %s', (settings, access) => {
  expect(readConfig(settings).sandboxAccess).toBe(access);
});

test.each([
  'Forwarded',
  'Via',
  'X-Forwarded-For',
  'X-Forwarded-Host',
  'X-Forwarded-Proto',
  'X-Forwarded',
  'X-Real-IP',
  'X-Client-IP',
  'X-Original-Forwarded-For',
  'X-Envoy-External-Address',
  'X-Amzn-Trace-Id',
  'X-Cloud-Trace-Context',
  'X-ARR-LOG-ID',
  'X-Azure-ClientIP',
  'True-Client-IP',
  'CF-Connecting-IP',
  'CF-Ray',
  'CDN-Loop',
  'Fastly-Client-IP',
  'Fly-Client-IP',
])('the header %s says that it came through a proxy', async (name) => {
  for (const path of paths) {
    const { status } = await server.request('GET', path, undefined, { [name]: '203.0.113.9' });
    expect(status).toBe(404);
  }
});

/** A proxy that adds no header is recognised only by the owner of its connection, which Linux shows. */
const knowsOwners = process.platform === 'linux' && hasOwnUser;
if (!knowsOwners)
  console.log('Skipped, because it takes Linux and root to run as another user: proxies that say nothing');

test.skipIf(!knowsOwners)('a forwarder of TCP that runs as a user of its own opens nothing', async () => {
  const port = Number(new URL(server.url).port);
  const nobody = 65_534;
  const forwarder = await startTcpForwarder({ port, uid: nobody });
  const ask = async (method: string, path: string, headers = {}) => {
    const target = { host: '127.0.0.1', port: forwarder.port, method, path };
    const request = http.request({ ...target, headers: { host: `localhost:${port}`, ...headers } });
    request.end();
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    return { status: response.statusCode, body: (await response.toArray()).join('') };
  };
  try {
    expect((await ask('GET', '/healthz')).status).toBe(200);
    for (const path of paths) expect([path, (await ask('GET', path)).status]).toEqual([path, 404]);
    expect((await ask('DELETE', '/sandbox/messages')).status).toBe(404);
    for (const path of ['/', '/docs', '/gallery']) {
      expect((await ask('GET', path)).body).not.toContain('href="sandbox"');
    }
    const authorization = `Bearer ${sandboxToken(server.installation.secrets)}`;
    const listed = await ask('GET', '/sandbox/messages', { authorization });
    expect(listed.body).toContain('ada@example.com');
  } finally {
    await forwarder.stop();
  }
});

const webSockets =
  'proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";';

describeWithNginx('through nginx', (start) => {
  const silent: Record<string, () => string> = {
    'as it is from 1.29.7 on': () =>
      `proxy_pass ${server.url}; proxy_http_version 1.1; proxy_set_header Connection '';`,
  };
  const configurations = {
    'set up for WebSockets': () => `proxy_pass ${server.url}; ${webSockets}`,
    ...(knowsOwners ? silent : {}),
    'with nothing but proxy_pass': () => `proxy_pass ${server.url};`,
    "with the client's Host": () => `proxy_pass ${server.url}; proxy_set_header Host $http_host;`,
    'with HTTP/1.1 and a header': () =>
      `proxy_pass ${server.url}; proxy_http_version 1.1; proxy_set_header X-Forwarded-Proto $scheme;`,
  };

  test.each(Object.entries(configurations))(
    '%s the sandbox does not exist without its token',
    async (_name, location) => {
      const nginx = await start(location());
      const { port } = new URL(server.url);
      try {
        // That the proxy is one: without it, everything would be refused.
        expect((await nginx.request('/healthz')).status).toBe(200);
        for (const host of ['mail.example.com', `127.0.0.1:${port}`, `localhost:${port}`]) {
          for (const path of [...paths, '/sandbox?token=', '/sandbox?token=nonsense']) {
            const answer = await nginx.request(path, { headers: { host } });
            expect([path, answer.status]).toEqual([path, 404]);
            expect(answer.body).not.toContain('ada@example.com');
          }
          const deletion = await nginx.request('/sandbox/messages', { method: 'DELETE', headers: { host } });
          expect(deletion.status).toBe(404);
        }
        const token = sandboxToken(server.installation.secrets);
        const opened = await nginx.request(`/sandbox?token=${token}`);
        expect(opened.status).toBe(200);
        const [cookie = ''] = opened.headers['set-cookie']?.[0]?.split(';') ?? [];
        const listed = await nginx.request('/sandbox/messages', { headers: { cookie } });
        expect(listed.body).toContain('ada@example.com');
      } finally {
        await nginx.stop();
      }
    },
  );

  test('a proxy that speaks HTTP/1.1 and says nothing is kept out once there is a public URL', async () => {
    const guarded = await startTestServer({ sandboxAccess: 'token' });
    const nginx = await start(
      `proxy_pass ${guarded.url}; proxy_http_version 1.1; proxy_set_header Connection '';`,
    );
    try {
      for (const path of paths) expect((await nginx.request(path)).status).toBe(404);
      const direct = http.get(`${guarded.url}/sandbox/messages`);
      const [response] = (await once(direct, 'response')) as [http.IncomingMessage];
      response.resume();
      expect(response.statusCode).toBe(404);
    } finally {
      await nginx.stop();
      await guarded.stop();
    }
  });
});
