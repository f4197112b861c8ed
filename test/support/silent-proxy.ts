/** A proxy on loopback between a program and PostgreSQL that can fall silent, as a cut network does. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';

export type SilentProxy = {
  /** For `openDatabase`, in place of the real one. */
  address: { url: string };
  /**
   * From now on nothing gets through, on connections old or new, and no side notices. Resolves once what was on its
   * way has arrived.
   */
  fallSilent: () => void;
  /** Connections that are made from now on get nowhere; those there are work on. */
  swallowNewConnections: () => void;
  /** Everything that was held back gets through, in its order. */
  speak: () => void;
  /** The connections there are stay silent for ever; new ones work. */
  forgetConnections: () => void;
  /** As when keepalives stay unanswered: PostgreSQL ends its connections, and the program does not notice. */
  endAtServer: () => void;
  /** Resolves when so many connections have been made in all. */
  whenConnected: (count: number) => Promise<void>;
  stop: () => Promise<void>;
};

export async function startSilentProxy(database: DatabaseAddress): Promise<SilentProxy> {
  let pairs: [Socket, Socket][] = [];
  const forgotten: [Socket, Socket][] = [];
  /** Made in silence: PostgreSQL does not know of them, and they use none of its connections. */
  let unmade: Socket[] = [];
  let isSilent = false;
  let connections = 0;
  let expectations: { count: number; resolve: () => void }[] = [];
  const join = (client: Socket) => {
    const upstream = connectTo(database);
    const pair: [Socket, Socket] = [client, upstream];
    pairs.push(pair);
    for (const [one, other] of [pair, [upstream, client]] as const) {
      one.on('error', () => undefined);
      one.on('data', (bytes: Buffer) => other.write(bytes));
      one.on('close', () => {
        if (!forgotten.includes(pair)) other.destroy();
      });
    }
    client.resume();
  };
  const server = createServer({ pauseOnConnect: true }, (client) => {
    client.on('error', () => undefined);
    if (isSilent) unmade.push(client);
    else join(client);
    connections += 1;
    for (const { resolve } of expectations.filter(({ count }) => connections >= count)) resolve();
    expectations = expectations.filter(({ count }) => connections < count);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const pauseAll = () => {
    for (const socket of pairs.flat()) socket.pause();
  };
  const forgetConnections = () => {
    pauseAll();
    forgotten.push(...pairs);
    pairs = [];
  };
  return {
    address: { url: urlOf(database, port) },
    fallSilent: () => {
      isSilent = true;
      pauseAll();
    },
    swallowNewConnections: () => {
      isSilent = true;
    },
    speak: () => {
      isSilent = false;
      for (const socket of pairs.flat()) socket.resume();
      for (const client of unmade) join(client);
      unmade = [];
    },
    forgetConnections,
    endAtServer: () => {
      const ended = pairs;
      forgetConnections();
      for (const [, upstream] of ended) upstream.destroy();
    },
    whenConnected: (count) =>
      connections >= count
        ? Promise.resolve()
        : new Promise((resolve) => {
            expectations.push({ count, resolve });
          }),
    stop: async () => {
      for (const socket of [...pairs, ...forgotten, unmade].flat()) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

/** A connection to the real one. */
export function connectTo(database: DatabaseAddress): Socket {
  if (!('url' in database)) return connect(`${database.host}/.s.PGSQL.5432`);
  const { hostname, port } = new URL(database.url);
  return connect(Number(port || '5432'), hostname);
}

/** The URL by which the same database is found at a port of loopback. */
export function urlOf(database: DatabaseAddress, port: number): string {
  if (!('url' in database)) return `postgres://${database.user}@127.0.0.1:${port}/${database.database}`;
  const url = new URL(database.url);
  url.hostname = '127.0.0.1';
  url.port = `${port}`;
  return url.href;
}
