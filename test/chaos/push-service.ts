import { createHash } from 'node:crypto';
import { startPeer } from './peer.ts';

/** A push service that misbehaves, and whose log is what the truth is compared with. */
export type PushService = {
  /** For POSTILLION_WEB_PUSH_HOSTS. */
  host: string;
  readLog: () => Promise<Line[]>;
  stop: () => Promise<void>;
};

export type FromPushService = { host: string };

/** Which push for which browser: the path of its endpoint, and the message. */
export type PushName = { path: string; topic: string };

export type Line = PushName &
  (
    | { kind: 'taken'; body: string }
    /** The answer said that it was not taken. */
    | { kind: 'refused' }
    /** There was no answer. */
    | { kind: 'cut' }
  );

export type PushFate =
  | 'accepted'
  /** Its subscription is no more. */
  | 'gone'
  | 'throttled'
  | 'unavailable'
  /** REFUSED_STREAM. */
  | 'unprocessed'
  /** Taken, and then the connection is cut with all that is on it. */
  | 'cut'
  | 'cut_before'
  /** Taken, and then the stream ends with an error. */
  | 'reset'
  | 'silence'
  /** Taken and answered, and then the connection takes nothing more. */
  | 'goaway';

/** Of a thousand pushes; the rest is accepted. */
const shares: readonly (readonly [PushFate, number])[] = [
  ['throttled', 10],
  ['unavailable', 5],
  ['unprocessed', 8],
  ['cut', 4],
  ['cut_before', 3],
  ['reset', 5],
  ['silence', 1],
  ['goaway', 6],
];

const goneBeginning = '/gone/';

/** The endpoint of a browser that is gone, or of one that is not. */
export function composePath(isGone: boolean, name: string): string {
  return `${isGone ? goneBeginning : '/here/'}${name}`;
}

export function isGonePath(endpointPath: string): boolean {
  return endpointPath.startsWith(goneBeginning);
}

export function fateOf(seed: string, { path: endpointPath, topic }: PushName): PushFate {
  if (isGonePath(endpointPath)) return 'gone';
  const drawn =
    createHash('sha256').update(`${seed} ${topic} ${endpointPath}`).digest().readUInt32BE() % 1_000;
  let end = 0;
  for (const [fate, share] of shares) {
    end += share;
    if (drawn < end) return fate;
  }
  return 'accepted';
}

export async function startPushService(logFile: string, seed: number): Promise<PushService> {
  const { first, readLog, stop } = await startPeer<FromPushService, Line>('push-service', logFile, [
    `${seed}`,
  ]);
  return { host: first.host, readLog, stop };
}
