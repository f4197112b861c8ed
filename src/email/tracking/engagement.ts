import { createBatcher } from '../../platform/batcher.ts';
import { type Clock, now, sleep } from '../../platform/clock.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { Log } from '../../platform/log.ts';
import { type Database, DatabaseUnavailableError, isConflict } from '../../platform/postgres/database.ts';
import { isTooQuick } from './machine-engagement.ts';
import {
  changeRecipients,
  type RecipientListeners,
  lockEngagedRecipients,
  type MessageChannel,
  type NotedEngagement,
  type RecipientKey,
  type RecipientTools,
  textOfKey,
} from '../../messages/messages.ts';

/**
 * Opens and clicks, written in batches of up to some thousand. No request waits for the write: the reader is redirected
 * at once. If the database is down for long, some opens are lost, which is acceptable.
 */
export type Engagement = {
  recipient: RecipientKey;
  action: 'opened' | 'clicked';
  /** As far as the request shows. */
  isMachine: boolean;
  at: Date;
};

export type EngagementTools = RecipientListeners &
  RecipientTools & {
    channel: MessageChannel;
    database: Database;
    clock: Clock;
    log: Log;
    /** Smaller in tests. */
    batchItemsMax?: number;
    waitingMax?: number;
  };

export type EngagementRecorder = {
  /** Never throws. Drops engagements while too many are waiting. */
  note: (engagement: Engagement) => void;
  /** Resolves when everything noted is written or given up. */
  stop: () => Promise<void>;
};

const defaultBatchItemsMax = 1_000;
/**
 * How long an engagement waits for others: writing one costs as much as writing a hundred, and nobody looks at an open
 * sooner.
 */
const lingerMs = 250;
/** About 10 MB. A database that is away for a minute at a thousand opens a second loses none. */
const defaultWaitingMax = 60_000;
const triesMax = 60;
const retryMs = 1_000;

export function createEngagementRecorder(tools: EngagementTools): EngagementRecorder {
  const { clock, log, batchItemsMax = defaultBatchItemsMax, waitingMax = defaultWaitingMax } = tools;
  const stopping = new AbortController();
  let lost = 0;
  const lose = (count: number) => {
    if (lost === 0) log.warn('opens and clicks are lost, because the database does not take them');
    lost += count;
  };

  const write = async (engagements: readonly Engagement[]) => {
    // Ends after the last try.
    for (let tries = 1; ; tries += 1) {
      try {
        const haveContactsChanged = await recordEngagements(tools, engagements);
        tools.onCampaignProgress();
        if (haveContactsChanged) tools.onContactsChanged();
        if (lost > 0) log.warn({ lost }, 'opens and clicks are written again; some were lost');
        lost = 0;
        return;
      } catch (cause) {
        const mayPass = cause instanceof DatabaseUnavailableError || isConflict(cause);
        if (!mayPass) log.error({ err: cause }, 'opens and clicks cannot be written');
        if (!mayPass || tries === triesMax || stopping.signal.aborted) {
          lose(engagements.length);
          return;
        }
        await sleep(clock, retryMs, stopping.signal).catch(() => undefined);
      }
    }
  };
  const batcher = createBatcher<Engagement, undefined>({
    itemsMax: batchItemsMax,
    concurrency: 1,
    linger: { clock, lingerMs, itemsEnough: batchItemsMax },
    run: async (engagements) => {
      await write(engagements);
      return engagements.map(() => undefined);
    },
  });

  return {
    note: (engagement) => {
      if (batcher.size() >= waitingMax || stopping.signal.aborted) lose(1);
      // The batcher never rejects, since `write` does not.
      else void batcher.add(engagement);
    },
    stop: async () => {
      stopping.abort(new Error('the server is stopping'));
      await batcher.drain();
    },
  };
}

/**
 * Writes engagements that are new, except for dropped recipients. Those of machines are noted, but do not count as
 * opens. Returns whether segments must look at contacts again.
 */
export async function recordEngagements(
  tools: Pick<EngagementTools, 'channel' | 'database' | 'clock' | keyof RecipientTools>,
  engagements: readonly Engagement[],
): Promise<boolean> {
  const at = now(tools.clock);
  const byRecipient = groupBy(engagements, ({ recipient }) => textOfKey(recipient));
  const recipients = [...byRecipient.values()].flatMap(([first]) => (first ? [first.recipient] : []));
  const organizationIds = [...new Set(recipients.map(({ organizationId }) => organizationId))];
  return tools.database.asOrganizationsByIndex(organizationIds, async (transaction) => {
    const present = await lockEngagedRecipients(transaction, recipients);
    const engaged = present.map(({ handedOffAt, hasOnlyFailed: _hasOnlyFailed, ...recipient }) =>
      sumUp(recipient, handedOffAt, byRecipient.get(textOfKey(recipient)) ?? []),
    );
    const { haveContactsChanged } = await changeRecipients(transaction, tools, {
      at,
      write: { kind: 'noted_engagements', engaged },
      channelOf: () => tools.channel,
      // No condition of a segment asks about engagements of machines.
      told: { recipients: engaged.filter(({ status }) => status !== null) },
    });
    return haveContactsChanged;
  });
}

/** A click is an open too. */
function sumUp(
  recipient: RecipientKey,
  handedOffAt: Date | null,
  engagements: readonly Engagement[],
): NotedEngagement {
  const isByMachine = ({ isMachine, at }: Engagement) => isMachine || isTooQuick(at, handedOffAt);
  const human = engagements.filter((engagement) => !isByMachine(engagement));
  const clickedAt = firstOf(human.filter(({ action }) => action === 'clicked'));
  const openedAt = firstOf(human);
  return {
    ...recipient,
    openedAt,
    clickedAt,
    machineEngagedAt: firstOf(engagements.filter(isByMachine)),
    status: clickedAt !== null ? 'clicked' : openedAt && 'opened',
  };
}

function firstOf(engagements: readonly Engagement[]): Date | null {
  const [first] = engagements.map(({ at }) => at).sort((one, other) => one.getTime() - other.getTime());
  return first ?? null;
}
