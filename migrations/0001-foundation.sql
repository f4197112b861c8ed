-- Owner: platform. What any server needs: who may see what, what was answered, how often, and who works.
-- Locks: none, all tables are new. The previous release: there is none.

-- The second wall between organizations. The role owns nothing and does not bypass row-level security; a
-- transaction enters it with a setting of its own that names the organizations it acts for. Where the migrating
-- user may not create roles, the wall is left out and `postillion doctor` says so.
do $$
begin
  if not exists (select from pg_roles where rolname = 'postillion_tenant') then
    create role postillion_tenant nologin;
  end if;
  if not pg_has_role(current_user, 'postillion_tenant', 'member') then
    execute format('grant postillion_tenant to %I', current_user);
  end if;
exception
  -- Roles belong to the whole cluster: another database's migration may be creating it at this moment.
  when duplicate_object or unique_violation then null;
  when insufficient_privilege then raise warning 'the role postillion_tenant could not be created: row-level security stays off';
end
$$;

-- The organizations that the present transaction acts for. In policies it stands in a scalar sub-select, so that
-- it is evaluated once a statement and not once a row.
create function current_organization_ids() returns uuid[]
language sql stable
as $$ select string_to_array(nullif(current_setting('postillion.organization_ids', true), ''), ',')::uuid[] $$;

-- Puts a table behind the second wall.
create procedure wall_off(tenant_table regclass)
language plpgsql
as $$
begin
  execute format('alter table %s enable row level security', tenant_table);
  execute format(
    'create policy own_organization on %s using (organization_id = any ((select current_organization_ids())::uuid[]))',
    tenant_table
  );
  if exists (select from pg_roles where rolname = 'postillion_tenant') then
    execute format('grant select, insert, update, delete on %s to postillion_tenant', tenant_table);
  end if;
end
$$;

-- Responses that were given, kept for 24 hours and committed together with what they report.
create table idempotency_keys (
  organization_id uuid not null,
  endpoint text not null,
  key text not null,
  fingerprint bytea not null check (octet_length(fingerprint) = 32),
  status_code smallint not null check (status_code between 200 and 299),
  response text not null,
  created_at timestamptz not null,
  primary key (organization_id, endpoint, key)
);
-- Rows are written in the order of time, so that block ranges are enough to find the old ones.
create index idempotency_keys_created_at on idempotency_keys using brin (created_at) with (pages_per_range = 16);
call wall_off('idempotency_keys');

-- Requests counted in windows of 60 seconds, added up from all nodes. Unlogged: a crash may forget a minute.
create unlogged table rate_windows (
  subject uuid not null,
  kind text not null,
  window_start timestamptz not null,
  used bigint not null,
  primary key (subject, kind, window_start)
);

-- Workers that are, or were, alive. Whoever holds the advisory lock of an epoch is that worker.
create sequence worker_epochs;
create table workers (
  epoch bigint primary key,
  host text not null,
  pid integer not null,
  started_at timestamptz not null
);

-- Makes the monthly partitions of a table from the month of `from_time` on, `months` of them. Ids are UUIDv7, so a
-- range of ids is a range of time; the first partition reaches back to the beginning. Two nodes that run it at once
-- take turns. Each page is filled to `filled_percent`; where that is not given, like the newest partition.
create procedure create_monthly_partitions(
  parent regclass,
  from_time timestamptz,
  months integer,
  filled_percent integer default null
)
language plpgsql
as $$
declare
  month_start timestamptz := date_trunc('month', from_time at time zone 'utc') at time zone 'utc';
  month_end timestamptz;
  partition_name text;
  newest_name text;
  newest_percent integer;
begin
  perform pg_advisory_xact_lock(hashtextextended('create_monthly_partitions', 0));
  for offset_months in 0 .. months - 1 loop
    month_end := (month_start at time zone 'utc' + interval '1 month') at time zone 'utc';
    partition_name := format('%s_%s', parent, to_char(month_start at time zone 'utc', 'YYYY_MM'));
    -- The names sort like the months. What lies before the newest partition is covered.
    select max(inhrelid::regclass::text) into newest_name from pg_inherits where inhparent = parent;
    select option_value into newest_percent
    from pg_class, pg_options_to_table(reloptions)
    where oid = to_regclass(newest_name) and option_name = 'fillfactor';
    if newest_name is null or partition_name > newest_name then
      execute format(
        'create table %I partition of %s for values from (%s) to (%L) with (fillfactor = %s)',
        partition_name,
        parent,
        case when newest_name is null then 'minvalue' else quote_literal(lowest_id_at(month_start)) end,
        lowest_id_at(month_end),
        coalesce(filled_percent, newest_percent, 100)
      );
    end if;
    month_start := month_end;
  end loop;
end
$$;

-- The lowest UUIDv7 of an instant (RFC 9562, 48 bits of milliseconds first).
create function lowest_id_at(instant timestamptz) returns uuid
language sql immutable
as $$
  select (lpad(to_hex(trunc(extract(epoch from instant) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
