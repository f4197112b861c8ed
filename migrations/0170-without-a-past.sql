-- Owner: sms (sms_events), messages (provider_events), sandbox (sandbox_messages), segments (segments), audience
-- (contact_properties), accounts (organizations), platform (create_partitions). Nothing was released: what only served the
-- rows and the nodes of an earlier release goes.
-- Locks: access exclusive on the tables for a moment.

drop index sms_events_due;
drop index sms_events_turns;
alter table sms_events drop column kind;
create index sms_events_due on sms_events (due_at);
create index sms_events_turns on sms_events (sender_name, due_at, id);

alter table provider_events alter column provider set not null;
alter table sandbox_messages alter column ordinal set not null;
alter table segments alter column conditions_at set not null;
alter table contact_properties alter column name_key set not null;
alter table organizations
  add constraint organizations_guard_suspended_check
  check (guard_suspended_at is null or 'email' = any (suspended_channels));

drop procedure create_monthly_partitions(regclass, timestamptz, integer, integer);
