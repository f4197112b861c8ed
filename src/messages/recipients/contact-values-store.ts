import type { ContactField } from '../../audience/audience.ts';
import type { Values } from '../../channels/placeholders.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';

/** Where a contact's values for placeholders are read from. */
export type ContactVariables = {
  /** Columns of contacts, named like their placeholders. */
  fields: readonly ContactField[];
  properties: readonly { key: string; number: number }[];
};

/** PostgreSQL allows a hundred arguments for a function: fifty pairs. */
const pairsMax = 50;

/**
 * SQL for the values that go into a contact's copy, null if there are none. Names of properties are bound as
 * parameters; names of columns are constants of ours.
 */
export function valuesOf(variables: ContactVariables, bind: (value: unknown) => string): string {
  const pairs = [
    ...variables.fields.map((field) => `${bind(field)}::text, c.${field}`),
    ...variables.properties.map(
      ({ key, number }) => `${bind(key)}::text, c.properties -> ${bind(`${number}`)}::text`,
    ),
  ];
  if (pairs.length === 0) return 'null';
  const objects: string[] = [];
  for (let start = 0; start < pairs.length; start += pairsMax) {
    objects.push(`jsonb_build_object(${pairs.slice(start, start + pairsMax).join(', ')})`);
  }
  return `nullif(jsonb_strip_nulls(${objects.join(' || ')}), '{}')::json`;
}

/** The values for one contact's copy; empty if the contact does not exist. */
export async function loadContactValues(
  connection: Connection,
  contact: { organizationId: string; id: string },
  variables: ContactVariables,
): Promise<Values> {
  const values: unknown[] = [contact.organizationId, contact.id];
  const [row] = await connection.rows(
    unpreparedStatement<{ values: Values | null }>(
      `select ${valuesOf(variables, (value) => `$${values.push(value)}`)} as values
       from contacts c
       where c.organization_id = $1 and c.id = $2`,
    ),
    values,
  );
  return row?.values ?? {};
}
