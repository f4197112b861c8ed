/**
 * `pg_dump` and `pg_restore`, which belong to PostgreSQL and are found on the machine. One of an older major version than
 * the server refuses to dump it.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { access, constants } from 'node:fs/promises';
import path from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { ConnectionOptions } from 'node:tls';
import { promisify } from 'node:util';
import pg from 'pg';
import type { DatabaseAddress } from './database.ts';

const run = promisify(execFile);

export type DumpProgram = { name: 'pg_dump' | 'pg_restore'; file: string; majorVersion: number };

/** Asking a program for its version takes 7 ms; a disk that has gone to sleep takes seconds. */
const versionTimeoutMs = 20_000;

/** What a program says before it fails: the last of it. */
const saidCharactersMax = 2_000;

/** In one of these folders, the first that has it; null if there is none. Throws if it does not run. */
export async function findDumpProgram(
  name: DumpProgram['name'],
  folders: readonly string[],
): Promise<DumpProgram | null> {
  for (const folder of folders.filter((each) => path.isAbsolute(each))) {
    const file = path.join(folder, name);
    const isThere = await access(file, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (!isThere) continue;
    const { stdout } = await run(file, ['--version'], { timeout: versionTimeoutMs });
    const majorVersion = Number(/\s(\d+)/.exec(stdout)?.[1]);
    if (!Number.isSafeInteger(majorVersion)) throw new Error(`${file} does not tell its version`);
    return { name, file, majorVersion };
  }
  return null;
}

/** What a run comes to: `failed` with the program's own words. */
export type RunOutcome = { kind: 'done' } | { kind: 'failed'; said: string } | { kind: 'interrupted' };

/** What goes through a program: `input` is what it reads, `keep` stores what it writes, and rejects where it cannot. */
export type DumpPipes = { input?: Readable; keep?: (output: Readable) => Promise<void> };

/**
 * Runs it on the database at this address. An abort ends it, and with it its transaction; so does what goes wrong with a
 * pipe, of which the outcome tells.
 */
export async function runDumpProgram(
  { file }: DumpProgram,
  given: readonly string[],
  address: DatabaseAddress,
  signal: AbortSignal,
  { input, keep }: DumpPipes = {},
): Promise<RunOutcome> {
  const child = spawn(file, given, {
    // Not among the arguments, which every user of the machine may read.
    env: { ...process.env, ...environmentOf(address) },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  let said = '';
  child.stderr.setEncoding('utf8');
  child.stderr.on('data', (text: string) => (said = (said + text).slice(-saidCharactersMax)));
  const end = () => child.kill('SIGTERM');
  if (signal.aborted) end();
  signal.addEventListener('abort', end, { once: true });
  let problem: string | null = null;
  // Ended first: a program whose input merely ends may take it for whole.
  const fail = (cause: unknown) => {
    end();
    problem ??= cause instanceof Error ? cause.message : String(cause);
  };
  try {
    const [code] = await Promise.all([
      exitCodeOf(child),
      keep === undefined ? child.stdout.resume() : keep(child.stdout).catch(fail),
      input === undefined ? child.stdin.end() : feed(input, child.stdin, fail),
    ]);
    if (signal.aborted && code !== 0) return { kind: 'interrupted' };
    if (problem !== null) return { kind: 'failed', said: problem };
    return code === 0 ? { kind: 'done' } : { kind: 'failed', said: said.trim() };
  } finally {
    signal.removeEventListener('abort', end);
  }
}

/** A program that ends before it has read everything says itself what it dislikes. */
async function feed(input: Readable, stdin: Writable, fail: (cause: unknown) => void): Promise<void> {
  input.once('error', fail);
  await pipeline(input, stdin).catch(() => undefined);
}

/** Null where a signal ended it. Rejects if it cannot be run. */
async function exitCodeOf(child: ChildProcess): Promise<number | null> {
  const [code] = (await once(child, 'close')) as [number | null];
  return code;
}

/** Parameters of a URL that libpq takes from the environment as well. */
const parameters: Readonly<Record<string, string>> = {
  sslrootcert: 'PGSSLROOTCERT',
  sslcert: 'PGSSLCERT',
  sslkey: 'PGSSLKEY',
};

/**
 * An address as libpq takes it from the environment. It is read by our own client, so that both mean the same server,
 * and the same user, whatever forms of a URL each knows.
 */
export function environmentOf(address: DatabaseAddress): Record<string, string> {
  if (!('url' in address))
    return {
      PGHOST: address.host,
      PGPORT: '5432',
      PGUSER: address.user,
      PGDATABASE: address.database,
      PGSSLMODE: 'disable',
      PGAPPNAME: applicationName,
    };
  const client = new pg.Client({ connectionString: address.url });
  const { host, port, user, database } = client;
  const password = client.password as unknown; // Its type leaves out that there may be none.
  const query = new URLSearchParams(address.url.split('?')[1] ?? '');
  const tls = Object.entries(parameters).flatMap(([parameter, name]) => {
    const value = query.get(parameter);
    return value === null ? [] : [[name, value]];
  });
  return {
    PGHOST: host,
    PGPORT: `${port}`,
    ...(user !== undefined && { PGUSER: user }),
    ...(database !== undefined && { PGDATABASE: database }),
    ...(typeof password === 'string' && { PGPASSWORD: password }),
    PGAPPNAME: applicationName,
    ...tlsOf(client),
    ...(Object.fromEntries(tls) as Record<string, string>),
  };
}

/**
 * As careful as our own client is by the same URL: it looks at certificates with `ssl=true`, and with `sslmode=prefer` and
 * `require`, at which libpq believes anybody.
 */
function tlsOf(client: pg.Client): Record<string, string> {
  const { ssl } = client as unknown as { ssl?: boolean | ConnectionOptions }; // Its type leaves it out.
  if (ssl === undefined || ssl === false) return { PGSSLMODE: 'disable' };
  if (ssl === true) return { PGSSLMODE: 'verify-full', PGSSLROOTCERT: systemRoots() };
  if (ssl.rejectUnauthorized === false) return { PGSSLMODE: 'require' };
  const isNameChecked = ssl.checkServerIdentity === undefined;
  return { PGSSLMODE: isNameChecked ? 'verify-full' : 'verify-ca', PGSSLROOTCERT: systemRoots() };
}

/** Where Debian and Red Hat have the certificates that they trust; libpq knows `system` from version 16 on. */
const rootFiles = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt'];

function systemRoots(): string {
  return rootFiles.find((file) => existsSync(file)) ?? 'system';
}

const applicationName = 'postillion-backup';
