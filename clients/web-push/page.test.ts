import { expect, test, vi } from 'vitest';
import type { Device } from './device.ts';
import { createMemoryStore } from './memory-store.ts';
import { createPush, type PageBrowser, type PushOptions } from './page.ts';
import { makeReport } from './reports.ts';
import type { State } from './store.ts';
import { registrationDue } from './worker-scope.ts';

const publicKey = 'BDd3_hVL9fZi9Ybo2UUzA284WG5FZR30_95YeZJsiApwXKpNcF1rRPF3foIiBHXRdJI2Qhumhf6_LFTeZaNndIo';
const otherKey = 'BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8';

type BrowserOptions = {
  permission?: NotificationPermission;
  /** What the person answers. */
  answer?: NotificationPermission;
  /** The key of the subscription that there is. */
  held?: string;
  /** How often the browser loses a wish to subscribe. */
  losses?: number;
  workerState?: 'active' | 'activating' | 'redundant';
  state?: Partial<State>;
  register?: PushOptions['register'];
  options?: Partial<PushOptions>;
};

/** A browser from the side of the page, what was done in it, and the devices that were registered. */
function openBrowser({
  permission = 'default',
  answer = 'granted',
  held,
  losses = 0,
  workerState = 'active',
  state = {},
  register = async () => ({ device_secret: 'secret' }),
  options = {},
}: BrowserOptions = {}) {
  const store = createMemoryStore(state);
  const done: string[] = [];
  const devices: Device[] = [];
  const listeners: ((event: { data: unknown }) => void)[] = [];
  const asked = { permission };
  let subscription = held === undefined ? null : createSubscription(held);

  function createSubscription(key: string): PushSubscription {
    const endpoint = `https://push.example/${done.length}`;
    return {
      options: { applicationServerKey: new Uint8Array(Buffer.from(key, 'base64url')).buffer },
      toJSON: () => ({ endpoint, keys: { p256dh: 'public', auth: 'auth' } }),
      unsubscribe: async () => {
        done.push('unsubscribed');
        subscription = null;
        return true;
      },
    } as unknown as PushSubscription; // All that is asked of it.
  }

  const worker = Object.assign(new EventTarget(), { state: 'installing' });
  const registration = {
    active: workerState === 'active' ? worker : null,
    installing: workerState === 'active' ? null : worker,
    waiting: null,
    pushManager: {
      getSubscription: async () => subscription,
      subscribe: ({ applicationServerKey: key }: { applicationServerKey: string }) => {
        if (subscription !== null) throw new DOMException('another key', 'InvalidStateError');
        done.push(`subscribed ${key}`);
        losses -= 1;
        if (losses >= 0) return new Promise(() => undefined);
        subscription = createSubscription(key);
        return Promise.resolve(subscription);
      },
    },
  };
  const browser: PageBrowser = {
    serviceWorker: {
      register: async (url, where) => {
        done.push(`worker ${url as string} ${where?.scope ?? '-'}`);
        if (workerState !== 'active') {
          setImmediate(() => {
            worker.state = workerState === 'activating' ? 'activated' : 'redundant';
            worker.dispatchEvent(new Event('statechange'));
          });
        }
        return registration as unknown as ServiceWorkerRegistration; // All that is asked of it.
      },
      addEventListener: (_: string, listener: unknown) => {
        listeners.push(listener as (event: { data: unknown }) => void); // Of messages.
      },
    },
    permission: () => asked.permission,
    requestPermission: async () => {
      done.push('asked');
      asked.permission = answer;
      return answer;
    },
    fetch: async (url) => {
      done.push(`reported ${url as string}`);
      return new Response(null, { status: 202 });
    },
    // What does not answer by then never does.
    delay: async (ms) => {
      await new Promise((resolve) => setImmediate(resolve));
      if (losses >= 0) done.push(`waited ${ms}`);
    },
  };
  const push = createPush(browser, store, {
    publicKey,
    worker: '/worker.js',
    url: 'https://push.test/base',
    register: async (device) => {
      devices.push(device);
      return register(device);
    },
    ...options,
  });
  return {
    ...push,
    asked,
    devices,
    done,
    kept: store.kept,
    store,
    say: (data: unknown) => {
      for (const listener of listeners) listener({ data });
    },
  };
}

test('a click asks, subscribes under the key of the organization and has the site register the device', async () => {
  const browser = openBrowser({ options: { scope: '/push/' } });
  expect(await browser.start()).toBe('off');
  expect(browser.done).toEqual([]);
  expect(await browser.enable()).toBe('on');
  expect(browser.done).toEqual(['asked', 'worker /worker.js /push/', `subscribed ${publicKey}`]);
  expect(browser.devices).toEqual([
    {
      platform: 'web',
      installation_id: await browser.installationId(),
      endpoint: 'https://push.example/3',
      p256dh_key: 'public',
      auth_key: 'auth',
      enablement_status: 'AUTHORIZED',
      sdk_version: expect.any(String),
    },
  ]);
  expect(browser.kept.state).toEqual({
    installationId: browser.devices[0]?.installation_id,
    deviceSecret: 'secret',
    device: browser.devices[0],
    serverUrl: 'https://push.test/base/',
    publicKey,
  });
});

test('each start registers what is subscribed, under the same id and with the secret that was given once', async () => {
  const secrets = ['secret', undefined, null];
  const browser = openBrowser({ register: async () => ({ device_secret: secrets.shift() ?? null }) });
  await browser.enable();
  expect(await browser.start()).toBe('on');
  expect(await browser.start()).toBe('on');
  expect(browser.devices[2]).toEqual(browser.devices[0]);
  expect(browser.done.filter((one) => one.startsWith('subscribed'))).toHaveLength(1);
  expect(browser.kept.state.deviceSecret).toBe('secret');
});

test.each(['denied', 'default'] as const)(
  'a person whose answer is %s is subscribed to nothing, nor is a site that was allowed other notifications',
  async (answer) => {
    const browser = openBrowser({ answer });
    expect(await browser.enable()).toBe(answer === 'denied' ? 'denied' : 'off');
    const allowed = openBrowser({ permission: 'granted' });
    expect(await allowed.start()).toBe('off');
    expect([...browser.done, ...allowed.done]).toEqual(['asked']);
    expect([...browser.devices, ...allowed.devices]).toEqual([]);
  },
);

test('a subscription under another key ends before the next begins, and one under this key goes on', async () => {
  const other = openBrowser({ held: otherKey });
  await other.enable();
  expect(other.done.slice(2)).toEqual(['unsubscribed', `subscribed ${publicKey}`]);
  const same = openBrowser({ held: publicKey });
  await same.enable();
  expect(same.done.slice(2)).toEqual([]);
  expect(same.devices).toHaveLength(1);
});

test('a wish to subscribe that the browser loses is said again after ten seconds', async () => {
  const browser = openBrowser({ losses: 2 });
  expect(await browser.enable()).toBe('on');
  const tried = [`subscribed ${publicKey}`, 'waited 10000'];
  expect(browser.done.slice(2)).toEqual([...tried, ...tried, `subscribed ${publicKey}`]);
});

test('a browser that loses it three times is given up', async () => {
  const browser = openBrowser({ losses: 9 });
  await expect(browser.enable()).rejects.toThrow('does not answer');
  expect(browser.devices).toEqual([]);
});

test('a permission that is withdrawn is told of once, and so is one that is given again', async () => {
  const browser = openBrowser();
  await browser.enable();
  browser.asked.permission = 'denied';
  expect(await browser.start()).toBe('denied');
  expect(await browser.start()).toBe('denied');
  browser.asked.permission = 'granted';
  await browser.start();
  expect(browser.devices.map((device) => device.enablement_status)).toEqual([
    'AUTHORIZED',
    'DENIED',
    'AUTHORIZED',
  ]);
  expect(browser.devices[1]?.endpoint).toBe(browser.devices[0]?.endpoint);
});

test('an id without an answer is given up, since its secret may be lost; an id with one is kept', async () => {
  const answers = [new Error('lost'), { device_secret: 'secret' }, new Error('lost'), {}];
  const browser = openBrowser({
    register: async () => {
      const answer = answers.shift()!;
      if (answer instanceof Error) throw answer;
      return answer;
    },
  });
  await expect(browser.enable()).rejects.toThrow('lost');
  expect(await browser.installationId()).toBeNull();
  await browser.enable();
  await expect(browser.start()).rejects.toThrow('lost');
  await browser.start();
  const ids = browser.devices.map((device) => device.installation_id);
  expect(ids[1]).not.toBe(ids[0]);
  expect(ids.slice(1)).toEqual([ids[1], ids[1], ids[1]]);
  expect(browser.kept.state.deviceSecret).toBe('secret');
});

test('a start sends the reports that the worker could not send', async () => {
  const browser = openBrowser();
  await browser.enable();
  await browser.store.change('reports', () => [makeReport('message', 'clicked')]);
  await browser.start();
  await vi.waitFor(() => {
    expect(browser.kept.reports).toEqual([]);
  });
  expect(browser.done.at(-1)).toBe('reported https://push.test/base/v1/push/engagements');
});

test('what the worker cannot register, an open page does', async () => {
  let tell = () => undefined as void;
  const registeredAnew = new Promise<void>((resolve) => (tell = resolve));
  const browser = openBrowser({
    register: async () => {
      if (browser.devices.length === 2) tell();
      return { device_secret: 'secret' };
    },
  });
  await browser.enable();
  browser.say('of the site');
  browser.say(registrationDue);
  await registeredAnew;
  expect(browser.devices).toHaveLength(2);
});

test('a worker that starts is waited for, and one that does not start is an error', async () => {
  expect(await openBrowser({ workerState: 'activating' }).enable()).toBe('on');
  await expect(openBrowser({ workerState: 'redundant' }).enable()).rejects.toThrow('does not start');
});

test('a browser without push is left alone', async () => {
  const register = () => Promise.reject(new Error('not to be registered'));
  const push = createPush(null, createMemoryStore(), { publicKey, worker: '/worker.js', register });
  expect([await push.start(), await push.enable()]).toEqual(['unsupported', 'unsupported']);
  expect(await push.installationId()).toBeNull();
});
