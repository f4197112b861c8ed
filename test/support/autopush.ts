/**
 * A push service as Firefox wants it: the browser keeps a WebSocket to it, over which it gets its endpoints and what is
 * posted to them. It speaks what Mozilla's autopush does, without its limits, and looks at no VAPID token.
 */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import http from 'node:http';
import https from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { certificateForTests, privateKeyForTests } from './certificate-for-tests.ts';

/** What was posted to an endpoint. */
export type PostedPush = { headers: http.IncomingHttpHeaders; body: Buffer };

export type Autopush = {
  /** For the browser's setting `dom.push.serverURL`. */
  url: string;
  /** Of endpoints, as settings name it: `127.0.0.1:41873`. They are https, under the certificate of the tests. */
  endpointHost: string;
  /** Resolves when the browser has said hello: what it is asked for before that, it loses. */
  greeted: Promise<void>;
  posted: readonly PostedPush[];
  /** What the browser says of the next push: 100 for one that it has decrypted and given to its worker. */
  nextAcknowledgement: () => Promise<number>;
  /** Forgets the browser and all its subscriptions, and has it say hello again. */
  forget: () => void;
  stop: () => Promise<void>;
};

/** By its id. Every subscription is one. */
type Channel = string;

export async function startAutopush(): Promise<Autopush> {
  const events = new EventEmitter();
  const posted: PostedPush[] = [];
  const channels = new Set<Channel>();
  const sockets = new Set<Duplex>();
  let uaid = randomBytes(16).toString('hex');
  let origin = '';

  const tls = { cert: certificateForTests, key: privateKeyForTests };
  const endpoints = https.createServer(tls, (request, response) => {
    void request.toArray().then((blocks) => {
      const body = Buffer.concat(blocks as Buffer[]);
      posted.push({ headers: request.headers, body });
      const channelID = request.url?.replace('/wpush/', '') ?? '';
      const version = randomUUID();
      const isKnown = channels.has(channelID);
      if (isKnown) {
        const headers = { encoding: request.headers['content-encoding'] };
        const data = body.toString('base64url');
        send(sockets, { messageType: 'notification', channelID, version, headers, data });
      }
      response.writeHead(isKnown ? 201 : 410, { location: `${origin}/m/${version}`, ttl: '60' }).end();
    });
  });

  const answer = (message: Message): object | null => {
    const { messageType, channelID = '' } = message;
    switch (messageType) {
      case 'hello':
        events.emit('hello');
        return { messageType, uaid, status: 200, use_webpush: true, broadcasts: {} };
      case 'register':
        channels.add(channelID);
        return { messageType, channelID, status: 200, pushEndpoint: `${origin}/wpush/${channelID}` };
      case 'unregister':
        channels.delete(channelID);
        return { messageType, channelID, status: 200 };
      case 'ack':
        for (const { code } of message.updates ?? []) events.emit('ack', code);
        return null;
      default:
        // `broadcast_subscribe`, above all, is for other parts of the browser.
        return null;
    }
  };

  // A browser of tests trusts no certificate of theirs, but takes an address without TLS.
  const server = http.createServer();
  server.on('upgrade', (request: http.IncomingMessage, socket: Duplex) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
    socket.on('error', () => undefined);
    const key = request.headers['sec-websocket-key'] ?? '';
    const accepted = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
    socket.write(
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
        `Sec-WebSocket-Accept: ${accepted}\r\nSec-WebSocket-Protocol: push-notification\r\n\r\n`,
    );
    readFrames(socket, (message) => {
      const answered = answer(message);
      if (answered !== null) send([socket], answered);
    });
  });

  const greeted = once(events, 'hello').then(() => undefined);
  for (const one of [server, endpoints]) {
    one.listen(0, '127.0.0.1');
    await once(one, 'listening');
  }
  const hostOf = (one: typeof server | typeof endpoints) =>
    `127.0.0.1:${(one.address() as AddressInfo).port}`; // It listens.
  const endpointHost = hostOf(endpoints);
  origin = `https://${endpointHost}`;
  return {
    url: `ws://${hostOf(server)}/`,
    endpointHost,
    greeted,
    posted,
    nextAcknowledgement: async () => {
      const [code] = (await once(events, 'ack')) as [number];
      return code;
    },
    forget: () => {
      uaid = randomBytes(16).toString('hex');
      channels.clear();
      for (const socket of sockets) socket.destroy();
    },
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      for (const one of [server, endpoints]) {
        one.close();
        one.closeAllConnections();
        await once(one, 'close');
      }
    },
  };
}

type Message = { messageType: string; channelID?: string; updates?: { code: number }[] };

/** RFC 6455 §5.2: a frame of text, unmasked. */
function send(sockets: Iterable<Duplex>, message: object): void {
  const text = Buffer.from(JSON.stringify(message));
  const header = text.length < 126 ? Buffer.from([0x81, text.length]) : Buffer.from([0x81, 126, 0, 0]);
  if (text.length >= 126) header.writeUInt16BE(text.length, 2);
  for (const socket of sockets) socket.write(Buffer.concat([header, text]));
}

/** Firefox sends masked texts in one frame each, of less than 64 kB; anything else ends the connection. */
function readFrames(socket: Duplex, onMessage: (message: Message) => void): void {
  let kept: Buffer = Buffer.alloc(0);
  socket.on('data', (chunk: Buffer) => {
    kept = Buffer.concat([kept, chunk]);
    // Ends when there is no whole frame left.
    for (;;) {
      if (kept.length < 2) return;
      const isLong = (kept[1]! & 0x7f) === 126;
      const start = isLong ? 8 : 6;
      if (kept.length < start) return;
      const length = isLong ? kept.readUInt16BE(2) : kept[1]! & 0x7f;
      if (kept.length < start + length) return;
      const mask = kept.subarray(start - 4, start);
      const text = Buffer.from(kept.subarray(start, start + length).map((byte, at) => byte ^ mask[at % 4]!));
      if (kept[0] !== 0x81) {
        socket.destroy();
        return;
      }
      kept = kept.subarray(start + length);
      // Every message is one; that it lives is `{}`.
      onMessage({ messageType: 'ping', ...(JSON.parse(text.toString()) as Partial<Message>) });
    }
  });
}
