import { type Wakeup, createWakeup } from '../../platform/wakeup.ts';
import { type ByteBudget, createByteBudget } from '../../platform/byte-budget.ts';
import { dateOf, sleep } from '../../platform/clock.ts';
import { type Lease, takeLease } from '../../platform/queue/lease.ts';
import { listenForWakes } from '../../platform/queue/wake.ts';
import { contentBytesMax, type Job, type MessageChannel } from '../channel.ts';
import { type Claim, claimDueJobs, claimPoisonJob } from './claim-store.ts';
import { handOffJob } from './hand-off.ts';
import {
  type ChannelSession,
  type DeliveryTools,
  type LeaseSession,
  openLeaseSession,
} from './lease-session.ts';
import { logFailure } from './observer.ts';
import { releaseJob, settleCrash, settleObjection } from './settlement.ts';
import type { Settlement } from '../recipients/settlement-store.ts';
import { returnClaims } from './claim-recovery.ts';
import { claimDueSlices, deleteSlices } from './slice-store.ts';

/**
 * Delivery: the life of a message from its row in the queue to the outcome at its recipient.
 *
 * 1. **Claim** a batch of due jobs of one channel under the worker's epoch: transactional before campaigns,
 *    organizations in turns.
 * 2. **Drop** recipients that the checks refuse.
 * 3. **Load and build** the messages, each once for all of its recipients.
 * 4. **Hand off** (attempt.ts), as many at once as the channel's provider can use. When everything but the message itself
 *    has been agreed on with the remote side, "about to hand off" is committed. Then the message is sent.
 * 5. **Settle** the results (settlement.ts) in bulk (ledger.ts): the job leaves the queue, or gets a new due time, in the
 *    statement that writes the recipient's fate.
 *
 * What is promised: a job is settled once, by the worker that claims it. A worker that dies before the commit of step 4
 * has sent nothing, and another one starts again. One that dies after it may have sent the message, and the job is
 * treated as an ambiguity (settlement.ts). A worker that loses its lease hands nothing more off, and an outcome that it
 * writes after its claims were recovered has no effect. While too many outcomes cannot be written, nothing more is
 * claimed or handed off.
 *
 * What is not promised: that no recipient gets a message twice. If the connection fails between the last octet and the
 * reply, it is unknown whether the message was accepted (RFC 1047). Such hand-offs are counted with the recipient.
 */
export type Delivery = {
  /** Begins nothing more, waits for what is under way (at most a minute), and returns the other claims to the queue. */
  stop: () => Promise<void>;
  /** Bytes of content in memory. */
  heldBytes: () => number;
  /** Whether it has a lease, and was not asked to stop. */
  isWorking: () => boolean;
};

/** The longest that a due job can wait unnoticed if a notification is lost. */
const idleMs = 5_000;
/**
 * Jobs that wait in memory for each hand-off that the provider can do at once. Fewer would leave the provider idle
 * while the next are claimed; more would be taken from other workers without need.
 */
const jobsPerHandOff = 8;
/** Of one organization or of two, so that they have turns. */
const slicesPerClaim = 2;
/**
 * As many as are handed off in half a second at the best rate measured. With fewer, hand-offs wait for outcomes to be
 * written. With more, more outcomes are lost if the worker dies while the database does not accept them.
 */
const underWayMax = 5_000;
const stopMaxMs = 60_000;
/**
 * The pause after a failure, doubled for each one in a row. If shorter, a database in trouble is asked for leases and
 * claims more often. If longer, mail waits after the trouble is over.
 */
const pauseAfterFailureMinMs = 500;
const pauseAfterFailureMaxMs = idleMs;
/** After working for so long, a worker has recovered from its last failure. */
const recoveredAfterMs = 30_000;

export function startDelivery(tools: DeliveryTools): Delivery {
  const stopping = new AbortController();
  const worker: Worker = {
    tools,
    wakeup: createWakeup(tools.clock),
    budget: createByteBudget(tools.contentBytesMax ?? contentBytesMax),
    rescan: { isDue: true, channels: new Set() },
    lease: null,
    stopping: stopping.signal,
  };
  const listening = listenForWakes(tools, 'deliveries', stopping.signal, (channel) => {
    requestRescan(worker, channel);
  });
  const working = workUntilStopped(worker);
  return {
    stop: async () => {
      stopping.abort(new Error('the worker is stopping'));
      worker.wakeup.wake();
      await Promise.all([listening, working]);
    },
    heldBytes: worker.budget.held,
    isWorking: () => worker.lease !== null && !worker.lease.signal.aborted && !stopping.signal.aborted,
  };
}

/**
 * What is kept from one lease to the next. A rescan is due when there may be due jobs that no claim has looked for yet,
 * or due transactional ones of some channels.
 */
type Worker = {
  tools: DeliveryTools;
  wakeup: Wakeup;
  budget: ByteBudget;
  rescan: { isDue: boolean; channels: Set<string> };
  lease: Lease | null;
  stopping: AbortSignal;
};

function requestRescan({ rescan, wakeup }: Worker, channel: string | null): void {
  if (channel === null) rescan.isDue = true;
  else rescan.channels.add(channel);
  wakeup.wake();
}

async function workUntilStopped(worker: Worker): Promise<void> {
  const { tools, stopping } = worker;
  let pauseMs = 0;
  while (!stopping.aborted) {
    const begunAtMs = tools.clock.monotonicMs();
    try {
      const lease = await takeLease({
        ...tools,
        recover: async (epoch) => {
          try {
            await returnClaims(tools, epoch, settleCrash);
          } finally {
            // Even if some claims cannot be returned: the jobs of the others are due now.
            requestRescan(worker, null);
          }
        },
      });
      worker.lease = lease;
      try {
        await workUnderLease(worker, lease);
      } finally {
        worker.lease = null;
        await endLease(tools, lease);
      }
    } catch (cause) {
      logFailure(tools.log, cause);
      const hasRecovered = tools.clock.monotonicMs() - begunAtMs >= recoveredAfterMs;
      pauseMs = hasRecovered ? pauseAfterFailureMinMs : pauseAfterFailure(pauseMs);
      // Not a wait for the wakeup, which the release of a lease and every accepted message would end at once.
      await sleep(tools.clock, pauseMs, stopping).catch(() => undefined);
    }
  }
}

function pauseAfterFailure(lastPauseMs: number): number {
  return Math.min(Math.max(lastPauseMs * 2, pauseAfterFailureMinMs), pauseAfterFailureMaxMs);
}

/**
 * A step that failed may have left claims. After the lease is released, no worker would recover them, unless one
 * happened to be watching its epoch.
 */
async function endLease(tools: DeliveryTools, lease: Lease): Promise<void> {
  try {
    await returnClaims(tools, lease.epoch, releaseJob);
  } finally {
    await lease.release();
  }
}

/**
 * Where the jobs of a lane come from, in the order in which they are handed off: transactional messages, recipients of
 * campaigns that were tried before or given back, and slices of those that nobody has tried yet.
 */
const laneKinds = ['transactional', 'campaign', 'slices'] as const;

type LaneKind = (typeof laneKinds)[number];

/**
 * The jobs of a channel of one kind: how far the scan of the organizations is, and what waits in memory.
 *
 * A claim sees a limited number of organizations, so that a scan of all of them may take several claims. When a scan
 * ends, another one follows if this one may have left something, or if a rescan was requested while it was under way: the
 * new jobs may be of an organization that it had passed. Otherwise the lane waits for a request, or until a job falls
 * due.
 */
type Lane = {
  kind: LaneKind;
  /** The last one that the scan has seen; `firstOrganization` between two scans. */
  lastOrganizationId: string;
  /** A scan is about to begin, or is under way. */
  mayHaveMore: boolean;
  isScannedAgain: boolean;
  /** When the first job that the last scan saw, or that was requeued since, falls due. */
  nextDueAtMs: number;
  ready: Job[];
};

const firstOrganization = '00000000-0000-0000-0000-000000000000';

function openLane(kind: LaneKind): Lane {
  return {
    kind,
    lastOrganizationId: firstOrganization,
    mayHaveMore: true,
    isScannedAgain: false,
    nextDueAtMs: Infinity,
    ready: [],
  };
}

/** The claimed jobs of one channel, until its provider has room for them. */
type LocalQueue = {
  channelSession: ChannelSession;
  lanes: Readonly<Record<LaneKind, Lane>>;
  handOffs: number;
};

function openLocalQueue(channelSession: ChannelSession): LocalQueue {
  const lanes = {
    transactional: openLane('transactional'),
    campaign: openLane('campaign'),
    slices: openLane('slices'),
  };
  return { channelSession, lanes, handOffs: 0 };
}

/** What a worker has to do under its lease, channel by channel, and what is under way. */
type Dispatcher = {
  session: LeaseSession;
  queues: ReadonlyMap<MessageChannel, LocalQueue>;
  lastClaimNumber: number;
  underWay: Set<Promise<void>>;
  hasPoison: boolean;
};

async function workUnderLease(worker: Worker, lease: Lease): Promise<void> {
  const session = openLeaseSession(worker.tools, lease, worker);
  const dispatcher: Dispatcher = {
    session,
    queues: new Map(
      session.channelSessions.map((channelSession) => [
        channelSession.channel,
        openLocalQueue(channelSession),
      ]),
    ),
    lastClaimNumber: 0,
    underWay: new Set(),
    hasPoison: false,
  };
  try {
    while (!session.signal.aborted) await takeTurn(worker, dispatcher);
  } finally {
    await drain(dispatcher);
    // A job that is still waiting for its marker must not be handed off once its claim has been returned.
    session.end();
  }
}

/** Claims what there is room for and begins it, or waits for a reason to look again. */
async function takeTurn(worker: Worker, dispatcher: Dispatcher): Promise<void> {
  const { tools, wakeup, rescan } = worker;
  beginRescans(worker, dispatcher);
  const nowMs = tools.clock.nowMs();
  // Transactional messages first. Each lane has its own room, so campaigns cannot take theirs.
  const next = mayHandOff(dispatcher)
    ? listLanes(dispatcher).find((candidate) => isWorthAClaim(candidate, nowMs))
    : undefined;
  if (next !== undefined) {
    await claimInto(dispatcher, next);
    beginReadyJobs(dispatcher, next.queue);
    // After the claimed jobs: a poison job is tried when its crash can affect no other.
    if (dispatcher.hasPoison) await tryPoisonJob(dispatcher);
    return;
  }
  const pauseMs = Math.min(...[...dispatcher.queues.values()].map((queue) => pauseOf(queue, nowMs)));
  const hasWaitedOut = await wakeup.wait(Math.min(Math.max(pauseMs + 1, 1), idleMs));
  // A notification may have been lost.
  if (hasWaitedOut) rescan.isDue = true;
}

function beginRescans({ rescan }: Worker, dispatcher: Dispatcher): void {
  if (!rescan.isDue && rescan.channels.size === 0) return;
  for (const { queue, lane } of listLanes(dispatcher)) {
    const isNamed = lane.kind === 'transactional' && rescan.channels.has(queue.channelSession.channel.name);
    if (!rescan.isDue && !isNamed) continue;
    lane.isScannedAgain = lane.lastOrganizationId !== firstOrganization;
    lane.mayHaveMore = true;
  }
  rescan.isDue = false;
  rescan.channels.clear();
}

type QueueLane = { queue: LocalQueue; lane: Lane };

function listLanes({ queues }: Dispatcher): QueueLane[] {
  const all = [...queues.values()];
  return laneKinds.flatMap((kind) => all.map((queue) => ({ queue, lane: queue.lanes[kind] })));
}

/** Whether few enough jobs are being handed off, or wait for their outcome to be written. */
function mayHandOff({ session, underWay }: Dispatcher): boolean {
  return underWay.size < (session.tools.underWayMax ?? underWayMax);
}

function isWorthAClaim({ queue, lane }: QueueLane, nowMs: number): boolean {
  const mayFind = lane.mayHaveMore || lane.nextDueAtMs <= nowMs;
  return mayFind && hasRoom(queue, lane) && admittedTo(queue, lane) > 0;
}

/** A claim costs the same for few jobs as for many, so it waits until half the room is free. */
function hasRoom(queue: LocalQueue, lane: Lane): boolean {
  return roomIn(queue, lane) >= readyMax(queue) / 2;
}

function readyMax({ channelSession }: LocalQueue): number {
  return channelSession.concurrency * jobsPerHandOff;
}

function roomIn(queue: LocalQueue, lane: Lane): number {
  return readyMax(queue) - lane.ready.length;
}

/** Fewer than there is room for while the provider is unavailable. */
function admittedTo(queue: LocalQueue, lane: Lane): number {
  const room = roomIn(queue, lane);
  const admitted = queue.channelSession.breakers.admits(room);
  // A slice is more than the one that tries whether it is available again, for which any other in the queue will do.
  const isProbing = admitted < room && lane.kind === 'slices';
  return isProbing && queue.lanes.campaign.nextDueAtMs < Infinity ? 0 : admitted;
}

/**
 * How long there will be nothing to claim. A lane without room is not counted: the end of a hand-off wakes the worker.
 */
function pauseOf(queue: LocalQueue, nowMs: number): number {
  const { channelSession, lanes } = queue;
  const dueMs = Object.values(lanes)
    .filter((lane) => hasRoom(queue, lane))
    .map(({ nextDueAtMs }) => nextDueAtMs - nowMs);
  return channelSession.breakers.pauseMs() ?? Math.min(...dueMs);
}

async function claimInto(dispatcher: Dispatcher, { queue, lane }: QueueLane): Promise<void> {
  dispatcher.lastClaimNumber += 1;
  // Before the claim: a job that is requeued while it runs may fall due before all jobs that the claim sees.
  if (lane.lastOrganizationId === firstOrganization) lane.nextDueAtMs = Infinity;
  const claim = await claimFor(dispatcher, { queue, lane });
  lane.nextDueAtMs = Math.min(lane.nextDueAtMs, claim.nextDueAt?.getTime() ?? Infinity);
  lane.isScannedAgain ||= claim.mayHaveLeft;
  if (claim.isScanOver) {
    lane.mayHaveMore = lane.isScannedAgain;
    lane.isScannedAgain = false;
  } else {
    lane.mayHaveMore = true;
  }
  lane.lastOrganizationId = claim.isScanOver ? firstOrganization : claim.lastOrganizationId;
  dispatcher.hasPoison ||= claim.hasPoison;
  const remaining = await dropUnwanted(dispatcher.session, queue.channelSession, claim.jobs);
  await queue.channelSession.delivery.prepare(remaining);
  lane.ready.push(...remaining);
}

async function claimFor(
  { session: { tools, lease }, lastClaimNumber }: Dispatcher,
  { queue, lane }: QueueLane,
): Promise<Claim> {
  const { channel } = queue.channelSession;
  const request = {
    epoch: lease.epoch,
    claimNumber: lastClaimNumber,
    channel,
    afterOrganizationId: lane.lastOrganizationId,
  };
  if (lane.kind !== 'slices') {
    return claimDueJobs(tools.database, {
      ...request,
      at: dateOf(tools.clock.nowMs()),
      lane: lane.kind === 'transactional' ? 0 : 1,
      itemsMax: admittedTo(queue, lane),
    });
  }
  const { empty, ...claim } = await claimDueSlices(tools.database, { ...request, slicesMax: slicesPerClaim });
  await deleteSlices(tools.database, empty, lease.epoch);
  return { ...claim, mayHaveLeft: claim.jobs.length > 0, nextDueAt: null, hasPoison: false };
}

/** Settles jobs that must not be handed off, and returns the others. */
async function dropUnwanted(
  session: LeaseSession,
  { ledger }: ChannelSession,
  jobs: readonly Job[],
): Promise<Job[]> {
  const objections = await session.objections.find(jobs);
  const { clock, random } = session.tools;
  const context = { atMs: clock.nowMs(), random: random(), dateOf };
  await Promise.all(
    [...objections].map(([job, objection]) =>
      ledger.settle({ settlement: settleObjection(job, objection, context), message: null }),
    ),
  );
  return jobs.filter((job) => !objections.has(job));
}

/** Begins as many hand-offs as the provider has room for, transactional messages first. */
function beginReadyJobs(dispatcher: Dispatcher, queue: LocalQueue): void {
  const { lanes, channelSession } = queue;
  while (queue.handOffs < channelSession.concurrency && mayHandOff(dispatcher)) {
    const job =
      lanes.transactional.ready.shift() ?? lanes.campaign.ready.shift() ?? lanes.slices.ready.shift();
    if (job === undefined) return;
    beginJob(dispatcher, queue, job);
  }
}

function beginJob(dispatcher: Dispatcher, queue: LocalQueue, job: Job): void {
  const { session, underWay } = dispatcher;
  queue.handOffs += 1;
  const ending = deliverJob(dispatcher, queue, job)
    .catch((cause: unknown) => {
      logFailure(session.tools.log, cause);
    })
    .finally(() => {
      underWay.delete(ending);
      // `mayHandOff` may have refused until now.
      for (const each of dispatcher.queues.values()) beginReadyJobs(dispatcher, each);
      session.wakeup.wake();
    });
  underWay.add(ending);
}

async function deliverJob(dispatcher: Dispatcher, queue: LocalQueue, job: Job): Promise<void> {
  const { channelSession } = queue;
  const settled = await handOffJob(dispatcher.session, channelSession, job).finally(() => {
    // The next hand-off need not wait until the outcome of this one is written.
    queue.handOffs -= 1;
    beginReadyJobs(dispatcher, queue);
  });
  await channelSession.ledger.settle(settled);
  noteRequeue(queue, settled.settlement);
}

/** No notification is sent when a requeued job falls due. */
function noteRequeue({ lanes }: LocalQueue, { job, requeue }: Settlement): void {
  if (requeue === null) return;
  const lane = lanes[job.isCampaign ? 'campaign' : 'transactional'];
  lane.nextDueAtMs = Math.min(lane.nextDueAtMs, requeue.dueAt.getTime());
}

/** A poison job is tried while nothing else is under way, so that its crash affects no other job. */
async function tryPoisonJob(dispatcher: Dispatcher): Promise<void> {
  dispatcher.hasPoison = false;
  await finishReadyJobs(dispatcher);
  const { tools, lease } = dispatcher.session;
  dispatcher.lastClaimNumber += 1;
  const job = await claimPoisonJob(tools.database, {
    channels: [...dispatcher.queues.keys()],
    epoch: lease.epoch,
    claimNumber: dispatcher.lastClaimNumber,
    at: dateOf(tools.clock.nowMs()),
  });
  const queue = job === null ? undefined : dispatcher.queues.get(job.channel);
  if (job === null || queue === undefined) return;
  const [remaining] = await dropUnwanted(dispatcher.session, queue.channelSession, [job]);
  if (remaining === undefined) return;
  beginJob(dispatcher, queue, remaining);
  await finishReadyJobs(dispatcher);
}

async function finishReadyJobs({ underWay }: Dispatcher): Promise<void> {
  // Each job that ends may begin another. This ends because nothing is claimed in the meantime.
  while (underWay.size > 0) await Promise.all(underWay);
}

/** Waits for jobs that were confirmed, and returns the others to the queue. */
async function drain(dispatcher: Dispatcher): Promise<void> {
  const { session, underWay } = dispatcher;
  const { clock, log, random } = session.tools;
  let cancel: () => void = () => undefined;
  const timeout = new Promise<void>((resolve) => {
    cancel = clock.after(stopMaxMs, () => {
      log.warn({ under_way: underWay.size }, 'stopped while hand-offs were under way');
      resolve();
    });
  });
  const waiting = listLanes(dispatcher).flatMap(({ lane, queue: { channelSession } }) =>
    lane.ready.splice(0).map((job) => ({ job, ledger: channelSession.ledger })),
  );
  const context = { atMs: clock.nowMs(), random: random(), dateOf };
  const released = waiting.map(({ job, ledger }) =>
    ledger.settle({ settlement: releaseJob(job, context), message: null }),
  );
  await Promise.race([Promise.allSettled([finishReadyJobs(dispatcher), ...released]), timeout]);
  cancel();
}
