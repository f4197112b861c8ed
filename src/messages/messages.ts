/** The entry of this room: a message, from acceptance to the outcome of each recipient. */
export { type Acceptor, type AcceptTools, attachmentContext, createAcceptor } from './accept.ts';
export {
  batchRoute,
  type BatchReader,
  createBatchReader,
  type PreparedItem,
  prepareLargeBatch,
} from './batch-routes.ts';
export {
  type Labels,
  metadataInput,
  metadataRecord,
  showLabels,
  type StoredLabels,
  tagsInput,
  tagsRecord,
  toStoredLabels,
} from './labels.ts';
export { readSchedule, scheduledAtInput, scheduledAtRecord, showScheduledAt } from './schedule.ts';
export { batchBytesMax, describeBatchItem, type ItemKey } from './batch.ts';
export { defineAcceptance } from './store.ts';
export { bringForward } from './delivery/bring-forward.ts';
export { bringEventsForward } from './delivery/bring-forward-store.ts';
export { missingVariablesHeader, tellMissingVariables } from './missing-variables.ts';
export { foreignSyntaxWarnings, tellWarnings, warningsHeader, warningsHeaderName } from './warnings.ts';
export { findSuspension, monthlyQuotaExceeded, sendingSuspended } from './refusals.ts';
export {
  type CampaignRecipient,
  type CampaignRecipients,
  type CampaignRecipientStatus,
  campaignRecipientStatuses,
  countWaitingBefore,
  findCampaignRecipients,
  listCampaignRecipients,
} from './campaigns/recipients.ts';
export {
  type Attempt,
  type ChannelDeliveries,
  type ChannelDelivery,
  contentBytesMax,
  type DeliveryPolicy,
  type Finding,
  type FindingTools,
  type HandOffPermit,
  type Job,
  type MessageChannel,
  type MessageChannels,
  type MessageFacts,
  type Refusal,
  smallContentBytesMax,
} from './channel.ts';
export { latestOfEach } from './latest-findings.ts';
export { type Delivery, startDelivery } from './delivery/deliver.ts';
export type { DeliveryTools } from './delivery/lease-session.ts';
export { giveUpAllSetAside, type GivenUp, retrySetAside, type SetAsideTools } from './delivery/set-aside.ts';
export {
  countSetAside,
  listSetAside,
  type SetAsideFilter,
  type SetAsideJob,
  type SetAsidePosition,
} from './delivery/set-aside-store.ts';
export { listOpenBreakers } from './delivery/breaker-store.ts';
export {
  countQueued,
  countWaiting,
  findOldestDue,
  hasClaims,
  listOldestDue,
} from './delivery/waiting-store.ts';
export { type DeliveryObserver, settledOutcomeOf } from './delivery/observer.ts';
export type { Settlement } from './recipients/settlement-store.ts';
export { type EngagementAction, engagementActions, hasEngaged } from './recipients/contact-engagement.ts';
export {
  readContactToken,
  readRecipientToken,
  readReportToken,
  writeContactToken,
  writeRecipientTokens,
  writeReportToken,
} from './recipients/token.ts';
export {
  deleteOldProviderIds,
  findByProviderIds,
  keepProviderIds,
  type ProviderId,
  providerIdMaxAgeMs,
  uncertainId,
} from './recipients/provider-ids-store.ts';
export { createReportIntake, type ReportIntake, startProviderEvents } from './feedback/provider-events.ts';
export { applyInOrder, createStoring, defaultAppliedMax, planNextLooks } from './feedback/stored-events.ts';
export { startCrediting } from './conversions/crediting.ts';
export { startErasing } from './erasure/erasure.ts';
export { applyReports, applyReportsWithin, type FeedbackTools, type Report } from './feedback/feedback.ts';
export {
  hasHandedOff,
  hasUncounted,
  type RecipientSums,
  sumRecipientCounts,
} from './recipients/counts-store.ts';
export { deleteOldReputation, forgiveReputation } from './recipients/reputation.ts';
export { endRepeats } from './delivery/repeats-store.ts';
export { lockEngagedRecipients } from './recipients/locks-store.ts';
export type { NotedEngagement, ToldEngagement } from './recipients/engagement-store.ts';
export { changeRecipients, type RecipientListeners, type RecipientTools } from './recipients/recipients.ts';
export {
  campaignDropReasons,
  categoryFilter,
  categoryInput,
  type DropReason,
  dropReasons,
  fateFields,
  messageReference,
  type MessageStatus,
  messageStatuses,
  type RecipientStatus,
  recipientStatuses,
  variablesInput,
  toldRecipient,
} from './schema.ts';
export { showFate } from './fate.ts';
export { createRecipientDescriber } from './told-events.ts';
export {
  describeOrganizationEvents,
  logSuspensions,
  type QuotaFacts,
  startTellingOfQuotas,
  type SuspensionFacts,
} from './told-organizations.ts';
export {
  createHorizon,
  type Horizon,
  isBeyond,
  limitKept,
  messageNotFound,
  noHorizon,
  type ReadHorizon,
} from './kept.ts';
export { readNumberPrefix } from './number-prefix.ts';
export { removeOldMessages } from './retention.ts';
export { listMessageTables, type MessageKeeper } from './retention-store.ts';
export {
  type FateRow,
  findMessage,
  findOnlyRecipient,
  insertCampaignMessage,
  insertMessages,
  listMessages,
  listRecipients,
  type MessageRow,
  type RecipientRow,
  type SearchedPrefixes,
} from './store.ts';
export { measureContent, readContentText } from './content-store.ts';
export type { Prepared, RecipientField, Submission, SubmittedRecipient } from './submission.ts';
export {
  admitRecipients,
  type CampaignMessage,
  completeCampaignMessage,
  countInQueue,
  countInQueueOf,
  findMessageContent,
  type Admissible,
  listAdmissible,
  findMessageSender,
  findCampaignMessages,
  holdInQueue,
  showInQueue,
  stopMessage,
} from './campaigns/store.ts';
export { type ContactVariables, loadContactValues } from './recipients/contact-values-store.ts';
export type { NewMembers } from './recipients/member-store.ts';
export { keyOfContact, type Reach } from './recipients/reach.ts';
export { countChangedRecipients, sliceSize } from './recipients/counts.ts';
export { findAddressKeys, findUnreachedAddresses } from './recipients/store.ts';
export {
  type DeliverableMessage,
  loadDeliverableMessages,
  loadFirstAttachments,
  loadSealedAttachments,
} from './delivery/content-store.ts';
export { keyColumns, type MessageKey, type RecipientKey, textOfKey, toKey, uniqueMessages } from './keys.ts';
export { sealedUnderUnknownKey } from './delivery/attempt-result.ts';
export { toFailure } from './delivery/settlement.ts';
export { defineMessageStatus } from './status-store.ts';
export {
  type LoadRecords,
  messageReadingRoutes,
  type MessageRouteTools,
  messageSchedulingRoutes,
} from './message-routes.ts';
export { dueAfterMs } from './delivery/retry.ts';
