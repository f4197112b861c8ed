import { LRUCache } from 'lru-cache';
import { createBatcher } from '../platform/batcher.ts';
import { type Clock, sleep } from '../platform/clock.ts';
import type { LoggedKind, LoggedRequest, NoteRequest } from '../platform/http/logged-request.ts';
import type { Log } from '../platform/log.ts';
import { type Database, DatabaseUnavailableError, isConflict } from '../platform/postgres/database.ts';
import { type ProcessShare, wholeShare } from '../platform/process-share.ts';
import { createShares } from '../platform/shares.ts';
import * as store from './store.ts';

/**
 * Writes the log of requests outside of them: a request that is over leaves an entry in memory, and batches are written.
 *
 * Entries of one kind of an organization have a rate. The first that is over it is held back until its turn comes, and those
 * that follow meanwhile are only counted with it: so every flood has entries that tell how large it was, and costs as many
 * rows as a slow one. It is the same where an organization has no room left in memory, of which it has a share.
 *
 * Not promised: that nothing is lost. What is in memory dies with a process that is killed, which is what came in the last
 * twentieth of a second. If the database takes nothing for a minute, what waits is given up, and counted with what comes next.
 */
export type RequestRecorder = {
  note: NoteRequest;
  /** Resolves when what was noted is written or given up. Held back stays what is. */
  flush: () => Promise<void>;
  /** The same, and what is held back is written too. Nothing may be noted any more. */
  stop: () => Promise<void>;
};

export type RequestRecorderTools = {
  database: Database;
  clock: Clock;
  log: Log;
  /** Told how many entries were written, and how many requests were left out. It must return at once. */
  onLogged?: (logged: LoggedCounts) => void;
};

/** `left_out` is by the rate, or for want of room. */
export type LoggedCounts = Partial<Record<'written' | 'left_out' | 'lost', number>>;

/**
 * What the processes of a machine write for an organization: a burst at once, and then so many a second. More is more to
 * store, and to look through: at these rates an organization that never pauses has two million rows in a week, of which a
 * page that finds nothing reads in a second. Less shows a program less of what it does; as it is, a thousand requests that
 * are refused together are all kept. The body of a refused request counts as one more for each kilobyte: the rate alone would
 * let an organization store 60 GB in a week.
 */
const rates: Readonly<Record<LoggedKind, { perSecond: number; burst: number }>> = {
  refused: { perSecond: 2, burst: 1_000 },
  turned_away: { perSecond: 0.2, burst: 20 },
  change: { perSecond: 1, burst: 100 },
  look: { perSecond: 0.2, burst: 20 },
};

/** Of organizations and kinds of requests. Beyond, those that asked longest ago begin anew. */
const tracksMax = 10_000;
/** How long a batch is held open: writing a row costs as much as writing some ten. */
const lingerMs = 50;
const batchItemsMax = 500;
/** What waits for the database, of which an organization alone can have half. */
const defaultWaitingBytesMax = 16 * 1_048_576;
/** How often it is looked whether the turn has come of what is held back. */
const heldBackMs = 1_000;
const triesMax = 60;
const retryMs = 1_000;

/** One kind of requests of one organization. */
type Track = {
  kind: LoggedKind;
  organizationId: string;
  /** When the next entry would come if all came evenly (GCRA, ITU-T I.371): as much ahead as the burst allows. */
  nextAtMs: number;
  held: LoggedRequest | null;
  leftOut: number;
};

type Waiting = store.LogEntry & { track: Track; release: () => void };

export function createRequestRecorder(
  tools: RequestRecorderTools,
  {
    share = wholeShare,
    waitingBytesMax = defaultWaitingBytesMax,
  }: { share?: ProcessShare; waitingBytesMax?: number } = {},
): RequestRecorder {
  const { clock, log, onLogged = () => undefined } = tools;
  const stopping = new AbortController();
  const room = createShares(waitingBytesMax);
  const holding = new Set<Track>();
  const tracks = new LRUCache<string, Track>({
    max: tracksMax,
    dispose: (track) => {
      holding.delete(track);
      lose(track.leftOut + (track.held === null ? 0 : 1));
    },
  });
  let lastAdded: Promise<unknown> = Promise.resolve();
  let isLosing = false;
  let isLookDue = false;

  const lose = (count: number) => {
    if (count > 0) onLogged({ lost: count });
  };

  const giveUp = (entries: readonly Waiting[]) => {
    if (!isLosing) log.warn('entries of the request log are lost, because the database does not take them');
    isLosing = true;
    for (const { track, leftOut } of entries) track.leftOut += 1 + leftOut;
    lose(entries.length);
  };

  const write = async (entries: readonly Waiting[]): Promise<void> => {
    // Ends after the last try.
    for (let tries = 1; ; tries += 1) {
      try {
        await writeEntries(tools.database, entries);
        isLosing = false;
        onLogged({ written: entries.length });
        return;
      } catch (cause) {
        const mayPass = cause instanceof DatabaseUnavailableError || isConflict(cause);
        if (!mayPass) log.error({ err: cause }, 'entries of the request log cannot be written');
        if (!mayPass || tries === triesMax || stopping.signal.aborted) {
          giveUp(entries);
          return;
        }
        await sleep(clock, retryMs, stopping.signal).catch(() => undefined);
      }
    }
  };

  const batcher = createBatcher<Waiting, undefined>({
    itemsMax: batchItemsMax,
    concurrency: 1,
    linger: { clock, lingerMs, itemsEnough: batchItemsMax },
    run: async (entries) => {
      await write(entries);
      for (const { release } of entries) release();
      return entries.map(() => undefined);
    },
  });

  const trackOf = (organizationId: string, kind: LoggedKind): Track => {
    const key = `${organizationId} ${kind}`;
    let track = tracks.get(key);
    if (track === undefined) {
      track = { kind, organizationId, nextAtMs: Number.NEGATIVE_INFINITY, held: null, leftOut: 0 };
      tracks.set(key, track);
    }
    return track;
  };

  const hasTurn = ({ kind, nextAtMs }: Track, nowMs: number) =>
    nextAtMs - nowMs <= ((rates[kind].burst - 1) * 1_000) / rates[kind].perSecond;

  /** Returns whether there was room for it. */
  const add = (track: Track, request: LoggedRequest, nowMs: number): boolean => {
    const place = room.take(track.organizationId, sizeOf(request));
    if (place === null) return false;
    const intervalMs = (1_000 * share.of) / rates[track.kind].perSecond;
    track.nextAtMs = Math.max(track.nextAtMs, nowMs) + intervalMs * (1 + (request.body?.length ?? 0) / 1_024);
    const { leftOut } = track;
    track.leftOut = 0;
    // The batcher never rejects, since `write` does not.
    lastAdded = batcher.add({ request, leftOut, track, release: place.release });
    return true;
  };

  const holdBack = (track: Track, request: LoggedRequest) => {
    track.held = request;
    holding.add(track);
    if (isLookDue) return;
    isLookDue = true;
    clock.after(heldBackMs, lookAtHeld);
  };

  const lookAtHeld = () => {
    isLookDue = false;
    const nowMs = clock.monotonicMs();
    for (const track of [...holding]) {
      const { held } = track;
      if (held !== null && hasTurn(track, nowMs) && add(track, held, nowMs)) {
        track.held = null;
        holding.delete(track);
      }
    }
    if (holding.size === 0) return;
    isLookDue = true;
    clock.after(heldBackMs, lookAtHeld);
  };

  return {
    note: ({ organizationId, kind }, describe) => {
      const track = trackOf(organizationId, kind);
      if (track.held !== null) {
        track.leftOut += 1;
        onLogged({ left_out: 1 });
        return;
      }
      const nowMs = clock.monotonicMs();
      const request = describe();
      if (!hasTurn(track, nowMs) || !add(track, request, nowMs)) holdBack(track, request);
    },
    flush: async () => {
      batcher.hurry();
      await lastAdded;
    },
    stop: async () => {
      stopping.abort(new Error('the server is stopping'));
      const nowMs = clock.monotonicMs();
      for (const track of holding) {
        if (track.held !== null && !add(track, track.held, nowMs)) lose(track.leftOut + 1);
        track.held = null;
      }
      holding.clear();
      await batcher.drain();
    },
  };
}

function writeEntries(database: Database, entries: readonly store.LogEntry[]): Promise<void> {
  const organizationIds = [...new Set(entries.map(({ request }) => request.organizationId))];
  return database.asOrganizationsByIndex(organizationIds, (transaction) =>
    store.insertLogEntries(transaction, entries),
  );
}

/** What it takes in memory, or a little more. */
function sizeOf({ path, query, message, userAgent, idempotencyKey, body }: LoggedRequest): number {
  const texts = [path, query, message, userAgent, idempotencyKey, body];
  return texts.reduce((sum, text) => sum + 2 * (text?.length ?? 0), 600);
}
