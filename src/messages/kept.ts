import { findKeptDays, type KeptDays } from '../accounts/accounts.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import { notFound, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import { instantOfId, lowestIdAt } from '../platform/ids.ts';
import type { Connection } from '../platform/postgres/database.ts';

/**
 * What an organization still sees of its messages. A plan may keep them for less time than the installation does; rows
 * that are older are not shown from the instant on at which their time is over, whether they are gone from the disk by
 * then or not (retention.ts).
 */

const dayMs = 86_400_000;

/** For how many days a message is kept, and what it says; null for ever. */
export type { KeptDays };

/** The shorter of two times; null is for ever. */
export function shorter(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return one ?? other;
  return Math.min(one, other);
}

/** What is kept where two limits hold. Content is never kept for longer than its message. */
export function limitKept(one: KeptDays, other: KeptDays): KeptDays {
  const messages = shorter(one.messages, other.messages);
  return { messages, content: shorter(messages, shorter(one.content, other.content)) };
}

/** The instant before which nothing is kept. */
export function keptSince(nowMs: number, days: number): Date {
  return dateOf(Math.max(nowMs - days * dayMs, 0));
}

/** From which id on messages are shown at `atMs`, and what they say; null from the first on. */
export type Horizon = {
  days: number | null;
  messagesFrom: string | null;
  contentFrom: string | null;
  atMs: number;
};

/** That of somebody who keeps everything. */
export const noHorizon: Horizon = { days: null, messagesFrom: null, contentFrom: null, atMs: 0 };

/** Reads where the horizon of an organization is now. */
export type ReadHorizon = (connection: Connection, organizationId: string) => Promise<Horizon>;

/** `installed` tells the limit of the installation. */
export function createHorizon({
  clock,
  installed,
}: {
  clock: Clock;
  installed: () => KeptDays;
}): ReadHorizon {
  return async (connection, organizationId) => {
    const { messages, content } = limitKept(installed(), await findKeptDays(connection, organizationId));
    const atMs = clock.nowMs();
    const idOf = (days: number | null) =>
      days === null ? null : lowestIdAt(keptSince(atMs, days).getTime());
    return { days: messages, messagesFrom: idOf(messages), contentFrom: idOf(content), atMs };
  };
}

/** Ids are compared as text: those in lower case sort like their bytes. */
export function isBeyond({ messagesFrom }: Pick<Horizon, 'messagesFrom'>, messageId: string): boolean {
  return messagesFrom !== null && messageId.toLowerCase() < messagesFrom;
}

/**
 * For the id of a message that is not there. Its time is all that decides whether it is said to be too old: an id of another
 * organization, or one that never was, gets the same answer.
 */
export function messageNotFound(horizon: Horizon, id: string): PublicError {
  const { days } = horizon;
  if (days === null || !isBeyond(horizon, id) || !isTimed(id)) return resourceNotFound();
  return new PublicError(
    notFound,
    `This id is of ${instantOfId(id).toISOString().slice(0, 10)}. Messages and their recipients are kept for ${days} days here: older ones have been removed.`,
  );
}

/** Whether it is a UUIDv7: other ids have no time. */
function isTimed(id: string): boolean {
  return id[14] === '7';
}
