-- Owner: domains. Sending domains.
-- Locks: none, all tables are new. The previous release: there is none.

create table domains (
  organization_id uuid not null,
  id uuid not null,
  -- Lower-case A-labels, without a final dot.
  name text not null check (length(name) between 3 and 253 and name = lower(name)),
  status text not null check (status in ('pending', 'verified')),
  verified_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  unique (organization_id, name),
  check ((status = 'verified') = (verified_at is not null))
);
-- A domain is verified for one organization at most.
create unique index domains_verified_name on domains (name) where status = 'verified';
call wall_off('domains');
