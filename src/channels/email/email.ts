/** The front door of the email channel. */
export { parseAddress, parseDomain, type EmailAddress } from './address.ts';
export { isContentId, isContentType, isRefusedAttachment, resolveContentType } from './attachment.ts';
export { readCalendar, readInvitationMethod } from './calendar.ts';
export {
  compileEmail,
  fillEmail,
  listChunks,
  type CompiledEmail,
  type EmailAttachment,
  type EmailContent,
} from './mime.ts';
export type { EmailHandOff, EmailProvider, RecipientReference } from './provider.ts';
