-- Owner: audience. What owners of addresses say of them, beside what suppressed these already.
-- Locks: access exclusive on suppressions for a moment: the column is empty. The previous release: may run beside it,
-- and forgets, as ever, what it has no place for.

alter table suppressions
  -- Since when its owner wants nothing either, where it is suppressed for another reason than that.
  add column opted_out_at timestamptz;
