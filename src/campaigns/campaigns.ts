import type { CampaignChannels } from './channel.ts';
import { emailCampaigns } from './email-channel.ts';

/** The front door: one message to many people, from its draft to what became of it. */
export { emailCampaigns } from './email-channel.ts';

/** The registry: a new channel is a module and a line here. */
export const campaignChannels: CampaignChannels = new Map([['email', emailCampaigns]]);

/** Workers are woken through it when a campaign was queued, scheduled or stopped. */
export const campaignChannel = 'postillion_campaigns';
