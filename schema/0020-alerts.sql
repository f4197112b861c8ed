-- Owner: alerts. Whom an organization has told by email of what goes wrong, and what they are to be told.

create table alert_settings (
  organization_id uuid primary key,
  addresses text[] not null check (cardinality(addresses) between 1 and 10),
  -- The first event of the log that was not read for alerts.
  next_position bigint not null,
  updated_at timestamptz not null
);
call wall_off('alert_settings');

-- What is to be told, and was: a row for each kind of which there was something. However much happens, no row grows.
create table alerts (
  organization_id uuid not null,
  kind text not null,
  -- How much happened that was not told yet, since when, and the newest of it.
  waiting bigint not null default 0,
  waiting_since timestamptz,
  newest json not null default '[]',
  -- When it is told; null while nothing waits.
  due_at timestamptz,
  last_told_at timestamptz,
  -- Why it could not be sent when it was due.
  problem text check (problem in ('no_domain', 'suspended', 'quota_used_up')),
  primary key (organization_id, kind),
  check ((waiting > 0) = (due_at is not null) and (waiting > 0) = (waiting_since is not null))
);
create index alerts_due on alerts (organization_id, due_at) where due_at is not null;
-- For finding when the next of all is due.
create index alerts_next on alerts (due_at) where due_at is not null;
call wall_off('alerts');

-- Endpoints that fail, of which people are told when they have failed for long.
create table alert_watches (
  organization_id uuid not null,
  webhook_id uuid not null,
  failing_since timestamptz not null,
  due_at timestamptz not null,
  primary key (organization_id, webhook_id)
);
create index alert_watches_due on alert_watches (organization_id, due_at);
create index alert_watches_next on alert_watches (due_at);
call wall_off('alert_watches');
