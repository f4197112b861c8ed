import { notFound, PublicError } from '../platform/http/errors.ts';
import type { UnsupportedCall } from './wire.ts';

/** What a program is told that makes a call which is not understood. */
export function refuseUnknown(
  calls: readonly UnsupportedCall[],
  { method, path }: { method: string; path: string },
): PublicError {
  const known = calls.find((one) => isBelow(path, one.path));
  const more = known === undefined ? '' : ` (${known.call}: ${known.instead})`;
  return new PublicError(notFound, `${method} ${path.slice(0, 200)} is not understood here${more}.`);
}

function isBelow(path: string, pattern: string): boolean {
  const given = path.split('/');
  return pattern.split('/').every((part, index) => part.startsWith(':') || part === given[index]);
}
