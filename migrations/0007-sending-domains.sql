-- Owner: domains. What a domain needs to be registered by its organization, checked in the DNS, and signed for.
-- Locks: access exclusive on domains for a moment; the table is small. The previous release: may run beside it.

alter table domains
  add column return_path_subdomain text not null default 'send' check (length(return_path_subdomain) between 1 and 100),
  add column tracking_subdomain text check (length(tracking_subdomain) between 1 and 100),
  add column open_tracking boolean not null default false,
  add column click_tracking boolean not null default false,
  -- The pair that signs its mail: the public key as it stands in the DNS, the private one encrypted (PKCS #8).
  add column dkim_selector text,
  add column dkim_public_key text,
  add column dkim_private_key_sealed bytea,
  -- What the last check found of each record.
  add column findings json not null default '{}',
  add column last_checked_at timestamptz,
  -- When it is looked at again; null for one that was verified by the operator's word alone.
  add column next_check_at timestamptz,
  -- Since when a verified domain lacks records that it needs.
  add column degraded_since timestamptz,
  add check (
    (dkim_selector is null) = (dkim_public_key is null)
    and (dkim_selector is null) = (dkim_private_key_sealed is null)
  );

-- For the periodic check.
create index domains_next_check on domains (next_check_at) where next_check_at is not null;
-- For finding what lies below a name.
create index domains_verified_reversed on domains (reverse(name) text_pattern_ops) where status = 'verified';
