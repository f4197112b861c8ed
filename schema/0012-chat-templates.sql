-- Owner: chat-templates. Templates of chat-app messages with their reviews, what organizations are at the provider, and
-- how many people it lets them write to.

-- What an organization is at the provider: one for each. `content_sealed` is the whole as JSON, under the key of the
-- installation.
create table chat_app_accounts (
  organization_id uuid not null,
  -- New whenever the content is, so that nothing that is kept under it outlives the content.
  id uuid not null,
  business_account_id text collate "C" not null check (business_account_id ~ '^[0-9]{1,32}$'),
  content_sealed bytea not null,
  -- Of the address at which an app of its own reports. Stays the same when the content is replaced.
  callback_token text collate "C" not null check (length(callback_token) = 32),
  -- When templates were submitted within the last hour: the provider allows so many, counted over all nodes.
  submissions timestamptz[] not null check (cardinality(submissions) <= 100),
  -- What the operator must mend, in the provider's words.
  problem text check (length(problem) <= 500),
  -- The provider's words, as long as it takes no campaigns of the account; and until when, where that is known.
  campaigns_held_words text check (length(campaigns_held_words) <= 500),
  campaigns_held_until timestamptz,
  -- The provider's words when it last refused marketing of the account altogether. Campaigns from before fail.
  marketing_refused_words text check (length(marketing_refused_words) <= 500),
  marketing_refused_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id),
  constraint chat_app_accounts_campaigns_held_check
    check (campaigns_held_until is null or campaigns_held_words is not null),
  check ((marketing_refused_words is null) = (marketing_refused_at is null))
);
-- By these, requests of the provider find their organization: so they belong to one alone.
create unique index chat_app_accounts_business_account on chat_app_accounts (business_account_id);
create unique index chat_app_accounts_callback_token on chat_app_accounts (callback_token);
call wall_off('chat_app_accounts');

create table chat_templates (
  organization_id uuid not null,
  id uuid not null,
  name text collate "C" not null check (name ~ '^[a-z][a-z0-9_]*$' and length(name) <= 512),
  language text collate "C" not null check (length(language) <= 16),
  category text not null check (category in ('marketing', 'utility', 'authentication')),
  -- What it says, as the provider contract has it.
  content json not null check (json_typeof(content) = 'object'),
  status text not null check (status in ('pending', 'approved', 'rejected')),
  rejection_reason text check (length(rejection_reason) <= 500),
  reviewed_at timestamptz,
  -- As the provider knows it. Null as long as nothing was heard of it.
  provider_template_id text collate "C" check (length(provider_template_id) <= 255),
  provider_state text check (provider_state in
    ('pending', 'approved', 'rejected', 'paused', 'disabled', 'archived', 'locked', 'flagged', 'deleted')),
  provider_category text check (provider_category in ('marketing', 'utility', 'authentication')),
  quality text not null check (quality in ('green', 'yellow', 'red', 'unknown')),
  -- From when on it is sent as marketing alone, because the provider has it in that category, or will have.
  marketing_from timestamptz,
  -- The first look that did not find it, if the last one did not either.
  missing_since timestamptz,
  -- What is to be done with it at the provider next, and when: see src/chat-templates/jobs.ts.
  next_step text check (next_step in ('submit', 'look_up', 'review', 'edit', 'delete')),
  due_at timestamptz,
  -- Whether a submission was begun of which no answer is known.
  is_uncertain boolean not null default false,
  submitted_at timestamptz,
  -- What it is to say as soon as the provider takes it, as `content` has it. Null where no edit is under way.
  edited_content json check (json_typeof(edited_content) = 'object'),
  -- Whether the edit was begun, and no answer is known.
  is_edit_uncertain boolean not null default false,
  -- When the provider took the last edit.
  edited_at timestamptz,
  -- Why the last edit was not made, in the provider's words.
  edit_refusal text check (length(edit_refusal) <= 500),
  -- When it was edited while it was approved, the oldest first: the provider allows so many in 30 days.
  edits timestamptz[] not null default '{}' check (cardinality(edits) <= 10),
  -- Why the step could not be carried out the last time, or what else the provider says of it, in its words.
  problem text check (length(problem) <= 500),
  -- How many hand-offs of its messages the provider has refused since it last took one, because of what they say.
  refused_hand_offs smallint not null default 0 check (refused_hand_offs >= 0),
  -- The last messages of which it reported that later, since one was reported as delivered.
  refused_reports text[] not null default '{}' check (cardinality(refused_reports) <= 5),
  -- What was wrong with the last of either, in our own words.
  refusal_words text check (length(refusal_words) <= 500),
  -- Until when none are handed off for that reason.
  paused_until timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  -- Messages show what they were made of, so that the row stays.
  deleted_at timestamptz,
  primary key (organization_id, id),
  check ((next_step is null) = (due_at is null)),
  check ((status = 'pending') = (reviewed_at is null)),
  check (deleted_at is not null or status <> 'pending' or next_step is not null),
  check (edited_content is not null or not is_edit_uncertain)
  -- Looked at again and again: room for new versions beside the old ones.
) with (fillfactor = 90);
-- The organization comes last, so that nothing but the primary key begins with it (as in devices).
create unique index chat_templates_name on chat_templates (name, language, organization_id) where deleted_at is null;
-- For all organizations together: who has work.
create index chat_templates_turns on chat_templates (organization_id, due_at) where due_at is not null;
create index chat_templates_due on chat_templates (due_at) where due_at is not null;
-- For ending pauses, and for finding out cheaply that there are no refusals to be forgotten.
create index chat_templates_paused on chat_templates (paused_until) where paused_until is not null;
create index chat_templates_refused on chat_templates (organization_id) where refused_reports <> '{}';
call wall_off('chat_templates');

-- How many people the provider lets an organization write to in 24 hours, as it told that last. Without a row nothing
-- was told, and nothing is held back.
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
