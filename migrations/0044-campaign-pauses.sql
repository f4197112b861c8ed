-- Owner: chat-templates. An account whose provider takes no campaigns for now; campaigns wait until it does again.
-- Campaigns: they may be paused because of their template or their account.
-- Locks: access exclusive on both for a moment. Checks are replaced; campaigns are few, and are checked at once.
-- The previous release: may run beside it. It would go on with a campaign that is paused for a reason it does not know,
-- whose messages its workers give back to the queue; a node of this release pauses it again.

-- The provider's words, as long as it takes no campaigns of the account; and until when, where that is known.
alter table chat_app_accounts add column campaigns_held_words text check (length(campaigns_held_words) <= 500);
alter table chat_app_accounts add column campaigns_held_until timestamptz;
alter table chat_app_accounts add constraint chat_app_accounts_campaigns_held_check
  check (campaigns_held_until is null or campaigns_held_words is not null);

alter table campaigns drop constraint campaigns_pause_reason_check;
alter table campaigns add constraint campaigns_pause_reason_check check (pause_reason in
  ('sending_suspended', 'quota_exceeded', 'schedule_missed', 'template_paused', 'account_held'));
