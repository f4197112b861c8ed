-- Owner: chat-templates (chat_templates), audience (suppressions), messages (provider_events). Templates whose messages the
-- provider refuses one after the other, numbers that a chat app cannot reach, and reports of messages that nobody knows.
-- Locks: access exclusive on chat_templates for a moment: the columns are empty, and the indexes of some thousand rows.
-- Access exclusive on suppressions for a moment: the new check allows all that the old one did, so that no row is read.
-- Share on provider_events while an index of the few that were put back is built.
-- The previous release: may run beside it. It sends what this release has paused, and shows a reason that it does not know.

alter table chat_templates
  -- How many hand-offs of its messages the provider has refused since it last took one, because of what they say.
  add column refused_hand_offs smallint not null default 0 check (refused_hand_offs >= 0),
  -- The last messages of which it reported that later, since one was reported as delivered.
  add column refused_reports text[] not null default '{}' check (cardinality(refused_reports) <= 5),
  -- What was wrong with the last of either, in our own words.
  add column refusal_words text check (length(refusal_words) <= 500),
  -- Until when none are handed off for that reason.
  add column paused_until timestamptz;
-- For ending pauses, and for finding out cheaply that there are none to be forgotten.
create index chat_templates_paused on chat_templates (paused_until) where paused_until is not null;
create index chat_templates_refused on chat_templates (organization_id) where refused_reports <> '{}';

alter table suppressions drop constraint suppressions_reason_check;
alter table suppressions add constraint suppressions_reason_check
  check (reason in ('hard_bounce', 'soft_bounces', 'complaint', 'unsubscribe', 'operator', 'unreachable')) not valid;

-- For counting those of one organization whose message is not known yet.
create index provider_events_put_back on provider_events (of_organization)
  where of_organization is not null and attempts > 0;
