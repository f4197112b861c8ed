-- Owner: messages. One message on any channel, its recipients, its content, the queue of what is still to be handed
-- off, and what is reported of it afterwards.

create table messages (
  organization_id uuid not null,
  id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  class text not null check (class in ('transactional', 'campaign')),
  -- A pure function of the recipients, kept up to date in the transaction that changes them.
  status text not null default 'queued' check (
    status in (
      'queued', 'sent', 'partially_delivered', 'delivered', 'failed',
      -- Of texts.
      'sending', 'undelivered', 'expired',
      -- To somebody who cannot be reached anywhere.
      'skipped',
      -- Of those that have a time of their own.
      'scheduled', 'cancelled',
      -- Of chat-app messages.
      'read'
    )
  ),
  sender text not null,
  subject text,
  -- The beginning of the subject in lower case, for searching. Not an index on an expression: row-level security
  -- keeps functions that are not leakproof, `lower` among them, out of index conditions.
  subject_key text,
  category text,
  template_id uuid,
  -- What else a person sees of the message, by channel; small.
  details json not null,
  -- None where it is to somebody who cannot be reached, and of a campaign until it has its recipients.
  recipient_count integer not null check (recipient_count >= 0),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  -- When it is to be sent; null at once.
  scheduled_at timestamptz,
  -- Whose message it is, also after the campaign was deleted.
  campaign_id uuid,
  -- From now on nobody is written to who was not yet: the campaign was cancelled, or waits.
  is_stopped boolean not null default false,
  primary key (organization_id, id)
) partition by range (id);
-- For the filters of the list of sent messages; each ends in the id, so that a page is read off the index.
create index messages_status on messages (organization_id, channel, status, id) where class = 'transactional';
create index messages_category on messages (organization_id, channel, category, id)
  where class = 'transactional' and category is not null;
create index messages_subject on messages (organization_id, channel, subject_key text_pattern_ops, id)
  where class = 'transactional' and subject_key is not null;
create index messages_campaign on messages (organization_id, campaign_id) where campaign_id is not null;
call wall_off('messages');

-- The tags of transactional messages, by which they are listed.
create table message_tags (
  organization_id uuid not null,
  channel text not null,
  tag text not null,
  message_id uuid not null,
  primary key (organization_id, channel, tag, message_id)
) partition by range (message_id);
call wall_off('message_tags');

-- What a message says. Apart from its row, so that a change of status does not copy it, and so that content can go
-- before fates do.
create table message_contents (
  organization_id uuid not null,
  message_id uuid not null,
  content json not null,
  primary key (organization_id, message_id)
) partition by range (message_id);
-- Compressed with lz4, if it has more than 2 kB: HTML of 12 kB takes 4.1 kB instead of 13.9, and less time to store,
-- since less is written. Where PostgreSQL was built without lz4, it is stored as it is: its other method takes 75 µs
-- more for each of them, and content is read once or twice in its life.
alter table message_contents alter column content set storage external;
do $$
begin
  if exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
    alter table message_contents
      alter column content set compression lz4,
      alter column content set storage extended;
  end if;
end
$$;
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
  -- `answer`: to whoever has written a text to us.
  field text not null check (field in ('to', 'cc', 'bcc', 'answer')),
  -- As it was submitted, and as it is compared: lower-case, domain as A-labels.
  address text not null,
  address_key text not null,
  -- What fills the placeholders for this recipient alone; null where the content is the same for all.
  variables json,
  status text not null default 'sent' check (
    status in (
      'sent', 'delayed', 'delivered', 'opened', 'clicked', 'bounced', 'failed', 'complained', 'unsubscribed', 'cancelled'
    )
  ),
  status_at timestamptz not null,
  drop_reason text check (
    drop_reason in (
      'invalid_domain', 'no_mx', 'null_mx', 'disposable', 'suppressed', 'unreachable', 'duplicate',
      -- Of a campaign, between the freezing of its audience and the hand-off.
      'unsubscribed', 'no_address', 'contact_deleted'
    )
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
  -- Who it is, in a campaign.
  contact_id uuid,
  -- When a machine first opened it or followed one of its links: a scanner, or a proxy that fetches images ahead.
  machine_engaged_at timestamptz,
  -- Of a campaign by push. It stays when the address is erased: it names a device that is not there any more.
  device_id uuid,
  -- By a report, which a later one must not overwrite: a message is delivered, and then read. Null where the answer to
  -- the hand-off said it.
  delivered_at timestamptz,
  primary key (organization_id, message_id, ordinal),
  -- A dropped recipient was never written to.
  check (drop_reason is null or (status = 'sent' and handed_off_at is null))
) partition by range (message_id);
create index recipients_address on recipients (organization_id, address_key text_pattern_ops, message_id);
-- Nobody gets a campaign twice: a contact once, or once on each of its devices.
create unique index recipients_contact on recipients (organization_id, message_id, contact_id, device_id)
  nulls not distinct where contact_id is not null;
call wall_off('recipients');

-- The rows of messages and recipients are written once when they are accepted and again when their fate is known. The
-- second version finds room beside the first, even where a campaign changes all rows of a page at once, and so no index
-- changes (measured: 200 bytes of WAL a recipient instead of 655). It takes no room that they would not take elsewhere.
call create_partitions('messages', now(), 'month', 4, 45);
call create_partitions('recipients', now(), 'month', 4, 45);
call create_partitions('message_contents', now(), 'month', 4);
call create_partitions('message_tags', now(), 'month', 4);

-- One row a recipient that is still to be handed off; small, and deleted when the outcome is written.
create table delivery_queue (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  channel text not null,
  -- 0 transactional, 1 campaign: the lower goes first. 2: a campaign's that is paused; no worker claims it.
  lane smallint not null check (lane in (0, 1, 2)),
  due_at timestamptz not null,
  -- From when on it is tried: of a message that has a time of its own, that time.
  accepted_at timestamptz not null,
  -- Of a message that has a time of its own, until a hand-off is about to be announced: it may be cancelled, or get
  -- another time.
  is_cancellable boolean not null default false,
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
  -- When it was first handed off, if that may have taken place: a repeat is dated the same. Null if it did not, or was
  -- not tried yet.
  first_handed_off_at timestamptz,
  -- When it last counted a crash, and what was known of it; null if it has counted none.
  crashed_at timestamptz,
  crash_words text check (length(crash_words) <= 500),
  -- The id of the trace (W3C Trace Context) that the request of a transactional message is part of, which has as many
  -- bits.
  trace_id uuid,
  primary key (organization_id, message_id, ordinal),
  check ((claimed_by is null) = (claim_number is null))
) with (
  -- Rows are updated when they are claimed, and deleted: with room on the page both change the same one.
  fillfactor = 60,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0
);
-- For finding, at every claim, that there is nothing to be found.
create index delivery_queue_suspects on delivery_queue (due_at)
  where crashes >= 2 and claimed_by is null and set_aside_at is null;
-- For claiming: what is due, by channel, lane and organization. Claimed rows leave it.
create index delivery_queue_due on delivery_queue (channel, lane, organization_id, due_at)
  where claimed_by is null and set_aside_at is null;
-- For listing what was set aside, and for finding out cheaply that nothing was.
create index delivery_queue_set_aside on delivery_queue (message_id, ordinal) where set_aside_at is not null;
call wall_off('delivery_queue');

-- Recipients of a campaign that nobody has tried yet, some hundred in a row, from the first to the last of these
-- ordinals. One row is claimed for all of them. A recipient that was not plainly taken gets a row of its own in
-- delivery_queue, in the transaction that writes its outcome. The slice is deleted with the outcome of its last
-- recipient.
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

-- What workers are about to hand off: a row a batch, committed before any of it leaves. A mark on each job would be one
-- more version of its row (measured, 12 in a batch: 50 µs of PostgreSQL a job, and with a row a batch 38, of which the
-- commit is half). It speaks of one claim of each job: one that was settled and is claimed again has another number.
create table hand_offs (
  epoch bigint not null,
  batch bigint not null,
  organization_ids uuid[] not null,
  message_ids uuid[] not null,
  ordinals integer[] not null,
  claim_numbers bigint[] not null,
  -- When each of them is handed off.
  handed_off_at timestamptz[],
  primary key (epoch, batch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- What workers know of providers that are not available, for readiness, metrics and doctor: one row for each channel of
-- a worker on which a breaker is open. It ends with the worker.
create table open_breakers (
  epoch bigint not null references workers on delete cascade,
  channel text not null,
  provider text not null,
  -- How many accounts at the provider it does not try; null if the provider as a whole.
  accounts integer check (accounts > 0),
  -- Since when there has been one on this channel.
  opened_at timestamptz not null,
  primary key (epoch, channel)
);

-- What became of a campaign's recipients, a thousand ordinals a row, counted again whenever one of them changed: the
-- sums are read instead of the recipients, and whoever looks for a rare fate skips what has none.
create table recipient_counts (
  organization_id uuid not null,
  message_id uuid not null,
  slice integer not null,
  handed_off integer not null default 0,
  delayed integer not null default 0,
  delivered integer not null default 0,
  bounced integer not null default 0,
  failed integer not null default 0,
  complained integer not null default 0,
  unsubscribed integer not null default 0,
  opened integer not null default 0,
  clicked integer not null default 0,
  dropped integer not null default 0,
  uncertain integer not null default 0,
  -- By status as it is shown: the ordinals of those who have it, or how many they are where that is more than a few.
  fates jsonb not null default '{}',
  -- Those of whom nothing is known after the hand-off: of a text that waits for its receipt, for instance.
  unconfirmed integer not null default 0,
  primary key (organization_id, message_id, slice)
) with (fillfactor = 50);
call wall_off('recipient_counts');

-- Slices in which something changed and which were not counted since: a row a transaction. What is deleted here is
-- committed, and so is seen by the count that follows.
create table recipient_changes (
  organization_id uuid not null,
  id uuid not null,
  message_id uuid not null,
  slices integer[] not null check (cardinality(slices) > 0),
  primary key (organization_id, id)
);
call wall_off('recipient_changes');

-- By which id a provider knows a message, as long as it may report on it. The organization is not the beginning of its
-- key: whoever asks does not know whose message it is. It is part of the key, so that no id goes from one organization
-- to another.
create table provider_ids (
  channel text not null,
  provider_message_id text not null,
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  created_at timestamptz not null,
  primary key (channel, provider_message_id, organization_id)
);
create index provider_ids_created on provider_ids using brin (created_at);
call wall_off('provider_ids');

-- What providers reported, from the moment at which it is acknowledged until it has been applied. A report may be here
-- before its message is known to have been sent. Nothing in it says whose it is: that is found out when it is applied.
create table provider_events (
  -- Of the time at which it was reported.
  id uuid primary key,
  channel text not null,
  -- By its name in the registry.
  provider text not null,
  -- `ProviderReport`.
  report json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0,
  -- Whose messages the report may speak of; null where the installation has one account at the provider.
  of_organization uuid,
  -- What else the report says, in the channel's own form.
  finding json,
  -- Whose turn it is: the organization that it may speak of, or the one whose message it names. Nil while that is not
  -- known, so that what nobody knows is one among others.
  turn_of uuid not null default '00000000-0000-0000-0000-000000000000'
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- Reports on one channel do not wait behind those of a campaign on another.
create index provider_events_due on provider_events (channel, due_at);
-- For counting those of one organization whose message is not known yet.
create index provider_events_put_back on provider_events (of_organization)
  where of_organization is not null and attempts > 0;
create index provider_events_turns on provider_events (channel, turn_of, due_at, id);

-- What became of an organization's email, by the hour; the shards let several workers count at once.
create table reputation_counts (
  organization_id uuid not null,
  hour timestamptz not null,
  shard smallint not null,
  sent integer not null check (sent >= 0),
  bounced integer not null check (bounced >= 0),
  complained integer not null check (complained >= 0),
  primary key (organization_id, hour, shard)
) with (fillfactor = 50);
create index reputation_counts_hour on reputation_counts (hour);
call wall_off('reputation_counts');
