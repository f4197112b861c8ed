-- Owner: messages (provider_events). What providers report of messages, on every channel.
-- Locks: none on what is there. The previous release may run beside it: it goes on storing and applying what is
-- reported of texts in sms_events, from where the workers of this release take it over.

-- What providers reported, from the moment at which it is acknowledged until it has been applied. A report may be here
-- before its message is known to have been sent. Nothing in it says whose it is: that is found out when it is applied.
create table provider_events (
  -- Of the time at which it was reported.
  id uuid primary key,
  channel text not null,
  -- Null where a release before this one has taken it.
  provider text,
  -- `ProviderReport`.
  report json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- Reports on one channel do not wait behind those of a campaign on another.
create index provider_events_due on provider_events (channel, due_at);
