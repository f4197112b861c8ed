import type { Values } from '../channels/placeholders.ts';
import type { StoredLabels } from '../messages/messages.ts';

/**
 * The fields of an email that the API shows and that have no column. `attachments` only describes them: their bytes are
 * stored elsewhere, sealed.
 */
export type StoredEmailDetails = StoredLabels & {
  fromName: string | null;
  replyTo: string | null;
  attachments: StoredAttachment[];
  /** For a campaign, the setting at the time when it was queued. A transactional message uses its sending domain's. */
  tracking?: { opens: boolean; clicks: boolean };
  /** The lists that a campaign went to. A recipient may leave one of them instead of unsubscribing from everything. */
  listIds?: readonly string[];
  /** The id of the email that it says once more. */
  resentFrom?: string;
  /** Whether a campaign's hand-offs are repeated whose answer was lost. */
  repeatsUncertain?: true;
};

/** `details` are those of a campaign by email, as they are stored. */
export function repeatsUncertain(details: unknown): boolean {
  return (details as Partial<StoredEmailDetails> | null | undefined)?.repeatsUncertain === true;
}

export type StoredAttachment = {
  filename: string;
  contentType: string;
  contentId: string | null;
  sizeBytes: number;
};

/** The content of an email, apart from its details. */
export type StoredEmailContent = {
  to: string[];
  cc: string[];
  html: string | null;
  text: string | null;
  /** Further header fields, by their names. */
  headers?: Readonly<Record<string, string>>;
  /** Values for a campaign's placeholders, for contacts that have no value of their own. */
  defaults?: Values;
};
