import { connect as connectPlain, isIP } from 'node:net';
import type { Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Clock } from '../../../../platform/clock.ts';
import { PduReader } from './pdu-reader.ts';
import { writePdu } from './pdu.ts';
import type { BindCommand, Pdu, SmppAnswer } from './pdu.ts';
import type { SmppUrl } from './url.ts';

/**
 * One TCP connection to a message centre: our requests and their responses, many at a time, and its requests to us.
 *
 * A wire is open until its first fault, and then broken for good: its socket is destroyed, its timer cancelled, and
 * every request that waits is answered with that fault, as is every later one. A request without a response in time
 * is answered with `timed_out`, and the wire stays whole; a response that comes later goes to `onLateAnswer`. Faults
 * are values, because every one of them is expected.
 */

/** Why there is no answer. */
export type WireFault = {
  fault: 'closed' | 'timed_out' | 'not_smpp' | 'given_up';
  /** In words of ours or the machine's; quotes neither credentials nor content. */
  detail: string;
  /** Of a question that was still here, of which not one octet has left. */
  isUnsent?: true;
};

type Question = Extract<Pdu, { command: BindCommand | 'submit_sm' | 'enquire_link' | 'unbind' }>;
type Unnumbered<Numbered> = Numbered extends unknown ? Omit<Numbered, 'sequence'> : never;

/** A request of the far side, or a PDU that we do not know. */
export type FarRequest = Exclude<Pdu, SmppAnswer>;

type OnRequest = (request: FarRequest, wire: SmppWire) => void;

type Waiting = {
  command: Question['command'];
  deadlineAtMs: number;
  resolve: (answer: SmppAnswer | WireFault) => void;
  onLateAnswer: ((answer: SmppAnswer) => void) | null;
};

/** What is to be written, and the sequence number of the question that it is; null of an answer. */
type Outgoing = { sequence: number | null; octets: Buffer };

/**
 * What is given to the socket in one piece, some thirty texts. Of a piece that it has not taken whole when the
 * connection is lost, nobody knows how much has left. Smaller: more system calls. Larger: more texts are uncertain.
 */
const pieceBytesMax = 4_096;

const sequenceMax = 0x7fff_ffff;

/** The number of the next question, from 0 on: from 1 to 0x7FFFFFFF, and from 1 again (SMPP 3.4 §3.2). */
export function sequenceAfter(sequence: number): number {
  return sequence === sequenceMax ? 1 : sequence + 1;
}

/** A peer that asks and asks and never reads our answers would fill our memory with them. */
const unreadBytesMax = 1_048_576;

/** How long we wait for a far side that reads nothing any more. */
const leaveTimeoutMs = 5_000;

/** Requests that timed out and whose response may still come. */
const lateQuestionsMax = 1_000;

export class SmppWire {
  readonly remoteHost: string;
  /** Resolves with the fault that broke the wire. */
  readonly ended: Promise<WireFault>;
  #clock: Clock;
  #socket: Socket;
  #reader = new PduReader();
  #onRequest: OnRequest;
  #fault: WireFault | null = null;
  #end: (fault: WireFault) => void = () => undefined;
  #sequence = 0;
  #heardAtMs: number;
  /** In their order. What stands here is known not to have left. */
  #outgoing: Outgoing[] = [];
  #outgoingBytes = 0;
  #isGathering = false;
  #isWriting = false;

  /** In the order in which they were asked. */
  #waiting = new Map<number, Waiting>();
  #late = new Map<number, (answer: SmppAnswer) => void>();

  // One timer for all deadlines: it is set for the earliest, and firing looks which have passed.
  #timerAtMs = Infinity;
  #cancelTimer: () => void = () => undefined;

  constructor(clock: Clock, remoteHost: string, socket: Socket, onRequest: OnRequest) {
    this.#clock = clock;
    this.remoteHost = remoteHost;
    this.#socket = socket;
    this.#onRequest = onRequest;
    this.#heardAtMs = clock.monotonicMs();
    this.ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    socket.setNoDelay(true);
    socket.on('data', this.#onData);
    socket.on('error', this.#onError);
    socket.on('close', this.#onClose);
  }

  /** The fault that broke the wire, or null while it is whole. */
  brokenBy(): WireFault | null {
    return this.#fault;
  }

  /** Milliseconds since the far side was last heard. */
  silentMs(): number {
    return this.#clock.monotonicMs() - this.#heardAtMs;
  }

  /** Resolves with null when the socket is connected (and, if it is a TLS socket, trusted). */
  opened(event: 'connect' | 'secureConnect', timeoutMs: number): Promise<WireFault | null> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(timeoutMs, () => {
        this.break('timed_out', 'the server did not answer in time');
      });
      this.#socket.once(event, () => {
        cancel();
        resolve(this.#fault);
      });
      void this.ended.then((fault) => {
        cancel();
        resolve(fault);
      });
    });
  }

  /**
   * Asks, and resolves with the answer. A question that could not be written in time never is. `onLateAnswer` is called if the answer comes after its time, and only then.
   */
  ask(
    question: Unnumbered<Question>,
    timeoutMs: number,
    onLateAnswer: ((answer: SmppAnswer) => void) | null = null,
  ): Promise<SmppAnswer | WireFault> {
    if (this.#fault !== null) return Promise.resolve({ ...this.#fault, isUnsent: true });
    this.#sequence = sequenceAfter(this.#sequence);
    const sequence = this.#sequence;
    return new Promise((resolve) => {
      const deadlineAtMs = this.#clock.monotonicMs() + timeoutMs;
      this.#waiting.set(sequence, { command: question.command, deadlineAtMs, resolve, onLateAnswer });
      this.#setTimer(deadlineAtMs);
      this.#write({ sequence, octets: writePdu({ ...question, sequence }) });
    });
  }

  /** Answers a question of the far side; on a broken wire, does nothing. */
  answer(command: SmppAnswer['command'], sequence: number, status: number): void {
    this.#write({ sequence: null, octets: writePdu({ command, sequence, status, identifier: '' }) });
  }

  /** Ends the wire with a fault of our own making, unless it is broken already. Returns the fault that holds. */
  break(fault: WireFault['fault'], detail: string): WireFault {
    if (this.#fault !== null) return this.#fault;
    this.#fault = { fault, detail };
    this.#cancelTimer();
    this.#socket.destroy();
    const unsent = new Set(this.#outgoing.map((outgoing) => outgoing.sequence));
    this.#outgoing = [];
    for (const [sequence, { resolve }] of this.#waiting)
      resolve(unsent.has(sequence) ? { ...this.#fault, isUnsent: true } : this.#fault);
    this.#waiting.clear();
    this.#late.clear();
    this.#end(this.#fault);
    return this.#fault;
  }

  /** Ends the wire after everything that was written has left. */
  hangUp(): void {
    if (this.#fault !== null) return;
    const leave = () => {
      this.break('given_up', 'closed by us');
    };
    const cancel = this.#clock.after(leaveTimeoutMs, leave);
    void this.ended.then(cancel);
    while (this.#outgoing.length > 0) this.#socket.write(this.#takePiece());
    this.#socket.end(leave);
  }

  #write(outgoing: Outgoing): void {
    if (this.#fault !== null) return;
    if (this.#socket.writableLength + this.#outgoingBytes > unreadBytesMax) {
      this.break('not_smpp', 'the server does not read what it is sent');
      return;
    }
    this.#outgoing.push(outgoing);
    this.#outgoingBytes += outgoing.octets.length;
    // All that is written in one turn leaves in few pieces: a hundred texts are a hundred system calls otherwise.
    if (this.#isGathering) return;
    this.#isGathering = true;
    process.nextTick(() => {
      this.#isGathering = false;
      this.#writeNext();
    });
  }

  /** A piece at a time: the next one stays here until the socket has taken the one before it. */
  #writeNext(): void {
    if (this.#fault !== null || this.#isWriting || this.#outgoing.length === 0) return;
    this.#isWriting = true;
    this.#socket.write(this.#takePiece(), () => {
      this.#isWriting = false;
      this.#writeNext();
    });
  }

  #takePiece(): Buffer {
    let bytes = 0;
    const end = this.#outgoing.findIndex(({ octets }) => (bytes += octets.length) > pieceBytesMax);
    // One that is larger than a piece is a piece by itself.
    const taken = this.#outgoing.splice(0, end === -1 ? this.#outgoing.length : Math.max(1, end));
    const piece = Buffer.concat(taken.map(({ octets }) => octets));
    this.#outgoingBytes -= piece.length;
    return piece;
  }

  /** Whether a question was still here, where it is no more. */
  #takeBack(sequence: number): boolean {
    const at = this.#outgoing.findIndex((outgoing) => outgoing.sequence === sequence);
    if (at === -1) return false;
    const [taken] = this.#outgoing.splice(at, 1);
    this.#outgoingBytes -= taken?.octets.length ?? 0;
    return true;
  }

  #onData = (octets: Buffer): void => {
    if (this.#fault !== null) return;
    this.#heardAtMs = this.#clock.monotonicMs();
    const fault = this.#reader.read(octets, this.#onPdu);
    if (fault !== null) this.break('not_smpp', fault);
  };

  #onPdu = (pdu: Pdu): void => {
    if (this.#fault !== null) return;
    if ('status' in pdu) this.#takeAnswer(pdu);
    else this.#onRequest(pdu, this);
  };

  #takeAnswer(answer: SmppAnswer): void {
    const { command, sequence } = answer;
    const waiting = this.#waiting.get(sequence);
    if (waiting === undefined) {
      const onLateAnswer = this.#late.get(sequence);
      this.#late.delete(sequence);
      onLateAnswer?.(answer);
      return;
    }
    // An answer to something else says nothing about this question, whatever its number.
    if (command !== 'generic_nack' && command !== `${waiting.command}_resp`) return;
    this.#waiting.delete(sequence);
    waiting.resolve(answer);
  }

  #onError = (error: NodeJS.ErrnoException): void => {
    // An attempt at several addresses fails with one error that has a code and no words.
    this.break('closed', error.message === '' ? (error.code ?? 'the connection failed') : error.message);
  };

  #onClose = (): void => {
    this.break('closed', 'the server closed the connection');
  };

  #setTimer(atMs: number): void {
    if (atMs >= this.#timerAtMs) return;
    this.#cancelTimer();
    this.#timerAtMs = atMs;
    // Timers may fire a little early, and a timer of a fraction of a millisecond would spin.
    const delayMs = Math.max(1, atMs - this.#clock.monotonicMs());
    this.#cancelTimer = this.#clock.after(delayMs, () => {
      this.#timerAtMs = Infinity;
      this.#endOverdue();
    });
  }

  #endOverdue(): void {
    const nowMs = this.#clock.monotonicMs();
    let nextMs = Infinity;
    for (const [sequence, { deadlineAtMs, resolve, onLateAnswer }] of this.#waiting) {
      if (deadlineAtMs > nowMs) {
        nextMs = Math.min(nextMs, deadlineAtMs);
        continue;
      }
      this.#waiting.delete(sequence);
      if (this.#takeBack(sequence)) {
        resolve({ fault: 'timed_out', detail: 'the server does not read what it is sent', isUnsent: true });
        continue;
      }
      if (onLateAnswer !== null) this.#keepLate(sequence, onLateAnswer);
      resolve({ fault: 'timed_out', detail: 'the server did not answer in time' });
    }
    if (nextMs < Infinity) this.#setTimer(nextMs);
  }

  #keepLate(sequence: number, onLateAnswer: (answer: SmppAnswer) => void): void {
    this.#late.set(sequence, onLateAnswer);
    if (this.#late.size <= lateQuestionsMax) return;
    const [oldest] = this.#late.keys();
    if (oldest !== undefined) this.#late.delete(oldest);
  }
}

/** Connects, and makes the TLS handshake where the URL asks for it. */
export async function openWire(
  clock: Clock,
  target: SmppUrl,
  options: {
    /** PEM of the authorities to trust instead of the machine's, or null. */
    authorities: string | null;
    timeoutMs: number;
    onRequest: OnRequest;
    signal: AbortSignal;
  },
): Promise<SmppWire | WireFault> {
  const { host, port, tls } = target;
  const { authorities, timeoutMs, onRequest, signal } = options;
  const socket =
    tls === null
      ? connectPlain({ host, port })
      : connectTls({
          host,
          port,
          // RFC 6066 §3 allows no addresses here.
          ...(isIP(host) === 0 ? { servername: host } : {}),
          ...(authorities === null ? {} : { ca: authorities }),
          rejectUnauthorized: tls.isVerified,
          minVersion: 'TLSv1.2',
        });
  const wire = new SmppWire(clock, host, socket, onRequest);
  const giveUp = () => {
    wire.break('given_up', 'the connection is no longer wanted');
  };
  signal.addEventListener('abort', giveUp, { once: true });
  const fault = await wire.opened(tls === null ? 'connect' : 'secureConnect', timeoutMs);
  signal.removeEventListener('abort', giveUp);
  return fault ?? wire;
}

export function isFault(value: SmppAnswer | SmppWire | WireFault): value is WireFault {
  return 'fault' in value;
}
