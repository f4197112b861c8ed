import { LRUCache } from 'lru-cache';
import { addSuppressions, areSuppressed, type SuppressionTools } from '../audience/audience.ts';
import type { EmailProvider } from '../channels/email/email.ts';
import type { SendOutcome } from '../channels/outcome.ts';
import { type Batcher, createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf, sleep } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import { type Database, DatabaseUnavailableError } from '../platform/postgres/database.ts';
import { type Lease, takeLease } from '../platform/queue/lease.ts';
import { listenForWakes } from '../platform/queue/wake.ts';
import { type ByteBudget, createByteBudget } from '../platform/byte-budget.ts';
import { type Breaker, createBreaker } from './breaker.ts';
import { buildEmail, type BuiltEmail, envelopeRecipientOf, fillFor } from './email-build.ts';
import { uniqueMessages } from './feedback.ts';
import * as store from './queue-store.ts';
import { dropJob, failJob, releaseJob, settleAmbiguity, settleCrash, settleOutcome } from './settlement.ts';

/**
 * Delivery: the life of a message from its row in the queue to the outcome at its recipient.
 *
 * 1. **Claim** a batch of due jobs under the worker's epoch: transactional before campaigns, organizations in turns.
 * 2. **Drop** whom the checks refuse.
 * 3. **Load and build** the messages, each once for all of its recipients.
 * 4. **Hand off**, as many at once as the provider can use. When everything but the message itself has been agreed
 *    on with the remote side, "about to hand off" is committed; then the message leaves.
 * 5. **Settle** the outcomes in bulk: the job leaves the queue, or gets a new time, in the same statement in which
 *    the recipient's fate is written.
 *
 * What is promised: a job is settled once, by the worker that claims it. A worker that dies before the commit of
 * step 4 has sent nothing, and another one begins anew; one that dies after it may have sent, and the job is treated
 * as an ambiguity (settlement.ts). A worker that loses its lease hands nothing more off, and what it writes finds no
 * claim. When outcomes cannot be written, nothing more is claimed until they are.
 *
 * What is not promised: that nobody gets a message twice. Between the last octet and the answer nobody can know
 * (RFC 1047); such hand-offs are counted with the recipient.
 */
export type DeliveryTools = SuppressionTools & {
  database: Database;
  clock: Clock;
  log: Log;
  emailProvider: EmailProvider;
  /** From 0 to 1; spreads retries. */
  random: () => number;
};

export type Delivery = {
  /** Begins nothing more, lets what is under way end (at most a minute), gives the rest back. */
  stop: () => Promise<void>;
};

/** The channel on which acceptance wakes the workers. */
export const deliveryChannel = 'postillion_deliveries';

/** Should a notification be lost: the longest that a due job can go unnoticed. */
const idleMs = 5_000;
/** Jobs in hand for each hand-off that the provider can do at once: the next are ready when one ends. */
const jobsPerHandOff = 4;
/** Messages in memory at once, apart from small ones. */
const contentBytesMax = 64 * 1_048_576;
const stopMaxMs = 60_000;
const pauseAfterFailureMs = 500;

export function startDelivery(tools: DeliveryTools): Delivery {
  const stopping = new AbortController();
  const bell = createBell(tools.clock);
  const listening = listenForWakes(tools, deliveryChannel, stopping.signal, bell.ring);
  const working = workUntilStopped(tools, bell, stopping.signal);
  return {
    stop: async () => {
      stopping.abort(new Error('the worker is stopping'));
      bell.ring();
      await Promise.all([listening, working]);
    },
  };
}

async function workUntilStopped(tools: DeliveryTools, bell: Bell, stopping: AbortSignal): Promise<void> {
  while (!stopping.aborted) {
    try {
      const lease = await takeLease({ ...tools, recover: (epoch) => returnClaims(tools, epoch, bell, settleCrash) });
      try {
        await workUnderLease(tools, lease, bell, stopping);
      } finally {
        await endLease(tools, lease, bell);
      }
    } catch (cause) {
      logFailure(tools.log, cause);
      await bell.wait(pauseAfterFailureMs);
    }
  }
}

/**
 * A step that failed may have left claims behind. Once the lease is given back nobody knows of its epoch any more,
 * unless another worker happened to watch it.
 */
async function endLease(tools: DeliveryTools, lease: Lease, bell: Bell): Promise<void> {
  try {
    await returnClaims(tools, lease.epoch, bell, releaseJob);
  } finally {
    await lease.release();
  }
}

/** What one lease works with; a new lease begins with nothing. */
type Shift = {
  tools: DeliveryTools;
  lease: Lease;
  /** Aborts when nothing more may be handed off. */
  signal: AbortSignal;
  bell: Bell;
  breaker: Breaker;
  built: LRUCache<string, BuiltEmail>;
  budget: ByteBudget;
  confirmations: Batcher<store.JobKey, boolean>;
  settlements: Batcher<Settled, undefined>;
  underWay: Set<Promise<void>>;
};

/** `message` is null where nothing is known of it, so that nothing may be left out. */
type Settled = { settlement: store.Settlement; message: MessageFacts | null };

type MessageFacts = { isShared: boolean; hasAttachments: boolean };

async function workUnderLease(
  tools: DeliveryTools,
  lease: Lease,
  bell: Bell,
  stopping: AbortSignal,
): Promise<void> {
  const shift = beginShift(tools, lease, bell, stopping);
  try {
    const turns = { 0: firstOrganization, 1: firstOrganization };
    while (!stopping.aborted && !lease.signal.aborted) await takeTurn(shift, turns);
  } finally {
    await endShift(shift);
  }
}

/** Claims what there is room for and begins it, or waits for a reason to look again. */
async function takeTurn(shift: Shift, turns: Turns): Promise<void> {
  const { tools, bell, breaker, underWay } = shift;
  const capacity = tools.emailProvider.concurrency * jobsPerHandOff;
  const free = capacity - underWay.size;
  const room = breaker.admits(free);
  // A few places that are free are not worth a claim: it costs the same for many.
  if (room === 0 || (free < capacity / 4 && underWay.size > 0)) {
    await bell.wait(breaker.pauseMs() ?? idleMs);
    return;
  }
  const claim = await claimNext(shift, turns, room);
  if (claim.jobs.length > 0) await beginJobs(shift, claim.jobs);
  // Behind what was claimed: a suspect waits until nothing else can be taken down with it.
  if (claim.hasSuspects) await trySuspect(shift);
  if (claim.jobs.length === 0 && !claim.mayHaveMore)
    await bell.wait(pauseUntil(tools.clock, claim.nextDueAt));
}

function beginShift(tools: DeliveryTools, lease: Lease, bell: Bell, stopping: AbortSignal): Shift {
  return {
    tools,
    lease,
    signal: AbortSignal.any([lease.signal, stopping]),
    bell,
    breaker: createBreaker(tools.clock),
    built: new LRUCache<string, BuiltEmail>({
      maxSize: contentBytesMax,
      sizeCalculation: ({ sizeBytes }) => sizeBytes,
    }),
    budget: createByteBudget(contentBytesMax),
    // While some are being committed, the next ones gather.
    confirmations: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      run: (jobs) =>
        store.confirmHandOffs(tools.database, jobs, { epoch: lease.epoch, at: dateOf(tools.clock.nowMs()) }),
    }),
    settlements: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      run: async (items) => {
        await writeUntilSettled(tools, lease, items);
        return items.map(() => undefined);
      },
    }),
    underWay: new Set(),
  };
}

/** What was confirmed is carried through, and settled; the rest goes back. */
async function endShift(shift: Shift): Promise<void> {
  const { clock, log } = shift.tools;
  let cancel: () => void = () => undefined;
  const timeout = new Promise<void>((resolve) => {
    cancel = clock.after(stopMaxMs, () => {
      log.warn({ under_way: shift.underWay.size }, 'stopped while hand-offs were under way');
      resolve();
    });
  });
  await Promise.race([Promise.all(shift.underWay), timeout]);
  cancel();
}

const firstOrganization = '00000000-0000-0000-0000-000000000000';
type Turns = Record<0 | 1, string>;

/** Transactional mail first; campaigns get the room that it leaves. */
async function claimNext(
  shift: Shift,
  turns: Turns,
  room: number,
): Promise<{ jobs: store.Job[]; nextDueAt: Date | null; hasSuspects: boolean; mayHaveMore: boolean }> {
  const { tools, lease } = shift;
  const jobs: store.Job[] = [];
  const nextDueAts: Date[] = [];
  let hasSuspects = false;
  let mayHaveMore = false;
  for (const lane of [0, 1] as const) {
    if (jobs.length >= room) break;
    const claim = await store.claimDueJobs(tools.database, {
      epoch: lease.epoch,
      at: dateOf(tools.clock.nowMs()),
      lane,
      itemsMax: room - jobs.length,
      afterOrganizationId: turns[lane],
    });
    jobs.push(...claim.jobs);
    if (claim.nextDueAt !== null) nextDueAts.push(claim.nextDueAt);
    hasSuspects ||= claim.hasSuspects;
    // The scan goes round: what lies before the organization where it began is seen at the next turn.
    mayHaveMore ||= turns[lane] !== firstOrganization;
    turns[lane] = claim.lastOrganizationId ?? firstOrganization;
  }
  const nextDueAt = nextDueAts.sort((first, second) => first.getTime() - second.getTime())[0] ?? null;
  return { jobs, nextDueAt, hasSuspects, mayHaveMore };
}

function pauseUntil(clock: Clock, nextDueAt: Date | null): number {
  if (nextDueAt === null) return idleMs;
  return Math.min(Math.max(nextDueAt.getTime() - clock.nowMs(), 0) + 1, idleMs);
}

/** A job that took workers down is tried while nothing else is under way, so that nothing else is taken down. */
async function trySuspect(shift: Shift): Promise<void> {
  await Promise.all(shift.underWay);
  const job = await store.claimSuspect(shift.tools.database, {
    epoch: shift.lease.epoch,
    at: dateOf(shift.tools.clock.nowMs()),
  });
  if (job === null) return;
  await beginJobs(shift, [job]);
  await Promise.all(shift.underWay);
}

async function beginJobs(shift: Shift, jobs: readonly store.Job[]): Promise<void> {
  const remaining = await dropSuppressed(shift, jobs);
  await loadSmallMessages(shift, remaining);
  for (const job of remaining) {
    const ending = carryOut(shift, job)
      .catch((cause: unknown) => {
        logFailure(shift.tools.log, cause);
      })
      .finally(() => {
        shift.underWay.delete(ending);
        shift.bell.ring();
      });
    shift.underWay.add(ending);
  }
}

async function dropSuppressed(shift: Shift, jobs: readonly store.Job[]): Promise<store.Job[]> {
  const verdicts = await areSuppressed(
    shift.tools.database,
    shift.tools,
    'email',
    jobs.map(({ organizationId, addressKey }) => ({ organizationId, address: addressKey })),
  );
  const dropped = jobs.filter((_job, index) => verdicts[index]);
  await Promise.all(
    dropped.map((job) => shift.settlements.add({ settlement: dropJob(job, 'suppressed'), message: null })),
  );
  return jobs.filter((_job, index) => !verdicts[index]);
}

/** Larger ones are loaded one by one when their turn comes. */
const smallContentBytesMax = 262_144;

async function loadSmallMessages(shift: Shift, jobs: readonly store.Job[]): Promise<void> {
  const wanted = uniqueMessages(
    jobs.filter((job) => job.contentBytes <= smallContentBytesMax && !shift.built.has(job.messageId)),
  );
  if (wanted.length === 0) return;
  for (const message of await store.loadDeliverableMessages(shift.tools.database, wanted)) {
    // One that cannot be built is tried again by itself, when its own job fails over it.
    await keepBuilt(shift, message).catch((cause: unknown) => {
      logFailure(shift.tools.log, cause);
    });
  }
}

async function keepBuilt(shift: Shift, message: store.DeliverableMessage): Promise<BuiltEmail> {
  const built = await buildEmail(shift.tools, message);
  shift.built.set(message.messageId, built);
  return built;
}

/** One job, from here to its settlement; rejects only if that could not be written. */
async function carryOut(shift: Shift, job: store.Job): Promise<void> {
  const release = await takeBytes(shift, job);
  try {
    const settled = await attempt(shift, job);
    // Nobody else will ask for it.
    if (settled.message?.isShared === false) shift.built.delete(job.messageId);
    await shift.settlements.add(settled);
  } finally {
    release();
  }
}

async function takeBytes(shift: Shift, job: store.Job): Promise<() => void> {
  if (job.contentBytes <= smallContentBytesMax) return () => undefined;
  for (;;) {
    const release = shift.budget.take(Math.min(job.contentBytes, contentBytesMax));
    if (release !== null) return release;
    // Some other job holds the bytes and rings when it ends.
    await shift.bell.wait(idleMs);
  }
}

async function findBuilt(shift: Shift, job: store.Job): Promise<BuiltEmail | null> {
  const built = shift.built.get(job.messageId);
  if (built !== undefined) return built;
  const [message] = await store.loadDeliverableMessages(shift.tools.database, [job]);
  return message === undefined ? null : keepBuilt(shift, message);
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
    const built = await findBuilt(shift, job);
    if (built === null)
      return settled(failJob(job, 'other', 'The content of the message is no longer stored.'));
    message = built.facts;
    const content = fillFor(built, job);
    if (content === 'too_large') {
      return settled(failJob(job, 'message_too_large', 'The message is too large with its values.'));
    }
    const outcome = await tools.emailProvider.handOff({
      reference: job,
      envelopeFrom: built.envelopeFrom,
      recipient: envelopeRecipientOf(job),
      content,
      confirm: async () => {
        await confirmHandOff(shift, job);
        isConfirmed = true;
      },
      signal: shift.signal,
    });
    noteOutcome(shift, job, outcome);
    isNoted = true;
    return settled(settleOutcome(job, outcome, context()));
  } catch (cause) {
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

/** The job must not be handed off: it is somebody else's by now, or nobody can say whose it is. */
class NotConfirmedError extends Error {
  override readonly name = 'NotConfirmedError';
}

async function confirmHandOff(shift: Shift, job: store.Job): Promise<void> {
  const isOwn = await shift.confirmations.add(job).catch((cause: unknown) => {
    throw new NotConfirmedError('the hand-off could not be announced', { cause });
  });
  if (!isOwn || shift.signal.aborted) throw new NotConfirmedError('the claim on the job was lost');
}

function noteOutcome(shift: Shift, job: store.Job, outcome: SendOutcome): void {
  const isUnavailable = outcome.kind === 'deferred' && outcome.reason === 'provider_unavailable';
  const change = shift.breaker.note(isUnavailable);
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

/** Outcomes are known only here: they are written again and again until the database takes them. */
async function writeUntilSettled(
  tools: DeliveryTools,
  lease: Lease,
  items: readonly Settled[],
): Promise<void> {
  let lostAtMs: number | null = null;
  for (;;) {
    try {
      await writeSettlements(tools, lease.epoch, items);
      return;
    } catch (cause) {
      if (!(cause instanceof DatabaseUnavailableError)) {
        await writeOneByOne(tools, lease, items, cause);
        return;
      }
      // Once the lease is lost for good, the claims are others' to recover, as ambiguous as they are to them.
      if (lease.signal.aborted) lostAtMs ??= tools.clock.monotonicMs();
      if (lostAtMs !== null && tools.clock.monotonicMs() - lostAtMs > lostLeaseMs) throw cause;
      await sleep(tools.clock, pauseAfterFailureMs);
    }
  }
}

/** One outcome that cannot be written must not take the others of its batch with it. */
async function writeOneByOne(
  tools: DeliveryTools,
  lease: Lease,
  items: readonly Settled[],
  cause: unknown,
): Promise<void> {
  if (items.length === 1) {
    // The job stays claimed, and is recovered when this lease ends.
    tools.log.error(
      { err: cause, message_id: items[0]?.settlement.job.messageId },
      'an outcome cannot be written',
    );
    return;
  }
  for (const item of items) await writeUntilSettled(tools, lease, [item]);
}

/** How long outcomes of a lost lease are still offered to a database that does not answer. */
const lostLeaseMs = 10_000;

async function writeSettlements(
  tools: DeliveryTools,
  epoch: number,
  items: readonly Settled[],
): Promise<void> {
  const at = dateOf(tools.clock.nowMs());
  const settlements = items.map(({ settlement }) => settlement);
  // A campaign has no status of its own rows to keep, and far too many recipients to go through.
  const messagesWith = (has: (facts: MessageFacts) => boolean) =>
    uniqueMessages(
      items
        .filter(({ settlement, message }) => !settlement.job.isCampaign && (message === null || has(message)))
        .map(({ settlement }) => settlement.job),
    );
  await tools.database.transaction(async (transaction) => {
    await store.lockMessagesOf(
      transaction,
      messagesWith(({ isShared }) => isShared),
    );
    const changed = new Set(
      (await store.settleJobs(transaction, settlements, { epoch, at })).map(store.textOfKey),
    );
    const changedSettlements = settlements.filter(({ job }) => changed.has(store.textOfKey(job)));
    const changedJobs = changedSettlements.map(({ job }) => job).filter(({ isCampaign }) => !isCampaign);
    await Promise.all([
      store.refreshMessages(transaction, uniqueMessages(changedJobs), at),
      store.deleteFinishedAttachments(
        transaction,
        messagesWith(({ hasAttachments }) => hasAttachments),
      ),
      suppressHardBounces(transaction, tools, changedSettlements),
      transaction.commit(),
    ]);
  });
}

async function suppressHardBounces(
  transaction: Parameters<typeof addSuppressions>[0],
  tools: DeliveryTools,
  settlements: readonly store.Settlement[],
): Promise<void> {
  const bounced = settlements.filter(
    ({ status, failure }) => status === 'bounced' && failure?.type === 'hard',
  );
  await addSuppressions(
    transaction,
    tools,
    'email',
    bounced.map(({ job }) => ({
      organizationId: job.organizationId,
      address: job.addressKey,
      reason: 'hard_bounce',
    })),
  );
}

const recoveryItemsMax = 500;

/**
 * Settles what a worker that has ended had claimed: until there is no more of it, and once more costs nothing.
 * `settleUnconfirmed` says what becomes of jobs that were not about to be handed off.
 */
async function returnClaims(
  tools: DeliveryTools,
  epoch: number,
  bell: Bell,
  settleUnconfirmed: typeof settleCrash,
): Promise<void> {
  for (;;) {
    const claims = await store.listClaims(tools.database, epoch, recoveryItemsMax);
    if (claims.length === 0) break;
    const context = { atMs: tools.clock.nowMs(), random: tools.random(), dateOf };
    await writeSettlements(
      tools,
      epoch,
      claims.map((job) => ({
        settlement:
          job.confirmedAt === null ? settleUnconfirmed(job, context) : settleAmbiguity(job, context),
        message: null,
      })),
    );
    tools.log.warn({ epoch, jobs: claims.length }, 'claims of an ended worker returned to the queue');
  }
  bell.ring();
}

/** Wakes one waiter; a ring while nobody waits is remembered. */
type Bell = { ring: () => void; wait: (timeoutMs: number) => Promise<void> };

function createBell(clock: Clock): Bell {
  let waiters: (() => void)[] = [];
  let isRung = false;
  return {
    ring: () => {
      isRung = waiters.length === 0;
      const woken = waiters;
      waiters = [];
      for (const wake of woken) wake();
    },
    wait: (timeoutMs) =>
      new Promise((resolve) => {
        if (isRung) {
          isRung = false;
          resolve();
          return;
        }
        const cancel = clock.after(timeoutMs, wake);
        function wake() {
          cancel();
          waiters = waiters.filter((waiter) => waiter !== wake);
          resolve();
        }
        waiters.push(wake);
      }),
  };
}

function logFailure(log: Log, cause: unknown): void {
  if (cause instanceof DatabaseUnavailableError)
    log.warn({ err: cause }, 'database unavailable, delivery pauses');
  else log.error({ err: cause }, 'delivery failed');
}
