-- Owner: events. What contacts do, told by the organization's own systems: kinds of events with the fields that their
-- payloads have, the events themselves, and conversions, which are credited to the message that the contact clicked
-- last.

create table event_definitions (
  organization_id uuid not null,
  id uuid not null,
  -- By which events name it, in a third of the room of an id. Never given again: events outlive their definition.
  number integer not null check (number > 0),
  name text collate "C" not null check (name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'),
  description text check (length(description) <= 1000),
  -- As the API shows them.
  schema json not null check (json_typeof(schema) = 'object'),
  conversion json not null check (json_typeof(conversion) = 'object'),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  deleted_at timestamptz,
  primary key (organization_id, id)
);
-- The organization comes last, so that nothing but the primary key begins with it (as in devices).
create unique index event_definitions_number on event_definitions (number, organization_id);
create unique index event_definitions_name on event_definitions (name, organization_id) where deleted_at is null;
call wall_off('event_definitions');

-- By contact first: this is how a person's timeline is read, and how segments look at those who have changed.
create table events (
  organization_id uuid not null,
  contact_id uuid not null,
  -- Of the time at which it arrived. It happened up to thirty days before, or some minutes after.
  id uuid not null,
  definition_number integer not null,
  occurred_at timestamptz not null,
  payload jsonb not null check (jsonb_typeof(payload) = 'object'),
  -- When it is printed, so that a page knows which events it has room for before it prints them: a hundred payloads of
  -- 27 kB were 3.5 MB of text, of which half a megabyte was sent, and 65 ms of a processor for each request.
  payload_bytes integer not null generated always as (octet_length(payload::text)) stored,
  primary key (organization_id, contact_id, id),
  constraint events_numbers check (not has_long_number(payload))
) partition by range (id);
-- By kind and time, for segments that look at everybody, and for those whom the passing time takes out of one. With the
-- contact, so that the rows themselves need not be read.
create index events_of_definition on events (organization_id, definition_number, occurred_at) include (contact_id);
call wall_off('events');
call create_partitions('events', now(), 'month', 4);

-- What of files with events was imported, so that a file that is imported again stores nothing twice: a row for each
-- batch of some hundred rows of a file, small, and kept for as long as the events may be.
create table event_imports (
  organization_id uuid not null,
  -- SHA-256 of the rows of the batch and of where they stand in their file.
  digest bytea not null check (octet_length(digest) = 32),
  -- The rows of the batch, counted from 0, that were bad: they are tried again.
  missing integer[] not null,
  imported_at timestamptz not null,
  primary key (organization_id, digest)
);
call wall_off('event_imports');

-- Conversions that are not credited yet: small, since each is deleted when it is credited.
create table pending_conversions (
  organization_id uuid not null,
  -- That of the event.
  id uuid not null,
  contact_id uuid not null,
  definition_number integer not null,
  occurred_at timestamptz not null,
  -- As the definition told when the event came in.
  value numeric,
  currency text collate "C",
  due_at timestamptz not null,
  primary key (organization_id, id),
  check (currency is null or value is not null)
);
-- For all organizations together, in the order in which they are credited; and for each of them in turn.
create index pending_conversions_due on pending_conversions (due_at, id);
create index pending_conversions_turns on pending_conversions (organization_id, due_at, id);
call wall_off('pending_conversions');

-- Each conversion, and the message that it was credited to, or null. It names no contact: the event does, and is
-- deleted together with the contact.
create table conversions (
  organization_id uuid not null,
  -- That of the event.
  id uuid not null,
  definition_number integer not null,
  occurred_at timestamptz not null,
  value numeric,
  currency text collate "C",
  message_id uuid,
  campaign_id uuid,
  category text,
  primary key (organization_id, id),
  check (currency is null or value is not null),
  check (message_id is not null or (campaign_id is null and category is null))
) partition by range (id);
call wall_off('conversions');
call create_partitions('conversions', now(), 'month', 4);

-- Sums of the conversions of a definition, grouped in each of three ways. A group is found and listed by its id: that
-- of the campaign or message, one made of the category, or zero for conversions without one.
create table conversion_sums (
  organization_id uuid not null,
  definition_number integer not null,
  grouped_by text not null check (grouped_by in ('campaign_id', 'message_id', 'category')),
  group_id uuid not null,
  -- Empty for conversions without one, or without a value.
  currency text collate "C" not null,
  category text,
  conversions bigint not null check (conversions > 0),
  -- Null where none of them has one.
  value numeric,
  primary key (organization_id, definition_number, grouped_by, group_id, currency)
) partition by range (group_id);
-- For the statistics of campaigns. The organization comes last, so that nothing but the primary key begins with it.
create index conversion_sums_campaign on conversion_sums (group_id, organization_id) where grouped_by = 'campaign_id';
call wall_off('conversion_sums');
call create_partitions('conversion_sums', now(), 'month', 4, 70);
