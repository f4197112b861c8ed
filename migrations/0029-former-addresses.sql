-- Owner: audience (contact_erasures). Contacts that were deleted before 0028, and of whom campaigns' recipients still
-- have former addresses or values. After 0028, which notes those that are deleted meanwhile.
-- Locks: none; all recipients are read once. The previous release: may run beside it.

insert into contact_erasures (organization_id, contact_id)
select distinct r.organization_id, r.contact_id
from recipients r
where r.contact_id is not null
  and (r.address <> '' or r.variables is not null)
  and not exists (select from contacts c where c.organization_id = r.organization_id and c.id = r.contact_id)
on conflict (organization_id, contact_id) do nothing;
