import type { SendingChannel } from '../channels/channel.ts';
import type { SendOutcome } from '../channels/outcome.ts';
import type { ContactBar } from '../audience/audience.ts';
import type { Clock } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Statement, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { MessageKey, RecipientKey } from './keys.ts';
import type { EventType } from '../webhooks/webhooks.ts';
import type { DropReason, RecipientStatus } from './schema.ts';
import type { Acceptance } from './store.ts';

/**
 * What messages know of a channel. Accepting, claiming, pacing, markers, crashes, settling, reports, objections and
 * counts are the same for all channels. A channel is a module that implements this contract, and an entry in the map of
 * all channels that the roles pass in. Nothing in this room names a channel.
 */
export type MessageChannel = {
  name: SendingChannel;
  words: ChannelWords;
  senders: SenderRule;
  /** Made by `defineAcceptance`, of the rule for senders once more; null where that cannot be said in SQL. */
  acceptance: Acceptance | null;
  /**
   * What outcomes mean, which may depend on the message. Its category is only told where a worker has died, and so are
   * the details of a campaign; otherwise a channel that goes by them says so with each attempt (`MessageFacts`).
   */
  policyOf: (message: { isCampaign: boolean; category?: string | null; details?: unknown }) => DeliveryPolicy;
  /** Whether its messages end at a time that is counted from their acceptance, also while a campaign is paused. */
  endsByAcceptance?: true;
  /** What each refusal means. After any other, the recipient has failed, and nothing is known of its address. */
  refusals: Readonly<Record<string, Refusal>>;
  reports: ReportMatching;
  /** What outcomes and reports say about whether an address exists; null if they say nothing. */
  judgement: AddressJudgement | null;
  /**
   * Writes what hand-offs found out about addresses, in the transaction that writes their outcomes, and what reports say
   * beyond the status: that a device is gone, for instance. Null if nothing is found out beyond what `judgement` reads from
   * outcomes. Called for all organizations at once, of hand-offs with the findings of recipients that were changed. Returns whether segments must look at
   * contacts again.
   */
  keepFindings:
    | ((tools: FindingTools, transaction: Transaction, findings: readonly Finding[]) => Promise<boolean>)
    | null;
  /**
   * What is found out by a hand-off that was cut off, also where its worker has died and can tell nothing: for
   * `keepFindings`. Left out: nothing.
   */
  cutOffFinding?: unknown;
  /** Made by `defineMessageStatus`. */
  refreshStatus: Statement<unknown>;
  /** What programs are told of a recipient, in the channel's words; null where they are told nothing. */
  eventOf: (what: RecipientStatus | 'dropped', failureClass: string | null) => EventType | null;
  objections: ChannelObjections;
  /**
   * SQL for the address under which those recipients are found that a contact was, over its row `c` and `wanted.contact_id`.
   * Left out: its messages have no clicks, and nothing is credited to them.
   */
  clickedAddress?: string;
  /** Makes due at once what the channel has put off while the clock was ahead. Left out: it puts nothing off. */
  bringForward?: BringForward;
  /** Tables of the channel that are partitioned by the ids of messages, and whose rows go with these. */
  tables?: readonly string[];
};

/**
 * What is due later than `dueLatest` was dated while the clock was ahead. Makes so many of these rows due at `at`, at most,
 * and returns one row for each.
 */
export type BringForward = (
  connection: Connection,
  times: { at: Date; dueLatest: Date },
  rowsMax: number,
) => Promise<readonly unknown[]>;

/** All channels by name. */
export type MessageChannels = Readonly<Record<SendingChannel, MessageChannel>>;

export type ChannelWords = {
  /** As in `Sending email is suspended`: `email`. */
  medium: string;
  /** The plural of what is sent: `emails`. */
  messages: string;
  /** What the monthly quota counts: `recipients`. */
  unit: string;
};

/** What shows whose message it is: for email, the domain of the sender's address; for SMS, the sender. */
export type SenderName = { organizationId: string; name: string };

/** Which senders messages may have. */
export type SenderRule = {
  /** Which of these belong to their organization now. */
  loadOwn: (connection: Connection, wanted: readonly SenderName[]) => Promise<OwnSenders>;
  /** What to show of a sender that does not. */
  describeOther: (name: string) => string;
};

export type OwnSenders = { has: (sender: SenderName) => boolean };

/** What outcomes mean for a message. */
export type DeliveryPolicy = {
  /** The status of a recipient whose message the provider has accepted. */
  acceptedStatus: RecipientStatus;
  /** An older message is given up, with the reason `givenUpFor`. */
  retryWindowMs: number;
  givenUpFor: string | null;
  /** Whether a hand-off that was cut off before the reply is tried once more. */
  repeatsAmbiguous: boolean;
  /** After this time. Left out: after a minute. */
  ambiguousPauseMs?: number;
};

/** The status after a refused hand-off. `hard` says that the address does not exist. */
export type Refusal = { status: RecipientStatus; type: 'hard' | 'soft' };

/** How a report finds its recipient if our own reference or the provider's id of the message is not enough. */
export type ReportMatching = {
  /**
   * Whether hand-offs that were cut off are tried once more, of any of its messages: a report that the first one took place
   * ends that.
   */
  endsRepeats: boolean;
  /**
   * Whether `delivered` and `failed` are reported in any order, of several devices of one person, and `delivered` counts.
   * Where it is left out, the next server may have returned what it had taken: `failed` counts.
   */
  isDeliveryFinal?: boolean;
  /**
   * Whether the address in a report may be that of a recipient, however the provider writes it. Providers sometimes give
   * an id to a second message, so a report for another address does not belong to the recipient.
   */
  isSameAddress: (addressKey: string, reported: string) => boolean;
  /**
   * Finds hand-offs from a sender to an address that were cut off since the given time: by the index in `wanted`, at most
   * two for each. Null if only a reference or an id tells which message a report belongs to.
   */
  findCutOff:
    | ((
        connection: Connection,
        wanted: readonly { to: string; sender: string }[],
        since: Date,
      ) => Promise<Map<number, RecipientKey[]>>)
    | null;
};

export type AddressJudgement = {
  /** Failures that are due to the address; several soft ones in a row suppress it. All others say nothing about it. */
  failureClasses: readonly string[];
  /** Whether an address belongs to the simulator: its outcomes are chosen, and say nothing. */
  isSimulated: (addressKey: string) => boolean;
};

export type FindingTools = { clock: Clock; newId: NewId; secrets: Secrets };

/**
 * `finding` is what the channel's own delivery gave, or what came with a report. `sentAt`: when a report's message was handed
 * off, which may be long ago; null for an answer, and for a report that came before the outcome of its hand-off was written.
 */
export type Finding = RecipientKey & { addressKey: string; sentAt: Date | null; finding: unknown };

/** Who must not be written to on this channel, in addition to what all channels check. */
export type ChannelObjections = {
  /** Those of the contacts of a campaign, as indexes, that must not be written to any more. */
  findBarred: (
    connection: Connection,
    contacts: readonly { organizationId: string; id: string; addressKey: string }[],
  ) => Promise<Map<number, ContactBar>>;
  /** Whether an address belongs to the simulator and is to be treated as suppressed. */
  isSimulatedSuppression: (addressKey: string) => boolean;
  /** A category whose messages people ask for themselves, whatever they have opted out of; null if there is none. */
  askedForCategory: string | null;
};

/** One recipient that is still to be written to, claimed by a worker. */
export type Job = RecipientKey & {
  channel: MessageChannel;
  /** That of its message, once an attempt has told it. */
  policy: DeliveryPolicy;
  isCampaign: boolean;
  /** The contact, in a campaign. */
  contactId: string | null;
  address: string;
  addressKey: string;
  variables: Readonly<Record<string, string | number | boolean>> | null;
  /** From when on it is tried: of a message that has a time of its own, that time. */
  acceptedAt: Date;
  contentBytes: number;
  attempts: number;
  ambiguities: number;
  crashes: number;
  /** The number of its claim: the same job may be claimed again later. */
  claimNumber: number;
  /**
   * The instant that its copy is dated: that of its hand-off. If an earlier hand-off may have taken place, that one's, so
   * that the repeat is the same copy. Null before its first hand-off, and after one that did not take place.
   */
  handOffAt: Date | null;
  /**
   * Its message has a time of its own, and its hand-off was not announced yet: until it is, it may be cancelled
   * (delivery/departure-store.ts).
   */
  isCancellable: boolean;
  /** Of the request that it came with, for the log; null if that named none, and for campaigns. */
  traceId: string | null;
  /** The slice that it was claimed with; left out if it has a row of its own in the queue. */
  slice?: DeliverySlice;
};

/** Recipients of a campaign that were claimed together, before any of them was tried. */
export type DeliverySlice = MessageKey & {
  firstOrdinal: number;
  lastOrdinal: number;
  /** Jobs whose outcome is not written yet. */
  jobsLeft: number;
  /** Transactions that have written outcomes of it. */
  writes: number;
};

/** How a channel builds messages and hands them to its provider. */
export type ChannelDelivery = {
  channel: MessageChannel;
  /** The name of the provider that it hands off to, for the log and for metrics. */
  provider: string;
  /** How many hand-offs can usefully be under way at once. */
  concurrency: number;
  /**
   * Whether each of so many hand-offs is sent at once, or after the one that its connection has under way, so that it may
   * be announced before. Otherwise one is announced when everything but the message has been agreed on.
   */
  isAnnouncedAhead?: boolean;
  /**
   * Names the account at a provider that a job is handed off by, such as the credentials of its organization: an
   * account that fails delays only its own jobs. Null if the installation has one account for all jobs; while it fails,
   * nothing is claimed.
   */
  accountOf: ((job: Job) => string) | null;
  /**
   * Whether the provider reports under its own id of a message. If so, ids are stored, and outcomes are written under
   * the locks that reports take: reports may come at the same time.
   */
  isReportedById: boolean;
  /**
   * Recipients report by themselves, and may do so before the outcome of their hand-off is written. Then outcomes are
   * written under those locks as well.
   */
  isReportedByRecipients?: boolean;
  /** Opens a session for one lease; what it remembers ends with the lease. */
  begin: () => DeliverySession;
};

export type ChannelDeliveries = Readonly<Record<SendingChannel, ChannelDelivery>>;

export type DeliverySession = {
  /** Looks up, in few statements, what the jobs that were just claimed will need. */
  prepare: (jobs: readonly Job[]) => Promise<void>;
  /** Rejects only with the error of `confirm`, with an abort, or for a fault of the program. */
  handOff: (job: Job, permit: HandOffPermit) => Promise<Attempt>;
};

export type HandOffPermit = {
  /** Commits "about to hand off". If it rejects, nothing may be sent. */
  confirm: () => Promise<void>;
  /** Aborted when nothing new may be begun. */
  signal: AbortSignal;
};

/** What a channel says of one attempt. `facts` are of the message; null if they are not known. */
export type Attempt = { facts: MessageFacts | null } & ChannelResult;

export type ChannelResult =
  | {
      kind: 'outcome';
      outcome: SendOutcome<string>;
      /** For `keepFindings`; left out if nothing was found out. */
      finding?: unknown;
    }
  /** Not tried: the address failed a check. */
  | { kind: 'objected'; objection: DropReason }
  /** Not tried: the message can never be sent. */
  | { kind: 'failed'; reason: string; diagnostic: string }
  /** Not tried, through no fault of the message: it goes back to the queue. */
  | { kind: 'released'; pauseMs: number };

export type MessageFacts = {
  /** Whether it has other recipients. */
  isShared: boolean;
  hasAttachments: boolean;
  /**
   * A message may end before the retry window of its policy does: it is not tried again after this time. Left out where
   * it does not.
   */
  expiresAt?: Date;
  /** What outcomes mean for it, where that depends on more than its class. */
  policy?: DeliveryPolicy;
};

/**
 * The content of smaller messages is not counted against `contentBytesMax`. Larger ones are loaded when their turn
 * comes.
 */
export const smallContentBytesMax = 262_144;

/** The content of messages in memory at once, without small ones. */
export const contentBytesMax = 64 * 1_048_576;
