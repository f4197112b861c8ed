import { EventEmitter, once } from 'node:events';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { startSilentProxy } from '../../../test/support/silent-proxy.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../clock.ts';
import { silentLog } from '../log.ts';
import {
  type Database,
  openDatabase,
  unpreparedStatement,
  type DatabaseAddress,
} from '../postgres/database.ts';
import { createWaker, listenForWakes, notificationChannelOf, type WakeTopic } from './wake.ts';

let address: DatabaseAddress;
let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
  address = opened.address;
});

/** A listener, and a way to await that it was woken so many times in all. */
function startListener(topic: WakeTopic, clock = systemClock) {
  const stop = new AbortController();
  const wakes = new EventEmitter();
  let count = 0;
  const parts: (string | null)[] = [];
  const ended = listenForWakes({ database, clock, log: silentLog }, topic, stop.signal, (part) => {
    count += 1;
    parts.push(part);
    wakes.emit('wake');
  });
  return {
    countOf: () => count,
    parts,
    whenWoken: async (times: number) => {
      while (count < times) await once(wakes, 'wake');
    },
    stop: async () => {
      stop.abort();
      await ended;
    },
  };
}

/** Whatever was sent before has been heard by then: notifications keep their order. */
async function settle(topic: WakeTopic, listener: ReturnType<typeof startListener>): Promise<void> {
  const before = listener.countOf();
  await database.rows(unpreparedStatement('select pg_notify($1, $2)'), [
    notificationChannelOf(topic),
    'settled',
  ]);
  await listener.whenWoken(before + 1);
}

async function countListeners(): Promise<number> {
  const rows = await database.rows(
    unpreparedStatement(
      "select from pg_stat_activity where datname = current_database() and application_name = 'postillion-listener'",
    ),
  );
  return rows.length;
}

test('a listener is woken once when it begins, and then by every notification of its own topic', async () => {
  const listener = startListener('segments');
  await listener.whenWoken(1);
  createWaker({ database, clock: createManualClock(), log: silentLog }, 'domains')();
  createWaker({ database, clock: createManualClock(), log: silentLog }, 'segments')();
  await listener.whenWoken(2);
  await settle('segments', listener);
  expect(listener.countOf()).toBe(3);
  await listener.stop();
});

test('however often it is called, one notification goes out at once and one after the interval', async () => {
  const listener = startListener('campaigns');
  await listener.whenWoken(1);
  const clock = createManualClock();
  const wake = createWaker({ database, clock, log: silentLog }, 'campaigns');
  for (let call = 0; call < 1_000; call += 1) wake();
  await listener.whenWoken(2);
  await settle('campaigns', listener);
  expect(listener.countOf()).toBe(3);

  clock.advance(20);
  await listener.whenWoken(4);
  clock.advance(20);
  await settle('campaigns', listener);
  expect(listener.countOf()).toBe(5);
  await listener.stop();
});

test('calls that share a notification say what part of a topic they are about, if all are about the same', async () => {
  const listener = startListener('deliveries');
  await listener.whenWoken(1);
  const clock = createManualClock();
  const wake = createWaker({ database, clock, log: silentLog }, 'deliveries');
  const calls: (string | undefined)[][] = [
    ['email'],
    ['sms', 'sms'],
    ['sms', 'email'],
    ['email', undefined, 'email'],
    [undefined],
  ];
  for (const [index, parts] of calls.entries()) {
    for (const part of parts) wake(part);
    if (index > 0) clock.advance(20);
    await listener.whenWoken(index + 2);
  }
  expect(listener.parts).toEqual([null, 'email', 'sms', null, null, null]);
  await listener.stop();
});

test('a call that comes after a rest notifies at once again', async () => {
  const listener = startListener('clearing');
  await listener.whenWoken(1);
  const clock = createManualClock();
  const wake = createWaker({ database, clock, log: silentLog }, 'clearing');
  wake();
  await listener.whenWoken(2);
  clock.advance(20);
  wake();
  await listener.whenWoken(3);
  await listener.stop();
});

test('a listener whose connection is killed comes back, and wakes for what it may have missed', async () => {
  const clock = createManualClock();
  const listener = startListener('sms_events', clock);
  await listener.whenWoken(1);
  await database.rows(
    unpreparedStatement(
      "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and application_name = 'postillion-listener'",
    ),
  );
  await clock.whenWaiting(1);
  clock.advance(500);
  await listener.whenWoken(2);
  await settle('sms_events', listener);
  await listener.stop();
});

test('a listener that finds no database tries again, and stops when it is told to', async () => {
  const away = openDatabase({ address: { url: 'postgres://127.0.0.1:1/nowhere' }, connectionsMax: 1 });
  const clock = createManualClock();
  const stop = new AbortController();
  const ended = listenForWakes({ database: away, clock, log: silentLog }, 'deliveries', stop.signal, () => {
    expect.fail('nothing could have woken it');
  });
  for (let attempt = 0; attempt < 3; attempt += 1) {
    await clock.whenWaiting(1);
    clock.advance(500);
  }
  await clock.whenWaiting(1);
  stop.abort();
  await ended;
  await away.close();
});

test('a listener that stopped leaves no connection open', async () => {
  const listener = startListener('domains');
  await listener.whenWoken(1);
  await listener.stop();
  for (let left = await countListeners(); left > 0;) left = await countListeners();
});

test('a notification that cannot be sent is no error for its caller', async () => {
  const away = openDatabase({ address: { url: 'postgres://127.0.0.1:1/nowhere' }, connectionsMax: 1 });
  const clock = createManualClock();
  const warned = new Promise<unknown>((resolve) => {
    const log = { ...silentLog, warn: resolve as typeof silentLog.warn };
    createWaker({ database: away, clock, log }, 'deliveries')();
  });
  expect(await warned).toMatchObject({ topic: 'deliveries' });
  await away.close();
});

test('a connection that is lost before it listens is found out, and another one listens', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const cut = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  let connections = 0;
  const stop = new AbortController();
  let ended: Promise<void> = Promise.resolve();
  let isLost: () => void = () => undefined;
  const lost = new Promise<void>((resolve) => {
    isLost = resolve;
  });
  await new Promise<void>((woken) => {
    ended = listenForWakes(
      {
        database: {
          ...cut,
          connectAlone: async (name) => {
            const client = await cut.connectAlone(name);
            connections += 1;
            if (connections === 1) {
              proxy.forgetConnections();
              client.once('end', isLost);
            }
            return client;
          },
        },
        clock,
        log: silentLog,
      },
      'erasures',
      stop.signal,
      () => {
        woken();
      },
    );
    const pass = async () => {
      // The heartbeat, and its time to be answered.
      for (const delayMs of [15_000, 3_000]) {
        await clock.whenWaiting(1);
        clock.advance(delayMs);
      }
      await lost;
      while (connections < 2) {
        clock.advance(500);
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    void pass();
  });
  expect(connections).toBe(2);
  stop.abort();
  await ended;
  await cut.close();
  await proxy.stop();
});
