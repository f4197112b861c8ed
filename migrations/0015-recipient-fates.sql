-- Owner: messages (recipient_counts). Whoever looks for recipients of one status reads only where there are some.
-- Locks: access exclusive on recipient_counts for a moment. The previous release: may run beside it; in slices that it
-- counts, recipients are found as they were, until the slices are counted again.

-- By status: the ordinals of those who have it, or how many they are where that is more than a few.
alter table recipient_counts add column fates jsonb not null default '{}';

-- All are counted again; a row each, since a transaction of the workers takes a number of rows.
insert into recipient_changes (organization_id, id, message_id, slices)
select organization_id, gen_random_uuid(), message_id, array[slice]
from recipient_counts;
