import type { Channel } from '../accounts/accounts.ts';
import type { SendOutcome } from '../channels/outcome.ts';
import type { Job } from './queue-store.ts';
import type { DropReason } from './schema.ts';
import type { MessageFacts } from './settlement-writer.ts';

/**
 * What delivery knows of a channel. Claiming, pacing, markers, crashes and settling are the same on all of them; a
 * channel builds its messages and hands them to its provider.
 */
export type ChannelDelivery = {
  channel: Channel;
  /** How many hand-offs can usefully be under way at once. */
  concurrency: number;
  /** For one lease: what it remembers is forgotten with it. */
  begin: () => ChannelShift;
};

export type ChannelShift = {
  /** Looks up ahead, in few statements, what jobs will need that were just claimed. */
  prepare: (jobs: readonly Job[]) => Promise<void>;
  /** Rejects only with the error of `confirm`, an abort, or for a fault of our own. */
  handOff: (job: Job, permit: HandOffPermit) => Promise<Attempt>;
};

export type HandOffPermit = {
  /** Commits "about to hand off"; whoever it rejects sends nothing. */
  confirm: () => Promise<void>;
  /** Aborted when nothing new may be begun. */
  signal: AbortSignal;
};

/** What one attempt came to. `facts` are of the message; null where they are not known. */
export type Attempt = { facts: MessageFacts | null } & (
  | { kind: 'outcome'; outcome: SendOutcome<string> }
  /** Not tried: the address failed a check. */
  | { kind: 'dropped'; reason: DropReason }
  /** Not tried: the message can never be sent. */
  | { kind: 'failed'; reason: string; diagnostic: string }
  /** Not tried, through no fault of the message: it goes back to the queue. */
  | { kind: 'released'; pauseMs: number }
);

/** Larger messages are loaded one by one when their turn comes, and counted while they are in memory. */
export const smallContentBytesMax = 262_144;

/** Messages in memory at once, apart from small ones. */
export const contentBytesMax = 64 * 1_048_576;
