import {
  findHeldSets,
  loadProperties,
  markMessageReader,
  setReadiness,
  syncMembers,
  takeContactChanges,
} from '../audience/audience.ts';
import { findCampaignMessages } from '../messages/messages.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  isConflict,
  type Transaction,
} from '../platform/postgres/database.ts';
import {
  collectMentionedNames,
  type Condition,
  type ConditionContext,
  isTimeBound,
  parseConditions,
  readsMessages,
} from './conditions.ts';
import { compilePredicate } from './compile.ts';
import { makeUsersStale } from './staleness.ts';
import * as store from './store.ts';

/**
 * How segments get their members, and keep them.
 *
 * A segment is *computed* when its conditions are new: all contacts are looked at, and its members are made those for
 * whom the conditions hold. From then on it is *followed*: every transaction that changes contacts leaves a row in
 * `contact_changes`, and only these contacts are looked at again, for all segments of the organization, those that
 * others use before their users. So does every transaction that writes what became of a message, in organizations with
 * a segment that reads messages: the computation marks such a segment. Conditions that speak of time change without
 * anything being written: their segments are computed again now and then, and again only those who came or went are
 * written.
 *
 * One node at a time keeps the members of an organization, under an advisory lock that ends with its transaction;
 * whoever computes waits for it, and whoever follows passes on. A change is taken off in the transaction that follows
 * it, so that after a crash it is followed again, to the same result. A change that is committed while a segment is
 * computed is followed afterwards, so that what the computation did not see is not lost.
 *
 * A segment that is ready uses only segments that are ready. One that fails, or gets other conditions, takes those
 * that use it along: an exclusion that is empty because nobody computed it would let everybody in.
 */
export type MembershipTools = {
  database: Database;
  clock: Clock;
  log: Log;
  /** Smaller in tests. */
  followedMax?: number;
};

/** Contacts looked at in one transaction: fewer cost more of them, more keep the organization's other changes waiting. */
const defaultFollowedMax = 5_000;
/** Should it fail for a reason of its own, which nothing but a fault of ours would be. */
const retryFailedMs = 600_000;

/** Follows the oldest changes of an organization. Returns false if there were none, or another node is at it. */
export async function followChanges(tools: MembershipTools, organizationId: string): Promise<boolean> {
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      if (!(await store.tryLockMembers(transaction, organizationId))) return false;
      const contactsMax = tools.followedMax ?? defaultFollowedMax;
      const contactIds = await takeContactChanges(transaction, organizationId, contactsMax);
      if (contactIds.length === 0) return false;
      const segments = await store.listKeptSegments(transaction, organizationId);
      // One that is still to be computed will look at all contacts, these among them.
      const ready = usedFirst(segments).filter(({ isReady }) => isReady);
      if (ready.length === 0) return true;
      const context = await loadContext(transaction, organizationId, ready);
      for (const segment of ready) await refresh(tools, transaction, segment, context, contactIds);
      return true;
    });
  } catch (cause) {
    if (!(cause instanceof RefreshError)) throw cause;
    // Without it, the others are followed the next time.
    await failSegment(tools, cause);
    return true;
  }
}

/** Everything that the conditions of these segments may speak of. */
async function loadContext(
  connection: Connection,
  organizationId: string,
  segments: readonly store.KeptSegment[],
): Promise<ConditionContext> {
  const campaignIds = new Set(
    segments.flatMap(({ conditions }) => collectMentionedNames(conditions).campaignIds),
  );
  const [properties, sets, campaignMessages] = await Promise.all([
    loadProperties(connection, organizationId),
    findHeldSets(connection, organizationId),
    findCampaignMessages(connection, organizationId, [...campaignIds]),
  ]);
  return { properties, sets, campaignMessages };
}

/** A segment failed by itself: nothing that stands in the way of all of them. */
class RefreshError extends Error {
  readonly segment: store.KeptSegment;
  constructor(segment: store.KeptSegment, cause: unknown) {
    super('the members of a segment could not be found', { cause });
    this.segment = segment;
  }
}

/** Makes the members of a segment those contacts, among the given ones or all, for whom its conditions hold. */
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
    const predicate = compilePredicate(condition, [organizationId, id, contactIds], now(tools.clock));
    const { joined, left } = await syncMembers(transaction, predicate, { isPartial: contactIds !== null });
    return { hasChanged: joined + left > 0, condition };
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
    throw new RefreshError(segment, cause);
  }
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
/** Segments that change with time are computed so often, as long as that costs less than a twentieth of a core. */
const againMs = 60_000;
const restsPerWork = 20;
const restMaxMs = 3_600_000;
/**
 * A segment that reads messages is computed once more after it was marked, since what was written by transactions that
 * had not seen the mark yet is told by nobody. None of those takes that long.
 */
const unmarkedMs = 60_000;
/** And daily, for what nodes of a release that tells nothing wrote while another took their place. */
const retoldMs = 86_400_000;

/** Computes the segment of an organization that is due. Returns false if there is none. */
export async function computeNext(
  tools: MembershipTools,
  organizationId: string,
  signal: AbortSignal,
): Promise<boolean> {
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      await store.lockMembers(transaction, organizationId);
      const segments = usedFirst(await store.listKeptSegments(transaction, organizationId));
      const due = segments.find(isDue(tools.clock.nowMs()));
      if (due === undefined) return false;
      const ready = new Set(segments.flatMap(({ id, isReady }) => (isReady ? [id] : [])));
      if (due.usedIds.every((id) => ready.has(id))) {
        await stopWithSignal(tools.database, transaction, signal, () => compute(tools, transaction, due));
      } else {
        await store.waitForUsed(transaction, due);
      }
      return true;
    });
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof SupersededError) return true;
    if (!(cause instanceof RefreshError)) throw cause;
    await failSegment(tools, cause);
    return true;
  }
}

/** It was deleted, or got other conditions, while it was computed: nothing of that may stay. */
class SupersededError extends Error {}

async function compute(
  tools: MembershipTools,
  transaction: Transaction,
  segment: store.KeptSegment,
): Promise<void> {
  const { organizationId, id } = segment;
  const startedAtMs = tools.clock.monotonicMs();
  await transaction.allowTime(computeTimeoutMs);
  const context = await loadContext(transaction, organizationId, [segment]);
  const { hasChanged, condition } = await refresh(tools, transaction, segment, context, null);
  const workMs = tools.clock.monotonicMs() - startedAtMs;
  const at = now(tools.clock);
  // In the order in which requests lock them: the set before the segment.
  await setReadiness(transaction, { organizationId, ids: [id], isReady: true });
  await markMessageReader(transaction, { organizationId, id, readsMessages: readsMessages(condition) });
  const pauseMs = pauseAfter(segment, condition, workMs);
  const isCurrent = await store.markComputed(transaction, {
    ...segment,
    at,
    nextAt: pauseMs === null ? null : dateOf(at.getTime() + pauseMs),
  });
  if (!isCurrent) throw new SupersededError();
  if (hasChanged || !segment.isReady) await store.computeUsers(transaction, segment, at);
}

/** Until everything is looked at again; null where changes say all that there is to know. */
function pauseAfter(segment: store.KeptSegment, condition: Condition, workMs: number): number | null {
  const pausesMs = [];
  if (isTimeBound(condition)) pausesMs.push(Math.min(Math.max(againMs, workMs * restsPerWork), restMaxMs));
  if (readsMessages(condition)) pausesMs.push(segment.isToldOfMessages ? retoldMs : unmarkedMs);
  return pausesMs.length === 0 ? null : Math.min(...pausesMs);
}

/** Ends a long statement when the signal comes: what it did is undone, and done again by whoever comes next. */
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
    // The connection is somebody else's afterwards: it must not be cancelled then.
    await cancelling;
  }
}

function isDue(atMs: number) {
  return (segment: store.KeptSegment) => segment.computeAt !== null && segment.computeAt.getTime() <= atMs;
}

/** Each behind those that it uses. There are no cycles: no conditions are accepted that would make one. */
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
