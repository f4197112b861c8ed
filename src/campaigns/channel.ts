import type { TProperties } from 'typebox';
import type { SendingChannel } from '../channels/channel.ts';
import type { ForeignName } from '../channels/foreign-syntax.ts';
import type { Values } from '../channels/placeholders.ts';
import type {
  CampaignRecipient,
  MessageChannel,
  MessageKey,
  Reach,
  Submission,
} from '../messages/messages.ts';
import type { TaskRunner } from '../platform/http/body-threads.ts';
import type { PublicError } from '../platform/http/errors.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { ChannelPauseReason } from './states.ts';

/**
 * What campaigns know of a channel. Everything else about a campaign is the same on all channels: who gets it, when,
 * how fast, and its results. A new channel is a module that implements this contract, and an entry in campaigns.ts.
 */
export type CampaignChannel = {
  messages: MessageChannel;
  /** The path of its routes, after `/v1`. */
  path: string;
  /** The name of such a campaign in operations and schemas: `EmailCampaign`. */
  noun: string;
  /** The name of such a campaign in the response to a deletion: `email_campaign`. */
  object: string;
  /** The tag of the operations in the API's description. */
  tag: string;
  /** The inputs of a campaign beyond its name and its audience, as properties of the body: all optional. */
  contentFields: TProperties;
  /** The same fields in responses; null if not given. */
  contentRecord: TProperties;
  /** The fields that lists leave out because they are large. */
  bodyFields: readonly string[];
  /**
   * Broken rules that concern several fields, for instance fields that exclude each other. Each text begins with the
   * path of its field.
   */
  findIssues: (content: CampaignContent) => string[];
  /** The same as rules of the schemas of bodies (`FieldRule`), by name. Null is an input that is not there. */
  rules: readonly string[];
  /** The id of the template that the content uses, in lower case. */
  templateIdOf: (content: CampaignContent) => string | null;
  /** What kind of template it is. Left out: one of content for any channel. */
  templateKind?: 'chat_template';
  /** Things that the inputs name and the organization does not have. Each text begins with the path of its field. */
  findUnknown: (
    transaction: Transaction,
    organizationId: string,
    content: CampaignContent,
  ) => Promise<string[]>;
  reach: CampaignReach;
  /**
   * More recipients than any installation was seen to deliver to in a second. So many of a campaign are in the queue at a
   * time: with fewer the workers would wait for more, with more a campaign that begins would wait for the others.
   */
  deliveredPerSecondMax: number;
  /**
   * Makes a function that says how much of the monthly quota a copy takes, given its contact's values, for the content
   * of a `PreparedMessage`. Null where each copy takes one unit, or one for all of the devices of a contact.
   */
  openMeter: ((content: unknown) => QuotaMeter) | null;
  /** How sentences name the channel. */
  words: ChannelWords;
  /** Values for placeholders where a contact has none. */
  defaultsOf: (content: CampaignContent) => Values;
  /**
   * Reads what the message needs from the account (template, sender) and makes the message, or returns what is missing,
   * in words for the person who wants to send it. The template cannot be deleted until the transaction ends.
   */
  prepare: (transaction: Transaction, campaign: PreparableCampaign) => Promise<Preparation>;
  /** Why a queued campaign cannot go on, in words: its sender was deleted, for instance. */
  findObstacle: (
    transaction: Transaction,
    message: { organizationId: string; messageId: string },
  ) => Promise<string | null>;
  /**
   * Why no copy of a campaign would be taken for now, though later: its template is paused, for instance. It is paused
   * meanwhile, and goes on when there is no reason any more. Null as well where there is an obstacle. Left out: never.
   */
  findPauseReason?: (
    transaction: Transaction,
    message: { organizationId: string; messageId: string },
    at: Date,
  ) => Promise<ChannelPauseReason | null>;
  /**
   * How many more people campaigns may write to, where a provider limits people within a time; null where it does not.
   * Nobody else gets the same places before the transaction ends. Left out: as many as one likes.
   */
  openBudget?: (
    tools: { secrets: Secrets },
    transaction: Transaction,
    request: BudgetRequest,
  ) => Promise<PeopleBudget | null>;
  /** What a preview says of how long it will take, and of who will not get it. Left out: nothing. */
  foresee?: (transaction: Transaction, wanted: Foreseen) => Promise<Forecast>;
  /** Whether a copy that lacks a value for a placeholder is not sent; others leave the placeholder as it is written. */
  needsAllValues?: true;
  /** The schema of what `renderSample` returns, and the value if nothing can be shown. */
  sampleRecord: TProperties;
  emptySample: Readonly<Record<string, unknown>>;
  /** A copy as its reader sees it, with warnings; null if its values make it impossible to send. */
  renderSample: (runner: TaskRunner, message: PreparedMessage, copy: SampleCopy) => Promise<Sample | null>;
  /** The format of addresses in `POST /:id/test`, as registered with `createValidation`, and what each of them gets. */
  addressFormat: string;
  testedAddress: string;
  /** Likely mistakes in a campaign, whether it is ready or not. */
  findOversights: (
    transaction: Transaction,
    organizationId: string,
    content: CampaignContent,
  ) => Promise<Oversight[]>;
  /**
   * The same copy as a transactional message to one address, which matches `addressFormat`; null if its values make it
   * impossible to send.
   */
  submitTest: (
    tools: TestTools,
    message: PreparedMessage,
    copy: TestCopy,
  ) => Promise<Submission | PublicError | null>;
};

/** Where contacts are reached. Of a device the channel says in answers what it knows beyond the fate of the recipient. */
export type CampaignReach =
  | Extract<Reach, { kind: 'address' }>
  | (Extract<Reach, { kind: 'devices' }> & {
      record: TProperties;
      /** Reads what there is of these recipients, and says it of each; null is a device whose recipient has no row yet. */
      load: (
        transaction: Transaction,
        message: MessageKey,
        recipients: readonly CampaignRecipient[],
      ) => Promise<(recipient: CampaignRecipient | null) => Readonly<Record<string, unknown>>>;
    });

export type BudgetRequest = {
  organizationId: string;
  at: Date;
  /** How many copies of campaigns are in the queue, up to `most`; without those that are kept out of it for now. */
  countInHand: (most: number) => Promise<number>;
};

export type Foreseen = {
  organizationId: string;
  at: Date;
  /** What would be sent; null if the campaign is not ready. */
  message: PreparedMessage | null;
  /** How many contacts would get it. */
  audience: number;
  /** How many of their addresses begin with a text; null where counting them takes too long. */
  countBeginningWith: (text: string) => Promise<number | null>;
};

export type Forecast = {
  /** How many days, from now on; null where nothing limits the people of a day, or nobody knows how many they may be. */
  days: number | null;
  warnings: readonly string[];
};

export type PeopleBudget = {
  /** Why a campaign is paused that has no place left for somebody new. */
  pauseReason: ChannelPauseReason;
  /** Places for new people, besides those in the queue. It may be less than none. */
  left: number;
  /** A paused campaign goes on when so many are left, or as many as it needs. */
  step: number;
  /** Those of the addresses that take no place. */
  findFree: (addressKeys: readonly string[]) => Promise<ReadonlySet<string>>;
};

/** `no_unsubscribe_link`: readers can unsubscribe only by a button of their mail client. */
export type Oversight = 'no_unsubscribe_link' | ForeignName;

export type QuotaMeter = (values: Values) => number;

export type ChannelWords = {
  /** As in `unsubscribed from email`. */
  medium: string;
  /** As in `has no email address`. */
  address: string;
  /** Who accepts or refuses a hand-off: `the next mail server`. */
  taker: string;
  /** What `delivered` means: `the next mail server took it`. */
  arrival: string;
  /** What has happened when somebody opened or clicked it: it `was opened`, `one of its links was clicked`. */
  opened: string;
  clicked: string;
  /** What is to be said where the answer to a hand-off was lost: `it may have arrived, and will not be sent again`. */
  cutOff: string;
  /** How long deferred messages are retried: `three days`. */
  retriedFor: string;
  /** Why nothing was tried, as a sentence: `The mail servers of the domain have no addresses.` */
  unreachable: string;
  /** Why a copy cannot be sent: it has `more than 1,600 characters`. */
  unfit: string;
};

export type SampleCopy = {
  values: Values;
  /** The installation's URL. */
  publicUrl: string;
  at: Date;
};

export type TestTools = { runner: TaskRunner; database: Database };

export type TestCopy = SampleCopy & { organizationId: string; to: string };

export type Sample = { record: Readonly<Record<string, unknown>>; warnings: string[] };

/** By channel; null for a channel that has no campaigns. */
export type CampaignChannels = Readonly<Record<SendingChannel, CampaignChannel | null>>;

/** The inputs of `contentFields`, validated. Those never given or removed are absent. */
export type CampaignContent = Readonly<Record<string, unknown>>;

export type PreparableCampaign = {
  organizationId: string;
  id: string;
  content: CampaignContent;
  /** The lists that it is sent to. */
  listIds: readonly string[];
};

export type Preparation =
  { kind: 'ready'; message: PreparedMessage } | { kind: 'not_ready'; issues: readonly string[] };

/** A message as it is frozen when its campaign is queued. */
export type PreparedMessage = {
  sender: string;
  subject: string | null;
  category: string | null;
  templateId: string | null;
  /** JSON as the channel's delivery reads it: for email, `StoredEmailDetails` and `StoredEmailContent`. */
  details: string;
  content: string;
  /** The placeholders that are filled with each contact's own values. */
  variableNames: readonly string[];
};
