import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { type Connection, type Database, unpreparedStatement } from './database.ts';
import { mendTenantWall } from './tenant-wall.ts';

/** `migrations/` at the project's root: the same distance from `src/` and from `dist/`. */
const migrationsDirectory = path.resolve(import.meta.dirname, '../../../migrations');

/** Any constant: whoever holds it is migrating this database. */
const migrationLock = 7_405_212_001;

/** A migration that waits longer for a lock would hold up every statement that queues behind it. */
const lockTimeoutMs = 5_000;

export type Migration = { version: number; name: string; file: string };

/**
 * Brings the schema up to date and returns what was applied. Several nodes may call it at once: one does the
 * work, the others wait for it. Each migration is a transaction of its own and is never run twice. What a restore into
 * another cluster has left out of the second wall is mended as well, as far as the user may.
 */
export async function migrate(database: Database): Promise<Migration[]> {
  const applied: Migration[] = [];
  // Looked at first without a lock: nearly every start finds nothing to do, and should not pay for finding it.
  for (const migration of await pendingMigrations(database)) {
    const text = await readFile(migration.file, 'utf8');
    const isNew = await database.transaction(async (transaction) => {
      // Another node's migration may take its time; this one's statements may not wait for others' locks.
      await transaction.allowTime(null);
      await transaction.rows(unpreparedStatement("select set_config('lock_timeout', '0', true)"));
      await transaction.rows(unpreparedStatement('select pg_advisory_xact_lock($1)'), [migrationLock]);
      await transaction.rows(
        unpreparedStatement(`create table if not exists schema_migrations (
          version integer primary key,
          name text not null,
          applied_at timestamptz not null default now()
        )`),
      );
      await transaction.rows(unpreparedStatement("select set_config('lock_timeout', $1, true)"), [
        `${lockTimeoutMs}`,
      ]);
      const recorded = await transaction.rows(
        unpreparedStatement(
          'insert into schema_migrations (version, name) values ($1, $2) on conflict do nothing returning version',
        ),
        [migration.version, migration.name],
      );
      if (recorded.length === 0) return false;
      await transaction.rows(unpreparedStatement(text));
      return true;
    });
    if (isNew) applied.push(migration);
  }
  // Also where nothing was pending: a database that was restored has all of its schema, and not the role.
  await mendTenantWall(database);
  return applied;
}

/** What this release needs and the database does not have yet; throws as `Connection.rows` does. */
export async function pendingMigrations(connection: Connection): Promise<Migration[]> {
  const [table] = await connection.rows(
    unpreparedStatement<{ exists: boolean }>("select to_regclass('schema_migrations') is not null as exists"),
  );
  const done = table?.exists
    ? await connection.rows(unpreparedStatement<{ version: number }>('select version from schema_migrations'))
    : [];
  const versions = new Set(done.map(({ version }) => version));
  return (await listMigrations()).filter(({ version }) => !versions.has(version));
}

async function listMigrations(): Promise<Migration[]> {
  const names = (await readdir(migrationsDirectory)).filter((name) => name.endsWith('.sql')).sort();
  return names.map((name) => ({
    version: Number.parseInt(name, 10),
    name: name.replace(/\.sql$/, ''),
    file: path.join(migrationsDirectory, name),
  }));
}
