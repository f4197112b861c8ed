-- Owner: messages (open_breakers). What workers know of providers that are not available, for readiness, metrics and doctor.
-- Locks: share row exclusive on workers for a moment, which has a row for each worker.
-- The previous release: may run beside it. Its workers write nothing here, and what one of them deletes goes with its worker.

-- One row for each channel of a worker on which a breaker is open. It ends with the worker.
create table open_breakers (
  epoch bigint not null references workers on delete cascade,
  channel text not null,
  provider text not null,
  -- How many accounts at the provider it does not try; null if the provider as a whole.
  accounts integer check (accounts > 0),
  -- Since when there has been one on this channel.
  opened_at timestamptz not null,
  primary key (epoch, channel)
);
