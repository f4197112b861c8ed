import { type Clock, dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { countChangedRecipients } from '../messages/messages.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import * as store from './engine-store.ts';
import { queueDueCampaign } from './scheduling.ts';
import { advanceCampaign, freezeCampaign, type RunningTools } from './running.ts';

export type CampaignJobTools = ChoreTools &
  Omit<RunningTools, 'admissionPauses'> & {
    /** Called after every commit that froze an audience. */
    onFrozen: () => void;
    /** Smaller in tests, so that a few campaigns fill several pages. */
    campaignsMax?: number;
  };

type JobTools = ChoreTools & RunningTools & Pick<CampaignJobTools, 'onFrozen'> & { campaignsMax: number };

/** Campaigns in one round. With fewer, more queries are needed; with more, a wakeup waits longer for the next query. */
const campaignsOfRoundMax = 50;
/** How often to check whether segments have been computed, since nothing notifies of it. */
const segmentPauseMs = 1_000;
/** A campaign that failed with an error is skipped for this time, so that it does not delay the others. */
const failurePauseMs = 5_000;

const first: store.CampaignKey = {
  organizationId: '00000000-0000-0000-0000-000000000000',
  id: '00000000-0000-0000-0000-000000000000',
};

/**
 * Runs all campaigns that are due or under way. Any number of nodes may do so; each campaign is handled by one node at
 * a time. Freezing is a chore of its own, so that a large audience does not delay other campaigns.
 */
export function startCampaigns(given: CampaignJobTools): RunningChore {
  const tools = {
    ...given,
    campaignsMax: given.campaignsMax ?? campaignsOfRoundMax,
    admissionPauses: createPauses(given.clock),
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
  const rounds = createRounds(tools, { part: 'to_freeze', takeStep: freezeCampaign });
  const dueQueue = createDueQueue(tools);
  return startChore(tools, {
    name: 'beginning campaigns',
    topic: 'campaigns',
    work: async (signal) => {
      const { hasMore, nextAt } = await dueQueue.go();
      const round = await rounds.go(signal);
      if (round.hasAdvanced) tools.onFrozen();
      if (hasMore || round.hasMore) return 'at once';
      const againAt = endOfPause(tools.clock, round);
      return nextAt !== null && againAt !== null && againAt < nextAt ? againAt : (nextAt ?? againAt);
    },
  });
}

/** Takes campaigns from their frozen audience to their end. */
function startAdvancing(tools: JobTools): RunningChore {
  const rounds = createRounds(tools, { part: 'frozen', takeStep: advanceCampaign });
  return startChore(tools, {
    name: 'advancing campaigns',
    topic: 'campaigns',
    work: async (signal) => {
      const round = await rounds.go(signal);
      return round.hasMore ? 'at once' : endOfPause(tools.clock, round);
    },
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
 * Goes through due campaigns a page at a time. One that cannot be queued is skipped for a while, and the next query
 * starts after it, so that failing campaigns never delay others.
 */
function createDueQueue(tools: JobTools) {
  let after = first;
  const pauses = createPauses(tools.clock);
  return {
    /**
     * Returns whether there is more to do at once, and when the next campaign is due, since nothing notifies of that.
     */
    go: async (): Promise<{ hasMore: boolean; nextAt: Date | null }> => {
      const { campaignsMax: limit } = tools;
      let hasQueued = false;
      const campaigns = await store.listDue(tools.database, { at: now(tools.clock), after, limit });
      const isOver = campaigns.length < limit;
      after = isOver ? first : (campaigns.at(-1) ?? first);
      const paused = new Set(pauses.list());
      for (const campaign of campaigns) {
        if (paused.has(campaign.id)) continue;
        try {
          if (await queueDueCampaign(tools, campaign)) hasQueued = true;
          // Another node has it.
          else pauses.add(campaign.id, failurePauseMs);
        } catch (cause) {
          pauses.add(campaign.id, failurePauseMs);
          tools.log.warn(
            { err: cause, campaign_id: campaign.id },
            'a scheduled campaign could not be queued',
          );
        }
      }
      if (hasQueued || !isOver) return { hasMore: true, nextAt: null };
      const nextAt = await store.findNextScheduledAt(tools.database);
      const isLate = nextAt !== null && nextAt.getTime() <= tools.clock.nowMs();
      // The campaign was tried a moment ago.
      return { hasMore: false, nextAt: isLate ? dateOf(tools.clock.nowMs() + failurePauseMs) : nextAt };
    },
  };
}

type Round = {
  hasAdvanced: boolean;
  /** There is more to do at once. */
  hasMore: boolean;
  /** If not, how long until the next look without a notification. */
  pauseMs: number | null;
};

function endOfPause(clock: Clock, { pauseMs }: Round): Date | null {
  return pauseMs === null ? null : dateOf(clock.nowMs() + pauseMs);
}

type RoundPlan = { part: 'to_freeze' | 'frozen'; takeStep: typeof advanceCampaign };

/** Takes one step of each campaign in turn, so that none waits for another to finish. */
function createRounds(tools: JobTools, { part, takeStep }: RoundPlan) {
  let after = first;
  // Over all pages since the first.
  let hasCycleAdvanced = false;
  let cyclePauseMs: number | null = null;
  const pauses = createPauses(tools.clock);
  return {
    go: async (signal: AbortSignal): Promise<Round> => {
      const campaigns = await store.listUnderWay(tools.database, { part, after, limit: tools.campaignsMax });
      const isOver = campaigns.length < tools.campaignsMax;
      after = isOver ? first : (campaigns.at(-1) ?? first);
      let hasAdvanced = false;
      const paused = new Set(pauses.list());
      for (const campaign of campaigns) {
        signal.throwIfAborted();
        if (paused.has(campaign.id)) {
          cyclePauseMs ??= failurePauseMs;
          continue;
        }
        try {
          const step = await takeStep(tools, campaign);
          if (step === 'advanced') hasAdvanced = true;
          if (step === 'waits_briefly') cyclePauseMs = segmentPauseMs;
          const admissionPauseMs = tools.admissionPauses.remainingMs(campaign.id);
          if (admissionPauseMs > 0)
            cyclePauseMs = Math.min(cyclePauseMs ?? admissionPauseMs, admissionPauseMs);
        } catch (cause) {
          signal.throwIfAborted();
          pauses.add(campaign.id, failurePauseMs);
          cyclePauseMs ??= failurePauseMs;
          tools.log.warn({ err: cause, campaign_id: campaign.id }, 'a campaign could not go on');
        }
      }
      hasCycleAdvanced ||= hasAdvanced;
      const round = { hasAdvanced, hasMore: !isOver || hasCycleAdvanced, pauseMs: cyclePauseMs };
      if (isOver) {
        hasCycleAdvanced = false;
        cyclePauseMs = null;
      }
      return round;
    },
  };
}
