import type { FailureClass, RecipientKey, SendOutcome } from '../outcome.ts';
import type { ProviderReport, ReportedStatus } from '../report.ts';

/** One message for one recipient, ready to leave. */
export type EmailHandOff = {
  reference: RecipientKey;
  /** Return path (RFC 5321 reverse-path), without angle brackets. */
  envelopeFrom: string;
  /**
   * The one recipient, domain as A-labels, without angle brackets. Its local part may be beyond ASCII, and the header in
   * UTF-8 then (RFC 6532): what cannot be handed to a server that offers SMTPUTF8 is rejected.
   */
  recipient: string;
  /** The whole message in order: CRLF line ends, no line over 998 octets, not dot-stuffed, ending in CRLF. */
  content: readonly Uint8Array[];
  /**
   * Commits "about to hand off". The provider calls it exactly once, when everything that can be refused before
   * the message itself has been accepted (in SMTP: after 354), and before the first octet that cannot be taken
   * back. If it rejects, the provider sends nothing, leaves the connection clean, and lets the error through.
   */
  confirm: () => Promise<void>;
  /** Aborted when the worker must not begin anything more; what was confirmed is carried through all the same. */
  signal: AbortSignal;
};

/** How email leaves: a folder under `providers/` and a line in the registry there. */
export type EmailProvider = {
  name: string;
  /** How many hand-offs it can usefully have under way at once. */
  concurrency: number;
  /**
   * Whether each of so many is sent at once, or next on its connection: then they may be announced before they are handed
   * off. Left out: not, since some wait for a server that does not answer.
   */
  isAnnouncedAhead?: boolean;
  /** Whether its later reports name a message by the `providerMessageId` of the accepted hand-off. */
  isReportedById: boolean;
  /** Never rejects for anything that the remote side does; rejects only with the error of `confirm` or an abort. */
  handOff: (handOff: EmailHandOff) => Promise<SendOutcome>;
  /** Whether the provider can be reached at all; used by `doctor` and by the breaker's probe. Null means yes. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

/**
 * What a provider reports about an email after its hand-off. The reason decides whether the address is suppressed: a
 * permanent bounce for which the provider gives no reason is `mailbox_not_found`. A bounce without a reason counts as
 * `failed`, and says nothing about the address. An open is one of a person: those of machines are not reported.
 */
export type EmailReport = ProviderReport<ReportedStatus, FailureClass>;

/**
 * Takes what a provider reports. Resolves when it is stored, and rejects if it cannot be stored. Only a stored report may
 * be acknowledged: otherwise the provider must report it again.
 */
export type EmailIntake = { takeReport: (report: EmailReport) => Promise<void> };
