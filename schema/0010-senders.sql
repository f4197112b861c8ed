-- Owner: senders. The names and numbers that organizations send texts from.

create table senders (
  organization_id uuid not null,
  id uuid not null,
  -- As people see it: up to 11 characters with a letter, or up to 15 digits without a plus.
  name text collate "C" not null,
  type text not null check (type in ('alphanumeric', 'long_code', 'short_code', 'toll_free')),
  -- Nothing else is said when one is added.
  status text not null default 'pending' check (status in ('pending', 'approved', 'rejected')),
  approved_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  -- By which it is looked up when something is sent; the index after it lets even fewer names through.
  unique (organization_id, name),
  check (case when type = 'alphanumeric' then length(name) between 1 and 11 else name ~ '^[0-9]{1,15}$' end),
  check ((status = 'approved') = (approved_at is not null))
);
-- Nobody tells Acme from ACME.
create unique index senders_name on senders (organization_id, lower(name));
-- A number is approved for one organization of the installation at most: whoever answers it answers that one.
create unique index senders_approved_number on senders (name)
  where status = 'approved' and type <> 'alphanumeric';
-- Whose a number is or was: for texts that come in, whatever became of the sender.
create index senders_number on senders (name, organization_id) where type <> 'alphanumeric';
call wall_off('senders');
