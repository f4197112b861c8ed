import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';
import type { ChatAppAccount, ChatAppOutcome, SentTemplate } from '../../provider.ts';

/**
 * A template that was approved minutes ago is not known yet in all of WhatsApp, and a message with it gets the answer of
 * one that never was there (132001). So for the first minutes in which that answer comes, the messages wait.
 */
export type FreshTemplates = {
  noteTaken: (account: ChatAppAccount, template: SentTemplate) => void;
  /** The refusal as it is, or a deferral as long as the template may be too new. */
  pardon: (account: ChatAppAccount, template: SentTemplate, refusal: ChatAppOutcome) => ChatAppOutcome;
};

const newForMs = 600_000;
const pauseMs = 60_000;
/** An entry that is forgotten gives a template ten more minutes. */
const refusedMax = 10_000;

export function createFreshTemplates(clock: Clock): FreshTemplates {
  const firstRefusedAtMs = new LRUCache<string, number>({ max: refusedMax });
  const keyOf = ({ businessAccountId }: ChatAppAccount, { name, language }: SentTemplate) =>
    JSON.stringify([businessAccountId, name, language]);
  return {
    noteTaken: (account, template) => {
      // Most of the time nothing was refused, and no key needs to be made.
      if (firstRefusedAtMs.size > 0) firstRefusedAtMs.delete(keyOf(account, template));
    },
    pardon: (account, template, refusal) => {
      const key = keyOf(account, template);
      const nowMs = clock.monotonicMs();
      const firstAtMs = firstRefusedAtMs.get(key) ?? nowMs;
      firstRefusedAtMs.set(key, firstAtMs);
      if (refusal.kind !== 'rejected' || nowMs - firstAtMs >= newForMs) return refusal;
      return {
        kind: 'deferred',
        reason: refusal.reason,
        retryAfterMs: pauseMs,
        reply: refusal.reply,
      };
    },
  };
}
