import type { TProperties } from 'typebox';
import type { AddressColumns } from '../audience/audience.ts';
import type { SendingChannel } from '../channels/channel.ts';
import type { Values } from '../channels/placeholders.ts';
import type { MessageChannel, Submission } from '../messages/messages.ts';
import type { TaskRunner } from '../platform/http/body-threads.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/**
 * What the engine knows of a channel. Everything else about a campaign is the same on all of them: who gets it, when,
 * how fast, and what became of it. A new channel is a module that keeps this contract, and an entry in campaigns.ts.
 */
export type CampaignChannel = {
  messages: MessageChannel;
  /** Below `/v1`. */
  path: string;
  /** How one is called in names of operations and schemas: `EmailCampaign`. */
  noun: string;
  /** How a deleted one is called: `email_campaign`. */
  object: string;
  /** Of the operations in the API's description. */
  tag: string;
  /** The inputs of a campaign beyond its name and its audience, as properties of the body: all optional. */
  contentFields: TProperties;
  /** The same as they are shown, null where nothing was given. */
  contentRecord: TProperties;
  /** Those of them that lists leave out, being large. */
  bodyFields: readonly string[];
  /** Fields that may not be given together, and the like: each with the path of its field. */
  findIssues: (content: CampaignContent) => string[];
  /** The template of the organization that it uses, in lower case. */
  templateIdOf: (content: CampaignContent) => string | null;
  /** What the inputs name and the organization does not have: each with the path of its field. */
  findUnknown: (
    transaction: Transaction,
    organizationId: string,
    content: CampaignContent,
  ) => Promise<string[]>;
  addressColumns: AddressColumns;
  /**
   * More recipients than any installation was seen to deliver to in a second. So many of a campaign are in the queue at a
   * time: with fewer the workers would wait for more, with more a campaign that begins would wait for the others.
   */
  deliveredPerSecondMax: number;
  /**
   * What each copy takes of the month's quota, by the values of its contact, for the content of a `PreparedMessage`.
   * Null where each takes one.
   */
  openMeter: ((content: unknown) => QuotaMeter) | null;
  /** What it is called in sentences. */
  words: ChannelWords;
  /** What stands for a placeholder where a contact has no value. */
  defaultsOf: (content: CampaignContent) => Values;
  /**
   * Reads everything that the message needs from the account (template, sender) and makes the message of it, or says
   * what is missing, in words for the person who wants to send it. The template is kept from being deleted until the
   * transaction ends.
   */
  prepare: (transaction: Transaction, campaign: PreparableCampaign) => Promise<Preparation>;
  /** Why a campaign that was queued cannot go on, in words: its sender is gone, for instance. */
  findObstacle: (
    transaction: Transaction,
    message: { organizationId: string; messageId: string },
  ) => Promise<string | null>;
  /** What `renderSample` shows, and what stands there where nothing can be shown. */
  sampleRecord: TProperties;
  emptySample: Readonly<Record<string, unknown>>;
  /** A copy as a person reads it, and what may be wrong with it; null if its values make it unfit to be sent. */
  renderSample: (runner: TaskRunner, message: PreparedMessage, copy: SampleCopy) => Promise<Sample | null>;
  /** What an address of `POST /:id/test` must be: a format of `createValidation`. */
  addressFormat: string;
  /** What is likely to be a mistake in a campaign as it is written, ready to be sent or not. */
  findOversights: (
    transaction: Transaction,
    organizationId: string,
    content: CampaignContent,
  ) => Promise<Oversight[]>;
  /** The same copy as a transactional message to one address that `addressFormat` lets through. */
  submitTest: (runner: TaskRunner, message: PreparedMessage, copy: TestCopy) => Promise<Submission | null>;
};

/** `no_unsubscribe_link`: readers can unsubscribe by their mail client alone. */
export type Oversight = 'no_unsubscribe_link';

export type QuotaMeter = (values: Values) => number;

export type ChannelWords = {
  /** As in `unsubscribed from email`. */
  medium: string;
  /** As in `has no email address`. */
  address: string;
  /** Who takes what is handed off, or refuses it: `the next mail server`. */
  taker: string;
  /** What has happened with what is delivered: `the next mail server took it`. */
  arrival: string;
  /** How long what was put off is tried again: `three days`. */
  retriedFor: string;
  /** What a copy has that cannot be sent: `more than 1,600 characters`. */
  unfit: string;
};

export type SampleCopy = {
  values: Values;
  /** What addresses of this installation begin with. */
  publicUrl: string;
  at: Date;
};

export type TestCopy = SampleCopy & { organizationId: string; to: string };

export type Sample = { record: Readonly<Record<string, unknown>>; warnings: string[] };

/** By the names of the channels; null for one that has no campaigns. */
export type CampaignChannels = Readonly<Record<SendingChannel, CampaignChannel | null>>;

/** The inputs of `contentFields`, checked by them. What was never given, or was taken back, is not in it. */
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
  /** As the channel's delivery reads them, as JSON: for email, `StoredEmailDetails` and `StoredEmailContent`. */
  details: string;
  content: string;
  /** The placeholders that are filled with each contact's own values. */
  variableNames: readonly string[];
};
