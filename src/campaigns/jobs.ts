import { LRUCache } from 'lru-cache';
import { countChangedRecipients } from '../messages/messages.ts';
import { now } from '../platform/clock.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import {
  busyPauseMs,
  SliceOverError,
  soonerOf,
  startTurns,
  type Turn,
  type TurnResult,
} from '../platform/queue/turns.ts';
import * as store from './engine-store.ts';
import { queueDueCampaign } from './scheduling.ts';
import { advanceCampaign, freezeCampaign, type RunningTools, type StepResult } from './running.ts';

export type CampaignJobTools = ChoreTools &
  Omit<RunningTools, 'admissionPauses' | 'progressPauses'> & {
    /** Called after every commit that froze an audience. */
    onFrozen: () => void;
    /** Smaller in tests, so that a few campaigns fill several pages. */
    campaignsMax?: number;
    freezingSlicesMs?: readonly (number | null)[];
  };

type JobTools = ChoreTools &
  RunningTools &
  Pick<CampaignJobTools, 'onFrozen' | 'freezingSlicesMs'> & { campaignsMax: number };

/**
 * Campaigns of an organization in one turn, of some 50 ms each. With fewer, more queries are needed; with more, all other
 * organizations wait longer.
 */
const campaignsOfTurnMax = 10;
/** How many organizations are looked for at once. */
const organizationsMax = 100;
/** How often to check whether segments have been computed, since nothing notifies of it. */
const segmentPauseMs = 1_000;
/** A campaign that failed with an error is skipped for this time, so that it does not delay the others. */
const failurePauseMs = 5_000;
/**
 * How long freezing may take at each place. Hundreds of thousands of contacts take less than the first slice; with a longer
 * one, all others wait longer for an organization of which nobody knows yet that its audiences are larger. Each place is a
 * connection.
 */
const freezingSlicesMs = [2_000, null];

/**
 * Runs all campaigns that are due or under way. Any number of nodes may do so; each campaign is handled by one node at
 * a time. Organizations take turns, and their campaigns with them, so that neither many campaigns of one nor a large
 * audience delay another's.
 */
export function startCampaigns(given: CampaignJobTools): RunningChore {
  const tools = {
    ...given,
    campaignsMax: given.campaignsMax ?? campaignsOfTurnMax,
    admissionPauses: createPauses(given.clock),
    progressPauses: createPauses(given.clock),
  };
  const advancing = startAdvancing(tools);
  const chores = [startBeginning(tools), advancing, startCounting(tools, advancing.wake)];
  return {
    wake: () => {
      for (const chore of chores) chore.wake();
    },
    stop: async () => {
      await Promise.all(chores.map((chore) => chore.stop()));
    },
  };
}

/** Takes campaigns from their scheduled time to their frozen audience. */
function startBeginning(tools: JobTools): RunningChore {
  const { database, clock } = tools;
  const queueDue = createQueueing(tools);
  const freezeNext = createRounds(tools, {
    part: 'to_freeze',
    // One may take all of a slice.
    campaignsMax: 1,
    takeStep: async (campaign, sliceMs) => {
      const step = await freezeCampaign(tools, campaign, sliceMs);
      if (step === 'advanced') tools.onFrozen();
      return step;
    },
  });
  return startTurns(tools, {
    name: 'beginning campaigns',
    topic: 'campaigns',
    slicesMs: tools.freezingSlicesMs ?? freezingSlicesMs,
    organizationsMax,
    find: async (after, limit) => {
      const found = await Promise.all([
        store.findOrganizationsDue(database, { at: now(clock), after, limit }),
        store.findOrganizationsUnderWay(database, { part: 'to_freeze', after, limit }),
      ]);
      return [...new Set(found.flat())].sort().slice(0, limit);
    },
    work: async (organizationId, turn) =>
      soonerOf(await queueDue(organizationId), await freezeNext(organizationId, turn)),
    findNextAt: (after) => store.findNextScheduledAt(database, after),
  });
}

/** Takes campaigns from their frozen audience to their end. */
function startAdvancing(tools: JobTools): RunningChore {
  return startTurns(tools, {
    name: 'advancing campaigns',
    topic: 'campaigns',
    slicesMs: [null],
    organizationsMax,
    find: (after, limit) => store.findOrganizationsUnderWay(tools.database, { part: 'frozen', after, limit }),
    work: createRounds(tools, {
      part: 'frozen',
      campaignsMax: tools.campaignsMax,
      takeStep: (campaign) => advanceCampaign(tools, campaign),
    }),
  });
}

/**
 * Counts the results of recipients, which change long after a campaign's end, too. A chore of its own, so that a wave
 * of opens does not delay campaigns.
 */
function startCounting(tools: JobTools, onCounted: () => void): RunningChore {
  return startChore(tools, {
    name: 'counting recipients',
    topic: 'campaigns',
    work: async () => {
      const { hasCounted, hasMore } = await countChangedRecipients(tools);
      if (hasCounted) onCounted();
      return hasMore ? 'at once' : null;
    },
  });
}

/**
 * Queues campaigns of an organization whose time has come, a page at a time. One that cannot be queued is left out for a
 * while, so that it keeps no other from its turn.
 */
function createQueueing(tools: JobTools) {
  const { database, clock, log, campaignsMax: limit } = tools;
  const pauses = createPauses(clock);
  return async (organizationId: string): Promise<TurnResult> => {
    const wanted = { organizationId, at: now(clock), exceptIds: pauses.list(), limit };
    const campaigns = await store.listDue(database, wanted);
    for (const campaign of campaigns) {
      try {
        // Another node has it, or somebody who changes it.
        if (!(await queueDueCampaign(tools, campaign))) pauses.add(campaign.id, busyPauseMs);
      } catch (cause) {
        pauses.add(campaign.id, failurePauseMs);
        log.warn({ err: cause, campaign_id: campaign.id }, 'a scheduled campaign could not be queued');
      }
    }
    return campaigns.length === limit ? 'more' : pauses.soonestMs();
  };
}

type RoundPlan = {
  part: store.CampaignPart;
  /** In one turn of an organization. */
  campaignsMax: number;
  takeStep: (campaign: store.CampaignKey, sliceMs: number | null) => Promise<StepResult>;
};

/** Once through all campaigns of an organization, which may take several of its turns. */
type Cycle = { after: string | null; hasAdvanced: boolean; pauseMs: number | null };

/**
 * How many organizations may be within a cycle. Of more, those that had their turn longest ago begin with their first
 * campaign again.
 */
const cyclesMax = 10_000;

/**
 * Takes one step of each campaign of an organization, so that none waits for another to finish. One that failed is left out
 * for a while. A turn that throws, and one at the next place, goes on with the same campaign.
 */
function createRounds(tools: JobTools, { part, campaignsMax: limit, takeStep }: RoundPlan) {
  const { database, clock, log } = tools;
  const cycles = new LRUCache<string, Cycle>({ max: cyclesMax });
  const pauses = createPauses(clock);
  return async (organizationId: string, { signal, sliceMs }: Turn): Promise<TurnResult> => {
    const cycle = cycles.get(organizationId) ?? { after: null, hasAdvanced: false, pauseMs: null };
    cycles.set(organizationId, cycle);
    const waitAtMost = (ms: number) => {
      cycle.pauseMs = Math.min(cycle.pauseMs ?? ms, ms);
    };
    const wanted = { organizationId, part, after: cycle.after, exceptIds: pauses.list(), limit };
    const campaigns = await store.listUnderWay(database, wanted);
    for (const campaign of campaigns) {
      signal.throwIfAborted();
      try {
        const step = await takeStep(campaign, sliceMs);
        if (step === 'advanced') cycle.hasAdvanced = true;
        if (step === 'waits_briefly') waitAtMost(segmentPauseMs);
        for (const { remainingMs } of [tools.admissionPauses, tools.progressPauses]) {
          const pauseMs = remainingMs(campaign.id);
          if (pauseMs > 0) waitAtMost(pauseMs);
        }
      } catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof SliceOverError) throw cause;
        pauses.add(campaign.id, failurePauseMs);
        log.warn({ err: cause, campaign_id: campaign.id }, 'a campaign could not go on');
      }
      cycle.after = campaign.id;
    }
    if (campaigns.length === limit) return 'more';
    cycles.delete(organizationId);
    return cycle.hasAdvanced ? 'more' : soonerOf(cycle.pauseMs, pauses.soonestMs());
  };
}
