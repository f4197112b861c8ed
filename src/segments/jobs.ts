import { now } from '../platform/clock.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import { keepMembers } from './membership.ts';
import * as store from './store.ts';

/** The channel on which a change of contacts or of conditions wakes whoever keeps the members of segments. */
export const segmentChannel = 'postillion_segments';

/** How many organizations are looked for at once. */
const organizationsMax = 100;
/** Where others keep the members of all organizations that have work: it may be there still when they are done. */
const busyPauseMs = 1_000;

/** Keeps the members of all segments, on any number of nodes: an organization's by one of them at a time. */
export function startSegmentUpkeep(tools: ChoreTools): { stop: () => Promise<void> } {
  return startChore(tools, {
    name: 'keeping segments',
    channel: segmentChannel,
    work: async (signal) => {
      const organizationIds = await store.findOrganizationsWithWork(
        tools.database,
        now(tools.clock),
        organizationsMax,
      );
      let hasWorked = false;
      for (const organizationId of organizationIds) {
        signal.throwIfAborted();
        if (await keepMembers(tools, organizationId)) hasWorked = true;
      }
      if (hasWorked) return 0;
      if (organizationIds.length > 0) return busyPauseMs;
      const nextAt = await store.findNextComputeAt(tools.database);
      return nextAt === null ? null : Math.max(nextAt.getTime() - tools.clock.nowMs(), 0) + 1;
    },
  });
}
