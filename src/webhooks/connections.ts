import { connect as connectTcp, isIP, type LookupFunction, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Client, Dispatcher } from 'undici';
import type { Clock } from '../platform/clock.ts';
import { plainAddress } from '../platform/network.ts';
import type { Destination } from '../platform/outbound/destination.ts';

/**
 * The connections to receivers of webhooks. Each is made to an address that was judged for the attempt which opens it, under
 * the name of the URL: TLS asks for that name, and wants a certificate for it. It is kept for a while, and serves a later
 * attempt only if its address is among those that were judged for that one.
 *
 * A `Client` of undici is one connection, and never makes another one here: what would look a name up by itself is not
 * used. In a loop, it costs 22 µs a request, undici's own pool 30 µs, and the client of Node.js 55 µs.
 */

export type Connection = {
  /** Sends one request, and tells the handler of its answer. */
  send: (request: RequestToSend, handler: Dispatcher.DispatchHandler) => void;
};

export type RequestToSend = { path: string; headers: Record<string, string>; body: Buffer };

export type ConnectionWish = {
  /** Of whom: no other endpoint gets the connection, not even one with the same URL. */
  endpointId: string;
  destination: Destination;
  /** Judged for this attempt, one at least. */
  addresses: readonly string[];
};

export type Connections = {
  /** One that was kept, whose far side may be closing it at this moment; null if none fits. */
  takeKept: (wish: ConnectionWish) => Connection | null;
  /** A new one. */
  open: (wish: ConnectionWish) => Connection;
  /** Keeps a connection that has served its attempt. */
  keep: (connection: Connection) => void;
  /** Closes a connection, whatever is under way on it. */
  drop: (connection: Connection) => void;
  /** Closes all. */
  close: () => void;
};

export type ConnectionTools = {
  clock: Clock;
  Client: typeof Client;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities: string | null;
};

/** In all, and of an endpoint. Whoever makes attempts makes no more than these at once. */
export const connectionsMax = 400;
const connectionsPerEndpointMax = 20;

/**
 * Receivers close what is idle, many after five seconds: what is sent into that is lost, and sent anew. Shorter costs more
 * handshakes.
 */
const idleMs = 4_000;

/** More are no way to reach a receiver, but one to have us connect to strangers. */
const addressesTriedMax = 4;

/** For one address of several, before the next is tried beside it: longer waits for a family that leads nowhere. */
const nextAddressMs = 1_000;

type Held = Connection & {
  /** The endpoint, and what the connection was made for. */
  endpointId: string;
  origin: string;
  client: Client;
  /** Null until it is asked for. */
  socket: Socket | null;
  /** Which of the addresses it is connected to, as that one was written; null until it is. */
  address: string | null;
  cancelIdle: () => void;
};

export function createConnections({ clock, Client, authorities }: ConnectionTools): Connections {
  const all = new Map<Connection, Held>();
  /** The one kept last at the end, of all and of each endpoint. */
  const idle = new Set<Held>();
  const idleOf = new Map<string, Held[]>();

  const leaveIdle = (held: Held) => {
    held.cancelIdle();
    if (!idle.delete(held)) return;
    const left = idleOf.get(held.endpointId)?.filter((other) => other !== held) ?? [];
    if (left.length > 0) idleOf.set(held.endpointId, left);
    else idleOf.delete(held.endpointId);
  };
  const forget = (held: Held) => {
    leaveIdle(held);
    all.delete(held);
  };
  const dropHeld = (held: Held) => {
    forget(held);
    held.socket?.destroy();
    // Resolves once the connection is closed, which nobody waits for.
    void held.client.destroy();
  };

  const findKept = ({ endpointId, destination, addresses }: ConnectionWish): Held | undefined => {
    return idleOf
      .get(endpointId)
      ?.findLast(
        (held) =>
          held.origin === destination.origin &&
          held.address !== null &&
          addresses.includes(held.address) &&
          held.socket?.destroyed === false,
      );
  };

  /** Attempts have as many connections as there may be, so that what is too many is idle. */
  const makeRoom = (endpointId: string) => {
    const own = [...all.values()].filter((held) => held.endpointId === endpointId);
    if (own.length >= connectionsPerEndpointMax) dropFirst(idleOf.get(endpointId) ?? []);
    if (all.size >= connectionsMax) dropFirst([...idle]);
  };
  const dropFirst = ([first]: Held[]) => {
    if (first !== undefined) dropHeld(first);
  };

  const open = ({ endpointId, destination, addresses }: ConnectionWish): Held => {
    const { origin } = destination;
    const client = new Client(origin, {
      pipelining: 1,
      // Attempts have a limit of their own, by the clock.
      headersTimeout: 0,
      bodyTimeout: 0,
      // So have idle connections; a receiver that wants them closed sooner is heard.
      keepAliveTimeout: 10 * idleMs,
      keepAliveMaxTimeout: 10 * idleMs,
      connect: (_options, callback) => {
        if (held.socket !== null) callback(new Error('the connection is used up'), null);
        else held.socket = openSocket({ destination, addresses, authorities }, callback);
      },
    });
    const held: Held = {
      send: ({ path, headers, body }, handler) => {
        client.dispatch({ method: 'POST', path, headers, body }, handler);
      },
      endpointId,
      origin,
      client,
      socket: null,
      address: null,
      cancelIdle: () => undefined,
    };
    client.on('connect', () => {
      const connected = plainAddress(held.socket?.remoteAddress ?? '');
      held.address = addresses.find((address) => plainAddress(address) === connected) ?? null;
    });
    client.on('disconnect', () => {
      forget(held);
    });
    all.set(held, held);
    return held;
  };

  return {
    takeKept: (wish) => {
      const kept = findKept(wish);
      if (kept === undefined) return null;
      leaveIdle(kept);
      return kept;
    },
    open: (wish) => {
      makeRoom(wish.endpointId);
      return open(wish);
    },
    keep: (connection) => {
      const held = all.get(connection);
      if (held === undefined) return;
      held.cancelIdle = clock.after(idleMs, () => {
        dropHeld(held);
      });
      idle.add(held);
      idleOf.set(held.endpointId, [...(idleOf.get(held.endpointId) ?? []), held]);
    },
    drop: (connection) => {
      const held = all.get(connection);
      if (held !== undefined) dropHeld(held);
    },
    close: () => {
      for (const held of all.values()) dropHeld(held);
    },
  };
}

type SocketWish = { destination: Destination; addresses: readonly string[]; authorities: string | null };

type SocketCallback = (...outcome: [null, Socket] | [Error, null]) => void;

/** Calls back once. */
function openSocket({ destination, addresses, authorities }: SocketWish, callback: SocketCallback): Socket {
  const { host, port, isTls } = destination;
  const target = {
    host,
    port,
    // Not asked for a host that is an address: that one was judged itself.
    lookup: answerWith(addresses.slice(0, addressesTriedMax)),
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: nextAddressMs,
  };
  const socket = isTls
    ? connectTls({
        ...target,
        servername: isIP(host) === 0 ? host : '',
        minVersion: 'TLSv1.2',
        ALPNProtocols: ['http/1.1'],
        ...(authorities !== null && { ca: authorities }),
      })
    : connectTcp(target);
  let isOver = false;
  socket.once(isTls ? 'secureConnect' : 'connect', () => {
    isOver = true;
    callback(null, socket);
  });
  // Stays: an error that comes after all is over is nobody's.
  socket.on('error', (error: Error) => {
    if (!isOver) callback(error, null);
    isOver = true;
  });
  return socket;
}

function answerWith(addresses: readonly string[]): LookupFunction {
  const found = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_host, { all }, callback) => {
    const [first] = found;
    if (all === true) callback(null, found);
    else callback(null, first?.address ?? '', first?.family);
  };
}
