-- Owner: audience. Addresses that must not be written to any more.
-- Locks: none, all tables are new. The previous release: there is none.

create table suppressions (
  organization_id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  -- HMAC-SHA-256 of the normalised address: it outlives the erasure of the address itself.
  address_hash bytea not null check (octet_length(address_hash) = 32),
  -- The address as a person reads it; null once it was erased.
  address text,
  reason text not null check (reason in ('hard_bounce', 'complaint', 'unsubscribe', 'operator')),
  created_at timestamptz not null,
  primary key (organization_id, channel, address_hash)
);
call wall_off('suppressions');
