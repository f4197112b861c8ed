/**
 * What holds of every page that a person opens: axe-core finds nothing that keeps anybody from reading or using it, it is
 * not wider than the screen, and a visit fills no log. The pages come from the table that the API serves, so that a new
 * one is examined as well, and one with a parameter fails until it is said here what to open.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import axe from 'axe-core';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readApiReference } from '../../src/documentation/api-reference.ts';
import { listDocumentation } from '../../src/documentation/site.ts';
import { createUnsubscribePage } from '../../src/email/tracking/unsubscribe-page.ts';
import { type Log, silentLog } from '../../src/platform/log.ts';
import { type KeptMessage, keepMessage } from '../../src/sandbox/sandbox.ts';
import { describeInBrowser } from '../support/browser.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { eventually, rowsOf, send } from '../support/email-journey.ts';
import { listPagesOf } from '../support/page-table.ts';
import { setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/** A phone of the narrowest kind, and a desktop; each with the colors that the other has not. */
const phone = { width: 360, height: 800, colorScheme: 'light' } as const;
const desktop = { width: 1440, height: 900, colorScheme: 'dark' } as const;
const screens = [phone, desktop];

type Screen = (typeof screens)[number];

/** Mail, as its readers see it: it is shown in a frame of the sandbox or of the gallery, and is nobody's page. */
const mails = ['/sandbox/messages/:id/html', '/gallery/templates/:slug'];

const helloMail = 'Subject: Mail\r\nContent-Type: text/html\r\n\r\n<h1>Hi</h1>';

describeInBrowser('the pages', (getBrowser) => {
  let server: TestServer;
  let page: Page;
  const informed: string[] = [];
  const debugged: string[] = [];

  beforeAll(async () => {
    const note = (lines: string[]) => (line: { route?: string }, said: string) => {
      if (said === 'request') lines.push(line.route ?? '');
    };
    const log = { ...silentLog, info: note(informed), debug: note(debugged) } as Log;
    server = await startTestServer({ worker: true, log });
    await setUpPush(server);
    page = await getBrowser().newPage();
  });

  afterAll(async () => {
    await page.close();
    await server.stop();
  });

  /** The link to unsubscribe of somebody who is in a list. */
  async function addReader(email: string): Promise<string> {
    const list = await server.request<{ id: string }>('POST', '/v1/lists', { name: `News for ${email}` });
    const contact = await server.request<{ id: string }>('POST', '/v1/contacts', {
      email,
      list_ids: [list.body.id],
    });
    const { tokens } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts: [{ id: contact.body.id, email }],
      listIds: [list.body.id],
    });
    return `/u/${tokens[0]!.unsubscribe}`;
  }

  const keep = (channel: KeptMessage['channel'], sender: string, source: string) =>
    keepMessage(server.installation, {
      organizationId: server.organizationId,
      channel,
      messageId: server.installation.newId(),
      ordinal: 0,
      recipient: channel === 'email' ? 'ada@example.com' : '+4915112345678',
      sender,
      outcome: 'delivered',
      source: Buffer.from(source),
    });

  /** What axe-core finds, by all of its rules, with the elements that it finds it at. */
  async function findViolations(): Promise<string[]> {
    await page.evaluate(axe.source);
    // The whole of its results takes longer to hand over than to find.
    return page.evaluate<string[]>(`axe
      .run({ resultTypes: ['violations'] })
      .then(({ violations }) =>
        violations.map(({ id, nodes }) => [id, ...nodes.slice(0, 5).map(({ html }) => html)].join(' ')),
      )`);
  }

  async function examine(what: string, { width, colorScheme }: Screen): Promise<string[]> {
    const overflow = await page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
    const found = [...(await findViolations()), ...(overflow > 0 ? [`is ${overflow} px too wide`] : [])];
    return found.map((violation) => `${what} at ${width} px, ${colorScheme}: ${violation}`);
  }

  async function show(screen: Screen, address: string): Promise<void> {
    await page.setViewportSize(screen);
    await page.emulateMedia({ colorScheme: screen.colorScheme });
    // Another fragment alone would not load it anew.
    await page.goto('about:blank');
    await page.goto(`${server.url}${address}`);
    await page.getByRole('heading', { level: 1 }).first().waitFor();
    await page.waitForLoadState('networkidle');
  }

  /** The address of every page of the table that answers with HTML. */
  async function listAddresses(): Promise<string[]> {
    const slugs = await listSlugs();
    await keep('email', 'b@postillion.test', helloMail);
    const [kept] = await rowsOf<{ id: string }>(
      server,
      'select id from sandbox_messages order by id desc limit 1',
    );
    const values: Readonly<Record<string, readonly string[]>> = {
      '/docs/:page': slugs
        .filter((slug) => slug !== '' && !slug.includes('/'))
        .map((slug) => `/docs/${slug}`),
      '/docs/guides/:guide': slugs
        .filter((slug) => slug.startsWith('guides/'))
        .map((slug) => `/docs/${slug}`),
      '/u/:token': [await addReader('ada@example.com'), '/u/cut-off'],
      '/o/:token': ['/o/cut-off'],
      '/c/:token/:number': ['/c/cut-off/0'],
      '/sandbox/messages/:id': [`/sandbox/messages/${kept!.id}`],
      '/sandbox/messages/:id/source': [`/sandbox/messages/${kept!.id}/source`],
      '/sandbox/messages/:id/replies': [`/sandbox/messages/${kept!.id}/replies`],
      '/sandbox/messages/:id/attachments/:index': [`/sandbox/messages/${kept!.id}/attachments/0`],
      '/gallery/templates/:slug/text': ['/gallery/templates/welcome/text'],
      '/gallery/thumbnails/:slug': ['/gallery/thumbnails/welcome'],
    };
    const paths = (await listPagesOf(server.installation))
      .filter(({ method = 'GET' }) => method === 'GET')
      .map((each) => each.path)
      .filter((each) => !mails.includes(each));
    const addresses = paths.flatMap((each) =>
      each.includes(':') ? (values[each] ?? [`${each} has no value`]) : [each],
    );
    const types = await Promise.all(
      addresses.map(
        async (address) => (await fetch(`${server.url}${address}`)).headers.get('content-type') ?? '',
      ),
    );
    expect(addresses.filter((address) => address.endsWith('has no value'))).toEqual([]);
    return addresses.filter((_, index) => types[index]!.startsWith('text/html'));
  }

  async function listSlugs(): Promise<string[]> {
    const read = async (file: string) =>
      JSON.parse(await readFile(path.resolve(import.meta.dirname, '../..', file), 'utf8')) as never;
    return [
      ...listDocumentation(
        readApiReference(await read('openapi.json'), await read('docs/api-examples.json')),
      ).keys(),
    ];
  }

  test('of the table can all be read by everybody', async () => {
    const addresses = await listAddresses();
    expect(addresses).toEqual(
      expect.arrayContaining([
        '/',
        '/docs',
        '/docs/email',
        '/docs/guides/push',
        '/gallery',
        '/sandbox',
        '/sandbox/push',
        '/sandbox/webhooks',
        '/u/cut-off',
      ]),
    );
    const found: string[] = [];
    // Those of the documentation look alike: on a desktop, one of each kind is enough.
    const isAlike = (address: string) =>
      address.startsWith('/docs/') &&
      !['/docs/email', '/docs/schemas', '/docs/guides/push'].includes(address);
    for (const screen of screens) {
      for (const address of addresses.filter((each) => screen === phone || !isAlike(each))) {
        await show(screen, address);
        found.push(...(await examine(address, screen)));
      }
    }
    expect(found).toEqual([]);
  });

  test('of somebody who unsubscribes, and returns, can be read by everybody', async () => {
    const found: string[] = [];
    const { statusCode, headers, body } = createUnsubscribePage().unavailable();
    if (typeof body !== 'string') throw new Error('the page is not the same for all');
    await page.route('**/u/busy', (route) =>
      route.fulfill({ status: statusCode, headers: { ...headers }, body }),
    );
    for (const screen of screens) {
      await show(screen, await addReader(`reader${screen.width}@example.com`));
      const press = async (button: RegExp, title: string) => {
        await page.getByRole('button', { name: button }).first().click();
        await page.getByRole('heading', { name: title }).waitFor();
        found.push(...(await examine(title, screen)));
      };
      await press(/^Only from/, 'You have left the list');
      await press(/^Unsubscribe$/, 'You are unsubscribed');
      await press(/^Subscribe again$/, 'You are subscribed again');
      await show(screen, '/u/busy');
      await page.getByRole('heading', { name: 'Not possible at the moment' }).waitFor();
      found.push(...(await examine('an unsubscription that is not possible', screen)));
    }
    expect(found).toEqual([]);
  });

  test('of the gallery and of a browser that gets pushes can be read by everybody', async () => {
    const found: string[] = [];
    for (const screen of screens) {
      await show(screen, '/gallery');
      await page.locator('#templates a, #templates button').first().click();
      await page.getByRole('dialog').waitFor();
      found.push(...(await examine('a template of the gallery', screen)));
      await show(screen, '/sandbox/push');
      await page.getByText('This browser is not registered yet').waitFor();
      found.push(...(await examine('/sandbox/push', screen)));
    }
    expect(found).toEqual([]);
  });

  test('of the webhooks that an endpoint would get can be read by everybody', async () => {
    const found: string[] = [];
    const address = `/sandbox/webhooks#${server.organizationId}`;
    await show(phone, address);
    await page.getByRole('button', { name: 'Have everything logged' }).click();
    await page.getByText('A webhook of this page has everything logged').waitFor();
    found.push(...(await examine('a log without events', phone)));
    await send(server);
    const request = page.locator('#requests summary');
    await request.waitFor();
    expect(await page.getByText('Nothing was logged yet').isVisible()).toBe(false);
    for (const screen of screens) {
      await show(screen, address);
      await request.click();
      await page.getByText('POST /hooks HTTP/1.1').waitFor();
      found.push(...(await examine('a webhook', screen)));
    }
    await send(server);
    await request.nth(1).waitFor();
    // The newest is above, and what was opened stays open.
    expect(
      await page
        .locator('#requests details')
        .evaluateAll((all) => all.map((each) => Reflect.get(each, 'open') as boolean)),
    ).toEqual([false, true]);
    await page.getByRole('button', { name: 'Have it logged no longer' }).click();
    await page.getByText('nothing is logged').waitFor();
    expect(found).toEqual([]);
  });

  test.each(screens)(
    'of the sandbox, with a message of each channel, can be read by everybody at $width px, $colorScheme',
    async (screen) => {
      const found: string[] = [];
      expect((await server.request('DELETE', '/sandbox/messages')).status).toBe(200);
      await show(screen, '/sandbox');
      await page.getByText('Nothing was sent yet').waitFor();
      found.push(...(await examine('the empty sandbox', screen)));
      await keep('sms', '+15550100', 'Code 1234, see https://example.com/1');
      await keep(
        'chatapp',
        'order_shipped en_US',
        JSON.stringify({
          header: 'Order',
          body: 'Hello',
          footer: 'Bye',
          buttons: [
            { type: 'quick_reply', text: 'Stop' },
            { type: 'url', text: 'Track', url: 'https://example.com/t' },
          ],
        }),
      );
      await keep(
        'push',
        'android',
        JSON.stringify({
          title: 'On its way',
          body: 'Tomorrow',
          actionButtons: [{ actionId: 'later', label: 'Later', deepLink: null }],
          dataPayload: { order: '1042' },
        }),
      );
      await keep('email', 'b@postillion.test', helloMail);
      await show(screen, '/sandbox');
      for (const [said, tabs] of [
        ['Mail', ['HTML', 'Text', 'Headers', 'Source', 'Attachments']],
        ['On its way', ['Message', 'Source']],
        ['Hello', ['Message']],
        ['Code 1234', ['Message']],
      ] as const) {
        await page.locator('#messages a', { hasText: said }).click();
        for (const tab of tabs) {
          await page.getByRole('tab', { name: tab }).click();
          if (tab === 'Message' && said !== 'On its way') await page.locator('#answers p').first().waitFor();
          found.push(...(await examine(`${said}, ${tab}`, screen)));
        }
        if (screen === phone) await page.getByRole('link', { name: 'Inbox' }).click();
      }
      if (screen === desktop) {
        await page.getByLabel('Channel').selectOption('email');
        await page.getByText('This message is not in the list').waitFor();
        found.push(...(await examine('what does not match', screen)));
      }
      await show(screen, `/sandbox#${server.installation.newId()}`);
      await page.getByText('This message is not here any more').waitFor();
      found.push(...(await examine('what is not there', screen)));
      expect(found).toEqual([]);
    },
  );

  test('are each a line of the log at INFO when somebody opens them, and what they load then is none', async () => {
    await keep('email', 'b@postillion.test', helloMail);
    await page.goto('about:blank');
    informed.length = 0;
    debugged.length = 0;
    const opened = ['/', '/docs', '/gallery', '/sandbox', '/sandbox/push', '/sandbox/webhooks'];
    for (const address of opened) await show(desktop, address);
    await eventually(
      () => debugged,
      (lines) => ['/gallery/thumbnails/:slug', '/sandbox/push/setup'].every((part) => lines.includes(part)),
    );
    // Chromium asks for an icon of the pages that have none.
    expect(informed.filter((route) => !route.includes('favicon'))).toEqual(opened);
    expect(debugged).toEqual(
      expect.arrayContaining(['/gallery/page.js', '/sandbox/page.css', '/push/sdk.js', '/sandbox/messages']),
    );
  });
});
