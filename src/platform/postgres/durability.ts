import { type Connection, unpreparedStatement } from './database.ts';

/** A setting of PostgreSQL under which a commit promises less than it should, and what that means. */
export type DurabilityProblem = { setting: string; value: string; danger: string };

type Rule = { setting: string; safe: readonly string[]; danger: string };

/** The settings that make a committed row durable (PostgreSQL documentation, "Write Ahead Log"). */
const rules: readonly Rule[] = [
  {
    setting: 'fsync',
    safe: ['on'],
    danger: 'a crash of the machine can destroy the whole database',
  },
  {
    setting: 'full_page_writes',
    safe: ['on'],
    danger: 'a crash of the machine can leave torn pages, unless the storage writes pages whole',
  },
  {
    setting: 'synchronous_commit',
    // remote_apply waits for more than on does; local and remote_write for less than a synchronous standby's disk.
    safe: ['on', 'remote_apply'],
    danger: 'messages that were accepted with 202 can be lost in a crash or a failover',
  },
];

/**
 * Whether a commit of this connection survives a crash; none means that it does. Accepting messages relies on it, and
 * no other code can make up for what these settings give up. Throws as `Connection.rows` does.
 */
export async function findDurabilityProblems(connection: Connection): Promise<DurabilityProblem[]> {
  const found = await readDurability(connection);
  return found.flatMap(({ isSafe, ...problem }) => (isSafe ? [] : [problem]));
}

/** All of these settings, and whether each is safe. */
export async function readDurability(
  connection: Connection,
): Promise<(DurabilityProblem & { isSafe: boolean })[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ name: string; setting: string }>(
      'select name, setting from pg_settings where name = any ($1)',
    ),
    [rules.map(({ setting }) => setting)],
  );
  const values = new Map(rows.map(({ name, setting }) => [name, setting]));
  return rules.map(({ setting, safe, danger }) => {
    const value = values.get(setting) ?? 'unknown';
    return { setting, value, danger, isSafe: safe.includes(value) };
  });
}
