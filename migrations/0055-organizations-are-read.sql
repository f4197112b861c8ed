-- Owner: accounts. Each start gave the role of requests more than migration 2 does: of its organization a request could
-- have changed everything, its quota included. It reads it.
-- Locks: none but on the catalogue. The previous release serves beside it, but is not ready by its own judgement, since
-- it asks for what is taken away here; a node of it that starts afterwards gives the role as much again, until the next
-- start of this one.
do $$
begin
  if to_regrole('postillion_tenant') is not null then
    revoke insert, update, delete on organizations from postillion_tenant;
  end if;
end
$$;
