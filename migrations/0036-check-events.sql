-- Owner: audience. Checks the rows that were there before 0035.
-- Locks: share update exclusive, which lets everybody read and write. The previous release: may run beside it.

alter table holds validate constraint holds_held_kind_check;
