-- Owner: accounts. For how long the messages of an organization are kept, and what they say, is part of its plan.
-- Locks: access exclusive on organizations for a moment. The previous release may run beside it: its nodes show messages
-- and contents until they are gone.

alter table organizations
  -- Null: as long as the installation keeps them.
  add column messages_kept_days integer check (messages_kept_days between 7 and 3650),
  add column content_kept_days integer check (content_kept_days between 1 and 3650);
