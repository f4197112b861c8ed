-- Owner: campaigns (campaigns, campaign_slices), messages (recipients, messages, delivery_queue, recipient_counts,
-- recipient_changes), audience (holds). One message to many people.
-- Locks: access exclusive on messages, recipients, delivery_queue and holds for a moment; share on messages and
-- recipients while their new indexes are built, in which nothing stands yet. 0014 checks the rows that are there. The previous
-- release: may run beside it as long as no campaign is sent.

create table campaigns (
  organization_id uuid not null,
  id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  name text not null check (length(name) between 1 and 255),
  -- In lower case.
  name_key text collate "C" not null,
  status text not null default 'draft'
    check (status in ('draft', 'scheduled', 'queued', 'sending', 'sent', 'paused', 'failed', 'cancelled')),
  -- What the channel sends, as it was given; what is large of it, apart, so that lists need not read it.
  content json not null,
  bodies json not null default '{}',
  list_ids uuid[] not null default '{}',
  tag_ids uuid[] not null default '{}',
  segment_ids uuid[] not null default '{}',
  exclude_list_ids uuid[] not null default '{}',
  exclude_tag_ids uuid[] not null default '{}',
  exclude_segment_ids uuid[] not null default '{}',
  scheduled_at timestamptz,
  queued_at timestamptz,
  started_at timestamptz,
  completed_at timestamptz,
  cancelled_at timestamptz,
  pause_reason text check (pause_reason in ('sending_suspended', 'quota_exceeded', 'schedule_missed')),
  failure_reason text,
  -- What it became when it was queued: its content and its sender are that message's from then on.
  message_id uuid,
  -- The placeholders in that content that each contact's own values go into.
  variable_names text[],
  -- When its audience was frozen, what came of it, and how large the message was then. Candidates are those of its sets without the excluded sets.
  frozen_at timestamptz,
  -- While only the first of them are: those up to this contact. The others follow.
  frozen_through uuid,
  content_bytes integer,
  candidates integer,
  audience integer,
  excluded_unsubscribed integer,
  excluded_suppressed integer,
  excluded_no_address integer,
  excluded_duplicate integer,
  -- Recipients below these ordinals have a row, and were let into the queue.
  expanded integer not null default 0,
  admitted integer not null default 0,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  deleted_at timestamptz,
  primary key (organization_id, id),
  check (admitted <= expanded),
  check (frozen_through is null or frozen_at is not null),
  check ((status = 'paused') = (pause_reason is not null)),
  check (status not in ('scheduled') or scheduled_at is not null),
  check (status not in ('queued', 'sending', 'sent') or message_id is not null)
) with (fillfactor = 70);
-- For the lists; each ends in the id, so that a page is read off the index.
create index campaigns_channel on campaigns (organization_id, channel, id) where deleted_at is null;
create index campaigns_status on campaigns (organization_id, channel, status, id) where deleted_at is null;
create index campaigns_due on campaigns (scheduled_at) where status = 'scheduled' and deleted_at is null;
-- What the workers look after.
create index campaigns_under_way on campaigns (status) where status in ('queued', 'sending', 'paused');
create unique index campaigns_message on campaigns (organization_id, message_id) where message_id is not null;
call wall_off('campaigns');

-- The frozen audience until its recipients have rows of their own: a thousand contacts each, in the order of their
-- ids. Writing a row for each takes many times as long, and the first mail need not wait for the last row.
create table campaign_slices (
  organization_id uuid not null,
  campaign_id uuid not null,
  number integer not null,
  contact_ids uuid[] not null,
  primary key (organization_id, campaign_id, number)
);
-- UUIDs do not compress; trying costs more than storing them.
alter table campaign_slices alter column contact_ids set storage external;
call wall_off('campaign_slices');

-- A campaign's message is there before its recipients.
alter table messages drop constraint messages_recipient_count_check;
alter table messages add constraint messages_recipient_count_check check (recipient_count >= 0) not valid;
alter table messages
  -- Whose message it is, also after the campaign was deleted.
  add column campaign_id uuid,
  -- From now on nobody is written to who was not yet: the campaign was cancelled, or waits.
  add column is_stopped boolean not null default false;
create index messages_campaign on messages (organization_id, campaign_id) where campaign_id is not null;

alter table recipients
  -- Who it is, in a campaign.
  add column contact_id uuid,
  -- When a machine first opened it or followed one of its links: a scanner, or a proxy that fetches images ahead.
  add column machine_engaged_at timestamptz;
alter table recipients drop constraint recipients_drop_reason_check;
alter table recipients add constraint recipients_drop_reason_check check (
  drop_reason in (
    'invalid_domain', 'no_mx', 'null_mx', 'disposable', 'suppressed', 'unreachable', 'duplicate',
    -- Of a campaign, between the freezing of its audience and the hand-off.
    'unsubscribed', 'no_address', 'contact_deleted'
  )
) not valid;
-- Nobody gets a campaign twice.
create unique index recipients_contact on recipients (organization_id, message_id, contact_id)
  where contact_id is not null;

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

-- 2: a campaign's that is paused; no worker claims it.
alter table delivery_queue drop constraint delivery_queue_lane_check;
alter table delivery_queue add constraint delivery_queue_lane_check check (lane in (0, 1, 2)) not valid;

alter table holds drop constraint holds_held_kind_check;
alter table holds add constraint holds_held_kind_check
  check (held_kind in ('list', 'tag', 'segment', 'property', 'template')) not valid;
