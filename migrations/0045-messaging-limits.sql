-- Owner: chat-templates. How many people the provider of chat-app messages lets an organization write to in 24 hours,
-- and who was written to within them.
-- Campaigns: they may be paused because of that.
-- Locks: access exclusive on campaigns for a moment. A check is replaced; campaigns are few, and are checked at once.
-- The previous release: may run beside it. It counts nobody, so that what its nodes hand off is missing for a day, and it
-- goes on with a campaign that is paused for a reason it does not know; a node of this release pauses it again.

-- As the provider told it last. Without a row nothing was told, and nothing is held back.
create table chat_app_limits (
  organization_id uuid not null,
  -- Null: as many as one likes.
  people_per_day_max integer check (people_per_day_max between 1 and 1000000000),
  told_at timestamptz not null,
  primary key (organization_id)
);
call wall_off('chat_app_limits');

-- Of organizations with such a limit: everybody who was written to within a day, once.
create table chat_app_reached_people (
  organization_id uuid not null,
  -- A keyed hash of the number.
  person bytea not null check (octet_length(person) = 32),
  -- The beginning of the ten minutes in which the person was written to last, and is counted.
  period timestamptz not null,
  -- Where the person was counted before: for the statement that counts it anew, which finds it here.
  period_before timestamptz,
  primary key (organization_id, person)
);
create index chat_app_reached_people_period on chat_app_reached_people (period, organization_id);
call wall_off('chat_app_reached_people');

-- How many of them are counted in a period. More than there are rows above, once somebody was erased: the provider
-- counts them all the same. Never less than none; but what is taken off is inserted first, as PostgreSQL checks it.
create table chat_app_reached_counts (
  organization_id uuid not null,
  period timestamptz not null,
  people integer not null,
  primary key (organization_id, period)
);
create index chat_app_reached_counts_period on chat_app_reached_counts (period, organization_id);
call wall_off('chat_app_reached_counts');

alter table campaigns drop constraint campaigns_pause_reason_check;
alter table campaigns add constraint campaigns_pause_reason_check check (pause_reason in
  ('sending_suspended', 'quota_exceeded', 'schedule_missed', 'template_paused', 'account_held', 'messaging_limit'));
