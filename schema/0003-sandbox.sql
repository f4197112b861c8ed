-- Owner: sandbox. What the sandbox providers were given, for a person to look at.

create table sandbox_messages (
  organization_id uuid not null,
  id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  message_id uuid not null,
  -- Of the recipient in its message, by which a copy is found whatever its address is.
  ordinal integer not null,
  recipient text not null,
  sender text not null,
  outcome text not null,
  -- The message as it left; for email a whole RFC 5322 message.
  source bytea not null,
  created_at timestamptz not null,
  primary key (organization_id, id)
);
create index sandbox_messages_newest on sandbox_messages (id desc);
-- People type addresses as they like.
create index sandbox_messages_recipient on sandbox_messages (lower(recipient), id desc);
