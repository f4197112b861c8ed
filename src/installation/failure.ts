import { DatabaseProblem } from './database-problem.ts';

/** An error in one sentence, with its cause. */
export function describeFailure(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  // Says all of it; its cause is for the log.
  if (cause instanceof DatabaseProblem) return cause.message;
  // Of several attempts (IPv6, then IPv4) the error of the whole has no words.
  const parts = cause instanceof AggregateError && cause.message === '' ? (cause.errors as unknown[]) : [];
  const text = parts.length > 0 ? parts.map(describeFailure).join(', ') : cause.message || cause.name;
  return cause.cause === undefined ? text : `${text}: ${describeFailure(cause.cause)}`;
}
