import type { SendingChannel } from '../channels/channel.ts';
import type { RecipientKey, SendOutcome } from '../channels/outcome.ts';
import type { ContactBar } from '../audience/audience.ts';
import type { Connection, Statement, Transaction } from '../platform/postgres/database.ts';
import type { DropReason, RecipientStatus } from './schema.ts';

/**
 * What messages know of a channel. Accepting, claiming, pacing, markers, crashes, settling, reports, objections and
 * counts are the same on all of them; a channel is a module that keeps this contract, and an entry in the map of all
 * channels that the roles hand in. Nothing in this room names a channel.
 */
export type MessageChannel = {
  name: SendingChannel;
  words: ChannelWords;
  senders: SenderRule;
  /** What outcomes mean, which may depend on the message. */
  policyOf: (message: { isCampaign: boolean }) => DeliveryPolicy;
  /** Whether reports come under the provider's own id of a message. */
  isReportedById: boolean;
  /** What outcomes and reports say of an address for good; null where they say nothing. */
  judgement: AddressJudgement | null;
  /**
   * Writes what hand-offs found out about addresses, in the transaction that writes their outcomes: that a device is
   * gone, for instance. Null where nothing is found out but what `judgement` reads from outcomes. Called for all
   * organizations at once, with the findings of recipients that were changed.
   */
  keepFindings: ((transaction: Transaction, findings: readonly Finding[]) => Promise<void>) | null;
  /** Made by `defineMessageStatus`. */
  refreshStatus: Statement<unknown>;
  objections: ChannelObjections;
};

/** All channels, by their names. */
export type MessageChannels = Readonly<Record<SendingChannel, MessageChannel>>;

export type ChannelWords = {
  /** As in `Sending email is suspended`. */
  medium: string;
  /** What is sent, of which there are many: `emails`. */
  messages: string;
  /** What the monthly quota counts: `recipients`. */
  unit: string;
};

/** By what a message says whose it is: for email, the domain of its sender; for SMS, the sender. */
export type SenderName = { organizationId: string; name: string };

/** In whose name messages may go out. */
export type SenderRule = {
  /** Which of these are the organization's own at the moment. */
  loadOwn: (connection: Connection, wanted: readonly SenderName[]) => Promise<OwnSenders>;
  /** What is said of one that is not. */
  describeOther: (name: string) => string;
};

export type OwnSenders = { has: (sender: SenderName) => boolean };

/** What outcomes mean for a message. */
export type DeliveryPolicy = {
  /** Where a recipient goes whose message the provider has taken. */
  acceptedStatus: RecipientStatus;
  /** Where it goes for which refusal; one that is not among them has failed, and says nothing of the address. */
  refusals: Readonly<Record<string, Refusal>>;
  /** A message that is older is given up, for this reason. */
  retryWindowMs: number;
  givenUpFor: string | null;
  /** Whether a hand-off that was cut off before its answer is tried once more. */
  repeatsAmbiguous: boolean;
};

/** `hard` says that the address is no good. */
export type Refusal = { status: RecipientStatus; type: 'hard' | 'soft' };

export type AddressJudgement = {
  /** Failures that are the address's own; a run of soft ones suppresses it. All others say nothing about it. */
  failureClasses: readonly string[];
  /** Whether an address has the same outcome every time, and nothing is to be learnt from it. */
  isSimulated: (addressKey: string) => boolean;
};

/** `finding` is what the channel's own delivery gave. */
export type Finding = { organizationId: string; addressKey: string; finding: unknown };

/** Whom nothing is to be sent to, beside what holds for every channel. */
export type ChannelObjections = {
  /** Those of the contacts of a campaign, by index, that must not be written to any more. */
  findBarred: (
    connection: Connection,
    contacts: readonly { organizationId: string; id: string; addressKey: string }[],
  ) => Promise<Map<number, ContactBar>>;
  /** Whether an address asks to be treated as one that is suppressed. */
  isSimulatedSuppression: (addressKey: string) => boolean;
};

/** One recipient that is still to be written to, claimed by a worker. */
export type Job = RecipientKey & {
  channel: MessageChannel;
  policy: DeliveryPolicy;
  isCampaign: boolean;
  /** In a campaign, whom it is for. */
  contactId: string | null;
  address: string;
  addressKey: string;
  variables: Readonly<Record<string, string | number | boolean>> | null;
  acceptedAt: Date;
  contentBytes: number;
  attempts: number;
  ambiguities: number;
  crashes: number;
  /** Of the claim that it was taken by: the same job may be claimed again later. */
  claimNumber: number;
};

/** How a channel builds messages and hands them to its provider. */
export type ChannelDelivery = {
  channel: MessageChannel;
  /** How many hand-offs can usefully be under way at once. */
  concurrency: number;
  /**
   * Names the account at a provider by which a job leaves, such as the credentials of its organization: an account that
   * fails delays its own jobs only. Null where all jobs leave by one account of the installation; while that one fails,
   * nothing is claimed.
   */
  accountOf: ((job: Job) => string) | null;
  /** For one lease: what it remembers is forgotten with it. */
  begin: () => DeliverySession;
};

export type ChannelDeliveries = Readonly<Record<SendingChannel, ChannelDelivery>>;

export type DeliverySession = {
  /** Looks up ahead, in few statements, what jobs will need that were just claimed. */
  prepare: (jobs: readonly Job[]) => Promise<void>;
  /** Rejects only with the error of `confirm`, an abort, or for a fault of our own. */
  handOff: (job: Job, permit: HandOffPermit) => Promise<Attempt>;
};

export type HandOffPermit = {
  /** Commits "about to hand off"; whoever it rejects sends nothing. */
  confirm: () => Promise<void>;
  /** Aborted when nothing new may be begun. */
  signal: AbortSignal;
};

/** What one attempt came to. `facts` are of the message; null where they are not known. */
export type Attempt = { facts: MessageFacts | null } &
  /** `finding` is for `keepFindings`; left out where nothing was found out. */
  (
    | { kind: 'outcome'; outcome: SendOutcome<string>; finding?: unknown }
    /** Not tried: the address failed a check. */
    | { kind: 'dropped'; reason: DropReason }
    /** Not tried: the message can never be sent. */
    | { kind: 'failed'; reason: string; diagnostic: string }
    /** Not tried, through no fault of the message: it goes back to the queue. */
    | { kind: 'released'; pauseMs: number }
  );

export type MessageFacts = {
  /** Whether it has other recipients. */
  isShared: boolean;
  hasAttachments: boolean;
  /**
   * A message may end before the retry window of its policy does: it is not tried again after this time. Left out where
   * it does not.
   */
  expiresAt?: Date;
};

/** Larger messages are loaded one by one when their turn comes, and counted while they are in memory. */
export const smallContentBytesMax = 262_144;

/** Messages in memory at once, apart from small ones. */
export const contentBytesMax = 64 * 1_048_576;
