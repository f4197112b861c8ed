-- Owner: messages (delivery_queue). Which trace the request of a transactional message is part of, for the log.
-- Locks: access exclusive on delivery_queue for a moment: the column is empty, and no row is read.
-- The previous release: may run beside it. What it accepts has no trace, and what it delivers is logged without.

-- The id of the trace (W3C Trace Context), which has as many bits. It goes with the job.
alter table delivery_queue add column trace_id uuid;
