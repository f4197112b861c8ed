-- By what properties are searched: their names in lower case and composed, which PostgreSQL's own functions do not do for
-- letters beyond ASCII where the database has the locale C.
-- Owner: audience. A new nullable column: an exclusive lock on a small table for a moment. The previous release reads and
-- writes properties by the names of columns; those that it makes meanwhile are searched by what PostgreSQL makes of them.
alter table contact_properties add column name_key text collate "C";
