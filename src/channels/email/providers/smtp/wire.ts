import { connect as connectPlain, isIP } from 'node:net';
import type { Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { ConnectionOptions } from 'node:tls';
import type { Clock } from '../../../../platform/clock.ts';
import { SmtpReplyReader } from './reply-reader.ts';
import type { SmtpReply } from './reply-reader.ts';

/**
 * One TCP connection to an SMTP server, as lines out and replies in.
 *
 * A wire is open until its first fault, and then broken for good: its socket is destroyed, its timer taken back,
 * and every later question is answered with that fault. Only the wire destroys the socket. Replies that are not
 * waited for are kept, a few of them; what waits, waits for one thing at a time and never without a limit.
 * Faults are values, because every one of them is expected.
 */

/** Why a wire is no longer any good. */
export type WireFault = {
  fault: 'closed' | 'timed_out' | 'not_smtp' | 'given_up';
  /** In words of ours or the machine's; quotes neither credentials nor content. */
  detail: string;
  /** The machine's name for it, for example `ECONNREFUSED`, where it was the machine that noticed. */
  code?: string;
};

export function isFault(value: SmtpReply | SmtpWire | WireFault): value is WireFault {
  return 'fault' in value;
}

export type WireAddress = {
  /** The server's name: for its certificate, and in what is reported. */
  host: string;
  /** The address to connect to, where the name has been looked up already; otherwise the system looks it up. */
  literal?: string;
  port: number;
};

/** How to check the server's certificate. */
export type TlsTrust = {
  isVerified: boolean;
  /** Authorities in PEM to trust instead of those that the machine trusts, or null. */
  authorities: string | null;
};

/**
 * A transaction has at most five replies under way (the one after the dot, RSET, MAIL, RCPT, DATA). More than
 * this unasked, and the server is flooding us.
 */
const unreadRepliesMax = 16;

/** Smaller sends messages of usual size in several parts; larger costs every connection as much memory. */
const gatheredBytesMax = 65_536;

type Awaited = 'opening' | 'reply' | 'room';

export class SmtpWire {
  readonly remoteHost: string;
  #clock: Clock;
  #socket: Socket;
  #gathered: Buffer | null = null;
  #reader = new SmtpReplyReader();
  #replies: SmtpReply[] = [];
  #fault: WireFault | null = null;
  #isSecure: boolean;

  /** The caller that waits for a reply, for room to write, or for the connection itself. At most one. */
  #waiting: ((result: SmtpReply | WireFault | null) => void) | null = null;
  #awaited: Awaited = 'opening';
  #onDisturbance: (() => void) | null = null;

  // One timer serves all deadlines: it is set for the earliest and, firing, looks whether that still stands. A
  // hand-off has four deadlines and meets them all within a millisecond, so that timers of their own would be waste.
  #deadlineAtMs = Infinity;
  #timerAtMs = Infinity;
  #cancelTimer: (() => void) | null = null;

  constructor(clock: Clock, remoteHost: string, socket: Socket, isSecure: boolean) {
    this.#clock = clock;
    this.remoteHost = remoteHost;
    this.#socket = socket;
    this.#isSecure = isSecure;
    this.#listen(socket);
  }

  isSecure(): boolean {
    return this.#isSecure;
  }

  /** The address at the other end, once connected. */
  remoteAddress(): string {
    return this.#socket.remoteAddress ?? '';
  }

  /** The fault that broke the wire, or null while it is whole. */
  brokenBy(): WireFault | null {
    return this.#fault;
  }

  /** Whether the server has said something, in whole or in part, that was not asked for. */
  hasUnreadReply(): boolean {
    return this.#replies.length > 0 || !this.#reader.isAtReplyStart();
  }

  /** Resolves with null when the socket is connected (and, if it is a TLS socket, trusted). */
  async opened(event: 'connect' | 'secureConnect', timeoutMs: number): Promise<WireFault | null> {
    if (this.#fault !== null) return this.#fault;
    const onOpen = () => {
      this.#resolve(null);
    };
    this.#socket.once(event, onOpen);
    const result = await this.#wait(timeoutMs, 'opening');
    this.#socket.off(event, onOpen);
    return result !== null && isFault(result) ? result : null;
  }

  /** The next reply. Every reply has its whole time-out for itself, however slowly its octets drip in. */
  async receive(timeoutMs: number): Promise<SmtpReply | WireFault> {
    const reply = this.#replies.shift() ?? this.#fault;
    if (reply !== null) return reply;
    const result = await this.#wait(timeoutMs, 'reply');
    return result ?? this.break('closed', 'the wait was ended without a reply');
  }

  /**
   * Writes pieces of content and then a line or more, a character an octet; on a broken wire, does nothing. What is small is
   * gathered first, because one buffer is cheaper to hand over than a handful.
   */
  write(pieces: readonly Buffer[], lines: string): void {
    if (this.#fault !== null) return;
    if (pieces.length === 0) {
      this.#socket.write(lines, 'latin1');
      return;
    }
    let bytes = lines.length;
    for (const piece of pieces) bytes += piece.length;
    if (bytes <= gatheredBytesMax) {
      this.#socket.write(this.#gather(pieces, lines, bytes));
      return;
    }
    this.#socket.cork();
    for (const piece of pieces) this.#socket.write(piece);
    if (lines !== '') this.#socket.write(lines, 'latin1');
    this.#socket.uncork();
  }

  /** Resolves with null once the operating system has taken what was written, or as soon as the server speaks. */
  async drained(timeoutMs: number): Promise<WireFault | null> {
    if (this.#fault !== null) return this.#fault;
    if (!this.#socket.writableNeedDrain || this.hasUnreadReply()) return null;
    const onDrain = () => {
      this.#resolve(null);
    };
    this.#socket.once('drain', onDrain);
    const result = await this.#wait(timeoutMs, 'room');
    this.#socket.off('drain', onDrain);
    return result !== null && isFault(result) ? result : null;
  }

  /**
   * Calls `onDisturbance` once if the quiet ends by itself: the server speaks unasked or goes away, or `idleMs`
   * pass. The returned function takes it back.
   */
  watchIdle(idleMs: number, onDisturbance: () => void): () => void {
    this.#onDisturbance = onDisturbance;
    this.#setDeadline(idleMs);
    return () => {
      this.#onDisturbance = null;
      this.#deadlineAtMs = Infinity;
    };
  }

  /** Puts TLS on the open connection (RFC 3207). Resolves with null once the handshake has been made and trusted. */
  async secure(trust: TlsTrust, timeoutMs: number): Promise<WireFault | null> {
    // RFC 3207 §4 and §6: what was said in the clear is not to be believed afterwards.
    if (this.hasUnreadReply())
      return this.break('not_smtp', 'the server spoke between STARTTLS and the handshake');
    const plain = this.#socket;
    plain.off('data', this.#onData);
    plain.off('close', this.#onClose);
    this.#socket = connectTls({ ...tlsOptionsOf(this.remoteHost, trust), socket: plain });
    this.#isSecure = true;
    this.#listen(this.#socket);
    return this.opened('secureConnect', timeoutMs);
  }

  /** Ends the wire with a fault of our own making, unless it is broken already. Returns the fault that holds. */
  break(fault: WireFault['fault'], detail: string, code?: string): WireFault {
    if (this.#fault !== null) return this.#fault;
    this.#fault = code === undefined ? { fault, detail } : { fault, detail, code };
    this.#deadlineAtMs = Infinity;
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#socket.destroy();
    this.#resolve(this.#fault);
    this.#disturb();
    return this.#fault;
  }

  #gather(pieces: readonly Buffer[], lines: string, bytes: number): Buffer {
    // The same memory serves every write, once the operating system has taken the one before.
    const isFree = this.#gathered !== null && this.#socket.writableLength === 0;
    const gathered =
      isFree && this.#gathered !== null ? this.#gathered : Buffer.allocUnsafeSlow(gatheredBytesMax);
    this.#gathered = gathered;
    let length = 0;
    for (const piece of pieces) {
      gathered.set(piece, length);
      length += piece.length;
    }
    gathered.write(lines, length, 'latin1');
    return gathered.subarray(0, bytes);
  }

  #listen(socket: Socket): void {
    socket.setNoDelay(true);
    socket.on('data', this.#onData);
    socket.on('error', this.#onError);
    socket.on('close', this.#onClose);
  }

  #onData = (octets: Buffer): void => {
    if (this.#fault !== null) return;
    const fault = this.#reader.read(octets, this.#onReply);
    if (fault !== null) this.break('not_smtp', fault);
    else if (this.#replies.length > unreadRepliesMax)
      this.break('not_smtp', 'the server sends replies unasked');
    else if (this.#awaited === 'room' && this.#replies.length > 0) this.#resolve(null);
    else this.#disturb();
  };

  #onReply = (reply: SmtpReply): void => {
    if (this.#waiting !== null && this.#awaited === 'reply') this.#resolve(reply);
    else this.#replies.push(reply);
  };

  #onError = (error: NodeJS.ErrnoException): void => {
    // An attempt at several addresses fails with one error that has a code and no words.
    const detail = error.message === '' ? (error.code ?? 'the connection failed') : error.message;
    this.break('closed', detail, error.code);
  };

  #onClose = (): void => {
    this.break('closed', 'the server closed the connection');
  };

  #wait(timeoutMs: number, awaited: Awaited): Promise<SmtpReply | WireFault | null> {
    this.#setDeadline(timeoutMs);
    this.#awaited = awaited;
    return new Promise((resolve) => {
      this.#waiting = resolve;
    });
  }

  #resolve(result: SmtpReply | WireFault | null): void {
    const resolve = this.#waiting;
    if (resolve === null) return;
    this.#waiting = null;
    this.#deadlineAtMs = Infinity;
    resolve(result);
  }

  #disturb(): void {
    const onDisturbance = this.#onDisturbance;
    if (onDisturbance === null) return;
    this.#onDisturbance = null;
    onDisturbance();
  }

  #setDeadline(timeoutMs: number): void {
    this.#deadlineAtMs = this.#clock.monotonicMs() + timeoutMs;
    if (this.#timerAtMs <= this.#deadlineAtMs) return;
    this.#cancelTimer?.();
    this.#startTimer(timeoutMs);
  }

  #startTimer(delayMs: number): void {
    this.#timerAtMs = this.#clock.monotonicMs() + delayMs;
    this.#cancelTimer = this.#clock.after(delayMs, () => {
      this.#timerAtMs = Infinity;
      this.#cancelTimer = null;
      this.#checkDeadline();
    });
  }

  #checkDeadline(): void {
    if (this.#deadlineAtMs === Infinity) return;
    const remainingMs = this.#deadlineAtMs - this.#clock.monotonicMs();
    // Timers may fire a little early, and a timer of a fraction of a millisecond would spin.
    if (remainingMs > 1) this.#startTimer(remainingMs);
    else if (this.#onDisturbance !== null) this.#disturb();
    else this.break('timed_out', 'the server did not answer in time');
  }
}

/** Connects. TLS from the first octet if `trust` is given (RFC 8314 §3.3), else in the clear. */
export async function openWire(
  clock: Clock,
  address: WireAddress,
  trust: TlsTrust | null,
  timeouts: { connectMs: number; handshakeMs: number },
  signal: AbortSignal,
): Promise<SmtpWire | WireFault> {
  const socket = connectPlain({ host: address.literal ?? address.host, port: address.port });
  const wire = new SmtpWire(clock, address.host, socket, false);
  const giveUp = () => {
    wire.break('given_up', 'the connection is no longer wanted');
  };
  signal.addEventListener('abort', giveUp, { once: true });
  const fault =
    (await wire.opened('connect', timeouts.connectMs)) ??
    (trust === null ? null : await wire.secure(trust, timeouts.handshakeMs));
  signal.removeEventListener('abort', giveUp);
  return fault ?? wire;
}

function tlsOptionsOf(host: string, trust: TlsTrust): ConnectionOptions {
  return {
    host,
    // RFC 6066 §3 allows no addresses here.
    ...(isIP(host) === 0 ? { servername: host } : {}),
    ...(trust.authorities === null ? {} : { ca: trust.authorities }),
    rejectUnauthorized: trust.isVerified,
    minVersion: 'TLSv1.2',
  };
}
