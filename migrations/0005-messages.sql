-- Owner: messages. One message, its recipients, its content, and the queue of what is still to be handed off.
-- Locks: none, all tables are new. The previous release: there is none.

create table messages (
  organization_id uuid not null,
  id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  class text not null check (class in ('transactional', 'campaign')),
  -- A pure function of the recipients, kept up to date in the transaction that changes them.
  status text not null default 'queued'
    check (status in ('queued', 'sent', 'partially_delivered', 'delivered', 'failed')),
  sender text not null,
  subject text,
  -- The beginning of the subject in lower case, for searching. Not an index on an expression: row-level security
  -- keeps functions that are not leakproof, `lower` among them, out of index conditions.
  subject_key text,
  category text,
  template_id uuid,
  -- What else a person sees of the message, by channel; small.
  details json not null,
  recipient_count integer not null check (recipient_count > 0),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id)
) partition by range (id);
-- For the filters of the list of sent messages; each ends in the id, so that a page is read off the index.
create index messages_status on messages (organization_id, channel, status, id) where class = 'transactional';
create index messages_category on messages (organization_id, channel, category, id)
  where class = 'transactional' and category is not null;
create index messages_subject on messages (organization_id, channel, subject_key text_pattern_ops, id)
  where class = 'transactional' and subject_key is not null;
call wall_off('messages');

-- What a message says. Apart from its row, so that a change of status does not copy it, and so that content can go
-- before fates do.
create table message_contents (
  organization_id uuid not null,
  message_id uuid not null,
  content json not null,
  primary key (organization_id, message_id)
) partition by range (message_id);
-- Content is read once or twice in its life: compressing it would cost more than the room that it takes.
alter table message_contents alter column content set storage external;
call wall_off('message_contents');

-- Attachments, sealed, and only until the message is terminal.
create table attachment_contents (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal smallint not null,
  sealed bytea not null,
  primary key (organization_id, message_id, ordinal)
);
-- Sealed bytes do not compress; trying costs more than storing them.
alter table attachment_contents alter column sealed set storage external;
call wall_off('attachment_contents');

create table recipients (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  field text not null check (field in ('to', 'cc', 'bcc')),
  -- As it was submitted, and as it is compared: lower-case, domain as A-labels.
  address text not null,
  address_key text not null,
  -- What fills the placeholders for this recipient alone; null where the content is the same for all.
  variables json,
  status text not null default 'sent' check (
    status in ('sent', 'delayed', 'delivered', 'opened', 'clicked', 'bounced', 'failed', 'complained', 'unsubscribed')
  ),
  status_at timestamptz not null,
  drop_reason text check (
    drop_reason in ('invalid_domain', 'no_mx', 'null_mx', 'disposable', 'suppressed', 'unreachable', 'duplicate')
  ),
  handed_off_at timestamptz,
  -- A hand-off was cut off before its answer, and nothing has settled it yet.
  uncertain boolean not null default false,
  -- How many hand-offs were cut off before their answer: deliveries beyond one can never exceed it.
  ambiguities smallint not null default 0,
  provider_message_id text,
  failure_type text check (failure_type in ('hard', 'soft')),
  failure_class text,
  smtp_code smallint,
  enhanced_code text,
  diagnostic text,
  remote text,
  opened_at timestamptz,
  clicked_at timestamptz,
  primary key (organization_id, message_id, ordinal),
  -- A dropped recipient was never written to.
  check (drop_reason is null or (status = 'sent' and handed_off_at is null))
) partition by range (message_id);
create index recipients_address on recipients (organization_id, address_key text_pattern_ops, message_id);
call wall_off('recipients');

-- One row a recipient that is still to be handed off; small, and deleted when the outcome is written.
create table delivery_queue (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  channel text not null,
  -- 0 transactional, 1 campaign: the lower goes first.
  lane smallint not null check (lane in (0, 1)),
  due_at timestamptz not null,
  accepted_at timestamptz not null,
  -- Bounds how much a worker takes into memory at once.
  content_bytes integer not null,
  attempts smallint not null default 0,
  -- Hand-offs that were cut off before their answer.
  ambiguities smallint not null default 0,
  -- Claims that ended with the death of their worker.
  crashes smallint not null default 0,
  -- The epoch of the worker that has it, and which of that worker's claims it was taken by.
  claimed_by bigint,
  claim_number bigint,
  -- Set aside after it took its worker down again and again; an operator may replay it.
  set_aside_at timestamptz,
  primary key (organization_id, message_id, ordinal),
  check ((claimed_by is null) = (claim_number is null))
) with (
  -- Rows are updated when they are claimed, and deleted: with room on the page both change the same one.
  fillfactor = 60,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0
);
-- For claiming: what is due, by lane and organization. Claimed rows leave it.
create index delivery_queue_due on delivery_queue (lane, organization_id, due_at)
  where claimed_by is null and set_aside_at is null;
-- For finding, at every claim, that there is nothing to be found.
create index delivery_queue_suspects on delivery_queue (due_at)
  where crashes >= 2 and claimed_by is null and set_aside_at is null;
call wall_off('delivery_queue');

-- What workers are about to hand off: a row a batch, committed before any of it leaves. A mark on each job would be
-- one more version of its row (measured, 12 in a batch: 50 µs of PostgreSQL a job, and with a row a batch 38, of which
-- the commit is half). It speaks of one claim of each job: one that was settled and is claimed again has another number.
create table hand_offs (
  epoch bigint not null,
  batch bigint not null,
  organization_ids uuid[] not null,
  message_ids uuid[] not null,
  ordinals integer[] not null,
  claim_numbers bigint[] not null,
  primary key (epoch, batch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The rows of both are written once when they are accepted and again when their fate is known. The second version
-- finds room beside the first, even where a campaign changes all rows of a page at once, and so no index changes
-- (measured: 200 bytes of WAL a recipient instead of 655). It takes no room that they would not take elsewhere.
call create_monthly_partitions('messages', now(), 4, 45);
call create_monthly_partitions('recipients', now(), 4, 45);
call create_monthly_partitions('message_contents', now(), 4);
