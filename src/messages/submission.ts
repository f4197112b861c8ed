import type { SendingChannel } from '../channels/channel.ts';
import type { ForeignName } from '../channels/foreign-syntax.ts';
import type { PublicError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';

/** Transactional messages are delivered ahead of campaigns, and are tried again after an ambiguous hand-off. */
export type MessageClass = 'transactional' | 'campaign';

/** `answer`: a reply to a message that the recipient has just sent to us. */
export type RecipientField = 'to' | 'cc' | 'bcc' | 'answer';

export type SubmittedRecipient = {
  field: RecipientField;
  /** As it was submitted. */
  address: string;
  /** Normalised, for comparison. */
  addressKey: string;
  dropReason: 'duplicate' | null;
};

/** A submission, or the error of the rule that a request breaks. */
export type Prepared = Submission | PublicError;

/** A message that has passed every check that does not need the account's data. */
export type Submission = {
  organizationId: string;
  channel: SendingChannel;
  class: MessageClass;
  /** For email, the address of `from`; for SMS, the name of the sender. */
  sender: string;
  /** The part of `sender` that must belong to the organization: for email, the domain; for SMS, all of it. */
  senderName: string;
  subject: string | null;
  /** A search by prefix finds the message by this text, and by its recipients' addresses. */
  searchText: string | null;
  category: string | null;
  templateId: string | null;
  /** By which it is listed, each once. Left out where there are none. */
  tags?: readonly string[] | undefined;
  /**
   * The version of the template, if the content was made of what was kept of it in memory. It may be stored only while
   * the template has this version. Left out if it was read for this request.
   */
  templateVersion?: string;
  /** Further fields of the message that the API shows, as JSON in the channel's own form. */
  details: string;
  /** What else the channel needs to build the message, as JSON (as a string or as bytes in UTF-8). */
  content: string | Uint8Array;
  /** May be empty where the channel looks up where a person can be reached: such a message is `skipped`. */
  recipients: readonly SubmittedRecipient[];
  attachments: readonly Uint8Array[];
  /**
   * Units of the monthly quota: the recipients of an email as submitted, duplicates included; the segments of an SMS.
   */
  quotaUnits: number;
  /** Placeholders that were given no value and stay as written. Only the first few names are kept. */
  missingVariables: readonly string[];
  /** What is likely a mistake in what was written, for the response to tell. */
  warnings: readonly ForeignName[];
  idempotencyKey: ScopedKey | null;
  /** When it is to be sent, as the request says it. Left out: at once. */
  scheduledAt?: string | undefined;
};
