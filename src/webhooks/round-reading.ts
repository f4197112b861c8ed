import { type Clock, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import * as store from './delivery-store.ts';
import { describeEvents, type EventDescribers, eventsOf } from './log.ts';
import { type LogPages, toItems } from './log-pages.ts';
import type { RoundItem } from './round.ts';
import type { WebhookKey } from './store.ts';

/** What is to be told to an endpoint next: what it did not take, as far as that is due, and the log from its cursor on. */
export type ReadRound = {
  endpoint: store.Endpoint;
  /** In the order of their positions. */
  items: readonly RoundItem[];
  /** Where the log goes on behind them. */
  next: number;
};

export type ReadingTools = { database: Database; clock: Clock; describers: EventDescribers; pages: LogPages };

/** With more, more is told twice after a crash; with fewer, there are more transactions. */
const itemsMax = 200;
/** Of an endpoint that did not take what it was told of last: it may take none of them, or hang at each. */
const itemsAfterFailureMax = 20;

/** Null if there is nothing to be told now. */
export async function readRound(
  tools: ReadingTools,
  key: WebhookKey,
  endpoint: store.Endpoint,
): Promise<ReadRound | null> {
  const { failing_since: failingSince, failures, next_position: from, format } = endpoint;
  const limit = failingSince !== null ? 1 : failures > 0 ? itemsAfterFailureMax : itemsMax;
  const again = await readDue(tools, key, { endpoint, limit });
  const fresh =
    again.length === limit
      ? { items: [], next: from }
      : await tools.pages.read({
          organizationId: key.organizationId,
          from,
          patterns: endpoint.events,
          campaignEvents: endpoint.campaign_events,
          format,
          limit: limit - again.length,
        });
  // What is told again may be ahead of the cursor, after a replay.
  const known = new Set(again.map(({ event }) => event.id));
  const unknown = fresh.items.flatMap((item) =>
    known.has(item.event.id) ? [] : [{ ...item, attempts: null }],
  );
  if (again.length + unknown.length === 0 && fresh.next === from) return null;
  const items = [...again, ...unknown].sort((one, other) => one.event.position - other.event.position);
  return { endpoint, items, next: fresh.next };
}

async function readDue(
  { database, clock, describers }: ReadingTools,
  key: WebhookKey,
  { endpoint, limit }: { endpoint: store.Endpoint; limit: number },
): Promise<RoundItem[]> {
  const at = now(clock);
  const isFailing = endpoint.failing_since !== null;
  if (!isFailing && (endpoint.next_try_at === null || endpoint.next_try_at > at)) return [];
  const { organizationId } = key;
  return database.asOrganizations([organizationId], async (transaction) => {
    const due = await findDue(transaction, key, { endpoint, at, limit });
    // What was to be tried again is not kept any more.
    if (due.length === 0 && !isFailing) await store.refreshNextTry(transaction, key);
    const attemptsOf = new Map(due.map(({ eventId, attempts }) => [eventId, attempts]));
    const events = (await store.findRowsOf(transaction, organizationId, due))
      .flatMap(eventsOf)
      .filter(({ id }) => attemptsOf.has(id));
    const told = await describeEvents(transaction, describers, organizationId, events);
    return toItems(endpoint.format, events, told).map((item) => ({
      ...item,
      attempts: attemptsOf.get(item.event.id) ?? null,
    }));
  });
}

/** What an endpoint takes in order, or one at a time, is tried by its position. */
function findDue(
  transaction: Transaction,
  key: WebhookKey,
  { endpoint, at, limit }: { endpoint: store.Endpoint; at: Date; limit: number },
): Promise<store.Delivery[]> {
  return endpoint.failing_since !== null || endpoint.concurrency === 1
    ? store.listRetrying(transaction, key, limit)
    : store.listDue(transaction, key, { at, limit });
}
