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
 * What providers tell of texts. It is stored before it is acknowledged, and applied afterwards: a receipt may be here
 * before the hand-off that it speaks of has been written down, and is then looked at again. A receipt whose message
 * nobody knows may still be that of a hand-off whose answer was lost: then the number and the sender tell.
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
/** More that wait to be stored than this are refused, and told again by their provider. */
const defaultWaitingMax = 10_000;

/** Stores what a provider tells; rejects if it cannot be stored. */
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
    /** Told after every commit that changed what contacts consent to. */
    onContactsChanged: () => void;
    /** Told after every commit that queued something. */
    onQueued: () => void;
    /** Smaller in tests. */
    appliedMax?: number;
  };

/** Events of one transaction. */
const defaultAppliedMax = 500;

/** Applies what was stored, on any number of nodes. */
export function startSmsEvents(given: SmsEventTools): RunningChore {
  const { appliedMax = defaultAppliedMax } = given;
  const tools = { ...given, appliedMax };
  return startChore(tools, {
    name: 'applying what was told of texts',
    topic: 'sms_events',
    work: async () => {
      // A STOP waits for one batch of receipts at most, however many a campaign brings. A transaction of its own also
      // keeps whoever holds messages from waiting for contacts.
      const inbound = await applyDue(tools, 'inbound');
      const receipts = await applyDue(tools, 'receipt');
      if (inbound === appliedMax || receipts === appliedMax) return 'at once';
      // What another node has under way is still due, and would be asked for again and again.
      if (inbound === 'elsewhere') return dateOf(tools.clock.nowMs() + elsewherePauseMs);
      return store.findNextSmsEventAt(tools.database);
    },
  });
}

/** Shorter, and nodes do nothing but ask; longer, and what came in while another applied the rest waits for it. */
const elsewherePauseMs = 200;

type Kind = store.SmsEvent['kind'];

/** `elsewhere`: another node is at it. */
type Taken = number | 'elsewhere';

/** Returns how many events were looked at. One over which the others would fail is put off by itself. */
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
 * Null where another node is applying texts that come in: START and STOP count in the order in which they came, and
 * one that is told twice at once is answered once.
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

/** By then the hand-off has been written down, if it ever will be. */
const settledAttempts = 3;

/**
 * Whose receipts they are, as far as that is known by now. `named` are the ids under which more may be told of texts
 * whose hand-off was cut off: the first receipt settles them, so that the next one is not looked for by its number.
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
    // An answer that came too late, perhaps: what follows may be told to another worker.
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
 * The hand-offs that were cut off and that receipts under unknown ids must be of, by number and sender. Where there
 * are two, of one organization or of two that share a name, nothing tells which: both stay as uncertain as they are,
 * for the receipt of one would be a lie about the other.
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

/** Providers give the same id to another text now and then: a receipt for another number is none of this one. */
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

/** Fewer digits are the same in every spelling of a number, with its country and without. */
const comparedDigits = 7;

/** Where one of them is not known, or was erased, nothing speaks against it. */
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

/** From one look at an event that cannot be applied yet to the next. */
const pausesMs = [100, 400, 1_500, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000] as const;

/** What nobody has known for half a day is of no message of this installation. */
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
