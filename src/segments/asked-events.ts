import { listDefinitionsByName } from '../events/events.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { ConditionEvent } from './conditions.ts';

/**
 * Events as conditions speak of them, by their names. Those that are to be held can neither change nor be deleted until
 * the transaction ends: otherwise a field could lose its type while the first condition that asks about it is written.
 */
export async function loadEvents(
  connection: Connection,
  wanted: { organizationId: string; names: readonly string[]; isHeld: boolean },
): Promise<Map<string, ConditionEvent>> {
  const definitions = await listDefinitionsByName(connection, wanted);
  return new Map(
    definitions.map(({ id, number, name, schema }) => [
      name,
      { id, number, fields: new Map(schema.fields.map((field) => [field.name, field.type])) },
    ]),
  );
}
