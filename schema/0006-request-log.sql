-- Owner: request-log. What organizations asked of the API, by requests and by SMTP: all that was refused, and a sample of the rest.

create table request_log (
  organization_id uuid not null,
  -- The `x-request-id` of its answer; of what came by SMTP, that of the message.
  id uuid not null,
  created_at timestamptz not null,
  source text not null check (source in ('api', 'smtp')),
  -- Null where a device asked with its secret.
  api_key_id uuid,
  api_key_name text check ((api_key_name is null) = (api_key_id is null)),
  -- Of SMTP, the command.
  method text not null check (length(method) <= 20),
  -- Without the query, and of its parameters only ids.
  path text not null check (length(path) <= 500),
  -- Null where no route takes the path.
  route text,
  -- As the schema of the route lets them be shown.
  query json,
  -- Null where the client left before its answer. Of SMTP, the code of the reply.
  status smallint check (status between 100 and 599),
  error_name text,
  message text check (length(message) <= 2000),
  remote_address inet,
  user_agent text check (length(user_agent) <= 500),
  duration_ms integer not null check (duration_ms >= 0),
  idempotency_key text check (length(idempotency_key) <= 256),
  is_replay boolean not null,
  -- What the path names, or what was made.
  resource_id uuid,
  -- Of refused requests, as the schema of the route lets it be shown.
  body json check (octet_length(body::text) <= 8192),
  -- How many more of its kind there were at that time, which have no row.
  left_out integer not null check (left_out >= 0),
  primary key (organization_id, id)
) partition by range (id);
-- What people look for first, among many requests that went well.
create index request_log_refused on request_log (organization_id, id) where status >= 400;
create index request_log_resources on request_log (organization_id, resource_id, id) where resource_id is not null;
call wall_off('request_log');
call create_partitions('request_log', now(), 'day', 8);
