-- Owner: messages (delivery_queue, hand_offs). A copy is dated when it is handed off, and its repeat is dated the same.
-- Locks: each table shortly, for a column without a value.
-- The previous release may run beside: it leaves the columns alone, and dates copies by their acceptance. What it was
-- handing off when it was cut off is repeated by this release as another copy, under the same Message-ID.

-- When it was first handed off, if that may have taken place. Null if it did not, or was not tried yet.
alter table delivery_queue add column first_handed_off_at timestamptz;

-- When each of them is handed off.
alter table hand_offs add column handed_off_at timestamptz[];
