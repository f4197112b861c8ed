import { dateOf } from '../platform/clock.ts';

/** How far a look at windows stays behind the present. The clocks of two nodes differ by less; more delays who leaves. */
export const behindMs = 2_000;

/** More often would be a query a window for nothing; less often, and who leaves soon after a late event leaves later. */
export const lookAgainMs = 5_000;

/** Until when the windows of a segment are looked through that was evaluated for this time. */
export function windowsUntilOf(at: Date): Date {
  return dateOf(at.getTime() - behindMs);
}
