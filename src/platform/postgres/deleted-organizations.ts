import { type Predicate, toPredicate } from './predicate.ts';

/**
 * SQL: nobody has asked for the deletion of an organization. For statements that look for work, or find out to which
 * organization something belongs: all else runs in transactions of an organization, which see nothing of one that is
 * being deleted (`Database.asOrganizations`). By the index organizations_deleted, which is empty as a rule: then the
 * planner leaves it out, since a function says so that is replaced when a deletion begins (0002-accounts.sql).
 *
 * `is not true` keeps the planner from making a join of it, which may return rows in another order, and all of them where
 * the first few are wanted: it is asked once for a statement, and its rows are compared one by one.
 */
export function isNotDeleted(organizationId: string): Predicate {
  return toPredicate(
    `are_no_organizations_deleted()
       or (${organizationId} in (select gone.id from organizations gone where gone.deletion is not null)) is not true`,
  );
}
