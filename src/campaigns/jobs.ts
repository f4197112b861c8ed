import { type Clock, dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { countChangedRecipients } from '../messages/messages.ts';
import { campaignChannel } from './campaigns.ts';
import * as store from './engine-store.ts';
import { queueDueCampaign } from './scheduling.ts';
import { advanceCampaign, freezeCampaign, type RunningTools } from './running.ts';

export type CampaignJobTools = ChoreTools &
  RunningTools & {
    /** Told after every commit that froze an audience. */
    onFrozen: () => void;
  };

/** Of one round. */
const campaignsMax = 50;
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
export function startCampaigns(tools: CampaignJobTools): RunningChore {
  const chores = [startBeginning(tools), startAdvancing(tools)];
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
function startBeginning(tools: CampaignJobTools): RunningChore {
  const rounds = createRounds(tools, { isFrozen: false, takeStep: freezeCampaign });
  return startChore(tools, {
    name: 'beginning campaigns',
    channel: campaignChannel,
    work: async (signal) => {
      const hasQueued = await queueDue(tools);
      const round = await rounds.go(signal);
      if (round.hasAdvanced) tools.onFrozen();
      if (hasQueued || round.hasMore) return 'at once';
      const nextAt = await store.findNextScheduledAt(tools.database);
      const againAt = endOfPause(tools.clock, round);
      return nextAt !== null && againAt !== null && againAt < nextAt ? againAt : (nextAt ?? againAt);
    },
  });
}

/** From there to their end, and the counts of what became of their recipients, which go on changing afterwards. */
function startAdvancing(tools: CampaignJobTools): RunningChore {
  const rounds = createRounds(tools, { isFrozen: true, takeStep: advanceCampaign });
  return startChore(tools, {
    name: 'advancing campaigns',
    channel: campaignChannel,
    work: async (signal) => {
      const hasMoreToCount = await countChangedRecipients(tools.database);
      const round = await rounds.go(signal);
      return hasMoreToCount || round.hasMore ? 'at once' : endOfPause(tools.clock, round);
    },
  });
}

async function queueDue(tools: CampaignJobTools): Promise<boolean> {
  const due = await store.listDue(tools.database, now(tools.clock), campaignsMax);
  let hasQueued = false;
  for (const campaign of due) {
    try {
      if (await queueDueCampaign(tools, campaign)) hasQueued = true;
    } catch (cause) {
      tools.log.warn({ err: cause, campaign_id: campaign.id }, 'a scheduled campaign could not be queued');
    }
  }
  return hasQueued;
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

type RoundPlan = { isFrozen: boolean; takeStep: typeof advanceCampaign };

/** Goes from campaign to campaign, a step each, so that none waits for another to be through. */
function createRounds(tools: CampaignJobTools, { isFrozen, takeStep }: RoundPlan) {
  let after = first;
  const pausedUntilMs = new Map<string, number>();
  return {
    go: async (signal: AbortSignal): Promise<Round> => {
      const campaigns = await store.listUnderWay(tools.database, { isFrozen, after, limit: campaignsMax });
      const isOver = campaigns.length < campaignsMax;
      const wasBehindSome = after !== first;
      after = isOver ? first : (campaigns.at(-1) ?? first);
      let hasAdvanced = false;
      let pauseMs: number | null = null;
      forgetOldPauses(pausedUntilMs, tools.clock);
      for (const campaign of campaigns) {
        signal.throwIfAborted();
        if (pausedUntilMs.has(campaign.id)) {
          pauseMs = failurePauseMs;
          continue;
        }
        try {
          const step = await takeStep(tools, campaign);
          if (step === 'advanced') hasAdvanced = true;
          if (step === 'waits_for_segment') pauseMs ??= segmentPauseMs;
        } catch (cause) {
          signal.throwIfAborted();
          pausedUntilMs.set(campaign.id, tools.clock.monotonicMs() + failurePauseMs);
          pauseMs = failurePauseMs;
          tools.log.warn({ err: cause, campaign_id: campaign.id }, 'a campaign could not go on');
        }
      }
      return { hasAdvanced, hasMore: hasAdvanced || !isOver || wasBehindSome, pauseMs };
    },
  };
}

function forgetOldPauses(pausedUntilMs: Map<string, number>, clock: Clock): void {
  for (const [id, untilMs] of pausedUntilMs) {
    if (untilMs <= clock.monotonicMs()) pausedUntilMs.delete(id);
  }
}
