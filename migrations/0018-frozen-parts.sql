-- Owner: campaigns. When each of the two parts of a large audience was frozen, so that whoever was left out of the
-- second is told by what was true then.
-- Locks: access exclusive on campaigns for a moment: the columns are empty. The previous release: may run beside it;
-- what it freezes is told as before.

alter table campaigns
  -- Those up to this contact were frozen ahead, where some were, at `frozen_at`.
  add column first_frozen_through uuid,
  -- And the others then.
  add column rest_frozen_at timestamptz;
