-- Owner: domains. Sending domains: registered by their organization, checked in the DNS, and signed for.

create table domains (
  organization_id uuid not null,
  id uuid not null,
  -- Lower-case A-labels, without a final dot.
  name text not null check (length(name) between 3 and 253 and name = lower(name)),
  -- Nothing else is said when one is added.
  status text not null default 'pending' check (status in ('pending', 'verified')),
  verified_at timestamptz,
  return_path_subdomain text not null default 'send' check (length(return_path_subdomain) between 1 and 100),
  tracking_subdomain text check (length(tracking_subdomain) between 1 and 100),
  open_tracking boolean not null default false,
  click_tracking boolean not null default false,
  -- The pair that signs its mail: the public key as it stands in the DNS, the private one encrypted (PKCS #8).
  dkim_selector text,
  dkim_public_key text,
  dkim_private_key_sealed bytea,
  -- What the last check found of each record.
  findings json not null default '{}',
  last_checked_at timestamptz,
  -- When it is looked at again; null for one that was verified by the operator's word alone.
  next_check_at timestamptz,
  -- How often a check was asked for, and how much of that the last one answers: it began when so many had asked.
  checks_asked bigint not null default 0,
  checks_answered bigint not null default 0 check (checks_answered >= 0),
  -- A worker looks at it, until then at most; null while none does.
  checking_until timestamptz,
  -- Since when a verified domain lacks records that it needs.
  degraded_since timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  unique (organization_id, name),
  check ((status = 'verified') = (verified_at is not null)),
  -- A number in JavaScript holds no more.
  check (checks_asked between checks_answered and 9007199254740991),
  check (
    (dkim_selector is null) = (dkim_public_key is null)
    and (dkim_selector is null) = (dkim_private_key_sealed is null)
  )
);
-- A domain is verified for one organization at most.
create unique index domains_verified_name on domains (name) where status = 'verified';
-- For the periodic check, which takes turns of organizations.
create index domains_next_check on domains (next_check_at) where next_check_at is not null;
-- For finding what lies below a name.
create index domains_verified_reversed on domains (reverse(name) text_pattern_ops) where status = 'verified';
create index domains_turns on domains (organization_id, next_check_at, id) where next_check_at is not null;
-- For the checks that were asked for, which take turns of organizations as well.
create index domains_asked on domains (organization_id, updated_at, id) where checks_asked > checks_answered;
call wall_off('domains');
