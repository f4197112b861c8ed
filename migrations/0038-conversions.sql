-- Owner: events. Conversions: events that are credited to the message which the contact clicked last.
-- Locks: none of what is there. The previous release: may run beside it. Its nodes take events in without conversions.

-- Conversions that are not credited yet: small, since each is deleted when it is credited.
create table pending_conversions (
  organization_id uuid not null,
  -- That of the event.
  id uuid not null,
  contact_id uuid not null,
  definition_number integer not null,
  occurred_at timestamptz not null,
  -- As the definition told when the event came in.
  value numeric,
  currency text collate "C",
  due_at timestamptz not null,
  primary key (organization_id, id),
  check (currency is null or value is not null)
);
-- For all organizations together, in the order in which they are credited.
create index pending_conversions_due on pending_conversions (due_at, id);
call wall_off('pending_conversions');

-- Each conversion, and the message that it was credited to, or null. It names no contact: the event does, and is deleted
-- together with the contact.
create table conversions (
  organization_id uuid not null,
  -- That of the event.
  id uuid not null,
  definition_number integer not null,
  occurred_at timestamptz not null,
  value numeric,
  currency text collate "C",
  message_id uuid,
  campaign_id uuid,
  category text,
  primary key (organization_id, id),
  check (currency is null or value is not null),
  check (message_id is not null or (campaign_id is null and category is null))
) partition by range (id);
call wall_off('conversions');
call create_monthly_partitions('conversions', now(), 4);

-- Sums of the conversions of a definition, grouped in each of three ways. A group is found and listed by its id: that of
-- the campaign or message, one made of the category, or zero for conversions without one.
create table conversion_sums (
  organization_id uuid not null,
  definition_number integer not null,
  grouped_by text not null check (grouped_by in ('campaign_id', 'message_id', 'category')),
  group_id uuid not null,
  -- Empty for conversions without one, or without a value.
  currency text collate "C" not null,
  category text,
  conversions bigint not null check (conversions > 0),
  -- Null where none of them has one.
  value numeric,
  primary key (organization_id, definition_number, grouped_by, group_id, currency)
) partition by range (group_id);
-- For the statistics of campaigns. The organization comes last, so that nothing but the primary key begins with it.
create index conversion_sums_campaign on conversion_sums (group_id, organization_id) where grouped_by = 'campaign_id';
call wall_off('conversion_sums');
call create_monthly_partitions('conversion_sums', now(), 4, 70);
