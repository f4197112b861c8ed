-- Owner: platform (the policies of all tables that have an organization), segments. What works in the background is
-- held to its organization by row-level security as well; until now only requests were.
-- Locks: access exclusive on all of these tables for a moment, while their policies are replaced. It waits, in short
-- tries, while a backup (pg_dump) runs, which reads all of them. The previous release may run beside it: the policies
-- let the same rows through.

-- Every statement names its organization, and the policy says it once more. The planner took the two for independent
-- of each other: the contacts of an organization for a single one, and one index as good as any other. Of a first
-- campaign the recipients were found by reading all of them for each (9,300 took minutes). It takes 'is not null' of
-- an expression to be true of nearly all rows, so that plans are those that are made without the policy.
create or replace procedure hold_to_organization(tenant_table regclass, organization_column name)
language plpgsql
as $$
begin
  execute format('drop policy if exists own_organization on %s', tenant_table);
  execute format(
    'create policy own_organization on %s using (
       (case when %I = any ((select current_organization_ids())::uuid[]) then true end) is not null
     )',
    tenant_table, organization_column
  );
end
$$;

create or replace procedure wall_off(tenant_table regclass)
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

do $$
declare
  tenant_table regclass;
begin
  -- All of them before anything is done that would be done in vain.
  execute (
    select format(
      'lock table %s in access exclusive mode',
      string_agg(polrelid::regclass::text, ', ' order by polrelid)
    )
    from pg_policy
    where polname = 'own_organization'
  );
  for tenant_table in
    select polrelid::regclass from pg_policy where polname = 'own_organization' order by polrelid
  loop
    call hold_to_organization(
      tenant_table,
      case tenant_table when 'organizations'::regclass then 'id' else 'organization_id' end
    );
  end loop;
end
$$;

-- Those whose conditions left their organization may have members of others: they are computed again.
update segments
set compute_at = least(compute_at, now())
where conditions ->> 'match' = 'any';
