-- Owner: push. What apps report of pushes on their devices.

-- One row a recipient of whom something was reported, with the first time of each.
create table push_engagements (
  organization_id uuid not null,
  message_id uuid not null,
  ordinal integer not null,
  delivered_at timestamptz,
  displayed_at timestamptz,
  clicked_at timestamptz,
  dismissed_at timestamptz,
  -- Of the button that was clicked.
  action_id text,
  -- By which events that are reported again are known.
  event_ids text[] not null,
  primary key (organization_id, message_id, ordinal)
) partition by range (message_id);
call wall_off('push_engagements');
call create_partitions('push_engagements', now(), 'month', 4, 70);
