import { expect, test } from 'vitest';
import { composeForWeb, type PushContent } from '../../src/channels/push/notification.ts';
import type { Device, Register } from './device.ts';
import { createMemoryStore } from './memory-store.ts';
import type { ShownOptions } from './message.ts';
import type { Report } from './reports.ts';
import type { State } from './store.ts';
import { startWorker } from './worker.ts';
import { registrationDue, type WorkerScope } from './worker-scope.ts';

const site = 'https://shop.test/';

const messageId = '01934f2a-7c11-7000-8000-0123456789ab';

const content: PushContent = {
  title: 'Your parcel',
  body: 'It comes today',
  imageUrl: null,
  iconUrl: null,
  deepLink: '/parcels/7',
  androidChannelId: null,
  priority: null,
  actionButtons: [
    { actionId: 'track', label: 'Track', deepLink: 'https://carrier.test/7' },
    { actionId: 'later', label: 'Later', deepLink: null },
    { actionId: 'never', label: 'Never', deepLink: null },
  ],
  dataPayload: {},
};

type Sent = { url: string; authorization: string | null; installationId: string; events: Report[] };

type BrowserOptions = Partial<Pick<State, 'deviceSecret' | 'publicKey'>> & {
  /** Null where the browser does not say. */
  maxActions?: number | null;
  /** What the API answers, in turn; null for no answer. The last one is repeated. */
  statuses?: (number | null)[];
  windows?: string[];
  register?: Register;
  refuses?: (options: ShownOptions) => boolean;
};

/** A browser from the side of its worker: what was shown, opened, sent and said. */
function openBrowser({
  maxActions = 2,
  statuses = [202],
  windows = [],
  register,
  refuses = () => false,
  ...state
}: BrowserOptions = {}) {
  const store = createMemoryStore({
    installationId: 'installation',
    deviceSecret: 'secret',
    serverUrl: 'https://push.test/base/',
    publicKey: 'key',
    ...state,
  });
  const listeners = new Map<string, (event: never) => void>();
  const shown: { title: string; options: ShownOptions }[] = [];
  const sent: Sent[] = [];
  const said = {
    shown,
    sent,
    opened: [] as string[],
    focused: [] as string[],
    posted: [] as unknown[],
    synced: [] as string[],
    subscribed: [] as unknown[],
  };
  const scope: WorkerScope = {
    addEventListener: (name, listener) => {
      listeners.set(name, listener);
    },
    registration: {
      scope: site,
      showNotification: async (title, options = {}) => {
        if (refuses(options)) throw new TypeError('refused');
        shown.push({ title, options });
      },
      pushManager: {
        subscribe: async (options) => {
          said.subscribed.push(options);
          return subscriptionAt('https://push.example/renewed');
        },
      },
      sync: {
        register: async (tag) => {
          said.synced.push(tag);
        },
      },
    },
    clients: {
      matchAll: async () =>
        windows.map((url) => ({
          url,
          focus: async () => said.focused.push(url),
          postMessage: (posted: unknown) => said.posted.push(posted),
        })),
      openWindow: async (url) => said.opened.push(url),
    },
    Notification: { permission: 'granted', ...(maxActions !== null && { maxActions }) },
    fetch: async (url, init = {}) => {
      const { installation_id: installationId, events } = JSON.parse(init.body as string);
      const authorization = new Headers(init.headers).get('authorization');
      sent.push({ url: url as string, authorization, installationId, events });
      const status = statuses.length > 1 ? statuses.shift()! : statuses[0]!;
      if (status === null) throw new TypeError('no answer');
      return new Response(null, { status });
    },
    ...(register !== undefined && { postillionRegister: register }),
  };
  startWorker(scope, store);
  /** Resolves when the worker is done with it; rejects as it does. */
  const emit = async (name: string, event: object = {}) => {
    const works: Promise<unknown>[] = [];
    const waitUntil = (work: Promise<unknown>) => works.push(work);
    listeners.get(name)!({ ...event, waitUntil } as never);
    await Promise.all(works);
    return works.length;
  };
  return {
    ...said,
    kept: store.kept,
    emit,
    push: (text: string | null) => emit('push', { data: text === null ? null : { text: () => text } }),
    /** As Postillion writes it. */
    bring: (brought: Partial<PushContent> = {}, id = messageId) => {
      const text = composeForWeb(id, { ...content, ...brought }).toString();
      return emit('push', { data: { text: () => text } });
    },
    click: (action = '') =>
      emit('notificationclick', {
        action,
        notification: { data: shown.at(-1)!.options.data, close: () => 0 },
      }),
    dismiss: () => emit('notificationclose', { notification: { data: shown.at(-1)!.options.data } }),
  };
}

function subscriptionAt(endpoint: string): PushSubscription {
  const keys = { p256dh: 'public', auth: 'auth' };
  return { toJSON: () => ({ endpoint, keys }) } as unknown as PushSubscription; // All that is asked of it.
}

const typesOf = (reports: readonly Report[]) => reports.map(({ type }) => type);

test('a push is shown whole, and told of in one request under the secret of the device', async () => {
  const browser = openBrowser();
  await browser.bring({ iconUrl: '/icon.png', imageUrl: '/parcel.png', dataPayload: { parcel: '7' } });
  expect(browser.shown).toEqual([
    {
      title: 'Your parcel',
      options: {
        body: 'It comes today',
        icon: '/icon.png',
        image: '/parcel.png',
        tag: messageId,
        actions: [
          { action: 'track', title: 'Track' },
          { action: 'later', title: 'Later' },
        ],
        data: {
          parcel: '7',
          postillion_message: {
            id: messageId,
            link: '/parcels/7',
            links: { track: 'https://carrier.test/7' },
          },
        },
      },
    },
  ]);
  const [{ url, authorization, installationId, events }] = browser.sent as [Sent];
  expect({ url, authorization, installationId }).toEqual({
    url: 'https://push.test/base/v1/push/engagements',
    authorization: 'Bearer secret',
    installationId: 'installation',
  });
  expect(events.map(({ message_id: id, type }) => ({ id, type }))).toEqual([
    { id: messageId, type: 'delivered' },
    { id: messageId, type: 'displayed' },
  ]);
  expect(new Set(events.map(({ event_id: id }) => id)).size).toBe(2);
  expect(browser.kept.reports).toEqual([]);
});

test.each([[null], ['hello'], ['null'], ['[]'], ['{"id":7,"title":"x"}'], ['{"id":"x"}']])(
  'a push that brings %s is shown by the name of the site, and not told of',
  async (text) => {
    const browser = openBrowser();
    await browser.push(text);
    expect(browser.shown).toEqual([{ title: 'shop.test', options: {} }]);
    expect(browser.sent).toEqual([]);
  },
);

test('a browser that says of no buttons gets none', async () => {
  const browser = openBrowser({ maxActions: null });
  await browser.bring();
  expect(browser.shown[0]?.options.actions).toEqual([]);
});

test('a browser that refuses a picture is shown the rest', async () => {
  const browser = openBrowser({ refuses: ({ image }) => image !== undefined });
  await browser.bring({ imageUrl: 'https://[' });
  expect(browser.shown[0]?.options.body).toBe('It comes today');
  expect(typesOf(browser.sent[0]!.events)).toEqual(['delivered', 'displayed']);
});

test('what cannot be shown was delivered, and no more', async () => {
  const browser = openBrowser({ refuses: () => true });
  await expect(browser.bring()).rejects.toThrow('refused');
  expect(typesOf(browser.sent[0]!.events)).toEqual(['delivered']);
});

test('a click is told of and opens the link, and the closing that follows is no dismissal', async () => {
  const browser = openBrowser();
  await browser.bring();
  await browser.click();
  await browser.dismiss();
  expect(browser.opened).toEqual(['https://shop.test/parcels/7']);
  const [, { events }] = browser.sent as [Sent, Sent];
  expect(typesOf(events)).toEqual(['clicked']);
  expect(events[0]).not.toHaveProperty('action_id');
  expect(browser.sent).toHaveLength(2);
});

test('a notification that is closed was dismissed', async () => {
  const browser = openBrowser();
  await browser.bring();
  await browser.dismiss();
  expect(typesOf(browser.sent[1]!.events)).toEqual(['dismissed']);
});

test.each([
  ['a button leads to its own link', 'track', content.deepLink, ['https://carrier.test/7']],
  [
    'a button without one leads to that of the message',
    'later',
    content.deepLink,
    ['https://shop.test/parcels/7'],
  ],
  ['a button without any opens nothing', 'later', null, []],
  ['a message without any leads to the site', '', null, [site]],
  ['a link to a script leads to the site', '', 'javascript:alert(1)', [site]],
  ['a link into an app leads to the site', '', 'shop://parcels/7', [site]],
  ['a link to another site without TLS leads to the site', '', 'http://shop.test/', [site]],
  ['a link that is none leads to the site', '', 'https://[', [site]],
])('%s', async (_, action, link, opened) => {
  const browser = openBrowser();
  await browser.bring({ deepLink: link });
  await browser.click(action);
  expect(browser.opened).toEqual(opened);
  expect(browser.sent[1]!.events[0]?.action_id).toBe(action === '' ? undefined : action);
});

test('a click comes to the window that shows the link already', async () => {
  const browser = openBrowser({ windows: [site, 'https://shop.test/parcels/7'] });
  await browser.bring();
  await browser.click();
  expect(browser.focused).toEqual(['https://shop.test/parcels/7']);
  expect(browser.opened).toEqual([]);
});

test('notifications of the site itself are left alone', async () => {
  const browser = openBrowser();
  let closed = 0;
  for (const data of [null, undefined, { parcel: '7' }]) {
    const notification = { data, close: () => (closed += 1) };
    expect(await browser.emit('notificationclick', { action: '', notification })).toBe(0);
    expect(await browser.emit('notificationclose', { notification })).toBe(0);
  }
  expect({ closed, sent: browser.sent, opened: browser.opened }).toEqual({ closed: 0, sent: [], opened: [] });
});

test.each([[null], [500], [503], [408], [429]])(
  'reports that are answered with %s go out again as they were, with the next push or when the browser syncs',
  async (status) => {
    const browser = openBrowser({ statuses: [status, status, 202] });
    await browser.bring();
    expect(browser.synced).toEqual(['postillion-reports']);
    await expect(browser.emit('sync', { tag: 'postillion-reports' })).rejects.toThrow();
    await browser.bring({}, 'another');
    const [first, second, third] = browser.sent.map(({ events }) => events) as [Report[], Report[], Report[]];
    expect(second).toEqual(first);
    expect(third.slice(0, 2)).toEqual(first);
    expect(third).toHaveLength(4);
    expect(browser.kept.reports).toEqual([]);
  },
);

test.each([[202], [400], [401], [404], [422]])(
  'reports that are answered with %d do not go out again',
  async (status) => {
    const browser = openBrowser({ statuses: [status] });
    await browser.bring();
    await browser.bring({}, 'another');
    expect(browser.sent.map(({ events }) => events.length)).toEqual([2, 2]);
    expect(browser.synced).toEqual([]);
  },
);

test('a sync of the site itself sends nothing', async () => {
  const browser = openBrowser({ statuses: [503] });
  await browser.bring();
  expect(await browser.emit('sync', { tag: 'of the site' })).toBe(0);
  expect(browser.sent).toHaveLength(1);
});

test('what happens at the same time is told of once each', async () => {
  const browser = openBrowser();
  await Promise.all([browser.bring(), browser.bring({}, 'another')]);
  const ids = browser.sent.flatMap(({ events }) => events.map(({ event_id: id }) => id));
  expect(ids).toHaveLength(4);
  expect(new Set(ids).size).toBe(4);
});

test('reports wait for the secret of the device, the newest hundred of them', async () => {
  const browser = openBrowser({ deviceSecret: null });
  for (let count = 0; count < 60; count += 1) await browser.bring({}, `message ${count}`);
  expect(browser.sent).toEqual([]);
  expect(browser.kept.reports).toHaveLength(100);
  expect(browser.kept.reports[0]?.message_id).toBe('message 10');
  expect(browser.kept.reports.at(-1)?.message_id).toBe('message 59');
});

test('a subscription that has ended is renewed and registered by the worker, where the site lets it', async () => {
  const registered: Device[] = [];
  const browser = openBrowser({
    windows: [site],
    register: async (device) => {
      registered.push(device);
      return { device_secret: 'another secret' };
    },
  });
  await browser.emit('pushsubscriptionchange', { newSubscription: null });
  expect(browser.subscribed).toEqual([{ userVisibleOnly: true, applicationServerKey: 'key' }]);
  expect(registered).toEqual([
    {
      platform: 'web',
      installation_id: 'installation',
      endpoint: 'https://push.example/renewed',
      p256dh_key: 'public',
      auth_key: 'auth',
      enablement_status: 'AUTHORIZED',
      sdk_version: expect.any(String),
    },
  ]);
  expect(browser.kept.state).toMatchObject({ deviceSecret: 'another secret', device: registered[0] });
  expect(browser.posted).toEqual([]);
});

test('where the worker cannot register, the open pages are told to', async () => {
  const browser = openBrowser({ windows: [site, 'https://shop.test/parcels/7'] });
  await browser.emit('pushsubscriptionchange', {
    newSubscription: subscriptionAt('https://push.example/given'),
  });
  expect(browser.subscribed).toEqual([]);
  expect(browser.posted).toEqual([registrationDue, registrationDue]);
});

test('a subscription that was never ours is not renewed', async () => {
  const browser = openBrowser({ publicKey: null });
  await browser.emit('pushsubscriptionchange', {});
  expect(browser.subscribed).toEqual([]);
});
