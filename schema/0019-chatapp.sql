-- Owner: chatapp. What providers of chat-app messages tell, how they know people, and what people have chosen there.

-- What is told besides the statuses of messages, from the moment at which it is acknowledged until it has been applied.
create table chat_app_events (
  -- Of the time at which it was told.
  id uuid primary key,
  -- With the organization that it concerns.
  event json not null,
  due_at timestamptz not null,
  attempts smallint not null default 0,
  organization_id uuid not null generated always as ((event ->> 'organizationId')::uuid) stored
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index chat_app_events_due on chat_app_events (due_at);
-- For taking those of each organization in their order.
create index chat_app_events_turns on chat_app_events (organization_id, due_at, id);
-- For counting those whose person is not known yet.
create index chat_app_events_put_back on chat_app_events (organization_id) where attempts > 0;
call wall_off('chat_app_events');

-- How the provider calls a person, where that is not the number: people hide it, and some countries write it in two
-- ways.
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
-- An address may belong to a second contact that is deleted while the first one is still being erased.
create trigger forget_chat_app_people_again after update on erasures
  referencing new table as erased
  for each statement execute function forget_chat_app_people();
