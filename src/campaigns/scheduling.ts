import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { CampaignChannels } from './channel.ts';
import type { CampaignKey } from './engine-store.ts';
import { markFailed, markPaused } from './move-store.ts';
import { prepareCampaign, queueCampaign, releaseUsed } from './queueing.ts';
import { lockDueCampaign } from './store.ts';

export type SchedulingTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  channels: CampaignChannels;
};

/** A campaign that is later than this may be outdated, so a person decides. */
const latenessMaxMs = 60 * 60_000;

/**
 * Queues a campaign whose time has come, once, however many nodes try. The campaign may have missed its time because no
 * worker was running, or may no longer be ready, for instance because its domain was deleted. Returns whether it was
 * still waiting to be queued.
 */
export async function queueDueCampaign(tools: SchedulingTools, key: CampaignKey): Promise<boolean> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const at = now(tools.clock);
    const campaign = await lockDueCampaign(transaction, key, at);
    if (campaign === null) return false;
    const lateMs = at.getTime() - (campaign.scheduled_at?.getTime() ?? 0);
    if (lateMs > latenessMaxMs) {
      await markPaused(transaction, key, 'schedule_missed', at);
      return true;
    }
    const channel = tools.channels[campaign.channel];
    if (channel === null) throw new Error(`no campaigns are known on the channel ${campaign.channel}`);
    const preparation = await prepareCampaign(transaction, channel, campaign);
    if (preparation.kind === 'not_ready') {
      await markFailed(
        transaction,
        key,
        `Not ready when its time came: ${preparation.issues.join(', ')}.`,
        at,
      );
      await releaseUsed(transaction, key);
      return true;
    }
    await queueCampaign(tools, transaction, { channel, campaign, message: preparation.message, at });
    return true;
  });
}
