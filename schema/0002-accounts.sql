-- Owner: accounts. Organizations with their plans, API keys, and what was used of the monthly quotas.

create table organizations (
  id uuid primary key,
  name text not null check (length(name) between 1 and 255),
  requests_per_window integer not null default 600 check (requests_per_window > 0),
  events_per_window integer not null default 6000 check (events_per_window > 0),
  -- A quota or limit that is null is none.
  email_quota bigint check (email_quota >= 0),
  sms_quota bigint check (sms_quota >= 0),
  push_quota bigint check (push_quota >= 0),
  chatapp_quota bigint check (chatapp_quota >= 0),
  domain_limit integer check (domain_limit >= 0),
  segment_limit integer check (segment_limit >= 0),
  event_limit integer check (event_limit >= 0),
  storage_limit_bytes bigint check (storage_limit_bytes >= 0),
  -- Null: for ever.
  events_kept_days integer check (events_kept_days between 1 and 3650),
  -- Null: as long as the installation keeps them.
  messages_kept_days integer check (messages_kept_days between 7 and 3650),
  content_kept_days integer check (content_kept_days between 1 and 3650),
  suspended_channels text[] not null default '{}'
    check (suspended_channels <@ array['email', 'sms', 'push', 'chatapp']),
  -- Whether too many bounces or complaints suspend it for email by themselves, and when it last came near to that.
  has_reputation_guard boolean not null default true,
  reputation_warned_at timestamptz,
  -- Whether its requests are logged for it.
  has_request_log boolean not null default true,
  -- Since when the reputation guard suspends it for email, and what it saw of the day before; null where the operator
  -- does, and where nobody does.
  guard_suspended_at timestamptz,
  guard_sent integer,
  guard_bounced integer,
  guard_complained integer,
  -- `requested`: its keys are refused, and nothing more of it is begun. `under_way`: nobody sees its data any more, and
  -- they are being deleted. `gone`: there are none any more; the row stays for a while, so that nobody writes new ones.
  deletion text check (deletion in ('requested', 'under_way', 'gone')),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  constraint organizations_guard_check
    check (num_nonnulls(guard_suspended_at, guard_sent, guard_bounced, guard_complained) in (0, 4)),
  constraint organizations_guard_suspended_check
    check (guard_suspended_at is null or 'email' = any (suspended_channels))
);
-- Asked by whatever looks for work: empty as a rule.
create index organizations_deleted on organizations (id) where deletion is not null;

-- A request reads its organization, and never changes it: its plan and its quotas are the operator's.
alter table organizations enable row level security;
call hold_to_organization('organizations', 'id');
do $$
begin
  if exists (select from pg_roles where rolname = 'postillion_tenant') then
    grant select on organizations to postillion_tenant;
  end if;
end
$$;

-- Of the organizations that a transaction is to act for, those that may be seen: whose deletion is not under way, nor
-- over. Every transaction asks it, so that nothing is looked up unless there are others: it returns what it is given,
-- which the planner puts in the place of the call. As a condition on `organizations` it took 8 µs a transaction.
create function organizations_in_service(ids text) returns text
language sql immutable
as $$ select ids $$;

-- Whether nobody has asked for a deletion. While that is so, the planner leaves out of statements on work what looks such
-- organizations up (deleted-organizations.ts), which took one in twenty microseconds of PostgreSQL's for each delivery.
create function are_no_organizations_deleted() returns boolean
language sql immutable
as $$ select true $$;

-- Keeps both functions in step with the table. Replacing one makes every session plan anew what has it, from the next
-- transaction on that begins after the commit. Deletions that begin and end at once take turns.
create function replace_organizations_in_service() returns trigger
language plpgsql
as $do$
begin
  perform pg_advisory_xact_lock(hashtextextended('organizations in service', 0));
  if exists (select from organizations where deletion <> 'requested') then
    create or replace function organizations_in_service(ids text) returns text
    language sql stable
    as $$
      select coalesce(string_agg(given.id, ','), '')
      from unnest(string_to_array(ids, ',')) as given (id)
      where not exists (select from organizations o where o.id = given.id::uuid and o.deletion <> 'requested')
    $$;
  else
    create or replace function organizations_in_service(ids text) returns text
    language sql immutable
    as $$ select ids $$;
  end if;
  if exists (select from organizations where deletion is not null) then
    create or replace function are_no_organizations_deleted() returns boolean
    language sql immutable
    as $$ select false $$;
  else
    create or replace function are_no_organizations_deleted() returns boolean
    language sql immutable
    as $$ select true $$;
  end if;
  return null;
end
$do$;
create trigger deletion_begins after update of deletion on organizations
  for each row when (new.deletion is distinct from old.deletion)
  execute function replace_organizations_in_service();
create trigger deletion_ends after delete on organizations
  for each row when (old.deletion is not null)
  execute function replace_organizations_in_service();

create table api_keys (
  organization_id uuid not null,
  id uuid not null,
  name text not null check (length(name) between 1 and 255),
  -- The first characters, so that a person can tell keys apart; the key itself is nowhere.
  prefix text not null,
  key_sha256 bytea not null unique check (octet_length(key_sha256) = 32),
  scopes text[] not null check (cardinality(scopes) > 0),
  -- Addresses and CIDR ranges as they were given; null for any. What is none of these is refused before it is stored.
  allowed_networks cidr[] check (cardinality(allowed_networks) between 1 and 50),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  -- Of the client that was seen at last_used_at.
  last_used_address inet,
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
  -- From which `used` on it is looked at whether a threshold of the quota is crossed; null: at the next change.
  look_at bigint,
  -- In shard 0, the highest threshold that is crossed, and the highest of which programs were told: 80 or 100 percent.
  crossed_percent smallint not null default 0,
  told_percent smallint not null default 0,
  primary key (organization_id, channel, month, shard)
) with (fillfactor = 50);
-- Asked for what is to be told: empty as a rule.
create index quota_usage_untold on quota_usage (organization_id) where crossed_percent > told_percent;
call wall_off('quota_usage');

-- Notes that what was used has crossed a threshold of the quota, in the transaction that uses it. Transactions that use more
-- of it at once hold its row of shard 0 here, one after the other, so that the last of them sees what all did. What was told
-- stays told until the quota is raised.
create function note_quota_crossing() returns trigger
language plpgsql
security definer
as $$
declare
  never constant bigint := 9223372036854775807;
  quota bigint := (
    select case new.channel
        when 'email' then o.email_quota
        when 'sms' then o.sms_quota
        when 'push' then o.push_quota
        when 'chatapp' then o.chatapp_quota
      end
    from organizations o
    where o.id = new.organization_id
  );
  total bigint;
  crossed integer;
begin
  -- A quota of nothing forbids the channel, which is no news.
  if quota is null or quota = 0 then
    update quota_usage
    set look_at = never, crossed_percent = 0, told_percent = 0
    where organization_id = new.organization_id and channel = new.channel and month = new.month and shard = new.shard;
    return null;
  end if;
  insert into quota_usage (organization_id, channel, month, shard, used)
  values (new.organization_id, new.channel, new.month, 0, 0)
  on conflict do nothing;
  perform
  from quota_usage
  where organization_id = new.organization_id and channel = new.channel and month = new.month and shard = 0
  for update;
  total := (
    select sum(used)
    from quota_usage
    where organization_id = new.organization_id and channel = new.channel and month = new.month
  );
  crossed := case when total >= quota then 100 when total >= ceil(quota * 0.8) then 80 else 0 end;
  update quota_usage
  set crossed_percent = crossed,
    told_percent = least(told_percent, crossed),
    -- The other shards grow by what is sent beyond the quota, and look at each change.
    look_at = case crossed when 0 then ceil(quota * 0.8) - total + used when 80 then quota - total + used else never end
  where organization_id = new.organization_id and channel = new.channel and month = new.month and shard = 0;
  perform pg_notify('postillion_quotas', '')
  from quota_usage
  where organization_id = new.organization_id and channel = new.channel and month = new.month and shard = 0
    and crossed_percent > told_percent;
  return null;
end
$$;
do $$
begin
  execute format('alter function note_quota_crossing() set search_path = %I, pg_temp', current_schema());
end
$$;
-- A trigger alone calls it.
revoke execute on function note_quota_crossing() from public;
-- The condition is PostgreSQL's own work: the function is called a few times a month.
create trigger quota_is_crossed after insert or update of used, look_at on quota_usage
  for each row when (new.used >= coalesce(new.look_at, 0))
  execute function note_quota_crossing();

-- What is stored of an organization, as it was measured last: nothing adds to it (storage.ts).
create table storage_usage (
  organization_id uuid primary key,
  bytes bigint not null check (bytes >= 0),
  -- The same by kinds, which add up to it.
  bytes_by_kind jsonb not null,
  measured_at timestamptz not null
);
call wall_off('storage_usage');

-- One row: before when nobody begins to measure, since somebody does or has just done so.
create table storage_measuring (
  is_only_row boolean primary key default true check (is_only_row),
  next_at timestamptz not null
);

-- What was used of a quota is added to, whoever serves requests. The condition is PostgreSQL's own work, and the
-- function is called where it holds: after the change, since a trigger before it would have the row locked once more.
create function refuse_less_usage() returns trigger
language plpgsql
as $$
begin
  if not pg_has_role(current_user, (select relowner from pg_class where oid = tg_relid), 'usage') then
    raise exception 'what was used of a quota only grows' using errcode = 'insufficient_privilege';
  end if;
  return null;
end
$$;
create trigger usage_only_grows after update on quota_usage
  for each row when (new.used < old.used)
  execute function refuse_less_usage();
