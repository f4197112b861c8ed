import { type Bell, createBell } from '../../platform/bell.ts';
import { type ByteBudget, createByteBudget } from '../../platform/byte-budget.ts';
import { dateOf, sleep } from '../../platform/clock.ts';
import { type Lease, takeLease } from '../../platform/queue/lease.ts';
import { listenForWakes } from '../../platform/queue/wake.ts';
import { contentBytesMax, type Job, type MessageChannel } from '../channel.ts';
import { beginShift, handOffJob, type HandOffTools, logFailure, type Post, type Shift } from './hand-off.ts';
import { releaseJob, settleCrash, settleObjection } from './settlement.ts';
import { returnClaims } from './settlement-writer.ts';
import { findObjections } from './unwanted.ts';
import { claimDueJobs, claimSuspect } from './claim-store.ts';
import type { Settlement } from './settlement-store.ts';

/**
 * Delivery: the life of a message from its row in the queue to the outcome at its recipient.
 *
 * 1. **Claim** a batch of due jobs under the worker's epoch: transactional before campaigns, organizations in turns,
 *    each channel for itself.
 * 2. **Drop** whom the checks refuse.
 * 3. **Load and build** the messages, each once for all of its recipients.
 * 4. **Hand off**, as many at once as the channel's provider can use. When everything but the message itself has been agreed
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
export type DeliveryTools = HandOffTools;

export type Delivery = {
  /** Begins nothing more, lets what is under way end (at most a minute), gives the rest back. */
  stop: () => Promise<void>;
  /** How many bytes of contents are in memory. */
  heldBytes: () => number;
};

/** Should a notification be lost: the longest that a due job can go unnoticed. */
const idleMs = 5_000;
/**
 * Jobs that wait in memory for each hand-off that the provider can do at once. Fewer would leave the provider idle
 * while the next are claimed; more would be taken from other workers without need.
 */
const jobsPerHandOff = 8;
const stopMaxMs = 60_000;
/**
 * Between failures in a row, doubled each time. Shorter: a database in trouble gets a lease and a claim more often.
 * Longer: mail waits after the trouble is over.
 */
const pauseAfterFailureMinMs = 500;
const pauseAfterFailureMaxMs = idleMs;
/** A worker that went on for so long has got over its last failure. */
const recoveredAfterMs = 30_000;

export function startDelivery(tools: DeliveryTools): Delivery {
  const stopping = new AbortController();
  const office: Office = {
    tools,
    bell: createBell(tools.clock),
    budget: createByteBudget(tools.contentBytesMax ?? contentBytesMax),
    news: { isFresh: true },
    stopping: stopping.signal,
  };
  const listening = listenForWakes(tools, 'deliveries', stopping.signal, () => {
    announce(office);
  });
  const working = workUntilStopped(office);
  return {
    stop: async () => {
      stopping.abort(new Error('the worker is stopping'));
      office.bell.ring();
      await Promise.all([listening, working]);
    },
    heldBytes: office.budget.held,
  };
}

/** What outlives a lease. `news` is fresh when there may be due jobs that no claim has looked for yet. */
type Office = {
  tools: DeliveryTools;
  bell: Bell;
  budget: ByteBudget;
  news: { isFresh: boolean };
  stopping: AbortSignal;
};

function announce({ news, bell }: Office): void {
  news.isFresh = true;
  bell.ring();
}

async function workUntilStopped(office: Office): Promise<void> {
  const { tools, stopping } = office;
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
            // Also where some cannot be returned: the others fall due.
            announce(office);
          }
        },
      });
      try {
        await workUnderLease(office, lease);
      } finally {
        await endLease(tools, lease);
      }
    } catch (cause) {
      logFailure(tools.log, cause);
      const hasRecovered = tools.clock.monotonicMs() - begunAtMs >= recoveredAfterMs;
      pauseMs = hasRecovered ? pauseAfterFailureMinMs : pauseAfterFailure(pauseMs);
      // Not a wait for the bell: giving a lease back rings it, and so does everything that is accepted meanwhile.
      await sleep(tools.clock, pauseMs, stopping).catch(() => undefined);
    }
  }
}

function pauseAfterFailure(lastPauseMs: number): number {
  return Math.min(Math.max(lastPauseMs * 2, pauseAfterFailureMinMs), pauseAfterFailureMaxMs);
}

/**
 * A step that failed may have left claims behind. Once the lease is given back nobody knows of its epoch any more,
 * unless another worker happened to watch it.
 */
async function endLease(tools: DeliveryTools, lease: Lease): Promise<void> {
  try {
    await returnClaims(tools, lease.epoch, releaseJob);
  } finally {
    await lease.release();
  }
}

type LaneNumber = 0 | 1;

/**
 * Transactional messages, or campaigns: where its scan of the organizations stands, and what waits in memory.
 *
 * A claim sees a limited number of organizations, so that a scan of all of them may take several claims. When a
 * scan ends, another one follows if this one found anything, or if news came while it was under way: they may be of
 * an organization that it had passed. Else the lane rests until there is news or something falls due.
 */
type Lane = {
  number: LaneNumber;
  /** The last that the scan has seen; `firstOrganization` between two scans. */
  lastOrganizationId: string;
  /** A scan is to begin, or is under way. */
  mayHaveMore: boolean;
  isScannedAgain: boolean;
  /** When the first of what the last scan saw falls due, or what was put off since. */
  nextDueAtMs: number;
  ready: Job[];
};

const firstOrganization = '00000000-0000-0000-0000-000000000000';

function openLane(number: LaneNumber): Lane {
  return {
    number,
    lastOrganizationId: firstOrganization,
    mayHaveMore: true,
    isScannedAgain: false,
    nextDueAtMs: Infinity,
    ready: [],
  };
}

/** Where the jobs of one channel wait, until its provider has room for them. */
type Counter = { post: Post; lanes: readonly [Lane, Lane]; handOffs: number };

/** A shift at work: what each channel has to do, and what is under way. */
type Desk = {
  shift: Shift;
  counters: ReadonlyMap<MessageChannel, Counter>;
  lastClaimNumber: number;
  underWay: Set<Promise<void>>;
  hasSuspects: boolean;
};

async function workUnderLease(office: Office, lease: Lease): Promise<void> {
  const shift = beginShift(office.tools, lease, office);
  const desk: Desk = {
    shift,
    counters: new Map(
      shift.posts.map((post) => [post.channel, { post, lanes: [openLane(0), openLane(1)], handOffs: 0 }]),
    ),
    lastClaimNumber: 0,
    underWay: new Set(),
    hasSuspects: false,
  };
  try {
    while (!shift.signal.aborted) await takeTurn(office, desk);
  } finally {
    await clearDesk(desk);
    // What waits for its marker still, after all that time, must not leave once its claim has been returned.
    shift.end();
  }
}

/** Claims what there is room for and begins it, or waits for a reason to look again. */
async function takeTurn(office: Office, desk: Desk): Promise<void> {
  const { tools, bell, news } = office;
  if (news.isFresh) {
    news.isFresh = false;
    for (const { lane } of listLanes(desk)) {
      lane.isScannedAgain = lane.lastOrganizationId !== firstOrganization;
      lane.mayHaveMore = true;
    }
  }
  const nowMs = tools.clock.nowMs();
  // Transactional messages first: they find room also where campaigns have taken theirs.
  const wish = listLanes(desk).find((candidate) => isWorthAClaim(candidate, nowMs));
  if (wish !== undefined) {
    await claimInto(desk, wish);
    beginReadyJobs(desk, wish.counter);
    // Behind what was claimed: a suspect waits until nothing else can be taken down with it.
    if (desk.hasSuspects) await trySuspect(desk);
    return;
  }
  const pauseMs = Math.min(...[...desk.counters.values()].map((counter) => pauseOf(counter, nowMs)));
  const hasWaitedOut = await bell.wait(Math.min(Math.max(pauseMs + 1, 1), idleMs));
  // Whatever the reason, it is time for another look.
  if (hasWaitedOut) news.isFresh = true;
}

type Place = { counter: Counter; lane: Lane };

function listLanes({ counters }: Desk): Place[] {
  const all = [...counters.values()];
  return [0, 1].flatMap((number) =>
    all.map((counter) => ({ counter, lane: counter.lanes[number as LaneNumber] })),
  );
}

function isWorthAClaim({ counter, lane }: Place, nowMs: number): boolean {
  const mayFind = lane.mayHaveMore || lane.nextDueAtMs <= nowMs;
  return mayFind && hasRoom(counter, lane) && admittedTo(counter, lane) > 0;
}

/** A few free places are not worth a claim: it costs the same for many. */
function hasRoom(counter: Counter, lane: Lane): boolean {
  return roomIn(counter, lane) >= readyMax(counter) / 2;
}

function readyMax({ post }: Counter): number {
  return post.concurrency * jobsPerHandOff;
}

function roomIn(counter: Counter, lane: Lane): number {
  return readyMax(counter) - lane.ready.length;
}

/** Less than there is room for while the provider is away. */
function admittedTo(counter: Counter, lane: Lane): number {
  return counter.post.breaker.admits(roomIn(counter, lane));
}

/** Whoever waits for room is told when there is some. */
function pauseOf(counter: Counter, nowMs: number): number {
  const { post, lanes } = counter;
  const dueMs = lanes.filter((lane) => hasRoom(counter, lane)).map(({ nextDueAtMs }) => nextDueAtMs - nowMs);
  return post.breaker.pauseMs() ?? Math.min(...dueMs);
}

async function claimInto(desk: Desk, { counter, lane }: Place): Promise<void> {
  const { tools, lease } = desk.shift;
  desk.lastClaimNumber += 1;
  // Before the claim: a job that is put off while it runs may fall due before all that it sees.
  if (lane.lastOrganizationId === firstOrganization) lane.nextDueAtMs = Infinity;
  const claim = await claimDueJobs(tools.database, {
    epoch: lease.epoch,
    claimNumber: desk.lastClaimNumber,
    at: dateOf(tools.clock.nowMs()),
    channel: counter.post.channel,
    lane: lane.number,
    itemsMax: admittedTo(counter, lane),
    afterOrganizationId: lane.lastOrganizationId,
  });
  lane.nextDueAtMs = Math.min(lane.nextDueAtMs, claim.nextDueAt?.getTime() ?? Infinity);
  lane.isScannedAgain ||= claim.jobs.length > 0;
  if (claim.isScanOver) {
    lane.mayHaveMore = lane.isScannedAgain;
    lane.isScannedAgain = false;
  } else {
    lane.mayHaveMore = true;
  }
  lane.lastOrganizationId = claim.isScanOver ? firstOrganization : claim.lastOrganizationId;
  desk.hasSuspects ||= claim.hasSuspects;
  const remaining = await dropUnwanted(desk.shift, claim.jobs);
  await counter.post.shift.prepare(remaining);
  lane.ready.push(...remaining);
}

/** Whoever must not be written to is settled at once; the others are returned. */
async function dropUnwanted(shift: Shift, jobs: readonly Job[]): Promise<Job[]> {
  const objections = await findObjections(shift.tools, jobs);
  const { clock, random } = shift.tools;
  const checkedAtMs = clock.monotonicMs();
  const context = { atMs: clock.nowMs(), random: random(), dateOf };
  for (const job of jobs) shift.checkedAtMs.set(job, checkedAtMs);
  await Promise.all(
    [...objections].map(([job, objection]) =>
      shift.settlements.add({ settlement: settleObjection(job, objection, context), message: null }),
    ),
  );
  return jobs.filter((job) => !objections.has(job));
}

/** Fills the provider's places, transactional messages first. */
function beginReadyJobs(desk: Desk, counter: Counter): void {
  const { lanes, post } = counter;
  while (counter.handOffs < post.concurrency) {
    const job = lanes[0].ready.shift() ?? lanes[1].ready.shift();
    if (job === undefined) return;
    beginJob(desk, counter, job);
  }
}

function beginJob(desk: Desk, counter: Counter, job: Job): void {
  const { shift, underWay } = desk;
  counter.handOffs += 1;
  const ending = handOffJob(shift, counter.post, job)
    .finally(() => {
      // The place is free before the outcome is written.
      counter.handOffs -= 1;
      beginReadyJobs(desk, counter);
    })
    .then(async (settled) => {
      const isWritten = await shift.settlements.add(settled);
      if (isWritten) shift.markers.clear(job);
      noteRequeue(counter, settled.settlement);
    })
    .catch((cause: unknown) => {
      logFailure(shift.tools.log, cause);
    })
    .finally(() => {
      underWay.delete(ending);
      shift.bell.ring();
    });
  underWay.add(ending);
}

/** A job that went back to the queue falls due without anybody's telling. */
function noteRequeue({ lanes }: Counter, { job, requeue }: Settlement): void {
  if (requeue === null) return;
  const lane = lanes[job.isCampaign ? 1 : 0];
  lane.nextDueAtMs = Math.min(lane.nextDueAtMs, requeue.dueAt.getTime());
}

/** A job that took workers down is tried while nothing else is under way, so that nothing else is taken down. */
async function trySuspect(desk: Desk): Promise<void> {
  desk.hasSuspects = false;
  await finishReadyJobs(desk);
  const { tools, lease } = desk.shift;
  desk.lastClaimNumber += 1;
  const job = await claimSuspect(tools.database, {
    channels: [...desk.counters.keys()],
    epoch: lease.epoch,
    claimNumber: desk.lastClaimNumber,
    at: dateOf(tools.clock.nowMs()),
  });
  const counter = job === null ? undefined : desk.counters.get(job.channel);
  if (job === null || counter === undefined) return;
  const [remaining] = await dropUnwanted(desk.shift, [job]);
  if (remaining === undefined) return;
  beginJob(desk, counter, remaining);
  await finishReadyJobs(desk);
}

async function finishReadyJobs({ underWay }: Desk): Promise<void> {
  // Each one that ends may have begun another; nothing is claimed meanwhile, so that this comes to an end.
  while (underWay.size > 0) await Promise.all(underWay);
}

/** What was confirmed is carried through and settled; the rest goes back. */
async function clearDesk(desk: Desk): Promise<void> {
  const { shift, underWay } = desk;
  const { clock, log, random } = shift.tools;
  let cancel: () => void = () => undefined;
  const timeout = new Promise<void>((resolve) => {
    cancel = clock.after(stopMaxMs, () => {
      log.warn({ under_way: underWay.size }, 'stopped while hand-offs were under way');
      resolve();
    });
  });
  const waiting = listLanes(desk).flatMap(({ lane }) => lane.ready.splice(0));
  const context = { atMs: clock.nowMs(), random: random(), dateOf };
  const released = waiting.map((job) =>
    shift.settlements.add({ settlement: releaseJob(job, context), message: null }),
  );
  await Promise.race([Promise.allSettled([finishReadyJobs(desk), ...released]), timeout]);
  cancel();
}
