-- Owner: devices. The installations of apps and browsers that get pushes, and what an organization needs to reach them.

-- What the services of a platform ask of an organization, one for each platform. `content_sealed` is the whole as JSON,
-- under the key of the installation; `public_part` is what may be shown of it.
create table push_credentials (
  organization_id uuid not null,
  platform text not null check (platform in ('android', 'ios', 'web')),
  -- New whenever the content is, so that nothing that is kept under it outlives the content.
  id uuid not null,
  content_sealed bytea not null,
  public_part json not null check (json_typeof(public_part) = 'object'),
  -- Of ios: the token that all nodes share, since Apple refuses a team that makes them too often.
  apns_token_sealed bytea,
  apns_token_made_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, platform),
  check ((apns_token_sealed is null) = (apns_token_made_at is null)),
  check (platform = 'ios' or apns_token_sealed is null)
);
call wall_off('push_credentials');

-- `token` is where a device is reached: the token of Android or iOS, or the endpoint of a browser. Neither it nor the
-- keys of a browser are sealed: without the credentials, which are, nobody can send anything to them. The browser's
-- subscription is bound to the VAPID key for life (RFC 8292 §4).
create table devices (
  organization_id uuid not null,
  id uuid not null,
  installation_id text collate "C" not null check (length(installation_id) between 1 and 255),
  contact_id uuid not null,
  platform text not null check (platform in ('android', 'ios', 'web')),
  -- Null once it belongs to another installation.
  token text check (length(token) between 1 and 4096),
  token_sha256 bytea check (length(token_sha256) = 32),
  -- Of ios.
  apns_environment text check (apns_environment in ('production', 'sandbox')),
  -- Of web, in base64url. `vapid_public_key` is the one that the organization had at the registration.
  p256dh_key text,
  auth_key text,
  vapid_public_key text,
  status text not null check (status in ('ACTIVE', 'EXPIRED', 'REVOKED', 'FAILED')),
  -- How it was revoked, and whether a registration for the same contact leaves it so.
  revoked_by text check (revoked_by in ('logout', 'opt_out')),
  opted_out boolean not null,
  enablement_status text
    check (enablement_status in ('AUTHORIZED', 'DENIED', 'NOT_DETERMINED', 'PROVISIONAL', 'UNAUTHORIZED')),
  sdk_version text,
  app_version text,
  os_version text,
  device_model text,
  device_manufacturer text,
  device_timezone text,
  device_locale text,
  secret_sha256 bytea not null check (length(secret_sha256) = 32),
  -- The last time that the installation said what stands here.
  registered_at timestamptz not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  check ((token is null) = (token_sha256 is null)),
  check (token is not null or status <> 'ACTIVE'),
  check ((status = 'REVOKED') = (revoked_by is not null)),
  check (status = 'REVOKED' or not opted_out),
  check ((platform = 'ios') = (apns_environment is not null)),
  check (case when platform = 'web' then 3 else 0 end = num_nonnulls(p256dh_key, auth_key, vapid_public_key))
  -- Refreshed at every start of an app: room for new versions beside the old ones.
) with (fillfactor = 80);
-- The organization comes last in these, so that nothing but the primary key begins with it. On an empty table all that
-- begin with it cost the same, and a plan made then would look for an id in any of them, through all of its devices.
create unique index devices_installation on devices (installation_id, organization_id);
-- A token is that of one installation. By it, too, a registration finds from whom it takes the token.
create unique index devices_token on devices (token_sha256, platform, organization_id);
create index devices_contact on devices (contact_id, organization_id);
-- The organization is not the beginning of its key: whoever shows a secret says nothing else of itself.
create unique index devices_secret on devices (secret_sha256);
call wall_off('devices');

-- Tokens that a service has refused for ever, by their digest: a device that replays one stays retired. They outlive
-- their device, and tell nothing of whose it was.
create table dead_device_tokens (
  organization_id uuid not null,
  platform text not null check (platform in ('android', 'ios', 'web')),
  token_sha256 bytea not null check (length(token_sha256) = 32),
  -- What a device becomes that has it.
  status text not null check (status in ('EXPIRED', 'FAILED')),
  reason text not null,
  created_at timestamptz not null,
  primary key (organization_id, platform, token_sha256)
);
call wall_off('dead_device_tokens');

-- A trigger, so that no statement that deletes a contact can forget them. What was pushed to the devices, whose
-- recipients have the contact's id for an address, is erased, too.
create function delete_devices_of_contacts() returns trigger
language plpgsql
as $$
begin
  with gone as (
    -- By arrays, which are looked up in the index however many contacts the first deletion of a session has. No two
    -- organizations have a contact of the same id.
    delete from devices
    where contact_id = any (array(select id from deleted_contacts))
      and organization_id = any (array(select distinct organization_id from deleted_contacts))
    returning organization_id, contact_id
  )
  insert into erasures (organization_id, address, requested_at, due_at)
  select distinct organization_id, contact_id::text, now(), now()
  from gone
  on conflict (organization_id, address) do nothing;
  return null;
end
$$;
create trigger delete_devices after delete on contacts
  referencing old table as deleted_contacts
  for each statement execute function delete_devices_of_contacts();
