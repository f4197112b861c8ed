/**
 * The user that requests are served as, and how little it may do.
 *
 * Three kinds of users work in a database. Its **owner** migrates the schema, delivers and keeps house (workers), and runs
 * the operator's commands. The **API** logs in as a user that owns nothing and is a member of `postillion_serving`; within
 * an organization it enters `postillion_request`, which row-level security holds to the rows of that organization. What
 * the two may do stands in `servingPrivileges`, by table, verb and column, and nowhere else: grants and policies are made
 * from it whenever the schema is brought up to date, and what is too much is taken back.
 *
 * So whoever makes the API run a statement of theirs, or has its connection, makes no API key and revokes none, raises no
 * quota and lifts no suspension, approves no sender, switches no policy off, and reads neither files nor passwords.
 *
 * Not promised: that organizations are apart from somebody who has the connection itself. It names the organizations that
 * it acts for, and may name any.
 */
import { type Connection, requestRole, servingRole, unpreparedStatement } from './database.ts';

/**
 * Verbs, separated by commas; `update(a, b)` is for these columns alone. `request` is within an organization; `serving` is
 * across all of them, for what finds out whose something is, and for tables that belong to none.
 */
type Privileges = { request?: string; serving?: string };

export const servingPrivileges: Readonly<Record<string, Privileges>> = {
  // Keys are looked up, and their use is noted. They are made and revoked by the operator.
  api_keys: { serving: 'select, update(last_used_at, last_used_address)' },
  // Its plan is the operator's, and so is its suspension.
  organizations: { request: 'select', serving: 'select' },
  // What was used only grows, by a trigger.
  quota_usage: { request: 'select, insert, update(used)' },
  // Measured by workers. Whether an organization has reached its limit is looked up with its key.
  storage_usage: { serving: 'select' },
  // Approved by the operator.
  senders: { request: 'select' },
  // Verified by workers, who look them up in the DNS, and by the operator's word. Whoever serves requests registers one as
  // pending, asks for a check, and deletes one.
  domains: {
    request: `select, delete,
      insert(organization_id, id, name, return_path_subdomain, tracking_subdomain, open_tracking, click_tracking,
        dkim_selector, dkim_public_key, dkim_private_key_sealed, next_check_at, created_at, updated_at),
      update(checks_asked)`,
    // Whether another organization has the name.
    serving: 'select',
  },

  // Of the installation.
  rate_windows: { serving: 'select, insert, update' },
  schema_migrations: { serving: 'select' },
  secret_keys: { serving: 'select' },
  workers: { serving: 'select' },
  open_breakers: { serving: 'select' },
  // The page of the sandbox, which shows and clears what was sent there.
  sandbox_messages: { serving: 'select, delete' },

  // What providers report, before anybody knows of which organization it is.
  provider_events: { serving: 'insert' },
  sms_events: { serving: 'insert' },
  chat_app_events: { serving: 'insert' },
  provider_ids: { serving: 'select' },
  // Whose a callback is.
  chat_app_accounts: { request: 'select', serving: 'select' },
  // Whose a device's secret is.
  devices: { request: 'select, insert, update, delete', serving: 'select' },
  // Whose the page is on which a push is tried.
  push_credentials: { request: 'select', serving: 'select' },

  // Counted for the operator, of all organizations together.
  delivery_queue: { request: 'select, insert, update, delete', serving: 'select' },
  delivery_slices: { request: 'select, update, delete', serving: 'select' },
  campaigns: { request: 'select, insert, update', serving: 'select' },
  contact_changes: { request: 'select, insert', serving: 'select' },

  // Messages.
  idempotency_keys: { request: 'select, insert, update' },
  messages: { request: 'select, insert, update' },
  recipients: { request: 'select, insert, update' },
  message_contents: { request: 'select, insert' },
  message_tags: { request: 'select, insert' },
  attachment_contents: { request: 'select, insert, delete' },
  recipient_changes: { request: 'insert' },
  recipient_counts: { request: 'select' },
  push_engagements: { request: 'select, insert, update' },
  campaign_slices: { request: 'select, delete' },

  // Audience. Deleting a contact leaves by triggers what is to be erased.
  contacts: { request: 'select, insert, update, delete' },
  contact_properties: { request: 'select, insert, update' },
  contact_sets: { request: 'select, insert, update' },
  contact_erasures: { request: 'select, insert' },
  consent_grants: { request: 'select, insert, update' },
  erasures: { request: 'select, insert, update' },
  holds: { request: 'select, insert, delete' },
  memberships: { request: 'select, insert, delete' },
  membership_counts: { request: 'select, insert, update' },
  segments: { request: 'select, insert, update, delete' },
  suppressions: { request: 'select, insert, update, delete' },
  dead_device_tokens: { request: 'select' },

  // Events.
  events: { request: 'select, insert' },
  event_definitions: { request: 'select, insert, update' },
  conversion_sums: { request: 'select' },
  pending_conversions: { request: 'insert' },

  // Templates and chat-app.
  templates: { request: 'select, insert, update, delete' },
  chat_templates: { request: 'select, insert, update' },
  chat_app_choices: { request: 'select, update, delete' },
  chat_app_limits: { request: 'select' },
  chat_app_people: { request: 'select, delete' },
  chat_app_reached_counts: { request: 'select' },

  // Webhooks. The log is numbered by workers.
  webhooks: { request: 'select, insert, update, delete' },
  webhook_interests: { request: 'select, insert, delete' },
  webhook_outbox: { request: 'insert' },
  webhook_positions: {
    request: `select, insert(organization_id, is_untold, has_alerts), update(is_untold, has_alerts)`,
  },
  webhook_cursors: { request: 'select, insert, update, delete' },
  webhook_deliveries: { request: 'select, insert, update, delete' },
  webhook_attempts: { request: 'select' },
  webhook_events: { request: 'select' },
  webhook_event_days: { request: 'select' },

  // Alerts. They are sent by workers.
  alert_settings: { request: 'select, insert, update, delete' },
  alerts: { request: 'select, delete' },
  alert_watches: { request: 'select, delete' },

  // What was asked, which nobody changes.
  request_log: { request: 'select, insert' },

  // Of workers and the operator alone.
  chat_app_reached_people: {},
  conversions: {},
  event_imports: {},
  hand_offs: {},
  postmaster_mail: {},
  reputation_counts: {},
  storage_measuring: {},
};

/** Which of the roles, and what is to be granted to it or is. */
type Granted = { role: string; table: string; privilege: string };

/**
 * - `standing`: the roles may do what requests need, and nothing else.
 * - `missing`: there are no such roles, and whoever migrates may make none. Requests are served as the owner.
 * - `unreachable`: on these tables they may not do what requests need, which fail.
 * - `too_open`: on these tables they may do more.
 */
export type ServingRoles =
  { kind: 'standing' | 'missing' } | { kind: 'unreachable' | 'too_open'; tables: string[] };

export async function examineServingRoles(connection: Connection): Promise<ServingRoles> {
  const { areThere, missing, excess } = await compare(connection);
  if (!areThere) return { kind: 'missing' };
  if (missing.length > 0) return { kind: 'unreachable', tables: tablesOf(missing) };
  return excess.length > 0 ? { kind: 'too_open', tables: tablesOf(excess) } : { kind: 'standing' };
}

function tablesOf(granted: readonly Granted[]): string[] {
  return [...new Set(granted.map(({ table }) => table))].sort();
}

/** A policy counts as a privilege of its table: without it `postillion_serving` sees no row there. */
const seesAll = 'see all rows';

type Comparison = { areThere: boolean; missing: Granted[]; excess: Granted[] };

async function compare(connection: Connection): Promise<Comparison> {
  const [roles] = await connection.rows(selectRoles);
  if (roles?.are_there !== true) return { areThere: false, missing: [], excess: [] };
  const tables = await connection.rows(selectTables);
  const wanted = tables.flatMap(({ name, is_walled: isWalled }) => wantedOf(name, isWalled));
  const found = (await connection.rows(selectGranted)).filter(({ table }) => table in servingPrivileges);
  const keyOf = ({ role, table, privilege }: Granted) => `${role} ${table} ${privilege}`;
  const without = (all: readonly Granted[], others: readonly Granted[]) => {
    const keys = new Set(others.map(keyOf));
    return all.filter((each) => !keys.has(keyOf(each)));
  };
  return { areThere: true, missing: without(wanted, found), excess: without(found, wanted) };
}

function wantedOf(table: string, isWalled: boolean): Granted[] {
  const { request = '', serving = '' } = servingPrivileges[table] ?? {};
  return [
    ...listPrivileges(request).map((privilege) => ({ role: requestRole, table, privilege })),
    ...listPrivileges(serving).map((privilege) => ({ role: servingRole, table, privilege })),
    ...(serving !== '' && isWalled ? [{ role: servingRole, table, privilege: seesAll }] : []),
  ];
}

/** One for each column, as PostgreSQL keeps them: `update(a, b)` is `update(a)` and `update(b)`. */
export function listPrivileges(text: string): string[] {
  return [...text.matchAll(/([a-z]+)(?:\(([^)]+)\))?/g)].flatMap(([, verb = '', columns]) =>
    columns === undefined ? [verb] : columns.split(/,\s*/).map((column) => `${verb}(${column})`),
  );
}

const selectRoles = unpreparedStatement<{ are_there: boolean }>(
  `select to_regrole('${requestRole}') is not null
     and to_regrole('${servingRole}') is not null
     and pg_has_role('${servingRole}', '${requestRole}', 'member') as are_there`,
);

const ofTables = `c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition`;

const selectTables = unpreparedStatement<{ name: string; is_walled: boolean }>(
  `select c.relname as name, c.relrowsecurity as is_walled
   from pg_class c
   where ${ofTables}`,
);

const selectGranted = unpreparedStatement<Granted>(
  `with granted (grantee, name, privilege) as (
     select acl.grantee, c.relname, lower(acl.privilege_type)
     from pg_class c
     cross join lateral aclexplode(c.relacl) acl
     where ${ofTables}
     union all
     select acl.grantee, c.relname, format('%s(%s)', lower(acl.privilege_type), a.attname)
     from pg_class c
     join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
     cross join lateral aclexplode(a.attacl) acl
     where ${ofTables}
     union all
     select p.polroles[1], c.relname, '${seesAll}'
     from pg_class c
     join pg_policy p on p.polrelid = c.oid
     where ${ofTables} and p.polname = 'served'
   )
   select r.rolname as role, g.name as table, g.privilege
   from granted g
   join pg_roles r on r.oid = g.grantee
   where r.rolname in ('${requestRole}', '${servingRole}')`,
);

/**
 * Grants what is missing and takes back what is too much, as far as the user may. In a schema that a newer release has
 * brought up to date nothing is taken back: that release may need it.
 */
export async function mendServingRoles(
  connection: Connection,
  { isNewer }: { isNewer: boolean },
): Promise<void> {
  const { areThere, missing, excess } = await compare(connection);
  if (!areThere) return;
  const statements = [
    ...(isNewer ? [] : excess).map(revoke),
    // After what was taken back: of a whole table, it takes back what was granted of its columns as well.
    ...(isNewer ? missing : [...missing, ...wantedBeside(excess)]).map(grant),
    ...aroundTables,
  ];
  await connection.rows(unpreparedStatement(asFarAsAllowed(statements)));
}

function wantedBeside(excess: readonly Granted[]): Granted[] {
  return tablesOf(excess)
    .flatMap((table) => wantedOf(table, false))
    .filter(({ privilege }) => privilege !== seesAll);
}

function grant({ role, table, privilege }: Granted): string {
  return privilege === seesAll
    ? `create policy served on ${table} to ${role} using (true)`
    : `grant ${privilege} on ${table} to ${role}`;
}

function revoke({ role, table, privilege }: Granted): string {
  return privilege === seesAll
    ? `drop policy served on ${table}`
    : `revoke ${privilege} on ${table} from ${role}`;
}

/** What every user has unless an operator has taken it away, and the one procedure that requests may call. */
const aroundTables = [
  `grant execute on procedure create_partitions(regclass, timestamptz, text, integer, integer) to ${servingRole}`,
];

/** A block of its own for each: what the user may not do must not undo the others. */
function asFarAsAllowed(statements: readonly string[]): string {
  const list = statements.map((each) => `'${each}'`).join(',\n');
  return `do $do$
    declare
      each text;
    begin
      foreach each in array array[${list}]::text[] loop
        begin
          execute each;
        exception
          when insufficient_privilege then null;
        end;
      end loop;
    end
    $do$`;
}

/**
 * Who is logged in: the owner of the schema, or a user that may only serve requests, or another one. A superuser counts as
 * the owner, whoever owns the tables. Null where there is no schema yet.
 */
export async function findUserKind(connection: Connection): Promise<'owner' | 'serving' | 'other' | null> {
  const [user] = await connection.rows(selectUser);
  if (user === undefined) return null;
  if (user.is_owner) return 'owner';
  return user.is_serving === true ? 'serving' : 'other';
}

const selectUser = unpreparedStatement<{ is_owner: boolean; is_serving: boolean | null }>(
  `select pg_has_role(session_user, c.relowner, 'usage') as is_owner,
     pg_has_role(session_user, to_regrole('${servingRole}'), 'usage') as is_serving
   from pg_class c
   where c.oid = to_regclass('schema_migrations')`,
);

/** The user of the embedded PostgreSQL that requests are served as. */
export const servingUser = 'postillion_api';

/** Makes that user where it is missing. Whoever reaches the private socket of the embedded PostgreSQL may log in as any. */
export async function admitServingUser(connection: Connection): Promise<void> {
  await connection.rows(makeServingUser);
}

const makeServingUser = unpreparedStatement(
  `do $$
   begin
     if to_regrole('${servingUser}') is null then
       create role ${servingUser} login in role ${servingRole};
     end if;
   exception
     -- Another process was first.
     when duplicate_object or unique_violation then null;
   end
   $$`,
);
