/** Of backups, of what they are restored into, of upgrades and of failovers. */
import type { Mutant } from '../mutant.ts';

export const backups: readonly Mutant[] = [
  {
    file: 'src/platform/postgres/base-backup.ts',
    from: ' TEMPORARY PHYSICAL (RESERVE_WAL)',
    to: ' TEMPORARY PHYSICAL',
    tests: ['src/platform/postgres/base-backup.test.ts'],
    named: 'slower than the log',
    harm: 'no backup of a busy installation succeeds, since the log that it needs is removed before it is copied',
  },
  {
    file: 'src/platform/postgres/base-backup.ts',
    from: 'Buffer.from(chunk.subarray(1))',
    to: 'Buffer.from(chunk)',
    tests: ['src/platform/postgres/base-backup.test.ts'],
    named: 'slower than the log',
    harm: 'a backup cannot be read when it is needed',
  },
  {
    file: 'src/platform/postgres/base-backup.ts',
    from: `      if (cause) {
        archive.destroy(cause);
        return;
      }
`,
    to: '',
    tests: ['src/platform/postgres/base-backup.test.ts'],
    named: 'goes away',
    harm: 'half a backup is taken for a whole one where PostgreSQL went away meanwhile',
  },
  {
    file: 'src/platform/postgres/embedded-restore.ts',
    from: 'if (await exists(place.cluster)) throw new Error(`there is a database in ${place.cluster}`);',
    to: '',
    tests: ['src/platform/postgres/base-backup.test.ts'],
    named: 'is not replaced',
    harm: 'a restore into the wrong folder destroys the database that was there',
  },
  {
    file: 'src/platform/postgres/embedded-restore.ts',
    from: "path.posix.isAbsolute(name) || parts.includes('..')",
    to: 'path.posix.isAbsolute(name)',
    tests: ['src/platform/postgres/base-backup.test.ts'],
    named: 'do not belong there',
    harm: 'a file that somebody sent as a backup writes wherever the operator may write',
  },
  {
    file: 'src/platform/tar.ts',
    from: "if (next.done === true) throw new Error('the archive is cut off');",
    to: 'if (next.done === true) next.value = Buffer.alloc(512);',
    tests: ['src/platform/tar.test.ts'],
    named: 'no whole one',
    harm: 'a backup that is cut off is restored as if it were whole',
  },
  {
    file: 'src/platform/postgres/database.ts',
    from: 'client.release(isReadOnlyFailure(cause));',
    to: 'client.release();',
    tests: ['src/platform/postgres/database.test.ts'],
    named: 'takes no writes',
    harm: 'after a failover, requests go on to a server that has become a standby, and fail until the node is restarted',
  },
  {
    file: 'src/platform/postgres/database.ts',
    from: 'client.release(!isAnswered || isReadOnlyFailure(cause));',
    to: 'client.release(!isAnswered);',
    tests: ['src/platform/postgres/database.test.ts'],
    named: 'takes no writes',
    harm: 'after a failover, messages go on to a server that has become a standby, and get 503 until the node is restarted',
  },
  {
    file: 'src/platform/postgres/database.ts',
    from: 'state === readOnly || ',
    to: '',
    tests: ['src/platform/postgres/database.test.ts'],
    named: 'takes no writes',
    harm: 'during a failover clients get 500 instead of 503, and workers take the errors for faults of messages',
  },
];
