import { type Clock, now } from '../platform/clock.ts';
import { instantOfId, lowestIdAt } from '../platform/ids.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { startTurns } from '../platform/queue/turns.ts';
import { createRowId } from './event-id.ts';
import { type EventRow, eventsOfRowMax, type LogEnd, type LoggedRow, type OutboxRow } from './log-store.ts';
import * as store from './log-store.ts';

/**
 * What has happened is numbered here, an organization at a time: what is committed moves from the outbox to the end of the
 * organization's log, where each event has the next position. The end is locked meanwhile, so that positions have neither
 * gaps nor repetitions, and whoever has read up to one has missed nothing before it. A transaction that takes long holds up
 * nobody: its events come later.
 */
export type NumberingTools = ChoreTools & {
  /** Told after every commit. */
  onNumbered: (organizationId: string) => void;
  /** The same, where there is something for alerts. */
  onAlerts: () => void;
  /** Smaller in tests. */
  rowsMax?: number;
  eventsMax?: number;
  atOnceMax?: number;
};

/** Rows of the outbox in one transaction. More would let the others wait longer for their turns. */
const defaultRowsMax = 500;
/** The same of what these rows tell, since one may have thousands of events: a row that has more goes alone. */
const defaultEventsMax = 20_000;
const organizationsMax = 100;
/** Organizations that are numbered at once: their time is spent on waiting for commits. */
const defaultAtOnceMax = 4;

export function startNumbering(tools: NumberingTools): RunningChore {
  const { database, clock, atOnceMax = defaultAtOnceMax } = tools;
  return startTurns(tools, {
    name: 'numbering events',
    topic: 'webhook_outbox',
    slicesMs: [null],
    organizationsMax,
    atOnceMax,
    find: (after, limit) => store.findUnnumbered(database, { at: now(clock), after, limit }),
    work: async (organizationId) => {
      const numbered = await numberEvents(tools, organizationId);
      if (numbered === null) return null;
      tools.onNumbered(organizationId);
      if (numbered.hasAlerts) tools.onAlerts();
      return 'more';
    },
  });
}

/** Numbers some of what waits; null if there is nothing. */
async function numberEvents(
  { database, clock, rowsMax = defaultRowsMax, eventsMax = defaultEventsMax }: NumberingTools,
  organizationId: string,
): Promise<{ hasAlerts: boolean } | null> {
  return database.asOrganizations([organizationId], async (transaction) => {
    const end = await store.lockEnd(transaction, organizationId);
    const taken = await store.takeUnnumbered(transaction, organizationId, { rowsMax, eventsMax });
    if (taken.length === 0) return null;
    return store.appendEvents(transaction, organizationId, append(clock, end, taken));
  });
}

/** Ids go up with the positions, whichever node makes them, so that a day is a part of the log. */
function append(
  clock: Clock,
  end: LogEnd,
  taken: readonly OutboxRow[],
): Parameters<typeof store.appendEvents>[2] {
  const atMs = Math.max(Math.trunc(clock.nowMs()), end.id === null ? 0 : instantOfId(end.id).getTime());
  const rows: EventRow[] = [];
  let next = end.position + 1;
  for (const row of taken.flatMap(piecesOf)) {
    const events = countEvents(row);
    rows.push({ ...row, position: next, id: createRowId(atMs), events });
    next += events;
  }
  const ids = [...rows.map(({ id }) => id), ...(end.id === null ? [] : [end.id])];
  const isNewDay = end.id === null || dayOf(instantOfId(end.id).getTime()) !== dayOf(atMs);
  return {
    rows,
    day: isNewDay ? { firstPosition: end.position + 1, firstId: lowestIdAt(atMs) } : null,
    // Ids in lower case sort like their bytes.
    end: { position: next - 1, id: ids.reduce((highest, id) => (id > highest ? id : highest)) },
  };
}

function countEvents({ subject_ids: subjectIds, ordinals }: LoggedRow): number {
  return ordinals?.length ?? subjectIds.length;
}

function piecesOf(row: OutboxRow): LoggedRow[] {
  const { type, happened_at, of_campaign } = row;
  const pieces = Math.ceil(countEvents(row) / eventsOfRowMax);
  return Array.from({ length: pieces }, (_, piece) => {
    const cut = <Item>(items: readonly Item[]) =>
      items.slice(piece * eventsOfRowMax, (piece + 1) * eventsOfRowMax);
    // One that all share stands in each piece.
    const share = <Item>(items: readonly Item[]) => (items.length === 1 ? items : cut(items));
    return {
      type,
      happened_at,
      of_campaign,
      subject_ids: share(row.subject_ids),
      ordinals: row.ordinals && cut(row.ordinals),
      facts: row.facts && share(row.facts),
    };
  });
}

const dayMs = 86_400_000;

/** In UTC, as partitions are. */
function dayOf(epochMs: number): number {
  return Math.floor(epochMs / dayMs);
}
