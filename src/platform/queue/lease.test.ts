import { EventEmitter, getEventListeners, once } from 'node:events';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { clientConfigOf, useTestDatabase } from '../../../test/support/test-database.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { startSilentProxy } from '../../../test/support/silent-proxy.ts';
import { type Clock, systemClock } from '../clock.ts';
import { silentLog } from '../log.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../postgres/database.ts';
import { type Lease, LeftToOthersError, takeLease, workerLockClass } from './lease.ts';

let address: DatabaseAddress;
let observer: pg.Client;

useTestDatabase({}, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  observer = new pg.Client(clientConfigOf(address));
  await observer.connect();
});

afterAll(() => observer.end());

/** Advisory locks are per database, and other tests take theirs on the same server. */
const leaseLocks = `pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
  where l.locktype = 'advisory' and l.classid = ${workerLockClass}`;

type Node = { lease: Lease; database: Database; recovered: number[] };

const nodes: Node[] = [];
const recoveries = new EventEmitter();

/** A worker as another process would be: a pool and connections of its own. */
async function startNode(
  recover: (epoch: number) => Promise<void> = () => Promise.resolve(),
  clock: Clock = systemClock,
): Promise<Node> {
  const database = openDatabase({ address, connectionsMax: 1 });
  const recovered: number[] = [];
  const lease = await takeLease({
    database,
    clock,
    log: silentLog,
    recover: async (epoch) => {
      await recover(epoch);
      recovered.push(epoch);
      recoveries.emit('recovered');
    },
  });
  const node = { lease, database, recovered };
  nodes.push(node);
  return node;
}

/** The first worker, once it is the guardian: a lease is had before that, and the next worker could be quicker. */
async function startGuardian(): Promise<Node> {
  const node = await startNode();
  await findGuardian();
  return node;
}

afterEach(async () => {
  for (const { lease, database } of nodes.splice(0)) {
    await lease.release();
    await database.close();
  }
  // No connection may be left, and no row: a worker that released its lease has cleaned up after itself.
  for (let left = await countConnections(); left > 0;) left = await countConnections();
  expect(await listEpochs()).toEqual([]);
});

/** The connection of the guardian, as soon as there is one. */
async function findGuardian(): Promise<number> {
  for (;;) {
    const { rows } = await observer.query<{ pid: number }>(
      `select l.pid from ${leaseLocks} and l.objid = 0 and l.granted`,
    );
    if (rows[0] !== undefined) return rows[0].pid;
  }
}

async function countConnections(): Promise<number> {
  const { rowCount } = await observer.query(
    "select from pg_stat_activity where datname = current_database() and application_name like 'postillion-%'",
  );
  return rowCount ?? 0;
}

async function listEpochs(): Promise<number[]> {
  const { rows } = await observer.query<{ epoch: string }>('select epoch from workers order by epoch');
  return rows.map(({ epoch }) => Number(epoch));
}

/** Ends the connections that hold, or wait for, the lock of that name; waits until they are gone. */
async function terminateHolder(lock: number): Promise<void> {
  const { rowCount } = await observer.query(
    `select pg_terminate_backend(l.pid, 10000) from ${leaseLocks} and l.objid = $1 and l.granted`,
    [lock],
  );
  expect(rowCount).toBe(1);
}

/** Who recovered what, once that worker was recovered and its row is gone. */
async function whenRecovered(epoch: number): Promise<number[][]> {
  while (!nodes.some(({ recovered }) => recovered.includes(epoch))) await once(recoveries, 'recovered');
  for (let epochs = await listEpochs(); epochs.includes(epoch);) epochs = await listEpochs();
  return nodes.map(({ recovered }) => recovered);
}

async function whenLost(lease: Lease): Promise<void> {
  if (!lease.signal.aborted) await once(lease.signal, 'abort');
}

async function whenGuarded(epochs: number[]): Promise<void> {
  const waitedFor = async () => {
    const { rows } = await observer.query<{ epoch: string }>(
      `select l.objid as epoch from ${leaseLocks} and l.objid <> 0 and not l.granted`,
    );
    return rows.map(({ epoch }) => Number(epoch));
  };
  for (let seen = await waitedFor(); epochs.some((epoch) => !seen.includes(epoch));) seen = await waitedFor();
}

test('every lease has an epoch of its own, and its worker is known while it lives', async () => {
  const [one, other] = [await startNode(), await startNode()];
  expect(other.lease.epoch).toBeGreaterThan(one.lease.epoch);
  expect(await listEpochs()).toEqual([one.lease.epoch, other.lease.epoch]);
  expect([one.lease.signal.aborted, other.lease.signal.aborted]).toEqual([false, false]);
});

test('a worker that loses its connection knows it, and another recovers its epoch and no other', async () => {
  const [guardian, worker] = [await startGuardian(), await startNode()];
  await terminateHolder(worker.lease.epoch);
  await whenLost(worker.lease);
  expect(await whenRecovered(worker.lease.epoch)).toEqual([[worker.lease.epoch], []]);
  expect(guardian.lease.signal.aborted).toBe(false);
});

test('a guardian that dies is followed by another, which recovers it', async () => {
  const [guardian, worker, third] = [await startGuardian(), await startNode(), await startNode()];
  await whenGuarded([worker.lease.epoch, third.lease.epoch]);
  // Its guarding connections end with it, as those of a dead process do.
  await terminateHolder(guardian.lease.epoch);
  await whenLost(guardian.lease);
  const recovered = await whenRecovered(guardian.lease.epoch);
  expect(recovered.flat()).toEqual([guardian.lease.epoch]);
  expect(recovered[0]).toEqual([]);
});

test('a guardian that loses only its guarding connections keeps its lease, and another one guards', async () => {
  const [guardian, worker, third] = [await startGuardian(), await startNode(), await startNode()];
  await whenGuarded([worker.lease.epoch, third.lease.epoch]);
  await terminateHolder(0);
  await whenGuarded([guardian.lease.epoch]);
  expect(nodes.map(({ lease, recovered }) => [lease.signal.aborted, recovered])).toEqual(
    nodes.map(() => [false, []]),
  );
  await terminateHolder(guardian.lease.epoch);
  await whenRecovered(guardian.lease.epoch);
});

test('a worker that has ended leaves no connection open, although the locks that it waited for are still held', async () => {
  const [guardian, worker, third] = [await startGuardian(), await startNode(), await startNode()];
  await whenGuarded([worker.lease.epoch, third.lease.epoch]);
  // A lease each, a place each in the queue of guardians, and the guardian's watch over the other two.
  const expected = 3 + 3 + 2;
  for (let round = 0; round < 3; round += 1) {
    const passing = await startNode();
    await whenGuarded([passing.lease.epoch]);
    await passing.lease.release();
    await whenRecovered(passing.lease.epoch);
    nodes.splice(nodes.indexOf(passing), 1);
    await passing.database.close();
  }
  for (let left = await countConnections(); left !== expected;) left = await countConnections();
  expect(guardian.lease.signal.aborted).toBe(false);
});

test('rows that are deleted while workers wait for each other can be removed', async ({ signal }) => {
  const [, worker, third] = [await startGuardian(), await startNode(), await startNode()];
  await whenGuarded([worker.lease.epoch, third.lease.epoch]);
  const { rows } = await observer.query<{ deleted: string }>('select pg_current_xact_id()::text as deleted');
  const holdBack = async () => {
    const { rowCount } = await observer.query(
      `select from pg_stat_activity
       where datname = current_database() and application_name like 'postillion-%'
         and age(backend_xmin) >= age($1::text::xid)`,
      [rows[0]!.deleted],
    );
    return rowCount ?? 0;
  };
  while ((await holdBack()) > 0) signal.throwIfAborted();
  // And they wait on.
  await whenGuarded([worker.lease.epoch, third.lease.epoch]);
});

test('a worker is known once its lock is held, and not before: a guardian would take it for dead', async () => {
  await startGuardian();
  const { rows } = await observer.query<{ last: string }>("select nextval('worker_epochs') as last");
  const epoch = Number(rows[0]!.last) + 1;
  // Another holder of its lock keeps it between its two steps.
  const inTheWay = new pg.Client(clientConfigOf(address));
  await inTheWay.connect();
  await inTheWay.query('select pg_advisory_lock($1, $2)', [workerLockClass, epoch]);
  const starting = startNode();
  await whenGuarded([epoch]);
  expect(await listEpochs()).not.toContain(epoch);
  await inTheWay.end();
  const worker = await starting;
  expect(worker.lease.epoch).toBe(epoch);
  expect(await listEpochs()).toContain(epoch);
  await whenGuarded([epoch]);
  expect(nodes.flatMap(({ recovered }) => recovered)).toEqual([]);
});

test('a burial waits for what its worker has under way, and recovers that too', async () => {
  const seen: number[] = [];
  await startNode(async (epoch) => {
    const { rowCount } = await observer.query('select from hand_offs where epoch = $1', [epoch]);
    seen.push(rowCount ?? 0);
  });
  // The worker that is to be buried could be quicker.
  await findGuardian();
  const worker = await startNode();
  const { epoch } = worker.lease;
  await whenGuarded([epoch]);
  // A statement of the worker's, which holds its row, and outlives it.
  const outliving = new pg.Client(clientConfigOf(address));
  await outliving.connect();
  await outliving.query('begin');
  await outliving.query('select from workers where epoch = $1 for share', [epoch]);
  await terminateHolder(epoch);
  const isBurialWaiting = async () => {
    const { rowCount } = await observer.query(
      `select from pg_stat_activity
       where application_name = 'postillion-guardian' and datname = current_database()
         and $1 = any (pg_blocking_pids(pid))`,
      [(outliving as pg.Client & { processID: number }).processID],
    );
    return rowCount === 1;
  };
  for (let isWaiting = false; !isWaiting; isWaiting = await isBurialWaiting());
  await outliving.query(
    `insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
     values ($1, 1, '{}', '{}', '{}', '{}')`,
    [epoch],
  );
  await outliving.query('commit');
  await outliving.end();
  await whenRecovered(epoch);
  expect(seen).toEqual([1]);
  await observer.query('delete from hand_offs');
});

const one = unpreparedStatement('select 1 as one');

test('a guardian whose first statement is never answered begins anew, and guards', async () => {
  const proxy = await startSilentProxy(address);
  const clock = createManualClock();
  const database = openDatabase({ address, connectionsMax: 1, clock });
  const forgetful = openDatabase({ address: proxy.address, connectionsMax: 1, clock });
  nodes.push({
    lease: { epoch: 0, signal: AbortSignal.abort(), release: proxy.stop },
    database: forgetful,
    recovered: [],
  });
  let connections = 0;
  const others: pg.Client[] = [];
  const lease = await takeLease({
    database: {
      ...database,
      connectAlone: async (name) => {
        if (name !== 'postillion-guardian') {
          const other = await database.connectAlone(name);
          others.push(other);
          return other;
        }
        connections += 1;
        if (connections > 1) return database.connectAlone(name);
        const client = await forgetful.connectAlone(name);
        proxy.forgetConnections();
        return client;
      },
    },
    clock,
    log: silentLog,
    recover: () => Promise.resolve(),
  });
  nodes.push({ lease, database, recovered: [] });
  const isGuarded = async () => {
    const { rowCount } = await observer.query(`select from ${leaseLocks} and l.objid = 0 and l.granted`);
    return rowCount === 1;
  };
  while (connections < 2) {
    clock.advance(1_000);
    // Others are answered, so that this connection alone is late; and what looks after them has the time to hear it.
    for (let answers = 0; answers < 10; answers += 1) await database.rows(one);
    // The connection that the lease hangs on as well: on a busy machine seconds of this clock go by before it is.
    for (const other of others) await database.rowsAlone(other, one);
  }
  // From here on time stands still: what the new connection asks is not to be late, however long it takes.
  while (!(await isGuarded()));
  expect(connections).toBe(2);
  expect(lease.signal.aborted).toBe(false);
});

test('a recovery that fails is tried again until it works, without interrupting the watch over the others', async () => {
  let attempts = 0;
  await startNode(() => {
    attempts += 1;
    return attempts === 1 ? Promise.reject(new Error('the database is busy')) : Promise.resolve();
  });
  const guardian = await findGuardian();
  const worker = await startNode();
  await terminateHolder(worker.lease.epoch);
  await whenRecovered(worker.lease.epoch);
  expect(attempts).toBe(2);
  expect(await findGuardian()).toBe(guardian);
});

test.each([
  ['by the same guardian', () => new Error('it cannot be recovered yet')],
  ['by the next, which is the same one', () => new LeftToOthersError('of a newer release')],
])(
  'a recovery that fails often is tried again after longer and longer pauses, up to a minute: %s',
  async (_by, failure) => {
    const pausesMs: number[] = [];
    const hurried: Clock = {
      ...systemClock,
      after: (delayMs, callback) => {
        pausesMs.push(delayMs);
        return systemClock.after(1, callback);
      },
    };
    const failuresMax = 9;
    let attempts = 0;
    const guardian = await startNode(() => {
      attempts += 1;
      return attempts <= failuresMax ? Promise.reject(failure()) : Promise.resolve();
    }, hurried);
    await findGuardian();
    const worker = await startNode();
    await terminateHolder(worker.lease.epoch);
    await whenRecovered(worker.lease.epoch);
    const longer = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000];
    // Between two rounds of a guardian are half a second more.
    const isPause = (pauseMs: number, at: number) => pauseMs > 500 || at === 0;
    expect(pausesMs.filter(isPause)).toEqual(longer);
    expect(getEventListeners(guardian.lease.signal, 'abort').length).toBeLessThan(3);
  },
);

test('what a guardian cannot recover is left to the next in line, and it lives on', async () => {
  let newerEpoch = 0;
  const older = await startNode((epoch) =>
    epoch === newerEpoch ? Promise.reject(new LeftToOthersError('of a newer release')) : Promise.resolve(),
  );
  const guardian = await findGuardian();
  const worker = await startNode();
  newerEpoch = worker.lease.epoch;
  const newer = await startNode();
  await terminateHolder(worker.lease.epoch);
  await whenRecovered(worker.lease.epoch);
  expect([older.recovered, newer.recovered]).toEqual([[], [worker.lease.epoch]]);
  expect(await findGuardian()).not.toBe(guardian);
  expect(older.lease.signal.aborted).toBe(false);
});

test('a worker that gives its lease back ends it: the signal aborts, and its row is gone', async () => {
  const [guardian, worker] = [await startGuardian(), await startNode()];
  await worker.lease.release();
  expect(worker.lease.signal.aborted).toBe(true);
  expect(await listEpochs()).not.toContain(worker.lease.epoch);
  expect(guardian.lease.signal.aborted).toBe(false);
  nodes.splice(nodes.indexOf(worker), 1);
  await worker.database.close();
});

test('of workers that begin and die all at once every dead one is recovered by a living one', async () => {
  const started = await Promise.all(Array.from({ length: 6 }, () => startNode()));
  const dying = started.slice(0, 4);
  for (const { lease } of dying) await terminateHolder(lease.epoch);
  for (const { lease } of dying) await whenRecovered(lease.epoch);
  const recovered = new Set(nodes.flatMap((node) => node.recovered));
  for (const survivor of started.slice(4)) expect(recovered.has(survivor.lease.epoch)).toBe(false);
});
