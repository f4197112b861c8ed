import {
  findHeldSets,
  loadProperties,
  markMessageReader,
  setReadiness,
  syncMembers,
  takeContactChanges,
} from '../audience/audience.ts';
import { findEventsKeptMs } from '../accounts/accounts.ts';
import { findCampaignMessages } from '../messages/messages.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  isConflict,
  isStatementTimeout,
  type Transaction,
} from '../platform/postgres/database.ts';
import { beginSlice, SliceOverError } from '../platform/queue/turns.ts';
import {
  askedEvents,
  collectMentionedNames,
  type Condition,
  type ConditionContext,
  isTimeBound,
  parseConditions,
  readsMessages,
  windowsOf,
} from './conditions.ts';
import { loadEvents } from './asked-events.ts';
import { compilePredicate } from './compile.ts';
import { makeUsersStale } from './staleness.ts';
import * as store from './store.ts';
import { lookAgainMs, windowsUntilOf } from './window-times.ts';

/**
 * How the members of segments are found and kept up to date.
 *
 * A segment is *computed* when its conditions are new: all contacts are evaluated, and those for whom the conditions
 * are true become its members. From then on it is *followed*: every transaction that changes contacts inserts a row
 * into `contact_changes`, and only these contacts are evaluated again, for all segments of the organization. A segment
 * that others use comes before its users. Transactions that write the outcome of a message insert such a row too, in
 * organizations with a segment that reads messages: the computation marks such a segment. So do transactions that store
 * events which some segment holds. Conditions on time change without any write: their segments are computed again now and
 * then, and only differences are written; but events that leave the period of a condition are found by themselves
 * (windows.ts).
 *
 * One node at a time writes the members of an organization, under an advisory lock that ends with its transaction. A
 * computation waits for the lock, unless another one has it; following skips the organization instead. Either may be given
 * up when its slice is over (platform/queue/turns.ts), and leaves everything as it was. A change is deleted in the transaction that
 * follows it, so that after a crash it is followed again, with the same result. A change that is committed while a
 * segment is being computed is followed afterwards, so that it is not lost if the computation did not see it.
 *
 * Programs are told who enters and leaves a segment from when it was computed for its conditions: that it is new, or asks
 * something else, is nothing that its contacts did. What changed while a segment was not ready is told once it is computed
 * again.
 *
 * A ready segment uses only ready segments. If a segment fails or gets other conditions, the segments that use it are
 * no longer ready either: an exclusion that is empty because it was not computed would exclude no one.
 */
export type MembershipTools = {
  database: Database;
  clock: Clock;
  log: Log;
  newId: NewId;
  /** Smaller in tests. */
  followedMax?: number;
  /** Smaller in tests: see windows.ts. */
  leavingMax?: number;
};

/**
 * Contacts evaluated in one transaction. With fewer, more transactions are needed; with more, other changes of the
 * organization wait longer.
 */
const defaultFollowedMax = 5_000;
/** Pause after a segment fails for a reason of its own, which only a bug of ours can cause. */
const retryFailedMs = 600_000;

/**
 * Follows the oldest changes of an organization. Returns false if there were none, or another node is doing it. Throws
 * SliceOverError if it takes longer than its slice, but for the statement under way.
 */
export async function followChanges(
  tools: MembershipTools,
  organizationId: string,
  sliceMs: number | null = null,
): Promise<boolean> {
  try {
    return await tools.database.asOrganizationsByIndex([organizationId], async (transaction) => {
      const slice = await beginSlice(tools.clock, transaction, sliceMs);
      if (!(await store.tryLockMembers(transaction, organizationId))) return false;
      const contactsMax = tools.followedMax ?? defaultFollowedMax;
      const contactIds = await takeContactChanges(transaction, organizationId, contactsMax);
      if (contactIds.length === 0) return false;
      const segments = await store.listKeptSegments(transaction, organizationId);
      // A segment that is still to be computed will evaluate all contacts, including these.
      const ready = usedFirst(segments).filter(({ isReady }) => isReady);
      if (ready.length === 0) return true;
      const context = await loadContext(transaction, organizationId, ready);
      const windowed = [];
      for (const segment of ready) {
        slice.check();
        const { condition } = await refresh(tools, transaction, segment, context, contactIds);
        if (windowsOf(condition).length > 0) windowed.push(segment.id);
      }
      const lookAt = dateOf(tools.clock.nowMs() + lookAgainMs);
      await store.lookBy(transaction, organizationId, windowed, lookAt);
      return true;
    });
  } catch (cause) {
    if (sliceMs !== null && isOverTime(cause)) throw new SliceOverError({ cause });
    if (!(cause instanceof RefreshError)) throw cause;
    // Next time the others are followed without it.
    await failSegment(tools, cause);
    return true;
  }
}

/** Everything that the conditions of these segments may speak of. */
export async function loadContext(
  connection: Connection,
  organizationId: string,
  segments: readonly { conditions: unknown }[],
): Promise<ConditionContext> {
  const mentioned = segments.map(({ conditions }) => collectMentionedNames(conditions));
  const campaignIds = new Set(mentioned.flatMap((names) => names.campaignIds));
  const eventNames = new Set(mentioned.flatMap((names) => names.eventNames));
  const [properties, sets, campaignMessages, events, eventsKeptMs] = await Promise.all([
    loadProperties(connection, organizationId),
    findHeldSets(connection, organizationId),
    findCampaignMessages(connection, organizationId, [...campaignIds]),
    loadEvents(connection, { organizationId, names: [...eventNames], isHeld: false }),
    findEventsKeptMs(connection, organizationId),
  ]);
  return { properties, sets, campaignMessages, events, eventsKeptMs };
}

/** One segment failed, for a reason that does not concern the others. */
class RefreshError extends Error {
  readonly segment: store.KeptSegment;
  constructor(segment: store.KeptSegment, cause: unknown) {
    super('the members of a segment could not be found', { cause });
    this.segment = segment;
  }
}

/** Updates the members of a segment, for the given contacts or for all, to those for whom its conditions are true. */
async function refresh(
  tools: MembershipTools,
  transaction: Transaction,
  segment: store.KeptSegment,
  context: ConditionContext,
  contactIds: readonly string[] | null,
): Promise<{ hasChanged: boolean; condition: Condition }> {
  const { organizationId, id } = segment;
  try {
    const reading = parseConditions(segment.conditions, context);
    if (!reading.ok) throw new Error(`stored conditions cannot be read: ${reading.issues.join(', ')}`);
    const { condition } = reading;
    const isPartial = contactIds !== null;
    const at = now(tools.clock);
    const predicate = compilePredicate(condition, [organizationId, id, contactIds], at, { isPartial });
    const toldAt = segment.isFilled ? at : null;
    const { joined, left } = await store.joinByHash(transaction, predicate, () =>
      syncMembers(transaction, predicate, { isPartial, toldAt }),
    );
    return { hasChanged: joined + left > 0, condition };
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
    throw new RefreshError(segment, cause);
  }
}

/** Whether PostgreSQL ended a statement for the time that it took, be it that of one segment. */
function isOverTime(cause: unknown): boolean {
  return isStatementTimeout(cause instanceof RefreshError ? cause.cause : cause);
}

async function failSegment(tools: MembershipTools, { segment, cause }: RefreshError): Promise<void> {
  const { organizationId, id } = segment;
  tools.log.error(
    { err: cause, organization_id: organizationId, segment_id: id },
    'the members of a segment could not be found',
  );
  await tools.database.asOrganizations([organizationId], async (transaction) => {
    await setReadiness(transaction, { organizationId, ids: [id], isReady: false });
    const nextAt = dateOf(tools.clock.nowMs() + retryFailedMs);
    await store.markFailed(transaction, { ...segment, nextAt });
    await makeUsersStale(transaction, segment);
  });
}

/** A million contacts take seconds; a hundred conditions on messages may take minutes. */
const computeTimeoutMs = 300_000;
/** Segments that depend on time are computed this often, as long as that costs less than a twentieth of a core. */
const againMs = 60_000;
const restsPerWork = 20;
const restMaxMs = 3_600_000;
/**
 * A segment that reads messages is computed once more this long after it was marked, and one that asks about events this
 * long after it holds them, since transactions that had not seen that insert no changes. No such transaction takes longer
 * than this.
 */
const unmarkedMs = 60_000;

/**
 * Computes the segment of an organization that is due. Returns false if there is none, or another node is computing one of
 * them. Throws SliceOverError if that takes longer than its slice.
 */
export async function computeNext(
  tools: MembershipTools,
  organizationId: string,
  signal: AbortSignal,
  sliceMs: number | null = null,
): Promise<boolean> {
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      // Waiting for the other one would take a place from those who need not wait.
      if (!(await store.tryLockComputing(transaction, organizationId))) return false;
      await beginSlice(tools.clock, transaction, sliceMs);
      await store.lockMembers(transaction, organizationId);
      const segments = usedFirst(await store.listKeptSegments(transaction, organizationId));
      const due = segments.find(isDue(tools.clock.nowMs()));
      if (due === undefined) return false;
      const ready = new Set(segments.flatMap(({ id, isReady }) => (isReady ? [id] : [])));
      if (due.usedIds.every((id) => ready.has(id))) {
        await stopWithSignal(tools.database, transaction, signal, () =>
          compute(tools, transaction, due, sliceMs ?? computeTimeoutMs),
        );
      } else {
        await store.waitForUsed(transaction, due);
      }
      return true;
    });
  } catch (cause) {
    signal.throwIfAborted();
    if (sliceMs !== null && isOverTime(cause)) throw new SliceOverError({ cause });
    if (cause instanceof SupersededError) return true;
    if (!(cause instanceof RefreshError)) throw cause;
    await failSegment(tools, cause);
    return true;
  }
}

/** The segment was deleted, or got other conditions, while it was being computed: the result is discarded. */
class SupersededError extends Error {}

async function compute(
  tools: MembershipTools,
  transaction: Transaction,
  segment: store.KeptSegment,
  timeMaxMs: number,
): Promise<void> {
  const { organizationId, id } = segment;
  const startedAtMs = tools.clock.monotonicMs();
  await transaction.allowTime(timeMaxMs);
  const context = await loadContext(transaction, organizationId, [segment]);
  const computedFor = now(tools.clock);
  const { hasChanged, condition } = await refresh(tools, transaction, segment, context, null);
  const workMs = tools.clock.monotonicMs() - startedAtMs;
  const at = now(tools.clock);
  // In the order in which requests lock them: the set before the segment.
  await setReadiness(transaction, { organizationId, ids: [id], isReady: true });
  await markMessageReader(transaction, { organizationId, id, readsMessages: readsMessages(condition) });
  const pauseMs = pauseAfter(segment, condition, { at, workMs });
  const isCurrent = await store.markComputed(transaction, {
    ...segment,
    at,
    nextAt: pauseMs === null ? null : dateOf(at.getTime() + pauseMs),
    windowsUntil: windowsOf(condition).length > 0 ? windowsUntilOf(computedFor) : null,
  });
  if (!isCurrent) throw new SupersededError();
  if (hasChanged || !segment.isReady) await store.computeUsers(transaction, segment, at);
}

/** How long until all contacts are evaluated again; null if following changes is enough. */
function pauseAfter(
  segment: store.KeptSegment,
  condition: Condition,
  { at, workMs }: { at: Date; workMs: number },
): number | null {
  const pausesMs = [];
  if (isTimeBound(condition)) pausesMs.push(Math.min(Math.max(againMs, workMs * restsPerWork), restMaxMs));
  if (readsMessages(condition) && !segment.isToldOfMessages) pausesMs.push(unmarkedMs);
  const heldMs = at.getTime() - segment.conditionsAt.getTime();
  if (askedEvents(condition).length > 0 && heldMs < unmarkedMs) pausesMs.push(unmarkedMs - heldMs);
  return pausesMs.length === 0 ? null : Math.min(...pausesMs);
}

/** Cancels a long statement when the signal aborts. Its work is rolled back, and another node does it again. */
async function stopWithSignal(
  database: Database,
  transaction: Transaction,
  signal: AbortSignal,
  work: () => Promise<void>,
): Promise<void> {
  signal.throwIfAborted();
  const backendPid = await store.readBackendPid(transaction);
  let cancelling: Promise<void> = Promise.resolve();
  const cancel = () => {
    cancelling = store.cancelStatement(database, backendPid).catch(() => undefined);
  };
  signal.addEventListener('abort', cancel, { once: true });
  try {
    await work();
  } finally {
    signal.removeEventListener('abort', cancel);
    // The connection goes back to the pool afterwards, and a statement of its next user must not be cancelled.
    await cancelling;
  }
}

function isDue(atMs: number) {
  return (segment: store.KeptSegment) => segment.computeAt !== null && segment.computeAt.getTime() <= atMs;
}

/**
 * Orders segments so that each follows those that it uses. There are no cycles, since conditions that would make one
 * are refused.
 */
export function usedFirst<Segment extends { id: string; usedIds: readonly string[] }>(
  segments: readonly Segment[],
): Segment[] {
  const byId = new Map(segments.map((segment) => [segment.id, segment]));
  const ordered = new Set<Segment>();
  for (const first of segments) {
    // A chain may be as long as there are segments, which is too long for a stack of calls.
    const path = [first];
    for (let segment = path.at(-1); segment !== undefined; segment = path.at(-1)) {
      const next = segment.usedIds.map((id) => byId.get(id)).find((used) => used && !ordered.has(used));
      if (next !== undefined && !ordered.has(segment)) {
        path.push(next);
      } else {
        ordered.add(segment);
        path.pop();
      }
    }
  }
  return [...ordered];
}
