import type { ChatAppOutcome } from '../../provider.ts';

/** Longer, and messages wait for a template that was deleted; shorter, and those of a new one are refused. */
const newForMs = 600_000;
const pauseMs = 60_000;

/**
 * A template that was approved minutes ago is not known yet in all of WhatsApp, and a message with it gets the answer of
 * one that never was there (132001). So for the first minutes after its review the messages wait. The time of the review
 * is stored, so that all nodes wait equally long, also after a restart.
 */
export function pardonFresh(refusal: ChatAppOutcome, reviewedAt: Date | null, nowMs: number): ChatAppOutcome {
  const isFresh = reviewedAt !== null && nowMs - reviewedAt.getTime() < newForMs;
  if (refusal.kind !== 'rejected' || !isFresh) return refusal;
  return { kind: 'deferred', reason: refusal.reason, retryAfterMs: pauseMs, reply: refusal.reply };
}
