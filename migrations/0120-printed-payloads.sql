-- How long the payload of an event is when it is printed, so that a page knows which events it has room for before it
-- prints them: a hundred payloads of 27 kB in a request were 3.5 MB of text, of which half a megabyte was sent, and 65 ms
-- of a processor each time.
-- Owner: events. A generated column: access exclusive on events and its partitions while they are written anew. The
-- previous release may run beside it: it reads and writes events by the names of columns.
alter table events
  add column payload_bytes integer not null generated always as (octet_length(payload::text)) stored;
