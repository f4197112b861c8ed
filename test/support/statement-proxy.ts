/**
 * A proxy on loopback between a program and PostgreSQL that counts statements, and stops at one of them: so that a test
 * can do something at each statement of a transaction in turn, without knowing its statements.
 */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { connectTo, urlOf } from './silent-proxy.ts';

/**
 * - `cut_before`: the connection breaks, and PostgreSQL never sees the statement.
 * - `cut_after`: PostgreSQL has carried the statement out, and the connection breaks with the answer on its way.
 * - `hold_before`: the statement waits until it is released.
 */
export type StopKind = 'cut_before' | 'cut_after' | 'hold_before';

export type Stop = {
  /** Resolves once the statement is held, or the connection is broken. */
  reached: Promise<void>;
  isReached: () => boolean;
  /** How many statements have come since, the one that it stops at included. */
  statements: () => number;
  /** Lets through what is held; if the statement has not come yet, it is not stopped at any more. */
  release: () => void;
};

export type StatementProxy = {
  /** For `openDatabase`, in place of the real one. */
  address: { url: string };
  /** Stops at the `number`-th statement from now on, counted from 1 over all connections, and at that one only. */
  stopAt: (number: number, kind: StopKind) => Stop;
  /** So many connections from now on are closed as soon as they are made. */
  refuse: (connections: number) => void;
  stop: () => Promise<void>;
};

type ArmedStop = {
  kind: StopKind;
  number: number;
  statements: number;
  reach: () => void;
  resume: () => void;
};

export async function startStatementProxy(database: DatabaseAddress): Promise<StatementProxy> {
  const sockets = new Set<Socket>();
  let armed: ArmedStop | null = null;
  let refusals = 0;
  /** The stop, if the statement that comes now is the one. */
  const takeStop = (): ArmedStop | null => {
    if (armed === null) return null;
    armed.statements += 1;
    if (armed.statements < armed.number) return null;
    const taken = armed;
    armed = null;
    return taken;
  };
  const server = createServer((client) => {
    client.on('error', () => undefined);
    if (refusals > 0) {
      refusals -= 1;
      client.destroy();
      return;
    }
    sockets.add(client);
    client.on('close', () => sockets.delete(client));
    joinConnections(client, connectTo(database), takeStop);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    address: { url: urlOf(database, port) },
    stopAt: (number, kind) => {
      let isReached = false;
      let resolve: () => void = () => undefined;
      const reached = new Promise<void>((done) => {
        resolve = done;
      });
      const mine: ArmedStop = {
        kind,
        number,
        statements: 0,
        reach: () => {
          isReached = true;
          resolve();
        },
        resume: () => undefined,
      };
      armed = mine;
      return {
        reached,
        isReached: () => isReached,
        statements: () => mine.statements,
        release: () => {
          if (armed === mine) armed = null;
          mine.resume();
        },
      };
    },
    refuse: (connections) => {
      refusals = connections;
    },
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

/** Passes statements on one by one, and answers as they come. */
function joinConnections(client: Socket, upstream: Socket, takeStop: () => ArmedStop | null): void {
  const cut = () => {
    client.destroy();
    upstream.destroy();
  };
  upstream.on('error', () => undefined);
  for (const socket of [client, upstream]) {
    // Frames are written one by one, and none is to wait for the last to be acknowledged.
    socket.setNoDelay(true);
    socket.on('close', cut);
  }

  /** Passed on, and not answered yet; PostgreSQL is ready for the first without having been asked. */
  let unanswered = 1;
  let stoppedAt: ArmedStop | null = null;
  let waiting: Buffer[] = [];
  const passOn = () => {
    upstream.write(Buffer.concat(waiting));
    waiting = [];
  };
  client.on(
    'data',
    readFrames('startup', (frame, type) => {
      waiting.push(frame);
      if (stoppedAt !== null) return;
      if (!endsStatement(type)) {
        // Nothing of a statement that may have to be stopped: what a connection begins and ends with.
        if (['startup', 'p', 'X'].includes(type)) passOn();
        return;
      }
      stoppedAt = takeStop();
      if (stoppedAt !== null && stoppedAt.kind !== 'cut_after') {
        stopIfAllIsAnswered(stoppedAt);
        return;
      }
      unanswered += 1;
      passOn();
    }),
  );
  /** What came before has been carried out then. */
  const stopIfAllIsAnswered = (stop: ArmedStop) => {
    if (unanswered > 0) return;
    if (stop.kind === 'hold_before') {
      stop.resume = () => {
        stoppedAt = null;
        unanswered += waitingStatements();
        passOn();
      };
    } else {
      cut();
    }
    stop.reach();
  };
  const waitingStatements = () => waiting.filter((frame) => endsStatement(typeOf(frame))).length;

  let answer: Buffer[] = [];
  upstream.on(
    'data',
    readFrames('answers', (frame, type) => {
      answer.push(frame);
      const isReady = type === 'Z';
      if (isReady) unanswered -= 1;
      if (stoppedAt?.kind === 'cut_after') {
        // The last of what was passed on is the statement itself: nothing after it was.
        if (unanswered === 0) {
          stopIfAllIsAnswered(stoppedAt);
          return;
        }
        if (unanswered === 1 && !isReady) return;
      }
      client.write(Buffer.concat(answer));
      answer = [];
      if (stoppedAt !== null && isReady) stopIfAllIsAnswered(stoppedAt);
    }),
  );
}

/** Sync, which ends what was parsed, bound and executed, or a simple query. */
function endsStatement(type: string): boolean {
  return type === 'S' || type === 'Q';
}

function typeOf(frame: Buffer): string {
  return frame.toString('latin1', 0, 1);
}

/**
 * Cuts a stream into the frames of the protocol (PostgreSQL documentation, "Message Formats"): a byte that says what it
 * is, and the length of the rest, itself included. What a client begins with has no such byte.
 */
function readFrames(
  beginning: 'startup' | 'answers',
  take: (frame: Buffer, type: string) => void,
): (bytes: Buffer) => void {
  let isStartup = beginning === 'startup';
  let unread: Buffer = Buffer.alloc(0);
  return (bytes) => {
    unread = Buffer.concat([unread, bytes]);
    // Each turn takes a frame off, or ends.
    for (;;) {
      const headBytes = isStartup ? 4 : 5;
      if (unread.length < headBytes) return;
      const length = unread.readUInt32BE(headBytes - 4) + headBytes - 4;
      if (unread.length < length) return;
      const frame = unread.subarray(0, length);
      unread = unread.subarray(length);
      const type = isStartup ? 'startup' : typeOf(frame);
      isStartup = false;
      take(frame, type);
    }
  };
}
