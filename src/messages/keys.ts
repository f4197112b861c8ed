import type { RecipientKey } from '../channels/outcome.ts';
import type { Columns } from '../platform/postgres/parameters.ts';

/** The key of a recipient, and of a row in the queue, after the organization. */
export const recipientKey = ['message_id', 'ordinal'] as const;

export type { RecipientKey };

export type MessageKey = { organizationId: string; messageId: string };

export function keyColumns(jobs: readonly RecipientKey[]): [string[], string[], number[]] {
  return [
    jobs.map(({ organizationId }) => organizationId),
    jobs.map(({ messageId }) => messageId),
    jobs.map(({ ordinal }) => ordinal),
  ];
}

/** The same for statements that are defined with their parameters. */
export function columnsOfKey<Item>(keyOf: (item: Item) => RecipientKey): Columns<Item> {
  return {
    organization_id: ['uuid', (item) => keyOf(item).organizationId],
    message_id: ['uuid', (item) => keyOf(item).messageId],
    ordinal: ['integer', (item) => keyOf(item).ordinal],
  };
}

export function messageColumns(messages: readonly MessageKey[]): [string[], string[]] {
  return [messages.map(({ organizationId }) => organizationId), messages.map(({ messageId }) => messageId)];
}

export function toKey(row: { organization_id: string; message_id: string; ordinal: number }): RecipientKey {
  return { organizationId: row.organization_id, messageId: row.message_id, ordinal: row.ordinal };
}

/** Each message once, in the order of the ids, so that transactions that lock the same ones cannot deadlock. */
export function uniqueMessages(jobs: readonly RecipientKey[]): MessageKey[] {
  const messages = new Map(
    jobs.map(({ organizationId, messageId }) => [messageId, { organizationId, messageId }]),
  );
  return [...messages.values()];
}

export function textOfKey({ organizationId, messageId, ordinal }: RecipientKey): string {
  return `${organizationId} ${messageId} ${ordinal}`;
}
