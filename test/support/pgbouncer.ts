/** A real PgBouncer for tests, wherever the machine has one. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, constants } from 'node:fs';
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { connect, createServer, type AddressInfo } from 'node:net';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { eventually } from './email-journey.ts';

const executable = ['/usr/sbin/pgbouncer', '/usr/bin/pgbouncer', '/usr/local/bin/pgbouncer'].find((file) => {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
});

/** Says so where there is none. */
export function hasPgBouncer(whatIsSkipped: string): boolean {
  if (executable === undefined) console.warn(`${whatIsSkipped}: there is no pgbouncer`);
  return executable !== undefined;
}

/** It refuses to run as root. */
const nobody = { uid: 65_534, gid: 65_534 };

export type PgBouncer = { url: string; stop: () => Promise<void> };

export async function startPgBouncer(
  mode: 'session' | 'transaction',
  to: DatabaseAddress,
): Promise<PgBouncer> {
  if ('url' in to) throw new Error('PgBouncer is started before a server of the tests alone');
  const isRoot = process.getuid?.() === 0;
  const folder = await mkdtemp(path.join(tmpdir(), 'postillion-pgbouncer-'));
  await chmod(folder, 0o711);
  const port = await freePort();
  const settings = path.join(folder, 'pgbouncer.ini');
  // Its user may not enter the folder of the socket, so that a forwarder stands in between.
  const forwarder = createServer((client) => {
    const upstream = connect(path.join(to.host, '.s.PGSQL.5432'));
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
      one.pipe(other);
    }
  });
  forwarder.listen(0, '127.0.0.1');
  await once(forwarder, 'listening');
  const target = (forwarder.address() as AddressInfo).port;
  await writeFile(
    settings,
    `[databases]
${to.database} = host=127.0.0.1 port=${target} dbname=${to.database} user=${to.user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
max_client_conn = 500
default_pool_size = ${mode === 'session' ? 100 : 10}
ignore_startup_parameters = options,extra_float_digits
`,
  );
  if (isRoot) await chown(settings, nobody.uid, nobody.gid);
  const child = spawn(executable!, [settings], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'pipe'],
    ...(isRoot ? nobody : {}),
  });
  let said = '';
  child.stderr.on('data', (text) => (said += String(text)));
  const url = `postgres://${to.user}@127.0.0.1:${port}/${to.database}`;
  await eventually(
    () => {
      if (child.exitCode !== null) throw new Error(said);
      return canConnect(port);
    },
    (isUp) => isUp,
  );
  return {
    url,
    stop: async () => {
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      forwarder.close();
      await rm(folder, { recursive: true });
    },
  };
}

async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

function canConnect(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => {
      resolve(false);
    });
  });
}
