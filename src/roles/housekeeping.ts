import { deleteGoneOrganizations, goneMs, measureStorageWhenDue } from '../accounts/accounts.ts';
import { deleteExpiredSuppressions } from '../audience/audience.ts';
import type { Config } from '../config.ts';
import { campaignsUnderWay } from '../campaigns/campaigns.ts';
import { deleteOldReached } from '../chat-templates/chat-templates.ts';
import { deleteOldPostmasterMail } from '../email/email.ts';
import { deleteOldEvents } from '../events/events.ts';
import {
  bringForward,
  deleteOldProviderIds,
  deleteOldReputation,
  providerIdMaxAgeMs,
  removeOldMessages,
} from '../messages/messages.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import { deleteExpiredKeys, retentionMs } from '../platform/http/idempotency.ts';
import { deleteOldRateWindows } from '../platform/http/rate-limit.ts';
import type { Log } from '../platform/log.ts';
import type { Database } from '../platform/postgres/database.ts';
import { createPartitions, splitPartitionsAhead } from '../platform/postgres/partitions.ts';
import { dropOldRequests } from '../request-log/request-log.ts';
import { tidySandbox } from '../sandbox/sandbox.ts';
import { dropOldEvents } from '../webhooks/webhooks.ts';
import { messageChannels } from './channels.ts';

export type HousekeepingTools = {
  database: Database;
  clock: Clock;
  log: Log;
  config: Pick<Config, 'keptDays' | 'partitionSize'>;
};

const intervalMs = 60 * 60 * 1_000;
const firstRunMs = 30_000;
/** Of requests: a window is over after a minute, and nodes that are late may still add to it. */
const rateWindowMaxAgeMs = 10 * 60_000;

/** `signal`: the process stops, and what takes long should end early. */
type HousekeepingStep = { name: string; run: (signal: AbortSignal) => Promise<void> };

/** Chores that a user may be waiting for come first. How each of them serves organizations is a test's total map. */
export function housekeepingSteps({
  database,
  clock,
  config,
}: HousekeepingTools): readonly HousekeepingStep[] {
  const before = (ageMs: number) => dateOf(clock.nowMs() - ageMs);
  return [
    { name: 'partitions', run: () => createPartitions(database, now(clock), config.partitionSize) },
    { name: 'bringing forward', run: () => bringForward({ database, clock, channels: messageChannels }) },
    { name: 'idempotency keys', run: () => deleteExpiredKeys(database, before(retentionMs)) },
    { name: 'suppressions', run: () => deleteExpiredSuppressions(database, now(clock)) },
    { name: 'rate windows', run: () => deleteOldRateWindows(database, before(rateWindowMaxAgeMs)) },
    { name: 'reputation', run: () => deleteOldReputation(database, clock.nowMs()) },
    { name: 'deleted organizations', run: () => deleteGoneOrganizations(database, before(goneMs)) },
    { name: "providers' ids", run: () => deleteOldProviderIds(database, before(providerIdMaxAgeMs)) },
    { name: 'reached people', run: () => deleteOldReached({ clock }, database) },
    { name: 'mail to the postmaster', run: () => deleteOldPostmasterMail({ clock }, database) },
    { name: 'sandbox', run: () => tidySandbox(database) },
    { name: 'request log', run: () => dropOldRequests({ database, clock }) },
    {
      name: 'smaller partitions',
      run: () => splitPartitionsAhead(database, now(clock), config.partitionSize),
    },
    {
      name: 'messages',
      run: (signal) =>
        removeOldMessages(
          {
            database,
            clock,
            channels: messageChannels,
            keeper: campaignsUnderWay,
            installed: config.keptDays,
          },
          signal,
        ),
    },
    { name: 'events', run: (signal) => deleteOldEvents({ database, clock }, signal) },
    { name: 'webhook events', run: () => dropOldEvents({ database, clock }) },
    // After what is old is gone.
    { name: 'storage', run: (signal) => measureStorageWhenDue({ database, clock }, signal) },
  ];
}

/**
 * Housekeeping that may run on any number of nodes at once, and that nothing waits for: half a minute after the start,
 * and then an hour after it was over. A step that fails is logged and tried again with the next run; it keeps no other
 * from its turn. `stop` waits for the step that is under way.
 */
export function startHousekeeping(tools: HousekeepingTools): { stop: () => Promise<void> } {
  const { clock, log } = tools;
  const stopping = new AbortController();
  let running: Promise<void> = Promise.resolve();
  let cancel = clock.after(firstRunMs, begin);

  async function runSteps() {
    for (const { name, run } of housekeepingSteps(tools)) {
      if (stopping.signal.aborted) return;
      try {
        await run(stopping.signal);
      } catch (cause) {
        log.warn({ err: cause, step: name }, 'housekeeping was interrupted');
      }
    }
    cancel = clock.after(intervalMs, begin);
  }
  function begin() {
    running = runSteps();
  }
  return {
    stop: async () => {
      stopping.abort();
      cancel();
      await running;
      // The last step may have been over just before.
      cancel();
    },
  };
}
