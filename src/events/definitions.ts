import { loadLimits } from '../accounts/accounts.ts';
import { findHolder, type Holder } from '../audience/audience.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { PublicError } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import { type Connection, type Database, violatedIndex } from '../platform/postgres/database.ts';
import { mergeConversion, noConversion, refuseConversion } from './conversion.ts';
import type { DefinitionBody, DefinitionPatch, EventSchema } from './schema.ts';
import * as store from './store.ts';

/** Segments, which know how they read an event, are to the left of this room. */
export type FindReadFields = (
  transaction: Connection,
  definition: { organizationId: string; id: string },
) => Promise<readonly ReadField[]>;

/** A field of an event that a segment asks about. */
export type ReadField = { name: string; segmentId: string };

export type DefinitionTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  findReadFields: FindReadFields;
};

export type DefinitionOutcome =
  | { kind: 'done'; definition: store.DefinitionRow }
  | { kind: 'taken' }
  | { kind: 'limit_reached' }
  | { kind: 'not_found' }
  | { kind: 'refused'; error: PublicError }
  /** The field has another type in the patch, or is gone, and a segment asks about it. */
  | { kind: 'field_in_use'; field: ReadField };

/** Each request loads those that it names, and a page of segments names many. The limit does not depend on the plan. */
const definitionsMax = 1_000;

export async function createDefinition(
  tools: DefinitionTools,
  organizationId: string,
  body: DefinitionBody,
): Promise<DefinitionOutcome> {
  const schema = readSchema(body.schema);
  const conversion = mergeConversion(noConversion, body.conversion ?? {});
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      await store.lockDefinitions(transaction, organizationId);
      const named = await store.findDefinitionsByName(transaction, [{ organizationId, name: body.name }]);
      if (named.size > 0) return { kind: 'taken' };
      const error = refuseConversion(conversion, schema);
      if (error !== null) return { kind: 'refused', error };
      const { events: limit } = await loadLimits(transaction, organizationId);
      const most = Math.min(limit ?? definitionsMax, definitionsMax);
      if (await store.hasDefinitions(transaction, organizationId, most)) return { kind: 'limit_reached' };
      const definition = await store.insertDefinition(transaction, {
        organizationId,
        id: tools.newId(),
        name: body.name,
        description: body.description ?? null,
        schema,
        conversion,
        at: now(tools.clock),
      });
      return { kind: 'done', definition };
    });
  } catch (cause) {
    if (violatedIndex(cause) === 'event_definitions_name') return { kind: 'taken' };
    throw cause;
  }
}

/** Events that were sent before stay as they are. */
export async function updateDefinition(
  tools: DefinitionTools,
  key: store.DefinitionKey,
  patch: DefinitionPatch,
): Promise<DefinitionOutcome> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const present = await store.lockDefinition(transaction, key);
    if (present === null) return { kind: 'not_found' };
    const schema = patch.schema === undefined ? present.schema : readSchema(patch.schema);
    const conversion = mergeConversion(present.conversion, patch.conversion ?? {});
    const error = refuseConversion(conversion, schema);
    if (error !== null) return { kind: 'refused', error };
    const lost = findLostFields(present.schema, schema);
    if (lost.size > 0) {
      const readFields = await tools.findReadFields(transaction, key);
      const field = readFields.find(({ name }) => lost.has(name));
      if (field !== undefined) return { kind: 'field_in_use', field };
    }
    const definition = await store.updateDefinition(transaction, {
      ...key,
      description: patch.description === undefined ? present.description : patch.description,
      schema,
      conversion,
      at: now(tools.clock),
    });
    return definition === null ? { kind: 'not_found' } : { kind: 'done', definition };
  });
}

/** The events themselves stay in the timelines of their contacts. */
export async function deleteDefinition(
  tools: DefinitionTools,
  key: store.DefinitionKey,
): Promise<'deleted' | 'not_found' | Holder> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    if ((await store.lockDefinition(transaction, key)) === null) return 'not_found';
    const holder = await findHolder(transaction, key);
    if (holder !== null) return holder;
    await store.markDefinitionDeleted(transaction, key, now(tools.clock));
    return 'deleted';
  });
}

function readSchema(given: DefinitionBody['schema']): EventSchema {
  return {
    fields: (given?.fields ?? []).map(({ name, type, required = false }) => ({ name, type, required })),
  };
}

/** The names of fields that are gone, or have another type. */
function findLostFields(before: EventSchema, after: EventSchema): ReadonlySet<string> {
  const types = new Map(after.fields.map(({ name, type }) => [name, type]));
  return new Set(before.fields.flatMap(({ name, type }) => (types.get(name) === type ? [] : [name])));
}
