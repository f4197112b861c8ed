import type { RecipientKey, SendOutcome } from '../outcome.ts';
import type { Keyword } from '../keywords.ts';
import type { ProviderReport } from '../report.ts';

/** Why a text was refused or did not arrive: what users read in `error.code`. */
export const smsFailures = [
  /** The number does not exist, or cannot receive texts. */
  'unknown_subscriber',
  /** Switched off or out of reach for too long. */
  'unreachable',
  /** Its owner, or a carrier on their behalf, does not want texts of this sender. */
  'blocked',
  /** A filter took it for spam. */
  'spam',
  /** The provider does not let this account use this sender, or send to this destination. */
  'sender_rejected',
  'invalid_message',
  'rate_limited',
  /** Not delivered before its validity ended. */
  'expired',
  'other',
] as const;

export type SmsFailure = (typeof smsFailures)[number];

/** What a hand-off or a receipt finds out beyond the one text. */
export type SmsFinding =
  /** The provider keeps an opt-out of this number, which its owner has said by STOP. */
  { kind: 'opted_out' };

export type SmsOutcome = SendOutcome<SmsFailure> & {
  /** Absent for nothing. */
  finding?: SmsFinding;
};

export const senderTypes = ['alphanumeric', 'long_code', 'short_code', 'toll_free'] as const;

export type SenderType = (typeof senderTypes)[number];

export type SmsSender = {
  /** As it was approved: up to 11 characters with a letter, or up to 15 digits without a plus. */
  name: string;
  type: SenderType;
};

/** One text for one number, ready to leave. */
export type SmsHandOff = {
  reference: RecipientKey;
  sender: SmsSender;
  /** E.164, with its plus. */
  to: string;
  /** 1 to 1,600 characters of well-formed Unicode. */
  text: string;
  /**
   * Commits "about to hand off". The provider calls it exactly once, when a connection is there and before the first
   * octet that cannot be taken back. If it rejects, the provider sends nothing and lets the error through.
   */
  confirm: () => Promise<void>;
  /** Aborted when the worker must not begin anything more; what was confirmed is carried through all the same. */
  signal: AbortSignal;
};

/**
 * How texts leave: a folder under `providers/` and a line in the registry there. `accepted` says that the provider
 * has taken the text: receipts say what becomes of it, under the `providerMessageId`.
 */
export type SmsProvider = {
  name: string;
  /** How many hand-offs it can usefully have under way at once. */
  concurrency: number;
  /** Whether its later reports name a message by the `providerMessageId` of the accepted hand-off. */
  isReportedById: boolean;
  /** Never rejects for anything that the remote side does; rejects only with the error of `confirm` or an abort. */
  handOff: (handOff: SmsHandOff) => Promise<SmsOutcome>;
  /** Whether it answers STOP, START and HELP by itself. */
  answersKeywords: boolean;
  /** Why the provider cannot be reached at all; used by `doctor`. Null means that it can. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

/** What a provider reports of a text after its hand-off. Numbers are in E.164. */
export type SmsReceipt = ProviderReport<
  'sent' | 'delivered' | 'undelivered' | 'failed' | 'expired',
  SmsFailure
> & {
  /** Absent for nothing. */
  finding?: SmsFinding;
};

/** A text that was sent to one of our senders. */
export type InboundSms = {
  /** The provider's, so that a text that is reported twice is recognised; null where it has none. */
  providerMessageId: string | null;
  /** E.164, with its plus. */
  from: string;
  /** The name of the sender, as it was approved: digits without a plus. */
  senderName: string;
  /** How the provider wrote that, if it read like a number without its country; it may be a short code all the same. */
  senderNameAsWritten?: string;
  text: string;
  /** What the provider itself has taken the text for, whose list of words is its own; absent where it does not say. */
  takenFor?: Keyword;
};

/**
 * Takes what a provider reports. Resolves once it is stored: only then is it acknowledged, so that the provider
 * reports it again if it was not stored. Rejects if it cannot be stored.
 */
export type SmsIntake = {
  takeReceipt: (receipt: SmsReceipt) => Promise<void>;
  takeInbound: (inbound: InboundSms) => Promise<void>;
};
