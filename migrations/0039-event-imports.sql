-- Owner: events. What of files with events was imported, so that a file that is imported again stores nothing twice.
-- Locks: none of what is there. The previous release: may run beside it, it has no imports of events.

-- A row for each batch of some hundred rows of a file: small, and kept for as long as the events may be.
create table event_imports (
  organization_id uuid not null,
  -- SHA-256 of the rows of the batch and of where they stand in their file.
  digest bytea not null check (octet_length(digest) = 32),
  -- The rows of the batch, counted from 0, that were bad: they are tried again.
  missing integer[] not null,
  imported_at timestamptz not null,
  primary key (organization_id, digest)
);
call wall_off('event_imports');
