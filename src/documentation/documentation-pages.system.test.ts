import { afterAll, beforeAll, expect, test } from 'vitest';
import { Type } from 'typebox';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describeRoutes } from '../platform/http/openapi.ts';
import { defineRoute, json, type PageRequest } from '../platform/http/route.ts';
import { describeApi } from '../roles/api-description.ts';
import { documentationPages } from './documentation-pages.ts';
import { renderDocumentation } from './page.ts';
import { bytesOf } from '../../test/support/page-bodies.ts';
import { describeInBrowser } from '../../test/support/browser.ts';

const request: PageRequest = {
  params: {},
  query: {},
  repeatedQuery: [],
  remoteAddress: '127.0.0.1',
  host: '127.0.0.1',
  remotePort: 50_000,
  localAddress: '127.0.0.1',
  localPort: 8025,
  httpVersion: '1.1',
  isForwarded: false,
  site: '127.0.0.0/24',
  method: 'GET',
  form: new URLSearchParams(),
  body: Buffer.of(),
  header: () => undefined,
  userAgent: '',
  purpose: '',
};
const pages = new Map(documentationPages(() => Promise.resolve(true)).map((page) => [page.path, page]));
let server: Server;
let url: string;

beforeAll(async () => {
  server = createServer((incoming, response) => {
    void pages
      .get(incoming.url ?? '')
      ?.handle(request)
      .then(({ statusCode, headers, body }) => response.writeHead(statusCode, headers).end(bytesOf(body)));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test('/openapi.json is the description that was generated and committed', async () => {
  const response = await fetch(`${url}/openapi.json`);
  expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8');
  expect(await response.json()).toMatchObject({ openapi: '3.1.1', info: { title: 'Postillion' } });
});

test('/docs may run its own script alone, be framed by nobody, and load nothing', async () => {
  const { headers } = await fetch(`${url}/docs`);
  const policy = headers.get('content-security-policy');
  expect(policy).toMatch(
    /^default-src 'none'; style-src 'sha256-[\w+/]+=*'; script-src 'sha256-[\w+/]+=*'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$/,
  );
  expect(headers.get('x-content-type-options')).toBe('nosniff');
});

test('every operation has a place of its own on the page, with its path and its scope', () => {
  const document = describeApi();
  const { html } = renderDocumentation(document, {});
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const operation of Object.values(methods)) {
      expect(html).toContain(`<article id="${operation.operationId}">`);
      expect(html).toContain(`<a href="#${operation.operationId}">`);
      const [security] = operation.security;
      expect(html).toContain(
        'deviceSecret' in security! ? '<code>device_secret</code>' : `<code>${security!.apiKey[0]!}</code>`,
      );
    }
    expect(html).toContain(`<code>${path}</code>`);
  }
});

test('a field inside of a list or of a nullable object is shown by its path, and limits in words', () => {
  const route = defineRoute({
    method: 'POST',
    path: '/teas',
    operationId: 'brewTea',
    scope: 'teas:write',
    tag: 'Teas',
    summary: 'Brew',
    body: Type.Object({
      pots: Type.Array(Type.Object({ size: Type.Integer({ minimum: 1, maximum: 9 }) }), { maxItems: 3 }),
      milk: Type.Union([Type.Object({ fat: Type.Boolean() }), Type.Null()]),
    }),
    success: { statusCode: 201, schema: Type.Object({}), when: 'Brewed.' },
    handle: () => Promise.resolve(json({})),
  });
  const { html } = renderDocumentation(
    describeRoutes([route], {
      title: 'Teas',
      version: '1',
      description: '',
      tags: [],
      examples: {},
      schemas: {},
    }),
    {},
  );
  expect(html).toContain(
    '<tr><td><code>pots[].size</code> <span class="required">required</span></td><td>integer</td><td>At least 1, at most 9.</td></tr>',
  );
  expect(html).toContain('<td>list of object</td><td>At most 3 items.</td>');
  expect(html).toContain('<code>milk.fat</code>');
  expect(html).toContain('<td>object or null</td>');
});

test('what a description or an example holds is text on the page, and nothing else', () => {
  const evil = `<img src=x onerror="alert('1')">`;
  const route = defineRoute({
    method: 'POST',
    path: '/x',
    operationId: 'createX',
    scope: evil,
    tag: evil,
    summary: evil,
    description: `${evil}\n\n- ${evil} \`${evil}\``,
    body: Type.Object({ [evil]: Type.String({ description: evil, default: evil }) }),
    success: { statusCode: 200, schema: Type.Object({}), when: evil },
    handle: () => Promise.resolve(json({})),
  });
  const examples = {
    createX: [
      { title: evil, path: '/v1/x', body: { text: `it's ${evil}` }, status: 200, answer: { [evil]: evil } },
    ],
  };
  const { html } = renderDocumentation(
    describeRoutes([route], {
      title: evil,
      version: evil,
      description: evil,
      tags: [{ name: evil, description: evil }],
      examples,
      schemas: {},
    }),
    examples,
  );
  expect(html).not.toContain('<img');
  // A quote would end the body of the curl command.
  expect(html).toContain('it\\u0027s');
});

test('no value of the page is of any type', () => {
  const { html } = renderDocumentation(describeApi(), {});
  const types = [...html.matchAll(/<tr><td>.*?<\/td><td>(.*?)<\/td>/g)].map(([, type]) => type);
  expect(types.length).toBeGreaterThan(300);
  expect(
    types.filter(
      (type) => type === '' || /\b(any|undefined)\b/.test(type!.replaceAll(/&quot;.*?&quot;/g, '')),
    ),
  ).toEqual([]);
});

test('every link within the page leads somewhere', () => {
  const { html } = renderDocumentation(describeApi(), {});
  const anchors = new Set([...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id));
  const targets = [...html.matchAll(/href="#([^"]+)"/g)].map(([, id]) => id);
  expect(targets.filter((id) => !anchors.has(id))).toEqual([]);
});

describeInBrowser('the documentation in a browser', (getBrowser) => {
  test('the page is styled under its own policy, and fits a phone in both colour schemes', async () => {
    const page = await getBrowser().newPage({ viewport: { width: 390, height: 844 } });
    const complaints: string[] = [];
    page.on('console', (message) => complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(error.message));
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      await page.goto(`${url}/docs`);
      const seen = await page.evaluate<{ overflow: number; background: string }>(
        '({ overflow: document.documentElement.scrollWidth - innerWidth, background: getComputedStyle(document.body).backgroundColor })',
      );
      expect(seen).toEqual({
        overflow: 0,
        background: colorScheme === 'light' ? 'rgb(255, 255, 255)' : 'rgb(25, 29, 38)',
      });
      // Chromium asks for an icon by itself, and this server has none.
      expect(complaints.filter((text) => !text.includes('404'))).toEqual([]);
    }
    await page.close();
  });

  const open = async (viewport: { width: number; height: number }) => {
    const page = await getBrowser().newPage({ viewport });
    await page.goto(`${url}/docs`);
    return page;
  };

  test('a search leaves what has all of its words', async () => {
    const page = await open({ width: 1280, height: 800 });
    await page.getByRole('searchbox').fill('drop_reason recipients');
    await page.locator('#listEmailCampaignRecipients').waitFor();
    expect(await page.locator('#sendEmail').isVisible()).toBe(false);
    expect(await page.locator('nav a[href="#createContact"]').isVisible()).toBe(false);
    await page.getByRole('searchbox').fill('');
    await page.locator('#sendEmail').waitFor();
    await page.close();
  });

  test('the menu marks where the reader is', async () => {
    const page = await open({ width: 1280, height: 800 });
    await page.locator('#deleteTag').scrollIntoViewIfNeeded();
    await page.goto(`${url}/docs#deleteTag`);
    await page.locator('nav a[aria-current][href="#deleteTag"]').waitFor();
    await page.close();
  });

  test('the menu is folded on a phone, and folds again when a place is chosen', async () => {
    const page = await open({ width: 390, height: 844 });
    const link = page.locator('nav a[href="#createContact"]');
    expect(await link.isVisible()).toBe(false);
    await page.getByRole('button', { name: 'Contents' }).click();
    await link.click();
    expect(await link.isVisible()).toBe(false);
    expect(new URL(page.url()).hash).toBe('#createContact');
    await page.close();
  });
});
