import { LRUCache } from 'lru-cache';
import { type EmailProvider, parseAddress } from '../channels/email/email.ts';
import type { SendOutcome } from '../channels/outcome.ts';
import { type Batcher, createBatcher } from '../platform/batcher.ts';
import type { Bell } from '../platform/bell.ts';
import { type ByteBudget, createByteBudget } from '../platform/byte-budget.ts';
import { dateOf } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import { DatabaseUnavailableError } from '../platform/postgres/database.ts';
import type { Lease } from '../platform/queue/lease.ts';
import { type Breaker, createBreaker } from './breaker.ts';
import { type DomainName, loadSendingDomains, type SendingDomain } from '../domains/domains.ts';
import type { Deliverability } from './deliverability.ts';
import {
  buildEmail,
  type BuiltEmail,
  envelopeRecipientOf,
  envelopeSenderOf,
  makeCopy,
  type ReturnPathPolicy,
} from './email-build.ts';
import { uniqueMessages } from './feedback.ts';
import * as store from './queue-store.ts';
import {
  dropJob,
  failJob,
  releaseJob,
  settleAmbiguity,
  settleCrash,
  settleObjection,
  settleOutcome,
} from './settlement.ts';
import { createMarkers, type Markers } from './markers.ts';
import { type MessageFacts, type Settled, writeUntilSettled, type WriterTools } from './settlement-writer.ts';
import { findObjections, type Objection } from './unwanted.ts';

/** What one lease works with; a new lease begins with nothing. */
export type Shift = {
  tools: HandOffTools;
  lease: Lease;
  /** Aborts when nothing more may be handed off. */
  signal: AbortSignal;
  /** From now on nothing is handed off. */
  end: () => void;
  bell: Bell;
  breaker: Breaker;
  built: LRUCache<string, BuiltEmail>;
  /** By organization and name; what is not verified, or gone, is not in it. */
  sendingDomains: LRUCache<string, SendingDomain>;
  budget: ByteBudget;
  markers: Markers;
  /** When it was last asked whether a job may be handed off. */
  checkedAtMs: WeakMap<store.Job, number>;
  /** Results tell whether the outcome was written. */
  settlements: Batcher<Settled, boolean>;
};

export type HandOffTools = WriterTools & {
  emailProvider: EmailProvider;
  deliverability: Deliverability;
  returnPaths: ReturnPathPolicy;
  /** Without a slash at the end. */
  publicUrl: string;
};

/** Parsed keys, a few kilobytes each. */
const sendingDomainsMax = 5_000;
/** For so long a domain that was deleted may still be signed for. */
const sendingDomainMaxAgeMs = 60_000;

/** Messages in memory at once, apart from small ones. */
const contentBytesMax = 64 * 1_048_576;

export function beginShift(tools: HandOffTools, lease: Lease, bell: Bell, stopping: AbortSignal): Shift {
  const ended = new AbortController();
  return {
    tools,
    lease,
    signal: AbortSignal.any([lease.signal, stopping, ended.signal]),
    end: () => {
      ended.abort(new Error('the shift is over'));
    },
    bell,
    breaker: createBreaker(tools.clock),
    built: new LRUCache<string, BuiltEmail>({
      maxSize: contentBytesMax,
      sizeCalculation: ({ sizeBytes }) => sizeBytes,
    }),
    sendingDomains: new LRUCache<string, SendingDomain>({
      max: sendingDomainsMax,
      ttl: sendingDomainMaxAgeMs,
      perf: { now: () => tools.clock.monotonicMs() },
    }),
    budget: createByteBudget(contentBytesMax),
    markers: createMarkers(tools.database, lease.epoch),
    checkedAtMs: new WeakMap(),
    settlements: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      linger: { clock: tools.clock, lingerMs: settlementLingerMs },
      run: (items) => writeUntilSettled(tools, lease, items),
    }),
  };
}

/**
 * Outcomes that are written together cost a fraction of what they cost alone (measured in PostgreSQL: 50 µs each of
 * 32, 33 µs each of 256). Longer would leave more of them unknown when a worker dies.
 */
const settlementLingerMs = 20;

/** Larger ones are loaded one by one when their turn comes. */
const smallContentBytesMax = 262_144;

/** Loads and builds what a batch of jobs needs, in one statement. */
export async function loadSmallMessages(shift: Shift, jobs: readonly store.Job[]): Promise<void> {
  const wanted = uniqueMessages(
    jobs.filter((job) => job.contentBytes <= smallContentBytesMax && recallBuilt(shift, job) === undefined),
  );
  if (wanted.length === 0) return;
  const messages = await store.loadDeliverableMessages(shift.tools.database, wanted);
  await keepSendingDomains(shift, messages);
  for (const message of messages) {
    // One that cannot be built is tried again by itself, when its own job fails over it.
    await keepBuilt(shift, message).catch((cause: unknown) => {
      logFailure(shift.tools.log, cause);
    });
  }
}

async function keepBuilt(shift: Shift, message: store.DeliverableMessage): Promise<BuiltEmail | 'no_domain'> {
  const domain = shift.sendingDomains.get(keyOfDomain(senderDomainOf(message)));
  if (domain === undefined) return 'no_domain';
  const built = await buildEmail(shift.tools, message, domain);
  shift.built.set(message.messageId, built);
  return built;
}

async function keepSendingDomains(
  shift: Shift,
  messages: readonly store.DeliverableMessage[],
): Promise<void> {
  const wanted = new Map(messages.map(senderDomainOf).map((domain) => [keyOfDomain(domain), domain]));
  for (const key of wanted.keys()) {
    if (shift.sendingDomains.has(key)) wanted.delete(key);
  }
  if (wanted.size === 0) return;
  const { database } = shift.tools;
  for (const domain of await loadSendingDomains(shift.tools, database, [...wanted.values()])) {
    shift.sendingDomains.set(keyOfDomain(domain), domain);
  }
}

function senderDomainOf({ organizationId, sender }: store.DeliverableMessage): DomainName {
  return { organizationId, name: parseAddress(sender)?.domain ?? '' };
}

function keyOfDomain({ organizationId, name }: DomainName): string {
  return `${organizationId} ${name}`;
}

/** Hands one job off and says what is to be written of it. Never rejects for anything that has to do with the job. */
export async function handOffJob(shift: Shift, job: store.Job): Promise<Settled> {
  const release = await takeBytes(shift, job);
  try {
    const settled = await attempt(shift, job);
    // Nobody else will ask for it.
    if (settled.message?.isShared === false) shift.built.delete(job.messageId);
    return settled;
  } finally {
    release();
  }
}

const budgetWaitMs = 5_000;

async function takeBytes(shift: Shift, job: store.Job): Promise<() => void> {
  if (job.contentBytes <= smallContentBytesMax) return () => undefined;
  for (;;) {
    const release = shift.budget.take(Math.min(job.contentBytes, contentBytesMax));
    if (release !== null) return release;
    // Some other job holds the bytes and rings when it ends.
    await shift.bell.wait(budgetWaitMs);
  }
}

/** What was built before, unless its domain has to be looked at again: it may have been deleted meanwhile. */
function recallBuilt(shift: Shift, job: store.Job): BuiltEmail | undefined {
  const built = shift.built.get(job.messageId);
  if (built === undefined) return undefined;
  const { domain } = built.sender;
  if (shift.sendingDomains.get(keyOfDomain(domain)) === domain) return built;
  shift.built.delete(job.messageId);
  return undefined;
}

async function findBuilt(shift: Shift, job: store.Job): Promise<BuiltEmail | 'no_content' | 'no_domain'> {
  const built = recallBuilt(shift, job);
  if (built !== undefined) return built;
  const [message] = await store.loadDeliverableMessages(shift.tools.database, [job]);
  if (message === undefined) return 'no_content';
  await keepSendingDomains(shift, [message]);
  return keepBuilt(shift, message);
}

async function attempt(shift: Shift, job: store.Job): Promise<Settled> {
  const { tools } = shift;
  const context = () => ({ atMs: tools.clock.nowMs(), random: tools.random(), dateOf });
  let message: MessageFacts | null = null;
  let isConfirmed = false;
  const settled = (settlement: store.Settlement): Settled => ({ settlement, message });
  if (shift.signal.aborted) return settled(releaseJob(job, context()));
  const entry = shift.breaker.enter();
  if (entry === 'refused') return settled(releaseJob(job, context()));
  let isNoted = false;
  try {
    const objection = await findLateObjection(shift, job);
    if (objection !== undefined) return settled(settleObjection(job, objection));
    const fault = job.attempts > 0 ? null : await tools.deliverability.findFault(domainOf(job));
    if (fault !== null) return settled(dropJob(job, fault));
    const built = await findBuilt(shift, job);
    if (built === 'no_content')
      return settled(failJob(job, 'other', 'The content of the message is no longer stored.'));
    // A campaign is stopped as a whole, by whoever looks after it.
    if (built === 'no_domain' && job.isCampaign)
      return settled(releaseJob(job, context(), domainGonePauseMs));
    if (built === 'no_domain')
      return settled(
        failJob(job, 'policy', 'The sending domain was deleted after the message was accepted.'),
      );
    message = built.facts;
    if (built.sender.domain.signer === 'unreadable') {
      return settled(settleOutcome(job, unreadableKey, context()));
    }
    const content = await makeCopy(tools, built, job);
    if (content === 'too_large') {
      return settled(failJob(job, 'message_too_large', 'The message is too large with its values.'));
    }
    const outcome = await tools.emailProvider.handOff({
      reference: job,
      envelopeFrom: envelopeSenderOf(tools, built, job),
      recipient: envelopeRecipientOf(job),
      content,
      confirm: async () => {
        await confirmHandOff(shift, job);
        isConfirmed = true;
      },
      signal: shift.signal,
    });
    noteOutcome(shift, job, outcome);
    // Nothing was tried, so that nothing was learnt of the provider.
    isNoted = outcome.kind !== 'postponed';
    return settled(settleOutcome(job, outcome, context()));
  } catch (cause) {
    if (cause instanceof UnwantedError) return settled(settleObjection(job, cause.objection));
    const isStopped = shift.signal.aborted || cause instanceof NotConfirmedError;
    if (!isConfirmed && (isStopped || cause instanceof DatabaseUnavailableError)) {
      return settled(releaseJob(job, context()));
    }
    // A message that cannot be built, or that a provider chokes on, must not come back for ever.
    logFailure(tools.log, cause);
    return settled(isConfirmed ? settleAmbiguity(job, context()) : settleCrash(job, context()));
  } finally {
    // A probe that never reached the provider would keep the breaker open for good.
    if (entry === 'probes' && !isNoted) shift.breaker.abandonProbe();
  }
}

/** Whoever unsubscribed longer ago than this gets nothing more; asking more often costs more than it tells. */
const objectionMaxAgeMs = 2_000;

/** A job may have waited in memory for long, behind slow destinations. */
async function findLateObjection(shift: Shift, job: store.Job): Promise<Objection | undefined> {
  if (!job.isCampaign) return undefined;
  const checkedAtMs = shift.checkedAtMs.get(job) ?? -Infinity;
  if (shift.tools.clock.monotonicMs() - checkedAtMs < objectionMaxAgeMs) return undefined;
  const objections = await findObjections(shift.tools, [job]);
  shift.checkedAtMs.set(job, shift.tools.clock.monotonicMs());
  return objections.get(job);
}

const domainGonePauseMs = 60_000;

/** Another node may have the right secret, and the operator may mend this one's. */
const unreadableKey: SendOutcome = {
  kind: 'deferred',
  reason: 'auth_failure',
  reply: {
    code: null,
    enhancedCode: null,
    diagnostic:
      'The DKIM key of the sending domain cannot be read: POSTILLION_SECRET is not the one it was made under.',
    remote: null,
  },
};

export function domainOf({ addressKey }: store.Job): string {
  return addressKey.slice(addressKey.indexOf('@') + 1);
}

/** The job must not be handed off: it is somebody else's by now, or nobody can say whose it is. */
class NotConfirmedError extends Error {
  override readonly name = 'NotConfirmedError';
}

/** The job must not be handed off: whom it is for has said so meanwhile. */
class UnwantedError extends Error {
  override readonly name = 'UnwantedError';
  readonly objection: Objection;
  constructor(objection: Objection) {
    super('the hand-off is not wanted any more');
    this.objection = objection;
  }
}

async function confirmHandOff(shift: Shift, job: store.Job): Promise<void> {
  // The way here, to a server that is slow to answer, may have taken minutes.
  const objection = await findLateObjection(shift, job).catch((cause: unknown) => {
    throw new NotConfirmedError('nobody could be asked whether it is still wanted', { cause });
  });
  if (objection !== undefined) throw new UnwantedError(objection);
  const isOwn = await shift.markers.set(job).catch((cause: unknown) => {
    throw new NotConfirmedError('the hand-off could not be announced', { cause });
  });
  if (!isOwn || shift.signal.aborted) throw new NotConfirmedError('the claim on the job was lost');
}

function noteOutcome(shift: Shift, job: store.Job, outcome: SendOutcome): void {
  const isUnavailable = outcome.kind === 'deferred' && outcome.reason === 'provider_unavailable';
  const change = outcome.kind === 'postponed' ? null : shift.breaker.note(isUnavailable);
  const { log } = shift.tools;
  if (change === 'opened' && isUnavailable) {
    log.error(
      { diagnostic: outcome.reply.diagnostic },
      'the email provider is not available; delivery pauses',
    );
  } else if (change === 'closed') {
    log.info('the email provider is available again');
  }
  log.debug(
    {
      organization_id: job.organizationId,
      message_id: job.messageId,
      ordinal: job.ordinal,
      attempt: job.attempts + 1,
      outcome: outcome.kind,
      reason: 'reason' in outcome ? outcome.reason : undefined,
    },
    'attempt',
  );
}

export function logFailure(log: Log, cause: unknown): void {
  if (cause instanceof DatabaseUnavailableError) {
    log.warn({ err: cause }, 'database unavailable, delivery pauses');
  } else {
    log.error({ err: cause }, 'delivery failed');
  }
}
