import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import type { ByteBudget } from '../byte-budget.ts';
import { sha256 } from '../secrets.ts';
import { badRequest, overloaded, payloadTooLarge, PublicError } from './errors.ts';
import { canonicalJson, defaultJsonLimits, readJson } from './json-text.ts';
import type { Validator } from './validation.ts';

/** A body that was read, and checked against its schema. */
export type BodyReading =
  | { kind: 'valid'; value: unknown; canonical: Buffer | null }
  | { kind: 'invalid'; issues: string[] }
  | { kind: 'malformed'; problem: string };

/**
 * Parses and validates. `canonical`, wanted for idempotency, is the SHA-256 of the canonical JSON: taken before
 * validation, which may replace Base64 text by its bytes.
 */
export function readBody(bytes: Buffer, validate: Validator, wantsCanonical: boolean): BodyReading {
  if (!isUtf8(bytes)) return { kind: 'malformed', problem: 'the body is not valid UTF-8' };
  const reading = readJson(bytes, bytes.toString('utf8'), defaultJsonLimits);
  if (reading.kind === 'malformed') return reading;
  if (reading.issues.length > 0) return { kind: 'invalid', issues: reading.issues };
  const canonical = wantsCanonical ? sha256(canonicalJson(reading.value)) : null;
  const issues = validate(reading.value);
  return issues.length > 0 ? { kind: 'invalid', issues } : { kind: 'valid', value: reading.value, canonical };
}

/** Bodies up to this size are bounded by the number of requests and need no budget. */
const smallBodyBytesMax = 65_536;

export type CollectedBody = { bytes: Buffer; release: () => void };

/**
 * Collects a request's body. Rejects with 400 for a compressed one (it could unfold to any size), 413 past
 * `bytesMax` (as soon as that is known, which with a Content-Length is before the first byte), and 503 when too
 * much is in memory already. What a refused client still sends is read and thrown away, so that it sees the answer.
 */
export async function collectBody(
  request: IncomingMessage,
  limits: { bytesMax: number; budget: ByteBudget },
): Promise<CollectedBody> {
  const refuse = (error: PublicError): never => {
    request.resume();
    throw error;
  };
  const encoding = request.headers['content-encoding'];
  if (encoding !== undefined && encoding !== 'identity') {
    return refuse(new PublicError(badRequest, 'Compressed request bodies are not accepted.'));
  }
  const tooLarge = () =>
    new PublicError(payloadTooLarge, `The request body must be at most ${limits.bytesMax} bytes.`);
  const declared = declaredBytes(request);
  if (declared !== null && declared > limits.bytesMax) return refuse(tooLarge());

  const reserved = declared ?? limits.bytesMax;
  const release = reserved <= smallBodyBytesMax ? () => undefined : limits.budget.take(reserved);
  if (release === null) return refuse(overloaded('Too many large requests are being read at the moment.'));

  try {
    return { bytes: await receive(request, limits.bytesMax, tooLarge), release };
  } catch (cause) {
    release();
    request.resume();
    throw cause;
  }
}

/** How long the body says that it is; null where it comes in chunks. With neither header there is none (RFC 9112 §6.3). */
function declaredBytes({ headers }: IncomingMessage): number | null {
  if (headers['transfer-encoding'] !== undefined) return null;
  return Number(headers['content-length'] ?? '0');
}

/** Not `for await`: leaving such a loop early destroys the request, and with it the way for the answer. */
function receive(request: IncomingMessage, bytesMax: number, tooLarge: () => Error): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let received = 0;
    const onData = (chunk: Buffer) => {
      received += chunk.length;
      if (received > bytesMax) finish(tooLarge());
      else chunks.push(chunk);
    };
    const onEnd = () => {
      finish(null);
    };
    const onClose = () => {
      finish(new PublicError(badRequest, 'The request ended before its body did.'));
    };
    const finish = (cause: Error | null) => {
      request.off('data', onData).off('end', onEnd).off('close', onClose);
      if (cause !== null) reject(cause);
      else resolve(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks, received));
    };
    request.on('data', onData).on('end', onEnd).on('close', onClose);
    // A client that left while its key was looked up: the event is over, and would be waited for in vain.
    if (request.destroyed) onClose();
  });
}
