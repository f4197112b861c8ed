-- Owner: push (push_engagements), devices (delete_devices_of_contacts). What apps report of pushes on their devices, and the
-- erasure of pushes together with their contact.
-- Locks: none of what is there. The previous release: may run beside it.

-- One row a recipient of whom something was reported, with the first time of each.
create table push_engagements (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  delivered_at timestamptz,
  displayed_at timestamptz,
  clicked_at timestamptz,
  dismissed_at timestamptz,
  -- Of the button that was clicked.
  action_id text,
  -- By which events that are reported again are known.
  event_ids text[] not null,
  primary key (organization_id, message_id, ordinal)
) partition by range (message_id);
call wall_off('push_engagements');
call create_monthly_partitions('push_engagements', now(), 4, 70);

-- As before; and what was pushed to them, whose recipients have the contact's id for an address, is erased.
create or replace function delete_devices_of_contacts() returns trigger
language plpgsql
as $$
begin
  with gone as (
    -- By arrays, which are looked up in the index however many contacts the first deletion of a session has. No two
    -- organizations have a contact of the same id.
    delete from devices
    where contact_id = any (array(select id from deleted_contacts))
      and organization_id = any (array(select distinct organization_id from deleted_contacts))
    returning organization_id, contact_id
  )
  insert into erasures (organization_id, address, requested_at, due_at)
  select distinct organization_id, contact_id::text, now(), now()
  from gone
  on conflict (organization_id, address) do nothing;
  return null;
end
$$;
