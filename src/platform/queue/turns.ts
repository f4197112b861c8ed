import { type Clock, dateOf, now } from '../clock.ts';
import { isStatementTimeout, type Transaction } from '../postgres/database.ts';
import { isNotDeleted } from '../postgres/deleted-organizations.ts';
import { type ChoreName, type ChoreTools, type RunningChore, startChoreInPlaces } from './chore.ts';
import { createPauses } from './pauses.ts';
import type { WakeTopic } from './wake.ts';

/**
 * Turns of organizations, so that none waits until the work of another is done, however much that is.
 *
 * Where pieces of work are short, and many organizations have a few of them, one transaction takes those of all: of each
 * organization the first, then of each the second, and so on (`dueInTurns`). Where a piece is work for an organization,
 * `startTurns` goes from one organization to the next by their ids, and does one piece for each.
 *
 * How long a piece takes may not be known before. So `startTurns` has *places*, beside each other, each with a *slice*: how
 * long a piece may take there. An organization comes to the first place; if its piece takes longer, the piece is given up,
 * and is begun anew at the next place, to which its organization keeps coming until its pieces are short again. The last
 * place has no slice. So an organization has one place at most; those with long pieces wait for each other alone; and what
 * is wasted on a piece is less than the slices that it has passed, and all others wait for no more than a slice in each round.
 *
 * All of this is said of one process. Others take turns of their own: a piece that two of them must not do at once takes a
 * lock, and is nobody's turn while it is held.
 */
export type Turns = {
  name: ChoreName;
  /** Notified by everything that makes work for it. */
  topic: WakeTopic;
  /** The slice of each place, in milliseconds, the shortest first; null, of the last, is without limit. */
  slicesMs: readonly (number | null)[];
  /** How many organizations `find` returns at most. */
  organizationsMax: number;
  /** How many have their turns at once at a place, where turns are spent on waiting for others. One if left out. */
  atOnceMax?: number;
  /** Organizations with work, after the one given, in the order of their ids. */
  find: (after: string | null, limit: number) => Promise<string[]>;
  /** Does a bounded piece of an organization's work. Throws SliceOverError if it takes longer than its slice. */
  work: (organizationId: string, turn: Turn) => Promise<TurnResult>;
  /**
   * When the next work is due, after this instant, of which there is no notification. What was due before has had its turn,
   * which has said when to look again. Left out where all work is notified.
   */
  findNextAt?: (after: Date) => Promise<Date | null>;
};

export type Turn = {
  signal: AbortSignal;
  /** Null for no limit. */
  sliceMs: number | null;
};

/**
 * `more`: something was done, and there may be more. Else nothing can be done now: after how many milliseconds to look
 * again at the latest; null where only a notification will say so. So a piece that failed is `more` only where it is put
 * off: otherwise it would be tried again at once.
 */
export type TurnResult = 'more' | number | null;

/** What comes of a turn in which two things were looked after. */
export function soonerOf(first: TurnResult, second: TurnResult): TurnResult {
  if (first === 'more' || second === 'more') return 'more';
  return first === null || second === null ? (first ?? second) : Math.min(first, second);
}

/** A piece took longer than its slice. Nothing of it was done. */
export class SliceOverError extends Error {
  override readonly name = 'SliceOverError';
  constructor(options: { cause?: unknown } = {}) {
    super('a piece of work took longer than its slice', options);
  }
}

/** Holds what follows in the transaction to a slice: each statement, and with `check` all of them together. */
export async function beginSlice(
  clock: Clock,
  transaction: Transaction,
  sliceMs: number | null,
): Promise<{ check: () => void }> {
  if (sliceMs === null) return { check: () => undefined };
  const endMs = clock.monotonicMs() + sliceMs;
  await transaction.allowTime(sliceMs);
  return {
    check: () => {
      if (clock.monotonicMs() >= endMs) throw new SliceOverError();
    },
  };
}

/** Runs a transaction that was held to a slice. Where PostgreSQL ended a statement of it, the slice is over. */
export async function withinSlice<Result>(sliceMs: number | null, work: Promise<Result>): Promise<Result> {
  try {
    return await work;
  } catch (cause) {
    throw sliceMs !== null && isStatementTimeout(cause) ? new SliceOverError({ cause }) : cause;
  }
}

/** Of more failures than these the cause is no single item, but the database. */
const failuresMax = 10;

/**
 * Works on each of these in turns, a piece at a time, until `work` says of none that there is more: those with a great deal to
 * do come round again after all others. Ends early when the signal aborts. One that fails is left out from then on, and keeps
 * no other from its turn; at the end an AggregateError says what has failed. Items are kept in memory: for what is done once
 * in a while, and waited for.
 */
export async function workInTurns<Item>(
  items: AsyncIterable<Item>,
  work: (item: Item) => Promise<boolean>,
  signal: AbortSignal,
): Promise<void> {
  const failures: unknown[] = [];
  let round: AsyncIterable<Item> | Item[] = items;
  // Ends when nothing is left: each piece makes what is left of an item smaller.
  do {
    const left: Item[] = [];
    for await (const item of round) {
      if (signal.aborted || failures.length === failuresMax) break;
      try {
        if (await work(item)) left.push(item);
      } catch (cause) {
        failures.push(cause);
      }
    }
    round = left;
  } while (round.length > 0 && !signal.aborted && failures.length < failuresMax);
  if (failures.length > 0) throw new AggregateError(failures, 'not all of it could be worked on');
}

/** An organization whose work failed is skipped for this time, so that it does not delay the others. */
const failurePauseMs = 10_000;
/** While all that is due is another place's, or another node's, some of it may be left when they are done. */
export const busyPauseMs = 1_000;
/** Organizations whose pieces are long. Of more, those known longest are forgotten, and begin at the first place again. */
const longMax = 10_000;
/** A piece that takes less than this part of the slice of the place before is short again. */
const shortPart = 0.5;
/**
 * So many short pieces may come before the one that was given up. With none, that one would be begun at the first place
 * again after each of them, and never be done as long as there are others; with more, an organization stays with those that
 * have long pieces although it has none any more.
 */
const shortPiecesMax = 10;

/** Takes turns until it is stopped. May run on any number of nodes. */
export function startTurns(tools: ChoreTools, turns: Turns): RunningChore {
  /** At which place organizations go on, other than the first, and how many short pieces may still come before a long one. */
  const placeOf = new Map<string, { place: number; shortPiecesLeft: number }>();
  /** Whether an organization has its turn at this moment. It stays that until the turn is over, whatever its next place. */
  const underWay = new Set<string>();
  const chore = startChoreInPlaces(tools, {
    name: turns.name,
    topic: turns.topic,
    places: turns.slicesMs.map((sliceMs, place) => createRound(sliceMs, place)),
  });
  return chore;

  /** One look at the organizations that have work, and a turn for each of those whose place this is. */
  function createRound(sliceMs: number | null, place: number) {
    const paused = createPauses(tools.clock);
    let after: string | null = null;
    let beganAt = now(tools.clock);
    let isMore = false;
    let pauseMs: number | null = null;
    const waitAtMost = (ms: number | null) => {
      if (ms !== null) pauseMs = Math.min(ms, pauseMs ?? ms);
    };
    const take = async (organizationId: string, signal: AbortSignal): Promise<void> => {
      if (paused.remainingMs(organizationId) > 0) {
        waitAtMost(Math.min(paused.remainingMs(organizationId), busyPauseMs));
        return;
      }
      if (underWay.has(organizationId) || (placeOf.get(organizationId)?.place ?? 0) !== place) {
        waitAtMost(busyPauseMs);
        return;
      }
      underWay.add(organizationId);
      const startedMs = tools.clock.monotonicMs();
      try {
        const result = await turns.work(organizationId, { signal, sliceMs });
        if (result === 'more') isMore = true;
        else waitAtMost(result);
        if (result === 'more') noteDuration(organizationId, tools.clock.monotonicMs() - startedMs);
      } catch (cause) {
        if (signal.aborted) return;
        if (cause instanceof SliceOverError) {
          moveTo(organizationId, place + 1);
          return;
        }
        paused.add(organizationId, failurePauseMs);
        waitAtMost(busyPauseMs);
        tools.log.warn({ err: cause, chore: turns.name, organization_id: organizationId }, 'interrupted');
      } finally {
        underWay.delete(organizationId);
      }
    };
    return async (signal: AbortSignal): Promise<'at once' | Date | null> => {
      // Whoever comes to another place wakes it.
      if (place > 0 && ![...placeOf.values()].some((known) => known.place === place)) {
        after = null;
        return null;
      }
      // Counts over the whole round: there may be more organizations than one query returns.
      if (after === null) {
        beganAt = now(tools.clock);
        isMore = false;
        pauseMs = null;
      }
      const ids = await turns.find(after, turns.organizationsMax);
      after = ids.length === turns.organizationsMax ? (ids.at(-1) ?? null) : null;
      const queue = ids.values();
      const takeNext = async () => {
        for (const organizationId of queue) {
          if (signal.aborted) return;
          await take(organizationId, signal);
        }
      };
      await Promise.all(Array.from({ length: turns.atOnceMax ?? 1 }, takeNext));
      signal.throwIfAborted();
      if (isMore || after !== null) return 'at once';
      const nextAt = (await turns.findNextAt?.(beganAt)) ?? null;
      if (pauseMs === null) return nextAt;
      const againAt = dateOf(tools.clock.nowMs() + pauseMs);
      return nextAt !== null && nextAt < againAt ? nextAt : againAt;
    };
  }

  /** Of a piece that was done. */
  function noteDuration(organizationId: string, tookMs: number): void {
    const known = placeOf.get(organizationId);
    if (known === undefined) return;
    const isShort = tookMs < (turns.slicesMs[known.place - 1] ?? 0) * shortPart;
    if (isShort && known.shortPiecesLeft === 0) moveTo(organizationId, known.place - 1);
    else known.shortPiecesLeft = isShort ? known.shortPiecesLeft - 1 : 0;
  }

  function moveTo(organizationId: string, place: number): void {
    placeOf.delete(organizationId);
    if (place === 0) return;
    if (placeOf.size >= longMax) {
      for (const [oldest] of placeOf) {
        placeOf.delete(oldest);
        break;
      }
    }
    placeOf.set(organizationId, { place, shortPiecesLeft: shortPiecesMax });
    chore.wake();
  }
}

/**
 * Rows are locked before it is known whose turn it is: so many times the limit at most, or one of each organization. With
 * less, few organizations do not fill a batch; with more, other nodes find less.
 */
const sharedMax = 4;

/** What is waiting in a table, in turns: see `dueInTurns`. All of it is SQL of our own, and nothing from outside. */
export type WaitingRows = {
  table: string;
  /** The column that says whose turn it is. */
  of: string;
  /** Whether that is an organization, which has no turn any more when it is being deleted. True if left out. */
  isOfOrganizations?: boolean;
  /** The columns that tell a row from others, with those that `returning` needs. */
  columns: readonly string[];
  /** Of each organization, which comes first: columns of an index that begins with `of`. */
  order: readonly string[];
  /** Over the unnamed columns of the table: which rows wait at all, as the index says it. True of every row if left out. */
  among?: string;
  /** Which of them are due. True of every row if left out. */
  due?: string;
  /** The parameter with the greatest number of rows. */
  limit: string;
};

/**
 * Two common table expressions: `active`, whoever has rows at all, and `due`, the rows whose turn it is, locked, with their
 * `turn`. Rows that another transaction has locked are left out. A loose scan over an index that begins with the columns of
 * `among` and with `of`: it reads one row for each organization, and then no more than it locks. To be used after `with
 * recursive`. Where many organizations have rows, fewer than the limit may be due although there are more: only where
 * none are due, nothing is left.
 */
export function dueInTurns({
  table,
  of,
  isOfOrganizations = true,
  columns,
  order,
  among = 'true',
  due = 'true',
  limit,
}: WaitingRows): string {
  return `active (turn_of) as (
     (select ${of} from ${table} where ${among} order by ${of} limit 1)
     union all
     select next.turn_of
     from active
     cross join lateral (
       select ${of} as turn_of
       from ${table}
       where ${among} and ${of} > active.turn_of
       order by ${of}
       limit 1
     ) next
   ), due as (
     select ${columns.map((column) => `waiting.${column}`).join(', ')}, waiting.turn
     from active
     cross join lateral (
       select *, row_number() over (order by ${order.join(', ')}) as turn
       from (
         select ${[...new Set([...columns, ...order])].join(', ')}
         from ${table}
         where ${among} and ${of} = active.turn_of and ${due}
         order by ${order.join(', ')}
         limit greatest(least(${limit}::integer * ${sharedMax} / (select count(*) from active), ${limit}), 1)
         for update skip locked
       ) first
     ) waiting
     where ${isOfOrganizations ? isNotDeleted('active.turn_of') : 'true'}
     order by waiting.turn, ${order.map((column) => `waiting.${column}`).join(', ')}
     limit ${limit}
   )`;
}

/**
 * SQL that lists organizations with rows that are due, in the order of their ids: those after the parameter `$2`, if that is
 * not null, and `$3` of them at most. A loose scan over an index that begins with the columns of `among` and `of`. By a
 * lateral join, since any other may go through the organizations in another order, and the next page would begin after the
 * last of this one.
 */
export function organizationsDue({
  table,
  among = 'true',
  due,
}: {
  table: string;
  among?: string;
  due: string;
}): string {
  return `with recursive active (organization_id) as (
       (select organization_id
        from ${table}
        where ${among} and ($2::uuid is null or organization_id > $2)
        order by organization_id
        limit 1)
       union all
       select next.organization_id
       from active
       cross join lateral (
         select organization_id
         from ${table}
         where ${among} and organization_id > active.organization_id
         order by organization_id
         limit 1
       ) next
     )
     select found.organization_id
     from (
       select active.organization_id
       from active
       cross join lateral (
         select from ${table} t where t.organization_id = active.organization_id and ${among} and ${due} limit 1
       ) one
       where ${isNotDeleted('active.organization_id')}
       limit $3
     ) found
     order by found.organization_id`;
}
