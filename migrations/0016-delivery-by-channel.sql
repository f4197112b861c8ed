-- Owner: messages (delivery_queue). Each channel claims for itself.
-- Locks: delivery_queue, while its few rows are indexed anew. The previous release claims off the new index as well,
-- a little slower.

drop index delivery_queue_due;
-- For claiming: what is due, by channel, lane and organization. Claimed rows leave it.
create index delivery_queue_due on delivery_queue (channel, lane, organization_id, due_at)
  where claimed_by is null and set_aside_at is null;
