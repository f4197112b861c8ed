-- Owner: templates. Content that is written once and sent many times.

create table templates (
  organization_id uuid not null,
  id uuid not null,
  name text not null check (length(name) between 1 and 100),
  name_key text not null,
  subject text check (length(subject) <= 998),
  html text,
  text text,
  -- Made of the HTML where there is no text, once and not for every message.
  text_of_html text,
  preview_text text,
  -- The names of the placeholders in all of them.
  variables text[] not null,
  source_gallery_template_id uuid,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (organization_id, id),
  check (num_nonnulls(html, text) > 0),
  check (text_of_html is null or (html is not null and text is null))
);
call wall_off('templates');
