import { Agent as HttpAgent, request as httpRequest } from 'node:http';
import type { ClientRequest, IncomingMessage, RequestOptions } from 'node:http';
import type { LookupFunction } from 'node:net';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import type { Clock } from '../../platform/clock.ts';
import { abortReason, createAbortWatch } from '../abort-watch.ts';
import type { AbortWatch } from '../abort-watch.ts';

/**
 * One HTTP request and its answer, in two steps: first a connection, and only then, when the caller says so, the
 * request. What goes wrong in the first step went wrong before anything was sent; from the first octet of the second
 * on, only a whole answer can tell whether the far side has acted.
 *
 * Node's own client, because it writes nothing before `end`: `fetch` and undici have no place between the connection
 * and the request at which to wait for something, and keep time-outs by a clock of their own.
 */

export type Call = {
  method: 'GET' | 'POST' | 'DELETE';
  path: string;
  headers: Readonly<Record<string, string>>;
};

/** By their names in lower case. */
export type AnswerHeaders = Readonly<Record<string, string | undefined>>;

/** `body` is null if it did not arrive as a whole, or is larger than any that is expected. */
export type Answer =
  | {
      kind: 'answered';
      status: number;
      headers: AnswerHeaders;
      body: string | null;
    }
  /** The request was written, at least in part. */
  | { kind: 'unanswered'; detail: string };

/** A connection with a request that is not written yet. */
export type OpenRequest = {
  /** False once the connection was lost. */
  isOpen: () => boolean;
  /** Writes the request, and resolves in every case: after 40 seconds at most. */
  complete: (body: string | Buffer) => Promise<Answer>;
  /** Closes the connection; nothing was sent. */
  abandon: () => void;
};

export type Opening =
  | { kind: 'open'; exchange: OpenRequest }
  | { kind: 'failed'; detail: string }
  /** Other requests had all the connections for as long as this one waited. */
  | { kind: 'busy'; detail: string };

export type Client = {
  /** Rejects only with the reason of the signal; without one, never. */
  open: (call: Call, signal?: AbortSignal) => Promise<Opening>;
  /** Closes all connections, also those under way. */
  destroy: () => void;
};

/** Waiting for a free connection or a new one, with its name looked up and TLS spoken. */
const connectionTimeoutMs = 15_000;

/** Until the head of the answer. Shorter makes messages uncertain while the far side is just slow; a second is usual. */
const answerTimeoutMs = 30_000;

/** From the head of the answer to its last octet. */
const bodyTimeoutMs = 10_000;

/** An answer has about a kilobyte. */
const bodyBytesMax = 65_536;

/**
 * An idle connection is closed so early that the far side will hardly have closed it: a request that is sent while the
 * far side closes is lost without a response. Shorter costs more handshakes.
 */
const idleTimeoutMs = 4_000;

export type ClientOptions = {
  clock: Clock;
  origin: string;
  connectionsMax: number;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities: string | null;
  /** Looks up the host; the machine's own way if it is left out. */
  lookup?: LookupFunction;
};

export function createClient({ clock, origin, connectionsMax, authorities, lookup }: ClientOptions): Client {
  const { protocol, hostname, port } = new URL(origin);
  const limits = {
    keepAlive: true,
    maxSockets: connectionsMax,
    maxFreeSockets: connectionsMax,
    timeout: idleTimeoutMs,
  };
  const isTls = protocol === 'https:';
  const agent = isTls
    ? new HttpsAgent({
        ...limits,
        minVersion: 'TLSv1.2',
        ...(authorities === null ? {} : { ca: authorities }),
      })
    : new HttpAgent(limits);
  const createRequest = (call: Call): ClientRequest => {
    const options: RequestOptions = {
      agent,
      host: hostname.replace(/^\[|\]$/g, ''),
      port,
      ...call,
      ...(lookup && { lookup }),
    };
    return isTls ? httpsRequest(options) : httpRequest(options);
  };
  const abortWatch = createAbortWatch();
  return {
    open: (call, signal) => openExchange({ clock, abortWatch, isTls }, createRequest(call), signal),
    destroy: () => {
      agent.destroy();
    },
  };
}

type OpeningTools = { clock: Clock; abortWatch: AbortWatch; isTls: boolean };

function openExchange(
  { clock, abortWatch, isTls }: OpeningTools,
  request: ClientRequest,
  signal: AbortSignal | undefined,
): Promise<Opening> {
  return new Promise((resolve, reject) => {
    const stopWaiting = () => {
      cancelTimer();
      unwatch();
    };
    const end = (opening: Exclude<Opening, { kind: 'open' }>) => {
      stopWaiting();
      dropRequest(request, watch);
      resolve(opening);
    };
    const fail = (detail: string) => {
      end({ kind: 'failed', detail });
    };
    const succeed = () => {
      stopWaiting();
      resolve({ kind: 'open', exchange: createExchange(clock, request, watch) });
    };
    const watch: RequestWatch = {
      onFailure: fail,
      onResponse: () => {
        fail('an answer before the request');
      },
    };
    const cancelTimer = clock.after(connectionTimeoutMs, () => {
      const detail = `no connection within ${connectionTimeoutMs / 1000} seconds`;
      // The agent gives a request its socket before that is connected, and one that waits for its turn has none.
      if (request.socket === null) end({ kind: 'busy', detail });
      else fail(detail);
    });
    const onAbort = (aborted: AbortSignal) => {
      reject(abortReason(aborted));
      fail('aborted');
    };
    const unwatch =
      signal === undefined
        ? () => undefined
        : abortWatch.watch(signal, () => {
            onAbort(signal);
          });
    request.on('error', (error) => {
      watch.onFailure(describe(error));
    });
    request.on('response', (response) => {
      watch.onResponse(response);
    });
    // We never ask to switch protocols. Without a listener, Node closes the connection without an event.
    request.on('upgrade', (_response, socket) => {
      socket.destroy();
      watch.onFailure('an unexpected change of protocols');
    });
    request.once('socket', (socket) => {
      if (socket.connecting) socket.once(isTls ? 'secureConnect' : 'connect', succeed);
      else succeed();
    });
  });
}

/** Gets what becomes of the request: first the opening, then the holder of the exchange, then the reader. */
type RequestWatch = { onFailure: (detail: string) => void; onResponse: (response: IncomingMessage) => void };

/** The rest does not matter any more: the request and its connection are destroyed. */
function dropRequest(request: ClientRequest, watch: RequestWatch): void {
  watch.onFailure = () => undefined;
  watch.onResponse = () => undefined;
  request.destroy();
}

function createExchange(clock: Clock, request: ClientRequest, watch: RequestWatch): OpenRequest {
  let isOpen = true;
  const lose = () => {
    isOpen = false;
    dropRequest(request, watch);
  };
  watch.onFailure = lose;
  // What comes before the request is no answer to it: a proxy that says 408 to a connection it finds idle, say.
  watch.onResponse = lose;
  return {
    isOpen: () => isOpen && request.socket?.destroyed === false,
    complete: (body) => readAnswer(clock, request, watch, body),
    abandon: lose,
  };
}

function readAnswer(
  clock: Clock,
  request: ClientRequest,
  watch: RequestWatch,
  body: string | Buffer,
): Promise<Answer> {
  return new Promise((resolve) => {
    let cancelTimer = clock.after(answerTimeoutMs, () => {
      giveUp({ kind: 'unanswered', detail: `no answer within ${answerTimeoutMs / 1000} seconds` });
    });
    const giveUp = (answer: Answer) => {
      cancelTimer();
      dropRequest(request, watch);
      resolve(answer);
    };
    watch.onFailure = (detail) => {
      giveUp({ kind: 'unanswered', detail });
    };
    watch.onResponse = (response) => {
      cancelTimer();
      const head = headOf(response);
      cancelTimer = clock.after(bodyTimeoutMs, () => {
        giveUp({ ...head, body: null });
      });
      readBody(response, (text) => {
        if (text === null) {
          giveUp({ ...head, body: null });
          return;
        }
        // The connection is kept for others.
        cancelTimer();
        watch.onFailure = () => undefined;
        resolve({ ...head, body: text });
      });
    };
    request.end(body);
  });
}

function headOf(response: IncomingMessage) {
  return {
    kind: 'answered',
    status: response.statusCode ?? 0,
    // Node makes a list of `set-cookie` alone, which nobody asks for.
    headers: response.headers as AnswerHeaders,
  } as const;
}

/** Calls back once: with the body, or with null as soon as it is clear that there will be none. */
function readBody(response: IncomingMessage, onBody: (text: string | null) => void): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  let isOver = false;
  const end = (text: string | null) => {
    // What comes after the body concerns a connection that may serve another request by now.
    if (isOver) return;
    isOver = true;
    onBody(text);
  };
  response.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > bodyBytesMax) end(null);
    else chunks.push(chunk);
  });
  // Only after a whole body; one that breaks off ends with an error.
  response.on('end', () => {
    end(Buffer.concat(chunks).toString('utf8'));
  });
  response.on('error', () => {
    end(null);
  });
  response.on('close', () => {
    end(null);
  });
}

function describe(error: Error): string {
  const code = 'code' in error && typeof error.code === 'string' ? error.code : null;
  return code ?? error.message;
}
