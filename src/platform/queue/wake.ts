import { type Clock, sleep } from '../clock.ts';
import type { Log } from '../log.ts';
import { type Connection, type Database, statement, unpreparedStatement } from '../postgres/database.ts';

/** The kinds of work that processes wait for. */
export const wakeTopics = [
  'alerts',
  'campaigns',
  'chat_templates',
  'clearing',
  'conversions',
  'deliveries',
  'domain_checks',
  'domains',
  'erasures',
  'provider_events',
  'quotas',
  'secret_keys',
  'segments',
  'sms_events',
  'chat_app_events',
  'webhook_outbox',
  'webhook_events',
] as const;

export type WakeTopic = (typeof wakeTopics)[number];

/** How PostgreSQL calls the channel on which a topic is notified. */
export function notificationChannelOf(topic: WakeTopic): string {
  return `postillion_${topic}`;
}

const notify = statement('wake_notify', 'select pg_notify($1, $2)');

/** What a notification says where it is about all of a topic. */
const everything = '';

/** More notifications would only wake listeners that are awake; each of them takes a lock on the whole cluster. */
const notifyIntervalMs = 20;

/** Wakes all that wait for a topic. `part` says what of it there is to do; left out, it may be anything. */
export type Waker = {
  (part?: string): void;
  /**
   * The channel that a transaction may notify itself, in its last statement, instead of waking when it is committed:
   * its turn to notify is taken. Null if it is too soon after the last notification.
   */
  takeTurn: () => string | null;
};

/**
 * Returns a function that wakes all that wait for the topic, on any node. Called often, it notifies at once and
 * then at most once an interval, the last call never being lost. A notification that fails is not repeated:
 * listeners look by themselves now and then.
 */
export function createWaker(tools: { database: Database; clock: Clock; log: Log }, topic: WakeTopic): Waker {
  const channel = notificationChannelOf(topic);
  let isResting = false;
  /** What the calls since the last notification are about; null if there were none. */
  let calledAgainFor: string | null = null;
  const takeTurn = () => {
    if (isResting) return null;
    isResting = true;
    calledAgainFor = null;
    tools.clock.after(notifyIntervalMs, () => {
      isResting = false;
      if (calledAgainFor !== null) wake(calledAgainFor);
    });
    return channel;
  };
  const wake = (part = everything) => {
    if (takeTurn() === null) {
      calledAgainFor = calledAgainFor === null || calledAgainFor === part ? part : everything;
      return;
    }
    tools.database.rows(notify, [channel, part]).catch((cause: unknown) => {
      tools.log.warn({ err: cause, topic }, 'notification not sent');
    });
  };
  return Object.assign(wake, { takeTurn });
}

/** Wakes all that wait for the topic, or for a part of it, once; in a transaction, when that is committed. */
export async function wakeOnce(connection: Connection, topic: WakeTopic, part = everything): Promise<void> {
  await connection.rows(notify, [notificationChannelOf(topic), part]);
}

const reconnectMs = 500;

/**
 * Calls `onWake` at every notification, and after each time that the connection was lost; stops with the signal. `part`
 * is null where it may be anything.
 */
export async function listenForWakes(
  tools: { database: Database; clock: Clock; log: Log },
  topic: WakeTopic,
  signal: AbortSignal,
  onWake: (part: string | null) => void,
): Promise<void> {
  /** Once for each outage: it is tried twice a second. */
  let isTold = false;
  while (!signal.aborted) {
    try {
      await listenOnce(tools.database, notificationChannelOf(topic), signal, onWake);
      isTold = false;
    } catch (cause) {
      // The connection was ended because of the signal, maybe before it listened.
      if (signal.aborted) return;
      if (!isTold) tools.log.warn({ err: cause, topic }, 'listening was interrupted');
      isTold = true;
    }
    await sleep(tools.clock, reconnectMs, signal).catch(ignore);
  }
}

/** Resolves when the connection has ended: it was lost, or the signal aborted. */
async function listenOnce(
  database: Database,
  channel: string,
  signal: AbortSignal,
  onWake: (part: string | null) => void,
): Promise<void> {
  const client = await database.connectAlone('postillion-listener');
  // Before the first statement: the network may be cut while it is on its way.
  database.watchOver(client);
  const ended = new Promise<void>((resolve) => {
    client.once('end', resolve);
  });
  const stop = () => {
    client.end().catch(ignore);
  };
  signal.addEventListener('abort', stop, { once: true });
  try {
    client.on('notification', ({ payload = everything }) => {
      onWake(payload === everything ? null : payload);
    });
    await database.rowsAlone(client, unpreparedStatement(`listen ${channel}`));
    onWake(null);
    if (!signal.aborted) await ended;
  } finally {
    signal.removeEventListener('abort', stop);
    await client.end().catch(ignore);
  }
}

function ignore(): void {
  // A listener that was stopped has no use for the error.
}
