-- Owner: segments. Sets of contacts that conditions describe, and when their members were computed.

create table segments (
  organization_id uuid not null,
  -- That of its contact_set, which has the name.
  id uuid not null,
  -- As they were given, and when.
  conditions json not null check (octet_length(conditions::text) <= 65536),
  conditions_at timestamptz not null,
  -- Raised with every change of the conditions: what was computed for others does not count.
  revision integer not null default 1,
  status text not null check (status in ('computing', 'ready', 'failed')),
  -- Whether it was ever computed for these conditions: who enters and leaves from then on is told to programs.
  is_filled boolean not null default false,
  computed_at timestamptz,
  -- When everything is to be looked at (again): at once for one that was never computed, later for one whose
  -- conditions speak of time or of messages; null for all others, and for one that waits for another to be ready.
  compute_at timestamptz,
  -- Segments that ask what contacts did lately let them out as time passes, without a look at everybody. Contacts whose
  -- events left a period of its conditions until then were looked at again. Null if it has no periods.
  windows_until timestamptz,
  -- When to look at those who left since; null if nobody is about to.
  windows_due_at timestamptz,
  primary key (organization_id, id)
);
create index segments_compute_at on segments (compute_at) where compute_at is not null;
create index segments_windows_due_at on segments (windows_due_at) where windows_due_at is not null;
call wall_off('segments');
