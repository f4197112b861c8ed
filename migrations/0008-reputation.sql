-- Owner: accounts (organizations), messages (reputation_counts), audience (suppressions). The reputation guard.
-- Locks: access exclusive on organizations and suppressions for a moment; 0009 checks the rows that are there. The
-- previous release: may run beside it.

alter table organizations
  -- Whether too many bounces or complaints suspend it for email by themselves.
  add column has_reputation_guard boolean not null default true,
  -- When it last came near to that.
  add column reputation_warned_at timestamptz;

-- What became of an organization's email, by the hour; the shards let several workers count at once.
create table reputation_counts (
  organization_id uuid not null,
  hour timestamptz not null,
  shard smallint not null,
  sent integer not null check (sent >= 0),
  bounced integer not null check (bounced >= 0),
  complained integer not null check (complained >= 0),
  primary key (organization_id, hour, shard)
) with (fillfactor = 50);
create index reputation_counts_hour on reputation_counts (hour);
call wall_off('reputation_counts');

alter table suppressions drop constraint suppressions_reason_check;
alter table suppressions add constraint suppressions_reason_check
  check (reason in ('hard_bounce', 'soft_bounces', 'complaint', 'unsubscribe', 'operator')) not valid;
