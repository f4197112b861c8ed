import type { Readable } from 'node:stream';
import type { Clock } from '../platform/clock.ts';
import { type ArrivalLimits, watchArrival } from '../platform/http/arrival.ts';
import { createBlocks, createRoom, noRoom, tooLarge } from '../platform/http/body-reader.ts';
import { badRequest, PublicError } from '../platform/http/errors.ts';
import type { Shares } from '../platform/shares.ts';

/**
 * A message as it comes in. Its bytes are taken of those that all large bodies share, as they arrive. What is wrong with it
 * is known before its end, and can be said only then: the rest is thrown away.
 *
 * One message in is one message (SMTP smuggling): the server ends it by CRLF, dot, CRLF alone, and what has a bare CR or LF,
 * which others might take for the end of a line, is refused as a whole (RFC 5321 §2.3.8).
 */
export type Collected =
  | { kind: 'whole'; blocks: readonly Buffer[]; length: number; release: () => void }
  | { kind: 'refused'; error: PublicError }
  /** The client is gone, or is to be sent away. */
  | { kind: 'cut_off'; reason: 'closed' | 'late' | 'endless' };

export type CollectingTools = {
  clock: Clock;
  arrival: ArrivalLimits;
  bytes: Shares;
  holder: string;
  bytesMax: number;
  /** Set where it is refused from the beginning. */
  refused?: PublicError;
  /** Called for each kilobyte or so. */
  onStep: () => void;
};

/** Of a message that is refused already. A client that sends more does not want to hear why. */
const discardedBytesMax = 67_108_864;

const stepBytes = 1_024;

export function collectMessage(stream: Readable, tools: CollectingTools): Promise<Collected> {
  const { clock, arrival, bytesMax, onStep } = tools;
  return new Promise((resolve) => {
    const room = createRoom(tools);
    let body: ReturnType<typeof createBlocks> | null = createBlocks();
    let refusal: PublicError | null = null;
    const lines = createLineCheck();
    let received = 0;
    let sinceStep = 0;
    let isOver = false;

    const refuse = (error: PublicError) => {
      refusal = error;
      body = null;
      room.release();
    };
    const finish = (collected: Collected) => {
      if (isOver) return;
      isOver = true;
      stopWatching();
      if (collected.kind !== 'whole') room.release();
      resolve(collected);
    };
    const stopWatching = watchArrival(
      { bytesRead: () => received, isComplete: () => isOver },
      clock,
      arrival,
      () => {
        finish({ kind: 'cut_off', reason: 'late' });
      },
    );
    if (tools.refused !== undefined) refuse(tools.refused);
    stream.on('data', (chunk: Buffer) => {
      // What still comes before the connection ends must not take anything again.
      if (isOver) return;
      received += chunk.length;
      sinceStep += chunk.length;
      if (sinceStep >= stepBytes) {
        sinceStep = 0;
        onStep();
      }
      if (body === null) {
        if (received > bytesMax + discardedBytesMax) finish({ kind: 'cut_off', reason: 'endless' });
        return;
      }
      const problem = lines.findProblem(chunk);
      if (problem !== null) refuse(new PublicError(badRequest, problem));
      else if (received > bytesMax) refuse(tooLarge(bytesMax));
      else if (!room.has(received)) refuse(noRoom());
      else body.add(chunk);
    });
    stream.on('end', () => {
      if (lines.endsInside() && body !== null) refuse(new PublicError(badRequest, bareLineEnd));
      if (body === null) finish({ kind: 'refused', error: refusal ?? noRoom() });
      else finish({ kind: 'whole', blocks: body.blocks(), length: body.length(), release: room.release });
    });
    const onClosed = () => {
      finish({ kind: 'cut_off', reason: 'closed' });
    };
    stream.on('error', onClosed);
    stream.on('close', onClosed);
  });
}

const bareLineEnd = 'The message must end its lines with CRLF: it has a bare CR or LF.';
const nul = 'The message must not have NUL octets.';

/** Looks at octets, and remembers the last one. */
function createLineCheck(): { findProblem: (chunk: Buffer) => string | null; endsInside: () => boolean } {
  let isAfterCr = false;
  return {
    findProblem: (chunk) => {
      for (const octet of chunk) {
        if (isAfterCr !== (octet === 0x0a)) return bareLineEnd;
        if (octet === 0) return nul;
        isAfterCr = octet === 0x0d;
      }
      return null;
    },
    endsInside: () => isAfterCr,
  };
}
