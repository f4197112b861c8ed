import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

/**
 * How many of a campaign's recipients met which fate. Whoever is done is in exactly one of `delivered` (those who
 * opened, clicked, complained or unsubscribed afterwards among them), `bounced`, `failed`, `dropped` and `uncertain`;
 * the others say what else is known of them.
 */
export type RecipientSums = {
  handedOff: number;
  delayed: number;
  delivered: number;
  bounced: number;
  failed: number;
  complained: number;
  unsubscribed: number;
  opened: number;
  clicked: number;
  dropped: number;
  uncertain: number;
};

/** By the id of the message, off the primary key; one of which nothing was counted yet is missing. */
export async function sumRecipientCounts(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<Map<string, RecipientSums>> {
  if (messageIds.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<RecipientSums & { message_id: string }>(
      `select message_id, sum(handed_off) as "handedOff", sum(delayed) as delayed, sum(delivered) as delivered,
         sum(bounced) as bounced, sum(failed) as failed, sum(complained) as complained,
         sum(unsubscribed) as unsubscribed, sum(opened) as opened, sum(clicked) as clicked, sum(dropped) as dropped,
         sum(uncertain) as uncertain
       from recipient_counts
       where organization_id = $1 and message_id = any ($2::uuid[])
       group by message_id`,
    ),
    [organizationId, messageIds],
  );
  return new Map(rows.map(({ message_id: messageId, ...sums }) => [messageId, sums]));
}
