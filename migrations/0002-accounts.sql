-- Owner: accounts. Organizations with their plans, API keys, and what was used of the monthly quotas.
-- Locks: none, all tables are new. The previous release: there is none.

create table organizations (
  id uuid primary key,
  name text not null check (length(name) between 1 and 255),
  requests_per_window integer not null default 600 check (requests_per_window > 0),
  events_per_window integer not null default 6000 check (events_per_window > 0),
  -- A limit that is null is no limit.
  email_quota bigint check (email_quota >= 0),
  sms_quota bigint check (sms_quota >= 0),
  push_quota bigint check (push_quota >= 0),
  chatapp_quota bigint check (chatapp_quota >= 0),
  domain_limit integer check (domain_limit >= 0),
  segment_limit integer check (segment_limit >= 0),
  event_limit integer check (event_limit >= 0),
  suspended_channels text[] not null default '{}'
    check (suspended_channels <@ array['email', 'sms', 'push', 'chatapp']),
  created_at timestamptz not null,
  updated_at timestamptz not null
);
alter table organizations enable row level security;
create policy own_organization on organizations
  using (id = any ((select current_organization_ids())::uuid[]));
do $$
begin
  if exists (select from pg_roles where rolname = 'postillion_tenant') then
    grant select on organizations to postillion_tenant;
  end if;
end
$$;

create table api_keys (
  organization_id uuid not null,
  id uuid not null,
  name text not null check (length(name) between 1 and 255),
  -- The first characters, so that a person can tell keys apart; the key itself is nowhere.
  prefix text not null,
  key_sha256 bytea not null unique check (octet_length(key_sha256) = 32),
  scopes text[] not null check (cardinality(scopes) > 0),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  created_at timestamptz not null,
  primary key (organization_id, id)
);
call wall_off('api_keys');

-- What was used of a month's quota. An organization without a limit is counted in any of several shards, so that
-- parallel transactions do not wait for one row; with a limit all is counted, and held, in shard 0.
create table quota_usage (
  organization_id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  month date not null,
  shard smallint not null,
  used bigint not null check (used >= 0),
  primary key (organization_id, channel, month, shard)
) with (fillfactor = 50);
call wall_off('quota_usage');
