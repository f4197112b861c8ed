import type { Predicate } from '../../platform/postgres/predicate.ts';

/**
 * SQL: inserts recipients of messages that are accepted. `recipients` is SQL of a table with the columns that they are
 * inserted with.
 */
export function insertionOf(
  recipients: string,
  { at, condition }: { at: string; condition: Predicate },
): string {
  return `insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, status_at, drop_reason)
     select organization_id, message_id, ordinal, field, address, address_key, ${at}, drop_reason
     from ${recipients}
     where ${condition}`;
}
