/** `sdk.js`: the module that a page loads. */
import { createPush, type PageBrowser, type Push, type PushOptions } from './page.ts';
import { openStore } from './store.ts';

export type { Push, PushOptions, PushState } from './page.ts';
export type { Device, Register } from './device.ts';

/** Asks the person for nothing yet: `start` and `enable` of what it returns do the work. */
export function connectPush(options: PushOptions): Push {
  // Served as <url>/push/sdk.js.
  const url = options.url ?? new URL('..', import.meta.url).href;
  return createPush(findBrowser(), openStore(), { ...options, url });
}

function findBrowser(): PageBrowser | null {
  // Without HTTPS there are no workers; on iOS there is no push but in apps on the home screen.
  const isSupported = 'serviceWorker' in navigator && 'PushManager' in window && 'Notification' in window;
  if (!isSupported) return null;
  return {
    serviceWorker: navigator.serviceWorker,
    permission: () => Notification.permission,
    requestPermission: () => Notification.requestPermission(),
    fetch: window.fetch.bind(window),
    delay: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
  };
}
