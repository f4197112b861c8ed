/** The front door of the email channel. */
export {
  nameLengthMax,
  type NamedAddress,
  parseNamedAddress,
  readAddress,
  writeNamedAddress,
} from './named-address.ts';
export { foldAddress, parseAddress, parseDomain, type EmailAddress } from './address.ts';
export { isSimulated, isSimulatedSuppression } from './simulator.ts';
export {
  isContentId,
  isContentType,
  isRefusedAttachment,
  resolveContentType,
  writeFilename,
} from './attachment.ts';
export { readCalendar, readInvitationMethod } from './calendar.ts';
export { findHeaderIssues, shortenReferences } from './custom-headers.ts';
export { digestBodyInSteps } from './dkim-canonical.ts';
export {
  dkimRecordName,
  dkimRecordValue,
  type DkimKeyPair,
  type DkimSigner,
  generateDkimKeyPair,
  openDkimSigner,
  planSignatures,
  publishesDkimKey,
  type SignaturePlan,
  signEmail,
} from './dkim.ts';
export {
  compileEmail,
  compileEmailInSteps,
  fillEmail,
  listChunks,
  type CompiledEmail,
  type EmailAttachment,
  type EmailContent,
  type EmailHeader,
  type FilledEmail,
  type PersonalHeaders,
  type UnfitCopy,
} from './mime.ts';
export { insertPreviewText } from './preview-text.ts';
export type { EmailHandOff, EmailIntake, EmailProvider, EmailReport } from './provider.ts';
export { findMxRoute, type MxRoute } from './mx-route.ts';
export { makeTextPart } from './text-part.ts';
export {
  type EmailRendering,
  type EmailText,
  mayBeLonger,
  type CompiledEmailText,
  compileEmailText,
  renderEmail,
  subjectLengthMax,
} from './rendering.ts';
export { createSigningThreads, type SignText } from './signing-threads.ts';
export {
  readReturnPathToken,
  readUnsubscribeToken,
  type ReturnPathToken,
  writeReturnPath,
  writeUnsubscribeAddress,
} from './return-path.ts';
export { readMailHead } from './report-parts.ts';
export { type BounceReport, readReport, type ReportedRecipient } from './reports.ts';
export { isShownAddress, shownAddressLengthMax } from './shown-address.ts';
export {
  clickPlaceholder,
  listLinks,
  listLinkTexts,
  openPlaceholder,
  readWebAddress,
  trackHtml,
  unsubscribePlaceholder,
} from './tracked-html.ts';
