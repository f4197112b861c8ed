/**
 * The page on which a person has their own browser sent a push, in a real Chromium. It reaches no push service in tests: what
 * it subscribes to is made up, and what a push brings is handed to its worker. All else is as it is for a person.
 */
import { createECDH, randomBytes } from 'node:crypto';
import type { BrowserContext, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { composeForWeb } from '../../src/channels/push/notification.ts';
import { describeInBrowser } from '../support/browser.ts';
import { setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

describeInBrowser('the page that tries a push out', (getBrowser) => {
  let server: TestServer;
  let context: BrowserContext;
  let page: Page;
  const troubles: string[] = [];

  beforeAll(async () => {
    server = await startTestServer({ worker: true });
    await setUpPush(server);
  });

  afterAll(() => server.stop());

  beforeEach(async () => {
    context = await getBrowser().newContext();
    page = await context.newPage();
    page.on('console', (message) => {
      if (message.type() === 'error') troubles.push(message.text());
    });
    page.on('pageerror', (error) => troubles.push(error.message));
    troubles.length = 0;
  });

  afterEach(async () => {
    await context.close();
    expect(troubles).toEqual([]);
  });

  const open = () => page.goto(`${server.url}/sandbox/push`);

  test('it registers this browser, sends it a push, and shows what became of it', async () => {
    await context.grantPermissions(['notifications'], { origin: server.url });
    await page.addInitScript(subscribeAtNobody());
    await open();
    await page.getByText('Nothing reaches this browser').waitFor();
    await page.getByText('This browser is not registered yet').waitFor();
    expect(await page.getByRole('button', { name: 'Send it' }).isEnabled()).toBe(false);

    const deliver = await watchWorkers(page, server.url);
    await page.getByRole('button', { name: 'Register this browser' }).click();
    await page.getByText('This browser is registered').waitFor();
    const row = page.getByRole('row', { name: 'This one' });
    await row.getByText('ACTIVE').waitFor();

    await page.getByLabel('Title').fill('Grüße & <b>more</b>');
    await page.getByRole('button', { name: 'Send it' }).click();
    await page.getByText('“Grüße & <b>more</b>” stays in the sandbox').waitFor();
    await row.getByText('sent', { exact: true }).waitFor();

    const listed = await server.request<{ data: { id: string }[] }>('GET', '/v1/push');
    const { id } = listed.body.data[0]!;
    await deliver(composeForWeb(id, { ...emptyContent, deepLink: `${server.url}/sandbox/push` }).toString());
    await row.getByText('displayed').waitFor();

    // Registered it stays, and nothing is asked again.
    await page.reload();
    await page.getByText('This browser is registered').waitFor();
    expect(await page.getByRole('button', { name: 'Register this browser' }).isVisible()).toBe(false);
    // Below the headings; it is loaded after the page.
    await row.waitFor();
    expect(await page.getByRole('row').count()).toBe(2);
  });

  test('it says what to do where the person has not allowed notifications', async () => {
    await page.addInitScript(`Object.defineProperty(Notification, 'permission', { get: () => 'denied' })`);
    await open();
    await page.getByText('does not let this site show notifications').waitFor();
    await page.getByText('chrome://settings/content/notifications').waitFor();
    expect(await page.getByRole('button', { name: 'Register this browser' }).isVisible()).toBe(false);
    expect(await page.getByRole('button', { name: 'Send it' }).isEnabled()).toBe(false);
  });

  test('it says what it means that the question was closed without an answer', async () => {
    await page.addInitScript(`Notification.requestPermission = () => Promise.resolve('default')`);
    await open();
    await page.getByRole('button', { name: 'Register this browser' }).click();
    await page.getByText('The question was closed').waitFor();
    expect(await page.getByRole('button', { name: 'Register this browser' }).isVisible()).toBe(true);
  });

  test('it says where to look if the browser does not reach its push service, and registers it once it does', async () => {
    await context.grantPermissions(['notifications'], { origin: server.url });
    await page.addInitScript(`PushManager.prototype.subscribe = () =>
      Promise.reject(new DOMException('Registration failed - push service error', 'AbortError'));`);
    await open();
    await page.getByRole('button', { name: 'Register this browser' }).click();
    await page.getByText('does not reach the push service of its maker').waitFor();
    await page.getByText('chrome://gcm-internals').waitFor();
    expect(await page.getByRole('button', { name: 'Send it' }).isEnabled()).toBe(false);

    await page.evaluate(subscribeAtNobody());
    await page.getByRole('button', { name: 'Register this browser' }).click();
    await page.getByText('This browser is registered').waitFor();
    expect(await page.locator('#steps').isVisible()).toBe(false);
  });

  test('it says where to look if a push waits for long', async () => {
    await context.grantPermissions(['notifications'], { origin: server.url });
    await page.addInitScript(subscribeAtNobody());
    await page.clock.install();
    // As the server answers while nothing takes the push.
    await page.route(/state\?push=/, async (route) => {
      const response = await route.fetch();
      const answer = (await response.json()) as { devices: unknown; push: object };
      await route.fulfill({ response, json: { ...answer, push: { ...answer.push, status: 'queued' } } });
    });
    await open();
    await page.getByRole('button', { name: 'Register this browser' }).click();
    await page.getByText('This browser is registered').waitFor();
    await page.getByRole('button', { name: 'Send it' }).click();
    await page.getByText('waits to be handed over').waitFor();
    expect(await page.getByText('bin/postillion doctor').isVisible()).toBe(false);
    await page.clock.runFor(17_000);
    await page.getByText('bin/postillion doctor').waitFor();
  });

  test('it says so where a browser has no push', async () => {
    await page.addInitScript('delete window.PushManager');
    await open();
    await page.getByText('This browser gets no pushes here').waitFor();
  });

  test('it is reached from the inbox', async () => {
    await page.goto(`${server.url}/sandbox`);
    await page.getByRole('link', { name: 'Push', exact: true }).click();
    await page.getByRole('heading', { name: 'A push to this browser' }).waitFor();
  });
});

const emptyContent = {
  title: 'T',
  body: 'B',
  imageUrl: null,
  iconUrl: null,
  androidChannelId: null,
  priority: null,
  actionButtons: [],
  dataPayload: {},
};

/** A subscription with real keys, at an endpoint that nobody has. It is lost with the page, as the browser's own is not. */
function subscribeAtNobody(): string {
  const subscription = {
    endpoint: 'https://fcm.googleapis.com/fcm/send/nobody',
    keys: {
      p256dh: createECDH('prime256v1').generateKeys('base64url'),
      auth: randomBytes(16).toString('base64url'),
    },
  };
  return `PushManager.prototype.subscribe = () => Promise.resolve({ toJSON: () => (${JSON.stringify(subscription)}) });`;
}

/** Of the worker that the page will start: hands it a push. */
async function watchWorkers(page: Page, origin: string): Promise<(data: string) => Promise<void>> {
  const session = await page.context().newCDPSession(page);
  const registered = new Promise<string>((resolve) => {
    session.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => {
      const [registration] = registrations;
      if (registration !== undefined) resolve(registration.registrationId);
    });
  });
  await session.send('ServiceWorker.enable');
  return async (data) => {
    await session.send('ServiceWorker.deliverPushMessage', {
      origin,
      registrationId: await registered,
      data,
    });
  };
}
