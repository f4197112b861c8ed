-- Owner: platform (create_partitions), accounts (quota_usage), senders, domains. Requests are served as a user that owns
-- nothing and may do no more than they need (src/platform/postgres/serving-role.ts). This is what grants cannot say.
-- Locks: share row exclusive on quota_usage for a moment, for its trigger; access exclusive on senders and domains for a
-- moment, for a default. The previous release serves beside it as the owner, for whom nothing changes.

-- A request that meets a time without a partition makes it, as the owner of the tables. It makes them of this schema's
-- own tables, and so few at once. The order in which names are looked up is fixed: a caller has temporary tables.
alter procedure create_partitions(regclass, timestamptz, text, integer, integer) rename to create_any_partitions;

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

-- What was used of a quota is added to. The condition is PostgreSQL's own work, and the function is called where it holds:
-- after the change, since a trigger before it would have the row locked once more.
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

-- Nothing else is said when one is added.
alter table senders alter column status set default 'pending';
alter table domains alter column status set default 'pending';
