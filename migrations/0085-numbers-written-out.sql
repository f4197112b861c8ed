-- Owner: platform (has_long_number), events, audience (contacts). `jsonb` knows no exponents: it writes the six characters
-- of `1e+308` as 309, so that a payload of 27 kB became 1.4 MB whenever it was read. Requests and files with such numbers
-- are refused (`isStorableNumber`); here no row can have one, whatever wrote it. A field that has one already is left out.
-- Locks: access exclusive on events, its partitions and contacts, while they are read once. The previous release may run
-- beside it: what it takes in with such a number fails.

-- Whether a number in it would be written with more than forty characters.
create function has_long_number(document jsonb) returns boolean
language sql immutable
as $$
  select jsonb_path_exists(
    document,
    'strict $.** ? (@ >= 1e30 || @ <= -1e30 || (@ > -1e-20 && @ < 1e-20 && @ != 0))'
  )
$$;

update events
set payload = (
  select coalesce(jsonb_object_agg(field.key, field.value), '{}')
  from jsonb_each(payload) field
  where not has_long_number(field.value)
)
where has_long_number(payload);
alter table events add constraint events_numbers check (not has_long_number(payload));

update contacts
set properties = (
  select coalesce(jsonb_object_agg(field.key, field.value), '{}')
  from jsonb_each(properties) field
  where not has_long_number(field.value)
)
where has_long_number(properties);
alter table contacts add constraint contacts_numbers check (not has_long_number(properties));
