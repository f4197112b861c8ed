-- Owner: segments. Segments that ask what contacts did lately let them out as time passes, without a look at everybody;
-- and those whose conditions are new are computed once more, for events that were stored meanwhile.
-- Locks: access exclusive on segments for a moment; share on it while the index is built, in which nothing stands yet.
-- The previous release: may run beside it. It knows no conditions on events: segments with one fail on its nodes, and
-- are computed again within ten minutes.

alter table segments
  -- When its present conditions were given; null for those given to the previous release.
  add column conditions_at timestamptz,
  -- Contacts whose events left a period of its conditions until then were looked at again. Null if it has no periods.
  add column windows_until timestamptz,
  -- When to look at those who left since; null if nobody is about to.
  add column windows_due_at timestamptz;
create index segments_windows_due_at on segments (windows_due_at) where windows_due_at is not null;
