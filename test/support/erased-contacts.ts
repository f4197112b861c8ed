/**
 * What must be true of contacts that were deleted: nothing readable of them stands anywhere in the database. The template
 * of the tests keeps, outside of the program's schema, who was deleted and which addresses were to be erased. When the
 * server of a test has stopped, the erasures that are left are carried out as they would be in time, and then every
 * column of every table is searched for the addresses and names of deleted contacts to whom no delivery is due any more.
 * What campaigns sent to them must be erased in any case, since it holds former addresses and values; and so must its
 * copies at their former addresses.
 *
 * What was made after the deletion is not looked at, as src/messages/erasure/erasure.ts says: the time is that of the
 * message's id or of the row's.
 */
import { type ContactField, contactFieldNames } from '../../src/audience/audience.ts';
import { eraseNext, type ErasureTools } from '../../src/messages/erasure/erasure.ts';
import { dateOf } from '../../src/platform/clock.ts';
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { messageChannels } from './channels.ts';
import { neighbourId } from './neighbour.ts';

/** What a field's value says of a person; null for what many have in common, or for words of the organization. */
const tracesOfFields: Readonly<Record<ContactField, 'the address' | 'the number' | 'the name' | null>> = {
  external_id: null,
  email: 'the address',
  phone_number: 'the number',
  first_name: 'the name',
  last_name: 'the name',
  locale: null,
  timezone: null,
};

/** SQL for the values of such fields, as an array; `toValue` makes SQL of a field. */
function valuesOf(
  trace: 'the address' | 'the number' | 'the name',
  toValue: (field: string) => string,
): string {
  const fields = contactFieldNames.filter((field) => tracesOfFields[field] === trace);
  return `array[${fields.map(toValue).join(', ')}]`;
}

/** Columns that may name a deleted contact, by their table, each with its reason. */
const exceptions: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  segments: { conditions: "The organization's own words, even where they name a person." },
};

/** Tables that are not searched. */
const exceptedTables: Readonly<Record<string, string>> = {
  contacts: 'A contact that has the address there has it now.',
};

/**
 * Where names are looked for in some rows only. What the organization wrote to others is theirs: the copies of a
 * campaign's test, for example, show the values of a contact. Where other recipients of the message are known still, its
 * subject stays.
 */
const rowsWithNames: Readonly<Record<string, string>> = {
  messages: `${wasErased('t.id')} and not exists (
    select from recipients r where r.organization_id = t.organization_id and r.message_id = t.id and r.address <> ''
  )`,
  message_contents: wasErased('t.message_id'),
  sandbox_messages: wasErased('t.message_id'),
};

function wasErased(messageId: string): string {
  return `exists (
    select from tests.erased_messages m where m.organization_id = t.organization_id and m.message_id = ${messageId}
  )`;
}

/** Of the contacts that a test has deleted, the newest: the search compares each with every row. */
const contactsMax = 50;

/** Gives a migrated database the tables and triggers that keep who was deleted. */
export async function keepErasedContacts(connection: Connection): Promise<void> {
  const run = (text: string) => connection.rows(unpreparedStatement(text));
  await run('create schema tests');
  await run(`create table tests.erased_contacts (
    organization_id uuid not null,
    id uuid not null,
    email_key text,
    ${contactFieldNames.map((field) => `${field} text`).join(', ')},
    primary key (organization_id, id)
  )`);
  await run(`create table tests.former_addresses (
    organization_id uuid not null,
    contact_id uuid not null,
    address text not null,
    primary key (organization_id, contact_id, address)
  )`);
  await run(`create table tests.erased_addresses (
    organization_id uuid not null,
    address text not null,
    requested_at timestamptz not null,
    primary key (organization_id, address)
  )`);
  await run(`create table tests.erased_messages (
    organization_id uuid not null,
    message_id uuid not null,
    primary key (organization_id, message_id)
  )`);
  await keepRows(
    'keep_erased_contact',
    `after delete on contacts for each row when (old.organization_id <> '${neighbourId}')`,
    `insert into tests.erased_contacts
     values (old.organization_id, old.id, old.email_key, ${contactFieldNames.map((field) => `old.${field}`).join(', ')})
     on conflict do nothing`,
  );
  await keepRows(
    'keep_former_address',
    `after update on contacts for each row when (
       (old.email_key, old.phone_number) is distinct from (new.email_key, new.phone_number)
     )`,
    `insert into tests.former_addresses
     select old.organization_id, old.id, address
     from unnest(array[old.email_key, old.phone_number]) as former (address)
     where address is not null
     on conflict do nothing`,
  );
  await keepRows(
    'keep_erased_address',
    'after insert or update on erasures for each row',
    `insert into tests.erased_addresses
     values (new.organization_id, new.address, new.requested_at)
     on conflict (organization_id, address) do update set requested_at = excluded.requested_at`,
  );
  await keepRows(
    'keep_erased_message',
    // A campaign's message is many other people's.
    `after update on recipients
     for each row when (old.address <> '' and new.address = '' and new.contact_id is null)`,
    `insert into tests.erased_messages values (new.organization_id, new.message_id) on conflict do nothing`,
  );

  /** As the owner: the roles of the program know nothing of these tables. */
  async function keepRows(name: string, event: string, keep: string): Promise<void> {
    await run(`create function tests.${name}() returns trigger language plpgsql security definer
      set search_path = public, pg_temp
      as $keep$
      begin
        ${keep};
        return null;
      end
      $keep$`);
    await run(`create trigger ${name} ${event} execute function tests.${name}()`);
  }
}

/** Carries out what is to be erased, as if its time had come. Returns a sentence for each readable trace that is left. */
export async function findErasedContacts(tools: Omit<ErasureTools, 'channels'>): Promise<string[]> {
  const { database } = tools;
  const deleted = await database.rows(unpreparedStatement('select from tests.erased_contacts limit 1'));
  if (deleted.length === 0) return [];
  await eraseAll(tools);
  return findTraces(database);
}

/** More than any test has to erase, 500 recipients at a time. */
const roundsMax = 1_000;

async function eraseAll(tools: Omit<ErasureTools, 'channels'>): Promise<void> {
  const [last] = await tools.database.rows(
    unpreparedStatement<{ at: Date | null }>(
      `select greatest(max(due_at), max(requested_at) + interval '2 minutes') as at
       from (
         select due_at, requested_at from erasures union all select due_at, requested_at from contact_erasures
       ) erasure`,
    ),
  );
  if (last === undefined || last.at === null) return;
  const at = dateOf(last.at.getTime());
  for (let round = 0; await eraseNext({ ...tools, channels: messageChannels }, at); round += 1) {
    if (round === roundsMax) throw new Error('erasing does not end');
  }
}

/** Up to three sentences a table. */
export async function findTraces(connection: Connection): Promise<string[]> {
  const tables = await connection.rows(
    unpreparedStatement<{ name: string; has_organization: boolean }>(
      `select c.relname as name,
         exists (select from pg_attribute where attrelid = c.oid and attname = 'organization_id') as has_organization
       from pg_class c
       where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace
       order by c.relname`,
    ),
  );
  const spokenOf = [exceptions, exceptedTables, rowsWithNames].flatMap((named) => Object.keys(named));
  const unknown = spokenOf.filter((table) => !tables.some(({ name }) => name === table));
  if (unknown.length > 0) throw new Error(`there is no table ${unknown.join(', ')}`);
  const searches = tables
    .filter(({ name }) => exceptedTables[name] === undefined)
    .map(({ name, has_organization }) => searchOf(name, has_organization));
  const rows = await connection.rows(
    unpreparedStatement<{ place: string; what: string; found: string }>(
      `with ${erased}\n${[...searches, searchOfRecipients, searchOfCopies].join('\nunion all\n')}`,
    ),
  );
  return rows.map(
    ({ place, what, found }) => `${what} of a contact who was erased is readable in ${place}: ${found}`,
  );
}

/**
 * What is searched for: addresses as they were written and as they are compared, the digits of numbers, and names that
 * no other contact has. As patterns, so that "Ann" is not found in "channel". To contacts without an address nothing was
 * sent.
 */
const erased = `gone as materialized (
  select c.*, (
    select max(a.requested_at) from tests.erased_addresses a
    where a.organization_id = c.organization_id and a.address in (c.email_key, c.phone_number)
  ) as requested_at
  from tests.erased_contacts c
  where not exists (
    select from erasures e where e.organization_id = c.organization_id and e.address in (c.email_key, c.phone_number)
  ) and not exists (
    select from contact_erasures e where e.organization_id = c.organization_id and e.contact_id = c.id
  )
  order by c.id desc
  limit ${contactsMax}
), traces as materialized (
  select g.organization_id, date_trunc('milliseconds', g.requested_at) as requested_at, what, trace,
    '(^|[^[:alnum:]])' || regexp_replace(trace, '([^[:alnum:]])', '\\\\\\1', 'g') || '($|[^[:alnum:]@.])' as pattern,
    encode(convert_to(trace, 'UTF8'), 'hex') as hex
  from gone g
  cross join lateral (
    select distinct what, trace
    from (
      select 'the address', address from unnest(g.email_key || ${valuesOf('the address', (field) => `g.${field}`)}) as address
      union all
      select 'the number', ltrim(number, '+') from unnest(${valuesOf('the number', (field) => `g.${field}`)}) as number
    ) as address (what, trace)
    where trace is not null
    union all
    select 'the name', name
    from unnest(${valuesOf('the name', (field) => `g.${field}`)}) as name
    where length(name) >= 3 and not exists (
      select from contacts c
      where c.organization_id = g.organization_id and lower(name) = any (${valuesOf('the name', (field) => `lower(c.${field})`)})
    )
  ) traced
)`;

/** What campaigns sent to them, at any address. */
const searchOfRecipients = `(select 'recipients.' || field.name, 'what a campaign sent', left(value, 300)
  from gone g
  join recipients r on r.organization_id = g.organization_id and r.contact_id = g.id
  cross join lateral (
    values ('address', nullif(r.address, '')), ('variables', r.variables::text), ('diagnostic', r.diagnostic),
      ('remote', r.remote)
  ) as field (name, value)
  where value is not null
  limit 3)`;

/** The copies of it at their former addresses, unless another contact has the address in the same campaign. */
const searchOfCopies = `(select 'sandbox_messages.recipient', 'a former address', m.recipient
  from gone g
  join tests.former_addresses f on f.organization_id = g.organization_id and f.contact_id = g.id
  join recipients r on r.organization_id = g.organization_id and r.contact_id = g.id and r.drop_reason is null
  join sandbox_messages m
    on m.organization_id = g.organization_id and m.message_id = r.message_id and lower(m.recipient) = f.address
  where not exists (
    select from recipients o
    where o.organization_id = g.organization_id and o.message_id = r.message_id and o.address_key = f.address
  )
  limit 3)`;

function searchOf(table: string, hasOrganization: boolean): string {
  const excepted = Object.keys(exceptions[table] ?? {});
  return `(select '${table}.' || field.name as place, what, left(field.value, 300) as found
    from ${table} t
    cross join lateral (select to_jsonb(t) as fields) row
    cross join lateral (
      select case
        when coalesce(fields->>'message_id', fields->>'id') ~ '^.{8}-.{4}-7' then to_timestamp(
          ('x' || left(replace(coalesce(fields->>'message_id', fields->>'id'), '-', ''), 12))::bit(48)::bigint / 1000.0)
        else coalesce((fields->>'created_at')::timestamptz, '-infinity')
      end as made_at
    ) made
    cross join lateral jsonb_each_text(fields) as field (name, value)
    join traces on ${hasOrganization ? 'traces.organization_id = t.organization_id and' : ''}
      made_at <= coalesce(traces.requested_at, 'infinity')
      and (field.value ~* pattern or left(field.value, 2) = '\\x' and strpos(field.value, hex) > 0)
    where field.name <> all ('{${excepted.join(',')}}')
      and (what <> 'the name' or ${rowsWithNames[table] ?? 'true'})
    limit 3)`;
}
