import type { Client } from 'pg';
import { type Clock } from '../clock.ts';
import type { Log } from '../log.ts';
import { type Database, rowsOf, statement, unpreparedStatement } from '../postgres/database.ts';

const notify = statement('wake_notify', "select pg_notify($1, '')");

/** More notifications than this would only wake who is awake; each of them takes a lock on the whole cluster. */
const notifyIntervalMs = 20;

/**
 * Returns a function that wakes whoever listens on the channel, on any node. Called often, it notifies at once and
 * then at most once an interval, the last call never being lost. A notification that fails is not repeated:
 * listeners look by themselves now and then.
 */
export function createWaker(
  tools: { database: Database; clock: Clock; log: Log },
  channel: string,
): () => void {
  let isResting = false;
  let isCalledAgain = false;
  const wake = () => {
    if (isResting) {
      isCalledAgain = true;
      return;
    }
    isResting = true;
    isCalledAgain = false;
    tools.database.rows(notify, [channel]).catch((cause: unknown) => {
      tools.log.warn({ err: cause, channel }, 'notification not sent');
    });
    tools.clock.after(notifyIntervalMs, () => {
      isResting = false;
      if (isCalledAgain) wake();
    });
  };
  return wake;
}

const reconnectMs = 500;

/** Calls `onWake` at every notification, and after each time that the connection was lost; stops with the signal. */
export async function listenForWakes(
  tools: { database: Database; clock: Clock; log: Log },
  channel: string,
  signal: AbortSignal,
  onWake: () => void,
): Promise<void> {
  while (!signal.aborted) {
    let client: Client | null = null;
    try {
      client = await tools.database.connectAlone('postillion-listener');
      const ended = new Promise<void>((resolve) => {
        client?.once('end', resolve);
      });
      client.on('notification', onWake);
      await rowsOf(client, unpreparedStatement(`listen ${channel}`));
      onWake();
      await Promise.race([ended, whenAborted(signal)]);
    } catch (cause) {
      tools.log.warn({ err: cause, channel }, 'listening was interrupted');
    }
    await client?.end().catch(() => undefined);
    if (!signal.aborted) await new Promise<void>((resolve) => tools.clock.after(reconnectMs, resolve));
  }
}

function whenAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener(
      'abort',
      () => {
        resolve();
      },
      { once: true },
    );
  });
}
