import { type ContactChanges, setReadiness, syncMembers, takeContactChanges } from '../audience/audience.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  isConflict,
  type Transaction,
} from '../platform/postgres/database.ts';
import { isTimeBound, readsMessages } from './conditions.ts';
import { compilePredicate, readConditions } from './segments.ts';
import * as store from './store.ts';

/**
 * How segments get their members, and keep them.
 *
 * A segment is *computed* when its conditions are new: all contacts are looked at, and its members are made those for
 * whom the conditions hold. From then on it is *followed*: every transaction that changes contacts leaves a row in
 * `contact_changes`, and only these contacts are looked at again, for all segments of the organization, those that
 * others use before their users. Conditions that speak of time or of messages change without any contact changing:
 * their segments are computed again now and then, and again only those who came or went are written.
 *
 * One node at a time keeps the members of an organization, under an advisory lock that ends with its transaction. A
 * change is taken off in the transaction that follows it, so that after a crash it is followed again, to the same
 * result. A change that is committed while a segment is computed is followed afterwards, so that what the computation
 * did not see is not lost.
 */
export type MembershipTools = { database: Database; clock: Clock; log: Log };

/** Contacts looked at in one transaction: fewer cost more of them, more keep the organization's other changes waiting. */
const followedMax = 5_000;

/** Does one piece of work for an organization: its changes before its computations. Returns false if it found none. */
export async function keepMembers(tools: MembershipTools, organizationId: string): Promise<boolean> {
  return (await followChanges(tools, organizationId)) || (await computeNext(tools, organizationId));
}

async function followChanges(tools: MembershipTools, organizationId: string): Promise<boolean> {
  return tools.database.transaction(async (transaction) => {
    if (!(await store.tryLockMembers(transaction, organizationId))) return false;
    const changes: ContactChanges = await takeContactChanges(transaction, organizationId, followedMax);
    if (changes.contactIds.length === 0) return false;
    const segments = await store.listKeptSegments(transaction, organizationId);
    for (const segment of usedFirst(segments)) {
      // One that is still to be computed will look at all contacts, these among them.
      if (segment.status === 'ready') await refresh(tools, transaction, segment, changes.contactIds);
    }
    return true;
  });
}

/** Makes the members of a segment those contacts, among the given ones or all, for whom its conditions hold. */
async function refresh(
  tools: MembershipTools,
  transaction: Transaction,
  segment: store.KeptSegment,
  contactIds: readonly string[] | null,
): Promise<{ hasChanged: boolean; changesByItself: boolean }> {
  const { organizationId, id } = segment;
  const reading = await readConditions(transaction, organizationId, segment.conditions);
  if (!reading.ok) throw new Error('stored conditions cannot be read', { cause: reading.issues });
  const { condition } = reading;
  const predicate = compilePredicate(condition, [organizationId, id, contactIds], now(tools.clock));
  const { joined, left } = await syncMembers(transaction, predicate, { isPartial: contactIds !== null });
  return {
    hasChanged: joined + left > 0,
    changesByItself: isTimeBound(condition) || readsMessages(condition),
  };
}

/** A million contacts take seconds; a hundred conditions on messages may take minutes. */
const computeTimeoutMs = 600_000;
/** Should it fail for a reason of its own, which nothing but a fault of ours would be. */
const retryFailedMs = 600_000;
/** Segments that change by themselves are computed so often, as long as that costs less than a twentieth of a core. */
const againMs = 60_000;
const restsPerWork = 20;

async function computeNext(tools: MembershipTools, organizationId: string): Promise<boolean> {
  const startedAtMs = tools.clock.nowMs();
  let due: (store.KeptSegment & { computeAt: Date }) | undefined;
  try {
    return await tools.database.transaction(async (transaction) => {
      if (!(await store.tryLockMembers(transaction, organizationId))) return false;
      const segments = await store.listKeptSegments(transaction, organizationId);
      due = usedFirst(segments).find(isDue(startedAtMs));
      if (due === undefined) return false;
      await store.limitStatements(transaction, computeTimeoutMs);
      const { hasChanged, changesByItself } = await refresh(tools, transaction, due, null);
      const endedAtMs = tools.clock.nowMs();
      const pauseMs = Math.max(againMs, (endedAtMs - startedAtMs) * restsPerWork);
      const isCurrent = await store.markComputed(transaction, {
        ...due,
        computedFor: due.computeAt,
        at: dateOf(endedAtMs),
        nextAt: changesByItself ? dateOf(endedAtMs + pauseMs) : null,
      });
      if (isCurrent) await setReadiness(transaction, { ...due, isReady: true });
      if (hasChanged) await store.computeUsers(transaction, due, dateOf(endedAtMs));
      return true;
    });
  } catch (cause) {
    if (due === undefined || cause instanceof DatabaseUnavailableError || isConflict(cause)) throw cause;
    tools.log.error(
      { err: cause, organization_id: organizationId, segment_id: due.id },
      'a segment was not computed',
    );
    await store.markFailed(tools.database, {
      ...due,
      computedFor: due.computeAt,
      nextAt: dateOf(tools.clock.nowMs() + retryFailedMs),
    });
    return true;
  }
}

function isDue(atMs: number) {
  return (segment: store.KeptSegment): segment is store.KeptSegment & { computeAt: Date } =>
    segment.computeAt !== null && segment.computeAt.getTime() <= atMs;
}

/** Each behind those that it uses. There are no cycles: no conditions are accepted that would make one. */
export function usedFirst<Segment extends { id: string; usedIds: readonly string[] }>(
  segments: readonly Segment[],
): Segment[] {
  const byId = new Map(segments.map((segment) => [segment.id, segment]));
  const ordered = new Set<Segment>();
  const visit = (segment: Segment) => {
    if (ordered.has(segment)) return;
    for (const id of segment.usedIds) {
      const used = byId.get(id);
      if (used !== undefined) visit(used);
    }
    ordered.add(segment);
  };
  segments.forEach(visit);
  return [...ordered];
}
