import type { SmsIntake, SmsReceipt } from '../channels/sms/sms.ts';
import { createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import { type Database, DatabaseUnavailableError, type Transaction } from '../platform/postgres/database.ts';
import { tryLockName } from '../platform/postgres/name-locks.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { smsChannel, smsRefusals } from './channel.ts';
import * as store from './event-store.ts';
import { answerInbound, type InboundTools } from './inbound.ts';
import {
  applyReportsWithin,
  dueAfterMs,
  type FeedbackTools,
  findAddressKeys,
  findByProviderIds,
  keepProviderIds,
  type ProviderId,
  providerIdMaxAgeMs,
  type RecipientKey,
  type Report,
  textOfKey,
  toFailure,
  uncertainId,
} from '../messages/messages.ts';

/**
 * Events from providers of texts: receipts and incoming texts. An event is stored before it is acknowledged, and
 * applied afterwards. A receipt may arrive before the outcome of its hand-off is written, and is then looked at again
 * later. A receipt with an unknown id may belong to a hand-off whose answer was lost. Such a hand-off is found by the
 * number and the sender.
 */

export type SmsIntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  onTaken: () => void;
  /** Smaller in tests. */
  storedMax?: number;
  waitingMax?: number;
};

/** Events that are stored in one statement. */
const defaultStoredMax = 500;
/** Events waiting to be stored. More are refused, and the provider sends them again later. */
const defaultWaitingMax = 10_000;

/** Stores a provider's events; rejects if they cannot be stored. */
export function createSmsIntake(tools: SmsIntakeTools): SmsIntake {
  const { database, clock, newId, onTaken } = tools;
  const { storedMax = defaultStoredMax, waitingMax = defaultWaitingMax } = tools;
  const batcher = createBatcher<store.NewSmsEvent, undefined>({
    itemsMax: storedMax,
    concurrency: 2,
    run: async (events) => {
      await store.insertSmsEvents(database, events, now(clock));
      onTaken();
      return events.map(() => undefined);
    },
  });
  const take = async (event: store.NewSmsEvent) => {
    if (batcher.size() >= waitingMax) throw new Error('too many events of a provider wait to be stored');
    await batcher.add(event);
  };
  return {
    takeReceipt: (event) => take({ id: newId(), kind: 'receipt', event }),
    takeInbound: (event) => take({ id: newId(), kind: 'inbound', event }),
  };
}

export type SmsEventTools = ChoreTools &
  FeedbackTools &
  InboundTools & {
    /** Called after every commit that changed the consent of contacts. */
    onContactsChanged: () => void;
    /** Called after every commit that queued something. */
    onQueued: () => void;
    /** Smaller in tests. */
    appliedMax?: number;
  };

/** Events that are applied in one transaction. */
const defaultAppliedMax = 500;

/** Applies the stored events. May run on any number of nodes. */
export function startSmsEvents(given: SmsEventTools): RunningChore {
  const { appliedMax = defaultAppliedMax } = given;
  const tools = { ...given, appliedMax };
  return startChore(tools, {
    name: 'applying what was told of texts',
    topic: 'sms_events',
    work: async () => {
      // A STOP waits for at most one batch of receipts, however many a campaign causes. Incoming texts have a
      // transaction of their own, so that no transaction that has locked messages waits for contacts.
      const inbound = await applyDue(tools, 'inbound');
      const receipts = await applyDue(tools, 'receipt');
      if (inbound === appliedMax || receipts === appliedMax) return 'at once';
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

type Kind = store.SmsEvent['kind'];

/** `elsewhere`: another node is applying such events. */
type Taken = number | 'elsewhere';

/** Returns how many events were looked at. An event that would make the others fail is deferred on its own. */
async function applyDue(tools: SmsEventTools & { appliedMax: number }, kind: Kind): Promise<Taken> {
  try {
    return await applyTogether(tools, kind, tools.appliedMax);
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) throw cause;
    tools.log.warn({ err: cause }, 'events of texts are applied one by one');
    let taken = 0;
    while (taken < tools.appliedMax && (await applyOne(tools, kind))) taken += 1;
    return taken;
  }
}

async function applyOne(tools: SmsEventTools, kind: Kind): Promise<boolean> {
  try {
    return (await applyTogether(tools, kind, 1)) === 1;
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) throw cause;
    await tools.database.transaction(async (transaction) => {
      await putBack(tools, transaction, (await takeDue(transaction, tools, kind, 1)) ?? []);
    });
    tools.log.error({ err: cause }, 'an event of a text cannot be applied');
    return true;
  }
}

/**
 * Null if another node is applying incoming texts. Only one node may: START and STOP must take effect in the order in
 * which they came, and a text that is reported twice at once must be answered once.
 */
async function takeDue(
  transaction: Transaction,
  { clock }: SmsEventTools,
  kind: Kind,
  eventsMax: number,
): Promise<store.SmsEvent[] | null> {
  if (kind === 'inbound' && !(await tryLockName(transaction, 'texts that come in'))) return null;
  return store.takeDueSmsEvents(transaction, kind, now(clock), eventsMax);
}

async function applyTogether(tools: SmsEventTools, which: Kind, eventsMax: number): Promise<Taken> {
  const done = await tools.database.transaction(async (transaction) => {
    const events = await takeDue(transaction, tools, which, eventsMax);
    if (events === null) return null;
    const receipts = events.filter((event) => event.kind === 'receipt');
    const { jobs, named } = await findJobs(transaction, tools, receipts);
    const reports = receipts.flatMap((receipt) => {
      const job = jobs.get(receipt);
      return job === undefined ? [] : [toReport(job, receipt.event)];
    });
    const areContactsTold =
      reports.length > 0 && (await applyReportsWithin(transaction, tools, smsChannel, reports));
    await keepProviderIds(transaction, named, now(tools.clock));
    await putBack(
      tools,
      transaction,
      receipts.filter((receipt) => !jobs.has(receipt)),
    );
    const answered = await answerInbound(
      transaction,
      tools,
      events.flatMap(({ kind, event }) => (kind === 'inbound' ? [event] : [])),
    );
    return { taken: events.length, hasReported: reports.length > 0, areContactsTold, ...answered };
  });
  if (done === null) return 'elsewhere';
  if (done.hasReported) tools.onCampaignProgress();
  if (done.haveContactsChanged || done.areContactsTold) tools.onContactsChanged();
  if (done.hasQueued) tools.onQueued();
  return done.taken;
}

type Receipt = Extract<store.SmsEvent, { kind: 'receipt' }>;

/** After so many attempts the outcome of the hand-off has been written, if it ever will be. */
const settledAttempts = 3;

/**
 * The jobs that receipts belong to, as far as they are known by now. `named` are ids that receipts gave to hand-offs
 * that were cut off: the first receipt settles such a hand-off, so later receipts must find it by the id and not by the
 * number.
 */
async function findJobs(
  transaction: Transaction,
  tools: SmsEventTools,
  receipts: readonly Receipt[],
): Promise<{ jobs: Map<Receipt, RecipientKey>; named: ProviderId[] }> {
  const jobs = new Map<Receipt, RecipientKey>();
  const named: ProviderId[] = [];
  const name = ({ event: { providerMessageId } }: Receipt, job: RecipientKey) => {
    if (providerMessageId !== null) named.push({ job, channel: 'sms', providerMessageId });
  };
  for (const receipt of receipts) {
    const { reference, status } = receipt.event;
    if (reference === null) continue;
    jobs.set(receipt, reference);
    // This may be an answer that came too late. Later receipts may reach another worker.
    if (status === 'sent') name(receipt, reference);
  }
  await findInto(transaction, jobs, receipts, ({ event }) => event.providerMessageId);
  const strangers = receipts.filter((receipt) => !jobs.has(receipt) && receipt.attempts >= settledAttempts);
  for (const [receipt, job] of await findCutOff(transaction, tools, strangers)) {
    jobs.set(receipt, job);
    name(receipt, job);
  }
  await dropStrangers(transaction, jobs);
  return { jobs, named };
}

/**
 * Finds, by number and sender, the hand-offs that were cut off and that receipts with unknown ids must belong to. If
 * there are two candidates, of one organization or of two that share a sender's name, it is unknown which is meant:
 * both stay uncertain, since applying the receipt to the wrong one would be false.
 */
async function findCutOff(
  transaction: Transaction,
  { secrets, clock, log }: SmsEventTools,
  strangers: readonly Receipt[],
): Promise<Map<Receipt, RecipientKey>> {
  const suspected = new Map<Receipt, RecipientKey>();
  await findInto(
    transaction,
    suspected,
    strangers,
    ({ event }) => event.to && uncertainId(secrets, event.to),
  );
  const wanted = [...suspected.keys()].flatMap((receipt) => {
    const { to: number, senderName: sender } = receipt.event;
    return number === null || sender === null ? [] : [{ receipt, number, sender }];
  });
  if (wanted.length === 0) return new Map();
  const since = dateOf(clock.nowMs() - providerIdMaxAgeMs);
  const found = await store.findUncertain(transaction, wanted, since);
  const cutOff = new Map<Receipt, RecipientKey>();
  for (const [index, { receipt }] of wanted.entries()) {
    const [job, ...others] = found.get(index) ?? [];
    if (job !== undefined && others.length === 0) cutOff.set(receipt, job);
    if (others.length > 0 && receipt.attempts === settledAttempts)
      log.warn(
        { provider_message_id: receipt.event.providerMessageId },
        'a receipt may be of several texts whose hand-off was cut off, and settles none',
      );
  }
  return cutOff;
}

/** Providers sometimes give an id to a second text. A receipt that names another number does not belong to this job. */
async function dropStrangers(transaction: Transaction, jobs: Map<Receipt, RecipientKey>): Promise<void> {
  const organizationIds = [...new Set([...jobs.values()].map(({ organizationId }) => organizationId))];
  const recipients = await transaction.asOrganizations(organizationIds, () =>
    findAddressKeys(transaction, [...jobs.values()]),
  );
  const numbers = new Map(recipients.map((recipient) => [textOfKey(recipient), recipient.addressKey]));
  for (const [receipt, job] of jobs) {
    const number = numbers.get(textOfKey(job));
    if (number !== undefined && !isSameNumber(number, receipt.event.to)) jobs.delete(receipt);
  }
}

/** The last digits of a number are the same in every spelling, with the country code and without. */
const comparedDigits = 7;

/** If one of the numbers is unknown or erased, they may be the same. */
function isSameNumber(number: string, told: string | null): boolean {
  if (told === null || !number.startsWith('+')) return true;
  return number.slice(-comparedDigits) === told.slice(-comparedDigits);
}

async function findInto(
  transaction: Transaction,
  jobs: Map<Receipt, RecipientKey>,
  receipts: readonly Receipt[],
  idOf: (receipt: Receipt) => string | null,
): Promise<void> {
  const wanted = receipts.flatMap((receipt) => {
    const id = jobs.has(receipt) ? null : idOf(receipt);
    return id === null ? [] : [{ receipt, id }];
  });
  if (wanted.length === 0) return;
  const found = await findByProviderIds(
    transaction,
    'sms',
    wanted.map(({ id }) => id),
  );
  for (const { receipt, id } of wanted) {
    const job = found.get(id);
    if (job !== undefined) jobs.set(receipt, job);
  }
}

const statuses = { sent: 'sent', delivered: 'delivered', undelivered: 'bounced' } as const;

function toReport(job: RecipientKey, { status, failure, diagnostic }: SmsReceipt): Report {
  const reason = status === 'expired' ? 'expired' : failure;
  const reply = { code: null, enhancedCode: null, diagnostic: diagnostic ?? '', remote: null };
  return {
    job,
    status: status === 'failed' || status === 'expired' ? 'failed' : statuses[status],
    failure: reason === null ? null : toFailure(smsRefusals[reason].type, reason, reply),
  };
}

/** Pauses between attempts to apply an event that cannot be applied yet. */
const pausesMs = [100, 400, 1_500, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000] as const;

/** An event whose id is still unknown after half a day belongs to no message of this installation. */
async function putBack(
  { clock, log }: { clock: Clock; log: Log },
  transaction: Transaction,
  events: readonly store.SmsEvent[],
): Promise<void> {
  const later = events.flatMap((event) => {
    const pauseMs = pausesMs[event.attempts];
    if (pauseMs !== undefined)
      return [{ ...event, attempts: event.attempts + 1, dueAt: dateOf(dueAfterMs(clock.nowMs(), pauseMs)) }];
    const { providerMessageId } = event.event;
    log.warn(
      { kind: event.kind, provider_message_id: providerMessageId },
      'told of a text that nobody knows',
    );
    return [];
  });
  await store.putBackSmsEvents(transaction, later);
}
