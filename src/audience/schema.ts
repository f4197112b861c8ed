/** Why an address must not be written to any more. */
export type SuppressionReason = 'hard_bounce' | 'soft_bounces' | 'complaint' | 'unsubscribe' | 'operator';

/** `address` is null once it was erased. */
export type Suppression = { address: string | null; reason: SuppressionReason; createdAt: Date };
