import { channels } from '../channels/channel.ts';
import { mapContactFields } from './contact-fields.ts';
import type { ContactRow } from './contact-store.ts';
import type { Properties } from './contact-values.ts';
import type { ContactRecord, PropertyValue } from './schema.ts';

export type ContactSets = { listIds: readonly string[]; tagIds: readonly string[] };

/** A contact as the API shows it. Values of properties that are not defined any more are left out. */
export function showContact(row: ContactRow, sets: ContactSets, properties: Properties): ContactRecord {
  return {
    id: row.id,
    ...mapContactFields((field) => row[field]),
    properties: nameValues(row.properties, properties),
    consent: Object.fromEntries(
      channels.map((channel) => [
        channel,
        row.unsubscribed_channels.includes(channel) ? 'unsubscribed' : 'subscribed',
      ]),
    ) as ContactRecord['consent'], // fromEntries forgets which keys there are.
    list_ids: [...sets.listIds],
    tag_ids: [...sets.tagIds],
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

/** Values by the key of their property instead of by its number. */
export function nameValues(
  values: Readonly<Record<string, PropertyValue>>,
  properties: Properties,
): Record<string, PropertyValue> {
  const named: [string, PropertyValue][] = [];
  for (const { key, number } of properties.values()) {
    const value = values[`${number}`];
    if (value !== undefined) named.push([key, value]);
  }
  return Object.fromEntries(named);
}
