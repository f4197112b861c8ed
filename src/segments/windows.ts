import { insertContactChange } from '../audience/audience.ts';
import { findLeavingEnd, findNextOccurrence, listContactsOf } from '../events/events.ts';
import { dateOf, now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { beginSlice, withinSlice } from '../platform/queue/turns.ts';
import { parseConditions, type Window, windowsOf } from './conditions.ts';
import { loadContext, type MembershipTools } from './membership.ts';
import * as store from './store.ts';
import { behindMs, windowsUntilOf } from './window-times.ts';

/**
 * How contacts leave segments that ask what they did lately, and enter those that ask who did not.
 *
 * A *window* is the period of a condition on an event ("within 30 days"). An event leaves it at a time that is known, and
 * nothing is written then. So each segment keeps until when its windows were looked through: a look finds the events that
 * left since, by the index events_of_definition, inserts a change of their contacts, and these are followed as after any
 * other change. Nobody else is looked at.
 *
 * A look also finds when the next event will leave, and sleeps until then. Events come after it, some of them late: so a
 * change that is followed makes the segment look again a few seconds later, whatever it was that changed. What leaves is
 * noticed so late at most.
 *
 * A look stays a little behind the present (window-times.ts). A contact may be followed by a node whose clock is behind,
 * which still counts an event that has left by the clock of this one: it will be among those who leave at the next look.
 */

/** Events in one look. With more, its transaction would hold up those who follow changes. */
const defaultLeavingMax = 5_000;

/**
 * Looks at the segment of an organization that is due. Returns false if there is none, or another node has the lock. Throws
 * SliceOverError if it takes longer than its slice.
 */
export async function lookAtWindows(
  tools: MembershipTools,
  organizationId: string,
  sliceMs: number | null = null,
): Promise<boolean> {
  const looking = tools.database.asOrganizations([organizationId], async (transaction) => {
    await beginSlice(tools.clock, transaction, sliceMs);
    // Otherwise a change that is followed meanwhile could put the next look earlier, and this one put it off again.
    if (!(await store.tryLockMembers(transaction, organizationId))) return false;
    const at = now(tools.clock);
    const segment = await store.findWindowsDue(transaction, organizationId, at);
    if (segment === null) return false;
    const context = await loadContext(transaction, organizationId, [segment]);
    const reading = parseConditions(segment.conditions, context);
    const windows = reading.ok ? windowsOf(reading.condition) : [];
    await store.markLooked(transaction, {
      ...segment,
      ...(await look(tools, transaction, segment, windows, at)),
    });
    return true;
  });
  return withinSlice(sliceMs, looking);
}

async function look(
  tools: MembershipTools,
  transaction: Transaction,
  { organizationId, windowsUntil }: store.DueSegment,
  windows: readonly Window[],
  at: Date,
): Promise<{ windowsUntil: Date; windowsDueAt: Date | null }> {
  const present = windowsUntilOf(at).getTime();
  const afterMs = windowsUntil.getTime();
  const leaving = (untilMs: number, { eventNumber, withinMs }: Window) => ({
    organizationId,
    eventNumber,
    after: dateOf(afterMs - withinMs),
    until: dateOf(untilMs - withinMs),
  });
  // Earlier than before if the clock was set back: that lets events in again, which will leave a second time.
  let untilMs = present;
  for (const window of windows) {
    const leavingMax = tools.leavingMax ?? defaultLeavingMax;
    const end = await findLeavingEnd(transaction, leaving(untilMs, window), leavingMax);
    // So many may have happened in the same instant that it would never be passed.
    if (end !== null) untilMs = Math.max(end.getTime() + window.withinMs, afterMs + 1);
  }
  for (const window of windows) await tellOfLeaving(tools, transaction, leaving(untilMs, window));
  // In the past if there is more.
  const next = await Promise.all(
    windows.map(async ({ eventNumber, withinMs }) => {
      const after = dateOf(untilMs - withinMs);
      const occurredAt = await findNextOccurrence(transaction, { organizationId, eventNumber, after });
      return occurredAt === null ? Infinity : occurredAt.getTime() + withinMs + behindMs;
    }),
  );
  const nextMs = Math.min(...next);
  return { windowsUntil: dateOf(untilMs), windowsDueAt: nextMs === Infinity ? null : dateOf(nextMs) };
}

/** Inserts a change of everybody with such an event, each once, and a bounded number in a row. */
async function tellOfLeaving(
  tools: MembershipTools,
  transaction: Transaction,
  leaving: Parameters<typeof listContactsOf>[1],
): Promise<void> {
  const contactsMax = tools.leavingMax ?? defaultLeavingMax;
  for (let last: string | null = null; ;) {
    const contactIds = await listContactsOf(transaction, leaving, { after: last, limit: contactsMax });
    if (contactIds.length > 0) {
      const { organizationId } = leaving;
      await insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds });
    }
    if (contactIds.length < contactsMax) return;
    last = contactIds.at(-1) ?? null;
  }
}
