/** A database that was restored into another cluster has its policies, but neither the role nor its grants. */
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import { type Database, openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../../src/platform/postgres/embedded.ts';
import { migrate } from '../../src/platform/postgres/migrate.ts';
import { examineServingRoles } from '../../src/platform/postgres/serving-role.ts';
import { examineTenantWall, makeServingRoles } from '../../src/platform/postgres/tenant-wall.ts';
import { findUnreadiness } from '../../src/roles/api.ts';
import { hasPostgresPrograms, postgresPrograms, useOwnPostgres } from '../support/postgres-programs.ts';

const run = promisify(execFile);
const newId = createIds(systemClock);
const unsafe = { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' };

const query = <Row>(database: Database, text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

/** Two organizations with a message each; returns whether one of them sees the other's. */
async function fill(database: Database): Promise<string[]> {
  const ids: string[] = [];
  for (const name of ['one', 'other']) {
    const { id } = await createOrganization({ database, clock: systemClock, newId }, name);
    await query(
      database,
      `insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'email', 'transactional', 'a@example.com', '{}', 1, now(), now())`,
      [id, newId()],
    );
    ids.push(id);
  }
  return ids;
}

/** How many messages a statement sees that names no organization. */
async function countSeen(database: Database, organizationId: string): Promise<number> {
  return database.asOrganizations([organizationId], async (transaction) => {
    const rows = await transaction.rows(unpreparedStatement('select from messages'));
    return rows.length;
  });
}

const listGrants = (database: Database) =>
  query(
    database,
    `select table_name, privilege_type from information_schema.role_table_grants
     where grantee = 'postillion_tenant' order by 1, 2`,
  );

describe('in a cluster of its own', () => {
  let directory: string;
  let address: { host: string; user: string; database: string };
  let stop: () => Promise<void>;
  let database: Database;
  let ids: string[];

  beforeAll(async () => {
    directory = await mkdtemp(path.join(tmpdir(), 'postillion-restored-'));
    await chmod(directory, 0o711);
    const postgres = await startEmbeddedPostgres({ dataDirectory: directory, settings: unsafe });
    stop = postgres.stop;
    address = postgres.connection;
    database = openDatabase({ address, connectionsMax: 2 });
    await migrate(database);
    ids = await fill(database);
  });
  afterAll(async () => {
    await database.close();
    await stop();
    await rm(directory, { recursive: true, force: true });
  });

  test('migrate brings back the role and every grant, also for a server that runs on without them', async () => {
    const grants = await listGrants(database);
    expect(grants.length).toBeGreaterThan(50);
    expect(await countSeen(database, ids[0]!)).toBe(1);
    await query(database, 'drop owned by postillion_tenant');
    await query(database, 'drop role postillion_tenant');
    expect(await examineTenantWall(database)).toEqual({ kind: 'missing' });
    // The server goes on, without the wall.
    expect(await countSeen(database, ids[0]!)).toBe(2);
    expect(await findUnreadiness({ database })).toBeNull();

    expect(await migrate(database)).toEqual([]);
    expect(await examineTenantWall(database)).toEqual({ kind: 'standing' });
    expect(await listGrants(database)).toEqual(grants);
    expect(await countSeen(database, ids[0]!)).toBe(1);
  });

  test('a role without its grants is no readiness, until migrate has granted them', async () => {
    await query(database, 'drop owned by postillion_tenant');
    expect(await findUnreadiness({ database })).toContain('postillion_tenant');
    const wall = await examineTenantWall(database);
    expect(wall.kind === 'unreachable' && wall.tables).toContain('messages');
    await migrate(database);
    expect(await findUnreadiness({ database })).toBeNull();
    expect(await countSeen(database, ids[1]!)).toBe(1);
  });

  test('migrate brings back what requests are served as, with its grants and policies', async () => {
    for (const role of ['postillion_serving', 'postillion_request']) {
      await query(database, `drop owned by ${role}`);
      await query(database, `drop role ${role}`);
    }
    expect(await examineServingRoles(database)).toEqual({ kind: 'missing' });
    // A server that serves as the owner goes on, behind the wall.
    expect(await countSeen(database, ids[0]!)).toBe(1);
    expect(await findUnreadiness({ database })).toBeNull();
    expect(await migrate(database)).toEqual([]);
    expect(await examineServingRoles(database)).toEqual({ kind: 'standing' });
    await query(database, 'drop owned by postillion_request');
    expect(await findUnreadiness({ database })).toContain('requests may not use');
    await migrate(database);
    expect(await findUnreadiness({ database })).toBeNull();
  });

  test('an owner who may create roles can enter the one that it has made', async () => {
    await query(database, 'create role maker login createrole');
    await query(database, 'drop owned by postillion_tenant');
    await query(database, 'drop role postillion_tenant');
    await query(database, 'create database made owner maker');
    const made = openDatabase({
      address: { ...address, user: 'maker', database: 'made' },
      connectionsMax: 2,
    });
    try {
      await migrate(made);
      expect(await examineTenantWall(made)).toEqual({ kind: 'standing' });
      const [first] = await fill(made);
      expect(await countSeen(made, first!)).toBe(1);
    } finally {
      await made.close();
    }
  });

  test('an owner who may not create roles serves without the wall, and is told so', async () => {
    await query(database, 'create role owner_only login');
    await query(database, 'create database owned owner owner_only');
    const owned = openDatabase({
      address: { ...address, user: 'owner_only', database: 'owned' },
      connectionsMax: 2,
    });
    try {
      await migrate(owned);
      expect(await examineTenantWall(owned)).toEqual({ kind: 'missing' });
      const [first] = await fill(owned);
      expect(await countSeen(owned, first!)).toBe(2);
      // An administrator grants the role to the owner: from the next statement on, the wall stands.
      await query(database, 'grant postillion_tenant to owner_only');
      await migrate(owned);
      expect(await examineTenantWall(owned)).toEqual({ kind: 'standing' });
      expect(await countSeen(owned, first!)).toBe(1);
    } finally {
      await owned.close();
    }
  });
});

const hasPrograms = await hasPostgresPrograms('no dump is restored');

describe.skipIf(!hasPrograms)('with pg_dump and pg_restore', () => {
  const startCluster = useOwnPostgres();

  test('a dump that is restored into a new cluster has the wall again after migrate', async () => {
    const [source, target] = [await startCluster(), await startCluster()];
    const original = openDatabase({ address: source, connectionsMax: 2 });
    await migrate(original);
    const [first] = await fill(original);
    const grants = await listGrants(original);
    await original.close();

    const connect = ({ host }: { host: string }) => ['-h', host, '-U', 'postillion', '-d', 'postillion'];
    const serving = openDatabase({ address: target, connectionsMax: 1 });
    // As restore does: policies are for them.
    expect(await makeServingRoles(serving)).toBe(true);
    await serving.close();
    const file = path.join(source.host, 'dump');
    await run(`${postgresPrograms}/pg_dump`, [...connect(source), '-Fc', '-f', file]);
    await run(`${postgresPrograms}/pg_restore`, [
      ...connect(target),
      '--no-owner',
      '--no-privileges',
      '--exit-on-error',
      file,
    ]);

    const restored = openDatabase({ address: target, connectionsMax: 2 });
    try {
      expect(await examineTenantWall(restored)).toEqual({ kind: 'missing' });
      expect(await migrate(restored)).toEqual([]);
      expect(await examineTenantWall(restored)).toEqual({ kind: 'standing' });
      expect(await examineServingRoles(restored)).toEqual({ kind: 'standing' });
      expect(await listGrants(restored)).toEqual(grants);
      expect(await countSeen(restored, first!)).toBe(1);
      expect(await findUnreadiness({ database: restored })).toBeNull();
    } finally {
      await restored.close();
    }
  });
});
