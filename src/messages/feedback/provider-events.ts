import type { SendingChannel } from '../../channels/channel.ts';
import type { ProviderReport } from '../../channels/report.ts';
import { type Clock, dateOf, now } from '../../platform/clock.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Log } from '../../platform/log.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { type ChoreTools, type RunningChore, startChore } from '../../platform/queue/chore.ts';
import { keepRoom } from '../../platform/queue/room.ts';
import type { Finding, MessageChannel, MessageChannels } from '../channel.ts';
import { toFailure } from '../delivery/settlement.ts';
import { type RecipientKey, textOfKey } from '../keys.ts';
import { findAddressKeys } from '../recipients/store.ts';
import { applyReportsWithin, type FeedbackTools, type Report } from './feedback.ts';
import * as store from './provider-event-store.ts';
import {
  findByProviderIds,
  keepProviderIds,
  type ProviderId,
  providerIdMaxAgeMs,
  uncertainId,
} from '../recipients/provider-ids-store.ts';
import {
  applyDueEvents,
  createStoring,
  defaultAppliedMax,
  planNextLooks,
  type Taken,
} from './stored-events.ts';

/**
 * Reports from providers, of all channels. A report is stored before it is acknowledged, and applied afterwards. It
 * names its recipient by our own reference, or else by the provider's id of the message. It may arrive before the
 * outcome of its hand-off is written, and is then looked at again later. A report with an unknown id may belong to a
 * hand-off whose answer was lost; some channels find such a hand-off by its address and sender.
 */

export type ReportIntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  onTaken: () => void;
  /** Smaller in tests. */
  storedMax?: number;
  waitingMax?: number;
};

/** What a provider has reported: on which channel, and its name in the registry. */
export type ToldReport = {
  channel: SendingChannel;
  provider: string;
  report: ProviderReport;
  /** Whose messages it may speak of; left out where the installation has one account at the provider. */
  organizationId?: string;
  /** For the channel's `keepFindings`. */
  finding?: unknown;
};

/** Stores a report; rejects if it cannot be stored. */
export type ReportIntake = (told: ToldReport) => Promise<void>;

export function createReportIntake(tools: ReportIntakeTools): ReportIntake {
  const { database, clock, newId, onTaken, ...limits } = tools;
  const take = createStoring<store.ProviderEvent>({
    ...limits,
    store: (events) => {
      const dueAt = now(clock);
      return store.insertProviderEvents(
        database,
        events.map((event) => ({ ...event, dueAt })),
      );
    },
    onStored: onTaken,
  });
  return ({ organizationId = null, finding = null, ...told }) =>
    take({ ...told, organizationId, finding, id: newId(), attempts: 0 });
}

export type ProviderEventTools = ChoreTools &
  FeedbackTools & {
    channels: MessageChannels;
    /** Smaller in tests. */
    appliedMax?: number;
  };

/** Applies the stored reports. May run on any number of nodes. */
export function startProviderEvents(tools: ProviderEventTools): RunningChore {
  const { appliedMax = defaultAppliedMax } = tools;
  const channels = Object.values<MessageChannel>(tools.channels);
  return startChore(tools, {
    name: 'applying what providers reported',
    topic: 'provider_events',
    work: async () => {
      let isMore = false;
      // Reports on one channel wait for at most one batch of each other, and those of an organization for one of all others.
      for (const channel of channels) {
        const taken = await applyDueEvents<store.ProviderEvent>(tools, {
          name: `reports on ${channel.words.messages}`,
          appliedMax,
          apply: (eventsMax) => applyTogether(tools, channel, eventsMax),
          takeNext: (transaction) => takeDue(transaction, tools, channel, 1),
          putBack: (transaction, events) => putBack(tools, transaction, events),
        });
        isMore ||= taken !== 0;
      }
      if (isMore) return 'at once';
      return store.findNextProviderEventAt(
        tools.database,
        channels.map(({ name }) => name),
      );
    },
  });
}

function takeDue(
  transaction: Transaction,
  { clock }: ProviderEventTools,
  { name }: MessageChannel,
  eventsMax: number,
): Promise<store.ProviderEvent[]> {
  return store.takeDueProviderEvents(transaction, name, now(clock), eventsMax);
}

async function applyTogether(
  tools: ProviderEventTools,
  channel: MessageChannel,
  eventsMax: number,
): Promise<Taken> {
  const done = await tools.database.transaction(async (transaction) => {
    const events = await takeDue(transaction, tools, channel, eventsMax);
    const { jobs, named, foreign, recipients } = await findJobs(transaction, tools, channel, events);
    const reports = events.flatMap((event) => {
      const job = jobs.get(event);
      return job === undefined ? [] : [toReport(channel, job, event.report)];
    });
    const areContactsTold =
      reports.length > 0 && (await applyReportsWithin(transaction, tools, channel, reports));
    const findings = listFindings(events, jobs, recipients);
    const areOthersTold =
      findings.length > 0 && (await channel.keepFindings?.(tools, transaction, findings)) === true;
    await keepProviderIds(transaction, named, now(tools.clock));
    const unknown = events.filter((event) => !jobs.has(event) && !foreign.has(event));
    const kept = await keepRoom(unknown, {
      organizationOf: ({ organizationId }) => organizationId,
      countWaiting: (organizationId, countMax) =>
        store.countPutBackEvents(transaction, organizationId, countMax),
      onDropped: (dropped) => {
        tools.log.warn(dropped, 'too much was reported of messages that nobody knows');
      },
    });
    await putBack(tools, transaction, kept);
    return {
      taken: events.length,
      hasReported: reports.length > 0,
      areContactsTold: areContactsTold || areOthersTold,
    };
  });
  if (done.hasReported) tools.onCampaignProgress();
  if (done.areContactsTold) tools.onContactsChanged();
  return done.taken;
}

/** After so many attempts the outcome of the hand-off has been written, if it ever will be. */
const settledAttempts = 3;

/**
 * The jobs that reports belong to, as far as they are known by now. `named` are ids that reports gave to hand-offs that
 * were cut off: the first report settles such a hand-off, so later reports must find it by the id and not by the
 * address.
 */
async function findJobs(
  transaction: Transaction,
  tools: ProviderEventTools,
  channel: MessageChannel,
  events: readonly store.ProviderEvent[],
): Promise<FoundJobs> {
  const jobs = new Map<store.ProviderEvent, RecipientKey>();
  const named: ProviderId[] = [];
  const name = ({ report: { providerMessageId } }: store.ProviderEvent, job: RecipientKey) => {
    if (providerMessageId !== null) named.push({ job, channel: channel.name, providerMessageId });
  };
  for (const event of events) {
    const { reference, status } = event.report;
    if (reference === null) continue;
    jobs.set(event, reference);
    // This may be an answer that came too late. Later reports may reach another worker.
    if (status === 'sent') name(event, reference);
  }
  await findInto(transaction, channel, jobs, events, ({ report }) => report.providerMessageId);
  const strangers = events.filter((event) => !jobs.has(event) && event.attempts >= settledAttempts);
  for (const [event, job] of await findCutOff(transaction, tools, channel, strangers)) {
    jobs.set(event, job);
    name(event, job);
  }
  const foreign = dropForeign(tools, jobs);
  const own = new Set(jobs.values());
  const recipients = await dropStrangers(transaction, channel, jobs);
  return { jobs, named: named.filter(({ job }) => own.has(job)), foreign, recipients };
}

type ReportedRecipients = ReadonlyMap<string, { addressKey: string; handedOffAt: Date | null }>;

type FoundJobs = {
  jobs: Map<store.ProviderEvent, RecipientKey>;
  named: ProviderId[];
  /** They speak of messages of another organization, and are not looked at again. */
  foreign: ReadonlySet<store.ProviderEvent>;
  /** By `textOfKey`, as they were before the reports. */
  recipients: ReportedRecipients;
};

/** Whoever has an account of their own at the provider may say nothing of what others have sent. */
function dropForeign(
  { log }: { log: Log },
  jobs: Map<store.ProviderEvent, RecipientKey>,
): Set<store.ProviderEvent> {
  const foreign = new Set<store.ProviderEvent>();
  for (const [event, job] of jobs) {
    if (event.organizationId === null || event.organizationId === job.organizationId) continue;
    const { channel, provider, organizationId } = event;
    log.warn(
      { channel, provider, organization_id: organizationId },
      'a report of a message of another organization is dropped',
    );
    jobs.delete(event);
    foreign.add(event);
  }
  return foreign;
}

/** What reports say beyond the status, of recipients that are there, in the order in which they came. */
function listFindings(
  events: readonly store.ProviderEvent[],
  jobs: ReadonlyMap<store.ProviderEvent, RecipientKey>,
  recipients: ReportedRecipients,
): Finding[] {
  return events.flatMap((event) => {
    const job = jobs.get(event);
    const recipient = job && recipients.get(textOfKey(job));
    if (event.finding === null || job === undefined || recipient === undefined) return [];
    const { addressKey, handedOffAt: sentAt } = recipient;
    return [{ ...job, addressKey, sentAt, finding: event.finding }];
  });
}

/**
 * Finds, by address and sender, the hand-offs that were cut off and that reports with unknown ids must belong to. If
 * there are two candidates, of one organization or of two that share a sender's name, it is unknown which is meant:
 * both stay uncertain, since applying the report to the wrong one would be false.
 */
async function findCutOff(
  transaction: Transaction,
  { secrets, clock, log }: ProviderEventTools,
  channel: MessageChannel,
  strangers: readonly store.ProviderEvent[],
): Promise<Map<store.ProviderEvent, RecipientKey>> {
  const { findCutOff: findAmong } = channel.reports;
  if (findAmong === null) return new Map();
  const suspected = new Map<store.ProviderEvent, RecipientKey>();
  await findInto(
    transaction,
    channel,
    suspected,
    strangers,
    ({ report }) => report.to && uncertainId(secrets, report.to),
  );
  const wanted = [...suspected.keys()].flatMap((event) => {
    const { to, senderName: sender } = event.report;
    return to === null || sender === null ? [] : [{ event, to, sender }];
  });
  if (wanted.length === 0) return new Map();
  const found = await findAmong(transaction, wanted, dateOf(clock.nowMs() - providerIdMaxAgeMs));
  const cutOff = new Map<store.ProviderEvent, RecipientKey>();
  for (const [index, { event }] of wanted.entries()) {
    const [job, ...others] = found.get(index) ?? [];
    if (job !== undefined && others.length === 0) cutOff.set(event, job);
    if (others.length > 0 && event.attempts === settledAttempts)
      log.warn(
        { channel: channel.name, provider_message_id: event.report.providerMessageId },
        'a report may be of several messages whose hand-off was cut off, and settles none',
      );
  }
  return cutOff;
}

/** Providers sometimes give an id to a second message. A report that names another address is not of this job. */
async function dropStrangers(
  transaction: Transaction,
  { reports: { isSameAddress } }: MessageChannel,
  jobs: Map<store.ProviderEvent, RecipientKey>,
): Promise<ReportedRecipients> {
  const organizationIds = [...new Set([...jobs.values()].map(({ organizationId }) => organizationId))];
  const found = await transaction.asOrganizations(organizationIds, () =>
    findAddressKeys(transaction, [...jobs.values()]),
  );
  const recipients = new Map(found.map((recipient) => [textOfKey(recipient), recipient]));
  for (const [event, job] of jobs) {
    const recipient = recipients.get(textOfKey(job));
    const { to } = event.report;
    if (recipient !== undefined && to !== null && !isSameAddress(recipient.addressKey, to))
      jobs.delete(event);
  }
  return recipients;
}

async function findInto(
  transaction: Transaction,
  channel: MessageChannel,
  jobs: Map<store.ProviderEvent, RecipientKey>,
  events: readonly store.ProviderEvent[],
  idOf: (event: store.ProviderEvent) => string | null,
): Promise<void> {
  const wanted = events.flatMap((event) => {
    const id = jobs.has(event) ? null : idOf(event);
    return id === null ? [] : [{ event, id }];
  });
  if (wanted.length === 0) return;
  const found = await findByProviderIds(
    transaction,
    channel.name,
    wanted.map(({ event: { organizationId }, id: providerMessageId }) => ({
      organizationId,
      providerMessageId,
    })),
  );
  for (const [index, { event }] of wanted.entries()) {
    const job = found.get(index);
    if (job !== undefined) jobs.set(event, job);
  }
}

function toReport(
  { refusals }: MessageChannel,
  job: RecipientKey,
  { status, failure, diagnostic }: ProviderReport,
): Report {
  if (failure === null) return { job, status, failure: null };
  const reply = { code: null, enhancedCode: null, diagnostic: diagnostic ?? '', remote: null };
  return { job, status, failure: toFailure(refusals[failure]?.type ?? 'soft', failure, reply) };
}

async function putBack(
  { clock, log }: { clock: Clock; log: Log },
  transaction: Transaction,
  events: readonly store.ProviderEvent[],
): Promise<void> {
  const later = planNextLooks(clock, events, ({ channel, provider, report }) => {
    log.warn(
      { channel, provider, provider_message_id: report.providerMessageId },
      'a report of a message that is not known here is dropped',
    );
  });
  await store.insertProviderEvents(transaction, later);
}
