/** A server whose PostgreSQL goes away while it starts: it ends, or it serves, and never hangs in between. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { eventually } from '../support/email-journey.ts';
import { type Ended, servedUrl, usePrograms } from '../support/programs.ts';
import { useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
const proxies: Proxy[] = [];

/** Each start makes the first organization, or does not get so far. */
useTestDatabase({ isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(() => {
  for (const proxy of proxies.splice(0)) proxy.stop();
});
const programs = usePrograms();

/** A proxy before the database, which cuts connections where a test says so. */
type Proxy = { url: string; wasCut: () => boolean; stop: () => void };

type Behaviour =
  /** Everything is let through until so many pieces have come from the program; then all of it is cut, once. */
  | { kind: 'cuts'; afterPieces: number }
  /** The same, and no connection is let through afterwards. */
  | { kind: 'cuts_for_good'; afterPieces: number }
  /** Connections are taken, and nothing ever answers. */
  | { kind: 'is_silent' };

async function startProxy(behaviour: Behaviour): Promise<Proxy> {
  const sockets = new Set<Socket>();
  let pieces = 0;
  let isCut = false;
  const keep = (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => sockets.delete(socket));
  };
  const cutAll = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  const server: Server = createServer((client) => {
    keep(client);
    if (behaviour.kind === 'is_silent') return;
    if (behaviour.kind === 'cuts_for_good' && isCut) {
      client.destroy();
      return;
    }
    const upstream = connectTo(address);
    keep(upstream);
    client.on('data', (piece) => {
      pieces += 1;
      if (pieces > behaviour.afterPieces && !isCut) cutAll();
      else upstream.write(piece);
    });
    upstream.pipe(client);
    client.on('close', () => upstream.destroy());
    upstream.on('close', () => client.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const proxy: Proxy = {
    url: urlOver(address, port),
    wasCut: () => isCut,
    stop: () => {
      server.close();
      cutAll();
    },
  };
  proxies.push(proxy);
  return proxy;
}

function connectTo(address: DatabaseAddress): Socket {
  if (!('url' in address)) return connect(`${address.host}/.s.PGSQL.5432`);
  const { hostname, port } = new URL(address.url);
  return connect(Number(port || 5432), hostname);
}

function urlOver(address: DatabaseAddress, port: number): string {
  if (!('url' in address)) return `postgres://${address.user}@127.0.0.1:${port}/${address.database}`;
  const url = new URL(address.url);
  url.host = `127.0.0.1:${port}`;
  return url.href;
}

/** Where a start ends: with an exit code, or with an address that answers. */
async function start(databaseUrl: string): Promise<Ended | string> {
  const { untilSaid, ended } = programs.start(
    {
      PORT: '0',
      LOG_LEVEL: 'silent',
      DATABASE_URL: databaseUrl,
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    },
    ['serve'],
  );
  return (await untilSaid('output', servedUrl))?.[1] ?? ended;
}

test.each([
  { kind: 'is_silent' },
  ...[0, 1, 3].map((afterPieces) => ({ kind: 'cuts_for_good', afterPieces })),
])('without a PostgreSQL that answers it ends and says so: $kind $afterPieces', async (behaviour) => {
  const proxy = await startProxy(behaviour as Behaviour);
  expect(await start(proxy.url)).toEqual({
    exitCode: 1,
    output: '',
    errors: expect.stringContaining('PostgreSQL') as string,
  });
});

test.each([2, 5, 8, 10, 12, 15, 20, 30])(
  'with a PostgreSQL that is gone for a moment after %i pieces it ends, or serves',
  async (afterPieces) => {
    const proxy = await startProxy({ kind: 'cuts', afterPieces });
    const outcome = await start(proxy.url);
    if (typeof outcome === 'string') {
      // A wrong key takes a look into the database.
      const headers = { authorization: `Bearer pst_${'0'.repeat(40)}` };
      await eventually(
        async () => (await fetch(`${outcome}/v1/contacts`, { headers })).status,
        (status) => status === 401,
      );
    } else {
      expect(outcome).toEqual({
        exitCode: 1,
        output: '',
        errors: expect.stringContaining('PostgreSQL') as string,
      });
      expect(proxy.wasCut()).toBe(true);
    }
  },
);
