import type { SendingChannel } from '../channels/channel.ts';
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
  /** What else a person may read of the message, as JSON of its channel. */
  details: string;
  /** What the channel needs besides to build the message, as JSON (bytes of it in UTF-8). */
  content: string | Uint8Array;
  recipients: readonly SubmittedRecipient[];
  attachments: readonly Uint8Array[];
  /** What it takes of the month's quota: the recipients of an email, as they were submitted; the segments of an SMS. */
  quotaUnits: number;
  /** Names of placeholders that stay as written; the first of them. */
  missingVariables: readonly string[];
  idempotencyKey: ScopedKey | null;
};
