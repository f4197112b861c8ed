-- Owner: platform (create_partitions). Partitions by day, week or month: at a hundred million recipients a day the indexes
-- of a month outgrow memory.
-- Locks: none. The previous release may run beside it: it asks for months, as before, and finds what is made by day or by
-- week there already. It drops none of those.

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

-- Makes the partitions of a table that its time to come needs: `ahead` of the unit (day, week or month), the present one
-- included. What is there already, of whatever size, is left as it is, and gaps between two are filled. Two nodes that run
-- it at once take turns. The first partition of a table reaches back to the beginning. Each page is filled to
-- `filled_percent`; where that is not given, like the newest partition.
create procedure create_partitions(
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
  perform pg_advisory_xact_lock(hashtextextended('create_monthly_partitions', 0));
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
    call create_month_partition(
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

-- For the previous release, and for earlier migrations.
create or replace procedure create_monthly_partitions(
  parent regclass,
  from_time timestamptz,
  months integer,
  filled_percent integer default null
)
language plpgsql
as $$
begin
  call create_partitions(parent, from_time, 'month', months, filled_percent);
end
$$;
