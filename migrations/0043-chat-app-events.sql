-- Owner: chatapp (chat_app_events, chat_app_people, chat_app_choices), messages (provider_events). What providers of
-- chat-app messages tell, how they know people, and what people have chosen there.
-- Locks: access exclusive on provider_events, share row exclusive on contacts and erasures, for a moment each: two empty
-- columns, and triggers. The previous release: may run beside it.

alter table provider_events
  -- Whose messages the report may speak of; null where the installation has one account at the provider.
  add column of_organization uuid,
  -- What else the report says, in the channel's own form.
  add column finding json;

-- What is told besides the statuses of messages, from the moment at which it is acknowledged until it has been applied.
create table chat_app_events (
  -- Of the time at which it was told.
  id uuid primary key,
  -- With the organization that it concerns.
  event json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index chat_app_events_due on chat_app_events (due_at);

-- How the provider calls a person, where that is not the number: people hide it, and some countries write it in two ways.
create table chat_app_people (
  organization_id uuid not null,
  known_as text collate "C" not null check (length(known_as) between 1 and 200),
  -- E.164, as messages have it.
  address text not null,
  seen_at timestamptz not null,
  primary key (organization_id, known_as)
);
create index chat_app_people_address on chat_app_people (address, organization_id);
call wall_off('chat_app_people');

-- The last word of a person, by when it was said: what was said before is told after it now and then.
create table chat_app_choices (
  organization_id uuid not null,
  address text not null,
  -- By a keyword, or by what the app itself offers against marketing.
  subject text not null check (subject in ('all', 'marketing')),
  choice text not null check (choice in ('stop', 'start')),
  chosen_at timestamptz not null,
  -- Whether it was this that withdrew the consent of the contact, and nothing has changed the consent since.
  withdrew_consent boolean not null,
  primary key (organization_id, address, subject)
);
call wall_off('chat_app_choices');

-- Whoever else changes a consent has the last word on it.
create function forget_who_withdrew_chat_app_consent() returns trigger
language plpgsql
as $$
begin
  update chat_app_choices
  set withdrew_consent = false
  where organization_id = new.organization_id and address = new.phone_number and withdrew_consent;
  return null;
end
$$;
create trigger forget_who_withdrew_chat_app_consent after update on contacts
  for each row
  when (('chatapp' = any (old.unsubscribed_channels)) is distinct from ('chatapp' = any (new.unsubscribed_channels)))
  execute function forget_who_withdrew_chat_app_consent();

-- Erased with everything else that has the address of a deleted contact.
create function forget_chat_app_people() returns trigger
language plpgsql
as $$
begin
  delete from chat_app_people p
  using erased e
  where p.organization_id = e.organization_id and p.address = e.address;
  delete from chat_app_choices c
  using erased e
  where c.organization_id = e.organization_id and c.address = e.address;
  return null;
end
$$;
create trigger forget_chat_app_people after insert on erasures
  referencing new table as erased
  for each statement execute function forget_chat_app_people();
