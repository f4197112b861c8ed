/** The entry of this room: email as a channel of messages and of campaigns. */
export { acceptsReturnPath, type BounceTools, takeBounce } from './bounces.ts';
export type { ReturnPathPolicy } from './build.ts';
export { emailCampaigns } from './campaigns.ts';
export { emailChannel } from './channel.ts';
export { createDeliverability, type Deliverability, wellKnownDomains } from './deliverability.ts';
export { createEmailDelivery } from './delivery.ts';
export { createEmailIntake } from './reports.ts';
export { emailFormats } from './schema.ts';
