import { readStore, type Store } from './store.ts';

/** One event of `POST /v1/push/engagements`. */
export type Report = {
  /** Made once: a report that is sent twice counts once. */
  event_id: string;
  message_id: string;
  type: ReportType;
  /** Of the button that was clicked. */
  action_id?: string;
  /** ISO 8601, by the clock of the device. */
  occurred_at: string;
};

export type ReportType = 'delivered' | 'displayed' | 'clicked' | 'dismissed';

export function makeReport(messageId: string, type: ReportType, actionId?: string): Report {
  return {
    event_id: crypto.randomUUID(),
    message_id: messageId,
    type,
    ...(actionId !== undefined && { action_id: actionId }),
    occurred_at: new Date().toISOString(),
  };
}

/** As many as one request may have, so that one sends all. More would be of messages that nobody asks about any more. */
const reportsMax = 100;

/** Keeps reports until they are sent; beyond a hundred the oldest are dropped. */
export async function keepReports(store: Store, reports: readonly Report[]): Promise<void> {
  await store.change('reports', (kept) => [...kept, ...reports].slice(-reportsMax));
}

/** Longer than a server takes that answers at all, shorter than browsers let a worker live. */
const answerMaxMs = 10_000;

/** Sends what is kept. False means that it is to be tried again. */
export type Send = () => Promise<boolean>;

/**
 * One request at a time, since two at once would both bring what the other has not brought yet. Page and worker may still
 * bring the same, which counts once. A lock between them (Web Locks) kept Firefox waiting for a page that was left.
 */
export function createSend(store: Store, ask: typeof fetch): Send {
  let sending: Promise<unknown> = Promise.resolve();
  return () => {
    const sent = sending.then(() => sendReports(store, ask));
    sending = sent.catch(() => undefined);
    return sent;
  };
}

/** What is refused for good is dropped with what is taken: another attempt would have the same answer. */
async function sendReports(store: Store, ask: typeof fetch): Promise<boolean> {
  const reports = await readStore(store, 'reports');
  const { installationId, deviceSecret, serverUrl } = await readStore(store, 'state');
  if (reports.length === 0 || deviceSecret === null || serverUrl === null) return true;
  const status = await ask(`${serverUrl}v1/push/engagements`, {
    method: 'POST',
    headers: { authorization: `Bearer ${deviceSecret}`, 'content-type': 'application/json' },
    body: JSON.stringify({ installation_id: installationId, events: reports }),
    credentials: 'omit',
    redirect: 'error',
    keepalive: true,
    signal: AbortSignal.timeout(answerMaxMs),
  }).then(
    (response) => response.status,
    () => null,
  );
  if (status === null || !isFinal(status)) return false;
  const sent = new Set(reports.map(({ event_id: id }) => id));
  await store.change('reports', (kept) => kept.filter(({ event_id: id }) => !sent.has(id)));
  return true;
}

function isFinal(status: number): boolean {
  if (status === 202) return true;
  return status >= 400 && status < 500 && status !== 408 && status !== 429;
}
