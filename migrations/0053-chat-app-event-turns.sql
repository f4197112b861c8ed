-- Owner: chatapp (chat_app_events). What is told is taken in turns of organizations, and held to them by the wall.
-- Locks: access exclusive on chat_app_events, for as long as it takes to write again what is not applied yet.
-- The previous release: may run beside it. The column is computed from what it writes.

-- Whom it concerns, as the event itself says.
alter table chat_app_events
  add column organization_id uuid not null generated always as ((event ->> 'organizationId')::uuid) stored;
-- For taking those of each organization in their order.
create index chat_app_events_turns on chat_app_events (organization_id, due_at, id);
-- For counting those whose person is not known yet.
create index chat_app_events_put_back on chat_app_events (organization_id) where attempts > 0;

call wall_off('chat_app_events');
