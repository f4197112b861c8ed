import type { SmsIntake } from '../channels/sms/sms.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import * as store from './event-store.ts';
import { answerInbound, type InboundTools } from './inbound.ts';
import {
  applyInOrder,
  createReportIntake,
  createStoring,
  defaultAppliedMax,
  planNextLooks,
} from '../messages/messages.ts';
import { toProviderReport } from './receipts.ts';

/**
 * What providers of texts tell: receipts, which are reports as on every channel, and incoming texts. Both are stored
 * before they are acknowledged. Incoming texts are applied here.
 */

export type SmsIntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  /** Which provider tells, by its name in the registry. */
  provider: string;
  onReported: () => void;
  onCameIn: () => void;
  /** Smaller in tests. */
  storedMax?: number;
  waitingMax?: number;
};

/** Stores a provider's events; rejects if they cannot be stored. */
export function createSmsIntake(tools: SmsIntakeTools): SmsIntake {
  const { database, clock, newId, provider, onReported, onCameIn, ...limits } = tools;
  const report = createReportIntake({ ...limits, database, clock, newId, onTaken: onReported });
  const takeText = createStoring<store.NewSmsEvent>({
    ...limits,
    store: (events) => store.insertSmsEvents(database, events, now(clock)),
    onStored: onCameIn,
  });
  return {
    takeReceipt: (receipt) =>
      report({ channel: 'sms', provider, report: toProviderReport(receipt), finding: receipt.finding }),
    takeInbound: (event) => takeText({ id: newId(), event }),
  };
}

export type SmsEventTools = ChoreTools &
  InboundTools & {
    /** Called after every commit that changed the consent of contacts. */
    onContactsChanged: () => void;
    /** Called after every commit that queued something. */
    onQueued: () => void;
    /** Smaller in tests. */
    appliedMax?: number;
  };

/** Applies the stored texts. May run on any number of nodes. */
export function startSmsEvents(given: SmsEventTools): RunningChore {
  const { appliedMax = defaultAppliedMax } = given;
  const tools = { ...given, appliedMax };
  return startChore(tools, {
    name: 'applying texts that came in',
    topic: 'sms_events',
    work: () =>
      applyInOrder(tools, {
        name: 'texts that came in',
        // A text that is reported twice at once must be answered once, too.
        lockName: 'texts that come in',
        appliedMax,
        takeDue: store.takeDueSmsEvents,
        apply: (transaction, events) =>
          answerInbound(
            transaction,
            tools,
            events.map(({ event }) => event),
          ),
        onApplied: ({ haveContactsChanged, hasQueued }) => {
          if (haveContactsChanged) tools.onContactsChanged();
          if (hasQueued) tools.onQueued();
        },
        putBack: (transaction, events) => putBack(tools, transaction, events),
        findNextAt: store.findNextSmsEventAt,
      }),
  });
}

async function putBack(
  { clock, log }: { clock: Clock; log: Log },
  transaction: Transaction,
  events: readonly store.SmsEvent[],
): Promise<void> {
  const later = planNextLooks(clock, events, ({ event: { providerMessageId } }) => {
    log.warn(
      { provider_message_id: providerMessageId },
      'a text that came in cannot be applied, and is dropped',
    );
  });
  await store.putBackSmsEvents(transaction, later);
}
