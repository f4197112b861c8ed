import { Type } from 'typebox';
import { dateOf, parseTimestamp } from '../platform/clock.ts';
import { badRequest, PublicError } from '../platform/http/errors.ts';
import { instant } from '../platform/http/shapes.ts';
import type { MessageRow } from './store.ts';

/** When something is sent that is not sent at once. */

/** A field of what a request sends. */
export const scheduledAtInput = Type.String({
  description:
    'When to send it, in ISO 8601 with an offset: in the future, and at most a year ahead. At once when omitted.',
});

/** A field of what is shown. */
export const scheduledAtRecord = Type.Union([instant, Type.Null()], {
  description: 'When it is to be sent, or was; null if it was sent at once.',
});

export function showScheduledAt({
  scheduled_at: scheduledAt,
}: Pick<MessageRow, 'scheduled_at'>): string | null {
  return scheduledAt?.toISOString() ?? null;
}

/** A time further ahead is most likely a mistyped year. */
const aheadMsMax = 366 * 24 * 60 * 60 * 1_000;

/** The time that a request names, or why nothing can be sent then. */
export function readSchedule(text: string, at: Date): Date | PublicError {
  const epochMs = parseTimestamp(text);
  if (epochMs === null) {
    return new PublicError(badRequest, 'scheduled_at must be an ISO 8601 time with an offset or Z.');
  }
  if (epochMs <= at.getTime()) return new PublicError(badRequest, 'scheduled_at must be in the future.');
  return epochMs - at.getTime() > aheadMsMax
    ? new PublicError(badRequest, 'scheduled_at must be at most a year ahead.')
    : dateOf(epochMs);
}

const dayMs = 86_400_000;

/** Messages are kept for so long at least, whatever a plan says. */
const keptDaysMin = 7;

/** Whether a plan may keep a message for less time than it waits. */
export function mayOutlast(acceptedAt: Date, scheduledAt: Date): boolean {
  return scheduledAt.getTime() - acceptedAt.getTime() >= keptDaysMin * dayMs;
}

/** Nobody could see what became of a message that is sent when its time is over; null if it is not. */
export function findOutlasting(
  keptDays: number | null,
  { acceptedAt, scheduledAt }: { acceptedAt: Date; scheduledAt: Date },
): PublicError | null {
  return keptDays === null || scheduledAt.getTime() - acceptedAt.getTime() < keptDays * dayMs
    ? null
    : new PublicError(
        badRequest,
        `scheduled_at must be within the ${keptDays} days for which messages are kept here.`,
      );
}
