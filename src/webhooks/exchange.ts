import type { IncomingHttpHeaders } from 'node:http';
import type { Clock } from '../platform/clock.ts';
import { answerBytesMax, readAnswerText } from './answer-text.ts';
import type { Connection, Connections, RequestToSend } from './connections.ts';
import type { Phase } from './failure-words.ts';

/** One request on a connection of its own, and what is read of its answer. The connection is kept, or closed, afterwards. */

export type Exchanged = Answered | Silent | Broken;

/** The head is there. `ms`: from `startedAtMs` to it. */
export type Answered = {
  kind: 'answered';
  status: number;
  retryAfter: string | null;
  answer: string;
  ms: number;
};

/** The time was over first. */
export type Silent = { kind: 'silent'; phase: Phase };

/** The connection was not made, or broke off before the head. */
export type Broken = { kind: 'broken'; isConnected: boolean; error: Error };

export type ExchangeTools = { clock: Clock; connections: Connections };

export type ExchangeWish = {
  connection: Connection;
  toSend: RequestToSend;
  /** When the attempt began, of which this is a part: monotonic milliseconds. */
  startedAtMs: number;
  /** From then to the head of the answer. */
  limitMs: number;
};

/**
 * For the body after the head, on which nothing depends: a receiver that drips holds its place no longer than this. Shorter
 * closes the connections of those that are slow to write.
 */
const bodyMs = 1_000;

/** Answers may be announced (RFC 9110 §15.2). A receiver that does nothing else would keep us reading for 15 seconds. */
const announcementsMax = 10;

type Head = Pick<Answered, 'status' | 'retryAfter' | 'ms'> & { encoding: string | null };

/** Resolves in every case: within the limit, and a second for the body. */
export function exchange(
  { clock, connections }: ExchangeTools,
  { connection, toSend, startedAtMs, limitMs }: ExchangeWish,
): Promise<Exchanged> {
  const elapsedMs = () => Math.round(clock.monotonicMs() - startedAtMs);
  return new Promise((resolve) => {
    let phase: Phase = 'connection';
    let head: Head | null = null;
    const chunks: Buffer[] = [];
    let bytes = 0;
    let announcements = 0;
    let isOver = false;

    const end = (exchanged: Exchanged, release: (connection: Connection) => void) => {
      if (isOver) return;
      isOver = true;
      cancelTimer();
      release(connection);
      resolve(exchanged);
    };
    const endAnswered = ({ encoding, ...said }: Head, release: (connection: Connection) => void) => {
      const answer = readAnswerText(Buffer.concat(chunks), encoding);
      end({ kind: 'answered', ...said, answer }, release);
    };
    const breakOff = (error: Error) => {
      end({ kind: 'broken', isConnected: phase === 'answer', error }, connections.drop);
    };
    let cancelTimer = clock.after(limitMs - elapsedMs(), () => {
      end({ kind: 'silent', phase }, connections.drop);
    });

    connection.send(toSend, {
      onRequestStart: () => {
        phase = 'answer';
      },
      onResponseStart: (_controller, status, headers) => {
        if (isOver) return;
        if (status < 200) {
          announcements += 1;
          if (announcements > announcementsMax) breakOff(new Error('more announcements than any answer has'));
          return;
        }
        const said = { ...readHead(status, headers), ms: elapsedMs() };
        head = said;
        cancelTimer();
        cancelTimer = clock.after(bodyMs, () => {
          endAnswered(said, connections.drop);
        });
      },
      onResponseData: (_controller, chunk) => {
        if (isOver || head === null) return;
        chunks.push(chunk);
        bytes += chunk.length;
        if (bytes > answerBytesMax) endAnswered(head, connections.drop);
      },
      onResponseEnd: () => {
        if (head !== null) endAnswered(head, connections.keep);
      },
      onResponseError: (_controller, error) => {
        if (head !== null) endAnswered(head, connections.drop);
        else breakOff(error);
      },
    });
  });
}

function readHead(status: number, headers: IncomingHttpHeaders): Omit<Head, 'ms'> {
  return {
    status,
    retryAfter: firstOf(headers['retry-after']),
    encoding: firstOf(headers['content-encoding']),
  };
}

/** A receiver may send a header twice. */
function firstOf(value: string | string[] | undefined): string | null {
  return (Array.isArray(value) ? value[0] : value) ?? null;
}
