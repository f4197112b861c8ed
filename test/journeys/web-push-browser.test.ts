/**
 * The SDK for browsers in a real Firefox, on a site of another origin than Postillion's. What is between is real too: the
 * browser's push protocol, the encryption, notifications that are clicked.
 */
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { composeForWeb, type PushContent } from '../../src/channels/push/notification.ts';
import { encryptForSubscription } from '../../src/channels/push/web-push/encryption.ts';
import { readSubscriptionKeys } from '../../src/channels/push/web-push/subscription-keys.ts';
import { generateVapidKeys } from '../../src/channels/push/web-push/vapid.ts';
import { type Autopush, startAutopush } from '../support/autopush.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type Firefox, findFirefox, launchFirefox } from '../support/firefox.ts';

const executablePath = findFirefox();
if (executablePath === null) {
  console.log('Skipped, because no Firefox was found (FIREFOX_PATH can name one): the SDK in a real browser');
}

const emptyContent: PushContent = {
  title: 'T',
  body: 'B',
  imageUrl: null,
  iconUrl: null,
  deepLink: null,
  androidChannelId: null,
  priority: null,
  actionButtons: [],
  dataPayload: {},
};

type Device = { installation_id: string; endpoint: string; p256dh_key: string; auth_key: string };
type Report = { event_id: string; message_id: string; type: string; action_id?: string };

describe.skipIf(executablePath === null)('the SDK in a real browser', () => {
  const { publicKey } = generateVapidKeys();
  let autopush: Autopush;
  let server: TestServer;
  let engagements: Awaited<ReturnType<typeof serveEngagements>>;
  let site: Awaited<ReturnType<typeof serveSite>>;
  let firefox: Firefox;

  beforeAll(async () => {
    autopush = await startAutopush();
    server = await startTestServer();
    engagements = await serveEngagements();
    site = await serveSite({ sdkOrigin: server.url, reportOrigin: engagements.origin, publicKey });
    firefox = await launchFirefox({
      executablePath: executablePath ?? '',
      pushUrl: autopush.url,
      origins: [site.origin],
    });
    await autopush.greeted;
  });

  afterAll(async () => {
    await firefox.stop();
    await Promise.all([autopush.stop(), server.stop(), engagements.stop(), site.stop()]);
  });

  /** Resolves with what the browser says of it. */
  const post = async (device: Device, id: string, content: Partial<PushContent>): Promise<number> => {
    const acknowledged = autopush.nextAcknowledgement();
    const keys = readSubscriptionKeys({ p256dh: device.p256dh_key, auth: device.auth_key });
    if (typeof keys === 'string') throw new Error(keys);
    const { status } = await fetch(device.endpoint, {
      method: 'POST',
      headers: { 'content-encoding': 'aes128gcm', ttl: '60' },
      body: encryptForSubscription(composeForWeb(id, { ...emptyContent, ...content }), keys),
    });
    expect(status).toBe(201);
    return acknowledged;
  };

  test('it subscribes on a click, shows what is pushed, and reports what becomes of it', async () => {
    await firefox.open(`${site.origin}/`);
    expect(await firefox.run('return started')).toBe('off');
    await firefox.click('#enable');
    expect(await firefox.run('return enabled')).toBe('on');
    const [device] = site.devices as [Device];
    expect(device.endpoint.startsWith(autopush.origin)).toBe(true);

    expect(await post(device, 'one', { title: 'First', body: 'Grüße 📦', deepLink: '/parcels/7' })).toBe(100);
    expect(await firefox.untilShown('First')).toBe('Grüße 📦');
    await firefox.clickNotification('First');
    await engagements.untilReported('one', 'clicked');
    await site.untilAsked('/parcels/7');

    const actionButtons = ['track', 'later'].map((actionId) => ({
      actionId,
      label: actionId,
      deepLink: null,
    }));
    await post(device, 'two', { title: 'Second', actionButtons });
    await firefox.untilShown('Second');
    await firefox.clickNotification('Second', 'later');
    await engagements.untilReported('two', 'clicked');

    // What cannot be reported is reported with what comes next.
    engagements.answerWith(503);
    await post(device, 'three', { title: 'Third' });
    const refused = await engagements.untilReported('three', 'displayed');
    engagements.answerWith(202);
    await firefox.untilShown('Third');
    await firefox.closeNotification('Third');
    const taken = await engagements.untilReported('three', 'dismissed');
    expect(taken.slice(0, 2)).toEqual(refused);

    // A click closes too, and is no dismissal.
    const distinct = new Map(engagements.batches.flat().map((report) => [report.event_id, report]));
    expect(
      [...distinct.values()].map(({ message_id: id, type, action_id: action }) => [id, type, action]),
    ).toEqual([
      ['one', 'delivered', undefined],
      ['one', 'displayed', undefined],
      ['one', 'clicked', undefined],
      ['two', 'delivered', undefined],
      ['two', 'displayed', undefined],
      ['two', 'clicked', 'later'],
      ['three', 'delivered', undefined],
      ['three', 'displayed', undefined],
      ['three', 'dismissed', undefined],
    ]);
  });

  test('it subscribes anew when the push service has forgotten it, and under another key', async () => {
    await firefox.open(`${site.origin}/`);
    expect(await firefox.run('return started')).toBe('on');
    const device = site.devices.at(-1)!;
    autopush.forget();
    const renewed = await site.untilRegistered(({ endpoint }) => endpoint !== device.endpoint);
    expect(renewed.installation_id).toBe(device.installation_id);

    await firefox.open(`${site.origin}/?key=${generateVapidKeys().publicKey}`);
    expect(await firefox.run('return started')).toBe('on');
    const other = site.devices.at(-1)!;
    expect(other.installation_id).toBe(device.installation_id);
    expect([device.endpoint, renewed.endpoint]).not.toContain(other.endpoint);
    expect(await post(other, 'four', { title: 'Fourth', body: 'It comes' })).toBe(100);
    expect(await firefox.untilShown('Fourth')).toBe('It comes');
  });
});

type Served = { origin: string; untilAsked: (path: string) => Promise<string>; stop: () => Promise<void> };

type Answer = { status?: number; headers?: Record<string, string>; body?: string };

async function serve(answer: (path: string, body: string, method: string) => Answer): Promise<Served> {
  const asked = createRecord<string>();
  const server = http.createServer((request, response) => {
    void request.toArray().then((blocks) => {
      const { url = '', method = '' } = request;
      asked.add(url);
      const body = Buffer.concat(blocks as Buffer[]).toString();
      const { status = 200, headers, body: answered } = answer(url, body, method);
      response.writeHead(status, headers).end(answered);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo; // It listens at a port.
  return {
    origin: `http://127.0.0.1:${port}`,
    untilAsked: (path) => asked.until((one) => one === path),
    stop: async () => {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** What has come so far, in its order, and who waits for something. */
function createRecord<Item>() {
  const items: Item[] = [];
  const waiting = new Set<(item: Item) => void>();
  return {
    items,
    add: (item: Item) => {
      items.push(item);
      for (const look of waiting) look(item);
    },
    until: (isWanted: (item: Item) => boolean) =>
      new Promise<Item>((resolve) => {
        const look = (item: Item) => {
          if (!isWanted(item)) return;
          waiting.delete(look);
          resolve(item);
        };
        waiting.add(look);
        items.forEach(look);
      }),
  };
}

/** In the place of the API, what notes the reports. */
async function serveEngagements() {
  const batches = createRecord<Report[]>();
  let status = 202;
  const headers = {
    'access-control-allow-origin': '*',
    'access-control-allow-headers': 'authorization, content-type',
  };
  const served = await serve((_, body, method) => {
    if (method !== 'POST') return { status: 204, headers };
    batches.add((JSON.parse(body) as { events: Report[] }).events);
    return { status, headers };
  });
  const answerWith = (answered: number) => {
    status = answered;
  };
  const untilReported = (id: string, type: string) =>
    batches.until((batch) => batch.some((report) => report.message_id === id && report.type === type));
  return { ...served, batches: batches.items, untilReported, answerWith };
}

/** The site of a customer, whose server registers devices. */
async function serveSite(options: { sdkOrigin: string; reportOrigin: string; publicKey: string }) {
  const { sdkOrigin, reportOrigin, publicKey } = options;
  const devices = createRecord<Device>();
  const html = `<!doctype html><button id="enable">Tell me</button><script type="module">
    import { connectPush } from '${sdkOrigin}/push/sdk.js';
    const push = connectPush({
      publicKey: new URL(location).searchParams.get('key') ?? '${publicKey}',
      worker: '/worker.js',
      url: '${reportOrigin}',
      register: async (device) =>
        (await fetch('/register', { method: 'POST', body: JSON.stringify(device) })).json(),
    });
    document.querySelector('#enable').onclick = () => { window.enabled = push.enable(); };
    window.started = push.start();
  </script>`;
  const served = await serve((url, body) => {
    switch (new URL(url, sdkOrigin).pathname) {
      case '/worker.js':
        return {
          headers: { 'content-type': 'text/javascript' },
          body: `importScripts('${sdkOrigin}/push/sw.js');`,
        };
      case '/register':
        devices.add(JSON.parse(body) as Device);
        return { body: JSON.stringify({ device_secret: 'secret' }) };
      case '/':
        return { headers: { 'content-type': 'text/html' }, body: html };
      default:
        return { headers: { 'content-type': 'text/html' }, body: 'A page without the SDK' };
    }
  });
  return { ...served, devices: devices.items, untilRegistered: devices.until };
}
