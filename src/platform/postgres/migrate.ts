import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { type Clock, sleep, systemClock } from '../clock.ts';
import {
  type Connection,
  type Database,
  isConflict,
  type Transaction,
  unpreparedStatement,
} from './database.ts';
import { examineServingRoles, mendServingRoles } from './serving-role.ts';
import { examineTenantWall, mendTenantWall } from './tenant-wall.ts';

/**
 * `schema/` at the project's root: the same distance from `src/` and from `dist/`. Its files make the schema room by room,
 * in the order of their numbers. From the first release on, what is released stays as it is, and each change is one more
 * file, with the next number; until then a change edits these files, and begins with a new database.
 */
const schemaDirectory = path.resolve(import.meta.dirname, '../../../schema');

/** Any constant: the process that holds this lock is migrating the database. */
const migrationLock = 7_405_212_001;

/**
 * A migration that waits longer for a lock would hold up every statement that queues for it. Shorter than two of
 * PostgreSQL's `deadlock_timeout` (1 s), an autovacuum in the way would not be told to go.
 */
const lockTimeoutMs = 2_000;
/** What was held up meanwhile gets its turn. */
const lockPauseMs = 3_000;
/** Transactions of the service are over by then; commands other than `migrate` are given up after three minutes. */
const lockWaitMaxMs = 120_000;

export type Migration = { version: number; name: string; file: string };

/** The schema of the database is none of this program's history: nothing brings it up to date. Its message is a sentence. */
export class ForeignSchemaError extends Error {
  override readonly name = 'ForeignSchemaError';
}

export type MigrationOptions = {
  clock?: Clock;
  /** With other files in tests. */
  directory?: string;
};

/**
 * Brings the schema up to date and returns what was applied. Several nodes may call it at once: one does the
 * work, the others wait for it. Each migration is a transaction of its own and is never run twice. What a restore into
 * another cluster has left out of the second wall, and what the user that serves requests lacks or has too much, is mended
 * as well, as far as the user may. A lock that others hold is tried for again and again for two minutes; then an error says
 * who is in the way. Throws as `pendingMigrations` does.
 */
export async function migrate(
  database: Database,
  { clock = systemClock, directory = schemaDirectory }: MigrationOptions = {},
): Promise<Migration[]> {
  const applied: Migration[] = [];
  // Looked at first without a lock: nearly every start finds nothing to do, and should not pay for finding it.
  for (const migration of await pendingMigrations(database, directory)) {
    const text = await readFile(migration.file, 'utf8');
    const isNew = await apply(database, migration, text, clock);
    if (isNew) applied.push(migration);
  }
  // Also where nothing was pending: a database that was restored has all of its schema, and not the roles.
  const wall = await examineTenantWall(database);
  const serving = await examineServingRoles(database);
  if (wall.kind !== 'standing' || serving.kind !== 'standing') {
    await database.transaction(async (transaction) => {
      await beAlone(transaction);
      await mendTenantWall(transaction);
      await mendServingRoles(transaction, { isNewer: await isOfNewerRelease(transaction, directory) });
    });
  }
  return applied;
}

/** Whether it was this node that applied it. */
async function apply(database: Database, migration: Migration, text: string, clock: Clock): Promise<boolean> {
  const giveUpAtMs = clock.monotonicMs() + lockWaitMaxMs;
  for (;;) {
    try {
      return await applyOnce(database, migration, text);
    } catch (cause) {
      if (!isConflict(cause)) throw cause;
      // Without the cause: its words, "canceling statement due to lock timeout", say less.
      if (clock.monotonicMs() >= giveUpAtMs) throw new Error(await describeWait(database, migration));
    }
    await sleep(clock, lockPauseMs);
  }
}

function applyOnce(database: Database, migration: Migration, text: string): Promise<boolean> {
  return database.transaction(async (transaction) => {
    await beAlone(transaction);
    await transaction.rows(
      unpreparedStatement(`create table if not exists schema_migrations (
        version integer primary key,
        name text not null,
        applied_at timestamptz not null default now()
      )`),
    );
    // Unlike for its turn, it may not wait long for what others hold.
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
}

/** Until the end of the transaction no other node migrates. It may take its time before. */
async function beAlone(transaction: Transaction): Promise<void> {
  await transaction.allowTime(null);
  await transaction.rows(unpreparedStatement("select set_config('lock_timeout', '0', true)"));
  await transaction.rows(unpreparedStatement('select pg_advisory_xact_lock($1)'), [migrationLock]);
}

/** The oldest transactions that hold a lock on one of the tables; of connections of other users some columns are null. */
const lockHolders = unpreparedStatement<{ pid: number; name: string | null }>(
  `select pid, coalesce(nullif(application_name, ''), backend_type) as name
   from pg_stat_activity
   where datname = current_database() and pid <> pg_backend_pid() and pid in (
     select l.pid
     from pg_locks l
     join pg_class c on c.oid = l.relation
     where l.granted and l.database = (select oid from pg_database where datname = current_database())
       and c.relnamespace = current_schema()::regnamespace
   )
   order by xact_start nulls last
   limit 3`,
);

async function describeWait(database: Database, { name }: Migration): Promise<string> {
  const holders = await database.rows(lockHolders);
  const suspects = holders.map((holder) => `process ${holder.pid} (${holder.name ?? 'of another user'})`);
  const found = suspects.length === 0 ? '' : `; locks are held by ${suspects.join(', ')}`;
  return `Migration ${name} waits for a lock that another transaction holds${found}. Wait until a backup or a long transaction is over, or end it, and migrate again: nothing was changed by this migration.`;
}

/**
 * What this release needs and the database does not have yet. What the database has beyond that is of a newer release, which
 * may run beside this one. Throws a ForeignSchemaError if it has something else under a number that this release knows, and
 * as `Connection.rows` does.
 */
export async function pendingMigrations(
  connection: Connection,
  directory: string = schemaDirectory,
): Promise<Migration[]> {
  const [table] = await connection.rows(
    unpreparedStatement<{ exists: boolean }>("select to_regclass('schema_migrations') is not null as exists"),
  );
  const done = table?.exists
    ? await connection.rows(
        unpreparedStatement<{ version: number; name: string }>('select version, name from schema_migrations'),
      )
    : [];
  const names = new Map(done.map(({ version, name }) => [version, name]));
  return (await listMigrations(directory)).filter(({ version, name }) => {
    const found = names.get(version);
    if (found !== undefined && found !== name)
      throw new ForeignSchemaError(
        `The database has a schema from before the first release (${found} instead of ${name}), which nothing brings up to date: begin with a new database, or another data directory.`,
      );
    return found === undefined;
  });
}

/** Whether the schema has migrations that this release does not know. */
async function isOfNewerRelease(connection: Connection, directory: string): Promise<boolean> {
  const known = (await listMigrations(directory)).map(({ version }) => version);
  const [row] = await connection.rows(
    unpreparedStatement<{ is_newer: boolean }>(
      'select exists (select from schema_migrations where version <> all ($1::integer[])) as is_newer',
    ),
    [known],
  );
  return row?.is_newer === true;
}

async function listMigrations(directory: string): Promise<Migration[]> {
  const names = (await readdir(directory)).filter((name) => name.endsWith('.sql')).sort();
  return names.map((name) => ({
    version: Number.parseInt(name, 10),
    name: name.replace(/\.sql$/, ''),
    file: path.join(directory, name),
  }));
}
