import type { Values } from '../channels/placeholders.ts';

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
