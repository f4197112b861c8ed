/** What the roles may know of push. */
export { pushCampaigns } from './campaigns.ts';
export { pushChannel } from './channel.ts';
export { createPushDelivery, type PushDeliveryTools } from './delivery.ts';
export { describeBatchedPushes, pushPreparations, pushRoutes } from './routes.ts';
export { pushRules } from './rules.ts';
export { pushFormats } from './schema.ts';
