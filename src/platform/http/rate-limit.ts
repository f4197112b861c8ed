import { LRUCache } from 'lru-cache';
import { type Clock, dateOf } from '../clock.ts';
import type { Log } from '../log.ts';
import { type Connection, type Database, statement, unpreparedStatement } from '../postgres/database.ts';
import { deleteOldRows } from '../postgres/old-rows.ts';

/**
 * Counts in windows of 60 seconds that all nodes share. A node counts by itself and answers at once; what it has
 * counted it adds to the database in the background, and learns there what the others counted. Between two
 * exchanges the nodes can let a few more through than the limit says: at most what arrives in `exchangeMs`.
 */
export type RateLimiter = {
  /** Counts `amount` and says whether it was within `limit`. */
  count: (subject: string, kind: string, limit: number, amount: number) => RateVerdict;
  /** Sends what is still uncounted. */
  flush: () => Promise<void>;
};

export type RateVerdict = { isWithin: boolean; limit: number; remaining: number; resetSeconds: number };

const windowMs = 60_000;
/** Shorter overshoots less and writes more. */
const exchangeMs = 100;
const subjectsMax = 50_000;

type Counter = {
  subject: string;
  kind: string;
  windowStartMs: number;
  /** By all nodes, as far as the database knew at the last exchange. */
  known: number;
  /** By this node since then. */
  own: number;
};

export function createRateLimiter(tools: { database: Database; clock: Clock; log: Log }): RateLimiter {
  const { database, clock, log } = tools;
  const counters = new LRUCache<string, Counter>({ max: subjectsMax });
  const changed = new Set<Counter>();
  let isScheduled = false;

  const exchange = async () => {
    isScheduled = false;
    const sent = [...changed].map((counter) => ({ counter, amount: counter.own }));
    changed.clear();
    for (const { counter, amount } of sent) {
      counter.own -= amount;
      counter.known += amount;
    }
    let totals: Map<string, number>;
    try {
      totals = await addToWindows(
        database,
        sent.map(({ counter, amount }) => ({ ...counter, amount })),
      );
    } catch (cause) {
      takeBack(sent);
      throw cause;
    }
    for (const { counter } of sent) {
      const total = totals.get(`${counter.kind}:${counter.subject}`);
      if (total !== undefined) counter.known = Math.max(counter.known, total);
    }
  };

  /** For the next exchange; a window that is over no longer matters. */
  const takeBack = (unsent: readonly { counter: Counter; amount: number }[]) => {
    const currentMs = windowStartAt(clock.nowMs());
    for (const { counter, amount } of unsent) {
      if (counter.windowStartMs !== currentMs) continue;
      counter.own += amount;
      counter.known -= amount;
      changed.add(counter);
    }
  };

  const schedule = () => {
    if (isScheduled) return;
    isScheduled = true;
    clock.after(exchangeMs, () => {
      exchange().catch((cause: unknown) => {
        log.warn({ err: cause }, 'request counts not exchanged with other nodes');
      });
    });
  };

  return {
    count: (subject, kind, limit, amount) => {
      const nowMs = clock.nowMs();
      const windowStartMs = windowStartAt(nowMs);
      const key = `${kind}:${subject}`;
      let counter = counters.get(key);
      if (counter?.windowStartMs !== windowStartMs) {
        counter = { subject, kind, windowStartMs, known: 0, own: 0 };
        counters.set(key, counter);
      }
      const used = counter.known + counter.own;
      const isWithin = used + amount <= limit;
      if (isWithin) {
        counter.own += amount;
        changed.add(counter);
        schedule();
      }
      return {
        isWithin,
        limit,
        remaining: Math.max(0, limit - counter.known - counter.own),
        resetSeconds: Math.min(Math.ceil((windowStartMs + windowMs - nowMs) / 1_000), windowMs / 1_000),
      };
    },
    flush: exchange,
  };
}

function windowStartAt(epochMs: number): number {
  return epochMs - (epochMs % windowMs);
}

const addWindows = statement<{ subject: string; kind: string; used: number }>(
  'rate_limit_add_windows',
  `insert into rate_windows as w (subject, kind, window_start, used)
   select subject, kind, window_start, used
   from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::bigint[])
     as addition (subject, kind, window_start, used)
   order by subject, kind, window_start
   on conflict (subject, kind, window_start)
   do update set used = w.used + excluded.used
   returning subject, kind, used`,
);

async function addToWindows(
  connection: Connection,
  additions: readonly { subject: string; kind: string; windowStartMs: number; amount: number }[],
): Promise<Map<string, number>> {
  if (additions.length === 0) return new Map();
  const rows = await connection.rows(addWindows, [
    additions.map(({ subject }) => subject),
    additions.map(({ kind }) => kind),
    additions.map(({ windowStartMs }) => dateOf(windowStartMs)),
    additions.map(({ amount }) => amount),
  ]);
  return new Map(rows.map((row) => [`${row.kind}:${row.subject}`, row.used]));
}

/** Reads all windows, which are those of an hour or so. Skips what another node is deleting. */
const deleteOld = unpreparedStatement(
  `with old as (
     select subject, kind, window_start
     from rate_windows
     where window_start < $1
     limit $2
     for update skip locked
   )
   delete from rate_windows w
   using old
   where w.subject = old.subject and w.kind = old.kind and w.window_start = old.window_start
   returning true as is_deleted`,
);

/** Windows that will not be asked for again. */
export async function deleteOldRateWindows(
  connection: Connection,
  before: Date,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteOld, before, rowsMax);
}
