import type { SendOutcome } from '../../channels/outcome.ts';
import type { ChannelResult, MessageFacts } from '../channel.ts';
import type { Objection } from './unwanted.ts';

/**
 * How an attempt to hand a job off ended. What is written of it follows from this alone (`settlementOf`), and so does
 * what is told of it (`endOf`).
 */
export type AttemptResult =
  | ChannelResult
  /** Not tried: the worker stops, or the provider or the database is not available. */
  | { kind: 'untried'; pauseMs: number }
  /** Not tried: something was found that speaks against it. */
  | { kind: 'objected'; objection: Objection }
  /** It was announced, and failed before there was an outcome: the message may have been sent. */
  | { kind: 'uncertain' }
  /** It failed by a fault of ours before it was announced: nothing was sent. `words` are for the operator. */
  | { kind: 'crashed'; words: string };

/** `facts` are of the message; null if they are not known. */
export type Attempted = { result: AttemptResult; facts: MessageFacts | null };

/** If shorter, keys are queried more often. If longer, mail waits after the process has learned the key. */
const unknownKeyPauseMs = 60_000;

/**
 * The content is sealed under a key that this process does not know. Another process may know it, or this one may learn
 * it later. No attempt was made, and nothing is wrong with the message.
 */
export const sealedUnderUnknownKey: SendOutcome<string> = {
  kind: 'postponed',
  retryAfterMs: unknownKeyPauseMs,
  reply: {
    code: null,
    enhancedCode: null,
    diagnostic: 'It is sealed under a key that this process does not know: its secret was retired.',
    remote: null,
  },
};
