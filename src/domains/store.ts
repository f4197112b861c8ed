import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';

const selectVerified = statement<{ organization_id: string; name: string }>(
  'domains_select_verified',
  `select d.organization_id, d.name
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, name)
   join domains d on d.organization_id = wanted.organization_id and d.name = wanted.name
   where d.status = 'verified'`,
);

export async function findVerified(
  connection: Connection,
  wanted: readonly DomainName[],
): Promise<DomainName[]> {
  const rows = await connection.rows(selectVerified, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ name }) => name),
  ]);
  return rows.map((row) => ({ organizationId: row.organization_id, name: row.name }));
}

/** A name within an organization: lower-case A-labels. */
export type DomainName = { organizationId: string; name: string };

/** Competes with every other verification of the same name: the unique index lets one organization win. */
export async function upsertVerifiedDomain(
  connection: Connection,
  domain: DomainName & { id: string; verifiedAt: Date },
): Promise<string> {
  const [row] = await connection.rows(
    unpreparedStatement<{ id: string }>(
      `insert into domains as d (organization_id, id, name, status, verified_at, created_at, updated_at)
       values ($1, $2, $3, 'verified', $4, $4, $4)
       on conflict (organization_id, name) do update
       set status = 'verified', verified_at = coalesce(d.verified_at, excluded.verified_at), updated_at = $4
       returning id`,
    ),
    [domain.organizationId, domain.id, domain.name, domain.verifiedAt],
  );
  if (row === undefined) throw new Error('an upsert returned no row');
  return row.id;
}

/** Those of other organizations that are verified for the name itself, for one above it, or for one below it. */
export async function findRelatedVerified(connection: Connection, domain: DomainName): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select name
       from domains
       where organization_id <> $1
         and status = 'verified'
         and (name = any ($3::text[]) or right(name, length($2) + 1) = '.' || $2)
       limit 1`,
    ),
    [domain.organizationId, domain.name, nameAndParents(domain.name)],
  );
  return rows.map(({ name }) => name);
}

/** `a.b.example` as `a.b.example`, `b.example`: compared on label boundaries. */
function nameAndParents(name: string): string[] {
  const labels = name.split('.');
  return labels.slice(0, -1).map((_label, index) => labels.slice(index).join('.'));
}

/** Serialises verifications of all organizations until the transaction ends; they are rare. */
export async function lockVerification(transaction: Connection): Promise<void> {
  await transaction.rows(
    unpreparedStatement("select pg_advisory_xact_lock(hashtextextended('domains verify', 0))"),
  );
}
