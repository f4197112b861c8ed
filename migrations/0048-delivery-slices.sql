-- Owner: messages (delivery_slices). Campaigns are delivered by slices of their recipients.
-- Locks: none on tables in use.
-- The previous release may run beside, but does not see slices: its workers leave them to the workers of this release,
-- and a campaign that it moves may be called sent while the last of its slices are handed off.

-- Recipients of a campaign that nobody has tried yet, some hundred in a row, from the first to the last of these ordinals.
-- One row is claimed for all of them. A recipient that was not plainly taken gets a row of its own in delivery_queue, in
-- the transaction that writes its outcome. The slice is deleted with the outcome of its last recipient.
create table delivery_slices (
  organization_id uuid not null,
  message_id uuid not null,
  first_ordinal integer not null,
  last_ordinal integer not null check (last_ordinal >= first_ordinal),
  channel text not null,
  -- As in delivery_queue: 1 a campaign, 2 one that is paused, which no worker claims.
  lane smallint not null check (lane in (1, 2)),
  -- Those of the recipients that were not dropped when they were admitted.
  recipients integer not null check (recipients > 0),
  accepted_at timestamptz not null,
  content_bytes integer not null,
  -- The epoch of the worker that has it, and which of that worker's claims it was taken by.
  claimed_by bigint,
  claim_number bigint,
  -- How many transactions have written outcomes of it: one whose answer was lost is found to have been written.
  writes integer not null default 0,
  primary key (organization_id, message_id, first_ordinal),
  check ((claimed_by is null) = (claim_number is null))
) with (
  fillfactor = 60,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
-- For claiming: in the order in which they were admitted. Claimed rows leave it.
create index delivery_slices_due on delivery_slices (channel, lane, organization_id, accepted_at, first_ordinal)
  where claimed_by is null;
-- For the claims of a worker that has ended.
create index delivery_slices_claimed on delivery_slices (claimed_by) where claimed_by is not null;
call wall_off('delivery_slices');
