/**
 * What must be true of every change of the audience: the transaction that makes it says so to the segments
 * (`contact_changes`). The template of the tests keeps, outside of the program's schema, what the program's transactions
 * have changed and what they have said; when the server of a test has stopped, the two are compared.
 *
 * What a test writes by itself is not looked at: it is not written in an organization's role.
 */
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { neighbourId } from './neighbour.ts';

/** What segments look at. A contact that is new may match by any of it. */
const looked = [
  'external_id',
  'email_key',
  'phone_number',
  'first_name',
  'last_name',
  'locale',
  'timezone',
  'properties',
  'unsubscribed_channels',
];

/** Statements of the program that tell nobody, by how they begin, each with its reason. */
const silent: Readonly<Record<string, string>> = {
  'with looked_at as ( select id, properties ? $2 as has_value':
    'Values of a property that was deleted: no segment can ask for it.',
};

/** By the program, and not by the neighbour, whose rows are copies. */
const isLookedAt = `current_setting('role') not in ('none', '') and organization_id <> '${neighbourId}'`;

/** Gives a migrated database the tables and triggers that keep what was changed and what was said. */
export async function watchChanges(connection: Connection): Promise<void> {
  const run = (text: string) => connection.rows(unpreparedStatement(text));
  await run('create schema if not exists tests');
  await run(`create unlogged table tests.changed_contacts (
    transaction xid8 not null,
    organization_id uuid not null,
    contact_id uuid not null,
    what text not null,
    statement text not null default left(regexp_replace(current_query(), '\\s+', ' ', 'g'), 300)
  )`);
  await run(`create unlogged table tests.said_changes (
    transaction xid8 not null,
    organization_id uuid not null,
    contact_ids uuid[] not null
  )`);
  await keepStatement('keep_new_contact', 'after insert on contacts referencing new table as changed', {
    into: 'changed_contacts',
    columns: 'transaction, organization_id, contact_id, what',
    rows: `select pg_current_xact_id(), organization_id, id, 'a new contact' from changed where ${isLookedAt}`,
  });
  await keepStatement(
    'keep_changed_contact',
    'after update on contacts referencing old table as former new table as changed',
    {
      into: 'changed_contacts',
      columns: 'transaction, organization_id, contact_id, what',
      rows: `select pg_current_xact_id(), organization_id, id, 'a changed contact'
        from (
          select organization_id, id, ${looked.join(', ')} from changed
          except
          select organization_id, id, ${looked.join(', ')} from former
        ) changed_really
        where ${isLookedAt}`,
    },
  );
  for (const [name, event] of [
    ['keep_new_membership', 'after insert on memberships referencing new table as changed'],
    ['keep_gone_membership', 'after delete on memberships referencing old table as changed'],
  ] as const)
    await keepStatement(name, event, {
      into: 'changed_contacts',
      columns: 'transaction, organization_id, contact_id, what',
      rows: `select pg_current_xact_id(), organization_id, contact_id, 'a member of a ' || kind
        from changed
        join (select organization_id, id as set_id, kind from contact_sets where deleted_at is null) sets
          using (organization_id, set_id)
        where kind <> 'segment' and ${isLookedAt}`,
    });
  await keepStatement(
    'keep_said_change',
    'after insert on contact_changes referencing new table as changed',
    {
      into: 'said_changes',
      columns: 'transaction, organization_id, contact_ids',
      rows: 'select pg_current_xact_id(), organization_id, contact_ids from changed',
    },
  );

  /** As the owner: the roles of the program know nothing of these tables. */
  async function keepStatement(
    name: string,
    event: string,
    { into, columns, rows }: { into: string; columns: string; rows: string },
  ): Promise<void> {
    await run(`create function tests.${name}() returns trigger language plpgsql security definer
      set search_path = public, pg_temp
      as $keep$
      begin
        insert into tests.${into} (${columns}) ${rows};
        return null;
      end
      $keep$`);
    await run(`create trigger ${name} ${event} for each statement execute function tests.${name}()`);
  }
}

/** A sentence for each kind of change that segments were not told of. A contact that is gone is none of them. */
export async function findUntoldChanges(connection: Connection): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ what: string; contact_id: string; statement: string }>(
      `select distinct on (w.what) w.what, w.contact_id, w.statement
       from tests.changed_contacts w
       where not exists (
         select from unnest($1::text[]) as silent (beginning) where starts_with(w.statement, silent.beginning)
       ) and not exists (
         select
         from tests.said_changes s
         where s.transaction = w.transaction and s.organization_id = w.organization_id
           and w.contact_id = any (s.contact_ids)
       ) and exists (
         select from contacts c where c.organization_id = w.organization_id and c.id = w.contact_id
       )
       order by w.what`,
    ),
    [Object.keys(silent)],
  );
  return rows.map(
    ({ what, contact_id: id, statement }) => `segments were not told of ${what}, ${id}, by: ${statement}`,
  );
}
