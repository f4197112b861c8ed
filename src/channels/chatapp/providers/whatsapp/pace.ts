import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';

/**
 * How fast messages may leave (https://developers.facebook.com/docs/whatsapp/cloud-api/overview#throughput): so many a
 * second from a number, and so many to one person from it. Each node counts for itself; what all of them send together
 * may be too much, and then WhatsApp says so, and each of them slows down.
 *
 * Campaigns get four fifths of a number's pace, so that a transactional message never waits for one.
 *
 * Turns lie at even distances. Unused ones are caught up on for as long as `burstMs`.
 */
export type Pace = {
  /**
   * How long a message must wait; zero or a little: the turn is its own, and it leaves after that time. Longer: it has no
   * turn, and comes back after that time.
   */
  take: (phoneNumberId: string, to: string, isCampaign: boolean) => { hasTurn: boolean; waitMs: number };
  noteAccepted: (phoneNumberId: string, to: string) => void;
  /** WhatsApp says that it is too fast: returns how long to stay away. */
  noteTooFast: (phoneNumberId: string, to: string, slows: 'number' | 'pair') => number;
  /** What was found out of a number. */
  learn: (phoneNumberId: string, messagesPerSecondMax: number) => void;
};

export type PaceLimits = {
  /** A second, from a number of which nothing is known yet: what every number may send. */
  perSecondUntilKnown: number;
  /** To one person at once. */
  pairBurst: number;
};

export const usualLimits: PaceLimits = { perSecondUntilKnown: 80, pairBurst: 45 };

/** Longer: WhatsApp sees a burst after each quiet moment. Shorter: timers that are a little late cost turns. */
const burstMs = 250;

/** How long a message is kept waiting here. Longer takes the places of others; shorter sends more back to the queue. */
const waitMsMax = 250;

/** Both for campaigns: together less than `burstMs`, so that a burst of one leaves room for a transactional message. */
const campaignBurstMs = 100;
const campaignWaitMsMax = 100;

const campaignShare = 0.8;

/** One message to the same person in so long, once the burst is used up. */
const pairDistanceMs = 6_000;

/** The pauses after a number was too fast: each twice the one before. */
const firstPauseMs = 1_000;
const longestPauseMs = 64_000;

/** Each time four times the one before: 6 seconds to about half an hour. */
const pairPausesMax = 5;

/** A slowed number is at its full pace again after some thousand messages. */
const recoverySteps = 4_000;

/** More would only fill the memory: an entry has some hundred bytes. One that is forgotten begins anew. */
const numbersMax = 10_000;
const pairsMax = 50_000;

/** Where none is left for a minute, messages come back spread over the end of it. */
const retryAfterMsMax = 60_000;

type Lane = {
  perSecondMax: number;
  perSecond: number;
  /** When the next turn of all, and of campaigns, is due if nothing was unused. */
  nextAtMs: number;
  campaignNextAtMs: number;
  /** Until when messages are to come back. */
  bookedUntilMs: number;
  pauseMs: number;
  pausedUntilMs: number;
};

type Pair = { nextAtMs: number; pauses: number; pausedUntilMs: number };

export function createPace(clock: Clock, random: () => number, limits: PaceLimits = usualLimits): Pace {
  const lanes = new LRUCache<string, Lane>({ max: numbersMax });
  const pairs = new LRUCache<string, Pair>({ max: pairsMax });

  const laneOf = (phoneNumberId: string): Lane => {
    const known = lanes.get(phoneNumberId);
    if (known !== undefined) return known;
    const lane = {
      perSecondMax: limits.perSecondUntilKnown,
      perSecond: limits.perSecondUntilKnown,
      nextAtMs: -Infinity,
      campaignNextAtMs: -Infinity,
      bookedUntilMs: -Infinity,
      pauseMs: 0,
      pausedUntilMs: -Infinity,
    };
    lanes.set(phoneNumberId, lane);
    return lane;
  };
  const pairOf = (phoneNumberId: string, to: string): Pair => {
    const key = `${phoneNumberId} ${to}`;
    const known = pairs.get(key);
    if (known !== undefined) return known;
    const pair = { nextAtMs: -Infinity, pauses: 0, pausedUntilMs: -Infinity };
    pairs.set(key, pair);
    return pair;
  };

  return {
    take: (phoneNumberId, to, isCampaign) => {
      const nowMs = clock.monotonicMs();
      const lane = laneOf(phoneNumberId);
      const pair = pairOf(phoneNumberId, to);
      const pairWaitMs = pairWaitOf(pair, nowMs, limits.pairBurst);
      if (pairWaitMs > 0) return { hasTurn: false, waitMs: Math.ceil(pairWaitMs) };
      const waitMs = laneWaitOf(lane, nowMs, isCampaign);
      if (waitMs > (isCampaign ? campaignWaitMsMax : waitMsMax))
        return { hasTurn: false, waitMs: book(lane, nowMs, waitMs, random()) };
      takeTurn(lane, nowMs, isCampaign);
      pair.nextAtMs = Math.max(pair.nextAtMs, nowMs) + pairDistanceMs;
      return { hasTurn: true, waitMs: Math.ceil(waitMs) };
    },
    noteAccepted: (phoneNumberId, to) => {
      const lane = laneOf(phoneNumberId);
      pairOf(phoneNumberId, to).pauses = 0;
      if (clock.monotonicMs() < lane.pausedUntilMs) return;
      lane.pauseMs = 0;
      lane.perSecond = Math.min(lane.perSecondMax, lane.perSecond + lane.perSecondMax / recoverySteps);
    },
    noteTooFast: (phoneNumberId, to, slows) => {
      const nowMs = clock.monotonicMs();
      return slows === 'number'
        ? slowLane(laneOf(phoneNumberId), nowMs)
        : slowPair(pairOf(phoneNumberId, to), nowMs);
    },
    learn: (phoneNumberId, messagesPerSecondMax) => {
      const lane = laneOf(phoneNumberId);
      if (lane.perSecondMax === messagesPerSecondMax) return;
      lane.perSecondMax = messagesPerSecondMax;
      lane.perSecond = messagesPerSecondMax;
    },
  };
}

function pairWaitOf({ nextAtMs, pausedUntilMs }: Pair, nowMs: number, pairBurst: number): number {
  const burstEndsMs = nextAtMs - (pairBurst - 1) * pairDistanceMs;
  return Math.max(0, burstEndsMs - nowMs, pausedUntilMs - nowMs);
}

function laneWaitOf(lane: Lane, nowMs: number, isCampaign: boolean): number {
  const campaignWaitMs = isCampaign ? lane.campaignNextAtMs - campaignBurstMs - nowMs : 0;
  return Math.max(0, lane.nextAtMs - burstMs - nowMs, campaignWaitMs, lane.pausedUntilMs - nowMs);
}

function takeTurn(lane: Lane, nowMs: number, isCampaign: boolean): void {
  const distanceMs = 1_000 / lane.perSecond;
  lane.nextAtMs = Math.max(lane.nextAtMs, nowMs) + distanceMs;
  if (isCampaign) lane.campaignNextAtMs = Math.max(lane.campaignNextAtMs, nowMs) + distanceMs / campaignShare;
}

/** Messages without a turn come back one by one, as there will be turns, and not all at once. */
function book(lane: Lane, nowMs: number, waitMs: number, random: number): number {
  const beginsAtMs = Math.max(lane.bookedUntilMs, nowMs + waitMs);
  const endsAtMs = nowMs + retryAfterMsMax;
  if (beginsAtMs >= endsAtMs) return Math.round(retryAfterMsMax * (0.75 + random / 4));
  lane.bookedUntilMs = beginsAtMs + 1_000 / lane.perSecond;
  return Math.ceil(beginsAtMs - nowMs);
}

function slowLane(lane: Lane, nowMs: number): number {
  // What was under way when the pause began says nothing new.
  if (nowMs >= lane.pausedUntilMs) {
    lane.perSecond = Math.max(1, lane.perSecond / 2);
    lane.pauseMs = Math.min(longestPauseMs, Math.max(firstPauseMs, 2 * lane.pauseMs));
    lane.pausedUntilMs = nowMs + lane.pauseMs;
  }
  return lane.pausedUntilMs - nowMs;
}

function slowPair(pair: Pair, nowMs: number): number {
  const pauseMs = pairDistanceMs * 4 ** Math.min(pair.pauses, pairPausesMax - 1);
  pair.pauses += 1;
  pair.pausedUntilMs = nowMs + pauseMs;
  return pauseMs;
}
