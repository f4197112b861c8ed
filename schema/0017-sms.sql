-- Owner: sms. Texts that people send.

-- From the moment at which they are acknowledged until they have been applied.
create table sms_events (
  -- Of the time at which it came in.
  id uuid primary key,
  -- `InboundSms`.
  event json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0,
  -- The number that was written to says whose turn it is, since it may be that of several organizations.
  sender_name text collate "C" not null generated always as (coalesce(event ->> 'senderName', '')) stored
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index sms_events_due on sms_events (due_at);
-- For taking those to each number in their order.
create index sms_events_turns on sms_events (sender_name, due_at, id);
