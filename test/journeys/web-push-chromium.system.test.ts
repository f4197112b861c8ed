/**
 * The worker of the SDK in a real Chromium, which has more of the interfaces than Firefox. It has no push service in tests:
 * what a push brings is handed to the worker, and clicks are made there.
 */
import type { CDPSession, Page, Worker } from 'playwright-core';
import { expect, test } from 'vitest';
import { composeForWeb, type PushContent } from '../../src/channels/push/notification.ts';
import { describeInBrowser } from '../support/browser.ts';
import { startTestServer } from '../support/server.ts';
import { serve, serveEngagements } from '../support/web-push-site.ts';

const content: PushContent = {
  title: 'Your parcel',
  body: 'It comes today',
  imageUrl: null,
  iconUrl: null,
  deepLink: '/parcels/7',
  androidChannelId: null,
  priority: null,
  actionButtons: ['track', 'later', 'never'].map((actionId) => ({
    actionId,
    label: actionId,
    deepLink: null,
  })),
  dataPayload: { parcel: '7' },
};

describeInBrowser('the worker of the SDK in Chromium', (getBrowser) => {
  test('it shows what is pushed, and reports it, a click and a dismissal', async () => {
    const server = await startTestServer();
    const engagements = await serveEngagements();
    const site = await serve(({ url }) =>
      url === '/worker.js'
        ? {
            headers: { 'content-type': 'text/javascript' },
            body: `importScripts('${server.url}/push/sw.js');`,
          }
        : { headers: { 'content-type': 'text/html' }, body: '<!doctype html><title>Shop</title>' },
    );
    const context = await getBrowser().newContext();
    try {
      await context.grantPermissions(['notifications'], { origin: site.origin });
      const page = await context.newPage();
      await page.goto(site.origin);
      await keepState(page, { server: `${engagements.origin}/`, secret: 'pds_secret' });
      const starting = context.waitForEvent('serviceworker');
      const deliver = await startWorker(page, site.origin);
      const worker = await starting;

      await deliver(composeForWeb('one', content).toString());
      await engagements.untilReported('one', 'displayed');
      expect(await readShown(page)).toEqual([
        {
          title: 'Your parcel',
          body: 'It comes today',
          tag: 'one',
          actions: ['track', 'later'],
          data: { parcel: '7', postillion_message: { id: 'one', link: '/parcels/7', links: {} } },
        },
      ]);
      await happen(worker, 'notificationclick', 'later');
      const clicked = await engagements.untilReported('one', 'clicked');
      expect(clicked).toMatchObject([{ action_id: 'later' }]);
      expect(await readShown(page)).toEqual([]);

      await deliver(composeForWeb('two', content).toString());
      await engagements.untilReported('two', 'displayed');
      await happen(worker, 'notificationclose', '');
      await engagements.untilReported('two', 'dismissed');
      expect([...engagements.secrets]).toEqual(['Bearer pds_secret']);
    } finally {
      await context.close();
      await Promise.all([site.stop(), engagements.stop(), server.stop()]);
    }
  });
});

/** As the page of the SDK leaves it to the worker, once the device is registered. */
async function keepState(page: Page, { server, secret }: { server: string; secret: string }): Promise<void> {
  const state = { installationId: 'installation', deviceSecret: secret, serverUrl: server };
  await page.evaluate(`new Promise((resolve, reject) => {
    const opening = indexedDB.open('postillion-push', 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore('kept');
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const transaction = opening.result.transaction('kept', 'readwrite');
      transaction.objectStore('kept').put(${JSON.stringify(state)}, 'state');
      transaction.oncomplete = () => { opening.result.close(); resolve(); };
    };
  })`);
}

/** Registers the worker, and returns what hands it a push. */
async function startWorker(page: Page, origin: string): Promise<(data: string) => Promise<void>> {
  const session: CDPSession = await page.context().newCDPSession(page);
  const registered = new Promise<string>((resolve) => {
    session.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => {
      const [registration] = registrations;
      if (registration !== undefined) resolve(registration.registrationId);
    });
  });
  await session.send('ServiceWorker.enable');
  await page.evaluate(
    "navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready)",
  );
  const registrationId = await registered;
  return async (data) => {
    await session.send('ServiceWorker.deliverPushMessage', { origin, registrationId, data });
  };
}

function readShown(page: Page): Promise<unknown> {
  return page.evaluate(`navigator.serviceWorker.ready.then((registration) => registration.getNotifications()).then((shown) =>
    shown.map(({ title, body, tag, actions, data }) =>
      ({ title, body, tag, data, actions: actions.map(({ action }) => action) })))`);
}

/** To the one notification that is shown. */
async function happen(
  worker: Worker,
  name: 'notificationclick' | 'notificationclose',
  action: string,
): Promise<void> {
  await worker.evaluate(`self.registration.getNotifications().then(([notification]) => {
    self.dispatchEvent(new NotificationEvent('${name}', { notification, action: '${action}' }));
  })`);
}
