/** The entry of this room: email as a channel of messages and of campaigns. */
export { emailCampaigns } from './campaigns.ts';
export { emailChannel } from './channel.ts';
export { type ControlLookup, createControlLookup, wellKnownDomains } from './control-lookup.ts';
export { createDeliverability, type Deliverability } from './deliverability.ts';
export { createEmailDelivery } from './delivery.ts';
export { acceptsInbound, takeInbound } from './inbound.ts';
export {
  countPostmasterMail,
  deleteOldPostmasterMail,
  deletePostmasterMail,
  findPostmasterMail,
  listPostmasterMail,
  type PostmasterMail,
} from './postmaster.ts';
export { createEmailIntake } from './reports.ts';
export { prepareEmail } from './send.ts';
export { emailRules } from './rules.ts';
export { type EmailContentRecord, emailFormats, type EmailRecord, showEmailBody } from './schema.ts';
export {
  createEmailSending,
  type EmailItem,
  type EmailSending,
  prepareEmails,
  readEmails,
} from './sending.ts';
