import { readdir } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { BrowserContextOptions, Page } from 'playwright-core';
import { Type } from 'typebox';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { chooseForm, createConstantContent } from '../platform/http/constant-content.ts';
import { type ApiInfo, describeRoutes, type OpenApiDocument } from '../platform/http/openapi.ts';
import { defineRoute, json, type PageResponse } from '../platform/http/route.ts';
import { describeApi, readExamples } from '../roles/api-description.ts';
import { readApiReference, slugOf } from './api-reference.ts';
import { documentationPages } from './documentation-pages.ts';
import { guideGroups } from './guides.ts';
import { renderPage } from './page.ts';
import { listDocumentation } from './site.ts';
import { bytesOf } from '../../test/support/page-bodies.ts';
import { localRequest } from '../../test/support/page-request.ts';
import { describeInBrowser } from '../../test/support/browser.ts';

const pages = documentationPages(() => Promise.resolve(true));
let server: Server;
let url: string;

beforeAll(async () => {
  server = createServer((incoming, response) => {
    respond(incoming.url ?? '').then(
      ({ statusCode, headers, body }) => response.writeHead(statusCode, headers).end(bytesOf(body)),
      () => response.writeHead(404).end(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

/** By the paths of the pages, of which the first that matches is taken. */
async function respond(asked: string): Promise<PageResponse> {
  for (const page of pages) {
    const names = [...page.path.matchAll(/:(\w+)/g)].map(([, name]) => name!);
    const match = new RegExp(`^${page.path.replaceAll(/:\w+/g, '([^/]+)')}$`).exec(asked);
    if (match === null) continue;
    const params = Object.fromEntries(names.map((name, index) => [name, match[index + 1]!]));
    return page.handle({ ...localRequest, params });
  }
  throw new Error(`there is no page ${asked}`);
}

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test('/openapi.json is the description that was generated and committed', async () => {
  const response = await fetch(`${url}/openapi.json`);
  expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8');
  expect(await response.json()).toMatchObject({ openapi: '3.1.1', info: { title: 'Postillion' } });
});

test('a page may run its own scripts alone, be framed by nobody, and load nothing but what it searches', async () => {
  for (const path of ['/docs', '/docs/email', '/docs/guides/push']) {
    const { headers } = await fetch(`${url}${path}`);
    expect(headers.get('content-security-policy')).toMatch(
      /^default-src 'none'; style-src 'sha256-[\w+/]+=*'; script-src 'sha256-[\w+/]+=*' 'sha256-[\w+/]+=*'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$/,
    );
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    // Compressed once, and not sent again to whoever has it.
    expect((await respond(path)).body).toMatchObject({ kind: 'constant' });
  }
});

test.each([
  '/docs/nothing',
  '/docs/Email',
  '/docs/..%2Fpackage',
  '/docs/guides/mutants',
  '/docs/constructor',
])('%s is no page', async (path) => {
  expect((await fetch(`${url}${path}`)).status).toBe(404);
});

const document = describeApi();
const examples = readExamples();
const reference = readApiReference(document, examples);

/** All pages of a description, by their slugs. */
async function renderAll(
  described: OpenApiDocument,
  recorded: ApiInfo['examples'],
): Promise<Map<string, string>> {
  const read = readApiReference(described, recorded);
  const rendered = new Map<string, string>();
  for (const [slug, make] of listDocumentation(read)) rendered.set(slug, renderPage(await make(), read));
  return rendered;
}

test('every operation has a place on the page of its resource, with its path and its scope, and in the menu', async () => {
  const rendered = await renderAll(document, examples);
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const { operationId, security, tags } of Object.values(methods)) {
      const html = rendered.get(slugOf(tags[0]!))!;
      expect(html).toContain(`<article id="${operationId}">`);
      expect(html).toContain(`<li><a href="#${operationId}">`);
      const [first] = security;
      expect(html).toContain(
        'deviceSecret' in first! ? '<code>device_secret</code>' : `<code>${first!.apiKey[0]!}</code>`,
      );
      expect(html).toContain(`<code>${path}</code>`);
      const article = html.slice(html.indexOf(`<article id="${operationId}">`)).split('</article>')[0]!;
      expect([...article.matchAll(/data-in="(\w+)"/g)].map(([, name]) => name)).toEqual([
        'curl',
        'typescript',
        'python',
      ]);
    }
  }
});

test('every page leads to every resource and to every guide', async () => {
  const guides = guideGroups.flatMap((group) => group.guides);
  for (const [slug, html] of await renderAll(document, examples)) {
    const menu = html.split('</nav>')[0]!;
    const root = '../'.repeat(slug.split('/').length - (slug === '' ? 1 : 0));
    for (const resource of reference.resources) expect(menu).toContain(`href="${root}docs/${resource.slug}"`);
    for (const guide of guides) expect(menu).toContain(`href="${root}docs/guides/${guide.slug}"`);
  }
});

test('no two entries of the menu have the same name', () => {
  const names = [...reference.resources.map(({ name }) => name), 'Start', 'Sandbox', 'Gallery', 'Overview'];
  names.push(...guideGroups.flatMap(({ title, guides }) => [title, ...guides.map((guide) => guide.title)]));
  expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
});

const forContributors = new Set(
  ['adding-a-channel', 'adding-a-provider', 'internals', 'mutants'].map((name) => `docs/${name}.md`),
);

test('every guide of the project has a page, but those for people who work on it; and every resource a guide', async () => {
  const files = (await readdir('docs')).filter((name) => name.endsWith('.md')).map((name) => `docs/${name}`);
  const guides = guideGroups.flatMap((group) => group.guides);
  expect(guides.map(({ file }) => file).sort()).toEqual(
    [...files.filter((file) => !forContributors.has(file)), 'README.md'].sort(),
  );
  const slugs = reference.resources.map(({ slug }) => slug);
  expect(new Set(guides.flatMap(({ about }) => about))).toEqual(new Set(slugs));
});

test('no page takes the address of another', () => {
  const slugs = reference.resources.map(({ slug }) => slug);
  expect(new Set([...slugs, 'guides', 'errors', 'schemas', 'search.json']).size).toBe(slugs.length + 4);
});

test('every link within the documentation leads to a place that there is, and what it names is described once', async () => {
  const rendered = await renderAll(document, examples);
  const anchorsOf = (html: string) => [...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id!);
  const dead: string[] = [];
  for (const [slug, html] of rendered) {
    expect([slug, new Set(anchorsOf(html)).size]).toEqual([slug, anchorsOf(html).length]);
    for (const [, href] of html.matchAll(/href="([^"]+)"/g)) {
      const { origin, pathname, hash } = new URL(
        href!.replaceAll('&amp;', '&'),
        `http://x/docs${slug && `/${slug}`}`,
      );
      if (origin !== 'http://x' || !/^\/docs(\/|$)/.test(pathname)) continue;
      const target = rendered.get(pathname.slice('/docs/'.length));
      const isThere =
        target !== undefined &&
        (hash === '' || anchorsOf(target).includes(decodeURIComponent(hash.slice(1))));
      if (!isThere) dead.push(`${slug}: ${href!}`);
    }
  }
  expect(dead).toEqual([]);
  const described = [...rendered.values()].flatMap(anchorsOf).filter((id) => id.startsWith('schema-'));
  expect(described.sort()).toEqual(
    Object.keys(document.components.schemas)
      .map((name) => `schema-${name}`)
      .sort(),
  );
});

const info = {
  title: 'Teas',
  version: '1',
  description: '',
  tags: [],
  examples: {},
  schemas: {},
  webhooks: [],
};

test('a field inside of a list or of a nullable object is shown by its path, and limits in words', async () => {
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
  const tags = [{ name: 'Teas', description: 'Hot' }];
  const html = (await renderAll(describeRoutes([route], { ...info, tags }), {})).get('teas')!;
  expect(html).toContain(
    '<tr><td><code>pots[].size</code> <span class="required">required</span></td><td>integer</td><td>At least 1, at most 9.</td></tr>',
  );
  expect(html).toContain('<td>list of object</td><td>At most 3 items.</td>');
  expect(html).toContain('<code>milk.fat</code>');
  expect(html).toContain('<td>object or null</td>');
});

test('what a description or an example holds is text on the page, and nothing else', async () => {
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
  const recorded = {
    createX: [
      { title: evil, path: '/v1/x', body: { text: `it's ${evil}` }, status: 200, answer: { [evil]: evil } },
    ],
  };
  const rendered = await renderAll(
    describeRoutes([route], {
      title: evil,
      version: evil,
      description: evil,
      tags: [{ name: evil, description: evil }],
      examples: recorded,
      schemas: {},
      webhooks: [],
    }),
    recorded,
  );
  expect(rendered.get(slugOf(evil))).toContain('createX');
  for (const html of rendered.values()) expect(html).not.toContain('<img');
});

test('of the errors with a status, an operation shows those that it names, with the answers that were recorded', async () => {
  const rendered = await renderAll(document, examples);
  const meanings = Object.values(document.components.responses).flatMap(({ description }) =>
    [...description.matchAll(/^`(\w+)`: /gm)].map(([, name]) => name!),
  );
  const shown = (html: string) => [...html.matchAll(/<p><code>(\w+)<\/code>: /g)].map(([, name]) => name!);
  expect(shown(rendered.get('errors')!)).toEqual(meanings);
  for (const { slug, operations } of reference.resources) {
    for (const { operationId, 'x-errors': names = [], examples: recorded } of operations) {
      const article = rendered.get(slug)!.split(`<article id="${operationId}">`)[1]!.split('</article>')[0]!;
      const answers = article.split('<h3>Answers</h3>')[1]!;
      expect([operationId, shown(answers).sort()]).toEqual([operationId, [...names].sort()]);
      expect(answers).toContain('<a href="../docs/errors#any_operation">');
      expect([operationId, answers.split('<details>').length - 1]).toEqual([operationId, recorded.length]);
    }
  }
});

test('no value of the pages is of any type', async () => {
  const html = [...(await renderAll(document, examples))]
    .flatMap(([slug, page]) => (slug.startsWith('guides/') ? [] : [page]))
    .join('');
  const types = [...html.matchAll(/<tr><td>.*?<\/td><td>(.*?)<\/td>/g)].map(([, type]) => type);
  expect(types.length).toBeGreaterThan(300);
  expect(
    types.filter(
      (type) => type === '' || /\b(any|undefined)\b/.test(type!.replaceAll(/&quot;.*?&quot;/g, '')),
    ),
  ).toEqual([]);
});

test('a page is so short that a phone has it in a blink: 25 kB at most, where one with all had 47', async () => {
  for (const [slug, html] of await renderAll(document, examples)) {
    const { bytes } = await chooseForm(createConstantContent(html), 'br');
    expect([slug, bytes.length < 25_000]).toEqual([slug, true]);
  }
});

describeInBrowser('the documentation in a browser', (getBrowser) => {
  let page: Page;
  const complaints: string[] = [];

  afterEach(async () => {
    await page.context().close();
    // Chromium asks for an icon by itself, and this server has none.
    expect(complaints.filter((text) => !text.includes('404'))).toEqual([]);
  });

  const open = async (path: string, options: BrowserContextOptions = {}) => {
    const context = await getBrowser().newContext({ viewport: { width: 1280, height: 800 }, ...options });
    page = await context.newPage();
    complaints.length = 0;
    page.on('console', (message) => complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(error.message));
    await page.goto(`${url}${path}`);
  };
  const phone = { viewport: { width: 390, height: 844 } };

  test.each(['light', 'dark'] as const)(
    'the pages are styled under their own policy, and fit a phone, %s',
    async (colorScheme) => {
      await open('/docs', { ...phone, colorScheme });
      for (const path of ['/docs', '/docs/push', '/docs/guides/operating']) {
        await page.goto(`${url}${path}`);
        const seen = await page.evaluate<{ overflow: number; background: string }>(
          '({ overflow: document.documentElement.scrollWidth - innerWidth, background: getComputedStyle(document.body).backgroundColor })',
        );
        expect([path, seen]).toEqual([
          path,
          {
            overflow: 0,
            background: colorScheme === 'light' ? 'rgb(255, 255, 255)' : 'rgb(25, 29, 38)',
          },
        ]);
      }
    },
  );

  test('a search finds on all pages what has all of its words, and leads there', async () => {
    await open('/docs/guides/push');
    await page.getByRole('searchbox').fill('drop_reason recipients');
    const results = page.locator('#results a');
    await results.first().waitFor();
    expect(await page.locator('#pages').isVisible()).toBe(false);
    expect(await results.allInnerTexts()).not.toContain('Send a transactional email');
    await page.getByRole('searchbox').fill('/v1/tags/{id} delete');
    await results.filter({ hasText: 'Delete a tag' }).first().click();
    await page.waitForURL('**/docs/tags#deleteTag');
    await page.getByRole('heading', { name: 'Delete a tag' }).waitFor();
    await page.getByRole('searchbox').fill('xyzzyx');
    await page.getByText('0 found').waitFor();
    await page.getByRole('searchbox').fill('');
    await page.locator('#pages').waitFor();
  });

  test('the menu marks where the reader is', async () => {
    await open('/docs/tags#deleteTag');
    await page.locator('nav a[aria-current="true"][href="#deleteTag"]').waitFor();
    expect(await page.locator('nav a[aria-current="page"]').innerText()).toBe('Tags');
  });

  test('the menu is folded on a phone, and folds again when a place is chosen', async () => {
    await open('/docs/contacts', phone);
    const link = page.locator('nav a[href="#createContact"]');
    expect(await link.isVisible()).toBe(false);
    await page.getByRole('button', { name: 'Contents' }).click();
    await link.click();
    expect(await link.isVisible()).toBe(false);
    expect(new URL(page.url()).hash).toBe('#createContact');
  });

  test('a language that was chosen once is that of all examples and pages from then on, without a cookie', async () => {
    await open('/docs/email');
    const example = (name: string) => page.locator(`#listEmails [data-in="${name}"] pre`);
    expect(await example('curl').isVisible()).toBe(true);
    expect(await example('python').isVisible()).toBe(false);
    await page.locator('#sendEmail').getByRole('button', { name: 'Python' }).click();
    expect(await example('python').isVisible()).toBe(true);
    expect(await example('curl').isVisible()).toBe(false);
    await page.goto(`${url}/docs/contacts`);
    await page.locator('#createContact [data-in="python"] pre').waitFor();
    expect(
      await page
        .locator('#createContact')
        .getByRole('button', { name: 'Python' })
        .getAttribute('aria-pressed'),
    ).toBe('true');
    expect(await page.context().cookies()).toEqual([]);
  });

  test('where no script runs, every language is shown, and the whole menu', async () => {
    await open('/docs/email', { javaScriptEnabled: false });
    for (const name of ['curl', 'typescript', 'python'])
      expect(await page.locator(`#sendEmail [data-in="${name}"] pre`).isVisible()).toBe(true);
    expect(await page.locator('.languages').first().isVisible()).toBe(false);
    expect(await page.getByRole('searchbox').isVisible()).toBe(false);
    await page.getByRole('link', { name: 'Push devices' }).click();
    await page.getByRole('heading', { level: 1, name: 'Push devices' }).waitFor();
  });
});
