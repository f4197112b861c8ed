-- Owner: audience. The people that messages go to, what is known of them, the sets that they belong to, and the
-- addresses that must not be written to.

-- Texts that are searched by their beginning are compared octet by octet, whatever the database's own order is.
create table contacts (
  organization_id uuid not null,
  id uuid not null,
  external_id text collate "C" check (length(external_id) between 1 and 255),
  -- As it was given, and as it is compared: lower-case, domain as A-labels.
  email text,
  email_key text collate "C",
  -- E.164.
  phone_number text collate "C",
  first_name text check (length(first_name) between 1 and 128),
  last_name text check (length(last_name) between 1 and 128),
  -- In lower case, for searching: both names together, and the last one alone. Not indexes on expressions:
  -- row-level security keeps functions that are not leakproof, `lower` among them, out of index conditions.
  name_key text collate "C",
  last_name_key text collate "C",
  locale text,
  timezone text,
  -- By the number of the property and not by its key: a property that is deleted takes its values with it at once.
  properties jsonb not null default '{}' check (jsonb_typeof(properties) = 'object'),
  unsubscribed_channels text[] not null default '{}'
    check (unsubscribed_channels <@ array['email', 'sms', 'push', 'chatapp']),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  check (num_nonnulls(external_id, email, phone_number) > 0),
  check ((email is null) = (email_key is null)),
  constraint contacts_numbers check (not has_long_number(properties))
) with (fillfactor = 90);
create unique index contacts_external_id on contacts (organization_id, external_id) include (id)
  where external_id is not null;
create unique index contacts_email on contacts (organization_id, email_key) include (id)
  where email_key is not null;
create unique index contacts_phone_number on contacts (organization_id, phone_number) include (id)
  where phone_number is not null;
create index contacts_name on contacts (organization_id, name_key, id) where name_key is not null;
create index contacts_last_name on contacts (organization_id, last_name_key, id) where last_name_key is not null;
call wall_off('contacts');

-- Properties that an organization defined for its contacts. A deleted one stays, so that its number is never given
-- again: a contact may still carry a value under it.
create table contact_properties (
  organization_id uuid not null,
  id uuid not null,
  number integer not null check (number > 0),
  key text collate "C" not null check (key ~ '^[a-z][a-z0-9_]{0,49}$'),
  name text not null check (length(name) between 1 and 255),
  -- By which it is searched: in lower case and composed, which PostgreSQL's own functions do not do for letters beyond
  -- ASCII where the database has the locale C.
  name_key text collate "C" not null,
  type text not null check (type in ('string', 'number', 'boolean', 'date')),
  description text,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  deleted_at timestamptz,
  -- How far the contacts were gone through, by id, to remove its values; and that none carries one any more.
  forgotten_until uuid,
  forgotten_at timestamptz,
  primary key (organization_id, id),
  unique (organization_id, number)
);
create unique index contact_properties_key on contact_properties (organization_id, key) where deleted_at is null;
create index contact_properties_deleted on contact_properties (deleted_at)
  where deleted_at is not null and forgotten_at is null;
create index contact_properties_deleted_turns on contact_properties (organization_id, deleted_at)
  where deleted_at is not null and forgotten_at is null;
call wall_off('contact_properties');

-- Lists, tags and segments are three kinds of one thing: a set of contacts. What else a segment has stands in its
-- own table. A deleted one is gone for everybody at once; its members are removed afterwards.
create table contact_sets (
  organization_id uuid not null,
  id uuid not null,
  kind text not null check (kind in ('list', 'tag', 'segment')),
  name text not null check (length(name) between 1 and 255),
  -- In lower case.
  name_key text collate "C" not null,
  description text,
  -- False for a segment whose members are still being computed for the first time.
  is_ready boolean not null default true,
  -- Whether the conditions by which a segment was last computed read messages: who changes recipients knows by that
  -- whether any segment of the organization must hear of it.
  reads_messages boolean not null default false,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  deleted_at timestamptz,
  primary key (organization_id, id)
);
create index contact_sets_kind on contact_sets (organization_id, kind, id) where deleted_at is null;
create unique index contact_sets_name on contact_sets (organization_id, kind, name_key)
  where deleted_at is null and kind <> 'segment';
create index contact_sets_deleted on contact_sets (organization_id, deleted_at) where deleted_at is not null;
create index contact_sets_reading on contact_sets (organization_id) where reads_messages and deleted_at is null;
call wall_off('contact_sets');

create table memberships (
  organization_id uuid not null,
  set_id uuid not null,
  contact_id uuid not null,
  primary key (organization_id, set_id, contact_id)
);
create index memberships_contact on memberships (organization_id, contact_id, set_id);
call wall_off('memberships');

-- How many contacts a set has, in several rows, so that parallel transactions do not wait for one. One row alone
-- may well be negative.
create table membership_counts (
  organization_id uuid not null,
  set_id uuid not null,
  shard smallint not null,
  contacts bigint not null,
  primary key (organization_id, set_id, shard)
) with (fillfactor = 50);
call wall_off('membership_counts');

create function count_memberships() returns trigger
language plpgsql
as $$
declare
  sign integer := case when tg_op = 'INSERT' then 1 else -1 end;
begin
  -- Sorted, so that two transactions that change several sets cannot deadlock.
  insert into membership_counts (organization_id, set_id, shard, contacts)
  select organization_id, set_id, pg_backend_pid() % 16, sign * count(*)
  from changed_memberships
  group by organization_id, set_id
  order by organization_id, set_id
  on conflict (organization_id, set_id, shard)
    do update set contacts = membership_counts.contacts + excluded.contacts;
  return null;
end
$$;
create trigger count_inserted after insert on memberships
  referencing new table as changed_memberships
  for each statement execute function count_memberships();
create trigger count_deleted after delete on memberships
  referencing old table as changed_memberships
  for each statement execute function count_memberships();

-- What may not be deleted, because something uses it: a segment a property, a list, a tag, another segment or an event;
-- a campaign its sets and its template.
create table holds (
  organization_id uuid not null,
  held_kind text not null
    check (held_kind in ('list', 'tag', 'segment', 'property', 'template', 'event', 'chat_template')),
  held_id uuid not null,
  holder_kind text not null check (holder_kind in ('segment', 'campaign')),
  holder_id uuid not null,
  primary key (organization_id, held_id, holder_id)
);
create index holds_holder on holds (organization_id, holder_id);
call wall_off('holds');

-- Contacts that changed and whose segments were not looked at since: one row a transaction, however many contacts
-- it changed.
create table contact_changes (
  organization_id uuid not null,
  id uuid not null,
  contact_ids uuid[] not null check (cardinality(contact_ids) > 0),
  primary key (organization_id, id)
);
call wall_off('contact_changes');

-- What must not be sent to addresses, a record for each reason. What the owner of an address has said is kept with the
-- address, so that it holds whoever has the address next.
create table suppressions (
  organization_id uuid not null,
  id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  -- HMAC-SHA-256 of the normalised address: it outlives the erasure of the address itself.
  address_hash bytea not null check (octet_length(address_hash) = 32),
  reason text not null
    check (reason in ('hard_bounce', 'soft_bounces', 'complaint', 'unsubscribe', 'manual', 'operator', 'unreachable')),
  -- What is not sent: everything on the channel, or campaigns alone.
  scope text not null default 'all' check (scope in ('all', 'marketing')),
  -- The address as it is compared, which a person can read; null once it was erased.
  address text collate "C",
  note text check (length(note) <= 255),
  -- Where it came from: of a message or an API key with its id, and of nothing that says who a person is.
  source_type text not null
    check (source_type in ('message', 'reply', 'consent', 'device', 'api_key', 'operator', 'import')),
  source_id uuid check (source_id is null or source_type in ('message', 'api_key')),
  -- When its owner has last said that they want nothing.
  opted_out_at timestamptz,
  created_at timestamptz not null,
  -- From when on it holds no more; null if it stays.
  expires_at timestamptz,
  primary key (organization_id, id),
  constraint suppressions_marketing_check check (scope = 'all' or reason in ('unsubscribe', 'manual')),
  constraint suppressions_opted_out_check check ((reason = 'unsubscribe') = (opted_out_at is not null)),
  -- What a person has said, a provider or the operator does not end by itself.
  constraint suppressions_expiry_check check (expires_at is null or reason = 'manual')
);
-- For lists by channel, reason or both.
create index suppressions_reason on suppressions (organization_id, channel, reason, id);
create index suppressions_address on suppressions (organization_id, address) where address is not null;
create index suppressions_expired on suppressions (expires_at) where expires_at is not null;
-- For finding out cheaply that an organization has none, before a file of contacts is compared with them.
create index suppressions_opt_outs on suppressions (organization_id)
  where opted_out_at is not null;
-- After the others, so that an address is looked up by its key while the table is empty, too (see create_partition).
alter table suppressions add constraint suppressions_key
  unique (organization_id, channel, address_hash, reason, scope);
call wall_off('suppressions');

-- That an organization has set a consent back to subscribed, by its API key: the last time for each address.
create table consent_grants (
  organization_id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  -- As in suppressions.
  address_hash bytea not null check (octet_length(address_hash) = 32),
  api_key_id uuid,
  granted_at timestamptz not null,
  primary key (organization_id, channel, address_hash)
);
call wall_off('consent_grants');

-- Addresses of contacts that were deleted, until nothing speaks of them any more.
create table erasures (
  organization_id uuid not null,
  address text not null,
  requested_at timestamptz not null,
  -- When it is looked for again: what was not delivered yet needs its address until then.
  due_at timestamptz not null,
  primary key (organization_id, address)
);
create index erasures_due on erasures (due_at);
create index erasures_turns on erasures (organization_id, due_at);
call wall_off('erasures');

-- Contacts that were deleted, until nothing is left of what campaigns sent to them, at whatever address they had then:
-- their addresses at the deletion, which `erasures` has, do not find what went to former ones.
create table contact_erasures (
  organization_id uuid not null,
  contact_id uuid not null,
  requested_at timestamptz not null default now(),
  -- As in erasures.
  due_at timestamptz not null default now(),
  primary key (organization_id, contact_id)
);
create index contact_erasures_due on contact_erasures (due_at);
create index contact_erasures_turns on contact_erasures (organization_id, due_at);
call wall_off('contact_erasures');

-- A trigger, so that no statement that deletes a contact can forget it.
create function note_contact_erasures() returns trigger
language plpgsql
as $$
begin
  insert into contact_erasures (organization_id, contact_id)
  select organization_id, id
  from deleted_contacts
  order by organization_id, id
  on conflict (organization_id, contact_id) do nothing;
  return null;
end
$$;
create trigger note_erasures after delete on contacts
  referencing old table as deleted_contacts
  for each statement execute function note_contact_erasures();
