import type { TProperties } from 'typebox';
import type { Channel } from '../accounts/accounts.ts';
import type { AddressColumns } from '../messages/messages.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/**
 * What the engine knows of a channel. Everything else about a campaign is the same on all of them: who gets it, when,
 * how fast, and what became of it. A new channel is a module that keeps this contract, and a line where the roles put
 * the room together.
 */
export type CampaignChannel = {
  channel: Channel;
  /** Below `/v1`. */
  path: string;
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
   * Reads everything that the message needs from the account (template, sender) and makes the message of it, or says
   * what is missing, in words for the person who wants to send it. The template is kept from being deleted until the
   * transaction ends.
   */
  prepare: (transaction: Transaction, campaign: PreparableCampaign) => Promise<Preparation>;
};

export type CampaignChannels = ReadonlyMap<Channel, CampaignChannel>;

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
