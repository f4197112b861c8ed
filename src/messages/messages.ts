/** The front door: one message, from acceptance to what became of each recipient. */
export { type Acceptor, type AcceptTools, createAcceptor } from './accept.ts';
export { bringForward } from './bring-forward.ts';
export { missingVariablesHeader, tellMissingVariables } from './missing-variables.ts';
export { findSuspension, monthlyQuotaExceeded, sendingSuspended } from './refusals.ts';
export {
  type CampaignRecipient,
  type CampaignRecipients,
  type CampaignRecipientStatus,
  campaignRecipientStatuses,
  countWaitingBefore,
  findCampaignRecipient,
  listCampaignRecipients,
} from './campaign-recipients.ts';
export type { ChannelDeliveries, ChannelDelivery, MessageChannel, MessageChannels } from './channel.ts';
export { emailChannel } from './email-channel.ts';
export { smsChannel } from './sms-channel.ts';
export { type Delivery, deliveryChannel, type DeliveryTools, startDelivery } from './deliver.ts';
export { type EngagementAction, engagementActions, hasEngaged } from './contact-engagement.ts';
export { readReportToken, writeReportToken } from './recipient-token.ts';
export { createSmsDelivery } from './sms-delivery.ts';
export { createSmsIntake, smsEventChannel, startSmsEvents } from './sms-events.ts';
export { deleteOldProviderIds, providerIdMaxAgeMs } from './provider-ids.ts';
export { createEmailDelivery } from './email-delivery.ts';
export { createDeliverability, type Deliverability, wellKnownDomains } from './deliverability.ts';
export type { ReturnPathPolicy } from './email-build.ts';
export { erasureChannel, startErasing } from './erasure.ts';
export { applyReports, type FeedbackListeners, type FeedbackTools, type Report } from './feedback.ts';
export { acceptsReturnPath, type BounceTools, takeBounce } from './bounces.ts';
export { linkPaths } from './personal-copy.ts';
export {
  hasHandedOff,
  hasUncounted,
  type RecipientSums,
  sumRecipientCounts,
} from './recipient-counts-store.ts';
export { deleteOldReputation, forgiveReputation } from './reputation.ts';
export { changeRecipients, type RecipientTools } from './recipients.ts';
export { showFate } from './email-record.ts';
export { campaignDropReasons, type DropReason, fateFields, messageFormats } from './schema.ts';
export { insertCampaignMessage } from './store.ts';
export type { StoredEmailContent, StoredEmailDetails, StoredSmsContent, Submission } from './submission.ts';
export { smsEncoding } from './sms-schema.ts';
export { submitSms } from './sms-send.ts';
export {
  type AddressColumns,
  admitRecipients,
  type CampaignMessage,
  completeCampaignMessage,
  type ContactField,
  contactFields,
  type ContactVariables,
  countInQueue,
  findMessageContent,
  listAdmissible,
  findMessageSender,
  findCampaignMessages,
  holdInQueue,
  insertCampaignRecipients,
  loadContactValues,
  stopMessage,
} from './campaign-store.ts';
export { countChangedRecipients, sliceSize } from './recipient-counts.ts';
