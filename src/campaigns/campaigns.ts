/** The front door: one message to many people, from its draft to what became of it. */
export { emailCampaigns } from './email-channel.ts';

/** Workers are woken through it when a campaign was queued, scheduled or stopped. */
export const campaignChannel = 'postillion_campaigns';
