/**
 * The SDK for browsers in a real Firefox, on a site of another origin than Postillion's, whose server registers the
 * devices. The rest is real too: the browser's push protocol, the encryption, notifications that are clicked.
 */
import { once } from 'node:events';
import type http from 'node:http';
import https from 'node:https';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { composeForWeb, type PushContent } from '../../src/channels/push/notification.ts';
import { encryptForSubscription } from '../../src/channels/push/web-push/encryption.ts';
import { readSubscriptionKeys } from '../../src/channels/push/web-push/subscription-keys.ts';
import { makeVapidPair, setCredentials } from '../../src/devices/devices.ts';
import { type Autopush, startAutopush } from '../support/autopush.ts';
import { certificateForTests } from '../support/certificate-for-tests.ts';
import { aPushContact, devicesOf, register } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { createRecord, type Engagements, serve, serveEngagements } from '../support/web-push-site.ts';
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

describe.skipIf(executablePath === null)('the SDK in a real browser', () => {
  const pair = makeVapidPair();
  let contactId: string;
  let autopush: Autopush;
  let server: TestServer;
  let engagements: Engagements;
  let site: Awaited<ReturnType<typeof serveSite>>;
  let firefox: Firefox;

  beforeAll(async () => {
    autopush = await startAutopush();
    server = await startTestServer({ webPushHosts: [autopush.endpointHost] });
    await setCredentials(server.installation, server.organizationId, pair, { replacesPair: false });
    contactId = await aPushContact(server);
    engagements = await serveEngagements();
    site = await serveSite({
      server,
      contactId,
      reportOrigin: engagements.origin,
      publicKey: pair.publicKey,
    });
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

  /** Resolves with the browser's acknowledgement. */
  const post = async (device: Device, id: string, content: Partial<PushContent>): Promise<number> => {
    const acknowledged = autopush.nextAcknowledgement();
    const keys = readSubscriptionKeys({ p256dh: device.p256dh_key, auth: device.auth_key });
    if (typeof keys === 'string') throw new Error(keys);
    const request = https.request(device.endpoint, {
      method: 'POST',
      headers: { 'content-encoding': 'aes128gcm', ttl: '60' },
      ca: certificateForTests,
    });
    request.end(encryptForSubscription(composeForWeb(id, { ...emptyContent, ...content }), keys));
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    expect(response.statusCode).toBe(201);
    return acknowledged;
  };

  test('it subscribes on a click, shows what is pushed, and reports what becomes of it', async () => {
    await firefox.open(`${site.origin}/`);
    expect(await firefox.run('return started')).toBe('off');
    await firefox.click('#enable');
    expect(await firefox.run('return enabled')).toBe('on');
    const [device] = site.devices as [Device];
    expect(new URL(device.endpoint).host).toBe(autopush.endpointHost);
    const [registered] = await devicesOf(server, contactId);
    expect(registered).toMatchObject({ status: 'ACTIVE', enablement_status: 'AUTHORIZED' });

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

    // A report that fails is sent again with the next one.
    engagements.answerWith(503);
    await post(device, 'three', { title: 'Third' });
    const refused = await engagements.untilReported('three', 'displayed');
    engagements.answerWith(202);
    await firefox.untilShown('Third');
    await firefox.closeNotification('Third');
    const taken = await engagements.untilReported('three', 'dismissed');
    expect(taken.slice(0, 2)).toEqual(refused);

    expect([...engagements.secrets]).toEqual(site.secrets.map((secret) => `Bearer ${secret}`));

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

    const otherPair = makeVapidPair();
    await setCredentials(server.installation, server.organizationId, otherPair, { replacesPair: true });
    expect(await devicesOf(server, contactId)).toMatchObject([{ status: 'EXPIRED' }]);
    await firefox.open(`${site.origin}/?key=${otherPair.publicKey}`);
    expect(await firefox.run('return started')).toBe('on');
    expect(await devicesOf(server, contactId)).toMatchObject([{ status: 'ACTIVE' }]);
    const other = site.devices.at(-1)!;
    expect(other.installation_id).toBe(device.installation_id);
    expect([device.endpoint, renewed.endpoint]).not.toContain(other.endpoint);
    expect(await post(other, 'four', { title: 'Fourth', body: 'It comes' })).toBe(100);
    expect(await firefox.untilShown('Fourth')).toBe('It comes');
  });
});

type SiteOptions = { server: TestServer; contactId: string; reportOrigin: string; publicKey: string };

/** The site of a customer, whose server registers devices for the contact that has signed in. */
async function serveSite({ server, contactId, reportOrigin, publicKey }: SiteOptions) {
  const devices = createRecord<Device>();
  const secrets: string[] = [];
  const html = `<!doctype html><button id="enable">Tell me</button><script type="module">
    import { connectPush } from '${server.url}/push/sdk.js';
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
  const served = await serve(async ({ url, body }) => {
    switch (new URL(url, server.url).pathname) {
      case '/':
        return { headers: { 'content-type': 'text/html' }, body: html };
      case '/worker.js':
        return {
          headers: { 'content-type': 'text/javascript' },
          body: `importScripts('${server.url}/push/sw.js');`,
        };
      case '/register': {
        const device = JSON.parse(body) as Device;
        const registered = await register(server, { ...device, contact_id: contactId });
        if (registered.device_secret !== undefined) secrets.push(registered.device_secret);
        devices.add(device);
        return { body: JSON.stringify(registered) };
      }
      default:
        return { headers: { 'content-type': 'text/html' }, body: 'A page without the SDK' };
    }
  });
  return { ...served, devices: devices.items, untilRegistered: devices.until, secrets };
}
