-- Owner: platform. The data keys of the installation, each sealed under every secret that may open them, so that a
-- secret can be told from a wrong one, and replaced.
-- Locks: none, the table is new. The previous release: may run beside it as long as no secret was rotated, since the
-- first key of an installation that was in use is the one that it derives itself. It looks at no row here.

create table secret_keys (
  -- Which of the secrets that POSTILLION_SECRET has been.
  secret_id integer not null check (secret_id > 0),
  key_id integer not null check (key_id between 1 and 255),
  -- AES-256-GCM under a key derived from the secret: whatever another secret makes of it is refused.
  sealed bytea not null,
  -- Before that no node uses it for anything new, and all learn to read it.
  usable_from timestamptz not null,
  created_at timestamptz not null,
  primary key (secret_id, key_id)
);
