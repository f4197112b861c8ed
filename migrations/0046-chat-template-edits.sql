-- Owner: chat-templates. Templates that are edited, that the provider moves to another category, and that it may have lost;
-- accounts whose marketing it does not take.
-- Locks: access exclusive on both tables for a moment each: columns are added that are empty, and a check is replaced on a
-- table of some thousand rows.
-- The previous release: may run beside it. It leaves an edit alone, or looks at the template instead, after which a node of
-- this release goes on with the edit. It sends what a day's notice has made marketing as before.

alter table chat_templates
  -- What it is to say as soon as the provider takes it, as `content` has it. Null where no edit is under way.
  add column edited_content json check (json_typeof(edited_content) = 'object'),
  -- Whether the edit was begun, and no answer is known.
  add column is_edit_uncertain boolean not null default false,
  -- When the provider took the last edit.
  add column edited_at timestamptz,
  -- Why the last edit was not made, in the provider's words.
  add column edit_refusal text check (length(edit_refusal) <= 500),
  -- When it was edited while it was approved, the oldest first: the provider allows so many in 30 days.
  add column edits timestamptz[] not null default '{}' check (cardinality(edits) <= 10),
  -- From when on it is sent as marketing alone, because the provider has it in that category, or will have.
  add column marketing_from timestamptz,
  -- The first look that did not find it, if the last one did not either.
  add column missing_since timestamptz,
  add check (edited_content is not null or not is_edit_uncertain);

alter table chat_templates drop constraint chat_templates_next_step_check;
alter table chat_templates add constraint chat_templates_next_step_check
  check (next_step in ('submit', 'look_up', 'review', 'edit', 'delete'));

-- The provider's words when it last refused marketing of the account altogether. Campaigns from before fail.
alter table chat_app_accounts
  add column marketing_refused_words text check (length(marketing_refused_words) <= 500),
  add column marketing_refused_at timestamptz,
  add check ((marketing_refused_words is null) = (marketing_refused_at is null));
