/** What the other rooms may know of events: what contacts do, told by the organization's own systems. */
export { fieldValue, hasDone } from './contact-events.ts';
export { createEventCounts, type EventCounts } from './event-counts.ts';
export {
  bringConversionsForward,
  type ConversionSums,
  type Credit,
  creditConversions,
  findNextConversionAt,
  insertPendingConversions,
  type PendingConversion,
  sumConversionsOfCampaigns,
  takeDueConversions,
} from './conversion-store.ts';
export { currencySum } from './conversion-record.ts';
export { describeConversions, logConversions } from './told-events.ts';
export { eventRules } from './rules.ts';
export { describeBatchEvents, type FieldType, fieldTypes } from './schema.ts';
export {
  deleteEventsOfContact,
  findLeavingEnd,
  findNextOccurrence,
  listContactsOf,
  listDefinitionsByName,
} from './store.ts';
export { deleteOldEvents } from './retention.ts';
export { type EventImportCounts, type EventImportOutcome, importEvents } from './import.ts';
