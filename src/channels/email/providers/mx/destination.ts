import type { RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff } from '../../provider.ts';
import type { AbortWatch } from '../../../abort-watch.ts';
import type { SmtpConnection } from '../smtp/opening.ts';
import { SmtpPool } from '../smtp/pool.ts';
import { createBackoff } from './backoff.ts';
import type { Backoff } from './backoff.ts';
import { createPace } from './pace.ts';
import type { Pace } from './pace.ts';
import { reachHosts, wordsOf } from './reach.ts';
import type { ConnectionNeeds, ReachFailure, ReachTools } from './reach.ts';
import type { MxHost } from '../../mx-route.ts';

/**
 * The mail hosts that take mail for one domain or, where they are a provider's, for thousands: its connections, its
 * pace, and the pauses that it needs. What is limited here is limited by the hosts too, and they count by client and
 * not by domain.
 *
 * How many connections it may have adapts as TCP does: half as many when it says that it is too much, one more after
 * fifty messages that went well.
 *
 * Room is shared with all other destinations, by thresholds that shrink as it fills (Choudhury & Hahne, 1998): one
 * destination may hold as many waiting hand-offs, and as many connections, as are left free for all others. So a
 * single busy one may use half of everything, and however many are busy, something is left for the next.
 */

export type MxLimits = {
  /** Hand-offs at once. */
  placesMax: number;
  /** Connections to everywhere together. Each costs a socket and, with TLS, some 50 kB. */
  connectionsMax: number;
  connectionsPerDestinationMax: number;
  handOffsPerConnectionMax: number;
  idleTimeoutMs: number;
  /** Destinations remembered with their pace and their pauses. */
  destinationsMax: number;
};

/** What all destinations share. */
export type SharedByDestinations = ReachTools & {
  random: () => number;
  limits: MxLimits;
  abortWatch: AbortWatch;
  /** Hand-offs that have a place at their destination. */
  admitted: number;
  /** Those of them whose destination has not had a connection since they came. */
  strangers: number;
  connections: number;
  /** Connections being opened to destinations that have none. */
  firstOpenings: number;
  /** Destinations with connections, the one used last at the end. */
  connected: Set<Destination>;
};

/**
 * Most domains of a list that was unused for years may be dead, and each takes minutes until that is certain.
 * They get no more than these parts of the places and of the connections.
 */
const strangersPart = 0.75;
const firstOpeningsPart = 0.5;

/**
 * A first connection may take the place of any idle one, a further one only of one that has been idle for this long:
 * busy destinations would take each other's places between two messages (20,000 messages to 50 destinations took
 * 8,195 connections, and 404 like this).
 */
const spareIdleMs = 1_000;

const successesPerConnection = 50;

/** Several refusals at once are one. */
const halvingPauseMs = 10_000;

export class Destination {
  #shared: SharedByDestinations;
  #needs: ConnectionNeeds;
  #hosts: readonly MxHost[] = [];
  #pool: SmtpPool<ReachFailure>;
  #pace: Pace;
  #backoff: Backoff;
  /** What was said when the pause began. */
  #lastWords: Extract<SendOutcome, { kind: 'deferred' }> | null = null;
  #admitted = 0;
  #strangers = 0;
  #openedCount = 0;
  #connectionsMax: number;
  #successes = 0;
  #halvedAtMs = -Infinity;

  constructor(shared: SharedByDestinations, needs: ConnectionNeeds) {
    const { clock, random, limits, abortWatch } = shared;
    this.#shared = shared;
    this.#needs = needs;
    this.#connectionsMax = limits.connectionsPerDestinationMax;
    this.#pace = createPace(clock, random);
    this.#backoff = createBackoff(clock, random);
    this.#pool = new SmtpPool<ReachFailure>(
      { clock, abortWatch },
      {
        handOffsPerConnectionMax: limits.handOffsPerConnectionMax,
        idleTimeoutMs: limits.idleTimeoutMs,
        takePlace: () => this.#takePlace(),
        freePlace: () => {
          this.#freePlace();
        },
        isCrowded: () => this.#pool.counts().open > this.#connectionsMax,
        open: (signal) => this.#open(signal),
        refuse: (failure) => this.#refuse(failure),
      },
    );
  }

  /** `hosts` are the destination's, in the order of this hand-off's route. Rejects as the pool does. */
  async handOff(handOff: EmailHandOff, hosts: readonly MxHost[]): Promise<SendOutcome> {
    this.#hosts = hosts;
    const ticket = this.#backoff.enter();
    if (ticket === null) return this.#answerInPause();
    if (!this.#hasRoom()) {
      this.#backoff.abandon(ticket);
      return this.#postpone(wordsOf(null, 'not tried: too many hand-offs wait for this destination'));
    }
    const release = this.#admit();
    try {
      const outcome = await this.#pool.handOff(handOff);
      if (outcome.kind === 'postponed' || isUnavailability(outcome)) this.#backoff.abandon(ticket);
      else if (this.#backoff.note(ticket, isThrottled(outcome))) this.#beginThrottling(outcome);
      if (outcome.kind === 'accepted') this.#noteSuccess();
      return outcome;
    } catch (error) {
      this.#backoff.abandon(ticket);
      throw error;
    } finally {
      release();
    }
  }

  /** Whether there are neither hand-offs nor connections, only what was learnt. */
  isQuiet(): boolean {
    const { open, opening } = this.#pool.counts();
    return open + opening + this.#admitted === 0;
  }

  /** See the pool. */
  dropIdle(idleMsMin: number): boolean {
    return this.#pool.dropIdle(idleMsMin);
  }

  close(): Promise<void> {
    return this.#pool.close();
  }

  #hasRoom(): boolean {
    const { idle, open, waiting } = this.#pool.counts();
    const { limits, admitted, strangers } = this.#shared;
    if (idle > 0) return true;
    if (waiting >= limits.placesMax - admitted) return false;
    // Twice what is left, since most destinations do answer, and mail for a new one often comes in bulk.
    return open > 0 || waiting < 2 * (strangersPart * limits.placesMax - strangers);
  }

  /** Takes a place; the returned function gives it back. */
  #admit(): () => void {
    const shared = this.#shared;
    const isStranger = this.#pool.counts().open === 0;
    const openedBefore = this.#openedCount;
    if (this.#admitted === 0) this.#pace.noteBusy();
    this.#admitted += 1;
    shared.admitted += 1;
    if (isStranger) this.#addStrangers(1);
    return () => {
      this.#admitted -= 1;
      shared.admitted -= 1;
      if (isStranger && openedBefore === this.#openedCount) this.#addStrangers(-1);
      this.#pace.noteSettled(this.#admitted > 0);
    };
  }

  #addStrangers(count: number): void {
    this.#strangers += count;
    this.#shared.strangers += count;
  }

  #takePlace(): boolean {
    const shared = this.#shared;
    const { open, opening } = this.#pool.counts();
    const own = open + opening;
    if (own >= this.#connectionsMax) return false;
    if (open === 0) {
      // The first one shows whether the destination answers; seven more would only wait with it.
      const isTurn = opening === 0 && shared.firstOpenings < firstOpeningsPart * shared.limits.connectionsMax;
      if (!isTurn) return false;
    }
    const idleMsMin = own === 0 ? 0 : spareIdleMs;
    while (own >= shared.limits.connectionsMax - shared.connections) {
      if (!this.#dropIdleElsewhere(idleMsMin)) return false;
    }
    shared.connections += 1;
    shared.connected.delete(this);
    shared.connected.add(this);
    return true;
  }

  #dropIdleElsewhere(idleMsMin: number): boolean {
    for (const other of this.#shared.connected) {
      if (other !== this && other.dropIdle(idleMsMin)) return true;
    }
    return false;
  }

  #freePlace(): void {
    const { open, opening } = this.#pool.counts();
    this.#shared.connections -= 1;
    if (open + opening === 0) this.#shared.connected.delete(this);
  }

  async #open(signal: AbortSignal): Promise<SmtpConnection | ReachFailure> {
    const shared = this.#shared;
    const isFurther = this.#pool.counts().open > 0;
    if (!isFurther) shared.firstOpenings += 1;
    const opened = await reachHosts(shared, {
      hosts: this.#hosts,
      ...this.#needs,
      isFurther,
      signal,
    });
    if (!isFurther) shared.firstOpenings -= 1;
    if ('failed' in opened) {
      if (opened.cause === 'throttled') this.#halve();
      return opened;
    }
    this.#openedCount += 1;
    this.#addStrangers(-this.#strangers);
    return opened;
  }

  /** Called once for each hand-off that waited; only the first call changes anything. */
  #refuse(failure: ReachFailure | null): SendOutcome {
    if (failure === null) return this.#postpone(wordsOf(null, 'not tried: there are too many connections'));
    const { outcome, cause } = failure;
    if (cause === 'none' || outcome.kind === 'rejected') return outcome;
    if (this.#backoff.noteUnreachable(cause)) this.#lastWords = outcome;
    return outcome;
  }

  #beginThrottling(outcome: SendOutcome): void {
    const reply = outcome.reply ?? wordsOf(null, '');
    this.#lastWords = { kind: 'deferred', reason: 'rate_limited', reply };
    this.#halve();
    this.#pool.settleWaiting(() => this.#answerInPause());
  }

  #answerInPause(): SendOutcome {
    const pause = this.#backoff.pause();
    const words = this.#lastWords;
    if (words === null || pause === null) {
      return this.#postpone(wordsOf(null, 'not tried: the destination is being probed'));
    }
    // It counts as an attempt, as it does with mail servers: a destination that is away for long enough gets no mail.
    if (pause.cause === 'unreachable') return words;
    return this.#postpone(words.reply, pause.remainingMs);
  }

  #postpone(reply: RemoteReply, pauseMs = 0): SendOutcome {
    const { waiting } = this.#pool.counts();
    return { kind: 'postponed', retryAfterMs: this.#pace.book(waiting, pauseMs), reply };
  }

  #halve(): void {
    const nowMs = this.#shared.clock.monotonicMs();
    if (nowMs - this.#halvedAtMs < halvingPauseMs) return;
    this.#halvedAtMs = nowMs;
    this.#successes = 0;
    this.#connectionsMax = Math.max(1, Math.floor(this.#connectionsMax / 2));
  }

  #noteSuccess(): void {
    this.#successes += 1;
    if (this.#successes < successesPerConnection) return;
    this.#successes = 0;
    this.#connectionsMax = Math.min(
      this.#connectionsMax + 1,
      this.#shared.limits.connectionsPerDestinationMax,
    );
  }
}

function isUnavailability(outcome: SendOutcome): boolean {
  return outcome.kind === 'deferred' && outcome.reason === 'provider_unavailable';
}

/** Whether the destination has said that it is too much, or that it is closing. */
function isThrottled(outcome: SendOutcome): boolean {
  if (outcome.kind !== 'deferred' && outcome.kind !== 'rejected') return false;
  const { code, enhancedCode } = outcome.reply;
  if (code === 421) return true;
  // RFC 3463 §3.3: X.2.X is of the mailbox. One that gets too much must not stop the mail of its neighbours.
  const isOfMailbox = /^[45]\.2\./.test(enhancedCode ?? '');
  return code !== null && outcome.reason === 'rate_limited' && !isOfMailbox;
}
