import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '../../test/support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});

afterAll(() => server.stop());

test.each(['sdk.js', 'sw.js'])('%s is there for sites of any origin, without a key', async (name) => {
  const response = await fetch(`${server.url}/push/${name}`, { headers: { origin: 'https://shop.test' } });
  expect(response.status).toBe(200);
  expect(Object.fromEntries(response.headers)).toMatchObject({
    'content-type': 'text/javascript; charset=utf-8',
    'cache-control': 'public, max-age=3600',
    'access-control-allow-origin': '*',
    'cross-origin-resource-policy': 'cross-origin',
    'x-content-type-options': 'nosniff',
  });
  const built = path.resolve(import.meta.dirname, '../../dist/web-push', name);
  expect(await response.text()).toBe(readFileSync(built, 'utf8'));
});

test('the worker may serve a whole site below which Postillion is, and report to any address', async () => {
  const { headers } = await fetch(`${server.url}/push/sw.js`);
  expect(headers.get('service-worker-allowed')).toBe('/');
  expect(headers.get('content-security-policy')).toBe("default-src 'none'; connect-src *");
});
