-- Owner: accounts. For how long the events of an organization are kept is part of its plan.
-- Locks: access exclusive on organizations for a moment. The previous release: may run beside it. Its nodes let nobody
-- out of segments for an event that is too old, until it is deleted and the segments are computed by this release.

alter table organizations
  -- Null: for ever.
  add column events_kept_days integer check (events_kept_days between 1 and 3650);
