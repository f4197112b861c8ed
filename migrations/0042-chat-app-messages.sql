-- Owner: messages (messages, recipients). Messages by chat apps, which are read.
-- Locks: access exclusive on messages and recipients for a moment each: a check takes one more value, and old rows need not
-- be looked at; a column is added that is empty. The previous release: may run beside it. It leaves what is queued on the
-- channel to the workers of this one.

alter table messages drop constraint messages_status_check;
alter table messages add constraint messages_status_check check (
  status in (
    'queued', 'sent', 'partially_delivered', 'delivered', 'failed',
    -- Of texts.
    'sending', 'undelivered', 'expired',
    -- To nobody.
    'skipped',
    -- Of chat-app messages.
    'read'
  )
) not valid;

alter table recipients
  -- By a report, which a later one must not overwrite: a message is delivered, and then read. Null where the answer to the
  -- hand-off said it.
  add column delivered_at timestamptz;
