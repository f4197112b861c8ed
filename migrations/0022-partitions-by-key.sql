-- Owner: platform (create_monthly_partitions); messages (the partitions of messages, recipients, message_contents).
-- Partitions of which rows are found by their primary key before anything is known of them, and that leave no gap.
-- Locks: access exclusive on the three tables and their partitions for a moment, while empty partitions are detached
-- and attached. It waits, in short tries, while a backup (pg_dump) runs, which reads all of them. The previous release
-- makes and uses partitions as before.

-- All at once, in the order in which a message is accepted, and before anything is done that would be done in vain.
lock table messages, message_contents, recipients in access exclusive mode;

-- Of two indexes that cost the same PostgreSQL takes the one that was made last (get_relation_info in plancat.c). In an
-- empty partition all cost the same, so that with the primary key made first, a recipient was looked for among all
-- recipients of its organization (by the index on their addresses, whose second column was not given), and the plan
-- stayed until the table was analyzed. So the primary key comes last. Where an index has rows, the primary key is
-- never dearer for a whole key.
create procedure create_month_partition(parent regclass, partition_name text, bounds text, filled_percent integer)
language plpgsql
as $$
declare
  definition text;
begin
  execute format(
    'create table %I (like %s including defaults including constraints including storage including compression) with (fillfactor = %s)',
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

-- As before, and beyond that: the months between two that are there are made as well. A clock that was far ahead for
-- an hour must not leave the months up to its own without partitions.
create or replace procedure create_monthly_partitions(
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
  oldest_name text;
  nearest_percent integer;
begin
  perform pg_advisory_xact_lock(hashtextextended('create_monthly_partitions', 0));
  for offset_months in 0 .. months - 1 loop
    month_end := (month_start at time zone 'utc' + interval '1 month') at time zone 'utc';
    partition_name := format('%s_%s', parent, to_char(month_start at time zone 'utc', 'YYYY_MM'));
    -- The names sort like the months. What lies before the oldest partition is covered by it.
    select min(inhrelid::regclass::text) into oldest_name from pg_inherits where inhparent = parent;
    if to_regclass(quote_ident(partition_name)) is null and (oldest_name is null or partition_name > oldest_name) then
      select option_value into nearest_percent
      from pg_inherits
      join pg_class on oid = inhrelid
      cross join pg_options_to_table(reloptions)
      where inhparent = parent and option_name = 'fillfactor' and relname < partition_name
      order by relname desc
      limit 1;
      call create_month_partition(
        parent,
        partition_name,
        format(
          'for values from (%s) to (%L)',
          case when oldest_name is null then 'minvalue' else quote_literal(lowest_id_at(month_start)) end,
          lowest_id_at(month_end)
        ),
        coalesce(filled_percent, nearest_percent, 100)
      );
    end if;
    month_start := month_end;
  end loop;
end
$$;

-- Partitions that hold rows have been analyzed by now, or will be, and are left as they are.
do $$
declare
  partition record;
  is_empty boolean;
begin
  for partition in
    select c.oid::regclass as name, i.inhparent::regclass as parent, pg_get_expr(c.relpartbound, c.oid) as bounds,
      k.conname, pg_get_constraintdef(k.oid) as primary_key
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    join pg_constraint k on k.conrelid = c.oid and k.contype = 'p'
    where i.inhparent in ('messages'::regclass, 'recipients'::regclass, 'message_contents'::regclass)
    order by 1
  loop
    execute format('select not exists (select from %s)', partition.name) into is_empty;
    if is_empty then
      execute format('alter table %s detach partition %s', partition.parent, partition.name);
      execute format('alter table %s drop constraint %I', partition.name, partition.conname);
      execute format('alter table %s add %s', partition.name, partition.primary_key);
      execute format('alter table %s attach partition %s %s', partition.parent, partition.name, partition.bounds);
    end if;
  end loop;
end
$$;
