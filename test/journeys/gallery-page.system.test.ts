/** The gallery's page, used as by a person who looks for a template. */
import path from 'node:path';
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { systemClock } from '../../src/platform/clock.ts';
import { type HttpServer, startHttpServer } from '../../src/platform/http/server.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { createIds } from '../../src/platform/ids.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { silentLog } from '../../src/platform/log.ts';
import { openGallery } from '../../src/templates/gallery.ts';
import { galleryPages } from '../../src/templates/page-routes.ts';
import { describeInBrowser, wipePage } from '../support/browser.ts';
import { eventually } from '../support/email-journey.ts';

const welcomeId = '0198c0de-0000-7000-8000-000000000004';
const hostileName = '<script>document.title="hacked"</script><img src=x onerror=alert(1)>';

describeInBrowser('the gallery page', (getBrowser) => {
  let server: HttpServer;
  let sharedPage: Page;
  /** The one that the tests share, unless a test has opened one of its own. */
  let page: Page;
  const troubles: string[] = [];

  beforeAll(async () => {
    server = await startPageServer();
    sharedPage = await openPage(getBrowser(), troubles);
  });

  afterAll(() => server.stop());

  beforeEach(() => {
    troubles.length = 0;
    page = sharedPage;
  });

  afterEach(async () => {
    if (page === sharedPage) await wipePage(page);
    else await page.context().close();
    expect(troubles).toEqual([]);
  });

  const open = (query = '') => page.goto(`${server.url}/gallery${query}`);
  const count = (text: string) => page.getByRole('status').filter({ hasText: exactly(text) });
  const shownNames = () => page.locator('#templates li:visible h2').allInnerTexts();
  const option = (name: string) => page.getByRole('checkbox', { name });
  const dialog = () => page.getByRole('dialog');
  const frame = () => page.frameLocator('iframe');
  const query = () => new URL(page.url()).search;

  test('shows every template with its picture, and says how many there are', async () => {
    await open();
    await count('4 templates').waitFor();
    expect(await shownNames()).toEqual(['Welcome', 'Winter sale', 'Receipt', hostileName]);
    expect((await page.locator('#templates li').first().innerText()).split(/\n+/)).toEqual([
      'Welcome',
      'A warm hello with a first step.',
      'Welcome',
    ]);
    await page.waitForFunction('[...document.images].every((image) => image.complete)');
    // The fourth has no thumbnail, and shows none.
    expect(await page.evaluate('[...document.images].map((image) => image.naturalWidth)')).toEqual([
      240, 240, 240,
    ]);
  });

  test.each([
    { name: 'Welcome', found: ['Welcome', hostileName], address: '?types=welcome' },
    { name: 'Winter', found: ['Winter sale', hostileName], address: '?seasons=winter' },
    { name: 'Table', found: ['Receipt', hostileName], address: '?features=table' },
    { name: 'Retail', found: ['Winter sale', 'Receipt'], address: '?industries=retail' },
  ])('filters by $address', async ({ name, found, address }) => {
    await open();
    await option(name).check();
    await count('2 of 4 templates').waitFor();
    expect(await shownNames()).toEqual(found);
    expect(query()).toBe(address);
  });

  test('takes any option of one filter, and all filters', async () => {
    await open();
    await option('Welcome').check();
    await option('Promotion').check();
    await count('3 of 4 templates').waitFor();
    await option('Winter').check();
    await count('2 of 4 templates').waitFor();
    expect(await shownNames()).toEqual(['Winter sale', hostileName]);
    expect(query()).toBe('?types=welcome&types=promotion&seasons=winter');
    // Beside each option stands what it alone would leave of the rest.
    expect(await page.locator('label', { hasText: 'Retail' }).innerText()).toMatch(/^Retail\s+1$/);
    expect(await page.locator('label', { hasText: 'Orders & receipts' }).innerText()).toMatch(/\s0$/);

    await page.getByRole('button', { name: 'Remove the filter Welcome' }).click();
    await count('1 of 4 templates').waitFor();
    expect(await shownNames()).toEqual(['Winter sale']);
    expect(await option('Welcome').isChecked()).toBe(false);
    await page.getByRole('button', { name: 'Clear all' }).click();
    await count('4 templates').waitFor();
    expect(query()).toBe('');
  });

  test('goes Back from filter to filter', async () => {
    await open();
    await option('Winter').check();
    await count('2 of 4 templates').waitFor();
    await option('Retail').check();
    await count('1 of 4 templates').waitFor();
    await page.goBack();
    await count('2 of 4 templates').waitFor();
    expect(await option('Retail').isChecked()).toBe(false);
    expect(await option('Winter').isChecked()).toBe(true);
    await page.goForward();
    await count('1 of 4 templates').waitFor();
  });

  test('finds what was typed before the templates were there', async () => {
    let load: () => void = () => undefined;
    const loading = new Promise<void>((resolve) => (load = resolve));
    await page.route('**/gallery/templates.json', async (route) => {
      await loading;
      await route.continue();
    });
    await open();
    await page.getByRole('searchbox', { name: 'Search templates' }).fill('sale winter');
    load();
    await count('1 of 4 templates').waitFor();
    expect(await shownNames()).toEqual(['Winter sale']);
    await page.unrouteAll();
  });

  test('finds by words of the name, the description and the categories', async () => {
    await open();
    const search = page.getByRole('searchbox', { name: 'Search templates' });
    await search.fill(' SALE  winter');
    await count('1 of 4 templates').waitFor();
    expect(await shownNames()).toEqual(['Winter sale']);
    await page.waitForURL('**/gallery?search=SALE++winter');
    await search.fill('bought');
    await count('1 of 4 templates').waitFor();
    await page.locator('#templates li:visible', { hasText: 'Receipt' }).waitFor();
    await search.fill('retail');
    await count('2 of 4 templates').waitFor();
    await option('Table').check();
    await count('1 of 4 templates').waitFor();
    expect(query()).toBe('?search=retail&features=table');
    await page.reload();
    await count('1 of 4 templates').waitFor();
    expect(await search.inputValue()).toBe('retail');
    expect(await option('Table').isChecked()).toBe(true);
  });

  test('says that nothing matches, and how to go on', async () => {
    await open('?search=nothing+of+the+kind&types=welcome&types=unknown&colours=blue');
    await count('0 of 4 templates').waitFor();
    await page.getByRole('heading', { name: 'No template matches' }).waitFor();
    await page.getByRole('button', { name: 'Show all templates' }).click();
    await count('4 templates').waitFor();
    expect(await page.getByRole('heading', { name: 'No template matches' }).isVisible()).toBe(false);
  });

  test('opens a template with all there is to know about it', async () => {
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await open('?types=welcome');
    await page.getByRole('link', { name: 'Welcome', exact: true }).click();
    await frame().getByRole('heading', { name: 'Welcome, Maya' }).waitFor();
    expect(await dialog().getByRole('heading', { name: 'Welcome', exact: true }).isVisible()).toBe(true);
    expect(query()).toBe('?types=welcome&template=welcome');
    expect(await page.title()).toBe('Welcome · Gallery · Postillion');
    expect((await dialog().locator('#facts').innerText()).split('\n')).toEqual([
      ...['Id', welcomeId, 'Copy', 'Subject', 'Welcome to Fern & Way, Maya'],
      ...['Preview text', 'Good to have you, Maya', 'Type', 'Welcome', 'Season', 'Any season'],
      ...['Feature', 'Button', 'Industry', 'Software'],
    ]);
    await dialog().getByRole('row', { name: '{{company_name}} Fern & Way' }).waitFor();
    await dialog().getByText('Plain text').click();
    await dialog().getByText('Good to have you at Fern & Way.').waitFor();

    await dialog().getByRole('button', { name: 'Copy the id' }).click();
    await dialog().getByText('Copied.').waitFor();
    expect(await page.evaluate('navigator.clipboard.readText()')).toBe(welcomeId);
    await dialog().getByRole('button', { name: 'Copy the command' }).click();
    await page.waitForFunction("navigator.clipboard.readText().then((text) => text.startsWith('curl'))");
    expect(await page.evaluate('navigator.clipboard.readText()')).toBe(
      `curl -X POST ${server.url}/v1/templates/gallery/${welcomeId}/copy \\\n  -H 'Authorization: Bearer YOUR_KEY'`,
    );
  });

  test.each(['light', 'dark'] as const)(
    'shows both widths and both schemes in a %s browser',
    async (preferred) => {
      page = await openPage(getBrowser(), troubles, { colorScheme: preferred });
      await open('?template=welcome');
      const pressed = async (name: string) =>
        dialog().getByRole('button', { name, exact: true }).getAttribute('aria-pressed');
      const press = (name: string) => dialog().getByRole('button', { name, exact: true }).click();
      const heading = frame().getByRole('heading', { name: 'Welcome, Maya' });
      const colours = {
        light: { background: 'rgb(255, 255, 255)', text: 'rgb(32, 32, 32)', scheme: 'light' },
        dark: { background: 'rgb(16, 20, 24)', text: 'rgb(240, 240, 240)', scheme: 'dark' },
      };

      await heading.waitFor();
      expect(await lookInFrame(page)).toMatchObject({ ...colours[preferred], headingSize: '32px' });
      expect(await pressed('Desktop')).toBe('true');
      expect(await frameWidth(page)).toBeGreaterThanOrEqual(720);

      for (const [button, scheme] of [
        ['Dark', 'dark'],
        ['Light', 'light'],
      ] as const) {
        await press(button);
        await page.locator(`iframe[src$="scheme=${scheme}"]`).waitFor();
        await heading.waitFor();
        expect(await lookInFrame(page)).toMatchObject(colours[scheme]);
        expect(await pressed(button)).toBe('true');
      }

      await press('Phone');
      expect(await frameWidth(page)).toBe(375);
      expect(await lookInFrame(page, '20px')).toMatchObject({
        ...colours.light,
        headingSize: '20px',
        width: 375,
      });
      expect(query()).toBe('?template=welcome&width=phone&scheme=light');
      await press('Desktop');
      expect(await lookInFrame(page, '32px')).toMatchObject({ headingSize: '32px' });

      // Looking closer adds nothing to the history: one step back leaves the template.
      expect(await page.evaluate('history.length')).toBe(2);
    },
  );

  test('closes by Escape, by its button and by Back, and gives the focus back', async () => {
    await open('?seasons=any');
    const link = page.getByRole('link', { name: 'Receipt' });
    await link.focus();
    const focused = () => page.evaluate('document.activeElement.textContent');
    const focusIsBack = () => page.waitForFunction("document.activeElement.localName === 'a'");

    await page.keyboard.press('Enter');
    await frame().getByRole('heading', { name: 'Your receipt' }).waitFor();
    expect(await focused()).toBe('Receipt');
    expect(await page.evaluate('document.activeElement.id')).toBe('name');
    await page.keyboard.press('Escape');
    await page.waitForURL('**/gallery?seasons=any');
    await dialog().waitFor({ state: 'hidden' });
    await focusIsBack();
    expect(await focused()).toBe('Receipt');

    await page.keyboard.press('Enter');
    await dialog().getByRole('button', { name: 'Close' }).click();
    await page.waitForURL('**/gallery?seasons=any');
    await dialog().waitFor({ state: 'hidden' });
    await focusIsBack();

    await page.keyboard.press('Enter');
    await frame().getByRole('heading', { name: 'Your receipt' }).waitFor();
    await page.goBack();
    await dialog().waitFor({ state: 'hidden' });
    expect(query()).toBe('?seasons=any');
    await page.goForward();
    await frame().getByRole('heading', { name: 'Your receipt' }).waitFor();
  });

  test('keeps the focus in the dialog', async () => {
    await open('?template=receipt');
    await frame().getByRole('heading', { name: 'Your receipt' }).waitFor();
    const outside: unknown[] = [];
    for (let presses = 0; presses < 20; presses += 1) {
      await page.keyboard.press('Tab');
      const place = await page.evaluate(
        "document.activeElement === document.body || document.activeElement.closest('dialog') !== null",
      );
      if (place !== true) outside.push(await page.evaluate('document.activeElement.outerHTML'));
    }
    expect(outside).toEqual([]);
  });

  test('walks through those that match, and closes to the one it came to', async () => {
    await open('?industries=retail');
    await page.getByRole('link', { name: 'Winter sale' }).click();
    const previous = dialog().getByRole('button', { name: 'Previous template' });
    const next = dialog().getByRole('button', { name: 'Next template' });
    await frame().getByRole('heading', { name: '30% off' }).waitFor();
    await dialog().getByText('1 of 2').waitFor();
    expect(await previous.isDisabled()).toBe(true);
    await next.click();
    await frame().getByRole('heading', { name: 'Your receipt' }).waitFor();
    expect(await next.isDisabled()).toBe(true);
    expect(await dialog().getByRole('heading', { name: 'Variables' }).isVisible()).toBe(false);
    expect(query()).toBe('?industries=retail&template=receipt');
    await page.keyboard.press('Escape');
    await page.waitForURL('**/gallery?industries=retail');
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Receipt');
  });

  test('opens what an address says, and closes to the list', async () => {
    await open('?seasons=winter&template=winter-sale&width=phone&scheme=dark');
    const heading = frame().getByRole('heading', { name: '30% off' });
    await heading.waitFor();
    expect(await lookInFrame(page)).toMatchObject({ background: 'rgb(16, 20, 24)', width: 375 });
    await page.keyboard.press('Escape');
    await page.waitForURL('**/gallery?seasons=winter');
    await count('2 of 4 templates').waitFor();

    await open('?template=unknown&seasons=winter');
    await count('2 of 4 templates').waitFor();
    expect(await dialog().isVisible()).toBe(false);
  });

  test('has room on a small phone, also for a desktop', async () => {
    page = await openPage(getBrowser(), troubles, { viewport: { width: 320, height: 640 }, isMobile: true });
    await open();
    await count('4 templates').waitFor();
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(320);
    expect(await option('Winter').isVisible()).toBe(false);
    await page.getByRole('button', { name: 'Filters' }).click();
    await option('Winter').check();
    await count('2 of 4 templates').waitFor();
    await page.getByRole('link', { name: 'Winter sale' }).click();
    const heading = frame().getByRole('heading', { name: '30% off' });
    await heading.waitFor();
    expect(await lookInFrame(page)).toMatchObject({ width: 375, headingSize: '20px' });
    await dialog().getByRole('button', { name: 'Desktop' }).click();
    expect(await lookInFrame(page, '32px')).toMatchObject({ width: 720, headingSize: '32px' });
    expect(await frameWidth(page)).toBeLessThanOrEqual(320);
    expect(await page.evaluate("document.getElementById('dialog-body').scrollWidth")).toBe(320);
  });

  test('shows a hostile template as text, and lets its HTML do nothing', async () => {
    const answered: string[] = [];
    page.on('response', (response) => answered.push(new URL(response.url()).pathname));
    await open('?industries=hostile');
    await count('1 of 4 templates').waitFor();
    await page.getByRole('button', { name: 'Remove the filter <img src=x onerror=alert(1)>' }).waitFor();
    await page.getByRole('link', { name: hostileName }).click();
    await frame().getByRole('heading', { name: 'Hostile' }).waitFor();
    expect(await page.locator('#name').textContent()).toBe(hostileName);
    expect(await page.locator('#facts').innerText()).toContain(`Subject ${hostileName}`);
    await dialog().getByText('Plain text').click();
    await dialog().getByText(`Hostile ${hostileName}`).waitFor();

    await frame().getByRole('button', { name: 'Send' }).click();
    for (const name of ['Leave', 'Replace']) await frame().getByRole('link', { name }).click();
    await frame().getByRole('heading', { name: 'Hostile' }).waitFor();
    expect(await page.locator('[src="x"], #preview script').count()).toBe(0);
    expect(await page.title()).toBe(`${hostileName} · Gallery · Postillion`);
    expect(page.context().pages()).toHaveLength(1);
    expect(answered).not.toContain('/gallery/submitted');
    expect(answered).not.toContain('/gallery/templates/receipt');
    expect(answered).not.toContain('/x');
    expect(troubles.length).toBeGreaterThan(0);
    expect(troubles.splice(0).filter((trouble) => !trouble.includes('sandboxed'))).toEqual([]);
  });

  test('says so when the gallery cannot be had', async () => {
    await page.route('**/gallery/templates.json', (route) => route.abort());
    await open();
    await page.getByText('The gallery could not be loaded.').waitFor();
    expect(troubles.splice(0)).toEqual([expect.stringContaining('ERR_FAILED')]);
  });
});

/** The pages alone, with templates for tests: they need no database. */
function startPageServer(): Promise<HttpServer> {
  const directory = path.resolve(import.meta.dirname, '../support/gallery-fixture');
  return startHttpServer({
    host: '127.0.0.1',
    port: 0,
    trustedProxies: [],
    log: silentLog,
    clock: systemClock,
    newId: createIds(systemClock),
    routes: [],
    pages: galleryPages({
      readGallery: openGallery(directory),
      directory,
      fitPage: (html) => () => Promise.resolve(html),
    }),
    validation: createValidation({}),
    bodyThread: { read: () => Promise.reject(new Error('no thread')) },
    admit: () => Promise.reject(new Error('no routes')),
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    isKeyUsed: () => Promise.resolve(false),
    findUnreadiness: () => Promise.resolve(null),
    limits: { drainMs: 0 },
  });
}

/**
 * `troubles` gets everything that goes wrong in the page, violations of its policy included: it is to stay empty.
 * One template has no thumbnail, which the browser reports every time.
 */
async function openPage(
  browser: Browser,
  troubles: string[],
  options: BrowserContextOptions = {},
): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('console', (message) => {
    const isExpected = message.location().url.endsWith('/gallery/thumbnails/hostile');
    if (message.type() === 'error' && !isExpected) troubles.push(message.text());
  });
  page.on('dialog', (dialog) => {
    troubles.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return page;
}

function exactly(text: string): RegExp {
  return new RegExp(`^${text}$`);
}

/** What the media queries of the template came to. */
type Look = { background: string; text: string; scheme: string; headingSize: string; width: number };

/** Waits for the heading to have that size, where one is given: another process tells the frame of a new width. */
function lookInFrame(page: Page, headingSize?: string): Promise<Look | undefined> {
  return eventually(
    async () => {
      const frame = page.frames().find((candidate) => candidate.url().includes('/gallery/templates/'));
      return frame?.evaluate<Look>(`({
        background: getComputedStyle(document.body).backgroundColor,
        text: getComputedStyle(document.querySelector('p') ?? document.body).color,
        scheme: getComputedStyle(document.documentElement).colorScheme,
        headingSize: getComputedStyle(document.querySelector('h1')).fontSize,
        width: innerWidth,
      })`);
    },
    (look) => headingSize === undefined || look?.headingSize === headingSize,
  );
}

/** As it is drawn. */
async function frameWidth(page: Page): Promise<number> {
  const box = await page.locator('iframe').boundingBox();
  return box?.width ?? 0;
}
