import { registerSubscription } from './device.ts';
import { linkOf, type Message, readCarried, readMessage, toOptions } from './message.ts';
import { createSend, keepReports, makeReport, type Report, type Send } from './reports.ts';
import { readStore, type Store } from './store.ts';
import { registrationDue, type WorkerScope } from './worker-scope.ts';

type Tools = { scope: WorkerScope; store: Store; send: Send };

/**
 * The part of a service worker that shows pushes and reports on them. It may be all of a worker, or one part of the
 * site's own: notifications that are not ours are left alone.
 */
export function startWorker(scope: WorkerScope, store: Store): void {
  const tools: Tools = { scope, store, send: createSend(store, scope.fetch.bind(scope)) };
  /** Messages that were clicked, and not closed yet. */
  const clicked = new Set<string>();

  scope.addEventListener('push', (event) => {
    event.waitUntil(show(tools, event.data?.text() ?? null));
  });

  scope.addEventListener('notificationclick', (event) => {
    const carried = readCarried(event.notification.data);
    if (carried === null) return;
    clicked.add(carried.id);
    event.notification.close();
    const { action } = event;
    const link = linkOf(carried, action, scope.registration.scope);
    const report = makeReport(carried.id, 'clicked', action === '' ? undefined : action);
    // A button without a link only tells of the click.
    const opening = link === null && action !== '' ? Promise.resolve() : openWindow(scope, link);
    event.waitUntil(Promise.allSettled([opening, tell(tools, [report])]));
  });

  scope.addEventListener('notificationclose', (event) => {
    const carried = readCarried(event.notification.data);
    // Firefox closes a notification that was clicked, and says so.
    if (carried === null || clicked.delete(carried.id)) return;
    event.waitUntil(tell(tools, [makeReport(carried.id, 'dismissed')]));
  });

  scope.addEventListener('pushsubscriptionchange', (event) => {
    event.waitUntil(renewSubscription(tools, event.newSubscription ?? null));
  });

  scope.addEventListener('sync', (event) => {
    if (event.tag === syncTag) event.waitUntil(sendOnSync(tools));
  });
}

/** Browsers end subscriptions whose pushes show nothing, so that each shows something. */
async function show(tools: Tools, text: string | null): Promise<void> {
  const { registration } = tools.scope;
  const message = readMessage(text);
  if (message === null) {
    await registration.showNotification(new URL(registration.scope).host);
    return;
  }
  const delivered = makeReport(message.id, 'delivered');
  try {
    await showMessage(tools.scope, message);
  } catch (cause) {
    await tell(tools, [delivered]);
    throw cause;
  }
  await tell(tools, [delivered, makeReport(message.id, 'displayed')]);
}

async function showMessage({ registration, Notification }: WorkerScope, message: Message): Promise<void> {
  const options = toOptions(message, Notification.maxActions ?? 0);
  try {
    await registration.showNotification(message.title, options);
  } catch {
    // Of a browser that refuses what others leave out.
    const { body, tag, data } = options;
    await registration.showNotification(message.title, { body, tag, data });
  }
}

/** Without a link any window of the site, or a new one. */
async function openWindow({ clients, registration }: WorkerScope, link: string | null): Promise<void> {
  const windows = await clients.matchAll({ type: 'window', includeUncontrolled: true });
  const open = windows.find(({ url }) => link === null || url === link);
  await (open?.focus() ?? clients.openWindow(link ?? registration.scope));
}

const syncTag = 'postillion-reports';

/** Never rejects: a report is worth less than what it reports on. */
async function tell({ scope, store, send }: Tools, reports: readonly Report[]): Promise<void> {
  try {
    await keepReports(store, reports);
    const isSent = await send();
    if (!isSent) await scope.registration.sync?.register(syncTag);
  } catch {
    // The next push tries again.
  }
}

/** Rejects while something is not sent, upon which the browser tries again by itself. */
async function sendOnSync({ send }: Tools): Promise<void> {
  const isSent = await send();
  if (!isSent) throw new Error('The reports were not sent');
}

/** Where the site's worker cannot register, a page does: those that are open, or else the next. */
async function renewSubscription({ scope, store }: Tools, renewed: PushSubscription | null): Promise<void> {
  const { publicKey } = await readStore(store, 'state');
  if (publicKey === null) return;
  const subscription =
    renewed ??
    (await scope.registration.pushManager.subscribe({
      userVisibleOnly: true,
      applicationServerKey: publicKey,
    }));
  const { postillionRegister: register } = scope;
  if (register !== undefined) {
    const permission = () => scope.Notification.permission;
    await registerSubscription({ store, register, permission }, subscription);
    return;
  }
  const windows = await scope.clients.matchAll({ type: 'window', includeUncontrolled: true });
  // Some may have loaded no SDK.
  for (const window of windows) window.postMessage(registrationDue);
}
