import { sumConversionsOfCampaigns } from '../events/events.ts';
import { sumRecipientCounts } from '../messages/messages.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { CampaignSums } from './record.ts';
import type { CampaignRow } from './store.ts';

/** Returns what was counted of each of these campaigns. */
export async function sumUp(
  connection: Connection,
  organizationId: string,
  rows: readonly CampaignRow[],
): Promise<(row: CampaignRow) => CampaignSums> {
  const messageIds = rows.flatMap(({ message_id: id }) => (id === null ? [] : [id]));
  const [sums, conversions] = await Promise.all([
    sumRecipientCounts(connection, organizationId, messageIds),
    sumConversionsOfCampaigns(
      connection,
      organizationId,
      rows.map(({ id }) => id),
    ),
  ]);
  return (row) => ({ sums: sums.get(row.message_id ?? ''), conversions: conversions.get(row.id) });
}
