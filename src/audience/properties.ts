import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import { type Database, violatedIndex } from '../platform/postgres/database.ts';
import * as store from './property-store.ts';
import { type PropertyBody, type PropertyPatch } from './schema.ts';
import { findHolder } from './set-store.ts';

export type PropertyTools = { database: Database; clock: Clock; newId: NewId };

export type CreatedProperty =
  { kind: 'created'; property: store.PropertyRow } | { kind: 'taken' } | { kind: 'too_many' };

export async function createProperty(
  tools: PropertyTools,
  organizationId: string,
  body: PropertyBody,
): Promise<CreatedProperty> {
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      await store.lockProperties(transaction, organizationId);
      const defined = await store.loadProperties(transaction, organizationId);
      if (defined.has(body.key)) return { kind: 'taken' };
      if (defined.size >= store.propertiesMax) return { kind: 'too_many' };
      const property = await store.insertProperty(transaction, {
        organizationId,
        id: tools.newId(),
        key: body.key,
        name: body.name,
        type: body.type,
        description: body.description ?? null,
        at: now(tools.clock),
      });
      return { kind: 'created', property };
    });
  } catch (cause) {
    if (violatedIndex(cause) === 'contact_properties_key') return { kind: 'taken' };
    throw cause;
  }
}

export type UpdatedProperty =
  | { kind: 'updated'; property: store.PropertyRow }
  | { kind: 'not_found' }
  | { kind: 'unchangeable'; field: 'key' | 'type' };

export async function updateProperty(
  tools: PropertyTools,
  property: store.PropertyKey,
  patch: PropertyPatch,
): Promise<UpdatedProperty> {
  return tools.database.asOrganizations([property.organizationId], async (transaction) => {
    const present = await store.findProperty(transaction, property);
    if (present === null) return { kind: 'not_found' };
    if (patch.key !== undefined && patch.key !== present.key) return { kind: 'unchangeable', field: 'key' };
    if (patch.type !== undefined && patch.type !== present.type)
      return { kind: 'unchangeable', field: 'type' };
    const updated = await store.updateProperty(transaction, {
      ...property,
      ...(patch.name !== undefined && { name: patch.name }),
      ...(patch.description !== undefined && { description: patch.description }),
      at: now(tools.clock),
    });
    return updated === null ? { kind: 'not_found' } : { kind: 'updated', property: updated };
  });
}

/** Its values are gone for everybody at once; from the rows of the contacts they are removed afterwards. */
export async function deleteProperty(
  tools: PropertyTools,
  property: store.PropertyKey,
): Promise<'deleted' | 'not_found' | 'in_use'> {
  return tools.database.asOrganizations([property.organizationId], async (transaction) => {
    if (!(await store.lockProperty(transaction, property))) return 'not_found';
    if ((await findHolder(transaction, property)) !== null) return 'in_use';
    await store.markPropertyDeleted(transaction, property, now(tools.clock));
    return 'deleted';
  });
}
