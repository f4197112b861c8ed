-- Owner: messages (messages). A message to somebody who cannot be reached anywhere is accepted and skipped.
-- Locks: access exclusive on messages for a moment: its check takes one more value, and old rows need not be looked at. The
-- previous release: may run beside it.

alter table messages drop constraint messages_status_check;
alter table messages add constraint messages_status_check check (
  status in (
    'queued', 'sent', 'partially_delivered', 'delivered', 'failed',
    -- Of texts.
    'sending', 'undelivered', 'expired',
    -- To nobody.
    'skipped'
  )
) not valid;
