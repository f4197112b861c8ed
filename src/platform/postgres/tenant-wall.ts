import {
  canEnter,
  type Connection,
  requestRole,
  servingRole,
  tenantRole,
  unpreparedStatement,
} from './database.ts';

/**
 * The second wall between organizations: row-level security, under the role that work on their data enters. (Requests
 * enter another one, which may do less: serving-role.ts.) Migrations make the policies, which belong to the tables and come back with a dump. The role belongs to the cluster: a database that is
 * restored into another one has the policies, and neither the role nor the grants to it. So they are looked at, and
 * mended, whenever the schema is brought up to date, also when no migration is pending.
 *
 * - `standing`: work runs under the role, and it may do on each table what is needed.
 * - `missing`: there is no role that the user of this connection may enter. Work runs without the wall.
 * - `unreachable`: it enters the role, and may not do on these tables what is needed. It fails.
 */
export type TenantWall =
  { kind: 'standing' } | { kind: 'missing' } | { kind: 'unreachable'; tables: string[] };

/**
 * What the role needs, as the schema grants it: a table and a privilege a row. A request
 * reads its organization and never changes it.
 */
const neededPrivileges = `
  select c.oid, c.oid::regclass::text as name, needed.privilege
  from pg_class c
  cross join unnest(array['select', 'insert', 'update', 'delete']) as needed (privilege)
  where c.relnamespace = current_schema()::regnamespace
    and not c.relispartition
    and c.relkind in ('r', 'p')
    and c.relrowsecurity
    and (c.relname <> 'organizations' or needed.privilege = 'select')`;

export async function examineTenantWall(connection: Connection): Promise<TenantWall> {
  const [role] = await connection.rows(
    unpreparedStatement<{ can_enter: boolean | null }>(`select ${canEnter(tenantRole)} as can_enter`),
  );
  if (role?.can_enter !== true) return { kind: 'missing' };
  const rows = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select distinct name
       from (${neededPrivileges}) needed
       where not has_table_privilege('${tenantRole}', oid, privilege)
       order by 1`,
    ),
  );
  return rows.length === 0
    ? { kind: 'standing' }
    : { kind: 'unreachable', tables: rows.map(({ name }) => name) };
}

/** A block of its own for each: what the user may not do must not undo the others. */
const mends = [
  ...[tenantRole, requestRole, servingRole].map(makeRole),
  ...([tenantRole, requestRole] as const).map(
    (role) => `do $$
   begin
     if to_regrole('${role}') is not null and not ${canEnter(role)} then
       execute format('grant ${role} to %I', session_user);
     end if;
   exception
     when unique_violation or insufficient_privilege then null;
   end
   $$`,
  ),
  `do $$
   begin
     if not pg_has_role(to_regrole('${servingRole}'), to_regrole('${requestRole}'), 'member') then
       grant ${requestRole} to ${servingRole};
     end if;
   exception
     when unique_violation or insufficient_privilege then null;
   end
   $$`,
  `do $$
   declare
     missing record;
   begin
     if to_regrole('${tenantRole}') is null then
       return;
     end if;
     for missing in
       select oid::regclass as name, string_agg(privilege, ', ') as privileges
       from (${neededPrivileges}) needed
       where not has_table_privilege('${tenantRole}', oid, privilege)
       group by oid
     loop
       begin
         execute format('grant %s on %s to ${tenantRole}', missing.privileges, missing.name);
       exception
         when insufficient_privilege then null;
       end;
     end loop;
   end
   $$`,
];

function makeRole(role: string): string {
  return `do $$
   begin
     if to_regrole('${role}') is null then
       create role ${role} nologin;
     end if;
   exception
     -- Roles belong to the whole cluster: another database's migration may be creating it at this moment.
     when duplicate_object or unique_violation or insufficient_privilege then null;
   end
   $$`;
}

/** Makes what policies are for, where it is missing, and returns whether it is there: the user may have no right to. */
export async function makeServingRoles(connection: Connection): Promise<boolean> {
  for (const role of [requestRole, servingRole]) await connection.rows(unpreparedStatement(makeRole(role)));
  const [found] = await connection.rows(
    unpreparedStatement<{ are_there: boolean }>(
      `select to_regrole('${requestRole}') is not null and to_regrole('${servingRole}') is not null as are_there`,
    ),
  );
  return found?.are_there === true;
}

/**
 * Makes the roles, lets the user of this connection enter those of the wall, and grants `postillion_tenant` what is missing,
 * as far as the user may. Two that do it at once for one database would get in each other's way.
 */
export async function mendTenantWall(connection: Connection): Promise<void> {
  for (const mend of mends) await connection.rows(unpreparedStatement(mend));
}
