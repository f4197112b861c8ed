/** All tables of the schema, filled for two organizations with rows that have the same ids, names and addresses. */
import { type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';

export const acme = '01890f3c-0000-7000-8000-000000000001';
export const rival = '01890f3c-0000-7000-8000-000000000002';

const rowsIn = <Row>(database: Database, text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

export type Table = { name: string; has_organization: boolean; columns: { name: string; type: string }[] };

export const listTables = (database: Database) =>
  rowsIn<Table>(
    database,
    `select c.relname as name,
      bool_or(a.attname = 'organization_id') as has_organization,
      json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, null)) order by a.attnum)
        filter (where a.attgenerated = '') as columns
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace
    group by c.relname
    order by c.relname`,
  );

/** SQL over the number `i` of a row, by the type of its column: the same for each organization, ids of this month. */
const valuesByType: Readonly<Record<string, string>> = {
  uuid: `(left(lowest_id_at(now())::text, 24) || lpad(to_hex(i), 12, '0'))::uuid`,
  'uuid[]': `array[(left(lowest_id_at(now())::text, 24) || lpad(to_hex(i), 12, '0'))::uuid]`,
  text: `'text ' || i`,
  'text[]': `array['text ' || i]`,
  bytea: `sha256(i::text::bytea)`,
  integer: 'i',
  'integer[]': 'array[i]',
  smallint: 'i',
  bigint: 'i',
  numeric: 'i',
  boolean: 'false',
  date: `'2026-01-01'::date + i`,
  'timestamp with time zone': 'now()',
  'timestamp with time zone[]': 'array[now()]',
  jsonb: `jsonb_build_object('number', i)`,
  json: `json_build_object('number', i)`,
  inet: `'192.0.2.1'::inet`,
  'cidr[]': `array['192.0.2.0/24'::cidr]`,
};

/** What must differ between organizations, which a unique index over all of them says. */
const ofOneAlone: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  api_keys: { key_sha256: `sha256((o || i)::bytea)` },
  chat_app_accounts: { business_account_id: 'o || i', callback_token: 'o || i' },
  // Its organization is part of the event.
  chat_app_events: {
    id: 'gen_random_uuid()',
    event: `json_build_object('organizationId', o, 'number', i)`,
  },
  devices: { secret_sha256: `sha256((o || i)::bytea)` },
  domains: { status: `'pending'` },
  senders: { status: `'pending'` },
};

/** Makes the organizations, and up to so many rows of each in every table. */
export async function fillTables(
  database: Database,
  tables: readonly Table[],
  rowsOfEach: number,
): Promise<void> {
  const run = <Row>(text: string, values?: readonly unknown[]) => rowsIn<Row>(database, text, values);
  await run(`insert into organizations (id, name, created_at, updated_at)
    values ('${acme}', 'Acme', now(), now()), ('${rival}', 'Acme', now(), now())`);
  // An erasure takes what chat apps know of its address with it, and so comes first.
  const inOrder = [...tables].sort((a, b) => Number(b.name === 'erasures') - Number(a.name === 'erasures'));
  for (const { name, columns } of inOrder) {
    // What the rows mean is not asked for here.
    const checks = await run<{ conname: string }>(
      `select conname from pg_constraint where conrelid = $1::regclass and contype = 'c'`,
      [name],
    );
    for (const { conname } of checks) await run(`alter table ${name} drop constraint ${conname}`);
    const values = columns.map((column) => {
      const value =
        column.name === 'organization_id'
          ? 'o::uuid'
          : (ofOneAlone[name]?.[column.name] ?? valuesByType[column.type]);
      if (value === undefined) throw new Error(`${name}.${column.name}: no value for ${column.type}`);
      return value;
    });
    await run(`insert into ${name} (${columns.map((column) => column.name).join(', ')})
      select ${values.join(', ')}
      from unnest(array['${acme}', '${rival}']) o, generate_series(1, ${rowsOfEach}) i
      on conflict do nothing`);
  }
}
