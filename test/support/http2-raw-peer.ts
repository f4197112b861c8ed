/**
 * A far side of HTTP/2 (RFC 9113) that writes its frames itself, under the certificate of the tests: it may say what no
 * server of Node would, such as a GOAWAY that leaves out streams which it has begun. Requests are not read.
 */
import { EventEmitter, once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer, type TLSSocket } from 'node:tls';
import { certificateForTests, privateKeyForTests } from './certificate-for-tests.ts';

export type RawConnection = {
  /** Resolves once so many requests in all have come whole on it. */
  whenRequested: (count: number) => Promise<void>;
  /** Answers a stream with an empty 200. */
  respond: (streamId: number) => void;
  /** The head of an answer, and nothing more. */
  respondHead: (streamId: number) => void;
  goaway: (lastStreamId: number, code: number) => void;
  reset: (streamId: number, code: number) => void;
  allowStreams: (count: number) => void;
  cut: () => void;
};

export type Http2RawPeer = {
  origin: string;
  /** Resolves with the connection of that number, counted from 0. */
  connection: (number: number) => Promise<RawConnection>;
  /** Whether it answers a PING; from the start it does. */
  answerPings: (doesAnswer: boolean) => void;
  stop: () => Promise<void>;
};

const frameTypes = { headers: 1, reset: 3, settings: 4, ping: 6, goaway: 7 } as const;
const flags = { endStream: 0x1, ack: 0x1, endHeaders: 0x4 } as const;
const prefaceBytes = 24;
const frameHeadBytes = 9;
/** RFC 7541 appendix A: `:status: 200` is one octet. */
const status200 = Buffer.from([0x88]);

export async function startHttp2RawPeer({ streamsMax = 100 } = {}): Promise<Http2RawPeer> {
  const events = new EventEmitter();
  const connections: RawConnection[] = [];
  const sockets = new Set<TLSSocket>();
  let doesAnswerPings = true;
  const server = createServer(
    { cert: certificateForTests, key: privateKeyForTests, ALPNProtocols: ['h2'] },
    (socket) => {
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.once('close', () => sockets.delete(socket));
      connections.push(speak(socket, streamsMax, () => doesAnswerPings));
      events.emit('connection');
    },
  );
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    origin: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    connection: async (number) => {
      for (;;) {
        const connection = connections[number];
        if (connection !== undefined) return connection;
        await once(events, 'connection');
      }
    },
    answerPings: (does) => {
      doesAnswerPings = does;
    },
    stop: async () => {
      const closed = new Promise((resolve) => server.close(resolve));
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}

function speak(socket: TLSSocket, streamsMax: number, doesAnswerPings: () => boolean): RawConnection {
  const events = new EventEmitter();
  let unread = Buffer.alloc(0);
  let isGreeted = false;
  let requests = 0;
  const write = (type: number, flag: number, streamId: number, payload: Buffer) => {
    const head = Buffer.alloc(frameHeadBytes);
    head.writeUIntBE(payload.length, 0, 3);
    head.writeUInt8(type, 3);
    head.writeUInt8(flag, 4);
    head.writeUInt32BE(streamId, 5);
    socket.write(Buffer.concat([head, payload]));
  };
  const allowStreams = (count: number) => {
    const setting = Buffer.alloc(6);
    setting.writeUInt16BE(3, 0); // SETTINGS_MAX_CONCURRENT_STREAMS
    setting.writeUInt32BE(count, 2);
    write(frameTypes.settings, 0, 0, setting);
  };
  const read = (type: number, flag: number, payload: Buffer) => {
    if (type === frameTypes.settings && (flag & flags.ack) === 0)
      write(frameTypes.settings, flags.ack, 0, Buffer.alloc(0));
    if (type === frameTypes.ping && (flag & flags.ack) === 0 && doesAnswerPings())
      write(frameTypes.ping, flags.ack, 0, payload);
    // HEADERS or DATA that end their stream.
    if (type <= frameTypes.headers && (flag & flags.endStream) !== 0) {
      requests += 1;
      events.emit('request');
    }
  };
  socket.on('data', (chunk: Buffer) => {
    unread = Buffer.concat([unread, chunk]);
    if (!isGreeted && unread.length >= prefaceBytes) {
      isGreeted = true;
      unread = unread.subarray(prefaceBytes);
      allowStreams(streamsMax);
    }
    while (isGreeted && unread.length >= frameHeadBytes) {
      const end = frameHeadBytes + unread.readUIntBE(0, 3);
      if (unread.length < end) break;
      read(unread.readUInt8(3), unread.readUInt8(4), unread.subarray(frameHeadBytes, end));
      unread = unread.subarray(end);
    }
  });
  return {
    whenRequested: async (count) => {
      while (requests < count) await once(events, 'request');
    },
    respond: (streamId) => {
      write(frameTypes.headers, flags.endHeaders | flags.endStream, streamId, status200);
    },
    respondHead: (streamId) => {
      write(frameTypes.headers, flags.endHeaders, streamId, status200);
    },
    goaway: (lastStreamId, code) => {
      const payload = Buffer.alloc(8);
      payload.writeUInt32BE(lastStreamId, 0);
      payload.writeUInt32BE(code, 4);
      write(frameTypes.goaway, 0, 0, payload);
    },
    reset: (streamId, code) => {
      const payload = Buffer.alloc(4);
      payload.writeUInt32BE(code, 0);
      write(frameTypes.reset, 0, streamId, payload);
    },
    allowStreams,
    cut: () => socket.destroy(),
  };
}
