/** What the other rooms may know of the audience. */
export {
  type ContactBar,
  findAddressesOf,
  findBarredContacts,
  type ContactKey,
  findHeldAddresses,
  findUnwillingContacts,
  insertChangesOfRecipients,
  insertContactChange,
  lockContacts,
  type MessagedContact,
  takeContactChanges,
} from './contact-store.ts';
export {
  type AddressColumns,
  addressColumns,
  type AddressedChannel,
  contactAddresses,
  type ContactField,
  contactFieldNames,
  contactFields,
  type ContactFormat,
  contactIdentifiers,
  type ContactIdentifier,
} from './contact-fields.ts';
export {
  findConsent,
  findConsentHolder,
  hasOptedInSince,
  hearOptOut,
  leaveList,
  optIn,
  optOut,
  optOutContact,
  type OptOutTools,
} from './consents.ts';
export { contactPreparations } from './contact-body.ts';
export { listContactsByIds, type ShowTools } from './contacts.ts';
export { type DateBounds, dateBounds, parseDateValue } from './date-value.ts';
export {
  type AddressErasure,
  type ContactErasure,
  type Erasure,
  findErasingOrganizations,
  findNextErasureAt,
  finishErasure,
  postponeErasure,
  takeDueAddress,
  takeDueContact,
} from './erasure-store.ts';
export { CsvError, type CsvRecord, readCsv } from './files/csv-reader.ts';
export { unguardText, writeRecord } from './files/csv-writer.ts';
export { openExport } from './files/export.ts';
export { importContacts, type ImportOutcome, type ImportProgress } from './files/import.ts';
export { importSuppressions, type SuppressionImportOutcome } from './files/suppression-import.ts';
export { suppressionFormats, suppressionLists } from './files/suppression-formats.ts';
export { readBoolean, readField, readNumber, type RowIssue } from './files/import-row.ts';
export { identifyContacts } from './identified-contacts.ts';
export {
  contactReferenceFields,
  type ContactReference,
  refuseReference,
  resolveContact,
  type ResolvedContact,
  resolveContacts,
} from './reference.ts';
export { loadProperties } from './property-store.ts';
export { audienceRules } from './rules.ts';
export {
  audienceFormats,
  consentStates,
  type ContactRecord,
  contactRecord,
  describeContacts,
  toldContact,
  toldMember,
  type PropertyType,
  type SetKind,
  type Suppression,
  type SuppressionReason,
  type SuppressionScope,
  type SuppressionSource,
  isPhoneNumber,
} from './schema.ts';
export {
  findHeld,
  findHeldSets,
  findHolder,
  findMessageReaders,
  hasMessageReader,
  findSets,
  type Held,
  type Holder,
  insertSet,
  listMemberLists,
  markMessageReader,
  replaceHolds,
  type SegmentFacts,
  setReadiness,
  syncMembers,
  updateSet,
} from './set-store.ts';
export { deleteSetWithin } from './sets.ts';
export { createContactDescriber, describeSuppressionEvents, tellContacts } from './told-events.ts';
export { addressedChannels, normaliseAddress, nounOfAddress } from './suppressed-address.ts';
export { suppressionPreparations } from './suppression-body.ts';
export { describeSuppressions, toldSuppression } from './suppression-schema.ts';
export {
  deleteExpiredSuppressions,
  holdsAt,
  type StoredSuppression,
  type SuppressionKind,
} from './suppression-store.ts';
export {
  addSuppressions,
  findOptOuts,
  findSuppressed,
  eraseSuppressedAddresses,
  liftUnreachable,
  listSuppressions,
  readGrant,
  findOptedOutOfChannel,
  hasOptedOutOfChannel,
  readSuppressions,
  removeSuppressions,
  type SuppressedAddress,
  type SuppressingTools,
  type SuppressionTools,
  takeBackOptOut,
  toErasedKey,
} from './suppressions.ts';
