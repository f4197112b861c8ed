import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { dueInTurns } from '../platform/queue/turns.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import { lockName, tryLockName } from '../platform/postgres/name-locks.ts';
import type { Findings } from './findings.ts';
import type { DomainSettings } from './records.ts';

/** A name within an organization: lower-case A-labels. */
export type DomainName = { organizationId: string; name: string };

const selectVerified = statement<{ organization_id: string; name: string }>(
  'domains_select_verified',
  `select d.organization_id, d.name
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, name)
   join domains d on d.organization_id = wanted.organization_id and d.name = wanted.name
   where d.status = 'verified'`,
);

/**
 * SQL over a row `sender` with `organization_id` and `name`: whether that is a verified domain of the organization. The
 * status is no condition, by which an empty table would be read through one of the indexes of all verified domains.
 */
export const isVerifiedDomain = toPredicate(
  `select d.status = 'verified' from domains d where ${hasKeyOf('d', 'sender', ['name'])} limit 1`,
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

/** What is tracked in mail from this domain unless the mail says otherwise; null if the domain is not verified. */
export async function findTracking(
  connection: Connection,
  domain: DomainName,
): Promise<{ opens: boolean; clicks: boolean } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ open_tracking: boolean; click_tracking: boolean }>(
      `select open_tracking, click_tracking
       from domains
       where organization_id = $1 and name = $2 and status = 'verified'`,
    ),
    [domain.organizationId, domain.name],
  );
  return row === undefined ? null : { opens: row.open_tracking, clicks: row.click_tracking };
}

export type DomainRow = {
  organization_id: string;
  id: string;
  name: string;
  status: 'pending' | 'verified';
  verified_at: Date | null;
  return_path_subdomain: string;
  tracking_subdomain: string | null;
  open_tracking: boolean;
  click_tracking: boolean;
  dkim_selector: string | null;
  dkim_public_key: string | null;
  findings: Findings;
  last_checked_at: Date | null;
  degraded_since: Date | null;
  checks_asked: number;
  checks_answered: number;
  created_at: Date;
  updated_at: Date;
};

const domainColumns = `organization_id, id, name, status, verified_at, return_path_subdomain, tracking_subdomain,
  open_tracking, click_tracking, dkim_selector, dkim_public_key, findings, last_checked_at, degraded_since,
  checks_asked, checks_answered, created_at, updated_at`;

/** Null for a domain that was verified by the operator before there were keys. */
export function settingsOf(row: DomainRow): DomainSettings | null {
  if (row.dkim_selector === null || row.dkim_public_key === null) return null;
  return {
    name: row.name,
    returnPathSubdomain: row.return_path_subdomain,
    trackingSubdomain: row.tracking_subdomain,
    dkim: { selector: row.dkim_selector, publicKey: row.dkim_public_key },
  };
}

export async function findDomainByName(
  connection: Connection,
  domain: DomainName,
): Promise<DomainRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DomainRow>(
      `select ${domainColumns}
       from domains
       where organization_id = $1 and name = $2`,
    ),
    [domain.organizationId, domain.name],
  );
  return row ?? null;
}

export type DomainKey = { organizationId: string; id: string };

export async function findDomain(connection: Connection, domain: DomainKey): Promise<DomainRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DomainRow>(
      `select ${domainColumns}
       from domains
       where organization_id = $1 and id = $2`,
    ),
    [domain.organizationId, domain.id],
  );
  return row ?? null;
}

/** One row more than the page holds, read off the primary key. */
export async function listDomains(
  connection: Connection,
  organizationId: string,
  page: Page,
): Promise<DomainRow[]> {
  return connection.rows(
    unpreparedStatement<DomainRow>(
      `select ${domainColumns}
       from domains
       where organization_id = $1 ${pageClause(page, 'id', '$2')}
       limit $3`,
    ),
    [organizationId, cursorOf(page), page.limit + 1],
  );
}

/** Of all organizations. Scans the table backwards, which is small; for an operator. */
export async function listNewestVerified(connection: Connection, limit: number): Promise<DomainRow[]> {
  return connection.rows(
    unpreparedStatement<DomainRow>(
      `select ${domainColumns}
       from domains
       where status = 'verified'
       order by verified_at desc
       limit $1`,
    ),
    [limit],
  );
}

/** Whether the organization holds so many domains or more. */
export async function holdsDomains(
  connection: Connection,
  organizationId: string,
  count: number,
): Promise<boolean> {
  if (count === 0) return true;
  const rows = await connection.rows(
    unpreparedStatement('select from domains where organization_id = $1 offset $2 limit 1'),
    [organizationId, count - 1],
  );
  return rows.length === 1;
}

export type NewDomain = DomainKey & {
  name: string;
  returnPathSubdomain: string;
  trackingSubdomain: string | null;
  openTracking: boolean;
  clickTracking: boolean;
  dkim: SealedKeyPair;
  nextCheckAt: Date | null;
  createdAt: Date;
};

export type SealedKeyPair = { selector: string; publicKey: string; privateKeySealed: Buffer };

export async function insertDomain(connection: Connection, domain: NewDomain): Promise<DomainRow> {
  const [row] = await connection.rows(
    unpreparedStatement<DomainRow>(
      `insert into domains
         (organization_id, id, name, return_path_subdomain, tracking_subdomain, open_tracking,
         click_tracking, dkim_selector, dkim_public_key, dkim_private_key_sealed, next_check_at, created_at,
         updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
       returning ${domainColumns}`,
    ),
    [
      domain.organizationId,
      domain.id,
      domain.name,
      domain.returnPathSubdomain,
      domain.trackingSubdomain,
      domain.openTracking,
      domain.clickTracking,
      domain.dkim.selector,
      domain.dkim.publicKey,
      domain.dkim.privateKeySealed,
      domain.nextCheckAt,
      domain.createdAt,
    ],
  );
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

/** For a domain that has no key pair yet. */
export async function setKeyPair(
  connection: Connection,
  domain: DomainKey,
  pair: SealedKeyPair,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update domains
       set dkim_selector = $3, dkim_public_key = $4, dkim_private_key_sealed = $5
       where organization_id = $1 and id = $2 and dkim_selector is null`,
    ),
    [domain.organizationId, domain.id, pair.selector, pair.publicKey, pair.privateKeySealed],
  );
}

/**
 * Competes with every other verification of the same name: the unique index lets one organization win. Returns whether it was
 * verified by this.
 */
export async function markVerified(connection: Connection, domain: DomainKey, at: Date): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update domains
       set status = 'verified', verified_at = coalesce(verified_at, $3), updated_at = $3
       where organization_id = $1 and id = $2 and status <> 'verified'
       returning id`,
    ),
    [domain.organizationId, domain.id, at],
  );
  return rows.length === 1;
}

/** Those that there are. */
export async function findDomains(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<DomainRow[]> {
  return connection.rows(
    unpreparedStatement<DomainRow>(
      `select ${domainColumns}
       from domains
       where organization_id = $1 and id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
}

/** Asks for a check that begins from now on. Returns the number that it has to answer; null if there is no such domain. */
export async function askForCheck(connection: Connection, domain: DomainKey): Promise<number | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ checks_asked: number }>(
      `update domains
       set checks_asked = checks_asked + 1
       where organization_id = $1 and id = $2
       returning checks_asked`,
    ),
    [domain.organizationId, domain.id],
  );
  return row?.checks_asked ?? null;
}

export type CheckResult = DomainKey & {
  findings: Findings;
  checkedAt: Date;
  nextCheckAt: Date;
  degradedSince: Date | null;
  /** How often a check had been asked for when this one began. */
  answers: number;
};

export async function saveCheck(connection: Connection, result: CheckResult): Promise<DomainRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DomainRow>(
      `update domains
       set findings = $3, last_checked_at = $4, next_check_at = $5, degraded_since = $6, updated_at = $4,
         checks_answered = greatest(checks_answered, $7), checking_until = null
       where organization_id = $1 and id = $2
       returning ${domainColumns}`,
    ),
    [
      result.organizationId,
      result.id,
      JSON.stringify(result.findings),
      result.checkedAt,
      result.nextCheckAt,
      result.degradedSince,
      result.answers,
    ],
  );
  return row ?? null;
}

/** Returns whether there was such a domain. */
export async function deleteDomain(connection: Connection, domain: DomainKey): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement('delete from domains where organization_id = $1 and id = $2 returning id'),
    [domain.organizationId, domain.id],
  );
  return rows.length === 1;
}

/** Domains to be checked: what they wait for, the order within an organization, and which of them are due at `$1`. */
type WaitingChecks = { among: string; first: string; due: string };

const isFree = toPredicate('checking_until is null or checking_until <= $1');

const periodically: WaitingChecks = {
  among: 'next_check_at is not null',
  first: 'next_check_at',
  due: `next_check_at <= $1 and ${isFree}`,
};
/** Whichever was checked longest ago comes first: one that is asked for again and again does not keep back others. */
const askedFor: WaitingChecks = {
  among: 'checks_asked > checks_answered',
  first: 'updated_at',
  due: isFree,
};

/** In turns of organizations, one of each; rows that another worker is taking are skipped. */
function takeForCheck(name: string, { among, first, due }: WaitingChecks) {
  return statement<DomainRow>(
    name,
    `with recursive ${dueInTurns({
      table: 'domains',
      of: 'organization_id',
      columns: ['organization_id', 'id'],
      order: [first, 'id'],
      among,
      due: `${due} and organization_id <> all ($3::uuid[])`,
      limit: '$4',
    })}
     update domains
     set checking_until = $2
     where (organization_id, id) in (select organization_id, id from due where turn = 1)
     returning ${domainColumns}`,
  );
}

const takeDue = takeForCheck('domains_take_due', periodically);
const takeAsked = takeForCheck('domains_take_asked', askedFor);

export type WantedChecks = {
  at: Date;
  /** When another worker may take them, should this one have died. */
  until: Date;
  limit: number;
  /** Organizations of which no more are taken. */
  except: readonly string[];
};

/** Takes domains whose periodic check is due, one of each organization; by the index domains_turns. */
export async function takeDueDomains(connection: Connection, wanted: WantedChecks): Promise<DomainRow[]> {
  return connection.rows(takeDue, [wanted.at, wanted.until, wanted.except, wanted.limit]);
}

/** Takes domains of which a check was asked for, one of each organization; by the index domains_asked. */
export async function takeAskedDomains(connection: Connection, wanted: WantedChecks): Promise<DomainRow[]> {
  return connection.rows(takeAsked, [wanted.at, wanted.until, wanted.except, wanted.limit]);
}

/** When the next periodic check is due, of domains that nobody is checking; by the index domains_next_check. */
export async function findNextCheckAt(
  connection: Connection,
  { at, except }: Pick<WantedChecks, 'at' | 'except'>,
): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next_check_at: Date }>(
      `select next_check_at
       from domains
       where next_check_at is not null and ${isFree} and organization_id <> all ($2::uuid[])
         and ${isNotDeleted('organization_id')}
       order by next_check_at
       limit 1`,
    ),
    [at, except],
  );
  return row?.next_check_at ?? null;
}

/** When a check that was asked for may be taken from the worker that has it, should it have died; by domains_asked. */
export async function findNextTakeoverAt(
  connection: Connection,
  { at, except }: Pick<WantedChecks, 'at' | 'except'>,
): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ until: Date | null }>(
      `select min(checking_until) as until
       from domains
       where checks_asked > checks_answered and checking_until > $1 and organization_id <> all ($2::uuid[])
         and ${isNotDeleted('organization_id')}`,
    ),
    [at, except],
  );
  return row?.until ?? null;
}

/**
 * Those of other organizations that are verified for the name itself, for one above it (both read off
 * domains_verified_name), or for one below it (domains_verified_reversed). A-labels hold no wildcard of `like`.
 */
export async function findRelatedVerified(connection: Connection, domain: DomainName): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select name
       from domains
       where organization_id <> $1
         and status = 'verified'
         and (name = any ($3::text[]) or reverse(name) like reverse($2) || '.%')
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
  await lockName(transaction, 'domains verify');
}

/** Whether no other registration of the organization is under way; holds that until the transaction ends. */
export async function tryLockRegistration(transaction: Connection, organizationId: string): Promise<boolean> {
  return tryLockName(transaction, `domains register ${organizationId}`);
}

export type SendingDomainRow = DomainName & {
  returnPathSubdomain: string;
  isReturnPathPublished: boolean;
  openTracking: boolean;
  clickTracking: boolean;
  trackingSubdomain: string | null;
  isTrackingPublished: boolean;
  dkim: { selector: string; privateKeySealed: Buffer } | null;
};

const selectSending = statement<{
  organization_id: string;
  name: string;
  return_path_subdomain: string;
  is_return_path_published: boolean;
  open_tracking: boolean;
  click_tracking: boolean;
  tracking_subdomain: string | null;
  is_tracking_published: boolean;
  dkim_selector: string | null;
  dkim_private_key_sealed: Buffer | null;
}>(
  'domains_select_sending',
  `select d.organization_id, d.name, d.return_path_subdomain, d.dkim_selector, d.dkim_private_key_sealed,
     d.last_checked_at is null or coalesce(d.findings #>> '{return_path_mx,status}' = 'verified', false)
       as is_return_path_published,
     d.open_tracking, d.click_tracking, d.tracking_subdomain,
     coalesce(d.findings #>> '{tracking,status}' = 'verified', false) as is_tracking_published
   from unnest($1::uuid[], $2::text[]) as wanted (organization_id, name)
   join domains d on d.organization_id = wanted.organization_id and d.name = wanted.name
   where d.status = 'verified'`,
);

/** What is needed to send from these domains; those that are not verified, or gone, are missing. */
export async function findSendingDomains(
  connection: Connection,
  wanted: readonly DomainName[],
): Promise<SendingDomainRow[]> {
  const rows = await connection.rows(selectSending, [
    wanted.map(({ organizationId }) => organizationId),
    wanted.map(({ name }) => name),
  ]);
  return rows.map((row) => ({
    organizationId: row.organization_id,
    name: row.name,
    returnPathSubdomain: row.return_path_subdomain,
    isReturnPathPublished: row.is_return_path_published,
    openTracking: row.open_tracking,
    clickTracking: row.click_tracking,
    trackingSubdomain: row.tracking_subdomain,
    isTrackingPublished: row.is_tracking_published,
    dkim:
      row.dkim_selector === null || row.dkim_private_key_sealed === null
        ? null
        : { selector: row.dkim_selector, privateKeySealed: row.dkim_private_key_sealed },
  }));
}

/** The organization that this domain is verified for; read off domains_verified_name. */
export async function findVerifiedOwner(connection: Connection, name: string): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ organization_id: string }>(
      `select organization_id from domains where status = 'verified' and name = $1 and ${isNotDeleted('organization_id')}`,
    ),
    [name],
  );
  return row?.organization_id ?? null;
}

/** The verified domains that an organization is alerted from, the best first: those that lack no record, the oldest first. */
export async function findAlertDomains(
  connection: Connection,
  organizationId: string,
): Promise<{ name: string; isDegraded: boolean }[]> {
  return connection.rows(
    unpreparedStatement<{ name: string; isDegraded: boolean }>(
      `select name, degraded_since is not null as "isDegraded"
       from domains
       where organization_id = $1 and status = 'verified'
       order by degraded_since is not null, id
       limit 1`,
    ),
    [organizationId],
  );
}

/** The organization whose verified domain has its return path at this host; read off domains_verified_name. */
export async function findReturnPathOwner(connection: Connection, host: string): Promise<string | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ organization_id: string }>(
      `select organization_id
       from domains
       where status = 'verified' and name = any ($2::text[]) and return_path_subdomain || '.' || name = $1
         and ${isNotDeleted('organization_id')}
       limit 1`,
    ),
    [host, nameAndParents(host)],
  );
  return row?.organization_id ?? null;
}
