-- Owner: accounts (organizations), platform (idempotency_keys), audience (suppressions). What people are told: by whom
-- an organization is suspended, the headers of an answer that is given again, and which addresses are suppressed.
-- Locks: access exclusive on organizations and idempotency_keys for a moment, since the columns are empty; share on
-- suppressions while the index is built, in which nobody is suppressed anew: unsubscribes, bounces and complaints of
-- the previous release wait meanwhile (2.4 s for a million rows on two busy cores; beyond ten seconds they fail and are
-- to be tried again). The previous release: may run beside it. What its reputation guard suspends, and has suspended before, is told as the
-- operator's, and its answers are given again without headers.

alter table organizations
  -- Since when the reputation guard suspends it for email, and what it saw of the day before; null where the operator
  -- does, and where nobody does.
  add column guard_suspended_at timestamptz,
  add column guard_sent integer,
  add column guard_bounced integer,
  add column guard_complained integer,
  add constraint organizations_guard_check
    check (num_nonnulls(guard_suspended_at, guard_sent, guard_bounced, guard_complained) in (0, 4));

alter table idempotency_keys
  -- Those that the stored answer had besides its body, by their names.
  add column headers jsonb;

-- For the operator, who reads them newest first.
create index suppressions_newest on suppressions (organization_id, channel, created_at desc, address_hash);
