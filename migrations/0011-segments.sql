-- Owner: segments. Sets of contacts that conditions describe, and when their members were computed.
-- Locks: none, all tables are new. The previous release: may run beside it.

create table segments (
  organization_id uuid not null,
  -- That of its contact_set, which has the name.
  id uuid not null,
  -- As they were given.
  conditions json not null check (octet_length(conditions::text) <= 65536),
  -- Raised with every change of the conditions: what was computed for others does not count.
  revision integer not null default 1,
  status text not null check (status in ('computing', 'ready', 'failed')),
  computed_at timestamptz,
  -- When everything is to be looked at (again): at once for one that was never computed, later for one whose
  -- conditions speak of time or of messages; null for all others, and for one that waits for another to be ready.
  compute_at timestamptz,
  primary key (organization_id, id)
);
create index segments_compute_at on segments (compute_at) where compute_at is not null;
call wall_off('segments');
