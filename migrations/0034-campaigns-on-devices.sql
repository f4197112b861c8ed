-- Owner: messages (recipients), campaigns (campaign_slices), sandbox (sandbox_messages). A campaign by push reaches a contact on each of its devices, of
-- which each is a recipient.
-- Locks: access exclusive on the three tables for a moment, while columns are added that are empty; then share
-- on recipients while the index is built again, a second and a half for a million recipients of campaigns: until then
-- nothing is accepted and no outcome is written. The previous release: may run beside it as long as no campaign is sent by
-- push, whose placeholders it would not fill.

alter table campaign_slices
  -- Of a campaign by push: the device of each of the contacts, which are named once for each of theirs.
  add column device_ids uuid[];
alter table campaign_slices alter column device_ids set storage external;

alter table recipients
  -- Of a campaign by push. It stays when the address is erased: it names a device that is not there any more.
  add column device_id uuid;

-- Nobody gets a campaign twice: a contact once, or once on each of its devices.
drop index recipients_contact;
create unique index recipients_contact on recipients (organization_id, message_id, contact_id, device_id)
  nulls not distinct where contact_id is not null;

alter table sandbox_messages
  -- Of the recipient in its message, by which a copy is found whatever its address is. Null where an older release kept it.
  add column ordinal integer;
