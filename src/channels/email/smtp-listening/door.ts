import { createServer, type Server, type Socket } from 'node:net';
import { finished } from 'node:stream';
import ipaddr from 'ipaddr.js';
import type { SMTPServer, SMTPServerSession } from 'smtp-server';
import type { Clock } from '../../../platform/clock.ts';
import { createPlaces, type Place } from './places.ts';

/**
 * Where connections to an SMTP server come in: those that get a place (`places.ts`) go on to it, the others hear 421. Each
 * has deadlines for its next step and for its whole life. A client that has closed its own side still gets every answer.
 */

export type DoorLimits = {
  /** Each costs a descriptor, and what is kept of a message. */
  connectionsMax: number;
  connectionsPerNetworkMax: number;
};

export type DoorTimeouts = {
  /**
   * Without a step, which the SMTP server notes by `noteStep`. Commands are none, or else a client could hold a place with
   * RSET for as long as it likes.
   */
  stepMs: number;
  /** Of a client that says nothing while another one has no place. */
  patienceMs: number;
  /** Of a connection altogether, or else a client could hold it with an octet a minute. */
  lifetimeMs: number;
  /** For what is under way when the door is closed. */
  stopMs: number;
};

export type DoorOptions = {
  hostName: string;
  clock: Clock;
  limits: DoorLimits;
  timeouts: DoorTimeouts;
  /** Called for each connection that is let in, before anything else. It must not throw. */
  onConnection?: () => void;
};

export type Door = {
  /** Lets connections in to an SMTP server, which listens to nothing itself. Rejects if the address cannot be listened on. */
  open: (smtp: SMTPServer, at: { host: string; port: number }) => Promise<{ port: number }>;
  /** To be called when a connection has TLS, by its new socket. */
  secured: (smtp: SMTPServer, socket: Socket, session: Client) => void;
  noteStep: (session: Client) => void;
  /** The time in which the client waits for us does not count; that it was answered is no step of its own. */
  whileOurTurn: <Result>(session: Client, work: Promise<Result>) => Promise<Result>;
  /**
   * Takes nothing more, lets messages that are `underWay` end, sends all others away, and has closed every connection after
   * `stopMs` at the latest.
   */
  close: (underWay: MessagesUnderWay) => Promise<void>;
  /** How many places are taken. */
  held: () => number;
};

type Client = Pick<SMTPServerSession, 'remoteAddress' | 'remotePort'>;

/** By the id of their session: messages that are being read or received. */
export type MessagesUnderWay = {
  messages: ReadonlyMap<string, Promise<void>>;
  /** Set by the door: to be called whenever one of them has been answered. */
  onAnswered: () => void;
};

/** Connections that get a 421 and the time to read it; any beyond these are just closed. */
const leavingMax = 50;
const leavingMs = 1_000;

type Entry = { socket: Socket; hasGreeted: boolean };

export function createDoor({
  hostName,
  clock,
  limits,
  timeouts,
  onConnection = () => undefined,
}: DoorOptions): Door {
  const sockets = new Set<Socket>();
  const leaving = new Set<Socket>();
  const opened: { server: Server; smtp: SMTPServer }[] = [];
  const places = createPlaces({
    placesMax: limits.connectionsMax,
    placesPerNetworkMax: limits.connectionsPerNetworkMax,
    patienceMs: timeouts.patienceMs,
  });
  const entries = new Map<Place, Entry>();
  /** By the address and port of the client. */
  const placesByClient = new Map<string, Place>();

  const sendAway = ({ socket, hasGreeted }: Entry, reply: string) => {
    if (leaving.size >= leavingMax || !hasGreeted) {
      socket.destroy();
      return;
    }
    leaving.add(socket);
    socket.end(`${reply}\r\n`);
    const cancel = clock.after(leavingMs, () => socket.destroy());
    socket.once('close', () => {
      cancel();
      leaving.delete(socket);
    });
    socket.resume();
  };
  const tooMany = `421 4.3.2 ${hostName} Too many connections, try again later`;

  const letIn = (smtp: SMTPServer, socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    const taken = places.take(socket, clock.monotonicMs());
    // On a port of TLS nothing can be said before its handshake.
    const entry = { socket, hasGreeted: smtp.options.secure !== true };
    if (taken === null) {
      socket.once('close', () => {
        sockets.delete(socket);
      });
      sendAway(entry, tooMany);
      return;
    }
    const { place, displaced } = taken;
    const loser = displaced === null ? undefined : entries.get(displaced);
    if (loser !== undefined) sendAway(loser, tooMany);
    const key = keyOfClient(socket);
    const cancels = [
      clock.after(timeouts.lifetimeMs, () => socket.destroy()),
      watchSteps(clock, place, timeouts.stepMs, () => {
        sendAway(entry, `421 4.4.2 ${hostName} Timeout`);
      }),
    ];
    placesByClient.set(key, place);
    entries.set(place, entry);
    whenClosed(socket, () => {
      sockets.delete(socket);
      for (const cancel of cancels) cancel();
      places.leave(place);
      entries.delete(place);
      if (placesByClient.get(key) === place) placesByClient.delete(key);
    });
    answerToTheEnd(smtp, socket);
    onConnection();
    smtp.server.emit('connection', socket);
  };

  return {
    open: async (smtp, at) => {
      const server = createServer({ allowHalfOpen: true }, (socket) => {
        letIn(smtp, socket);
      });
      await listen(server, at);
      opened.push({ server, smtp });
      const address = server.address();
      return { port: typeof address === 'object' && address !== null ? address.port : at.port };
    },
    secured: (smtp, socket, session) => {
      const place = placesByClient.get(keyOfClient(session));
      const entry = place === undefined ? undefined : entries.get(place);
      if (entry === undefined) return;
      entry.socket = socket;
      entry.hasGreeted = true;
      answerToTheEnd(smtp, socket);
    },
    noteStep: (session) => {
      const place = placesByClient.get(keyOfClient(session));
      if (place !== undefined) place.waitedSinceMs = clock.monotonicMs();
    },
    whileOurTurn: async (session, work) => {
      const place = placesByClient.get(keyOfClient(session));
      if (place === undefined) return work;
      const begunAtMs = clock.monotonicMs();
      place.isOurTurn = true;
      try {
        return await work;
      } finally {
        place.isOurTurn = false;
        const endedAtMs = clock.monotonicMs();
        place.waitedSinceMs = Math.min(place.waitedSinceMs + endedAtMs - begunAtMs, endedAtMs);
      }
    },
    close: async (underWay) => {
      const endIdleConnections = () => {
        for (const connection of opened.flatMap(({ smtp }) => [...smtp.connections])) {
          if (!underWay.messages.has(connection.session.id)) connection.send(421, 'Server shutting down');
        }
      };
      underWay.onAnswered = endIdleConnections;
      const closed = opened.map(
        ({ server }) =>
          new Promise<void>((resolve) => {
            server.close(() => {
              resolve();
            });
          }),
      );
      // They listen to nothing themselves: from here on they answer every command with 421.
      for (const { smtp } of opened) smtp.close();
      endIdleConnections();
      let cancel: () => void = () => undefined;
      const timedOut = new Promise<void>((resolve) => {
        cancel = clock.after(timeouts.stopMs, resolve);
      });
      await Promise.race([Promise.all([...closed, ...underWay.messages.values()]), timedOut]);
      cancel();
      for (const socket of sockets) socket.destroy();
    },
    held: () => entries.size,
  };
}

function listen(server: Server, { host, port }: { host: string; port: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

/** The SMTP server takes all listeners off a socket that it begins TLS on; closing it is the door's to hear of all the same. */
function whenClosed(socket: Socket, onClosed: () => void): void {
  socket.once('close', onClosed);
  const removeAllListeners = socket.removeAllListeners.bind(socket);
  socket.removeAllListeners = (event) => {
    removeAllListeners(event);
    if (event === undefined || event === 'close') socket.once('close', onClosed);
    return socket;
  };
}

/**
 * Exim sends QUIT right after its last message and closes its side before it has read the answer. If there is none, it
 * sends the message again. So our side stays open until everything that the client said has been worked off.
 */
function answerToTheEnd(smtp: SMTPServer, socket: Socket): void {
  // The SMTP server writes only to what is `open`, which Node does not call a socket whose other side is closed.
  Object.defineProperty(socket, 'readyState', { get: () => (socket.writable ? 'open' : 'closed') });
  socket.once('end', () => {
    const connection = [...smtp.connections].find(({ _socket }) => _socket === socket);
    if (connection === undefined || connection._parser === false) socket.end();
    else finished(connection._parser, () => socket.end());
  });
}

/** Calls once the client has been waited for so long. Returns what ends the watch. */
function watchSteps(clock: Clock, place: Place, stepMs: number, onTooLong: () => void): () => void {
  let cancel: () => void = () => undefined;
  const watch = (afterMs: number) => {
    cancel = clock.after(afterMs, () => {
      const waitedMs = place.isOurTurn ? 0 : clock.monotonicMs() - place.waitedSinceMs;
      if (waitedMs >= stepMs) onTooLong();
      else watch(stepMs - waitedMs);
    });
  };
  watch(stepMs);
  return () => {
    cancel();
  };
}

function keyOfClient({
  remoteAddress = '',
  remotePort,
}: Pick<Socket, 'remoteAddress' | 'remotePort'>): string {
  const address = ipaddr.isValid(remoteAddress) ? ipaddr.process(remoteAddress).toString() : remoteAddress;
  return `${address} ${remotePort}`;
}
