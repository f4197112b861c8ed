/** A receiver of webhooks on loopback, which answers each with whatever octets a test says, or with none. */
import { EventEmitter, once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import { privateKeyForTests } from './certificate-for-tests.ts';

export type ReceivedWebhook = {
  method: string;
  path: string;
  /** By their names in lower case. */
  headers: Readonly<Record<string, string>>;
  body: Buffer;
  /** Which connection it came on, counted from 1. */
  connection: number;
  /** To which of this machine's addresses. */
  address: string;
};

export type WebhookReceiver = {
  port: number;
  /** All that came, whatever the answer was. */
  requests: readonly ReceivedWebhook[];
  /** How many there were, and how many are open now. */
  connections: () => { made: number; open: number };
  /** How requests are answered from now on; before the first call with 200 and `ok`. */
  answerBy: (answer: (socket: Socket, request: ReceivedWebhook) => void) => void;
  /** What is done with each connection from now on, before anything is read. */
  onConnect: (greet: (socket: Socket) => void) => void;
  /** Resolves once so many connections were made. */
  whenConnected: (count: number) => Promise<void>;
  /** Resolves once so many requests have come in all. */
  whenReceived: (count: number) => Promise<void>;
  /** Resolves once so many connections or fewer are open. */
  whenOpen: (count: number) => Promise<void>;
  stop: () => Promise<void>;
};

/** An answer with its length. */
export function writeAnswer(status: number | string, body = '', headers: readonly string[] = []): string {
  const lines = [`HTTP/1.1 ${status} X`, ...headers, `content-length: ${Buffer.byteLength(body)}`];
  return `${lines.join('\r\n')}\r\n\r\n${body}`;
}

/** Listens on every address of this machine; by TLS if there is a certificate, which has the key of the tests. */
export async function startWebhookReceiver({
  certificate = null,
}: { certificate?: string | null } = {}): Promise<WebhookReceiver> {
  const events = new EventEmitter().setMaxListeners(0);
  const requests: ReceivedWebhook[] = [];
  const open = new Set<Socket>();
  let made = 0;
  let answer = (socket: Socket, _request: ReceivedWebhook): void => {
    socket.write(writeAnswer(200, 'ok'));
  };

  let greet = (_socket: Socket): void => undefined;

  const serve = (socket: Socket) => {
    const connection = made;
    let received = Buffer.alloc(0);
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      const read = readRequest(received);
      if (read === null) return;
      received = received.subarray(read.bytes);
      const request = { ...read.request, connection, address: socket.localAddress ?? '' };
      requests.push(request);
      answer(socket, request);
      events.emit('change');
    });
  };
  const onConnection = (socket: Socket) => {
    made += 1;
    open.add(socket);
    greet(socket);
    events.emit('change');
    socket.on('error', () => undefined);
    socket.once('close', () => {
      open.delete(socket);
      events.emit('change');
    });
  };
  const server: Server =
    certificate === null
      ? createServer(serve)
      : createTlsServer({ cert: certificate, key: privateKeyForTests }, serve);
  // Of a client that does not trust the certificate.
  server.on('tlsClientError', () => undefined);
  server.prependListener('connection', onConnection);
  server.listen(0, '0.0.0.0');
  await once(server, 'listening');

  const whenTrue = async (isTrue: () => boolean) => {
    // Ends once a change makes it true.
    while (!isTrue()) await once(events, 'change');
  };
  return {
    port: (server.address() as AddressInfo).port, // It listens on a port, not on a path.
    requests,
    connections: () => ({ made, open: open.size }),
    answerBy: (next) => {
      answer = next;
    },
    onConnect: (next) => {
      greet = next;
    },
    whenConnected: (count) => whenTrue(() => made >= count),
    whenReceived: (count) => whenTrue(() => requests.length >= count),
    whenOpen: (count) => whenTrue(() => open.size <= count),
    stop: async () => {
      for (const socket of open) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

type Read = { bytes: number; request: Omit<ReceivedWebhook, 'connection' | 'address'> };

/** Null while it has not come as a whole. */
function readRequest(received: Buffer): Read | null {
  const headBytes = received.indexOf('\r\n\r\n');
  if (headBytes === -1) return null;
  const [first = '', ...lines] = received.subarray(0, headBytes).toString('latin1').split('\r\n');
  const [method = '', path = ''] = first.split(' ');
  const headers = Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf(':');
      return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()];
    }),
  );
  const bytes = headBytes + 4 + Number(headers['content-length'] ?? 0);
  if (received.length < bytes) return null;
  return { bytes, request: { method, path, headers, body: received.subarray(headBytes + 4, bytes) } };
}
