import { setMaxListeners } from 'node:events';
import type { Clock } from '../../../../platform/clock.ts';
import type { RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff } from '../../provider.ts';
import { abortReason } from '../../../abort-watch.ts';
import type { AbortWatch } from '../../../abort-watch.ts';
import { needsSmtpUtf8 } from './envelope.ts';
import type { SmtpConnection } from './opening.ts';
import { carryHandOffs } from './transactions.ts';
import type { HandOffQueue, WorkingConnection, PendingHandOff } from './transactions.ts';

/**
 * The kept connections to one destination, and the hand-offs that wait for one.
 *
 * A connection is opened when a hand-off finds none idle and there is a place for one more; it is then `opening`,
 * `busy` (see transactions.ts), `idle` between hand-offs, and `leaving` while it says QUIT. It ends after a number
 * of messages, after some idle seconds, when the server or the network ends it, when there are more than should
 * be, or when the pool is closed.
 *
 * A connection that cannot be opened says something about the destination only while there is no other: servers
 * limit the connections of one client, so that the seventeenth may be refused while sixteen work. Only if none is
 * open or opening is everything that waits refused. In reverse, nothing ever waits where none is open or opening.
 */
export type SmtpPoolPolicy<Failure extends { failed: RemoteReply }> = {
  /**
   * Fewer and the handshakes cost; more and servers that count end the connection themselves, which costs a second
   * attempt for the hand-off that is announced at that moment.
   */
  handOffsPerConnectionMax: number;
  /** Shorter opens connections anew between two small bursts; longer holds places at a server that counts them. */
  idleTimeoutMs: number;
  /** Takes a place for one more connection; false if there is none at the moment. */
  takePlace: () => boolean;
  /** Gives the place back of a connection that has ended or could not be opened. */
  freePlace: () => void;
  /** Whether connections should end after the message that they carry. */
  isCrowded: () => boolean;
  /** Opens a connection ready for its first MAIL. Never rejects; the signal gives it up. */
  open: (signal: AbortSignal) => Promise<SmtpConnection | Failure>;
  /**
   * What becomes of each hand-off that waits when no connection could be opened; null says that there was no place
   * for one.
   */
  refuse: (failure: Failure | null) => SendOutcome;
};

/** How long no further connection is tried after the server refused one while others are open. */
const refusedConnectionPauseMs = 10_000;

/** QUIT is a courtesy (RFC 5321 §4.1.1.10); a server that does not answer it is not waited for longer. */
const quitTimeoutMs = 5_000;

type IdleConnection = {
  line: WorkingConnection;
  sinceMs: number;
  wake: (pending: PendingHandOff | null) => void;
};

export type SmtpPoolTools = { clock: Clock; abortWatch: AbortWatch };

export class SmtpPool<Failure extends { failed: RemoteReply }> {
  #tools: SmtpPoolTools;
  #policy: SmtpPoolPolicy<Failure>;
  #waiting: PendingHandOff[] = [];
  /** The last one is the one used last: the others grow old and are closed. */
  #idle: IdleConnection[] = [];
  #openingCount = 0;
  #open = new Set<WorkingConnection>();
  #openNotBeforeMs = 0;
  #isClosing = false;
  #running = new Set<Promise<void>>();
  #unwanted = new AbortController();
  #queue: HandOffQueue;

  constructor(tools: SmtpPoolTools, policy: SmtpPoolPolicy<Failure>) {
    this.#tools = tools;
    this.#policy = policy;
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

  /** Connections by what they do; `open` counts the idle ones too. Hand-offs that wait for one. */
  counts(): { open: number; opening: number; idle: number; waiting: number } {
    return {
      open: this.#open.size,
      opening: this.#openingCount,
      idle: this.#idle.length,
      waiting: this.#waiting.length,
    };
  }

  /** Rejects only with the error of `confirm`, or with the reason of an abort. */
  handOff(handOff: EmailHandOff): Promise<SendOutcome> {
    if (handOff.signal.aborted) return Promise.reject(abortReason(handOff.signal));
    return new Promise((resolve, reject) => {
      const pending = this.#createPending(handOff, resolve, reject);
      const idle = this.#idle.pop();
      if (idle !== undefined) {
        idle.wake(pending);
        return;
      }
      this.#waiting.push(pending);
      this.#openMore();
      this.#refuseStranded(null);
    });
  }

  /** Opens a connection, whether there is a place or not, and closes it again. Null if that went well. */
  async probe(): Promise<Failure | null> {
    const opened = await this.#policy.open(this.#unwanted.signal);
    if ('failed' in opened) return opened;
    await leave({ ...opened, carried: 0, needsReset: false });
    return null;
  }

  /** Settles everything that waits for a connection; what is announced or under way goes on. */
  settleWaiting(outcome: () => SendOutcome): void {
    for (let pending = this.#takeWaiting(); pending !== null; pending = this.#takeWaiting()) {
      pending.settle(outcome());
    }
  }

  /**
   * Ends the connection that has been idle for longest, and frees its place at once. False if none has been idle
   * for `idleMsMin`.
   */
  dropIdle(idleMsMin: number): boolean {
    const idle = this.#idle[0];
    if (idle === undefined || this.#tools.clock.monotonicMs() - idle.sinceMs < idleMsMin) return false;
    this.#idle.shift();
    this.#forget(idle.line);
    idle.wake(null);
    return true;
  }

  /** Lets what waits and what is under way end, then closes every connection. */
  async close(): Promise<void> {
    this.#isClosing = true;
    for (const idle of this.#idle.splice(0)) idle.wake(null);
    if (!this.#waiting.some((pending) => pending.state === 'waiting')) this.#unwanted.abort();
    // Ends because nothing is taken on any more, and everything under way has its time-outs.
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #createPending(
    handOff: EmailHandOff,
    resolve: (outcome: SendOutcome) => void,
    reject: (error: unknown) => void,
  ): PendingHandOff {
    const end = () => {
      pending.state = 'settled';
      stopWatching();
    };
    const pending: PendingHandOff = {
      handOff,
      contentBytes: handOff.content.reduce((bytes, chunk) => bytes + chunk.length, 0),
      needsSmtpUtf8: needsSmtpUtf8(handOff.recipient),
      state: 'waiting',
      hasBeenGivenBack: false,
      interrupt: null,
      settle: (outcome) => {
        end();
        resolve(outcome);
      },
      fail: (error) => {
        end();
        reject(error);
      },
    };
    const stopWatching = this.#tools.abortWatch.watch(handOff.signal, () => {
      abort(pending);
    });
    return pending;
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

  #mayCarryMore(line: WorkingConnection, underWay: number): boolean {
    const { handOffsPerConnectionMax, isCrowded } = this.#policy;
    return (
      line.carried + underWay < handOffsPerConnectionMax && line.wire.brokenBy() === null && !isCrowded()
    );
  }

  #next(line: WorkingConnection): Promise<PendingHandOff | null> | PendingHandOff | null {
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
        sinceMs: this.#tools.clock.monotonicMs(),
        wake: (pending) => {
          stopWatching();
          resolve(pending);
        },
      };
      const stopWatching = line.wire.watchIdle(this.#policy.idleTimeoutMs, () => {
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
    const isPaused = this.#open.size > 0 && this.#tools.clock.monotonicMs() < this.#openNotBeforeMs;
    if (isPaused) return;
    while (this.#waiting.length > this.#openingCount && this.#policy.takePlace()) {
      this.#openingCount += 1;
      const running = this.#runConnection().finally(() => {
        this.#running.delete(running);
      });
      this.#running.add(running);
    }
  }

  /** The life of one connection. Never rejects. */
  async #runConnection(): Promise<void> {
    const opened = await this.#policy.open(this.#unwanted.signal);
    this.#openingCount -= 1;
    if ('failed' in opened) {
      this.#policy.freePlace();
      this.#openNotBeforeMs = this.#tools.clock.monotonicMs() + refusedConnectionPauseMs;
      this.#refuseStranded(opened);
      return;
    }
    const line: WorkingConnection = { ...opened, carried: 0, needsReset: false };
    this.#open.add(line);
    const carrying = carryHandOffs(line, this.#queue);
    // It has taken its first. For the others there may be more places now that the destination is known to answer.
    this.#openMore();
    await carrying;
    if (this.#open.has(line)) await leave(line);
    else cut(line);
    this.#forget(line);
    this.#openMore();
    this.#refuseStranded(null);
  }

  #forget(line: WorkingConnection): void {
    if (this.#open.delete(line)) this.#policy.freePlace();
  }

  /** What waits where there is no connection, and none to come, would wait for ever. */
  #refuseStranded(failure: Failure | null): void {
    if (this.#open.size + this.#openingCount > 0) return;
    this.settleWaiting(() => this.#policy.refuse(failure));
  }
}

async function leave({ wire }: WorkingConnection): Promise<void> {
  wire.write([], 'QUIT\r\n');
  await wire.receive(quitTimeoutMs);
  wire.break('given_up', 'closed by us');
}

/** Leaves without waiting for the answer: nothing is under way, and others wait for the place. */
export function cut({ wire }: SmtpConnection): void {
  wire.write([], 'QUIT\r\n');
  wire.break('given_up', 'closed by us');
}

/** What was confirmed is carried through all the same. */
function abort(pending: PendingHandOff): void {
  if (pending.state === 'committed') return;
  const { interrupt } = pending;
  pending.fail(abortReason(pending.handOff.signal));
  interrupt?.();
}
