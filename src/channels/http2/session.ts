import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from 'node:http2';
import { isIP, type LookupFunction } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import type { Clock } from '../../platform/clock.ts';
import type { AnswerHeaders } from '../http1/exchange.ts';

/**
 * One connection of HTTP/2 (RFC 9113), for requests of which it must be known what became of them. A session is in use
 * until the far side says GOAWAY, or it fails. Then it takes no more requests, and those under way end one by one:
 *
 * - **answered**: the head of an answer came.
 * - **unprocessed**: the far side cannot have acted. It refused the stream (§8.7), its GOAWAY names a last stream below
 *   this one (§6.8), or the request never left this process.
 * - **unanswered**: everything else, a connection that was cut above all. It may have been processed.
 *
 * Node closes streams of a lost connection without any error, some even with an `end` as if the answer had come. So
 * nothing is decided before `close`, and then by whether there was a head.
 */

export type HttpRequest = {
  method: 'GET' | 'POST';
  /** With its query. */
  path: string;
  /** In lower case. */
  headers: Readonly<Record<string, string>>;
  body: Buffer;
};

export type SentAnswer =
  | {
      kind: 'answered';
      status: number;
      headers: AnswerHeaders;
      /** Null if it did not arrive as a whole, or is larger than any that is expected. */
      body: string | null;
    }
  | { kind: 'unprocessed'; detail: string }
  | { kind: 'unanswered'; detail: string };

/** A place for one request on a session, held while its caller gets ready. */
export type Slot = {
  /** False once the session takes no more requests. */
  isUsable: () => boolean;
  /** Writes the request and gives the place back when it is over; never rejects, and ends after 40 seconds at most. */
  send: (request: HttpRequest) => Promise<SentAnswer>;
  /** Gives the place back unused. */
  free: () => void;
};

export type Session = {
  isUsable: () => boolean;
  /** Null if there is no room at the moment; `onRoom` tells when to ask again. */
  takeSlot: () => Slot | null;
  /** Takes no more requests; ends once those under way have. */
  drain: () => void;
};

export type SessionEvents = {
  /** There may be room for another request. */
  onRoom: () => void;
  /** It takes no more requests. `isFault`: the far side ended it without ever having answered one. */
  onOutOfUse: (isFault: boolean) => void;
};

export type SessionOptions = {
  clock: Clock;
  /** https. */
  url: URL;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities: string | null;
  lookup: LookupFunction | undefined;
  /** However many streams the far side allows. */
  streamsMax: number;
  /** Closes the connection, whatever it is doing. */
  signal: AbortSignal;
};

export type Connected =
  | { kind: 'session'; session: Session }
  /** The far side speaks HTTP/1.1 alone. */
  | { kind: 'http1' }
  | { kind: 'failed'; detail: string };

/** Name, TCP, TLS and the first SETTINGS together. Services answer in well under a second. */
const connectionTimeoutMs = 15_000;

/** Until the head of an answer. Shorter makes messages uncertain while the far side is just slow. */
const answerTimeoutMs = 30_000;

/** From the head of an answer to its last octet. */
const bodyTimeoutMs = 10_000;

const bodyBytesMax = 65_536;

/** Longer without a word, and a session is asked whether it is still there: firewalls forget quiet connections. */
const quietMsMax = 60_000;

const pingTimeoutMs = 5_000;

/** A request has 4 kB at most, and a thousand of them may wait for the far side's window. In MB. */
const sessionMemoryMax = 64;

/** Never rejects. */
export async function connectSession(options: SessionOptions, events: SessionEvents): Promise<Connected> {
  const opened = await openSocket(options);
  if (opened.kind === 'failed') return opened;
  const { socket } = opened;
  if (socket.alpnProtocol !== 'h2') {
    socket.destroy();
    return { kind: 'http1' };
  }
  return startSession(options, events, socket);
}

type OpenedSocket = { kind: 'open'; socket: TLSSocket } | { kind: 'failed'; detail: string };

function openSocket({ clock, url, authorities, lookup, signal }: SessionOptions): Promise<OpenedSocket> {
  return new Promise((resolve) => {
    const host = url.hostname.replace(/^\[|\]$/g, '');
    const socket = connectTls({
      host,
      port: url.port === '' ? 443 : Number(url.port),
      // RFC 6066 §3: an address is no server name.
      ...(isIP(host) === 0 && { servername: host }),
      ALPNProtocols: ['h2', 'http/1.1'],
      minVersion: 'TLSv1.2',
      ...(authorities !== null && { ca: authorities }),
      ...(lookup && { lookup }),
    });
    const end = (opened: OpenedSocket) => {
      cancelTimer();
      signal.removeEventListener('abort', abort);
      if (opened.kind === 'failed') socket.destroy();
      resolve(opened);
    };
    const abort = () => {
      end({ kind: 'failed', detail: 'the client was closed' });
    };
    signal.addEventListener('abort', abort);
    const cancelTimer = clock.after(connectionTimeoutMs, () => {
      end({ kind: 'failed', detail: `no connection within ${connectionTimeoutMs / 1_000} seconds` });
    });
    socket.once('secureConnect', () => {
      end({ kind: 'open', socket });
    });
    socket.on('error', (error) => {
      end({ kind: 'failed', detail: describeError(error) });
    });
    socket.once('close', () => {
      end({ kind: 'failed', detail: 'the connection was closed before it was made' });
    });
  });
}

/** What all requests on a session share. */
type Shared = {
  clock: Clock;
  authority: string;
  http2: ClientHttp2Session;
  /** Of the GOAWAY with the lowest one; infinite without any. */
  lastStreamId: number;
  /** Why it takes no more requests. */
  end: string | null;
  heardAtMs: number;
  hasAnswered: boolean;
  /** Asks whether the far side is still there, and ends the session if it is not. */
  verify: () => void;
};

/** Waits for the first SETTINGS, which say how many streams there may be (§3.4). */
function startSession(
  { clock, url, streamsMax, signal }: SessionOptions,
  { onRoom, onOutOfUse }: SessionEvents,
  socket: TLSSocket,
): Promise<Connected> {
  const http2 = connect(url, {
    createConnection: () => socket,
    settings: { enablePush: false },
    maxSessionMemory: sessionMemoryMax,
  });
  let slotsTaken = 0;
  let isVerifying = false;
  const shared: Shared = {
    clock,
    authority: url.host,
    http2,
    lastStreamId: Infinity,
    end: null,
    heardAtMs: clock.monotonicMs(),
    hasAnswered: false,
    verify: () => {
      if (isVerifying || shared.end !== null) return;
      isVerifying = true;
      const fail = () => {
        http2.destroy();
        leaveUse('no answer to a PING');
      };
      const cancelTimer = clock.after(pingTimeoutMs, fail);
      const isSent = http2.ping((error) => {
        cancelTimer();
        isVerifying = false;
        if (error !== null || shared.end !== null) return;
        shared.heardAtMs = clock.monotonicMs();
        onRoom();
      });
      if (!isSent) fail();
    },
  };
  const leaveUse = (why: string, isOurs = false) => {
    if (shared.end !== null) return;
    shared.end = why;
    onOutOfUse(!isOurs && !shared.hasAnswered);
  };
  const limit = () => Math.min(streamsMax, http2.remoteSettings.maxConcurrentStreams ?? streamsMax);
  const isUsable = () => shared.end === null && !http2.closed && !http2.destroyed;

  const session: Session = {
    isUsable,
    takeSlot: () => {
      if (!isUsable() || isVerifying) return null;
      if (slotsTaken === 0 && clock.monotonicMs() - shared.heardAtMs > quietMsMax) {
        shared.verify();
        return null;
      }
      if (slotsTaken >= limit()) return null;
      slotsTaken += 1;
      return createSlot(shared, isUsable, () => {
        slotsTaken -= 1;
        if (isUsable()) onRoom();
      });
    },
    drain: () => {
      leaveUse('it was replaced', true);
      http2.close();
    },
  };

  return new Promise((resolve) => {
    const fail = (detail: string) => {
      cancelTimer();
      http2.destroy();
      resolve({ kind: 'failed', detail });
    };
    const abort = () => {
      leaveUse('the client was closed', true);
      fail('the client was closed');
    };
    signal.addEventListener('abort', abort);
    const cancelTimer = clock.after(connectionTimeoutMs, () => {
      fail(`no SETTINGS within ${connectionTimeoutMs / 1_000} seconds`);
    });
    http2.on('remoteSettings', () => {
      cancelTimer();
      shared.heardAtMs = clock.monotonicMs();
      resolve({ kind: 'session', session });
      if (isUsable()) onRoom();
    });
    http2.on('goaway', (code: number, lastStreamId: number, debugData?: Buffer) => {
      // A first one may name all streams, so that nothing is lost, and a second one the true last (§6.8).
      shared.lastStreamId = Math.min(shared.lastStreamId, lastStreamId);
      leaveUse(`GOAWAY ${code} ${debugData?.toString('utf8', 0, 200) ?? ''}`.trim());
    });
    http2.on('error', (error) => {
      leaveUse(describeError(error));
      fail(describeError(error));
    });
    http2.on('frameError', (_type, code) => {
      leaveUse(`a frame could not be sent: ${code}`);
      http2.close();
    });
    http2.on('close', () => {
      signal.removeEventListener('abort', abort);
      leaveUse('the connection was closed');
      fail('the connection was closed');
    });
  });
}

function createSlot(shared: Shared, isUsable: () => boolean, onFree: () => void): Slot {
  let isFree = false;
  const free = () => {
    if (isFree) return;
    isFree = true;
    onFree();
  };
  return { isUsable, send: (request) => sendRequest(shared, request, free), free };
}

function sendRequest(shared: Shared, request: HttpRequest, onClosed: () => void): Promise<SentAnswer> {
  const { clock, http2 } = shared;
  return new Promise((resolve) => {
    let stream: ClientHttp2Stream;
    try {
      stream = http2.request(headersOf(shared, request), { endStream: request.body.length === 0 });
    } catch (error) {
      // By a GOAWAY or the end of the connection, even where no event has told of it.
      resolve({ kind: 'unprocessed', detail: describeError(error) });
      onClosed();
      return;
    }
    let head: { status: number; headers: AnswerHeaders } | null = null;
    const body = collectBody(stream);
    let failure: string | null = null;
    const giveUp = (detail: string) => {
      failure = detail;
      stream.close(constants.NGHTTP2_CANCEL);
      end();
      shared.verify();
    };
    let cancelTimer = clock.after(answerTimeoutMs, () => {
      giveUp(`no answer within ${answerTimeoutMs / 1_000} seconds`);
    });
    const end = () => {
      cancelTimer();
      if (head !== null) resolve({ kind: 'answered', ...head, body: body() });
      else resolve(endWithoutHead(shared, stream, failure));
    };
    stream.on('response', (headers) => {
      cancelTimer();
      shared.heardAtMs = clock.monotonicMs();
      shared.hasAnswered = true;
      // Node makes a list of `set-cookie` alone, which nobody asks for.
      head = { status: headers[':status'] ?? 0, headers: headers as AnswerHeaders };
      cancelTimer = clock.after(bodyTimeoutMs, () => {
        giveUp('the answer broke off');
      });
    });
    stream.on('error', (error) => {
      failure ??= describeError(error);
    });
    stream.on('close', () => {
      end();
      onClosed();
    });
    if (request.body.length > 0) stream.end(request.body);
  });
}

function headersOf({ authority }: Shared, { method, path, headers, body }: HttpRequest) {
  return {
    ':method': method,
    ':scheme': 'https',
    ':authority': authority,
    ':path': path,
    ...headers,
    ...(body.length > 0 && { 'content-length': `${body.length}` }),
  };
}

/** Returns what is asked when the stream is over: the whole body, or null if it is not whole. */
function collectBody(stream: ClientHttp2Stream): () => string | null {
  const chunks: Buffer[] = [];
  let bytes = 0;
  let hasEnded = false;
  stream.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes <= bodyBytesMax) chunks.push(chunk);
    else stream.close(constants.NGHTTP2_CANCEL);
  });
  stream.on('end', () => {
    hasEnded = true;
  });
  return () => {
    const isWhole = hasEnded && bytes <= bodyBytesMax && stream.rstCode === constants.NGHTTP2_NO_ERROR;
    return isWhole ? Buffer.concat(chunks).toString('utf8') : null;
  };
}

function endWithoutHead(shared: Shared, stream: ClientHttp2Stream, failure: string | null): SentAnswer {
  const detail = [failure ?? 'the stream was closed without an answer', shared.end]
    .filter((part) => part !== null)
    .join('; ');
  const isUnprocessed =
    stream.rstCode === constants.NGHTTP2_REFUSED_STREAM ||
    stream.id === undefined ||
    stream.id > shared.lastStreamId;
  return { kind: isUnprocessed ? 'unprocessed' : 'unanswered', detail };
}

function describeError(error: unknown): string {
  if (!(error instanceof Error)) return 'an error without words';
  const code = 'code' in error && typeof error.code === 'string' ? error.code : null;
  return code ?? error.message;
}
