import { dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import { computeNext, followChanges, type MembershipTools } from './membership.ts';
import * as store from './store.ts';
import { lookAtWindows } from './windows.ts';

export type SegmentUpkeepTools = MembershipTools & {
  /** Smaller in tests. */
  organizationsMax?: number;
};

/** How many organizations are looked for at once. */
const defaultOrganizationsMax = 100;
/** Pause if other nodes are working on all organizations that have work: some may be left when they finish. */
const busyPauseMs = 1_000;
/** An organization whose work failed is skipped for this time, so that it does not delay the others. */
const failurePauseMs = 10_000;

/**
 * Keeps the members of all segments up to date. Any number of nodes may do so; one node at a time works on an
 * organization. Following and computing are separate chores, so that a long computation does not delay other
 * organizations.
 */
export function startSegmentUpkeep(tools: SegmentUpkeepTools): { stop: () => Promise<void> } {
  const { database, clock } = tools;
  const chores = [
    startScanning(tools, {
      name: 'following changes',
      find: (after, limit) => findToFollow(tools, after, limit),
      // First all who leave are found, so that one who leaves several segments is followed once.
      work: async (organizationId) =>
        (await lookAtWindows(tools, organizationId)) || (await followChanges(tools, organizationId)),
      findNextAt: () => store.findNextDueAt(database, 'windows_due_at'),
    }),
    startScanning(tools, {
      name: 'computing segments',
      find: (after, limit) =>
        store.findDueOrganizations(database, 'compute_at', { at: now(clock), after, limit }),
      work: (organizationId, signal) => computeNext(tools, organizationId, signal),
      findNextAt: () => store.findNextDueAt(database, 'compute_at'),
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

type Scan = {
  name: string;
  /** Organizations with work, after the one given, in the order of their ids. */
  find: (after: string | null, limit: number) => Promise<string[]>;
  /** Does a bounded piece of an organization's work. Returns whether there was any. */
  work: (organizationId: string, signal: AbortSignal) => Promise<boolean>;
  /** When the next work is due of which there is no notification. */
  findNextAt: () => Promise<Date | null>;
};

/**
 * Goes from one organization to the next, so that none waits for organizations that always have work, or always fail.
 */
function startScanning(tools: SegmentUpkeepTools, { name, find, work, findNextAt }: Scan) {
  const { organizationsMax = defaultOrganizationsMax } = tools;
  const rounds = createRounds(tools, name, work);
  let after: string | null = null;
  let hasFoundAny = false;
  let hasWorked = false;
  return startChore(tools, {
    name,
    topic: 'segments',
    work: async (signal) => {
      const ids = await find(after, organizationsMax);
      // Counts over the whole round: there may be more organizations than one query returns.
      if (after === null) hasFoundAny = hasWorked = false;
      after = ids.length === organizationsMax ? (ids.at(-1) ?? null) : null;
      hasFoundAny ||= ids.length > 0;
      hasWorked = (await rounds.go(ids, signal)) || hasWorked;
      if (hasWorked || after !== null) return 'at once';
      return hasFoundAny ? dateOf(tools.clock.nowMs() + busyPauseMs) : findNextAt();
    },
  });
}

/** Goes from organization to organization; a failure in one does not affect the others. */
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
