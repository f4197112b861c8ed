-- Owner: audience (contact_sets). Which segments ask what became of messages, so that whoever changes recipients knows
-- whether any segment of the organization must hear of it.
-- Locks: access exclusive on contact_sets for a moment; share on it while the index is built, in which nothing stands
-- yet. The previous release: may run beside it. What its nodes settle meanwhile is seen when such a segment is computed
-- again, within a day; segments that it computed are marked by the next computation, within an hour.

alter table contact_sets
  -- Whether the conditions by which it was last computed read messages.
  add column reads_messages boolean not null default false;
create index contact_sets_reading on contact_sets (organization_id) where reads_messages and deleted_at is null;
