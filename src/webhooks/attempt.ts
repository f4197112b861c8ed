import type { Client } from 'undici';
import { type Clock, within } from '../platform/clock.ts';
import {
  type Destination,
  findDestinationAddresses,
  type GuardTools,
  readDestination,
} from '../platform/outbound/destination.ts';
import { parseRetryAfter } from '../platform/retry-after.ts';
import { type Connection, type Connections, createConnections, type RequestToSend } from './connections.ts';
import { type Answered, exchange } from './exchange.ts';
import { describeFailure, describeStatus, describeTimeout } from './failure-words.ts';
import { composeHeaders } from './signature.ts';

/**
 * One attempt to deliver a webhook to a receiver that may be anything:
 *
 * 1. The URL is read and its name looked up, and each address is judged (platform/outbound): anew for each attempt, since
 *    whoever has the name may have changed it.
 * 2. A connection to one of these addresses is opened, or one is taken that was kept.
 * 3. The signed request is sent, and the head of its answer is waited for.
 * 4. The beginning of the body is read for people, for a moment.
 *
 * The head decides. A 2xx is a success even if the connection breaks off after it: the receiver has said that it has the
 * event, and the body says nothing to us. All of 1 to 3 takes 15 seconds at most. Redirects are not followed, and nothing is
 * unpacked.
 *
 * What is sent on a connection that was kept may meet a receiver that closes it at that moment. It is sent once more on a
 * new one: a receiver knows by the id what it has had.
 */

export type WebhookRequest = {
  endpointId: string;
  url: string;
  /** The endpoint's own, which replace none of ours. */
  headers: Readonly<Record<string, string>>;
  /** Of the event: the same at every attempt. */
  id: string;
  /** JSON, in UTF-8. */
  body: Buffer;
  /** All that are in use, one at least. */
  secrets: readonly string[];
};

/** `ms`: until the head of the answer, or until it was given up. `answer`: its beginning, at most 1,024 octets. */
export type WebhookAttempt =
  | { kind: 'delivered'; status: number; ms: number; answer: string }
  | {
      /** `gone`: the endpoint answered 410, and wants no more webhooks. */
      kind: 'failed' | 'gone';
      /** Null if there was no answer. */
      status: number | null;
      ms: number;
      answer: string;
      /** Why, in a sentence for whoever runs the receiver. */
      message: string;
      /** What the receiver asks for, without a limit; null if it asks for nothing. */
      retryAfterMs: number | null;
    }
  /** No attempt: it was under way when the sender was closed, and may have arrived. */
  | { kind: 'put_off' };

export type WebhookSender = {
  /**
   * Never rejects for what a receiver does. Whoever calls it limits how many attempts there are at once: a receiver that
   * hangs takes each of them for a quarter of a minute.
   */
  attempt: (request: WebhookRequest) => Promise<WebhookAttempt>;
  /** Closes every connection. What is under way is put off. */
  close: () => void;
};

export type WebhookSenderTools = GuardTools & {
  clock: Clock;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string | null;
};

/** Until the head of the answer. Receivers are told to answer first and to work then. */
const attemptMs = 15_000;

/** Loads its client of HTTP, which takes a tenth of a second. */
export async function createWebhookSender(tools: WebhookSenderTools): Promise<WebhookSender> {
  // By its default alone: bundled, a package in CommonJS has no names of its own.
  const { default: undici } = await import('undici');
  return openSender(tools, undici.Client);
}

function openSender(tools: WebhookSenderTools, ClientOfConnections: typeof Client): WebhookSender {
  const { clock, authorities = null } = tools;
  const connections = createConnections({ clock, Client: ClientOfConnections, authorities });
  const shared: Shared = { ...tools, connections, isClosed: false };

  return {
    attempt: async (request) => (shared.isClosed ? { kind: 'put_off' } : carryOut(shared, request)),
    close: () => {
      shared.isClosed = true;
      connections.close();
    },
  };
}

type Shared = GuardTools & { clock: Clock; connections: Connections; isClosed: boolean };

async function carryOut(shared: Shared, request: WebhookRequest): Promise<WebhookAttempt> {
  const { clock, allowed } = shared;
  const startedAtMs = clock.monotonicMs();
  const elapsedMs = () => Math.round(clock.monotonicMs() - startedAtMs);
  const fail = (message: string): WebhookAttempt => ({
    kind: 'failed',
    status: null,
    ms: elapsedMs(),
    answer: '',
    message,
    retryAfterMs: null,
  });

  const destination = readDestination(request.url, allowed);
  if ('problem' in destination) return fail(`The URL ${destination.problem}.`);
  const addresses = await within(clock, attemptMs, findDestinationAddresses(shared, destination), null);
  if (shared.isClosed) return { kind: 'put_off' };
  if (addresses === null) return fail(describeTimeout('lookup', destination));
  if ('reason' in addresses) return fail(addresses.reason);

  const { connections } = shared;
  const toSend = writeRequest(clock, request, destination);
  const wish = { endpointId: request.endpointId, destination, addresses };
  const exchangeOn = (connection: Connection) =>
    exchange(shared, { connection, toSend, startedAtMs, limitMs: attemptMs });
  const kept = connections.takeKept(wish);
  let exchanged = await exchangeOn(kept ?? connections.open(wish));
  if (exchanged.kind === 'broken' && kept !== null && !shared.isClosed)
    exchanged = await exchangeOn(connections.open(wish));
  if (shared.isClosed && exchanged.kind !== 'answered') return { kind: 'put_off' };

  switch (exchanged.kind) {
    case 'answered':
      return concludeAnswer(clock, exchanged);
    case 'silent':
      return fail(describeTimeout(exchanged.phase, destination));
    case 'broken':
      return fail(describeFailure(exchanged.error, exchanged.isConnected, destination));
    default:
      return exchanged satisfies never;
  }
}

function writeRequest(clock: Clock, request: WebhookRequest, { path }: Destination): RequestToSend {
  const { headers, id, body, secrets } = request;
  const own = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value] as const);
  return {
    path,
    body,
    headers: {
      ...Object.fromEntries(own),
      ...composeHeaders({ id, body, atMs: clock.nowMs() }, secrets),
    },
  };
}

function concludeAnswer(clock: Clock, { status, ms, answer, retryAfter }: Answered): WebhookAttempt {
  if (status >= 200 && status < 300) return { kind: 'delivered', status, ms, answer };
  return {
    kind: status === 410 ? 'gone' : 'failed',
    status,
    ms,
    answer,
    message: describeStatus(status),
    retryAfterMs: retryAfter === null ? null : parseRetryAfter(retryAfter, clock.nowMs()),
  };
}
