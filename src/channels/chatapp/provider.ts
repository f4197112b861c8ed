import type { RecipientKey, SendOutcome } from '../outcome.ts';
import type { ProviderReport } from '../report.ts';
import type { TemplateCategory, TemplateContent, TemplateParameters } from './template.ts';

/** Why a message was refused or did not arrive: what users read in `error.code`. */
export const chatAppFailures = [
  /** The number is not on WhatsApp, has not accepted its terms, or has too old an app: the provider does not say which. */
  'unreachable',
  /** The person does not want it, or the provider chose not to deliver it to them. */
  'blocked',
  /** The template is not there, not approved, paused or disabled. */
  'template_unavailable',
  /** The provider does not let this account send, or send there. */
  'sender_rejected',
  'invalid_message',
  'rate_limited',
  /** Not handed over before its time was over. */
  'expired',
  'other',
] as const;

export type ChatAppFailure = (typeof chatAppFailures)[number];

/** What an organization is at the provider. `id` changes with what it names. */
export type ChatAppAccount = {
  id: string;
  organizationId: string;
  /** Of the WhatsApp Business Account, by which webhooks name it. */
  businessAccountId: string;
  /** Ids of the numbers that messages come from, not the numbers: one at least. */
  phoneNumberIds: readonly string[];
  accessToken: string;
};

/** A template as it is handed over. */
export type SentTemplate = {
  name: string;
  /** As in `en_US`. */
  language: string;
  category: TemplateCategory;
  content: TemplateContent;
};

/** One message for one person, ready to leave. */
export type ChatAppHandOff = {
  reference: RecipientKey;
  account: ChatAppAccount;
  /** E.164, with its plus. */
  to: string;
  template: SentTemplate;
  /** When its last review was over; null where nobody knows. */
  reviewedAt: Date | null;
  /** A value for each of its parameters. */
  parameters: TemplateParameters;
  isCampaign: boolean;
  /**
   * Commits "about to hand off". The provider calls it exactly once, when a connection is there and before the first
   * octet that cannot be taken back. If it rejects, the provider sends nothing and lets the error through.
   */
  confirm: () => Promise<void>;
  /** Aborted when the worker must not begin anything more; what was confirmed is carried through all the same. */
  signal: AbortSignal;
};

export type ChatAppOutcome = SendOutcome<ChatAppFailure> & {
  /** Of a deferral: with so many attempts it is refused. Absent where the policy alone says for how long it is tried. */
  attemptsMax?: number;
  /** What else the response says of the template or the account; absent for nothing. */
  finding?: ChatAppFinding;
  /** Of an acceptance: the digits by which the provider knows the person, if they are not those of `to`. */
  knownAs?: string;
};

/** What a hand-off or a report finds out beyond the one message. */
export type ChatAppFinding =
  /** The template cannot be sent any more, or not for now. */
  | {
      kind: 'template';
      /** Null: it must be looked at. */
      state: 'paused' | 'disabled' | 'rejected' | null;
      words: string;
    }
  /** What the message says does not fit the template as the provider has it, or is not what the provider takes. */
  | { kind: 'invalid_message'; words: string }
  /** What never happens as long as this program does what it should. */
  | { kind: 'own_fault'; words: string }
  /** The provider cannot reach the person, and does not say whether it ever could. */
  | { kind: 'unreachable' }
  /** The person has stopped marketing of this business. */
  | { kind: 'stopped_marketing' }
  /**
   * The account may send no campaigns: too many complaints, a limit, a payment that is due. `forMs` is null where it
   * lasts until somebody mends it.
   */
  | { kind: 'campaigns_held'; words: string; forMs: number | null }
  /** The account may send no marketing at all, until somebody mends that. */
  | { kind: 'marketing_refused'; words: string };

/** What the provider says of a template. */
export type ReviewedTemplate = {
  providerTemplateId: string;
  name: string;
  language: string;
  /** Null for a word that is not known: nothing changes. */
  state: TemplateState | null;
  category: TemplateCategory | null;
  /** The category that it is to have later; `atMs` is null where nobody says when. */
  announced?: { category: TemplateCategory; atMs: number | null };
  /** In the provider's words: at most 500 characters, no control characters. */
  rejectionReason: string | null;
  quality: TemplateQuality | null;
};

export const templateStates = [
  'pending',
  'approved',
  'rejected',
  'paused',
  'disabled',
  'archived',
  'locked',
  'flagged',
  'deleted',
] as const;

/** Where a template is with the provider; only `approved` ones are taken. */
export type TemplateState = (typeof templateStates)[number];

export const templateQualities = ['green', 'yellow', 'red', 'unknown'] as const;

export type TemplateQuality = (typeof templateQualities)[number];

/** Not carried out through no fault of the template. `isAccountAtFault`: the operator must mend something. */
export type ManagementDelay = {
  kind: 'delayed';
  retryAfterMs: number;
  words: string;
  isAccountAtFault: boolean;
};

export type TemplateSubmission =
  | {
      kind: 'submitted';
      template: ReviewedTemplate;
      /** When a review may be over; absent where nobody knows. */
      reviewedAfterMs?: number;
    }
  /** Refused for good; the words are for the author. */
  | { kind: 'refused'; words: string }
  /** There is one of that name and language: it must be looked up. */
  | { kind: 'exists' }
  /** It may have been taken: it must be looked up before it is submitted again. */
  | { kind: 'unknown'; words: string }
  | ManagementDelay;

/** What became of an edit. */
export type TemplateEdit =
  | {
      kind: 'edited';
      /** As it is afterwards; a review may begin anew. */
      template: ReviewedTemplate;
      /** When a review may be over; absent where nobody knows. */
      reviewedAfterMs?: number;
    }
  /** Refused for good, also because the template is not there any more; the words are for the author. */
  | { kind: 'refused'; words: string }
  /** It may have been made: it must be looked at before it is repeated. */
  | { kind: 'unknown'; words: string }
  | ManagementDelay;

export type WantedTemplate = { providerTemplateId: string | null; name: string; language: string };

/**
 * How messages of a chat app leave, and how their templates are reviewed: a folder under `providers/` and a line in the
 * registry there. `accepted` says that the provider has taken the message: receipts say what becomes of it.
 */
export type ChatAppProvider = {
  name: string;
  /** How many hand-offs it can usefully have under way at once. */
  concurrency: number;
  /** Whether its later reports name a message by the `providerMessageId` of the accepted hand-off. */
  isReportedById: boolean;
  /** Whether an organization needs an account of its own; without, `account` may be any. */
  needsAccount: boolean;
  /** Never rejects for anything that the remote side does; rejects only with the error of `confirm` or an abort. */
  handOff: (handOff: ChatAppHandOff) => Promise<ChatAppOutcome>;
  /** None of these reject for anything that the remote side does. */
  submitTemplate: (account: ChatAppAccount, template: SentTemplate) => Promise<TemplateSubmission>;
  /** What is known of these now. Those that are not found are not among them. */
  reviewTemplates: (
    account: ChatAppAccount,
    wanted: readonly WantedTemplate[],
  ) => Promise<{ kind: 'reviewed'; templates: readonly ReviewedTemplate[] } | ManagementDelay>;
  /**
   * Makes a template that is there say something else. With `mayBeMade` it is looked first whether it says so already:
   * providers count edits, and refuse a second one within a day.
   */
  editTemplate: (
    account: ChatAppAccount,
    edit: { providerTemplateId: string; template: SentTemplate; mayBeMade: boolean },
  ) => Promise<TemplateEdit>;
  /** `gone`: it is not there, or was deleted now. Only in this language. */
  deleteTemplate: (
    account: ChatAppAccount,
    wanted: WantedTemplate,
  ) => Promise<{ kind: 'gone' } | ManagementDelay>;
  /** What an account may do. Now and then the provider asks for it by itself, and tells the limit (`people_limit`). */
  examineAccount: (account: ChatAppAccount) => Promise<AccountExamination>;
  /** Why the provider cannot be reached at all; used by `doctor`. Null means that it can. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

export type AccountExamination =
  | {
      kind: 'examined';
      numbers: readonly ExaminedNumber[];
      /** Null where the provider does not say. */
      peoplePerDayMax: PeoplePerDayMax | null;
    }
  /** Its credentials do not work, or it could not be asked. */
  | { kind: 'failed'; words: string; isAccountAtFault: boolean };

/** How many different people may be written to in 24 hours. */
export type PeoplePerDayMax = number | 'unlimited';

export type ExaminedNumber = {
  phoneNumberId: string;
  /** As people see it. */
  displayNumber: string | null;
  name: string | null;
  quality: TemplateQuality;
  messagesPerSecondMax: number;
};

/** What a provider tells by requests of its own. Each names the account that it is about. */
export type ToldOfChatApp = { businessAccountId: string } & (
  | {
      kind: 'status';
      /** `opened` is read. */
      report: ProviderReport<'sent' | 'delivered' | 'opened' | 'failed', ChatAppFailure>;
      /** The provider's id of the person, and their digits, where it has them. */
      person: ChatAppPerson;
      finding: ChatAppFinding | null;
    }
  /** Something that a person wrote, or a quick reply that they chose. */
  | { kind: 'inbound'; providerMessageId: string; person: ChatAppPerson; text: string; at: Date }
  /** What a person has set in the app itself. */
  | { kind: 'marketing_preference'; person: ChatAppPerson; value: 'stop' | 'resume'; at: Date }
  /** A person has another number now. */
  | { kind: 'changed_number'; person: ChatAppPerson; newPerson: ChatAppPerson; at: Date }
  | { kind: 'template'; template: ReviewedTemplate }
  | { kind: 'people_limit'; peoplePerDayMax: PeoplePerDayMax }
  /** Its own words, for people: `account_update: DISABLED_UPDATE`. */
  | { kind: 'account'; words: string; areCampaignsHeld: boolean | null }
);

/**
 * What comes by a request of the provider. What comes by the path of an organization's own app may concern that
 * organization alone; null: it came by the installation's app, and concerns whoever has the account.
 */
export type ToldByCallback = ToldOfChatApp & { organizationId: string | null };

/** Either may be missing: people may hide their numbers. */
export type ChatAppPerson = {
  /** Digits alone, as the provider writes them. */
  waId: string | null;
  /** Business-scoped: means the same person to one business portfolio alone. */
  userId: string | null;
};
