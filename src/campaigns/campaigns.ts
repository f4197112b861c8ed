import type { CampaignChannels } from './channel.ts';
import { emailCampaigns } from './email-channel.ts';
import { smsCampaigns } from './sms-channel.ts';

/** The front door: one message to many people, from its draft to what became of it. */

/** The registry: a new channel is a module and an entry here. */
export const campaignChannels: CampaignChannels = { email: emailCampaigns, sms: smsCampaigns };

/** Workers are woken through it when a campaign was queued, scheduled or stopped. */
export const campaignChannel = 'postillion_campaigns';
