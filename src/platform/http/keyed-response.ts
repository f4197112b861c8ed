import { dateOf } from '../clock.ts';
import type { Transaction } from '../postgres/database.ts';
import type { AcceptOutcome } from './acceptance.ts';
import { PublicError } from './errors.ts';
import {
  claimKeys,
  keepResponses,
  keyConflict,
  type KeyState,
  retentionMs,
  type ScopedKey,
  type StoredResponse,
} from './idempotency.ts';

/**
 * Carries out what a request asks for once for its idempotency key, if it has one. The response is kept in the transaction
 * of what was done, and is looked up before anything else. What is refused does not use up the key.
 */
export async function respondOnce(
  transaction: Transaction,
  { key, at }: { key: ScopedKey | null; at: Date },
  carryOut: () => Promise<StoredResponse | PublicError>,
): Promise<AcceptOutcome> {
  const expiredBefore = dateOf(at.getTime() - retentionMs);
  const [state] = await claimKeys(transaction, key === null ? [] : [key], { expiredBefore });
  const known = outcomeOfKey(state);
  if (known !== null) return known;
  const response = await carryOut();
  if (response instanceof PublicError) return { kind: 'refused', error: response };
  if (key !== null) await keepResponses(transaction, [{ key, response }], { at, expiredBefore });
  return { kind: 'response', response, isReplay: false };
}

/** What is answered because of a key alone. Null where there is no key, or a free one. */
export function outcomeOfKey(state: KeyState | undefined): AcceptOutcome | null {
  if (state === undefined || state.kind === 'free') return null;
  return state.kind === 'replay'
    ? { kind: 'response', response: state.response, isReplay: true }
    : { kind: 'refused', error: keyConflict(state.kind) };
}
