import { now } from '../platform/clock.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import { busyPauseMs, soonerOf, startTurns, type TurnResult } from '../platform/queue/turns.ts';
import { createConnectionPlaces } from './connection-places.ts';
import * as store from './delivery-store.ts';
import { createEndpointLocks } from './endpoint-locks.ts';
import type { WebhookKey } from './store.ts';
import { createLogPages } from './log-pages.ts';
import { tellEndpoint, type TellingTools } from './telling.ts';

/**
 * Tells endpoints of what is in the log. An organization's turn begins work on those of its endpoints that were not told of
 * all, and does not wait for it: an endpoint that answers slowly holds up neither the others nor other organizations. Of
 * several nodes one tells an endpoint; the others look again a little later, in case it died.
 */
export type DeliveringTools = ChoreTools & Omit<TellingTools, 'takeFurther' | 'pages'>;

/** `no place`: whoever has one wakes the chore when it is done. `elsewhere`: another node tells the endpoint. */
type Beginning = 'begun' | 'no place' | 'elsewhere';

const organizationsMax = 100;
const atOnceMax = 4;
/** After a fault of ours, not of the endpoint. */
const faultPauseMs = 10_000;

export function startWebhookDelivery(tools: DeliveringTools): RunningChore {
  const { database, clock, log } = tools;
  const locks = createEndpointLocks(tools);
  const places = createConnectionPlaces();
  const pages = createLogPages(tools);
  const stopping = new AbortController();
  const running = new Map<string, Promise<void>>();
  const paused = createPauses(clock);

  const begin = async (key: WebhookKey): Promise<Beginning> => {
    const place = places.takeFirst(key.organizationId);
    if (place === null) return 'no place';
    const lock = await locks.take(key.id).catch((cause: unknown) => {
      place.release();
      throw cause;
    });
    if (lock === null) {
      place.release();
      return 'elsewhere';
    }
    const takeFurther = (wanted: number) => places.takeFurther(key.organizationId, wanted);
    const work = tellEndpoint({ ...tools, pages, takeFurther }, key, {
      stopping: stopping.signal,
      lost: lock.signal,
    })
      .then((restMs) => {
        if (restMs > 0) paused.add(key.id, restMs);
      })
      .catch((cause: unknown) => {
        if (stopping.signal.aborted) return;
        paused.add(key.id, faultPauseMs);
        log.warn(
          { err: cause, organization_id: key.organizationId, webhook_id: key.id },
          'not told of events',
        );
      })
      .finally(async () => {
        await lock.release();
        place.release();
        running.delete(key.id);
        // Something may have been numbered between the last look and now.
        chore.wake();
      });
    running.set(key.id, work);
    return 'begun';
  };

  const chore = startTurns(tools, {
    name: 'telling webhooks',
    topic: 'webhook_events',
    slicesMs: [null],
    organizationsMax,
    atOnceMax,
    find: (after, limit) => store.findUntold(database, { at: now(clock), after, limit }),
    findNextAt: (after) => store.findNextAttempt(database, after),
    work: async (organizationId): Promise<TurnResult> => {
      const untold = await database.asOrganizations([organizationId], async (transaction) => {
        const found = await store.listUntold(transaction, organizationId, now(clock));
        if (found.length === 0) await store.noteAllTold(transaction, organizationId);
        return found;
      });
      let result: TurnResult = null;
      for (const { id } of untold) {
        if (running.has(id) || stopping.signal.aborted) continue;
        const pausedMs = paused.remainingMs(id);
        if (pausedMs > 0) result = soonerOf(result, pausedMs);
        else if ((await begin({ organizationId, id })) === 'elsewhere')
          result = soonerOf(result, busyPauseMs);
      }
      return result;
    },
  });

  return {
    wake: chore.wake,
    stop: async () => {
      stopping.abort(new Error('the worker is stopping'));
      await chore.stop();
      tools.sender.close();
      await Promise.all(running.values());
      await locks.close();
    },
  };
}
