import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import type { Clock } from '../clock.ts';
import { sha256 } from '../secrets.ts';
import type { Share, Shares } from '../shares.ts';
import { type ArrivalLimits, arrivingBody, watchArrival } from './arrival.ts';
import { badRequest, overloaded, payloadTooLarge, PublicError, requestTimeout } from './errors.ts';
import { canonicalJson, defaultJsonLimits, readJson } from './json-text.ts';
import { joinIssues } from './validation.ts';

/**
 * A body that was read, and checked against its schema. `prepared` is what a preparation made of a large one in its
 * thread; then there is no `value`, which would have to be copied.
 */
export type BodyReading =
  | { kind: 'valid'; value: unknown; canonical: Buffer | null; prepared?: unknown }
  | { kind: 'invalid'; issues: string[] }
  | { kind: 'malformed'; problem: string };

/**
 * Parses, translates and validates, by a function that returns the issues. `canonical`, wanted for idempotency, is the SHA-256 of the canonical JSON: taken before
 * validation, which may replace Base64 text by its bytes.
 */
export function readBody(
  bytes: Buffer,
  validate: (value: unknown) => string[],
  wantsCanonical: boolean,
  translate: ((value: unknown) => unknown) | null = null,
): BodyReading {
  if (!isUtf8(bytes)) return { kind: 'malformed', problem: 'the body is not valid UTF-8' };
  const reading = readJson(bytes, bytes.toString('utf8'), defaultJsonLimits);
  if (reading.kind === 'malformed') return reading;
  const canonical = wantsCanonical ? sha256(canonicalJson(reading.value)) : null;
  const value = translate === null ? reading.value : translate(reading.value);
  const issues = joinIssues(reading.issues, validate(value));
  return issues.length > 0 ? { kind: 'invalid', issues } : { kind: 'valid', value, canonical };
}

/** Bodies up to this size are bounded by the number of requests and need no share of the bytes. */
const smallBodyBytesMax = 65_536;

/** The first share of a large body; it grows as the blocks do that hold the body. */
const firstShareBytes = 131_072;

/** The body as it came, in pieces that belong to nothing else, so that they can be handed to a thread. */
export type CollectedBody = { blocks: readonly Buffer[]; length: number; release: () => void };

export type CollectTools = {
  bytesMax: number;
  clock: Clock;
  arrival: ArrivalLimits;
  /** Bytes of large bodies in memory, of which each holder has a share. */
  bytes: Shares;
  holder: string;
};

/**
 * Collects a request's body. Rejects with 400 for a compressed one (it could unfold to any size), 408 for one that
 * does not keep coming, 413 past `bytesMax` (as soon as that is known, which with a Content-Length is before the first
 * byte), and 503 when this holder has too much in memory already.
 */
export async function collectBody(request: IncomingMessage, tools: CollectTools): Promise<CollectedBody> {
  const encoding = request.headers['content-encoding'];
  if (encoding !== undefined && encoding !== 'identity') {
    throw new PublicError(badRequest, 'Compressed request bodies are not accepted.');
  }
  const declared = declaredBytes(request);
  if (declared === 0) return { blocks: [], length: 0, release: () => undefined };
  if (declared !== null && declared > tools.bytesMax) throw tooLarge(tools.bytesMax);
  const room = createRoom(tools);
  try {
    return { ...(await receive(request, tools, room.has)), release: room.release };
  } catch (cause) {
    room.release();
    throw cause;
  }
}

/** How long the body says that it is; null where it comes in chunks. With neither header there is none (RFC 9112 §6.3). */
export function declaredBytes({ headers }: IncomingMessage): number | null {
  if (headers['transfer-encoding'] !== undefined) return null;
  return Number(headers['content-length'] ?? '0');
}

export function tooLarge(bytesMax: number): PublicError {
  return new PublicError(payloadTooLarge, `The request body must be at most ${bytesMax} bytes.`);
}

/** Of one body, in the bytes that all have together. */
export type BodyRoom = { has: (received: number) => boolean; release: () => void };

/**
 * Bytes are taken as they come, whatever length was declared: 45 clients that declared three megabytes each, and sent one
 * octet, once kept all large bodies out.
 */
export function createRoom({ bytes, holder }: Pick<CollectTools, 'bytes' | 'holder'>): BodyRoom {
  let reserved = smallBodyBytesMax;
  let share: Share | null = null;
  return {
    has: (received) => {
      if (received <= reserved) return true;
      if (share === null) {
        reserved = Math.max(received, firstShareBytes);
        share = bytes.take(holder, reserved);
        return share !== null;
      }
      const more = Math.max(received - reserved, Math.min(reserved, blockBytesMax));
      if (!share.grow(more)) return false;
      reserved += more;
      return true;
    },
    release: () => share?.release(),
  };
}

export function noRoom(): PublicError {
  return overloaded('Too many large requests are being read at the moment.');
}

/** Allocated as the body comes, so that one that was only announced costs nothing. */
const blockBytesMax = 1_048_576;

/** Not `for await`: leaving such a loop early destroys the request, and with it the connection for the response. */
function receive(
  request: IncomingMessage,
  tools: CollectTools,
  hasRoom: (received: number) => boolean,
): Promise<{ blocks: Buffer[]; length: number }> {
  return new Promise((resolve, reject) => {
    const body = createBlocks();
    const onData = (chunk: Buffer) => {
      if (body.length() + chunk.length > tools.bytesMax) finish(tooLarge(tools.bytesMax));
      else if (!hasRoom(body.length() + chunk.length)) finish(noRoom());
      else body.add(chunk);
    };
    const onEnd = () => {
      finish(null);
    };
    const onClose = () => {
      finish(new PublicError(badRequest, 'The request ended before its body did.'));
    };
    const onLate = () => {
      finish(new PublicError(requestTimeout, requestTimeout.when, { connection: 'close' }));
    };
    const finish = (cause: Error | null) => {
      stopWatching();
      request.off('data', onData).off('end', onEnd).off('close', onClose);
      if (cause !== null) reject(cause);
      else resolve({ blocks: body.blocks(), length: body.length() });
    };
    request.on('data', onData).on('end', onEnd).on('close', onClose);
    const stopWatching = watchArrival(arrivingBody(request), tools.clock, tools.arrival, onLate);
    // A client that left while its key was looked up: the event is over, and would never come.
    if (request.destroyed) onClose();
  });
}

/**
 * Copies what comes into blocks of its own: the chunks share their memory with other data of the connection, and one
 * copy of the whole at the end would hold all other requests up.
 */
export function createBlocks(): {
  add: (chunk: Buffer) => void;
  blocks: () => Buffer[];
  length: () => number;
} {
  const full: Buffer[] = [];
  let block = Buffer.alloc(0);
  let used = 0;
  let length = 0;
  return {
    add: (chunk) => {
      length += chunk.length;
      for (let start = 0; start < chunk.length;) {
        if (used === block.length) {
          if (used > 0) full.push(block);
          // As much again as there is: most bodies come in one piece, and need no more than that. Small ones are not
          // handed to a thread, and may share their memory.
          block =
            length <= smallBodyBytesMax
              ? Buffer.allocUnsafe(length)
              : Buffer.allocUnsafeSlow(Math.min(length, blockBytesMax));
          used = 0;
        }
        const copied = chunk.copy(block, used, start);
        used += copied;
        start += copied;
      }
    },
    blocks: () => (used === 0 ? full : [...full, block.subarray(0, used)]),
    length: () => length,
  };
}
