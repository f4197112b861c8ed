-- Owner: audience (contact_erasures). What campaigns sent to a contact that was deleted, at whatever address it had
-- then: its addresses at the deletion, which `erasures` has, do not find what went to former ones.
-- Locks: share row exclusive on contacts for a moment, while the trigger is made. The previous release: may run beside
-- it. The trigger notes what its nodes delete, which is erased as soon as a worker of this release looks.

create table contact_erasures (
  organization_id uuid not null,
  contact_id uuid not null,
  requested_at timestamptz not null default now(),
  -- When it is looked for again: what was not delivered yet needs its address until then.
  due_at timestamptz not null default now(),
  primary key (organization_id, contact_id)
);
create index contact_erasures_due on contact_erasures (due_at);
call wall_off('contact_erasures');

-- A trigger, so that a contact cannot be deleted without it, by whatever release.
create function note_contact_erasures() returns trigger
language plpgsql
as $$
begin
  insert into contact_erasures (organization_id, contact_id)
  select organization_id, id
  from deleted_contacts
  order by organization_id, id
  on conflict (organization_id, contact_id) do nothing;
  return null;
end
$$;
create trigger note_erasures after delete on contacts
  referencing old table as deleted_contacts
  for each statement execute function note_contact_erasures();
