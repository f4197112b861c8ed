/** Servers of Debian's PostgreSQL, which has pg_dump and pg_restore; the embedded one has neither. */
import { execFile } from 'node:child_process';
import { chown, mkdtemp, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll } from 'vitest';
import { openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { databasesDirectory } from './temporary-directory.ts';

const run = promisify(execFile);

export const postgresPrograms = '/usr/lib/postgresql/15/bin';

/** Says so where they are missing: what needs them is skipped. */
export async function hasPostgresPrograms(whatIsSkipped: string): Promise<boolean> {
  const found = await Promise.all(
    ['pg_dump', 'initdb'].map((name) =>
      stat(path.join(postgresPrograms, name)).then(
        () => true,
        () => false,
      ),
    ),
  );
  if (found.every(Boolean)) return true;
  console.warn(`${whatIsSkipped}: there is no PostgreSQL 15 in ${postgresPrograms}`);
  return false;
}

/** PostgreSQL does not run as root. */
const nobody = { uid: 65_534, gid: 65_534 };

export type OwnPostgres = { host: string; user: string; database: string };

/** What starts a server with an empty database of a user that may create roles; all are stopped after the file's tests. */
export function useOwnPostgres(): () => Promise<OwnPostgres> {
  const directories: string[] = [];
  const asOwner = process.getuid?.() === 0 ? nobody : {};
  afterAll(async () => {
    for (const directory of directories) {
      await run(
        `${postgresPrograms}/pg_ctl`,
        ['-D', path.join(directory, 'data'), '-m', 'immediate', 'stop'],
        {
          cwd: directory,
          ...asOwner,
        },
      ).catch(() => undefined);
      await rm(directory, { recursive: true, force: true });
    }
  });
  return async () => {
    const directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-cluster-'));
    if (process.getuid?.() === 0) await chown(directory, nobody.uid, nobody.gid);
    directories.push(directory);
    const here = { cwd: directory, ...asOwner };
    const data = path.join(directory, 'data');
    await run(
      `${postgresPrograms}/initdb`,
      ['-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C', '-N'],
      here,
    );
    const options = `-c listen_addresses= -c unix_socket_directories=${directory} -c fsync=off`;
    await run(
      `${postgresPrograms}/pg_ctl`,
      ['-D', data, '-w', '-l', path.join(directory, 'log'), '-o', options, 'start'],
      here,
    );
    const root = openDatabase({
      address: { host: directory, user: 'postgres', database: 'postgres' },
      connectionsMax: 1,
    });
    await root.rows(unpreparedStatement('create role postillion login createrole'));
    await root.rows(unpreparedStatement('create database postillion owner postillion'));
    await root.close();
    return { host: directory, user: 'postillion', database: 'postillion' };
  };
}
