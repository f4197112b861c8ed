import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { neighbourId } from '../../../test/support/neighbour.ts';
import { addressOfRequests, clientConfigOf, useTestDatabase } from '../../../test/support/test-database.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  requestRole,
  servingRole,
  unpreparedStatement,
} from './database.ts';
import { migrate } from './migrate.ts';
import {
  examineServingRoles,
  findUserKind,
  listPrivileges,
  mendServingRoles,
  servingPrivileges,
} from './serving-role.ts';

let database: Database;
let address: DatabaseAddress;
/** Logged in as who serves requests. */
let client: pg.Client;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  ({ database, address } = opened);
  client = new pg.Client(clientConfigOf(addressOfRequests(opened.address)));
});
beforeAll(() => client.connect());
afterAll(() => client.end());
beforeEach(async () => {
  await client.query('reset role');
});

const query = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

/** The SQLSTATE with which PostgreSQL refuses a statement; null if it does not. */
async function refusalOf(text: string): Promise<string | null> {
  return client.query(text).then(
    () => null,
    (cause: unknown) => (cause as pg.DatabaseError).code ?? 'none',
  );
}

const insufficientPrivilege = '42501';
/** A trigger of ours, and PostgreSQL itself, where what is asked for takes a superuser. */
const refused = [insufficientPrivilege, '0LP01'];

type Table = { name: string; columns: string[] };

function listTables(): Promise<Table[]> {
  return query<Table>(
    `select c.relname as name, array_agg(a.attname::text order by a.attnum) as columns
     from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
     group by c.relname
     order by 1`,
  );
}

/** Each statement needs one privilege and no other, and is planned, not run. */
function trialsOf({ name, columns }: Table): { privilege: string; text: string }[] {
  return [
    { privilege: 'select', text: `explain select from ${name}` },
    { privilege: 'delete', text: `explain delete from ${name}` },
    ...columns.flatMap((column) => [
      { privilege: `insert(${column})`, text: `explain insert into ${name} (${column}) values (null)` },
      { privilege: `update(${column})`, text: `explain update ${name} set ${column} = null` },
    ]),
  ];
}

function isListed(text: string, privilege: string): boolean {
  const listed = listPrivileges(text);
  return listed.includes(privilege) || listed.includes(privilege.replace(/\(.*/, ''));
}

test('the migrations make no table of which nobody has said what requests may do with it', async () => {
  const tables = (await listTables()).map(({ name }) => name);
  const unsaid = tables.filter((name) => !(name in servingPrivileges));
  expect(unsaid, 'say in servingPrivileges (serving-role.ts) what requests need of these tables').toEqual([]);
  expect(Object.keys(servingPrivileges).filter((name) => !tables.includes(name))).toEqual([]);
});

describe.each([
  // A member of the one is a member of the other, by its own rows' policies.
  [
    servingRole,
    ({ request = '', serving = '' }: { request?: string; serving?: string }) => `${request}, ${serving}`,
  ],
  [requestRole, ({ request = '' }: { request?: string }) => request],
])('as %s', (role, listedFor) => {
  test('every table can be used as it is listed, and in no other way', async () => {
    if (role === requestRole) await client.query(`set role ${requestRole}`);
    const wrong: string[] = [];
    for (const table of await listTables()) {
      const listed = listedFor(servingPrivileges[table.name] ?? {});
      for (const { privilege, text } of trialsOf(table)) {
        const refusal = await refusalOf(text);
        const isWanted = isListed(listed, privilege);
        if (isWanted ? refusal !== null : refusal !== insufficientPrivilege)
          wrong.push(`${privilege} on ${table.name}: ${refusal ?? 'allowed'}`);
      }
    }
    expect(wrong).toEqual([]);
  });
});

test('what is listed is used: each verb by a statement of the program, or by a trigger', async () => {
  const texts = (await readSources()).join('\n').replaceAll(/--.*$/gm, '').replaceAll(/\s+/g, ' ');
  const unused = Object.entries(servingPrivileges).flatMap(([table, { request = '', serving = '' }]) => {
    const verbs = new Set(listPrivileges(`${request}, ${serving}`).map((each) => each.replace(/\(.*/, '')));
    return [...verbs]
      .filter((verb) => !patternsOf(table)[verb]!.test(texts))
      .map((verb) => `${verb} on ${table}`);
  });
  expect(unused).toEqual([]);
});

/** Locking a row takes the right to change it. */
function patternsOf(table: string): Record<string, RegExp> {
  const withinStatement = '(?:(?!insert into |`).){0,1500}?';
  const changes = [
    `\\bupdate ${table}\\b`,
    `\\binsert into ${table}\\b${withinStatement}\\bdo update\\b`,
    `\\bfrom ${table}\\b${withinStatement}\\bfor (?:no key )?(?:update|share)\\b`,
  ];
  return {
    select: new RegExp(`\\b(?:from|join|using|update|into) (?:only )?${table}\\b`),
    insert: new RegExp(`\\binsert into ${table}\\b`),
    update: new RegExp(changes.join('|')),
    delete: new RegExp(`\\bdelete from ${table}\\b`),
  };
}

async function readSources(): Promise<string[]> {
  const root = path.resolve(import.meta.dirname, '../../..');
  const files = await Promise.all(
    ['src', 'schema'].map(async (folder) => {
      const names = await readdir(path.join(root, folder), { recursive: true });
      return names
        .filter((name) => (name.endsWith('.ts') && !name.endsWith('.test.ts')) || name.endsWith('.sql'))
        .map((name) => path.join(root, folder, name));
    }),
  );
  return Promise.all(files.flat().map((file) => readFile(file, 'utf8')));
}

test('it owns nothing, is no superuser, and does not pass by row-level security', async () => {
  const roles = await query<Record<string, unknown>>(
    `select r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolbypassrls or r.rolreplication as has_more,
       exists (select from pg_shdepend where refobjid = r.oid and deptype = 'o') as owns
     from pg_roles r
     where r.rolname in ('postillion_api', '${servingRole}', '${requestRole}')`,
  );
  expect(roles).toEqual(Array.from({ length: 3 }, () => ({ has_more: false, owns: false })));
  expect(await findUserKind(database)).toBe('owner');
});

test('of another organization it sees nothing but what it has to find across all of them', async () => {
  const count = async (table: string) => {
    const { rows } = await client.query<{ count: number }>(`select count(*)::integer as count from ${table}`);
    return rows[0]!.count;
  };
  await query(
    `insert into quota_usage (organization_id, channel, month, shard, used) values ($1, 'email', '2025-01-01', 0, 7)`,
    [neighbourId],
  );
  expect(await count('organizations')).toBeGreaterThan(0);
  expect(await count('quota_usage')).toBe(0);
  await client.query(`set role ${requestRole}`);
  expect(await count('organizations')).toBe(0);
  expect(await count('quota_usage')).toBe(0);
  await client.query("select set_config('postillion.organization_ids', $1, false)", [neighbourId]);
  expect(await count('organizations')).toBe(1);
  expect(await count('quota_usage')).toBe(1);
  await client.query("select set_config('postillion.organization_ids', '', false)");
});

const attacks = [
  `insert into api_keys (organization_id, id, name, prefix, key_sha256, scopes, created_at)
   values ('${neighbourId}', gen_random_uuid(), 'mine', 'x', sha256('x'), '{full_access}', now())`,
  'update api_keys set revoked_at = null',
  "update api_keys set scopes = '{full_access}'",
  'update api_keys set allowed_networks = null',
  'delete from api_keys',
  'update organizations set email_quota = null',
  "update organizations set suspended_channels = '{}'",
  'delete from quota_usage',
  "update quota_usage set month = '2020-01-01'",
  "insert into senders (organization_id, id, name, type, created_at, updated_at) values (gen_random_uuid(), gen_random_uuid(), 'Bank', 'alphanumeric', now(), now())",
  "update senders set status = 'approved'",
  'alter table domains disable trigger all',
  'insert into secret_keys default values',
  'delete from schema_migrations',
  'alter table contacts disable row level security',
  'drop policy own_organization on contacts',
  'alter table contacts owner to current_user',
  'create policy mine on contacts using (true)',
  'truncate messages',
  'drop table messages',
  'create table public.mine (id integer)',
  'create function public.mine() returns integer language sql as $$ select 1 $$',
  'create schema mine',
  'create extension file_fdw',
  'create role mine',
  'alter role postillion_api superuser',
  'alter role postillion_api bypassrls',
  'grant postillion_tenant to postillion_api',
  'set role postillion_tenant',
  'set role postillion',
  'set session authorization postillion',
  'select rolpassword from pg_authid',
  "select pg_read_file('postgresql.conf')",
  "select pg_ls_dir('.')",
  "select lo_import('/etc/passwd')",
  "copy (select 1) to program 'true'",
  "copy (select 1) to '/tmp/mine'",
  "create temporary table lines (line text); copy lines from '/etc/passwd'",
  'alter system set fsync = off',
  'select pg_reload_conf()',
  "call create_any_partitions('messages', '2033-01-01T00:00:00Z', 'day', 1)",
  'alter procedure create_partitions reset all',
];

test.each(attacks)('it may not: %s', async (text) => {
  expect(refused).toContain(await refusalOf(text));
  await client.query(`set role ${requestRole}`);
  expect(refused).toContain(await refusalOf(text));
});

test('what was used of a quota can be added to, and not taken back', async () => {
  const used = `from quota_usage where organization_id = '${neighbourId}' and channel = 'sms' and month = '2026-01-01'`;
  await client.query("select set_config('postillion.organization_ids', $1, false)", [neighbourId]);
  await client.query(`set role ${requestRole}`);
  await client.query(
    `insert into quota_usage (organization_id, channel, month, shard, used) values ($1, 'sms', '2026-01-01', 0, 3)`,
    [neighbourId],
  );
  const change = (to: string) =>
    refusalOf(
      `update quota_usage set used = ${to}
       where organization_id = '${neighbourId}' and channel = 'sms' and month = '2026-01-01'`,
    );
  expect(await change('used + 2')).toBeNull();
  expect(await change('used - 1')).toBe(insufficientPrivilege);
  expect(await change('0')).toBe(insufficientPrivilege);
  expect(await query(`select used ${used}`)).toEqual([{ used: 5 }]);
  // The owner may correct it.
  expect(
    await query(`update quota_usage set used = 1 where used = 5 and month = '2026-01-01' returning used`),
  ).toEqual([{ used: 1 }]);
  await client.query("select set_config('postillion.organization_ids', '', false)");
});

describe('a domain', () => {
  const [own, id] = [`organization_id = '${neighbourId}'`, '01934c1e-9f3a-7cc0-8b1a-0123456789ab'];
  const given = { organization_id: `'${neighbourId}'`, id: `'${id}'`, name: `'bank.example'` };
  const required = { ...given, created_at: 'now()', updated_at: 'now()' };
  const insert = (columns: Record<string, string>) =>
    `insert into domains (${Object.keys(columns).join(', ')}) values (${Object.values(columns).join(', ')})`;
  /** What the row has that the owner reads. */
  const find = () =>
    query<Record<string, unknown>>(`select status, verified_at, findings, last_checked_at, degraded_since,
      checks_asked, checks_answered, checking_until from domains where ${own} and id = '${id}'`);
  const pending = {
    status: 'pending',
    verified_at: null,
    findings: {},
    last_checked_at: null,
    degraded_since: null,
    checks_asked: 0,
    checks_answered: 0,
    checking_until: null,
  };
  const asked = { ...pending, checks_asked: 7 };

  beforeEach(async () => {
    await client.query("select set_config('postillion.organization_ids', $1, false)", [neighbourId]);
    await query(`delete from domains where ${own}`);
  });
  afterEach(() => client.query("select set_config('postillion.organization_ids', '', false)"));

  test.each([servingRole, requestRole])(
    'is made pending, and made verified in no way, as %s',
    async (role) => {
      if (role === requestRole) await client.query(`set role ${requestRole}`);
      const { columns } = (await listTables()).find(({ name }) => name === 'domains')!;
      const settable = new Set(listPrivileges(servingPrivileges.domains!.request!));
      const ways = columns.flatMap((column) => {
        const value = column === 'status' ? `'verified'` : column === 'verified_at' ? 'now()' : column;
        const set = `set ${column} = ${value}`;
        const changes = [
          `update domains ${set} where ${own}`,
          `${insert(required)} on conflict (organization_id, id) do update ${set.replace(`= ${column}`, `= domains.${column}`)}`,
          `merge into domains using (values (1)) as one (n) on ${own} when matched then update ${set}`,
          `with changed as (update domains ${set} where ${own} returning 1) select * from changed`,
        ];
        return [
          ...(settable.has(`update(${column})`) ? [] : changes),
          ...(settable.has(`insert(${column})`) ? [] : [insert({ ...required, [column]: 'default' })]),
        ];
      });
      expect(ways.length).toBeGreaterThan(4 * (columns.length - 1));
      await query(insert(required));
      const allowed: string[] = [];
      for (const text of [...ways, 'copy domains from stdin', 'insert into domains select * from domains'])
        if ((await refusalOf(text)) !== insufficientPrivilege) allowed.push(text);
      expect(allowed).toEqual([]);
      expect(await find()).toEqual([pending]);
    },
  );

  test('is registered, asked to be checked, and deleted by requests', async () => {
    await client.query(`set role ${requestRole}`);
    expect(await refusalOf(insert(required))).toBeNull();
    expect(await find()).toEqual([pending]);
    expect(await refusalOf(`update domains set checks_asked = 7 where ${own}`)).toBeNull();
    await query(`update domains set checks_answered = 5 where ${own}`);
    const checkViolation = '23514';
    expect(await refusalOf(`update domains set checks_asked = 4 where ${own}`)).toBe(checkViolation);
    expect(await refusalOf(`update domains set checks_asked = ${2 ** 53} where ${own}`)).toBe(checkViolation);
    expect(await find()).toEqual([{ ...asked, checks_answered: 5 }]);
    expect(await refusalOf(`delete from domains where ${own}`)).toBeNull();
    expect(await find()).toEqual([]);
  });
});

test('no function runs as the owner for them but the one that makes partitions', async () => {
  const functions = await query<{ name: string }>(
    `select p.proname as name
     from pg_proc p
     where p.pronamespace = 'public'::regnamespace and p.prosecdef
       -- Of the tests: they make the neighbour's rows.
       and p.proname not like 'plant_twins_in_%'
       and has_function_privilege('${servingRole}', p.oid, 'execute')`,
  );
  expect(functions).toEqual([{ name: 'create_partitions' }]);
});

test('it makes partitions of the tables that are there, some at once, and of nothing else', async () => {
  const call = (parent: string, unit = 'day', ahead = '2') =>
    refusalOf(`call create_partitions('${parent}', '2031-05-01T00:00:00Z', '${unit}', ${ahead})`);
  expect(await call('messages')).toBeNull();
  const names = await query<{ name: string }>(
    `select name from partitions_of('messages') where name like '%2031%' order by 1`,
  );
  expect(names.length).toBeGreaterThanOrEqual(2);
  expect(await call('messages', 'day', '13')).toBe('22023');
  expect(await call('messages', 'hour')).toBe('22023');
  expect(await call('contacts')).toBe('42809');
  // One of its own, which would run what it says as the owner.
  await client.query('create temporary table mine (id uuid) partition by range (id)');
  expect(await call('pg_temp.mine')).toBe('42809');
  // Nor does a table of the same name lead it astray.
  await client.query('create temporary table pg_inherits (inhparent oid, inhrelid oid)');
  await client.query('create temporary table pg_class (oid oid)');
  expect(await call('messages', 'week')).toBeNull();
});

describe('what is granted', () => {
  test('is mended by migrate, whatever is missing or too much', async () => {
    expect(await examineServingRoles(database)).toEqual({ kind: 'standing' });
    await query(`revoke select on contacts from ${requestRole}`);
    await query('drop policy served on api_keys');
    expect(await examineServingRoles(database)).toEqual({
      kind: 'unreachable',
      tables: ['api_keys', 'contacts'],
    });
    await migrate(database);
    expect(await examineServingRoles(database)).toEqual({ kind: 'standing' });
    await query(`grant update on api_keys to ${servingRole}`);
    await query(`grant insert(status) on domains to ${requestRole}`);
    await query(`create policy served on contacts to ${servingRole} using (true)`);
    expect(await examineServingRoles(database)).toEqual({
      kind: 'too_open',
      tables: ['api_keys', 'contacts', 'domains'],
    });
    await migrate(database);
    expect(await examineServingRoles(database)).toEqual({ kind: 'standing' });
    expect(await refusalOf('update api_keys set last_used_at = now() where false')).toBeNull();
  });

  test('is not taken back from a newer release', async () => {
    await query(`grant delete on consent_grants to ${requestRole}`);
    await query("insert into schema_migrations (version, name) values (9999, 'newer')");
    await migrate(database);
    expect(await examineServingRoles(database)).toEqual({ kind: 'too_open', tables: ['consent_grants'] });
    await query('delete from schema_migrations where version = 9999');
    await migrate(database);
    expect(await examineServingRoles(database)).toEqual({ kind: 'standing' });
  });

  test('is not changed by who serves requests', async () => {
    const alone = openDatabase({ address: addressOfRequests(address), connectionsMax: 1 });
    try {
      expect(await findUserKind(alone)).toBe('serving');
      // Who may grant nothing leaves all as it is.
      await mendServingRoles(alone, { isNewer: false });
      expect(await examineServingRoles(alone)).toEqual({ kind: 'standing' });
    } finally {
      await alone.close();
    }
  });
});
