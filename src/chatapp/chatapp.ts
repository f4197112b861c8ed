/** What the roles may know of chat-app messages. */
export { chatAppCampaigns } from './campaigns.ts';
export { chatAppChannel } from './channel.ts';
export { hasStoppedMarketing } from './choice-store.ts';
export { type ChatAppDeliveryTools, createChatAppDelivery } from './delivery.ts';
export { type ChatAppIntake, createChatAppIntake, startChatAppEvents } from './events.ts';
export { chatAppRoutes } from './routes.ts';
export { chatAppRules } from './rules.ts';
