-- Owner: messages (delivery_queue, messages, recipients, recipient_counts, provider_ids, sms_events). What texts need.
-- Locks: delivery_queue, while its few rows are indexed anew; messages and recipients for a moment: their checks take
-- more values, and old rows need not be looked at. The previous release claims off the new index as well, a little
-- slower.

drop index delivery_queue_due;
-- For claiming: what is due, by channel, lane and organization. Claimed rows leave it.
create index delivery_queue_due on delivery_queue (channel, lane, organization_id, due_at)
  where claimed_by is null and set_aside_at is null;

alter table messages drop constraint messages_status_check;
alter table messages add constraint messages_status_check check (
  status in (
    'queued', 'sent', 'partially_delivered', 'delivered', 'failed',
    -- Of texts.
    'sending', 'undelivered', 'expired'
  )
) not valid;
alter table recipients drop constraint recipients_field_check;
alter table recipients add constraint recipients_field_check
  check (field in ('to', 'cc', 'bcc', 'answer')) not valid;

-- Those of whom nothing is known after the hand-off: of a text that waits for its receipt, for instance.
alter table recipient_counts add column unconfirmed integer not null default 0;

-- By which id a provider knows a message, as long as it may report on it. The organization is not the beginning of
-- its key: whoever asks does not know whose message it is.
create table provider_ids (
  channel text not null,
  provider_message_id text not null,
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  created_at timestamptz not null,
  primary key (channel, provider_message_id)
);
create index provider_ids_created on provider_ids using brin (created_at);
call wall_off('provider_ids');

-- What providers told of texts, from the moment at which it is acknowledged until it has been applied. A receipt may be
-- here before its message is known to have been sent.
create table sms_events (
  id uuid primary key,
  -- The event as it was taken: `SmsReceipt` or `InboundSms`.
  kind text not null check (kind in ('receipt', 'inbound')),
  event json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- A STOP does not wait behind the receipts of a campaign.
create index sms_events_due on sms_events (kind, due_at);
