import { setMaxListeners } from 'node:events';
import type { Clock } from '../../../../platform/clock.ts';
import type { RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { openSmtpConnection } from './opening.ts';
import { ownWords } from './outcomes.ts';
import { carryHandOffs } from './transactions.ts';
import type { HandOffQueue, Line, PendingHandOff } from './transactions.ts';
import { parseSmtpUrl } from './url.ts';
import type { SmtpTarget } from './url.ts';

/**
 * Mail to one server over a few kept connections.
 *
 * A connection is opened when a hand-off finds none idle and there are fewer than allowed; it is then `opening`,
 * `busy` (see transactions.ts), `idle` between hand-offs, and `leaving` while it says QUIT. It ends after a number
 * of messages, after some idle seconds, when the server or the network ends it, or when the provider is closed.
 *
 * A connection that cannot be opened says something about the server only while there is no other: servers limit
 * the connections of one client, so that the seventeenth may be refused while sixteen work. Only if none is open
 * or opening is everything that waits deferred as `provider_unavailable`.
 */

export type SmtpProviderOptions = {
  /** See `parseSmtpUrl`. */
  url: string;
  clock: Clock;
  /** This machine's name, to say in EHLO. */
  heloName: string;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
};

/**
 * Fewer and the handshakes cost; more and servers that count end the connection themselves, which costs a second
 * attempt for the hand-off that is announced at that moment.
 */
const handOffsPerConnectionMax = 1_000;

/** Shorter opens connections anew between two small bursts; longer holds places at a server that counts them. */
const idleTimeoutMs = 15_000;

/** How long no further connection is tried after the server refused one while others are open. */
const refusedConnectionPauseMs = 10_000;

/** QUIT is a courtesy (RFC 5321 §4.1.1.10); a server that does not answer it keeps nobody. */
const quitTimeoutMs = 5_000;

/** Per connection. More waiting hand-offs than this are no queue but a mistake of the caller. */
const waitingPerConnectionMax = 64;

/**
 * An email provider that hands everything to one SMTP server (a relay of one's own or a provider's). Throws what
 * `parseSmtpUrl` throws; opens nothing before the first hand-off.
 */
export function createSmtpProvider(options: SmtpProviderOptions): EmailProvider {
  const target = parseSmtpUrl(options.url);
  const pool = new SmtpPool(options, target);
  return {
    name: 'smtp',
    // One under way and one announced behind it on each connection.
    concurrency: 2 * target.connectionsMax,
    handOff: (handOff) => pool.handOff(handOff),
    probe: () => pool.probe(),
    close: () => pool.close(),
  };
}

type IdleConnection = { line: Line; wake: (pending: PendingHandOff | null) => void };

class SmtpPool {
  #options: SmtpProviderOptions;
  #target: SmtpTarget;
  #waiting: PendingHandOff[] = [];
  /** The last one is the one used last: the others grow old and are closed. */
  #idle: IdleConnection[] = [];
  #openingCount = 0;
  #openCount = 0;
  #openNotBeforeMs = 0;
  #isClosing = false;
  #running = new Set<Promise<void>>();
  #unwanted = new AbortController();
  #queue: HandOffQueue;
  #abortable = new Map<AbortSignal, { pending: Set<PendingHandOff>; onAbort: () => void }>();

  constructor(options: SmtpProviderOptions, target: SmtpTarget) {
    this.#options = options;
    this.#target = target;
    // One listener a connection that is being opened, which is bounded.
    setMaxListeners(0, this.#unwanted.signal);
    this.#queue = {
      next: (line) => this.#next(line),
      nextWaiting: (line) => (this.#mayCarryMore(line, 1) ? this.#takeWaiting() : null),
      giveBack: (pending, otherwise) => {
        this.#giveBack(pending, otherwise);
      },
    };
  }

  handOff(handOff: EmailHandOff): Promise<SendOutcome> {
    if (handOff.signal.aborted) return Promise.reject(abortReason(handOff.signal));
    const refused = this.#refuse(handOff);
    if (refused !== null) return Promise.resolve(refused);
    return new Promise((resolve, reject) => {
      const pending = this.#createPending(handOff, resolve, reject);
      const idle = this.#idle.pop();
      if (idle !== undefined) {
        idle.wake(pending);
        return;
      }
      this.#waiting.push(pending);
      this.#openMore();
    });
  }

  async probe(): Promise<string | null> {
    const opened = await this.#open();
    if ('failed' in opened) return describe(opened.failed);
    await this.#leave({ ...opened, carried: 0, needsReset: false });
    return null;
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    for (const idle of this.#idle.splice(0)) idle.wake(null);
    if (!this.#waiting.some((pending) => pending.state === 'waiting')) this.#unwanted.abort();
    // Ends because nothing is taken on any more, and everything under way has its time-outs.
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #refuse(handOff: EmailHandOff): SendOutcome | null {
    if (this.#isClosing) {
      return { kind: 'deferred', reason: 'provider_unavailable', reply: this.#ownWords('closing down') };
    }
    if (this.#waiting.length >= waitingPerConnectionMax * this.#target.connectionsMax) {
      return {
        kind: 'deferred',
        reason: 'rate_limited',
        reply: this.#ownWords('too many hand-offs at once'),
      };
    }
    if (
      isEnvelopeAddress(handOff.recipient) &&
      (handOff.envelopeFrom === '' || isEnvelopeAddress(handOff.envelopeFrom))
    ) {
      return null;
    }
    return {
      kind: 'rejected',
      reason: 'other',
      reply: this.#ownWords('an address of the envelope is not plain'),
    };
  }

  #ownWords(detail: string): RemoteReply {
    return ownWords(detail, this.#target.host);
  }

  #createPending(
    handOff: EmailHandOff,
    resolve: (outcome: SendOutcome) => void,
    reject: (error: unknown) => void,
  ): PendingHandOff {
    const pending: PendingHandOff = {
      handOff,
      contentBytes: handOff.content.reduce((bytes, chunk) => bytes + chunk.length, 0),
      state: 'waiting',
      hasBeenGivenBack: false,
      interrupt: null,
      settle: (outcome) => {
        this.#end(pending);
        resolve(outcome);
      },
      fail: (error) => {
        this.#end(pending);
        reject(error);
      },
    };
    const sharers = this.#abortable.get(handOff.signal);
    if (sharers === undefined) this.#heed(handOff.signal, pending);
    else sharers.pending.add(pending);
    return pending;
  }

  /** A worker gives all its hand-offs the same signal: one listener for all, not one each. */
  #heed(signal: AbortSignal, first: PendingHandOff): void {
    const pending = new Set([first]);
    const onAbort = () => {
      for (const each of pending) abort(each);
    };
    signal.addEventListener('abort', onAbort);
    this.#abortable.set(signal, { pending, onAbort });
  }

  #end(pending: PendingHandOff): void {
    pending.state = 'settled';
    const { signal } = pending.handOff;
    const sharers = this.#abortable.get(signal);
    if (sharers === undefined) return;
    sharers.pending.delete(pending);
    if (sharers.pending.size > 0) return;
    signal.removeEventListener('abort', sharers.onAbort);
    this.#abortable.delete(signal);
  }

  /** Skips what was aborted while it waited. */
  #takeWaiting(): PendingHandOff | null {
    // Ends because every turn takes one out.
    for (;;) {
      const pending = this.#waiting.shift();
      if (pending === undefined) return null;
      if (pending.state === 'waiting') return pending;
    }
  }

  #mayCarryMore(line: Line, underWay: number): boolean {
    return line.carried + underWay < handOffsPerConnectionMax && line.wire.brokenBy() === null;
  }

  #next(line: Line): Promise<PendingHandOff | null> | PendingHandOff | null {
    if (!this.#mayCarryMore(line, 0)) return null;
    const waiting = this.#takeWaiting();
    if (waiting !== null) return waiting;
    if (this.#isClosing) {
      this.#unwanted.abort();
      return null;
    }
    // A server that has something to say between two transactions says goodbye.
    if (line.wire.hasUnreadReply()) return null;
    return new Promise((resolve) => {
      const idle: IdleConnection = {
        line,
        wake: (pending) => {
          stopWatching();
          resolve(pending);
        },
      };
      const stopWatching = line.wire.watchIdle(idleTimeoutMs, () => {
        this.#idle = this.#idle.filter((other) => other !== idle);
        resolve(null);
      });
      this.#idle.push(idle);
    });
  }

  #giveBack(pending: PendingHandOff, otherwise: SendOutcome): void {
    if (pending.state === 'settled') return;
    if (pending.hasBeenGivenBack) {
      pending.settle(otherwise);
      return;
    }
    pending.hasBeenGivenBack = true;
    pending.state = 'waiting';
    const idle = this.#idle.pop();
    if (idle === undefined) this.#waiting.unshift(pending);
    else idle.wake(pending);
  }

  #openMore(): void {
    const { connectionsMax } = this.#target;
    const isPaused = this.#openCount > 0 && this.#options.clock.monotonicMs() < this.#openNotBeforeMs;
    if (isPaused) return;
    while (
      this.#waiting.length > this.#openingCount &&
      this.#openCount + this.#openingCount < connectionsMax
    ) {
      this.#openingCount += 1;
      const running = this.#runConnection().finally(() => {
        this.#running.delete(running);
      });
      this.#running.add(running);
    }
  }

  /** The life of one connection. Never rejects. */
  async #runConnection(): Promise<void> {
    const opened = await this.#open();
    this.#openingCount -= 1;
    if ('failed' in opened) {
      this.#noteRefusedConnection(opened.failed);
      return;
    }
    this.#openCount += 1;
    const line: Line = { ...opened, carried: 0, needsReset: false };
    await carryHandOffs(line, this.#queue);
    await this.#leave(line);
    this.#openCount -= 1;
    this.#openMore();
  }

  #open() {
    return openSmtpConnection(this.#options.clock, this.#target, {
      heloName: this.#options.heloName,
      authorities: this.#options.authorities ?? null,
      signal: this.#unwanted.signal,
    });
  }

  #noteRefusedConnection(failed: RemoteReply): void {
    this.#openNotBeforeMs = this.#options.clock.monotonicMs() + refusedConnectionPauseMs;
    if (this.#openCount + this.#openingCount > 0) return;
    for (let pending = this.#takeWaiting(); pending !== null; pending = this.#takeWaiting()) {
      pending.settle({ kind: 'deferred', reason: 'provider_unavailable', reply: failed });
    }
  }

  async #leave(line: Line): Promise<void> {
    const { wire } = line;
    wire.write([], 'QUIT\r\n');
    await wire.receive(quitTimeoutMs);
    wire.break('given_up', 'closed by us');
  }
}

/** Whether an address can stand between angle brackets as it is: no space, bracket, control or eight-bit character. */
function isEnvelopeAddress(address: string): boolean {
  // RFC 5321 §4.5.3.1: 64 octets, an at sign, 255 octets.
  return address.length <= 320 && /^[\x21-\x3b=\x3f-\x7e]+$/.test(address);
}

/** What was confirmed is carried through all the same. */
function abort(pending: PendingHandOff): void {
  if (pending.state === 'committed') return;
  const { interrupt } = pending;
  pending.fail(abortReason(pending.handOff.signal));
  interrupt?.();
}

function abortReason(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the hand-off was aborted');
}

function describe(reply: RemoteReply): string {
  return reply.code === null ? reply.diagnostic : `${reply.code} ${reply.diagnostic}`;
}
