-- Where API keys may be used from, and where they were last used from.
-- Owner: accounts. New nullable columns and a constraint on rows that cannot have them yet: an exclusive lock on a small
-- table for a moment. The previous release reads and writes keys by the names of columns, and does not look at these.
alter table api_keys
  -- Addresses and CIDR ranges as they were given; null for any. What is none of these is refused before it is stored.
  add column allowed_networks cidr[] check (cardinality(allowed_networks) between 1 and 50),
  -- Of the client that was seen at last_used_at.
  add column last_used_address inet;
