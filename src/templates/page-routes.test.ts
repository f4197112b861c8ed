import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { bytesOf } from '../../test/support/page-bodies.ts';
import { localRequest } from '../../test/support/page-request.ts';
import { openGallery } from './gallery.ts';
import { galleryPages } from './page-routes.ts';

const directory = path.resolve(import.meta.dirname, '../../test/support/gallery-fixture');

const pages = galleryPages({
  readGallery: openGallery(directory),
  directory,
  fitPage: (html) => () => Promise.resolve(html),
});

async function ask(route: string, params: Record<string, string> = {}, query: Record<string, string> = {}) {
  const page = pages.find((candidate) => candidate.path === route);
  if (page === undefined) throw new Error(`no page ${route}`);
  const response = await page.handle({
    ...localRequest,
    ...{ params, query },
    ...{ remoteAddress: '203.0.113.9', site: '203.0.113.0/24', host: 'example.com', isForwarded: true },
    localAddress: '203.0.113.1',
  });
  return { ...response, bytes: bytesOf(response.body), body: String(bytesOf(response.body)) };
}

const slugRoutes = ['/gallery/templates/:slug', '/gallery/templates/:slug/text', '/gallery/thumbnails/:slug'];

describe('the pages of the gallery', () => {
  test('list what one chooses by, newest first, with the samples filled in and without bodies', async () => {
    const { body, headers } = await ask('/gallery/templates.json');
    expect(headers['content-type']).toBe('application/json; charset=utf-8');
    const listing = JSON.parse(String(body)) as {
      templates: { slug: string }[];
      categories: Record<string, unknown>;
    };
    expect(listing.templates.map(({ slug }) => slug)).toEqual([
      'welcome',
      'winter-sale',
      'receipt',
      'hostile',
    ]);
    expect(listing.templates[0]).toEqual({
      id: '0198c0de-0000-7000-8000-000000000004',
      slug: 'welcome',
      name: 'Welcome',
      description: 'A warm hello with a first step.',
      subject: 'Welcome to Fern & Way, Maya',
      preview_text: 'Good to have you, Maya',
      variables: {
        company_name: 'Fern & Way',
        first_name: 'Maya',
        action_url: 'https://example.com/start',
      },
      types: [{ slug: 'welcome', name: 'Welcome' }],
      seasons: [{ slug: 'any', name: 'Any season' }],
      features: [{ slug: 'button', name: 'Button' }],
      industries: [{ slug: 'software', name: 'Software' }],
    });
    expect(listing.categories.seasons).toEqual([
      { slug: 'any', name: 'Any season' },
      { slug: 'winter', name: 'Winter' },
    ]);
  });

  test('show a template with its samples, which are text, under a policy that lets nothing in', async () => {
    const { body, headers } = await ask('/gallery/templates/:slug', { slug: 'welcome' });
    expect(body).toContain('Good to have you at Fern &amp; Way.');
    expect(body).toContain('@media (prefers-color-scheme: dark)');
    expect(headers['content-security-policy']).toBe(
      "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox",
    );
    const hostile = await ask('/gallery/templates/:slug', { slug: 'hostile' });
    expect(hostile.body).toContain('<p>&lt;script&gt;document.title=&quot;hacked&quot;&lt;/script&gt;');
  });

  test('fix the colour scheme of a template as one asks', async () => {
    const dark = await ask('/gallery/templates/:slug', { slug: 'welcome' }, { scheme: 'dark' });
    expect(dark.body).toContain('content="dark"');
    expect(dark.body).toContain('color-scheme: dark;');
    expect(dark.body).toContain('@media (min-width: 0)');
    await expect(
      ask('/gallery/templates/:slug', { slug: 'welcome' }, { scheme: 'sepia' }),
    ).rejects.toMatchObject({
      message: 'scheme must be one of light, dark',
      definition: { statusCode: 422 },
    });
  });

  test('show the plain text with its samples, which are not escaped', async () => {
    const { body, headers } = await ask('/gallery/templates/:slug/text', { slug: 'welcome' });
    expect(headers['content-type']).toBe('text/plain; charset=utf-8');
    expect(body).toBe('Welcome, Maya\n\nGood to have you at Fern & Way.\nhttps://example.com/start\n');
  });

  test('give thumbnails of either kind, which may be kept and shown elsewhere', async () => {
    const png = await ask('/gallery/thumbnails/:slug', { slug: 'receipt' });
    expect(png.headers).toMatchObject({
      'content-type': 'image/png',
      'cache-control': 'public, max-age=3600',
      'cross-origin-resource-policy': 'cross-origin',
    });
    expect(png.bytes.subarray(1, 4).toString()).toBe('PNG');
    const webp = await ask('/gallery/thumbnails/:slug', { slug: 'winter-sale' });
    expect(webp.headers['content-type']).toBe('image/webp');
    expect(webp.bytes.subarray(8, 12).toString()).toBe('WEBP');
    await expect(ask('/gallery/thumbnails/:slug', { slug: 'hostile' })).rejects.toMatchObject({
      definition: { statusCode: 404 },
    });
  });

  test.each(slugRoutes)('%s knows the names of templates, and never follows a path', async (route) => {
    for (const slug of [
      'missing',
      '',
      '.',
      '..',
      '../gallery-fixture/welcome',
      './welcome',
      'welcome/',
      'WELCOME',
      'welcome\0',
      'categories.json',
      '__proto__',
    ]) {
      await expect(ask(route, { slug }), slug).rejects.toMatchObject({ definition: { statusCode: 404 } });
    }
  });

  test('are never taken for anything else, and kept from other sites', async () => {
    for (const { path: route } of pages) {
      const { headers } = await ask(route, { slug: 'welcome' });
      expect(headers, route).toMatchObject({
        'x-content-type-options': 'nosniff',
        'referrer-policy': 'no-referrer',
      });
      expect(headers['content-security-policy'], route).toContain("default-src 'none'");
      expect(headers['content-security-policy'], route).toMatch(
        route === '/gallery/templates/:slug' ? /frame-ancestors 'self'/ : /frame-ancestors 'none'/,
      );
    }
  });
});
