/** A service of HTTP/2 on loopback, under the certificate of the tests: every request is answered as the test says. */
import { EventEmitter, once } from 'node:events';
import {
  constants,
  createSecureServer,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { certificateForTests, privateKeyForTests } from './certificate-for-tests.ts';

export type PeerRequest = {
  method: string;
  path: string;
  headers: IncomingHttpHeaders;
  body: Buffer;
  /** Which connection it came on, counted from 1. */
  connection: number;
};

export type PeerAnswer =
  | { status: number; headers?: Readonly<Record<string, string>>; body?: string | object }
  /** Says that it was not processed (REFUSED_STREAM). Over HTTP/1.1 the connection is cut. */
  | 'refuse'
  /** Ends the stream with an error (INTERNAL_ERROR). Over HTTP/1.1 the connection is cut. */
  | 'reset'
  /** Closes the connection, with everything on it. */
  | 'cut'
  | 'silence';

export type Http2Peer = {
  origin: string;
  /** As settings name it: `127.0.0.1:41873`. */
  host: string;
  /** PEM; programs trust it by NODE_EXTRA_CA_CERTS. */
  certificate: string;
  /** All that came, whatever the answer was. */
  requests: readonly PeerRequest[];
  connections: () => number;
  /** How requests are answered from now on; before the first call, with an empty 200. */
  answerBy: (answer: (request: PeerRequest) => PeerAnswer | Promise<PeerAnswer>) => void;
  /** Resolves with the next request, before it is answered. */
  nextRequest: () => Promise<PeerRequest>;
  /** How many requests may be under way on each connection from now on. */
  allowStreams: (count: number) => void;
  /** Lets what is under way on every connection end, and takes nothing more on it (GOAWAY without an error). */
  goaway: () => void;
  /** Closes all connections. */
  cut: () => void;
  stop: () => Promise<void>;
};

export async function startHttp2Peer({
  port = 0,
  // More than the client opens: Node counts a stream that has ended for a moment longer than the client does.
  streamsMax = 1_100,
  speaks = 'h2',
}: { port?: number; streamsMax?: number; speaks?: 'h2' | 'http/1.1' } = {}): Promise<Http2Peer> {
  const events = new EventEmitter();
  const requests: PeerRequest[] = [];
  const sockets = new Map<Socket, number>();
  const sessions = new Set<ServerHttp2Session>();
  let connections = 0;
  let answer: (request: PeerRequest) => PeerAnswer | Promise<PeerAnswer> = () => ({ status: 200 });

  const receive = (request: PeerRequest) => {
    requests.push(request);
    events.emit('request', request);
    return answer(request);
  };
  const tls = { cert: certificateForTests, key: privateKeyForTests };
  const server =
    speaks === 'h2'
      ? createSecureServer({ ...tls, settings: { maxConcurrentStreams: streamsMax } })
      : createServer(tls);
  server.on('secureConnection', (socket: Socket) => {
    connections += 1;
    sockets.set(socket, connections);
    socket.on('error', () => undefined);
    socket.once('close', () => sockets.delete(socket));
  });
  server.on('session', (session: ServerHttp2Session) => {
    // The session is there before its `secureConnection`.
    const connection = connections + 1;
    sessions.add(session);
    session.on('error', () => undefined);
    session.once('close', () => sessions.delete(session));
    session.on('stream', (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => {
      stream.on('error', () => undefined);
      void readAll(stream).then(async (body) => {
        if (body === null) return;
        const method = headers[':method'] ?? '';
        const path = headers[':path'] ?? '';
        carryOut(stream, await receive({ method, path, headers, body, connection }));
      });
    });
  });
  if (speaks === 'http/1.1')
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      const connection = sockets.get(request.socket) ?? 0;
      void readAll(request).then(async (body) => {
        if (body === null) return;
        const { method = '', url: path = '', headers } = request;
        const chosen = await receive({ method, path, headers, body, connection });
        if (chosen === 'silence') return;
        if (typeof chosen === 'string') request.socket.destroy();
        else response.writeHead(chosen.status, chosen.headers).end(encode(chosen.body));
      });
    });
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const cut = () => {
    for (const session of sessions) session.destroy();
    for (const socket of sockets.keys()) socket.destroy();
  };
  return {
    origin: `https://${host}`,
    host,
    certificate: certificateForTests,
    requests,
    connections: () => connections,
    answerBy: (next) => {
      answer = next;
    },
    nextRequest: async () => ((await once(events, 'request')) as [PeerRequest])[0],
    allowStreams: (count) => {
      for (const session of sessions) session.settings({ maxConcurrentStreams: count });
    },
    goaway: () => {
      for (const session of sessions) session.close();
    },
    cut,
    stop: async () => {
      // Its callback is not waited for: where both sides end a session at the same time, Node was seen never to call it.
      server.close();
      cut();
      server.unref();
    },
  };
}

function carryOut(stream: ServerHttp2Stream, answer: PeerAnswer): void {
  if (stream.destroyed) return;
  switch (answer) {
    case 'silence':
      return;
    case 'refuse':
      stream.close(constants.NGHTTP2_REFUSED_STREAM);
      return;
    case 'reset':
      stream.close(constants.NGHTTP2_INTERNAL_ERROR);
      return;
    case 'cut':
      stream.session?.destroy();
      return;
    default:
      stream.respond({ ':status': answer.status, ...answer.headers });
      stream.end(encode(answer.body));
  }
}

function encode(body: string | object = ''): string {
  return typeof body === 'string' ? body : JSON.stringify(body);
}

async function readAll(stream: AsyncIterable<Buffer>): Promise<Buffer | null> {
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of stream) chunks.push(chunk);
    return Buffer.concat(chunks);
  } catch {
    return null; // The client went away.
  }
}
