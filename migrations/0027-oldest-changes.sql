-- Owner: messages (recipient_changes). Slices are counted in the order in which they changed, so that none waits for as
-- long as others change.
-- Locks: share on recipient_changes while the index is built, in which whoever changes recipients waits. Only what was
-- not counted yet stands there, a few rows as a rule (0.2 s for 200,000). The previous release: may run beside it. What
-- its nodes take and do not count is put back as the youngest.

create index recipient_changes_oldest on recipient_changes (id);
