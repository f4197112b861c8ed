import type { LookupFunction } from 'node:net';
import type { Clock } from '../../platform/clock.ts';
import { abortReason, createAbortWatch } from '../abort-watch.ts';
import { createClient as createHttp1Client, type Client as Http1Client } from '../http1/exchange.ts';
import { createUnderWay } from '../under-way.ts';
import { connectSession, type HttpRequest, type SentAnswer, type Session, type Slot } from './session.ts';

/**
 * Requests to one origin, over HTTP/2 or, where the far side offers nothing else, HTTP/1.1. There is one live session,
 * and beside it those that are on their way out. A request waits for a place on the live one, then has its hand-off
 * confirmed, and only then is written: what fails before was not sent, and what fails later is told apart (session.ts).
 *
 * A session that is out of use is replaced when the next request comes. If connections fail, or end one after the other
 * without a single answer, the next one is made after a pause that grows from one second to thirty: requests that come
 * meanwhile fail at once. Services take a client that connects again and again for an attack.
 */

export type { HttpRequest } from './session.ts';

export type HttpAnswer =
  | SentAnswer
  /** There is no connection: nothing was sent, nor confirmed. */
  | { kind: 'unreachable'; detail: string }
  /** Too many requests wait, or this one has waited for too long: nothing was sent, nor confirmed. */
  | { kind: 'busy'; detail: string };

/** As a hand-off has it. */
export type HttpPermit = { confirm: () => Promise<void>; signal: AbortSignal };

export type HttpClient = {
  /**
   * Confirms once there is a place on a live connection, before the first octet. Rejects only with the error of
   * `confirm`, or before it with the reason of the signal.
   */
  exchange: (request: HttpRequest, permit: HttpPermit) => Promise<HttpAnswer>;
  /** Requests from now on get another connection; those under way end on theirs. */
  renew: () => void;
  /** Why the far side cannot be reached, or null. Connects if there is no connection. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

export type HttpClientOptions = {
  clock: Clock;
  /** Such as `https://api.push.apple.com`. */
  origin: string;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string | null;
  /** Looks up the host; the machine's own way if it is left out. */
  lookup?: LookupFunction;
};

/** What the widest of the services allows, APNs. More would wait there. */
const streamsMax = 1_000;

/** The same as HTTP/1.1 connections: a service that speaks nothing newer is small. */
const http1ConnectionsMax = 16;

/** How long a far side that spoke HTTP/1.1 is not offered HTTP/2 again. */
const http1ForMs = 3_600_000;

/** More are no queue but a mistake of the caller. */
const waitingMax = 2 * streamsMax;

/** For a place. A far side that gives none for so long may give it to later requests. */
const waitMsMax = 15_000;

const pauseMsMin = 1_000;
const pauseMsMax = 30_000;

type Place =
  { kind: 'slot'; slot: Slot } | { kind: 'http1'; client: Http1Client } | Exclude<HttpAnswer, SentAnswer>;

type Waiter = { end: (place: Place) => void };

/** Connects to nothing before the first request. */
export function createHttpClient(options: HttpClientOptions): HttpClient {
  const { clock, origin, authorities = null, lookup } = options;
  const url = new URL(origin);
  const abortWatch = createAbortWatch();
  const underWay = createUnderWay(Infinity);
  const waiting = new Set<Waiter>();
  let live: Session | null = null;
  /** Never rejects. */
  let connecting: Promise<void> | null = null;
  const closing = new AbortController();
  let http1: { client: Http1Client; untilMs: number } | null = null;
  let failures = 0;
  let pause: { untilMs: number; detail: string } = { untilMs: -Infinity, detail: '' };

  const noteFailure = (detail: string) => {
    const pauseMs = Math.min(pauseMsMin * 2 ** failures, pauseMsMax);
    failures += 1;
    pause = { untilMs: clock.monotonicMs() + pauseMs, detail };
  };

  /** A single one may be a machine that was taken out of service just then. */
  const noteUselessSession = (detail: string) => {
    if (failures === 0) failures = 1;
    else noteFailure(detail);
  };

  const endAll = (place: Place) => {
    for (const waiter of waiting) waiter.end(place);
  };

  /** Gives what places there are to those who wait, the longest first, and connects for those left over. */
  const serve = () => {
    for (const waiter of waiting) {
      const slot = live?.takeSlot() ?? null;
      if (slot === null) break;
      waiter.end({ kind: 'slot', slot });
    }
    if (waiting.size === 0 || live !== null || connecting !== null) return;
    if (clock.monotonicMs() < pause.untilMs) {
      endAll({ kind: 'unreachable', detail: pause.detail });
      return;
    }
    connecting = connect();
  };

  const openHttp1 = () =>
    createHttp1Client({
      clock,
      origin,
      connectionsMax: http1ConnectionsMax,
      authorities,
      ...(lookup && { lookup }),
    });

  const connect = async () => {
    let session: Session | null = null;
    const connected = await connectSession(
      { clock, url, authorities, lookup, streamsMax, signal: closing.signal },
      {
        onRoom: serve,
        onOutOfUse: (isFault) => {
          if (session !== null) retire(session, isFault);
        },
      },
    );
    connecting = null;
    switch (connected.kind) {
      case 'failed':
        noteFailure(connected.detail);
        endAll({ kind: 'unreachable', detail: connected.detail });
        return;
      case 'http1':
        http1 = {
          // That of the hour before may have requests under way.
          client: http1?.client ?? openHttp1(),
          untilMs: clock.monotonicMs() + http1ForMs,
        };
        endAll({ kind: 'http1', client: http1.client });
        return;
      case 'session':
        session = connected.session;
        if (session.isUsable()) live = session;
        else noteUselessSession('the connection ended as soon as it was made');
        serve();
    }
  };

  const retire = (session: Session, isFault: boolean) => {
    if (isFault) noteUselessSession('the last connections ended without an answer');
    else failures = 0;
    if (live === session) live = null;
    serve();
  };

  const takePlace = (signal: AbortSignal | null): Promise<Place> | Place => {
    if (http1 !== null && clock.monotonicMs() < http1.untilMs) return { kind: 'http1', client: http1.client };
    const slot = waiting.size === 0 ? (live?.takeSlot() ?? null) : null;
    if (slot !== null) return { kind: 'slot', slot };
    if (waiting.size >= waitingMax)
      return { kind: 'busy', detail: 'too many requests wait for this service' };
    return waitForPlace(signal);
  };

  const waitForPlace = (signal: AbortSignal | null): Promise<Place> =>
    new Promise((resolve, reject) => {
      const stopWaiting = () => {
        waiting.delete(waiter);
        cancelTimer();
        unwatch();
      };
      const waiter: Waiter = {
        end: (place) => {
          stopWaiting();
          resolve(place);
        },
      };
      const cancelTimer = clock.after(waitMsMax, () => {
        waiter.end({ kind: 'busy', detail: `no place within ${waitMsMax / 1_000} seconds` });
      });
      const unwatch =
        signal === null
          ? () => undefined
          : abortWatch.watch(signal, () => {
              stopWaiting();
              reject(abortReason(signal));
            });
      waiting.add(waiter);
      serve();
    });

  const exchange = async (request: HttpRequest, permit: HttpPermit): Promise<HttpAnswer> => {
    permit.signal.throwIfAborted();
    const place = await takePlace(permit.signal);
    if (place.kind === 'http1') return exchangeOverHttp1(place.client, request, permit);
    if (place.kind !== 'slot') return place;
    const { slot } = place;
    try {
      await permit.confirm();
    } catch (error) {
      slot.free();
      throw error;
    }
    if (slot.isUsable()) return slot.send(request);
    slot.free();
    return sendElsewhere(request);
  };

  /** The connection was lost while the confirmation was written, with nothing sent: another one will do. */
  const sendElsewhere = async (request: HttpRequest): Promise<HttpAnswer> => {
    const second = await takePlace(null);
    switch (second.kind) {
      case 'slot':
        return second.slot.send(request);
      case 'http1':
        return exchangeOverHttp1(second.client, request, null);
      case 'unreachable':
      case 'busy':
        return { kind: 'unprocessed', detail: second.detail };
    }
  };

  return {
    exchange: (request, permit) => underWay.run(() => exchange(request, permit)),
    renew: () => {
      live?.drain();
    },
    probe: () =>
      underWay.run(async () => {
        const place = await takePlace(null);
        switch (place.kind) {
          case 'slot':
            place.slot.free();
            return null;
          case 'http1':
            return null;
          case 'unreachable':
          case 'busy':
            return place.detail;
        }
      }),
    close: async () => {
      await underWay.end();
      closing.abort();
      await connecting;
      http1?.client.destroy();
    },
  };
}

/** `permit` is null for what is confirmed already. */
async function exchangeOverHttp1(
  client: Http1Client,
  { method, path, headers, body }: HttpRequest,
  permit: HttpPermit | null,
): Promise<HttpAnswer> {
  const call = { method, path, headers: { ...headers, 'content-length': `${body.length}` } };
  const opening = await client.open(call, permit?.signal);
  if (opening.kind !== 'open') {
    const { detail } = opening;
    if (permit === null) return { kind: 'unprocessed', detail };
    return { kind: opening.kind === 'busy' ? 'busy' : 'unreachable', detail };
  }
  try {
    await permit?.confirm();
  } catch (error) {
    opening.exchange.abandon();
    throw error;
  }
  if (opening.exchange.isOpen()) return opening.exchange.complete(body);
  const second = await client.open(call);
  return second.kind === 'open'
    ? second.exchange.complete(body)
    : { kind: 'unprocessed', detail: second.detail };
}
