import { describeBy, type DescribeEvents, type LoggedEvent } from '../webhooks/webhooks.ts';
import type { CampaignChannels } from './channel.ts';
import { showCampaign } from './record.ts';
import type { PauseReason } from './states.ts';
import { findCampaigns } from './store.ts';
import { sumUp } from './sums.ts';

/** What the campaign's row may say otherwise by the time it is told. */
type MoveFacts = { pause_reason: PauseReason };

/** What programs are told of campaigns: their record as lists of the API have it by then, in the status of the event. */
export function createCampaignDescriber(channels: CampaignChannels): DescribeEvents {
  return describeBy(
    async (connection, organizationId, ids) => {
      const found = await findCampaigns(connection, organizationId, ids);
      const sumsOf = await sumUp(connection, organizationId, found);
      return found.map((row) => {
        const channel = channels[row.channel];
        const record = channel && showCampaign(channel, row, sumsOf(row), { isListed: true });
        return { object: 'campaign', id: row.id, channel: row.channel, ...record };
      });
    },
    (record, event) => (event.type === 'campaign.progress' ? record : { ...record, ...movedBy(event) }),
  );
}

function movedBy({ type, facts }: LoggedEvent): { status: string; pause_reason: PauseReason | null } {
  const { pause_reason: reason } = (facts ?? {}) as Partial<MoveFacts>; // As move-store.ts made them.
  return { status: type.slice(type.indexOf('.') + 1), pause_reason: reason ?? null };
}
