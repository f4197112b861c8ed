-- Owner: events. What contacts do, told by the organization's own systems: kinds of events with the fields that their
-- payloads have, and the events themselves. Audience (holds): a segment holds the events that it asks about.
-- Locks: access exclusive on holds for a moment, while a check is replaced. The previous release: may run beside it.
-- It knows no events; those of contacts that it deletes are erased by a worker of this release.

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
-- The organization comes last, so that nothing but the primary key begins with it (as in 0031).
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
  primary key (organization_id, contact_id, id)
) partition by range (id);
-- By kind and time, for segments that look at everybody, and for those whom the passing time takes out of one. With the
-- contact, so that the rows themselves need not be read.
create index events_of_definition on events (organization_id, definition_number, occurred_at) include (contact_id);
call wall_off('events');
call create_monthly_partitions('events', now(), 4);

alter table holds drop constraint holds_held_kind_check;
alter table holds add constraint holds_held_kind_check
  check (held_kind in ('list', 'tag', 'segment', 'property', 'template', 'event')) not valid;
