-- Owner: chat-templates. Templates of chat-app messages with their reviews, and what organizations are at the provider.
-- Audience (holds): a campaign holds its template.
-- Locks: access exclusive on holds for a moment, while a check is replaced; it has few rows, which are checked at once.
-- The previous release: may run beside it. It knows neither of them.

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
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id)
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
  -- What is to be done with it at the provider next, and when: see src/chat-templates/jobs.ts.
  next_step text check (next_step in ('submit', 'look_up', 'review', 'delete')),
  due_at timestamptz,
  -- Whether a submission was begun of which no answer is known.
  is_uncertain boolean not null default false,
  submitted_at timestamptz,
  -- Why the step could not be carried out the last time, or what else the provider says of it, in its words.
  problem text check (length(problem) <= 500),
  created_at timestamptz not null,
  updated_at timestamptz not null,
  -- Messages show what they were made of, so that the row stays.
  deleted_at timestamptz,
  primary key (organization_id, id),
  check ((next_step is null) = (due_at is null)),
  check ((status = 'pending') = (reviewed_at is null)),
  check (deleted_at is not null or status <> 'pending' or next_step is not null)
  -- Looked at again and again: room for new versions beside the old ones.
) with (fillfactor = 90);
-- The organization comes last, so that nothing but the primary key begins with it (as in 0031).
create unique index chat_templates_name on chat_templates (name, language, organization_id) where deleted_at is null;
-- For all organizations together: who has work.
create index chat_templates_due on chat_templates (due_at, organization_id) where due_at is not null;
call wall_off('chat_templates');

alter table holds drop constraint holds_held_kind_check;
alter table holds add constraint holds_held_kind_check
  check (held_kind in ('list', 'tag', 'segment', 'property', 'template', 'event', 'chat_template'));
