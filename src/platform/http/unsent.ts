import type { ServerResponse } from 'node:http';
import type { Shares } from '../shares.ts';

/** What a connection has in memory anyway; below it, the number of connections is limit enough. */
const smallResponseBytesMax = 8_192;

/**
 * Counts the bytes of a response for its holder, until it has left for the network or its client is gone. False, and
 * nothing is counted, if the holder has too many in memory: responses that its clients do not read.
 */
export function holdUnsent(response: ServerResponse, unsent: Shares, holder: string, bytes: number): boolean {
  if (bytes <= smallResponseBytesMax || response.closed) return true;
  const share = unsent.take(holder, bytes);
  if (share === null) return false;
  response.once('close', share.release);
  return true;
}
