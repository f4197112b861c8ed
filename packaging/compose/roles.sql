-- Run once by the PostgreSQL of compose.yaml, as its superuser, on a volume that is empty. Nothing of Postillion logs in as
-- that user afterwards.
\getenv owner_password DATABASE_OWNER_PASSWORD
\getenv api_password DATABASE_API_PASSWORD

-- What row-level security holds to the rows of an organization, in the background and for requests.
create role postillion_tenant nologin;
create role postillion_request nologin;
-- What serves requests.
create role postillion_serving nologin in role postillion_request;

-- Migrates, delivers, and runs the commands of the operator.
create role postillion_owner login password :'owner_password' in role postillion_tenant, postillion_request;
create role postillion_api login password :'api_password' in role postillion_serving;

alter database postillion owner to postillion_owner;
