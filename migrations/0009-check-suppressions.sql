-- Owner: audience. Checks the rows that were there before 0008.
-- Locks: share update exclusive on suppressions, which holds up neither readers nor writers. The previous release: may
-- run beside it.

alter table suppressions validate constraint suppressions_reason_check;
