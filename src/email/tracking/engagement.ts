import { createBatcher } from '../../platform/batcher.ts';
import { type Clock, now, sleep } from '../../platform/clock.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { Log } from '../../platform/log.ts';
import { type Database, DatabaseUnavailableError, isConflict } from '../../platform/postgres/database.ts';
import * as store from './engagement-store.ts';
import { isTooQuick } from './machine-engagement.ts';
import {
  changeRecipients,
  type FeedbackListeners,
  type MessageChannel,
  type RecipientKey,
  type RecipientTools,
  textOfKey,
  uniqueMessages,
} from '../../messages/messages.ts';

/**
 * Opens and clicks, written down some thousand at a time. Nobody waits for it: a reader is passed on at once, and an
 * open that is lost because the database is away for long is only an open.
 */
export type Engagement = {
  recipient: RecipientKey;
  action: 'opened' | 'clicked';
  /** As far as the request tells. */
  isMachine: boolean;
  at: Date;
};

export type EngagementTools = FeedbackListeners &
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
  /** Never throws, and keeps nothing beyond what it can hold. */
  note: (engagement: Engagement) => void;
  /** Resolves when what was noted is written, or is given up. */
  stop: () => Promise<void>;
};

const defaultBatchItemsMax = 1_000;
/** Nobody looks at an open within this time, and one that is alone costs as much as a hundred. */
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
    // Ends with the tries.
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
      // It never rejects, since `write` does not.
      else void batcher.add(engagement);
    },
    stop: async () => {
      stopping.abort(new Error('the server is stopping'));
      await batcher.whenIdle();
    },
  };
}

/**
 * Writes what is news, and nothing of those who were dropped. A machine is noted, and counts as nobody's open. Returns
 * whether segments are to look at contacts again.
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
    await store.lockTransactionalMessages(transaction, uniqueMessages(recipients));
    const present = await store.lockRecipients(transaction, recipients);
    const engaged = present.map(({ handedOffAt, ...recipient }) =>
      sumUp(recipient, handedOffAt, byRecipient.get(textOfKey(recipient)) ?? []),
    );
    const { haveContactsChanged } = await changeRecipients(transaction, tools, {
      at,
      write: () => store.applyEngagements(transaction, engaged, at),
      channelOf: () => tools.channel,
      // Of what a machine has opened no segment asks.
      told: { recipients: engaged.filter(({ status }) => status !== null) },
    });
    return haveContactsChanged;
  });
}

/** Whoever clicks has opened. */
function sumUp(
  recipient: RecipientKey,
  handedOffAt: Date | null,
  engagements: readonly Engagement[],
): store.EngagedRecipient {
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
