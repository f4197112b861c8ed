import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { startSilentProxy } from '../../../test/support/silent-proxy.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createAnswerWatch, type ProbeResult } from './answer-watch.ts';
import {
  askOnce,
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  unpreparedStatement,
} from './database.ts';

type Waiting = { name: string };

function setUp() {
  const clock = createManualClock();
  const cut: string[] = [];
  const changes: boolean[] = [];
  const probes: ((result: ProbeResult) => void)[] = [];
  const watch = createAnswerWatch<Waiting>({
    clock,
    probe: () =>
      new Promise((resolve) => {
        probes.push(resolve);
      }),
    cut: ({ name }) => cut.push(name),
    answerMaxMs: 60_000,
    onChange: (isSilent) => changes.push(isSilent),
  });
  const answerProbe = async (result: ProbeResult) => {
    probes.shift()?.(result);
    // A few turns of the promises in between.
    for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
  };
  return { clock, cut, changes, probes, watch, answerProbe };
}

test('PostgreSQL is not probed while answers come in time', () => {
  const { clock, cut, probes, watch } = setUp();
  for (let round = 0; round < 20; round += 1) {
    const answered = watch.sent({ name: 'a' });
    clock.advance(3_000);
    answered(true);
  }
  clock.advance(100_000);
  expect([cut, probes]).toEqual([[], []]);
});

test('a statement that takes long is left alone while PostgreSQL answers others', async () => {
  const { clock, cut, probes, watch, answerProbe } = setUp();
  watch.sent({ name: 'slow' });
  for (let asked = 0; asked < 10; asked += 1) {
    clock.advance(5_000);
    expect(probes).toHaveLength(1);
    await answerProbe('answers');
  }
  expect([cut, watch.isSilent()]).toEqual([[], false]);
});

test('when PostgreSQL answers no connection, all that wait are cut, and no other caller waits until it answers again', async () => {
  const { clock, cut, changes, watch, answerProbe } = setUp();
  watch.sent({ name: 'a' });
  watch.sent({ name: 'b' });
  clock.advance(4_500);
  watch.sent({ name: 'later' });
  await answerProbe('silent');
  expect([cut, watch.isSilent(), changes]).toEqual([['a', 'b'], true, [true]]);
  clock.advance(1_000);
  await answerProbe('silent');
  expect(new Set(cut)).toEqual(new Set(['a', 'b', 'later']));
  clock.advance(1_000);
  await answerProbe('answers');
  expect([watch.isSilent(), changes]).toEqual([false, [true, false]]);
});

test('a connection that alone has fallen silent is cut once no statement may take so long', async () => {
  const { clock, cut, watch, answerProbe } = setUp();
  const [usual, patient, without] = [{ name: 'usual' }, { name: 'patient' }, { name: 'without limit' }];
  watch.allow(patient, 100_000);
  watch.allow(without, Infinity);
  for (const connection of [usual, patient, without]) watch.sent(connection);
  const passSeconds = async (seconds: number) => {
    for (let second = 0; second < seconds; second += 1) {
      clock.advance(1_000);
      await answerProbe('answers');
    }
  };
  await passSeconds(59);
  expect(cut).toEqual([]);
  await passSeconds(2);
  expect([...new Set(cut)]).toEqual(['usual']);
  await passSeconds(40);
  expect([...new Set(cut)]).toEqual(['usual', 'patient']);
});

test.each(['silent', 'refuses'] as const)(
  'no connection is cut on a probe that is %s while other connections are answered',
  async (result) => {
    const { clock, cut, changes, watch, answerProbe } = setUp();
    watch.sent({ name: 'slow' });
    for (let second = 0; second < 20; second += 1) {
      const answered = watch.sent({ name: 'other' });
      clock.advance(1_000);
      answered(true);
      await answerProbe(result);
    }
    expect([cut, changes, watch.isSilent()]).toEqual([[], [], false]);
    // An error of this side is no answer.
    const lost = watch.sent({ name: 'lost' });
    for (let second = 0; second < 10; second += 1) {
      clock.advance(1_000);
      if (second === 8) lost(false);
      await answerProbe(result);
    }
    expect(cut).toContain('slow');
  },
);

test('no connection is cut because this process cannot ask', async () => {
  const { clock, cut, watch, answerProbe } = setUp();
  watch.sent({ name: 'slow' });
  for (let second = 0; second < 50; second += 1) {
    clock.advance(1_000);
    await answerProbe('unclear');
  }
  expect([cut, watch.isSilent()]).toEqual([[], false]);
});

test('each answer begins the wait for the next one anew', () => {
  const { clock, probes, watch } = setUp();
  const connection = { name: 'a' };
  const answers = [watch.sent(connection), watch.sent(connection), watch.sent(connection)];
  for (const answered of answers) {
    clock.advance(3_000);
    answered(true);
  }
  clock.advance(10_000);
  expect(probes).toEqual([]);
});

let address: DatabaseAddress;

useTestDatabase({}, (opened) => {
  address = opened.address;
});

const one = unpreparedStatement('select 1 as one');

/**
 * Second by second, so that whatever sets a timer does so in its turn. With pauses, since some of it waits for a time-out of
 * the driver, which goes by the machine's clock.
 */
async function passTimeUntil(clock: ManualClock, over: Promise<unknown>): Promise<void> {
  let isOver = false;
  void over.then(() => (isOver = true));
  while (!isOver) {
    clock.advance(1_000);
    await delay(5);
  }
}

test('when the network drops everything, callers that wait get an error, and it works again by itself', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const changes: boolean[] = [];
  const changed: (() => void)[] = [];
  const database = openDatabase({
    address: proxy.address,
    connectionsMax: 2,
    clock,
    onSilence: (isSilent) => {
      changes.push(isSilent);
      changed.shift()?.();
    },
  });
  const whenChanged = () =>
    new Promise<void>((resolve) => {
      changed.push(resolve);
    });
  await Promise.all([database.rows(one), database.rows(one)]);
  proxy.fallSilent();
  const outcomes = [
    database.rows(one),
    // Neither caller can know whether its work was committed.
    database.transaction((transaction) => Promise.all([transaction.rows(one), transaction.commit()])),
  ].map((work) => work.catch((cause: unknown) => cause));
  // Nor is there a connection for this one before that is found out.
  const late = database.rows(one).catch((cause: unknown) => cause);
  // It is found out while this one's turn may still come: by a look, and by a probe that is not answered.
  await clock.whenWaiting(2);
  await new Promise((resolve) => setImmediate(resolve));
  clock.advance(4_000);
  await proxy.whenConnected(3);
  clock.advance(3_000);
  await passTimeUntil(clock, Promise.all([...outcomes, late]));
  for (const outcome of await Promise.all(outcomes)) {
    expect(outcome).toBeInstanceOf(DatabaseUnavailableError);
    expect(outcome).toMatchObject({ mayBeCarriedOut: true });
  }
  expect(await late).toMatchObject({
    mayBeCarriedOut: false,
    cause: { message: 'PostgreSQL does not answer' },
  });
  // At once, without another wait.
  await expect(database.rows(one)).rejects.toMatchObject({ mayBeCarriedOut: false });

  const speaking = whenChanged();
  proxy.speak();
  clock.advance(1_000);
  await speaking;
  expect(await database.rows(one)).toEqual([{ one: 1 }]);
  expect(changes).toEqual([true, false]);
  await database.close();
  await proxy.stop();
});

test('a transaction that is cut before its commit was certainly not carried out', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const database = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  await database.rows(one);
  const cut = database
    .transaction(async (transaction) => {
      proxy.fallSilent();
      await transaction.rows(one);
    })
    .catch((cause: unknown) => cause);
  await passTimeUntil(clock, cut);
  expect(await cut).toMatchObject({ name: 'DatabaseUnavailableError', mayBeCarriedOut: false });
  await database.close();
  await proxy.stop();
});

test('a connection outside the pool that the network has forgotten ends, but not while PostgreSQL answers no connection', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const database = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  const client = await database.connectAlone('alone');
  let hasEnded = false;
  const ended = new Promise<void>((resolve) => {
    client.once('end', () => {
      hasEnded = true;
      resolve();
    });
  });
  database.watchOver(client);
  proxy.fallSilent();
  await clock.whenWaiting(1);
  clock.advance(15_000);
  for (let look = 1; look <= 3; look += 1) {
    await clock.whenWaiting(1);
    clock.advance(3_000);
    await proxy.whenConnected(1 + look);
    clock.advance(3_000);
  }
  expect(hasEnded).toBe(false);
  proxy.forgetConnections();
  proxy.speak();
  await clock.whenWaiting(1);
  clock.advance(3_000);
  await ended;
  await database.close();
  await proxy.stop();
});

test('a statement outside the pool is not waited for either where PostgreSQL does not answer', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const database = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  const client = await database.connectAlone('alone');
  expect(await database.rowsAlone(client, one)).toEqual([{ one: 1 }]);
  proxy.fallSilent();
  const unanswered = database.rowsAlone(client, one).catch((cause: unknown) => cause);
  await passTimeUntil(clock, unanswered);
  expect(await unanswered).toBeInstanceOf(DatabaseUnavailableError);
  await database.close();
  await proxy.stop();
});

const lockOfTest = unpreparedStatement('select pg_advisory_lock(740523, 1)');

/** The look at a wait that is due by then, and its answer; the pool has one connection, and answers in turn. */
async function passHeartbeats(clock: ManualClock, database: Database, count: number): Promise<void> {
  for (let heartbeat = 0; heartbeat < count; heartbeat += 1) {
    clock.advance(15_000);
    await new Promise((resolve) => setImmediate(resolve));
    await database.rows(one);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test('a wait for a lock outside the pool lasts as long as the lock is held', async () => {
  const clock = createManualClock();
  const database = openDatabase({ address, connectionsMax: 1, clock });
  const [holder, waiter] = [await database.connectAlone('alone'), await database.connectAlone('alone')];
  await database.rowsAlone(waiter, unpreparedStatement('set lock_timeout = 0'));
  await database.rowsAlone(holder, lockOfTest);
  let isOver = false;
  const waiting = database.waitAlone(waiter, lockOfTest).finally(() => (isOver = true));
  await untilSomebodyWaits(database);
  await passHeartbeats(clock, database, 20);
  expect(isOver).toBe(false);
  await holder.end();
  await waiting;
  await waiter.end();
  await database.close();
});

test('a wait for a lock that PostgreSQL has forgotten ends, but not while PostgreSQL answers no connection', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const database = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  const direct = openDatabase({ address, connectionsMax: 1 });
  const holder = await direct.connectAlone('alone');
  await direct.rowsAlone(holder, lockOfTest);
  const waiter = await database.connectAlone('alone');
  let isOver = false;
  const waiting = database
    .waitAlone(waiter, lockOfTest)
    .catch((cause: unknown) => cause)
    .finally(() => (isOver = true));
  await untilSomebodyWaits(direct);
  proxy.fallSilent();
  for (let round = 0; round < 5; round += 1) {
    clock.advance(15_000);
    await passTimeUntil(
      clock,
      database.rows(one).catch(() => undefined),
    );
  }
  expect(isOver).toBe(false);
  proxy.endAtServer();
  proxy.speak();
  // Until the pool hears that PostgreSQL answers again, no caller has to wait for it.
  for (let isAnswered = false; !isAnswered;) {
    const answered = database.rows(one).then(
      () => true,
      () => false,
    );
    await passTimeUntil(clock, answered);
    isAnswered = await answered;
  }
  await passTimeUntil(clock, waiting);
  expect(await waiting).toBeInstanceOf(DatabaseUnavailableError);
  await holder.end();
  await Promise.all([database.close(), direct.close()]);
  await proxy.stop();
});

/** Resolves once a statement waits for the lock of the test; before that there would be nothing to disturb. */
async function untilSomebodyWaits(database: Database): Promise<void> {
  const waiting = unpreparedStatement(
    `select from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
     where l.locktype = 'advisory' and l.classid = 740523 and not l.granted`,
  );
  while ((await database.rows(waiting)).length === 0);
}

test.each(['other callers are answered', 'an idle connection is'])(
  'a long job goes on where no new connection can be opened, and %s',
  async (reason) => {
    const proxy = await startSilentProxy(address);
    const clock = createManualClock();
    const changes: boolean[] = [];
    const database = openDatabase({
      address: proxy.address,
      connectionsMax: 2,
      clock,
      onSilence: (isSilent) => changes.push(isSilent),
    });
    const direct = openDatabase({ address, connectionsMax: 2 });
    const lock = unpreparedStatement('select pg_advisory_xact_lock(740522, 1)');
    await Promise.all([database.rows(one), database.rows(one)]);
    proxy.swallowNewConnections();
    const { job } = await direct.transaction(async (holder) => {
      await holder.rows(lock);
      let running: Promise<unknown> = Promise.resolve();
      await new Promise<void>((begun) => {
        running = database
          .transaction(async (transaction) => {
            await transaction.allowTime(null);
            const locked = transaction.rows(lock);
            begun();
            await locked;
            return 'done';
          })
          .catch((cause: unknown) => cause);
      });
      if (reason.startsWith('other')) {
        for (let second = 0; second < 20; second += 1) {
          clock.advance(1_000);
          await database.rows(one);
        }
      } else {
        clock.advance(4_000);
        await untilIdleWasAsked(direct);
        clock.advance(3_900);
      }
      return { job: running };
    });
    expect(await job).toBe('done');
    expect(changes).toEqual([]);
    await database.close();
    await direct.close();
    await proxy.stop();
  },
);

/** PostgreSQL has answered it; a few more round trips, so that the answer is there as well. */
async function untilIdleWasAsked(direct: Database): Promise<void> {
  const asked = unpreparedStatement(
    "select from pg_stat_activity where datname = current_database() and query = 'select 1' and state = 'idle'",
  );
  while ((await direct.rows(asked)).length === 0);
  for (let round = 0; round < 20; round += 1) await direct.rows(one);
}

test('a server that has no more connections to give away is there', async () => {
  const clock = createManualClock();
  const full = createServer((socket) => {
    const text = 'SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0';
    const length = Buffer.alloc(4);
    length.writeUInt32BE(text.length + 4);
    socket.once('data', () => socket.end(Buffer.concat([Buffer.from('E'), length, Buffer.from(text)])));
  });
  full.listen(0, '127.0.0.1');
  await once(full, 'listening');
  const { port } = full.address() as AddressInfo;
  expect(await askOnce({ url: `postgres://nobody@127.0.0.1:${port}/none` }, clock)).toBe('answers');
  full.close();
  await once(full, 'close');
  expect(await askOnce({ url: `postgres://nobody@127.0.0.1:${port}/none` }, clock)).toBe('refuses');
  const missing = { host: '/nonexistent', user: 'nobody', database: 'none' };
  expect(await askOnce(missing, clock)).toBe('refuses');
  expect(await askOnce({ url: 'postgres://nobody@name.invalid/none' }, clock)).toBe('unclear');
});
