import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { CampaignEvents } from './event-types.ts';
import { writeEvent } from './formats.ts';
import { describeEvents, type EventDescribers, type LoggedEvent, readLog } from './log.ts';
import type { EventFormat } from './schema.ts';

/**
 * Parts of the log, as endpoints are told of them. The endpoints of an organization mostly stand at the same position and
 * want the same: what one of them reads is described and serialized once, and serves the others that ask for it a moment
 * later. With twenty endpoints, reading for each was half of what a webhook cost.
 *
 * What is kept may lack what was numbered since. Whoever has told all of it asks for what comes after, which nobody has read.
 */
export type LogPages = { read: (wish: PageWish) => Promise<LogPage> };

export type PageWish = {
  organizationId: string;
  from: number;
  patterns: readonly string[];
  campaignEvents: CampaignEvents;
  format: EventFormat;
  limit: number;
};

/** `next`: where to go on, behind all that was not wanted. */
export type LogPage = { items: readonly PageItem[]; next: number };

export type PageItem = { event: LoggedEvent; body: Buffer };

/** Longer tells more of what has changed since; shorter has endpoints read for themselves that are a little behind. */
const keptMs = 1_000;
/** Each has up to some hundred events, of 20 kB at most. */
const pagesMax = 20;
/** Of the log that is looked at. Where little of it is wanted, the next page goes on from there. */
const positionsMax = 10_000;

export function createLogPages(tools: {
  database: Database;
  clock: Clock;
  describers: EventDescribers;
}): LogPages {
  /** The oldest first. */
  const pages = new Map<string, { page: Promise<LogPage>; cancel: () => void }>();
  const forget = (key: string) => {
    pages.get(key)?.cancel();
    pages.delete(key);
  };

  return {
    read: (wish) => {
      const { organizationId, from, patterns, campaignEvents, format, limit } = wish;
      const key = JSON.stringify([organizationId, from, patterns, campaignEvents, format, limit]);
      const known = pages.get(key);
      if (known !== undefined) return known.page;
      const page = readPage(tools, wish).then(
        (read) => {
          // Where nothing was, there may be something now.
          if (read.next === from) forget(key);
          return read;
        },
        (cause: unknown) => {
          forget(key);
          throw cause;
        },
      );
      const cancel = tools.clock.after(keptMs, () => {
        forget(key);
      });
      pages.set(key, { page, cancel });
      const [oldest] = pages.keys();
      if (pages.size > pagesMax && oldest !== undefined) forget(oldest);
      return page;
    },
  };
}

async function readPage(
  { database, describers }: { database: Database; describers: EventDescribers },
  { format, ...reading }: PageWish,
): Promise<LogPage> {
  const { organizationId } = reading;
  return database.asOrganizationsByIndex([organizationId], async (transaction) => {
    const { events, next } = await readLog(transaction, { ...reading, spanMax: positionsMax });
    const described = await describeEvents(transaction, describers, organizationId, events);
    return { items: toItems(format, events, described), next };
  });
}

export function toItems(
  format: EventFormat,
  events: readonly LoggedEvent[],
  described: Awaited<ReturnType<typeof describeEvents>>,
): PageItem[] {
  return described.map((event, place) => {
    const logged = events[place];
    if (logged === undefined) throw new Error('something was told that was not read');
    return { event: logged, body: writeEvent(format, event) };
  });
}
