import type { SendingChannel } from '../channels/channel.ts';
import type { Values } from '../channels/placeholders.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';

/** Delivered ahead of campaign mail, and again after an ambiguous hand-off; a campaign is neither. */
export type MessageClass = 'transactional' | 'campaign';

/** `answer`: to whoever has just written to us. */
export type RecipientField = 'to' | 'cc' | 'bcc' | 'answer';

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
  channel: SendingChannel;
  class: MessageClass;
  /** For email, the address of `from`; for SMS, the name of the sender. */
  sender: string;
  /** What of it must be the organization's own: for email, the domain; for SMS, all of it. */
  senderName: string;
  subject: string | null;
  /** What a search finds it by, besides its recipients, from the beginning of it on. */
  searchText: string | null;
  category: string | null;
  templateId: string | null;
  /** What else a person may read of the message, by channel, as JSON: `StoredEmailDetails`. */
  details: string;
  /** What the channel needs besides to build the message, as JSON (bytes of it in UTF-8): `StoredEmailContent`. */
  content: string | Uint8Array;
  recipients: readonly SubmittedRecipient[];
  attachments: readonly Uint8Array[];
  /** What it takes of the month's quota: the recipients of an email, as they were submitted; the segments of an SMS. */
  quotaUnits: number;
  /** Names of placeholders that stay as written; the first of them. */
  missingVariables: readonly string[];
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

/** What is known of a text from its acceptance on. */
export type StoredSmsDetails = { encoding: 'gsm7' | 'ucs2'; segments: number };

/** What a text says; of a campaign, before its placeholders are filled with each contact's own values. */
export type StoredSmsContent = { text: string; defaults?: Values };

/** What an email says, apart from what is shown of it. */
export type StoredEmailContent = {
  to: string[];
  cc: string[];
  html: string | null;
  text: string | null;
  /** What fills the placeholders of a campaign for contacts that have no value of their own. */
  defaults?: Values;
};
