-- Owner: audience (suppressions, consent_grants), chatapp (the trigger on erasures). What the owner of an address has said
-- is kept with the address, so that it holds whoever has the address next.
-- Locks: access exclusive on suppressions while its key is built anew, share row exclusive on erasures for a moment.
-- The previous release: may not run beside it, since it takes every suppression for one of all messages.

alter table suppressions
  -- What is not sent: everything on the channel, or campaigns alone, which only the owner of an address can ask for.
  add column scope text not null default 'channel' check (scope in ('channel', 'marketing')),
  drop constraint suppressions_pkey,
  add primary key (organization_id, channel, address_hash, scope),
  add constraint suppressions_marketing_check
    check (scope = 'channel' or (reason = 'unsubscribe' and opted_out_at is null));
-- For finding out cheaply that an organization has none, before a file of contacts is compared with them.
create index suppressions_opt_outs on suppressions (organization_id)
  where reason = 'unsubscribe' or opted_out_at is not null;

-- That an organization has set a consent back to subscribed, by its API key: the last time for each address.
create table consent_grants (
  organization_id uuid not null,
  channel text not null check (channel in ('email', 'sms', 'push', 'chatapp')),
  -- As in suppressions.
  address_hash bytea not null check (octet_length(address_hash) = 32),
  api_key_id uuid,
  granted_at timestamptz not null,
  primary key (organization_id, channel, address_hash)
);
call wall_off('consent_grants');

-- An address may belong to a second contact that is deleted while the first one is still being erased.
create trigger forget_chat_app_people_again after update on erasures
  referencing new table as erased
  for each statement execute function forget_chat_app_people();
