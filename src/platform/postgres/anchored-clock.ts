/**
 * The time of an installation: what the database's clock said last, and what the monotonic clock of this process says
 * has passed since. All nodes agree on it, and setting the wall clock of a machine changes nothing.
 *
 * - **Exchange.** Every half minute the database is asked for its time. Its answer was written at some moment between
 *   question and answer, which bounds what is to be added to the monotonic clock; the present value is moved into these
 *   bounds, and no further. An exchange that took long has wide bounds, so that it moves nothing without need.
 * - **Room first.** A time that lies more than a day from the one for which partitions were made last is adopted only
 *   once they exist for it: no row is dated into a month without a partition.
 * - **Jumps.** The database's clock is followed wherever it goes, and a jump is logged.
 *
 * It does not make up for a database whose own clock is wrong. Monotonic clocks stand still while a machine is
 * suspended: until the next exchange the time is late by as much.
 */
import { type Clock, dateOf } from '../clock.ts';
import type { Log } from '../log.ts';
import { readServerTimeMs } from './condition.ts';
import type { Connection } from './database.ts';

export type AnchoredClock = Clock & {
  /** Asks the database now. Rejects, and leaves the time as it is, if there is no answer or no room can be made. */
  exchange: () => Promise<void>;
  stop: () => Promise<void>;
};

export type AnchoredClockTools = {
  database: Connection;
  /** Its wall clock counts only until the first exchange. */
  base: Clock;
  log: Log;
  /** Makes the partitions that are needed at this time and soon after. */
  makeRoom: (at: Date) => Promise<void>;
};

/** More often is a statement for nothing; less often, a machine that was suspended is late for longer. */
const exchangeEveryMs = 30_000;

/** Partitions are made for months ahead: far more than a day would want them in time, and less would ask for nothing. */
const roomMaxAgeMs = 24 * 60 * 60_000;

/** Clocks that NTP keeps are milliseconds apart. */
const toldStepMs = 60_000;
/** So far ahead the database's clock is hardly right, and what is deleted by its age goes too early. */
const alarmingStepMs = 24 * 60 * 60_000;

/** Resolves once the time is right: the first exchange has taken place, with room for what is dated by it. */
export async function startAnchoredClock(tools: AnchoredClockTools): Promise<AnchoredClock> {
  const { database, base, log, makeRoom } = tools;
  /** What is to be added to the monotonic clock. */
  let offsetMs = base.nowMs() - base.monotonicMs();
  let roomMadeForMs: number | null = null;

  const exchange = async () => {
    const askedAtMs = base.monotonicMs();
    const serverMs = await readServerTimeMs(database);
    const answeredAtMs = base.monotonicMs();
    const wantedMs = Math.min(Math.max(offsetMs, serverMs - answeredAtMs), serverMs - askedAtMs);
    const atMs = base.monotonicMs() + wantedMs;
    if (roomMadeForMs === null || Math.abs(atMs - roomMadeForMs) > roomMaxAgeMs) {
      await makeRoom(dateOf(atMs));
      roomMadeForMs = atMs;
    }
    const stepMs = wantedMs - offsetMs;
    offsetMs = wantedMs;
    tellStep(log, stepMs);
  };

  // Twice: the first may have had to wait for a connection, and says little.
  await exchange();
  await exchange();

  let isStopped = false;
  let running: Promise<void> = Promise.resolve();
  const run = () => {
    running = exchange()
      .catch((cause: unknown) => {
        log.warn({ err: cause }, 'the time was not taken from the database');
      })
      .then(() => {
        if (!isStopped) cancel = base.after(exchangeEveryMs, run);
      });
  };
  let cancel = base.after(exchangeEveryMs, run);

  return {
    ...base,
    nowMs: () => base.monotonicMs() + offsetMs,
    exchange,
    stop: async () => {
      isStopped = true;
      cancel();
      await running;
    },
  };
}

function tellStep(log: Log, stepMs: number): void {
  if (Math.abs(stepMs) < toldStepMs) return;
  const step = { step_s: Math.round(stepMs / 1_000) };
  if (stepMs >= alarmingStepMs)
    log.error(step, "the database's clock is more than a day ahead of the time so far: it is followed");
  else log.warn(step, "the database's clock differs from the time so far: it is followed");
}
