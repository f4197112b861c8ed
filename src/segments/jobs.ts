import { now } from '../platform/clock.ts';
import { busyPauseMs, startTurns } from '../platform/queue/turns.ts';
import { computeNext, followChanges, type MembershipTools } from './membership.ts';
import * as store from './store.ts';
import { lookAtWindows } from './windows.ts';

export type SegmentUpkeepTools = MembershipTools & {
  /** Smaller in tests. */
  organizationsMax?: number;
  followingSlicesMs?: readonly (number | null)[];
  computingSlicesMs?: readonly (number | null)[];
};

/** How many organizations are looked for at once. */
const defaultOrganizationsMax = 100;

/**
 * How long a piece may take at each place. With a shorter first one, more is begun in vain; with a longer one, all others
 * wait longer for an organization that nobody knows yet. A million contacts take seconds, and should not have to wait for
 * what takes minutes: hence the one in the middle. Each place is a connection.
 */
const followingSlicesMs = [2_000, null];
const computingSlicesMs = [2_000, 20_000, null];

/**
 * Keeps the members of all segments up to date. Any number of nodes may do so; one node at a time works on an
 * organization. Following and computing are separate chores, and organizations take turns at each, so that neither a long
 * computation nor many segments delay another organization.
 */
export function startSegmentUpkeep(tools: SegmentUpkeepTools): { stop: () => Promise<void> } {
  const { database, clock, organizationsMax = defaultOrganizationsMax } = tools;
  const chores = [
    startTurns(tools, {
      name: 'following changes',
      topic: 'segments',
      slicesMs: tools.followingSlicesMs ?? followingSlicesMs,
      organizationsMax,
      find: (after, limit) => findToFollow(tools, after, limit),
      // First all who leave are found, so that one who leaves several segments is followed once.
      work: async (organizationId, { sliceMs }) =>
        (await lookAtWindows(tools, organizationId, sliceMs)) ||
        (await followChanges(tools, organizationId, sliceMs))
          ? 'more'
          : busyPauseMs,
      findNextAt: (after) => store.findNextDueAt(database, 'windows_due_at', after),
    }),
    startTurns(tools, {
      name: 'computing segments',
      topic: 'segments',
      slicesMs: tools.computingSlicesMs ?? computingSlicesMs,
      organizationsMax,
      find: (after, limit) =>
        store.findDueOrganizations(database, 'compute_at', { at: now(clock), after, limit }),
      work: async (organizationId, { signal, sliceMs }) =>
        (await computeNext(tools, organizationId, signal, sliceMs)) ? 'more' : busyPauseMs,
      findNextAt: (after) => store.findNextDueAt(database, 'compute_at', after),
    }),
  ];
  return {
    stop: async () => {
      await Promise.all(chores.map((chore) => chore.stop()));
    },
  };
}

/** Organizations with changes to be followed, or with windows to be looked at, which makes changes. */
async function findToFollow(
  { database, clock }: SegmentUpkeepTools,
  after: string | null,
  limit: number,
): Promise<string[]> {
  const found = await Promise.all([
    store.findChangedOrganizations(database, after, limit),
    store.findDueOrganizations(database, 'windows_due_at', { at: now(clock), after, limit }),
  ]);
  return [...new Set(found.flat())].sort().slice(0, limit);
}
