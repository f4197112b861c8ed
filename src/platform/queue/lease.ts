import { hostname } from 'node:os';
import type { Client } from 'pg';
import { type Clock, now, sleep } from '../clock.ts';
import type { Log } from '../log.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../postgres/database.ts';
import { type Predicate, toPredicate } from '../postgres/predicate.ts';

/**
 * A worker's sign of life: a connection of its own that holds an advisory lock on the worker's epoch. PostgreSQL
 * frees it within milliseconds of a `kill -9`, and not while the worker is merely slow.
 *
 * - **Living.** The lock is held. What the worker claims carries its epoch.
 * - **Lost.** The connection ended: the guardian, which gets the lock, may give the worker's claims to others. The
 *   worker counts itself as dead: `signal` aborts, and its user begins nothing more under it and takes a new lease.
 * - **Guarding.** Each worker also asks for the one lock of the guardian; all but one wait for it, and so know at
 *   once when the guardian dies. The guardian waits for the lock of every other worker, a connection each, so that
 *   a death wakes it and no worker has to poll. It recovers the dead worker's claims and removes its
 *   row. A worker that joins says so by a notification. What only others can recover, as an older release beside a
 *   newer one cannot, makes it guardian no more: the next in line tries.
 *
 * It does not promise that a lost worker has stopped: its statements must find no claim of theirs, and must make
 * none (`unburiedWorker`).
 */
export type Lease = {
  /** Stamped on everything that this worker claims; never used twice. */
  epoch: number;
  /** Aborts when the lease is lost or given back. */
  signal: AbortSignal;
  /** Gives the lease back; what is still claimed under it is recovered by others. */
  release: () => Promise<void>;
};

export type LeaseOptions = {
  database: Database;
  clock: Clock;
  log: Log;
  /**
   * Returns the claims of a worker that is certainly dead; may run more than once for the same epoch. Should it reject,
   * it is asked again: at once when the database is back (`DatabaseUnavailableError`), else after a growing pause. With
   * a LeftToOthersError another worker is asked after that pause.
   */
  recover: (epoch: number) => Promise<void>;
};

/** Other workers may be able to recover what is left of a worker; this one is not. */
export class LeftToOthersError extends Error {
  override readonly name = 'LeftToOthersError';
}

/** The first half of the two-part advisory locks; the second is the epoch, or zero for the guardian. */
export const workerLockClass = 740_521;
const guardianLock = 0;
const joinChannel = 'postillion_workers';

/**
 * SQL that finds the worker of an epoch unless it was buried, and puts its burial off until the transaction ends.
 * What claims has to look for it: a statement may outlive the process that sent it, and what it claimed after the
 * burial would never be recovered. The same goes for a statement that announces a hand-off: the burial must not take
 * for untouched what is being announced. `epoch` is the statement's parameter, `$1` for instance.
 */
export function unburiedWorker(epoch: string): string {
  return `select from workers where epoch = ${epoch} for share`;
}

/** SQL: whether the worker of an epoch holds its lock at this moment. `epoch` is a column. */
export function isLivingWorker(epoch: string): Predicate {
  return toPredicate(
    `exists (
       select
       from pg_locks l
       where l.locktype = 'advisory' and l.granted and l.objsubid = 2
         and l.database = (select oid from pg_database where datname = current_database())
         and l.classid::bigint = ${workerLockClass} and l.objid::bigint = ${epoch}
     )`,
  );
}

/** How many workers hold their locks at this moment. */
export async function countLivingWorkers(connection: Connection): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ workers: number }>(
      `select count(*) as workers from workers w where ${isLivingWorker('w.epoch')}`,
    ),
  );
  return row?.workers ?? 0;
}

/** However long that takes. No snapshot is held meanwhile, as `pg_advisory_lock` by itself would. */
const takeLock = unpreparedStatement('call take_session_lock($1, $2)');

/** Throws a DatabaseUnavailableError. */
export async function takeLease(options: LeaseOptions): Promise<Lease> {
  const { database, log } = options;
  const holder = await database.connectAlone('postillion-worker');
  const lost = new AbortController();
  const lose = () => {
    if (!lost.signal.aborted) log.warn('worker lease lost');
    lost.abort(new Error('the worker lease was lost'));
  };
  holder.on('end', lose);
  holder.on('error', lose);
  try {
    // Before the first statement: the network may be cut while it is on its way.
    database.watchOver(holder);
    const epoch = await register(options, holder);
    const guarding = guard(options, epoch, lost.signal);
    log.info({ epoch }, 'worker lease taken');
    return {
      epoch,
      signal: lost.signal,
      release: async () => {
        holder.off('end', lose);
        lost.abort(new Error('the worker lease was given back'));
        await guarding;
        try {
          // The row stays if this fails, so that the guardian finds the claims and returns them.
          await options.recover(epoch);
          await database.rowsAlone(holder, unpreparedStatement('delete from workers where epoch = $1'), [
            epoch,
          ]);
        } catch (cause) {
          log.warn({ err: cause, epoch }, 'worker lease not given back in good order');
        }
        await holder.end().catch(ignore);
      },
    };
  } catch (cause) {
    lost.abort(cause);
    await holder.end().catch(ignore);
    throw cause;
  }
}

async function register({ database, clock }: LeaseOptions, holder: Client): Promise<number> {
  const [next] = await database.rowsAlone(
    holder,
    unpreparedStatement<{ epoch: number }>("select nextval('worker_epochs') as epoch"),
  );
  if (next === undefined) throw new Error('no worker epoch');
  await database.rowsAlone(holder, takeLock, [workerLockClass, next.epoch]);
  await database.rowsAlone(
    holder,
    unpreparedStatement('insert into workers (epoch, host, pid, started_at) values ($1, $2, $3, $4)'),
    [next.epoch, hostname(), process.pid, now(clock)],
  );
  await database.rowsAlone(holder, unpreparedStatement('select pg_notify($1, $2)'), [
    joinChannel,
    `${next.epoch}`,
  ]);
  return next.epoch;
}

const retryMs = 500;

/** Runs until the signal aborts; begins anew after a pause whenever a connection breaks. */
async function guard(options: LeaseOptions, ownEpoch: number, signal: AbortSignal): Promise<void> {
  const pauses = new Map<number, number>();
  while (!isAborted(signal)) {
    const round = new AbortController();
    const stop = () => {
      round.abort();
    };
    signal.addEventListener('abort', stop, { once: true });
    try {
      await guardOnce(options, ownEpoch, pauses, round);
    } catch (cause) {
      if (!isAborted(signal) && !(cause instanceof LeftToOthersError))
        options.log.warn({ err: cause }, 'guarding other workers was interrupted');
    }
    round.abort();
    signal.removeEventListener('abort', stop);
    await sleep(options.clock, retryMs, signal).catch(ignore);
  }
}

/** Becomes the guardian, sooner or later, and stays it until a connection breaks or the round is aborted. */
async function guardOnce(
  options: LeaseOptions,
  ownEpoch: number,
  pauses: RecoveryPauses,
  round: AbortController,
): Promise<void> {
  const { database } = options;
  await withWaitingConnection(options, round.signal, async (client) => {
    await database.waitAlone(client, takeLock, [workerLockClass, guardianLock]);
    const watched = new Set([ownEpoch]);
    const broken = new Promise<never>((_resolve, reject) => {
      const watch = (epoch: number) => {
        if (watched.has(epoch)) return;
        watched.add(epoch);
        watchWorker(options, epoch, pauses, round.signal).catch(reject);
      };
      client.on('notification', ({ payload }) => {
        watch(Number(payload));
      });
      client.on('end', () => {
        reject(new Error('the guardian lost its connection'));
      });
      void startWatching(database, client, watch)
        .then(() => {
          database.watchOver(client);
        })
        .catch(reject);
    });
    await broken;
  });
}

async function startWatching(
  database: Database,
  client: Client,
  watch: (epoch: number) => void,
): Promise<void> {
  // Listening first: a worker that registers in between is then seen twice, and never missed.
  await database.rowsAlone(client, unpreparedStatement(`listen ${joinChannel}`));
  const workers = await database.rowsAlone(
    client,
    unpreparedStatement<{ epoch: number }>('select epoch from workers'),
  );
  for (const { epoch } of workers) watch(epoch);
}

/** Fewer would try what always fails too often; more would keep what failed once for longer. */
const recoveryPauseMinMs = 500;
const recoveryPauseMaxMs = 60_000;

/** The next of each epoch that could not be recovered; they outlive the rounds, or guardians would change all the time. */
type RecoveryPauses = Map<number, number>;

/**
 * Resolves when the worker is dead and buried. One whose claims cannot be recovered is tried again after longer and
 * longer pauses, and by itself: its trouble must not interrupt the watch over the others. Rejects after such a pause
 * where others are to try.
 */
async function watchWorker(
  options: LeaseOptions,
  epoch: number,
  pauses: RecoveryPauses,
  signal: AbortSignal,
): Promise<void> {
  const nextPauseMs = () => pauses.get(epoch) ?? recoveryPauseMinMs;
  const pause = async () => {
    const pauseMs = nextPauseMs();
    pauses.set(epoch, Math.min(pauseMs * 2, recoveryPauseMaxMs));
    await sleep(options.clock, pauseMs, signal).catch(ignore);
  };
  const recover = async () => {
    try {
      await options.recover(epoch);
      return true;
    } catch (cause) {
      if (cause instanceof DatabaseUnavailableError) throw cause;
      const fields = { err: cause, epoch, pause_ms: nextPauseMs() };
      options.log.error(fields, 'an ended worker cannot be recovered');
      if (cause instanceof LeftToOthersError) throw cause;
      return false;
    }
  };
  // Ends when it is buried, or when the guardian's round does.
  while (!isAborted(signal)) {
    try {
      if (await bury(options, epoch, signal, recover)) {
        pauses.delete(epoch);
        return;
      }
    } catch (cause) {
      if (cause instanceof LeftToOthersError) await pause();
      throw cause;
    }
    await pause();
  }
}

/** Returns whether the worker is dead and buried: not where its claims were not recovered. */
async function bury(
  options: LeaseOptions,
  epoch: number,
  signal: AbortSignal,
  recover: () => Promise<boolean>,
): Promise<boolean> {
  const { database } = options;
  let isBuried = false;
  await withWaitingConnection(options, signal, async (client) => {
    await database.waitAlone(client, takeLock, [workerLockClass, epoch]);
    await database.rowsAlone(client, unpreparedStatement('begin'));
    // Claims under way are waited for, and then recovered; later ones wait, and then find no worker.
    await database.waitAlone(client, unpreparedStatement('select from workers where epoch = $1 for update'), [
      epoch,
    ]);
    if (!(await recover())) return;
    await database.rowsAlone(client, unpreparedStatement('delete from workers where epoch = $1'), [epoch]);
    await database.rowsAlone(client, unpreparedStatement('commit'));
    options.log.info({ epoch }, 'claims of an ended worker recovered');
    isBuried = true;
  });
  return isBuried;
}

/**
 * A backend that waits for a lock does not notice that its client is gone: each worker that ended would leave its
 * waiting connections open for as long as the guardian lives.
 */
const lookAfterClient = unpreparedStatement(
  "select set_config('client_connection_check_interval', '1000', false)",
);

/** A connection that may wait for a lock for ever, and that is closed when the signal aborts. */
async function withWaitingConnection(
  options: LeaseOptions,
  signal: AbortSignal,
  work: (client: Client) => Promise<void>,
): Promise<void> {
  const { database } = options;
  const client = await database.connectAlone('postillion-guardian');
  // Ending politely would wait for the very statement that is to be interrupted.
  const destroy = () => {
    client.connection.stream.destroy();
  };
  if (signal.aborted) destroy();
  signal.addEventListener('abort', destroy, { once: true });
  try {
    await database.rowsAlone(
      client,
      unpreparedStatement(
        `select set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
           set_config('idle_in_transaction_session_timeout', '0', false)`,
      ),
    );
    // Not every platform can check; there the connection stays until it has the lock.
    await database.rowsAlone(client, lookAfterClient).catch(ignore);
    await work(client);
  } catch (cause) {
    if (!signal.aborted) throw cause;
  } finally {
    signal.removeEventListener('abort', destroy);
    await client.end().catch(ignore);
  }
}

/** A function, so that the compiler does not take the flag for constant across an await. */
function isAborted(signal: AbortSignal): boolean {
  return signal.aborted;
}

function ignore(): void {
  // A connection that cannot be closed cleanly is closed anyway; a pause that is cut short is over.
}
