import { expect, test } from 'vitest';
import type { ProviderApp, ProviderCallback } from '../../channels/provider-callbacks.ts';
import { readConfig } from '../../config.ts';
import type { Installation } from '../../installation/installation.ts';
import { systemClock } from '../../platform/clock.ts';
import type { PageRequest } from '../../platform/http/route.ts';
import { silentLog } from '../../platform/log.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { callbackPages } from './callbacks.ts';

const app: ProviderApp = { accountId: '1', organizationId: 'o', appSecret: 's', verifyToken: 'v' };

const callbacks: readonly ProviderCallback<string>[] = [
  {
    path: '',
    rawBytesMax: 100,
    takenStatus: 200,
    greet: ({ query }) => Promise.resolve(query.word ?? null),
    read: ({ body }) => (body.length === 0 ? 'forged' : [body.toString()]),
  },
  {
    path: ':token',
    rawBytesMax: 100,
    greet: async ({ findApp }) => (await findApp())?.verifyToken ?? null,
    read: async ({ findApp }) => {
      const own = await findApp();
      return own === null ? 'forged' : [own.organizationId];
    },
  },
];

function arrange(findApp: (token: string) => Promise<ProviderApp | null>) {
  const taken: string[] = [];
  // What the pages need of an installation.
  const installation = {
    config: readConfig({ POSTILLION_PUBLIC_URL: 'https://post.test' }),
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    log: silentLog,
    clock: systemClock,
  } as unknown as Installation;
  const pages = callbackPages(installation, {
    name: 'heron',
    callbacks: { provider: 'Heron', list: callbacks },
    take: async (told) => {
      taken.push(told);
    },
    findApp,
  });
  const ask = async (method: string, path: string, more: Partial<PageRequest> = {}) => {
    const page = pages.find((each) => each.method === method && each.path === path);
    const nothing = { params: {}, query: {}, body: Buffer.alloc(0), header: () => undefined };
    const request = { ...nothing, site: '192.0.2.0/24', ...more };
    const response = await page!.handle(request as PageRequest); // The rest is not looked at.
    return response.statusCode;
  };
  return { pages, taken, ask };
}

const token = { token: 'known' };

test('an address without a token has no slash at its end, and a question has a page beside the reports', () => {
  const { pages } = arrange(() => Promise.resolve(null));
  expect(pages.map(({ method, path }) => `${method ?? ''} ${path}`)).toEqual([
    'GET /callbacks/heron',
    'POST /callbacks/heron',
    'GET /callbacks/heron/:token',
    'POST /callbacks/heron/:token',
  ]);
});

test('a question is answered or refused', async () => {
  const { ask } = arrange((given) => Promise.resolve(given === 'known' ? app : null));
  expect(await ask('GET', '/callbacks/heron', { query: { word: 'x' } })).toBe(200);
  expect(await ask('GET', '/callbacks/heron')).toBe(403);
  expect(await ask('GET', '/callbacks/heron/:token', { params: token })).toBe(200);
  expect(await ask('GET', '/callbacks/heron/:token', { params: { token: 'unknown' } })).toBe(403);
});

test('what an app reports is taken with its organization, and as the provider wants to hear it', async () => {
  const { ask, taken } = arrange((given) => Promise.resolve(given === 'known' ? app : null));
  expect(await ask('POST', '/callbacks/heron', { body: Buffer.from('told') })).toBe(200);
  expect(await ask('POST', '/callbacks/heron/:token', { params: token })).toBe(204);
  expect(await ask('POST', '/callbacks/heron/:token', { params: { token: 'unknown' } })).toBe(403);
  expect(taken).toEqual(['told', 'o']);
});

test('while apps cannot be looked up, the provider is asked to come again', async () => {
  const { ask, taken } = arrange(() => Promise.reject(new Error('the database is away')));
  expect(await ask('POST', '/callbacks/heron/:token', { params: token })).toBe(503);
  expect(await ask('GET', '/callbacks/heron/:token', { params: token })).toBe(503);
  expect(taken).toEqual([]);
});
