import { LRUCache } from 'lru-cache';
import { type ChatTemplate, refusalsMax } from '../chat-templates/chat-templates.ts';
import type { Clock } from '../platform/clock.ts';

/**
 * What a process knows of templates whose messages are refused (chat-templates/refusals.ts), before it is stored and looked
 * up again, which takes some seconds. It tries one message now and then of a template that is on trial, and of one that is
 * about to be paused: all others would fail in the meantime. And it tells of an acceptance only where that ends something.
 *
 * Nodes do not know of each other for so long: five refusals in a row on one, and acceptances on another meanwhile, may
 * pause a template for an hour that only some messages do not fit.
 */
export type Trials = {
  /** False: another message of the template is being tried, and this one must wait. */
  mayTry: (template: ChatTemplate) => boolean;
  noteRefusal: (template: ChatTemplate) => void;
  /** Whether an acceptance is to be told of. */
  endsRefusals: (template: ChatTemplate) => boolean;
};

/**
 * After one try. Shorter than a hand-off and a look take, and a second message fails before it is known that the first
 * has; longer keeps what waits from going on.
 */
export const trialPauseMs = 10_000;

/** Of one process. The oldest are forgotten, which costs a few more messages. */
const templatesMax = 10_000;

export function createTrials(clock: Clock): Trials {
  /** How many in a row. */
  const refused = new LRUCache<string, number>({ max: templatesMax });
  const tried = new LRUCache<string, true>({
    max: templatesMax,
    ttl: trialPauseMs,
    ttlResolution: 0,
    perf: { now: () => clock.monotonicMs() },
  });
  const countOf = (key: string) => refused.get(key) ?? 0;
  return {
    mayTry: (template) => {
      const key = keyOf(template);
      if (!template.isOnTrial && countOf(key) < refusalsMax) return true;
      if (tried.has(key)) return false;
      tried.set(key, true);
      return true;
    },
    noteRefusal: (template) => void refused.set(keyOf(template), countOf(keyOf(template)) + 1),
    endsRefusals: (template) => refused.delete(keyOf(template)) || template.wasRefused,
  };
}

function keyOf({ organizationId, id }: ChatTemplate): string {
  return `${organizationId} ${id}`;
}
