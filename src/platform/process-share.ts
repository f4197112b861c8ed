/** Which of the processes that serve together on one machine this is: `number` from 1 to `of`. */
export type ProcessShare = { number: number; of: number };

/** Of a process that serves alone. */
export const wholeShare: ProcessShare = { number: 1, of: 1 };

/** This process's part of what all of them may have together; the parts add up to the total. It may be zero. */
export function partOf(total: number, { number, of }: ProcessShare): number {
  return Math.floor(total / of) + (number <= total % of ? 1 : 0);
}

/** The share among the first `max` of the processes; null where this is none of them. */
export function shareAmong(max: number, { number, of }: ProcessShare): ProcessShare | null {
  return number > max ? null : { number, of: Math.min(of, max) };
}
