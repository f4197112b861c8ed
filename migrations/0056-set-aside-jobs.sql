-- Owner: messages (delivery_queue). What is known of jobs that were set aside, and a way to find them.
-- Locks: access exclusive on delivery_queue for as long as it takes to read it once: the columns are empty, and the index
-- is one of the few jobs that were set aside.
-- The previous release: may run beside it. What it sets aside has no words.

alter table delivery_queue
  -- When it last counted a crash, and what was known of it; null if it has counted none.
  add column crashed_at timestamptz,
  add column crash_words text check (length(crash_words) <= 500);
-- For listing what was set aside, and for finding out cheaply that nothing was.
create index delivery_queue_set_aside on delivery_queue (message_id, ordinal) where set_aside_at is not null;
