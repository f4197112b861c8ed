-- Owner: messages (provider_events, provider_ids, recipient_changes), sms (sms_events), events (pending_conversions), domains
-- (domains), audience (erasures, contact_erasures). What waits is taken in turns of organizations, and no id of a provider
-- goes from one organization to another.
-- Locks: access exclusive on provider_events, sms_events and provider_ids, while what is there is written or indexed again;
-- share on the others while an index of what waits is built.
-- The previous release: may not run beside it, since it gives an id of a provider to one organization alone.

-- Whose turn a report is: the organization that it may speak of, or the one whose message it names. Nil while that is not
-- known, so that what nobody knows is one among others.
alter table provider_events add column turn_of uuid not null default '00000000-0000-0000-0000-000000000000';
create index provider_events_turns on provider_events (channel, turn_of, due_at, id);

-- The number that was written to says whose turn it is, since it may be that of several organizations.
alter table sms_events
  add column sender_name text collate "C" not null generated always as (coalesce(event ->> 'senderName', '')) stored;
create index sms_events_turns on sms_events (kind, sender_name, due_at, id);

create index pending_conversions_turns on pending_conversions (organization_id, due_at, id);
create index domains_turns on domains (organization_id, next_check_at, id) where next_check_at is not null;
create index erasures_turns on erasures (organization_id, due_at);
create index contact_erasures_turns on contact_erasures (organization_id, due_at);
-- Taken by the primary key instead.
drop index recipient_changes_oldest;

alter table provider_ids drop constraint provider_ids_pkey;
alter table provider_ids add primary key (channel, provider_message_id, organization_id);
