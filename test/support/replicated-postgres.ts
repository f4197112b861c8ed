/**
 * A primary and a standby that follows it by streaming replication, of the embedded PostgreSQL's programs, and an address
 * that leads to one of the two, as a virtual IP address or a DNS name does. Nobody restarts what is killed.
 */
import { once } from 'node:events';
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import path from 'node:path';
import pg from 'pg';
import { startBaseBackup } from '../../src/platform/postgres/base-backup.ts';
import { findNativeDirectory, prepareBinaries } from '../../src/platform/postgres/embedded-binaries.ts';
import { type EmbeddedPlace, preparePlace } from '../../src/platform/postgres/embedded-place.ts';
import { restoreCluster } from '../../src/platform/postgres/embedded-restore.ts';
import {
  createClusterIfMissing,
  databaseName,
  findOrphans,
  launchServer,
} from '../../src/platform/postgres/embedded-server.ts';
import { readTar } from '../../src/platform/tar.ts';
import { eventually } from './email-journey.ts';
import { databasesDirectory } from './temporary-directory.ts';

export type PostgresNode = {
  /** Its socket; a port is the one of every PostgreSQL. */
  address: { host: string; user: string; database: string };
  query: <Row>(text: string) => Promise<Row[]>;
  /** All of its processes at once, as when its machine loses its power. */
  kill: () => Promise<void>;
};

async function start(directory: string, settings: Record<string, string>): Promise<PostgresNode> {
  const place = await preparePlace(directory);
  const binaries = await binariesOf(place);
  await createClusterIfMissing(binaries, place, { fsync: 'off' });
  await launchServer(binaries, place, { max_connections: '200', ...settings });
  const address = { host: place.socketDirectory, user: databaseName, database: databaseName };
  const query = async <Row>(text: string): Promise<Row[]> => {
    const client = new pg.Client({ ...address, port: 5432, ssl: false });
    client.on('error', () => undefined);
    await client.connect();
    try {
      return (await client.query(text)).rows as Row[];
    } finally {
      await client.end();
    }
  };
  await eventually(
    () =>
      query('select').then(
        () => true,
        () => false,
      ),
    (isUp) => isUp,
  );
  return {
    address,
    query,
    kill: async () => {
      for (const pid of await findOrphans(place.cluster)) {
        try {
          process.kill(pid, 'SIGKILL');
        } catch {
          // It has ended meanwhile.
        }
      }
      await eventually(
        () => findOrphans(place.cluster),
        (pids) => pids.length === 0,
      );
    },
  };
}

function binariesOf({ home, serverUser }: EmbeddedPlace) {
  const searchPath = process.env.PATH ?? '';
  return prepareBinaries({ home, serverUser, nativeDirectory: findNativeDirectory(), searchPath });
}

/** A standby that was copied from the primary, and follows it through `port`. */
async function startStandby(primary: PostgresNode, directory: string, port: number): Promise<PostgresNode> {
  const copy = await startBaseBackup(primary.address);
  await restoreCluster({
    dataDirectory: directory,
    entries: readTar(copy as AsyncIterable<Buffer>),
    beforePlaced: () => Promise.resolve(),
  });
  const { cluster, serverUser } = await preparePlace(directory);
  const signal = path.join(cluster, 'standby.signal');
  await writeFile(signal, '');
  if (serverUser !== null) await chown(signal, serverUser.uid, serverUser.gid);
  return start(directory, {
    // It would try to find its primary again only every five seconds.
    wal_retrieve_retry_interval: '100ms',
    primary_conninfo: `host=127.0.0.1 port=${port} user=${databaseName} application_name=standby`,
  });
}

export type Route = {
  port: number;
  /** Cuts what leads elsewhere. With null, it leads nowhere. */
  leadTo: (node: PostgresNode | null) => void;
  close: () => Promise<void>;
};

/** An address of which it can be changed where it leads. */
async function startRoute(first: PostgresNode): Promise<Route> {
  let target: PostgresNode | null = first;
  const sockets = new Set<Socket>();
  const server = createServer((client) => {
    if (target === null) {
      client.destroy();
      return;
    }
    const upstream = connect(path.join(target.address.host, '.s.PGSQL.5432'));
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(one);
      one.on('error', () => other.destroy());
      one.on('close', () => {
        sockets.delete(one);
        other.destroy();
      });
      one.pipe(other);
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const cut = () => {
    for (const socket of sockets) socket.destroy();
  };
  return {
    port: (server.address() as AddressInfo).port,
    leadTo: (node) => {
      target = node;
      cut();
    },
    close: async () => {
      server.close();
      cut();
      await once(server, 'close');
    },
  };
}

export type ReplicatedPostgres = {
  primary: PostgresNode;
  standby: PostgresNode;
  /** What clients connect to. */
  route: Route;
  /** What the standby follows the primary by. */
  replication: Route;
  url: string;
  stop: () => Promise<void>;
};

export async function startReplicatedPostgres(
  mode: 'synchronous' | 'asynchronous',
): Promise<ReplicatedPostgres> {
  const directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-replicated-'));
  await chmod(directory, 0o711);
  const primary = await start(path.join(directory, 'one'), {});
  const replication = await startRoute(primary);
  const standby = await startStandby(primary, path.join(directory, 'two'), replication.port);
  if (mode === 'synchronous') {
    await primary.query(`alter system set synchronous_standby_names = 'standby'`);
    await primary.query('select pg_reload_conf()');
  }
  await eventually(
    () => primary.query<{ sync_state: string }>('select sync_state from pg_stat_replication'),
    ([state]) => state?.sync_state === (mode === 'synchronous' ? 'sync' : 'async'),
  );
  const route = await startRoute(primary);
  return {
    primary,
    standby,
    route,
    replication,
    url: `postgres://${databaseName}@127.0.0.1:${route.port}/${databaseName}`,
    stop: async () => {
      await Promise.all([route.close(), replication.close()]);
      await Promise.all([primary.kill(), standby.kill()]);
      await rm(directory, { recursive: true, force: true });
    },
  };
}
