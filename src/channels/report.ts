import type { RecipientKey } from './outcome.ts';

/**
 * What a provider reports of a recipient after the hand-off, on whatever channel. `Status` and `Reason` are the words of
 * the channel, where it has its own.
 */
export type ProviderReport<Status extends string = ReportedStatus, Reason extends string = string> = {
  /** The provider's own id of the message; null where it names none. */
  providerMessageId: string | null;
  /** Where the provider gives back what it was given; it settles hand-offs, too, whose answer was lost. */
  reference: RecipientKey | null;
  /** The address that the message was for, and the name of its sender: known where nothing else is. */
  to: string | null;
  senderName: string | null;
  status: Status;
  /** Null where it is on its way or has arrived. */
  failure: Reason | null;
  /** The provider's own code and words: at most 500 characters, no control characters. */
  diagnostic: string | null;
};

/**
 * `sent` is no end: the provider or a carrier has it. Unsubscribing is not among them: it changes what a contact wants,
 * and is more than a fate of one message.
 */
export type ReportedStatus =
  'sent' | 'delayed' | 'delivered' | 'bounced' | 'failed' | 'opened' | 'clicked' | 'complained';
