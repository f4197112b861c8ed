import type { Channel } from '../accounts/accounts.ts';
import type { Values } from '../channels/placeholders.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';

/** Delivered ahead of campaign mail, and again after an ambiguous hand-off; a campaign is neither. */
export type MessageClass = 'transactional' | 'campaign';

export type RecipientField = 'to' | 'cc' | 'bcc';

export type SubmittedRecipient = {
  field: RecipientField;
  /** As it was submitted. */
  address: string;
  /** As it is compared. */
  addressKey: string;
  dropReason: 'duplicate' | null;
};

/** A message that fulfils every rule that needs no look at the account. */
export type Submission = {
  organizationId: string;
  channel: Channel;
  class: MessageClass;
  /** For email, the address of `from`. */
  sender: string;
  /** For email, the domain that must be a verified one of the organization. */
  senderDomain: string;
  subject: string | null;
  category: string | null;
  templateId: string | null;
  /** What else a person may read of the message, by channel, as JSON: `StoredEmailDetails`. */
  details: string;
  /** What the channel needs besides to build the message, as JSON: `StoredEmailContent`. */
  content: string;
  recipients: readonly SubmittedRecipient[];
  attachments: readonly Uint8Array[];
  idempotencyKey: ScopedKey | null;
};

/** What is shown of an email besides its columns; `attachments` describes what is stored sealed elsewhere. */
export type StoredEmailDetails = {
  fromName: string | null;
  replyTo: string | null;
  attachments: StoredAttachment[];
  /** Of a campaign, as it was when it was queued. A transactional message goes by its sending domain. */
  tracking?: { opens: boolean; clicks: boolean };
  /** The lists that a campaign went to: what a recipient may leave instead of unsubscribing from everything. */
  listIds?: readonly string[];
};

export type StoredAttachment = {
  filename: string;
  contentType: string;
  contentId: string | null;
  sizeBytes: number;
};

/** What an email says, apart from what is shown of it. */
export type StoredEmailContent = {
  to: string[];
  cc: string[];
  html: string | null;
  text: string | null;
  /** What fills the placeholders of a campaign for contacts that have no value of their own. */
  defaults?: Values;
};
