-- Owner: email. What is written to postmaster, abuse and fbl of the installation.

-- Of the operator and of no organization: anyone may write to these addresses, and nothing in a mail says truly whom it
-- is about. Complaints that are proven are applied and not kept.
create table postmaster_mail (
  -- Of the time at which it came.
  id uuid primary key,
  -- `complaint`: a feedback report that proves nothing. They are counted apart, so that they leave room for the rest.
  kind text not null check (kind in ('mail', 'complaint')),
  recipient text not null,
  -- A mail to several of the addresses, or one that is sent again, is kept once.
  digest bytea not null unique check (octet_length(digest) = 32),
  -- The beginning of it.
  source bytea not null check (octet_length(source) <= 65536),
  -- Whether there was more.
  is_cut boolean not null
);
create index postmaster_mail_kind on postmaster_mail (kind);
