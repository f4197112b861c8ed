import { createHash } from 'node:crypto';
import { startPeer } from './peer.ts';

/** Programs that are told of events and misbehave, and whose log is what the truth is compared with. */
export type WebhookReceivers = {
  port: number;
  readLog: () => Promise<Line[]>;
  stop: () => Promise<void>;
};

export type FromReceivers = { port: number };

export type Line = {
  atMs: number;
  /** Of the endpoint. */
  path: string;
  /** `webhook-id`. */
  id: string;
  /** `cut`: there was no answer, whether it was taken or not. */
  kind: 'taken' | 'refused' | 'cut';
  /** By the library of Standard Webhooks. */
  isVerified: boolean;
  body: string;
};

export type WebhookFate =
  | 'accepted'
  /** After a while. */
  | 'slow'
  | 'unavailable'
  | 'overloaded'
  /** The connection is cut instead of an answer. */
  | 'cut'
  /** It is cut after the head of the answer, which has said all. */
  | 'cut_after'
  | 'silence';

/** Of a thousand events at an endpoint; the rest is accepted. */
const shares: readonly (readonly [WebhookFate, number])[] = [
  ['slow', 20],
  ['unavailable', 10],
  ['overloaded', 5],
  ['cut', 5],
  ['cut_after', 5],
  ['silence', 1],
];

export function fateOf(seed: string, path: string, id: string): WebhookFate {
  const drawn = createHash('sha256').update(`${seed} ${path} ${id}`).digest().readUInt32BE() % 1_000;
  let end = 0;
  for (const [fate, share] of shares) {
    end += share;
    if (drawn < end) return fate;
  }
  return 'accepted';
}

/** All verify by the same secret. */
export async function startWebhookReceivers(
  logFile: string,
  seed: number,
  secret: string,
): Promise<WebhookReceivers> {
  const { first, readLog, stop } = await startPeer<FromReceivers, Line>('webhook-receivers', logFile, [
    `${seed}`,
    secret,
  ]);
  return { port: first.port, readLog, stop };
}
