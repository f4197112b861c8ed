import type { SuppressionRecord } from './suppression-schema.ts';
import type { StoredSuppression } from './suppression-store.ts';

/** A suppression as the API shows it. */
export function showSuppression(suppression: StoredSuppression): SuppressionRecord {
  const { id, channel, address, reason, scope, note, source, createdAt, expiresAt } = suppression;
  return {
    id,
    channel,
    address,
    reason,
    scope,
    note,
    source,
    created_at: createdAt.toISOString(),
    expires_at: expiresAt?.toISOString() ?? null,
  };
}
