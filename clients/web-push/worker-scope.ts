import type { Register } from './device.ts';
import type { ShownOptions } from './message.ts';

/**
 * What the service worker uses of its global scope. TypeScript has the page's types and the worker's in libraries that
 * exclude each other, and neither has all of this.
 */
export type WorkerScope = {
  addEventListener: <Name extends keyof WorkerEvents>(
    name: Name,
    listener: (event: WorkerEvents[Name]) => void,
  ) => void;
  registration: {
    scope: string;
    showNotification: (title: string, options?: ShownOptions) => Promise<void>;
    pushManager: Pick<PushManager, 'subscribe'>;
    /** Chromium has it. */
    sync?: { register: (tag: string) => Promise<void> };
  };
  clients: {
    matchAll: (options: { type: 'window'; includeUncontrolled: true }) => Promise<readonly WorkerWindow[]>;
    openWindow: (url: string) => Promise<unknown>;
  };
  Notification: { permission: NotificationPermission; maxActions?: number };
  fetch: typeof fetch;
  /** Of the site, where its own worker has it: registers without a page. */
  postillionRegister?: Register;
};

type WorkerWindow = {
  url: string;
  focus: () => Promise<unknown>;
  postMessage: (message: unknown) => void;
};

type ExtendableEvent = { waitUntil: (work: Promise<unknown>) => void };

type ShownNotification = { data?: unknown; close: () => void };

type WorkerEvents = {
  push: ExtendableEvent & { data: { text: () => string } | null };
  notificationclick: ExtendableEvent & { notification: ShownNotification; action: string };
  notificationclose: ExtendableEvent & { notification: ShownNotification };
  /** Firefox tells of no new subscription, Chrome may. */
  pushsubscriptionchange: ExtendableEvent & { newSubscription?: PushSubscription | null };
  sync: ExtendableEvent & { tag: string };
};

/** What the worker tells open pages, where it cannot register by itself. */
export const registrationDue = 'postillion:registration-due';
