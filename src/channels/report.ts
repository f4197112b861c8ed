import type { RecipientKey } from './outcome.ts';

/**
 * What a provider of any channel reports about a recipient after the hand-off. `Status` and `Reason` are the words of the
 * channel, if it has its own.
 */
export type ProviderReport<Status extends string = ReportedStatus, Reason extends string = string> = {
  /** The provider's id of the message; null if the report has none. */
  providerMessageId: string | null;
  /** Our own, if the provider returns what it was given. It also settles hand-offs whose reply was lost. */
  reference: RecipientKey | null;
  /** The recipient's address and the name of the sender: some reports have nothing else. */
  to: string | null;
  senderName: string | null;
  status: Status;
  /** Null if the message is on its way or has arrived. */
  failure: Reason | null;
  /** The provider's own code and words: at most 500 characters, no control characters. */
  diagnostic: string | null;
};

/**
 * `sent` is not final: the provider or a carrier has the message. Unsubscribing is not among them, since it changes the
 * consent of a contact and not only the status of one message.
 */
export type ReportedStatus =
  'sent' | 'delayed' | 'delivered' | 'bounced' | 'failed' | 'opened' | 'clicked' | 'complained';
