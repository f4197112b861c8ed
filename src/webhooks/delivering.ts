import { now } from '../platform/clock.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import { busyPauseMs, startTurns, type TurnResult } from '../platform/queue/turns.ts';
import { createShares } from '../platform/shares.ts';
import * as store from './delivery-store.ts';
import { createEndpointLocks } from './endpoint-locks.ts';
import { tellEndpoint, type TellingTools } from './telling.ts';

/**
 * Tells endpoints of what is in the log. An organization's turn begins work on those of its endpoints that were not told of
 * all, and does not wait for it: an endpoint that answers slowly holds up neither the others nor other organizations. Of
 * several nodes one tells an endpoint; the others look again a little later, in case it died.
 */
export type DeliveringTools = ChoreTools & TellingTools;

/** Endpoints that a process tells at once, each of a hundred events in memory; organizations have shares. */
const endpointsMax = 200;
const organizationsMax = 100;
const atOnceMax = 4;
/** After a fault of ours, not of the endpoint. */
const faultPauseMs = 10_000;

export function startWebhookDelivery(tools: DeliveringTools): RunningChore {
  const { database, clock, log } = tools;
  const locks = createEndpointLocks(tools);
  const places = createShares(endpointsMax);
  const stopping = new AbortController();
  const running = new Map<string, Promise<void>>();
  const paused = createPauses(clock);

  /** Returns whether it has begun; else the endpoint is another node's, or there is no place. */
  const begin = async (key: { organizationId: string; id: string }): Promise<boolean> => {
    const place = places.take(key.organizationId, 1);
    if (place === null) return false;
    const lock = await locks.take(key.id).catch((cause: unknown) => {
      place.release();
      throw cause;
    });
    if (lock === null) {
      place.release();
      return false;
    }
    const work = tellEndpoint(tools, key, { stopping: stopping.signal, lost: lock.signal })
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
    return true;
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
      let isLeft = false;
      for (const { id } of untold) {
        if (running.has(id)) continue;
        const mayBegin = paused.remainingMs(id) <= 0 && !stopping.signal.aborted;
        if (!mayBegin || !(await begin({ organizationId, id }))) isLeft = true;
      }
      return isLeft ? busyPauseMs : null;
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
