-- Owner: platform. What every room needs: the wall between organizations, partitions, the data keys of the
-- installation, stored responses, rate limits, and workers.

-- The role that all work on an organization's data runs under. It owns nothing and does not bypass row-level security;
-- a transaction enters it with a setting of its own that names the organizations it acts for. Where the migrating user
-- may not create roles, the wall is left out and `postillion doctor` says so.
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

-- Makes the policy of a table. Every statement names its organization, and the policy says it once more. If it said it
-- in the same way, the planner would take the two for independent of each other: the contacts of an organization for a
-- single one, and one index as good as any other. Of a first campaign the recipients were found by reading all of them
-- for each (9,300 took minutes). It takes 'is not null' of an expression to be true of nearly all rows, so that plans
-- are those that are made without the policy.
create procedure hold_to_organization(tenant_table regclass, organization_column name)
language plpgsql
as $$
begin
  execute format(
    'create policy own_organization on %s using (
       (case when %I = any ((select current_organization_ids())::uuid[]) then true end) is not null
     )',
    tenant_table, organization_column
  );
end
$$;

-- Puts a table behind the wall.
create procedure wall_off(tenant_table regclass)
language plpgsql
as $$
begin
  execute format('alter table %s enable row level security', tenant_table);
  call hold_to_organization(tenant_table, 'organization_id');
  if exists (select from pg_roles where rolname = 'postillion_tenant') then
    execute format('grant select, insert, update, delete on %s to postillion_tenant', tenant_table);
  end if;
end
$$;

-- Ids are UUIDv7, so that a range of ids is a range of time. The lowest one of an instant (RFC 9562, 48 bits of
-- milliseconds first).
create function lowest_id_at(instant timestamptz) returns uuid
language sql immutable
as $$
  select (lpad(to_hex(trunc(extract(epoch from instant) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- The instant at which a UUIDv7 was made; of a bound of a partition, that bound.
create function instant_of_id(id uuid) returns timestamptz
language sql immutable
as $$
  select to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;

-- The partitions of a table, with their bounds; `from_id` is null where one reaches back to the beginning.
create function partitions_of(parent regclass) returns table (name text, from_id uuid, to_id uuid)
language sql stable
as $$
  select c.relname::text,
    substring(bound from $re$FROM \('([0-9a-f-]+)'\)$re$)::uuid,
    substring(bound from $re$TO \('([0-9a-f-]+)'\)$re$)::uuid
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  cross join lateral pg_get_expr(c.relpartbound, c.oid) as bound
  where i.inhparent = parent
$$;

-- Makes one partition. Of two indexes that cost the same PostgreSQL takes the one that was made last (get_relation_info
-- in plancat.c). In an empty partition all cost the same: with the primary key made first, a recipient was looked for
-- among all recipients of its organization (by the index on their addresses, whose second column was not given), and
-- the plan stayed until the table was analyzed. So the primary key comes last. Where an index has rows, the primary key
-- is never dearer for a whole key.
create procedure create_partition(parent regclass, partition_name text, bounds text, filled_percent integer)
language plpgsql
as $$
declare
  definition text;
begin
  execute format(
    'create table %I (like %s including defaults including generated including constraints including storage '
    'including compression) with (fillfactor = %s)',
    partition_name,
    parent,
    filled_percent
  );
  for definition in
    select format(
      'create %s index on %I %s',
      case when indisunique then 'unique' end,
      partition_name,
      substring(pg_get_indexdef(indexrelid) from ' (USING .*)$')
    )
    from pg_index
    where indrelid = parent and not indisprimary
    order by indexrelid
  loop
    execute definition;
  end loop;
  for definition in
    select pg_get_constraintdef(oid) from pg_constraint where conrelid = parent and contype = 'p'
  loop
    execute format('alter table %I add %s', partition_name, definition);
  end loop;
  execute format('alter table %s attach partition %I %s', parent, partition_name, bounds);
end
$$;

-- Makes the partitions of a table that its time to come needs: `ahead` of the unit (day, week or month), the present
-- one included. What is there already, of whatever size, is left as it is, and gaps between two are filled: a clock
-- that was far ahead for an hour must not leave the time up to its own without partitions. Two nodes that run it at
-- once take turns. The first partition of a table reaches back to the beginning. Each page is filled to
-- `filled_percent`; where that is not given, like the newest partition.
create procedure create_any_partitions(
  parent regclass,
  from_time timestamptz,
  unit text,
  ahead integer,
  filled_percent integer default null
)
language plpgsql
as $$
declare
  -- Without a zone: in UTC.
  piece_start timestamp := date_trunc(unit, from_time at time zone 'utc');
  ends_at timestamp := piece_start + ahead * ('1 ' || unit)::interval;
  piece_end timestamp;
  covering record;
  next_id uuid;
  is_first boolean;
  partition_name text;
  nearest_percent integer;
begin
  perform pg_advisory_xact_lock(hashtextextended('create_partitions', 0));
  -- Ends, since each turn leaves a later start.
  while piece_start < ends_at loop
    select to_id into covering
    from partitions_of(parent)
    where (from_id is null or from_id <= lowest_id_at(piece_start at time zone 'utc'))
      and to_id > lowest_id_at(piece_start at time zone 'utc');
    if found then
      piece_start := instant_of_id(covering.to_id) at time zone 'utc';
      continue;
    end if;
    select from_id into next_id
    from partitions_of(parent)
    where from_id > lowest_id_at(piece_start at time zone 'utc')
    order by from_id
    limit 1;
    is_first := not exists (select from pg_inherits where inhparent = parent);
    piece_end := least(
      date_trunc(unit, piece_start) + ('1 ' || unit)::interval,
      instant_of_id(next_id) at time zone 'utc'
    );
    -- A whole month is named like one. The names sort like the times.
    partition_name := format(
      '%s_%s',
      parent,
      to_char(
        piece_start,
        case
          when piece_start = date_trunc('month', piece_start) and piece_end = piece_start + interval '1 month'
            then 'YYYY_MM'
          else 'YYYY_MM_DD'
        end
      )
    );
    select option_value into nearest_percent
    from pg_inherits
    join pg_class on oid = inhrelid
    cross join pg_options_to_table(reloptions)
    where inhparent = parent and option_name = 'fillfactor'
    order by relname < partition_name desc, relname desc
    limit 1;
    call create_partition(
      parent,
      partition_name,
      format(
        'for values from (%s) to (%L)',
        case
          when is_first then 'minvalue'
          else quote_literal(lowest_id_at(piece_start at time zone 'utc'))
        end,
        lowest_id_at(piece_end at time zone 'utc')
      ),
      coalesce(filled_percent, nearest_percent, 100)
    );
    piece_start := piece_end;
  end loop;
end
$$;

-- The same for whoever serves requests, and owns nothing: a request that meets a time without a partition makes it, as
-- the owner of the tables. It makes them of this schema's own tables, and so few at once. The order in which names are
-- looked up is fixed: a caller has temporary tables.
create procedure create_partitions(
  parent regclass,
  from_time timestamptz,
  unit text,
  ahead integer,
  filled_percent integer default null
)
language plpgsql
security definer
as $$
begin
  if not exists (
    select
    from pg_class
    where oid = parent and relkind = 'p' and not relispartition and relnamespace = current_schema()::regnamespace
  ) then
    raise exception '% is no table with partitions', parent using errcode = 'wrong_object_type';
  end if;
  if unit is null or unit <> all (array['day', 'week', 'month']) or ahead is null or ahead not between 1 and 12 then
    raise exception 'up to twelve days, weeks or months are made at once' using errcode = 'invalid_parameter_value';
  end if;
  call create_any_partitions(parent, from_time, unit, ahead, filled_percent);
end
$$;
do $$
begin
  execute format(
    'alter procedure create_partitions(regclass, timestamptz, text, integer, integer) set search_path = %I, pg_temp',
    current_schema()
  );
end
$$;
revoke execute on procedure create_partitions(regclass, timestamptz, text, integer, integer) from public;

-- Whether a number in it would be written with more than forty characters. `jsonb` knows no exponents: it writes the
-- six characters of `1e+308` as 309, so that a payload of 27 kB would be 1.4 MB whenever it is read. Requests and files
-- with such numbers are refused (`isStorableNumber`); by the checks that call this, no row can have one, whatever
-- writes it.
create function has_long_number(document jsonb) returns boolean
language sql immutable
as $$
  select jsonb_path_exists(
    document,
    'strict $.** ? (@ >= 1e30 || @ <= -1e30 || (@ > -1e-20 && @ < 1e-20 && @ != 0))'
  )
$$;

-- The data keys of the installation, each sealed under every secret that may open them, so that a secret can be told
-- from a wrong one, and replaced.
create table secret_keys (
  -- Which of the secrets that POSTILLION_SECRET has been.
  secret_id integer not null check (secret_id > 0),
  key_id integer not null check (key_id between 1 and 255),
  -- AES-256-GCM under a key derived from the secret: whatever another secret makes of it is refused.
  sealed bytea not null,
  -- Before that no node uses it for anything new, and all learn to read it.
  usable_from timestamptz not null,
  created_at timestamptz not null,
  primary key (secret_id, key_id)
);

-- Responses that were given, kept for 24 hours and committed together with what they report.
create table idempotency_keys (
  organization_id uuid not null,
  endpoint text not null,
  key text not null,
  fingerprint bytea not null check (octet_length(fingerprint) = 32),
  status_code smallint not null check (status_code between 200 and 299),
  response text not null,
  created_at timestamptz not null,
  -- Those that the stored answer had besides its body, by their names.
  headers jsonb,
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

-- Takes an advisory lock for the session, however long another one holds it. A statement that waits holds its snapshot,
-- and what is deleted after it is removed from no table, and passed over again and again by whoever reads its index: workers
-- wait for each other's locks all their lives. So each attempt is a transaction of its own. It ends before PostgreSQL looks
-- for deadlocks (`deadlock_timeout`), and writes of long waits into its log. To be called outside of a transaction.
create procedure take_session_lock(lock_class integer, lock integer)
language plpgsql
as $$
begin
  -- Ends with the session, as its client does not wait for it any more, or with the lock.
  loop
    perform set_config('lock_timeout', '500', true);
    begin
      perform pg_advisory_lock(lock_class, lock);
      return;
    exception
      when lock_not_available then null;
    end;
    commit;
  end loop;
end
$$;
