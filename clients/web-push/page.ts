import { type DeviceTools, type Register, registerPermission, registerSubscription } from './device.ts';
import { createSend } from './reports.ts';
import { readStore, type Store } from './store.ts';
import { registrationDue } from './worker-scope.ts';

export type PushOptions = {
  /** The VAPID key of the organization, base64url. */
  publicKey: string;
  /** Address of the service worker, which has to be of the page's own origin. */
  worker: string;
  /** Of the worker; the folder that it lies in unless given. */
  scope?: string;
  /** Where Postillion is: where this module came from unless given. */
  url?: string;
  register: Register;
};

/** `off` is not asked yet, or never subscribed; `denied` can be changed by the person only, in the browser's settings. */
export type PushState = 'on' | 'off' | 'denied' | 'unsupported';

export type Push = {
  /** To be called at every start of the page. Asks nothing; registers a browser anew that is subscribed. */
  start: () => Promise<PushState>;
  /** To be called in a click, or browsers refuse to ask. Asks the person, subscribes and registers. */
  enable: () => Promise<PushState>;
  /** What `POST /v1/push/devices/unregister` wants; null before the first registration. */
  installationId: () => Promise<string | null>;
};

/** What the page uses of the browser; null where it lacks what a push needs. */
export type PageBrowser = {
  serviceWorker: Pick<ServiceWorkerContainer, 'register' | 'addEventListener'>;
  permission: () => NotificationPermission;
  requestPermission: () => Promise<NotificationPermission>;
  fetch: typeof fetch;
  delay: (ms: number) => Promise<void>;
};

/** Firefox loses a subscription that is asked for before it has reached its push service, and never answers. */
const subscribeMaxMs = 10_000;
/** Half a minute is as long as a person waits. */
const subscribeTriesMax = 3;

export function createPush(browser: PageBrowser | null, store: Store, options: PushOptions): Push {
  const installationId = async () => (await readStore(store, 'state')).installationId;
  if (browser === null) {
    const unsupported = () => Promise.resolve<PushState>('unsupported');
    return { start: unsupported, enable: unsupported, installationId };
  }
  const send = createSend(store, browser.fetch);
  const tools: DeviceTools = { store, register: options.register, permission: browser.permission };

  const subscribe = async (): Promise<PushState> => {
    const serverUrl = withSlash(options.url ?? '');
    const { publicKey } = options;
    await store.change('state', (state) => ({ ...state, serverUrl, publicKey }));
    const manager = await findPushManager(browser, options);
    await registerSubscription(tools, await findSubscription(browser, manager, publicKey));
    return 'on';
  };

  const start = async (): Promise<PushState> => {
    const { device } = await readStore(store, 'state');
    const permission = browser.permission();
    // Another part of the site may have been given the permission, for notifications of its own.
    const isSubscribed = device !== null && permission === 'granted';
    const state = isSubscribed ? await subscribe() : permission === 'denied' ? 'denied' : 'off';
    if (!isSubscribed) await registerPermission(tools);
    // Nobody waits for what the worker could not send.
    send().catch(() => undefined);
    return state;
  };

  browser.serviceWorker.addEventListener('message', (event) => {
    // The next start registers what fails now.
    if (event.data === registrationDue) start().catch(() => undefined);
  });

  return {
    start,
    enable: async () => {
      const permission = await browser.requestPermission();
      return permission === 'granted' ? subscribe() : start();
    },
    installationId,
  };
}

function withSlash(url: string): string {
  return url.endsWith('/') ? url : `${url}/`;
}

/** Of an active worker. `serviceWorker.ready` would wait for ever where the page is outside of its scope. */
async function findPushManager(
  { serviceWorker }: PageBrowser,
  { worker, scope }: PushOptions,
): Promise<PushManager> {
  const registration = await serviceWorker.register(worker, scope === undefined ? {} : { scope });
  const coming = registration.installing ?? registration.waiting;
  if (registration.active === null && coming !== null) {
    await new Promise<void>((resolve, reject) => {
      coming.addEventListener('statechange', () => {
        if (coming.state === 'activated') resolve();
        if (coming.state === 'redundant') reject(new Error(`The service worker ${worker} does not start`));
      });
    });
  }
  return registration.pushManager;
}

/** The one that there is, or a new one: a subscription belongs to its key for life, and has to end before another. */
async function findSubscription(
  browser: PageBrowser,
  manager: PushManager,
  publicKey: string,
): Promise<PushSubscription> {
  const held = await manager.getSubscription();
  if (held !== null && encode(held.options.applicationServerKey) === withoutPadding(publicKey)) return held;
  await held?.unsubscribe();
  for (let tries = 1; tries <= subscribeTriesMax; tries += 1) {
    const subscription = await Promise.race([
      manager.subscribe({ userVisibleOnly: true, applicationServerKey: publicKey }),
      browser.delay(subscribeMaxMs),
    ]);
    if (subscription !== undefined) return subscription;
  }
  // As browsers reject where the service cannot be had (Push API, `subscribe`).
  throw new DOMException('The push service of the browser does not answer', 'AbortError');
}

/** Base64url. */
function encode(key: ArrayBuffer | null): string {
  const text = String.fromCharCode(...new Uint8Array(key ?? new ArrayBuffer(0)));
  return withoutPadding(btoa(text).replaceAll('+', '-').replaceAll('/', '_'));
}

function withoutPadding(text: string): string {
  return text.replace(/=+$/, '');
}
