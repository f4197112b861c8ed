-- Owner: campaigns. One message to many people.

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
  pause_reason text check (pause_reason in
    ('sending_suspended', 'quota_exceeded', 'schedule_missed', 'template_paused', 'account_held', 'messaging_limit')),
  failure_reason text,
  -- What it became when it was queued: its content and its sender are that message's from then on.
  message_id uuid,
  -- The placeholders in that content that each contact's own values go into.
  variable_names text[],
  -- When its audience was frozen, what came of it, and how large the message was then. Candidates are those of its sets
  -- without the excluded sets.
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
  -- Of a large audience those up to this contact were frozen ahead, at `frozen_at`, and the others then: whoever was
  -- left out is told by what was true at the time.
  first_frozen_through uuid,
  rest_frozen_at timestamptz,
  -- Recipients below these ordinals have a row, and were let into the queue.
  expanded integer not null default 0,
  admitted integer not null default 0,
  -- When programs were told last what was counted of its recipients, and what that was.
  progress_told_at timestamptz,
  progress_told json,
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
create index campaigns_due_turns on campaigns (organization_id, id) where status = 'scheduled' and deleted_at is null;
create index campaigns_due on campaigns (scheduled_at) where status = 'scheduled' and deleted_at is null;
-- What the workers look after.
create index campaigns_under_way on campaigns (organization_id, id) where status in ('queued', 'sending', 'paused');
create unique index campaigns_message on campaigns (organization_id, message_id) where message_id is not null;
call wall_off('campaigns');

-- The frozen audience until its recipients have rows of their own: a thousand contacts each, in the order of their
-- ids. Writing a row for each takes many times as long, and the first mail need not wait for the last row.
create table campaign_slices (
  organization_id uuid not null,
  campaign_id uuid not null,
  number integer not null,
  contact_ids uuid[] not null,
  -- Of a campaign by push: the device of each of the contacts, which are named once for each of theirs.
  device_ids uuid[],
  primary key (organization_id, campaign_id, number)
);
-- UUIDs do not compress; trying costs more than storing them.
alter table campaign_slices
  alter column contact_ids set storage external,
  alter column device_ids set storage external;
call wall_off('campaign_slices');
