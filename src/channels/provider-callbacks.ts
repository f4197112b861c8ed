import type { RecipientKey } from './outcome.ts';

/** The requests by which a provider of any channel reports. What one of them contains is `Told`. */
export type ProviderCallbacks<Told> = {
  /** The provider's name as it writes it: `Twilio`. */
  provider: string;
  list: readonly ProviderCallback<Told>[];
};

/** A request that the provider posts to `/callbacks/<provider>/<path>`, or to `/callbacks/<provider>` if that is empty. */
export type ProviderCallback<Told> = {
  /**
   * May end in `:token`, which names the recipient, since the provider was given this address with the message; or an
   * organization that has an app of its own at the provider.
   */
  path: string;
  /**
   * Answers the provider's question whether this address is ours, which it asks by GET before it sends anything. Null
   * if the question does not prove that it is the provider's.
   */
  greet?: (question: CallbackQuestion) => Promise<string | null>;
  /** The status that says that everything is stored; 204 if it is left out, which not every provider takes for it. */
  takenStatus?: 200 | 204;
} & (
  | {
      formBytesMax: number;
      rawBytesMax?: never;
      read: (request: FormCallbackRequest) => CallbackReading<Told> | Promise<CallbackReading<Told>>;
    }
  /** In a format of the provider, such as JSON. Signatures are usually over the bytes of the body. */
  | {
      rawBytesMax: number;
      formBytesMax?: never;
      read: (request: RawCallbackRequest) => CallbackReading<Told> | Promise<CallbackReading<Told>>;
    }
);

/** What a provider needs that reports by requests of its own. */
export type CallbackTools = {
  /** The address at which a callback of the path `<path>:token` is asked for, with the token of this recipient. */
  callbackUrl: (path: string, reference: RecipientKey) => string;
  /** The token alone, for a provider that returns it in the body of its reports. */
  writeToken: (reference: RecipientKey) => string;
};

/** What an organization has at a provider where the installation's own app is not used. */
export type ProviderApp = {
  organizationId: string;
  /** What it is there, by which the provider names it. */
  accountId: string;
  /** Signs what the provider sends. */
  appSecret: string;
  /** Proves the question of `greet`. */
  verifyToken: string;
};

type AppFinding = {
  /** The app that the token in the path names; null without a token, or if it is nobody's. Rejects if it cannot be read. */
  findApp: () => Promise<ProviderApp | null>;
};

export type CallbackQuestion = AppFinding & {
  /** By their names; those that were given more than once are missing. */
  query: Readonly<Record<string, string>>;
};

export type CallbackRequest = AppFinding & {
  /** The requested address, as the provider was given it. */
  url: string;
  /** By its name in lower case. */
  header: (name: string) => string | undefined;
  /** The recipient that the token in the path names; null without a token, or if it is not ours. */
  reference: RecipientKey | null;
  /** The same for a token in the body. */
  readToken: (token: string) => RecipientKey | null;
};

export type FormCallbackRequest = CallbackRequest & { form: URLSearchParams };

export type RawCallbackRequest = CallbackRequest & { body: Buffer };

/**
 * What a request contains, which may be nothing. `forged`: there is no proof that the provider sent it; this must be
 * found out before anything else is read. `unreadable`: the provider sent it, but it does not have the documented form.
 */
export type CallbackReading<Told> = readonly Told[] | 'forged' | 'unreadable';
