import { type Clock, dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { countChangedRecipients } from '../messages/messages.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import * as store from './engine-store.ts';
import { queueDueCampaign } from './scheduling.ts';
import { advanceCampaign, freezeCampaign, type RunningTools } from './running.ts';

export type CampaignJobTools = ChoreTools &
  Omit<RunningTools, 'admissionPauses'> & {
    /** Told after every commit that froze an audience. */
    onFrozen: () => void;
    /** Smaller in tests; a hundred thousand campaigns are the same in kind as five. */
    campaignsMax?: number;
  };

type JobTools = ChoreTools & RunningTools & Pick<CampaignJobTools, 'onFrozen'> & { campaignsMax: number };

/** Of one round: fewer cost more looks, and more keep whoever wakes the chore waiting for its next look. */
const campaignsOfRoundMax = 50;
/** Segments tell nobody when they have been computed. */
const segmentPauseMs = 1_000;
/** One in which something failed is left alone for so long, and does not keep the others waiting. */
const failurePauseMs = 5_000;

const first: store.CampaignKey = {
  organizationId: '00000000-0000-0000-0000-000000000000',
  id: '00000000-0000-0000-0000-000000000000',
};

/**
 * Looks after all campaigns that are due or under way, on any number of nodes: each of them by one at a time. Freezing
 * is a chore of its own, so that a large audience keeps no other campaign waiting.
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

/** From their time to their frozen audience. */
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

/** From there to their end. */
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

/** Counts what became of recipients, which changes long after the end, too; a wave of opens keeps no campaign waiting. */
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
 * Goes through those that are due a page at a time. One that cannot be queued is left alone for a while; the look goes
 * on after it, so that any number of them keep no other from its time.
 */
function createDueQueue(tools: JobTools) {
  let after = first;
  const pauses = createPauses(tools.clock);
  return {
    /** Returns whether there is more to be done at once, and when there will be one for which nobody tells. */
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
      // It was tried a moment ago.
      return { hasMore: false, nextAt: isLate ? dateOf(tools.clock.nowMs() + failurePauseMs) : nextAt };
    },
  };
}

type Round = {
  hasAdvanced: boolean;
  /** There is something to be done at once. */
  hasMore: boolean;
  /** Otherwise, when it is worth another look although nobody tells. */
  pauseMs: number | null;
};

function endOfPause(clock: Clock, { pauseMs }: Round): Date | null {
  return pauseMs === null ? null : dateOf(clock.nowMs() + pauseMs);
}

type RoundPlan = { part: 'to_freeze' | 'frozen'; takeStep: typeof advanceCampaign };

/** Goes from campaign to campaign, a step each, so that none waits for another to be through. */
function createRounds(tools: JobTools, { part, takeStep }: RoundPlan) {
  let after = first;
  // Of all pages since the first.
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
