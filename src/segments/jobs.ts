import { dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import { computeNext, followChanges } from './membership.ts';
import * as store from './store.ts';

/** The channel on which a change of contacts or of conditions wakes whoever keeps the members of segments. */
export const segmentChannel = 'postillion_segments';

/** How many organizations are looked for at once. */
const organizationsMax = 100;
/** Where other nodes keep the members of all organizations that have work: it may be there still when they are done. */
const busyPauseMs = 1_000;
/** An organization in which it failed is left alone for so long, and does not keep the others waiting. */
const failurePauseMs = 10_000;

/**
 * Keeps the members of all segments, on any number of nodes: an organization's by one of them at a time. Following
 * and computing are chores of their own, so that a long computation keeps no other organization waiting.
 */
export function startSegmentUpkeep(tools: ChoreTools): { stop: () => Promise<void> } {
  const chores = [startFollowing(tools), startComputing(tools)];
  return {
    stop: async () => {
      await Promise.all(chores.map((chore) => chore.stop()));
    },
  };
}

function startFollowing(tools: ChoreTools) {
  const rounds = createRounds(tools, 'following changes', (organizationId) =>
    followChanges(tools, organizationId),
  );
  // From one organization to the next, so that none waits behind those that always have changes.
  let after: string | null = null;
  let hasFoundAny = false;
  let hasWorked = false;
  return startChore(tools, {
    name: 'following changes',
    channel: segmentChannel,
    work: async (signal) => {
      const ids = await store.findChangedOrganizations(tools.database, after, organizationsMax);
      // What was found or done in the whole round counts: there may be more organizations than one look shows.
      if (after === null) hasFoundAny = hasWorked = false;
      after = ids.length === organizationsMax ? (ids.at(-1) ?? null) : null;
      hasFoundAny ||= ids.length > 0;
      hasWorked = (await rounds.go(ids, signal)) || hasWorked;
      if (hasWorked || after !== null) return 'at once';
      return hasFoundAny ? dateOf(tools.clock.nowMs() + busyPauseMs) : null;
    },
  });
}

function startComputing(tools: ChoreTools) {
  const rounds = createRounds(tools, 'computing segments', (organizationId, signal) =>
    computeNext(tools, organizationId, signal),
  );
  return startChore(tools, {
    name: 'computing segments',
    channel: segmentChannel,
    work: async (signal) => {
      const at = now(tools.clock);
      const ids = await store.findOrganizationsToCompute(tools.database, at, organizationsMax);
      if (await rounds.go(ids, signal)) return 'at once';
      if (ids.length > 0) return dateOf(tools.clock.nowMs() + busyPauseMs);
      return store.findNextComputeAt(tools.database);
    },
  });
}

/** Goes from organization to organization; trouble in one of them is its own. */
function createRounds(
  tools: ChoreTools,
  name: string,
  work: (organizationId: string, signal: AbortSignal) => Promise<boolean>,
) {
  const pausedUntilMs = new Map<string, number>();
  return {
    /** Returns whether there was anything to do. */
    go: async (organizationIds: readonly string[], signal: AbortSignal): Promise<boolean> => {
      let hasWorked = false;
      for (const [id, untilMs] of pausedUntilMs) {
        if (untilMs <= tools.clock.monotonicMs()) pausedUntilMs.delete(id);
      }
      for (const organizationId of organizationIds) {
        signal.throwIfAborted();
        if (pausedUntilMs.has(organizationId)) continue;
        try {
          if (await work(organizationId, signal)) hasWorked = true;
        } catch (cause) {
          signal.throwIfAborted();
          pausedUntilMs.set(organizationId, tools.clock.monotonicMs() + failurePauseMs);
          tools.log.warn({ err: cause, chore: name, organization_id: organizationId }, 'interrupted');
        }
      }
      return hasWorked;
    },
  };
}
