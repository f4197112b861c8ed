/** The entry of this room: texts as a channel of messages and of campaigns. */
export { smsCampaigns } from './campaigns.ts';
export { smsRules } from './rules.ts';
export { smsChannel } from './channel.ts';
export { createSmsDelivery } from './delivery.ts';
export { createSmsIntake, startSmsEvents } from './events.ts';
