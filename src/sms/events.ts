import type { SmsIntake } from '../channels/sms/sms.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { tryLockName } from '../platform/postgres/name-locks.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import * as store from './event-store.ts';
import { answerInbound, type InboundTools } from './inbound.ts';
import {
  applyDueEvents,
  createReportIntake,
  createStoring,
  defaultAppliedMax,
  insertProviderEvents,
  nextLookAt,
  type Taken,
} from '../messages/messages.ts';
import { toProviderReport } from './receipts.ts';

/**
 * What providers of texts tell: receipts, which are reports as on every channel, and incoming texts. Both are stored
 * before they are acknowledged. Incoming texts are applied here.
 *
 * The release before this one stored receipts in the table of incoming texts, too. While its processes run beside this
 * release, and when it has just been replaced, receipts are there that nobody applies: they are moved to the other
 * reports.
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
    takeReceipt: (receipt) => report({ channel: 'sms', provider, report: toProviderReport(receipt) }),
    takeInbound: (event) => takeText({ id: newId(), event }),
  };
}

export type SmsEventTools = ChoreTools &
  InboundTools & {
    /** Called after every commit that changed the consent of contacts. */
    onContactsChanged: () => void;
    /** Called after every commit that queued something. */
    onQueued: () => void;
    /** Called after every commit that moved receipts to the other reports. */
    onReported: () => void;
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
    work: async () => {
      const inbound = await applyDueEvents<store.SmsEvent>(tools, {
        name: 'texts that came in',
        appliedMax,
        apply: (eventsMax) => applyTogether(tools, eventsMax),
        takeNext: (transaction) => takeDue(transaction, tools, 1),
        putBack: (transaction, events) => putBack(tools, transaction, events),
      });
      const moved = await moveReceipts(tools);
      if (inbound === appliedMax || moved === appliedMax) return 'at once';
      // Events that another node is applying are still due: without a pause they would be asked for again and again.
      if (inbound === 'elsewhere') return dateOf(tools.clock.nowMs() + elsewherePauseMs);
      return store.findNextSmsEventAt(tools.database);
    },
  });
}

/**
 * If shorter, idle nodes query constantly. If longer, events that arrive while another node applies the rest wait
 * longer.
 */
const elsewherePauseMs = 200;

/**
 * Null if another node is applying incoming texts. Only one node may: START and STOP must take effect in the order in
 * which they came, and a text that is reported twice at once must be answered once.
 */
async function takeDue(
  transaction: Transaction,
  { clock }: SmsEventTools,
  eventsMax: number,
): Promise<store.SmsEvent[] | null> {
  if (!(await tryLockName(transaction, 'texts that come in'))) return null;
  return store.takeDueSmsEvents(transaction, now(clock), eventsMax);
}

async function applyTogether(tools: SmsEventTools, eventsMax: number): Promise<Taken> {
  const done = await tools.database.transaction(async (transaction) => {
    const events = await takeDue(transaction, tools, eventsMax);
    if (events === null) return null;
    const answered = await answerInbound(
      transaction,
      tools,
      events.map(({ event }) => event),
    );
    return { taken: events.length, ...answered };
  });
  if (done === null) return 'elsewhere';
  if (done.haveContactsChanged) tools.onContactsChanged();
  if (done.hasQueued) tools.onQueued();
  return done.taken;
}

async function putBack(
  { clock, log }: { clock: Clock; log: Log },
  transaction: Transaction,
  events: readonly store.SmsEvent[],
): Promise<void> {
  const later = events.flatMap((event) => {
    const dueAt = nextLookAt(clock, event.attempts);
    if (dueAt !== null) return [{ ...event, attempts: event.attempts + 1, dueAt }];
    const { providerMessageId } = event.event;
    log.warn(
      { provider_message_id: providerMessageId },
      'a text that came in cannot be applied, and is dropped',
    );
    return [];
  });
  await store.putBackSmsEvents(transaction, later);
}

/** Returns how many. Whatever becomes of this transaction, each receipt is in one of the two tables. */
async function moveReceipts({ database, appliedMax, onReported }: Moving): Promise<number> {
  const moved = await database.transaction(async (transaction) => {
    const receipts = await store.takeReceipts(transaction, appliedMax);
    await insertProviderEvents(
      transaction,
      receipts.map(({ event, due_at: dueAt, ...receipt }) => ({
        ...receipt,
        dueAt,
        channel: 'sms',
        provider: null,
        organizationId: null,
        finding: null,
        report: toProviderReport(event),
      })),
    );
    return receipts.length;
  });
  if (moved > 0) onReported();
  return moved;
}

type Moving = Pick<SmsEventTools, 'database' | 'onReported'> & { appliedMax: number };
