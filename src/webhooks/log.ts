import type { Connection, Database } from '../platform/postgres/database.ts';
import { eventIdOf } from './event-id.ts';
import {
  type CampaignEvents,
  type EventType,
  eventTypes,
  objectOf,
  progressType,
  subjectOf,
  typesOf,
} from './event-types.ts';
import { fitEvent } from './formats.ts';
import * as store from './log-store.ts';
import type { EventPage, WebhookEvent } from './schema.ts';

/** An event of the log, before it is told what it happened to. */
export type LoggedEvent = {
  id: string;
  position: number;
  type: EventType;
  at: Date;
  subjectId: string;
  /** Of a recipient; null of what is none. */
  ordinal: number | null;
  facts: object | null;
};

/**
 * Reads what events happened to. The log keeps keys and no content: what was erased since is told by nobody any more, and
 * what is told of a message is what it is by then. An event that is left out is told with the id of its subject alone.
 */
export type DescribeEvents = (
  connection: Connection,
  organizationId: string,
  events: readonly LoggedEvent[],
) => Promise<ReadonlyMap<LoggedEvent, object>>;

/** By what events happen to: their types without the last part. */
export type EventDescribers = Readonly<Record<string, DescribeEvents>>;

export type LogTools = { database: Database; describers: EventDescribers };

export type LogReading = {
  organizationId: string;
  /** A position; `oldest`: that of the oldest event which is kept; `now`: the one after the end of the log. */
  from: number | 'oldest' | 'now';
  patterns: readonly string[];
  limit: number;
};

export async function readEvents(
  { database, describers }: LogTools,
  { organizationId, from, patterns, limit }: LogReading,
): Promise<EventPage> {
  return database.asOrganizations([organizationId], async (transaction) => {
    const { events, next, extent } = await readLog(transaction, {
      organizationId,
      from,
      patterns,
      campaignEvents: null,
      limit,
    });
    return {
      object: 'event_page',
      data: (await describeEvents(transaction, describers, organizationId, events)).map(fitEvent),
      next,
      caught_up: next > extent.last,
      oldest: extent.oldest,
    };
  });
}

/** `next`: where to go on, behind all that was not wanted. */
export type LogPart = { events: LoggedEvent[]; next: number; extent: store.LogExtent };

/** `campaignEvents`: what of campaigns' recipients is wanted; null for whatever there is. */
export async function readLog(
  connection: Connection,
  {
    organizationId,
    from,
    to = Number.MAX_SAFE_INTEGER,
    patterns,
    campaignEvents,
    limit,
    spanMax = Number.MAX_SAFE_INTEGER,
  }: LogReading & {
    to?: number;
    campaignEvents: CampaignEvents | null;
    /** So many positions are looked at: what is not wanted of campaigns is passed over, and there may be millions of it. */
    spanMax?: number;
  },
): Promise<LogPart> {
  const extent = await store.findExtent(connection, organizationId);
  const first = firstPosition(from, extent);
  const types = typesOf(campaignEvents === 'summary' ? [...patterns, progressType] : patterns);
  const range = {
    organizationId,
    from: first,
    to: Math.min(to, extent.last, first + spanMax - 1),
    types: types.length === eventTypes.length ? null : types,
    campaignEvents,
    eventsMax: limit,
  };
  const rows = first > range.to ? [] : await store.readRows(connection, range);
  const events = rows
    .flatMap(eventsOf)
    .filter(({ position }) => position >= first && position <= range.to)
    .slice(0, limit);
  const isFull = events.length === limit;
  // Somebody may know positions that are yet to come: they stay where they are.
  const next = isFull ? (events.at(-1)?.position ?? first) + 1 : Math.max(first, range.to + 1);
  return { events, next, extent };
}

function firstPosition(from: LogReading['from'], { last, oldest }: store.LogExtent): number {
  if (from === 'now') return last + 1;
  return from === 'oldest' ? (oldest ?? 1) : from;
}

/** The events of a row of the log, in the order of their positions. */
export function eventsOf(row: store.EventRow): LoggedEvent[] {
  const { type, position, happened_at: at, subject_ids: subjectIds, ordinals, facts } = row;
  return Array.from({ length: row.events }, (_, place) => ({
    id: eventIdOf(row.id, place),
    position: position + place,
    type,
    at,
    subjectId: subjectIds[Math.min(place, subjectIds.length - 1)] ?? '',
    ordinal: ordinals?.[place] ?? null,
    facts: facts?.[Math.min(place, facts.length - 1)] ?? null,
  }));
}

/** As programs are told of them, however large. */
export async function describeEvents(
  connection: Connection,
  describers: EventDescribers,
  organizationId: string,
  events: readonly LoggedEvent[],
): Promise<WebhookEvent[]> {
  const described = new Map<LoggedEvent, object>();
  for (const [subject, describe] of Object.entries(describers)) {
    const ofSubject = events.filter(({ type }) => subjectOf(type) === subject);
    if (ofSubject.length === 0) continue;
    for (const [event, data] of await describe(connection, organizationId, ofSubject))
      described.set(event, data);
  }
  return events.map((event) => ({
    id: event.id,
    type: event.type,
    timestamp: event.at.toISOString(),
    sequence: event.position,
    data: described.get(event) ?? { object: objectOf(event.type), id: event.subjectId },
  }));
}
